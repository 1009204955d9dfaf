//! Element types of stored and served arrays.

use std::fmt;

/// The type of one array element, as served (always little-endian) or as stored (see [`Stored`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// IEEE 754 half precision.
    F16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// IEEE 754 single precision.
    F32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 double precision.
    F64,
}

impl DType {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::F16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// Size of one element in bytes: 1, 2, 4 or 8.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The name numpy gives the type: `float32`, `int64`, `bool`.
    #[must_use]
    pub const fn numpy_name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::F16 => "float16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::F32 => "float32",
            Self::U64 => "uint64",
            Self::I64 => "int64",
            Self::F64 => "float64",
        }
    }

    /// The type that numpy calls `name`.
    #[must_use]
    pub fn from_numpy_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.numpy_name() == name)
    }

    /// How many columns an index of this type can number, at most 2^31 as everywhere; 0 for types that are no integers.
    #[must_use]
    pub const fn n_indices(self) -> u64 {
        match self {
            Self::U8 => 1 << 8,
            Self::I8 => 1 << 7,
            Self::U16 => 1 << 16,
            Self::I16 => 1 << 15,
            Self::U32 | Self::I32 | Self::U64 | Self::I64 => 1 << 31,
            Self::Bool | Self::F16 | Self::F32 | Self::F64 => 0,
        }
    }

    /// The smallest type that holds every value of both, `None` if there is none (64-bit integers beside floats or beside 64-bit
    /// integers of the other sign). Booleans are 0 and 1. Where it exists it is the type that numpy promotes to.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        let holds = |to: Self, from: Self| match (from.integer_bits(), to.integer_bits()) {
            _ if from == to => true,
            (Some((signed, bits)), Some((to_signed, to_bits))) => {
                to != Self::Bool
                    && if signed { to_signed && to_bits >= bits } else { to_bits - i32::from(to_signed) >= bits }
            }
            (Some((signed, bits)), None) => to.significand_bits() >= bits - i32::from(signed),
            (None, Some(_)) => false,
            (None, None) => to.significand_bits() >= from.significand_bits(),
        };
        Self::ALL
            .into_iter()
            .filter(|&to| holds(to, self) && holds(to, other))
            .min_by_key(|to| (to.size_bytes(), to.is_float()))
    }

    /// Signedness and bits of an integer type; booleans are unsigned of one bit.
    const fn integer_bits(self) -> Option<(bool, i32)> {
        Some(match self {
            Self::Bool => (false, 1),
            Self::U8 => (false, 8),
            Self::I8 => (true, 8),
            Self::U16 => (false, 16),
            Self::I16 => (true, 16),
            Self::U32 => (false, 32),
            Self::I32 => (true, 32),
            Self::U64 => (false, 64),
            Self::I64 => (true, 64),
            Self::F16 | Self::F32 | Self::F64 => return None,
        })
    }

    /// Bits of a float's integers that are all exact; 0 for integers.
    const fn significand_bits(self) -> i32 {
        match self {
            Self::F16 => 11,
            Self::F32 => 24,
            Self::F64 => 53,
            _ => 0,
        }
    }

    /// True for the floating-point types.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.numpy_name())
    }
}

/// How an array element lies in the source: its type and its byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The element type.
    pub dtype: DType,
    /// True if multi-byte elements are stored most significant byte first.
    pub big_endian: bool,
}

impl Stored {
    /// Little-endian elements of `dtype`.
    #[must_use]
    pub const fn little(dtype: DType) -> Self {
        Self { dtype, big_endian: false }
    }
}

impl DType {
    /// The first element of `bytes` (little-endian) as a double; 64-bit integers are rounded. 0 if `bytes` is too short.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // documented: sums of counts, category labels
    pub fn load_f64(self, bytes: &[u8]) -> f64 {
        let mut word = [0_u8; 8];
        let n = self.size_bytes().min(bytes.len());
        word[..n].copy_from_slice(&bytes[..n]);
        let [a, b, c, d, ..] = word;
        match self {
            Self::Bool | Self::U8 => f64::from(a),
            Self::I8 => f64::from(i8::from_le_bytes([a])),
            Self::U16 => f64::from(u16::from_le_bytes([a, b])),
            Self::I16 => f64::from(i16::from_le_bytes([a, b])),
            Self::F16 => f64::from(f16_to_f32(u16::from_le_bytes([a, b]))),
            Self::U32 => f64::from(u32::from_le_bytes([a, b, c, d])),
            Self::I32 => f64::from(i32::from_le_bytes([a, b, c, d])),
            Self::F32 => f64::from(f32::from_le_bytes([a, b, c, d])),
            Self::U64 => u64::from_le_bytes(word) as f64,
            Self::I64 => i64::from_le_bytes(word) as f64,
            Self::F64 => f64::from_le_bytes(word),
        }
    }

    /// The first element of `bytes` (little-endian) as a JSON value; what JSON cannot hold (NaN, infinities) becomes text.
    #[must_use]
    pub fn load_json(self, bytes: &[u8]) -> serde_json::Value {
        let mut word = [0_u8; 8];
        let n = self.size_bytes().min(bytes.len());
        word[..n].copy_from_slice(&bytes[..n]);
        match self {
            Self::Bool => (word[0] != 0).into(),
            Self::U64 => u64::from_le_bytes(word).into(),
            Self::I64 => i64::from_le_bytes(word).into(),
            Self::F16 | Self::F32 | Self::F64 => {
                let value = self.load_f64(bytes);
                serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Into::into)
            }
            // All other integers are exact in a double.
            #[allow(clippy::cast_possible_truncation)]
            _ => (self.load_f64(bytes) as i64).into(),
        }
    }
}

/// IEEE 754 half precision to single precision, exactly.
#[must_use]
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 0x1f;
    let fraction = u32::from(half) & 0x3ff;
    match (exponent, fraction) {
        (0, 0) => f32::from_bits(sign),
        // Subnormal: fraction * 2^-24, exact in single precision.
        (0, _) => {
            let magnitude = f32::from_bits(0x3380_0000)
                * u16::from_le_bytes([fraction.to_le_bytes()[0], fraction.to_le_bytes()[1]]) as f32;
            f32::from_bits(sign | magnitude.to_bits())
        }
        (0x1f, _) => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Double precision to IEEE 754 half precision, rounded to nearest, ties to even.
#[must_use]
pub fn f64_to_f16(value: f64) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return sign | 0x7e00;
    }
    // The spacing of halves at this magnitude: 2^(exponent - 10), at least that of the subnormals.
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(-14);
    let spacing = 2.0_f64.powi(exponent - 10);
    let steps = (magnitude / spacing).round_ties_even();
    // At most 2048 steps for finite halves: a carry into the next exponent falls out of the addition.
    let bits = if steps >= 4096.0 { 0x7c00 } else { steps as u32 + (((exponent + 14) as u32) << 10) };
    sign | bits.min(0x7c00) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_exact() {
        // From numpy.float16: smallest subnormal, largest subnormal, smallest normal, 1, -2, largest, infinity.
        for (bits, value) in [
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x0400, 6.103_515_6e-5),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x7c00, f32::INFINITY),
            (0x8001, -5.960_464_5e-8),
        ] {
            assert_eq!(f16_to_f32(bits), value, "{bits:#x}");
        }
        assert!(f16_to_f32(0x7e00).is_nan());
    }

    #[test]
    fn half_precision_rounds_to_even() {
        for bits in (0..0x7c00_u16).chain(0x8000..0xfc00) {
            assert_eq!(f64_to_f16(f64::from(f16_to_f32(bits))), bits, "{bits:#x}");
        }
        // From numpy.float16 of the same doubles.
        for (value, bits) in
            [(2049.0, 0x6800), (2051.0, 0x6802), (65519.0, 0x7bff), (65520.0, 0x7c00), (1e300, 0x7c00), (3e-8, 0x0001)]
        {
            assert_eq!(f64_to_f16(value), bits, "{value}");
        }
    }

    /// Checked against `numpy.result_type`: equal, or none where numpy would round.
    #[test]
    fn common_types_hold_both() {
        use DType::{Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        for (a, b, common) in [
            (I32, F32, Some(F64)),
            (U8, U16, Some(U16)),
            (U8, I8, Some(I16)),
            (U16, I8, Some(I32)),
            (U32, I32, Some(I64)),
            (U64, I64, None),
            (U64, U8, Some(U64)),
            (I64, F64, None),
            (I64, F32, None),
            (I32, F64, Some(F64)),
            (U32, F32, Some(F64)),
            (U16, F32, Some(F32)),
            (I16, F16, Some(F32)),
            (U8, F16, Some(F16)),
            (F16, F32, Some(F32)),
            (Bool, I8, Some(I8)),
            (Bool, F16, Some(F16)),
            (Bool, Bool, Some(Bool)),
            (F64, F32, Some(F64)),
        ] {
            assert_eq!((a.common(b), b.common(a)), (common, common), "{a} {b}");
        }
        assert!(DType::ALL.into_iter().all(|dtype| dtype.common(dtype) == Some(dtype)));
    }

    #[test]
    fn elements_load() {
        assert_eq!(DType::I16.load_f64(&(-7_i16).to_le_bytes()), -7.0);
        assert_eq!(DType::U64.load_json(&u64::MAX.to_le_bytes()), serde_json::json!(u64::MAX));
        assert_eq!(DType::F64.load_json(&f64::NAN.to_le_bytes()), serde_json::json!("NaN"));
        assert_eq!(DType::Bool.load_json(&[1]), serde_json::json!(true));
    }
}
