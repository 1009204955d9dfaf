//! Element types and fill values of both formats.
//!
//! Format 2 takes numpy's names (`<f4`, `|S18`, `<U12`, a list for records), format 3 has its own (`float32`). What is neither a number nor
//! text becomes [`ElemType::Other`] and is refused only when it is asked for.

use serde_json::Value;

use crate::dtype::{DType, Stored};
use crate::num::{to_u64, to_usize};
use crate::store::anndata::node::{ElemType, Field, TextType};

/// Most bytes of an element.
const MAX_ELEM_BYTES: u64 = 1 << 20;
/// Most fields of a record.
const MAX_FIELDS: usize = 65_536;

/// A translated type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The elements.
    pub elem: ElemType,
    /// Size of an element in bytes; 0 for text of variable length.
    pub size: usize,
}

fn other(what: impl Into<String>) -> Described {
    Described { elem: ElemType::Other(what.into()), size: 1 }
}

fn number(dtype: DType, big_endian: bool) -> Described {
    let size = dtype.size_bytes();
    Described { elem: ElemType::Number(Stored { dtype, big_endian: big_endian && size > 1 }), size }
}

/// The `dtype` of format 2.
#[must_use]
pub fn describe_v2(dtype: &Value) -> Described {
    match dtype {
        Value::String(name) => simple(name),
        Value::Array(fields) => record(fields).unwrap_or_else(|| other("records of an unknown kind")),
        _ => other("elements of an unknown type"),
    }
}

fn simple(name: &str) -> Described {
    let unknown = || other(format!("elements of type {name}"));
    let mut rest = name.chars();
    let (Some(order), Some(kind)) = (rest.next(), rest.next()) else { return unknown() };
    if !matches!(order, '<' | '>' | '|' | '=') {
        return unknown();
    }
    if kind == 'O' {
        return Described { elem: ElemType::Text(TextType::Variable), size: 0 };
    }
    let big_endian = order == '>';
    let Ok(n) = rest.as_str().parse::<u64>() else { return unknown() };
    let dtype = match (kind, n) {
        ('b', 1) => DType::Bool,
        ('i', 1) => DType::I8,
        ('i', 2) => DType::I16,
        ('i', 4) => DType::I32,
        ('i', 8) => DType::I64,
        ('u', 1) => DType::U8,
        ('u', 2) => DType::U16,
        ('u', 4) => DType::U32,
        ('u', 8) => DType::U64,
        ('f', 2) => DType::F16,
        ('f', 4) => DType::F32,
        ('f', 8) => DType::F64,
        ('S', _) => return bytes_text(n).unwrap_or_else(unknown),
        ('U', _) => return wide_text(n, big_endian).unwrap_or_else(unknown),
        _ => return unknown(),
    };
    number(dtype, big_endian)
}

/// Text of `len` bytes.
fn bytes_text(len: u64) -> Option<Described> {
    let len = to_usize(Some(len).filter(|&n| (1..=MAX_ELEM_BYTES).contains(&n))?);
    Some(Described { elem: ElemType::Text(TextType::Fixed { len, space_padded: false }), size: len })
}

/// Text of `len` code points of four bytes each.
fn wide_text(len: u64, big_endian: bool) -> Option<Described> {
    let len = to_usize(Some(len).filter(|&n| (1..=MAX_ELEM_BYTES / 4).contains(&n))?);
    Some(Described { elem: ElemType::Text(TextType::Utf32 { len, big_endian }), size: len * 4 })
}

/// Fields one behind the other: `[name, type]` or `[name, type, extent]`.
fn record(fields: &[Value]) -> Option<Described> {
    if fields.is_empty() || fields.len() > MAX_FIELDS {
        return None;
    }
    let (mut found, mut offset) = (Vec::with_capacity(fields.len()), 0_u64);
    for field in fields {
        let (name, dtype, extent) = match field.as_array()?.as_slice() {
            [name, dtype] => (name, dtype, &[][..]),
            [name, dtype, extent] => (name, dtype, extent.as_array()?.as_slice()),
            _ => return None,
        };
        let Described { elem, size } = simple(dtype.as_str()?);
        let dims: Vec<u64> = extent.iter().map(Value::as_u64).collect::<Option<_>>()?;
        let count = dims.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))?;
        // A type that is not known has no size, and then the fields behind it have no place.
        if matches!(elem, ElemType::Other(_) | ElemType::Text(TextType::Variable)) {
            return None;
        }
        found.push(Field { name: name.as_str()?.to_owned(), offset: to_usize(offset), elem, dims });
        offset = offset.checked_add(count.checked_mul(to_u64(size))?).filter(|&n| n <= MAX_ELEM_BYTES)?;
    }
    Some(Described { elem: ElemType::Record(found), size: to_usize(offset).max(1) })
}

/// The `data_type` of format 3. `big_endian` as the codecs say.
#[must_use]
pub fn describe_v3(data_type: &Value, big_endian: bool) -> Described {
    let (name, configuration) = match data_type {
        Value::String(name) => (name.as_str(), None),
        Value::Object(object) => match object.get("name").and_then(Value::as_str) {
            Some(name) => (name, object.get("configuration")),
            None => return other("elements of an unknown type"),
        },
        _ => return other("elements of an unknown type"),
    };
    let len_bytes = || configuration?.get("length_bytes")?.as_u64();
    let dtype = match name {
        "bool" => DType::Bool,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "float16" => DType::F16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        "string" | "variable_length_utf8" => {
            return Described { elem: ElemType::Text(TextType::Variable), size: 0 };
        }
        "fixed_length_utf32" => {
            let text = len_bytes().filter(|n| n % 4 == 0).and_then(|n| wide_text(n / 4, big_endian));
            return text.unwrap_or_else(|| other("text of no length"));
        }
        "null_terminated_bytes" => {
            return len_bytes().and_then(bytes_text).unwrap_or_else(|| other("text of no length"));
        }
        _ => return other(format!("elements of type {name}")),
    };
    number(dtype, big_endian)
}

/// The fill value as it would be stored, `size` bytes. `None` if it is not one of the type.
#[must_use]
pub fn fill_value(value: &Value, described: &Described) -> Option<Vec<u8>> {
    let ElemType::Number(stored) = described.elem else { return Some(vec![0; described.size]) };
    if value.is_null() {
        return Some(vec![0; described.size]);
    }
    let mut bytes = if stored.dtype.is_float() { float(value, stored.dtype)? } else { integer(value, stored.dtype)? };
    if stored.big_endian {
        bytes.reverse();
    }
    Some(bytes)
}

fn integer(value: &Value, dtype: DType) -> Option<Vec<u8>> {
    let number: i128 = match value {
        Value::Bool(flag) => i128::from(*flag),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => i128::from(n),
            (None, Some(n)) => i128::from(n),
            // Some writers give 0.0.
            (None, None) => n.as_f64().filter(|n| *n == 0.0).map(|_| 0)?,
        },
        _ => return None,
    };
    let size = dtype.size_bytes();
    let bits = 8 * size;
    let (least, most) = match dtype {
        DType::Bool => (0, 1),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
        _ => (0, (1_i128 << bits) - 1),
    };
    (least..=most).contains(&number).then(|| number.to_le_bytes().get(..size).unwrap_or_default().to_vec())
}

#[allow(clippy::cast_possible_truncation)] // the fill value of an array of float32 is one
fn float(value: &Value, dtype: DType) -> Option<Vec<u8>> {
    let size = dtype.size_bytes();
    let number = match value {
        Value::Number(n) => n.as_f64()?,
        Value::String(text) => match text.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            // The bits themselves.
            text => {
                let bits = u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
                let bytes = bits.to_le_bytes();
                return bytes.get(size..)?.iter().all(|&b| b == 0).then(|| bytes.get(..size).map(<[u8]>::to_vec))?;
            }
        },
        _ => return None,
    };
    Some(match dtype {
        DType::F64 => number.to_le_bytes().to_vec(),
        DType::F32 => (number as f32).to_le_bytes().to_vec(),
        _ => half(number)?.to_le_bytes().to_vec(),
    })
}

/// The half-precision number nearest to `number`, if it is exact: fill values are.
fn half(number: f64) -> Option<u16> {
    if number.is_nan() {
        return Some(0x7e00);
    }
    (0..=u16::MAX).find(|&bits| half_value(bits).is_some_and(|value| value.to_bits() == number.to_bits()))
}

/// The value of a half-precision number; `None` for what is no number.
fn half_value(bits: u16) -> Option<f64> {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    Some(match exponent {
        0 => sign * mantissa * 2_f64.powi(-24),
        31 if mantissa == 0.0 => sign * f64::INFINITY,
        31 => return None,
        e => sign * (1.0 + mantissa / 1024.0) * 2_f64.powi(e - 15),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fill(value: Value, dtype: &str) -> Option<Vec<u8>> {
        fill_value(&value, &describe_v2(&json!(dtype)))
    }

    #[test]
    fn numpy_names() {
        let stored = |dtype, big_endian| ElemType::Number(Stored { dtype, big_endian });
        assert_eq!(describe_v2(&json!("<f4")).elem, stored(DType::F32, false));
        assert_eq!(describe_v2(&json!(">i8")).elem, stored(DType::I64, true));
        assert_eq!(describe_v2(&json!("|b1")).elem, stored(DType::Bool, false));
        assert_eq!(describe_v2(&json!(">u1")).elem, stored(DType::U8, false));
        assert_eq!(describe_v2(&json!("|O")).elem, ElemType::Text(TextType::Variable));
        assert_eq!(describe_v2(&json!("|S18")).size, 18);
        assert_eq!(describe_v2(&json!("<U12")).size, 48);
        for odd in ["<f3", "<M8[ns]", "", "<", "<c8", "|S0", "|S99999999999", "<U9999999", "f4"] {
            assert!(matches!(describe_v2(&json!(odd)).elem, ElemType::Other(_)), "{odd}");
        }
        let record = describe_v2(&json!([["index", "|S10"], ["n", "<i4"], ["pca", "<f4", [3]]]));
        let ElemType::Record(fields) = &record.elem else { panic!("{record:?}") };
        let places: Vec<(&str, usize)> = fields.iter().map(|f| (&*f.name, f.offset)).collect();
        assert_eq!((places, record.size), (vec![("index", 0), ("n", 10), ("pca", 14)], 26));
        for odd in [json!([["a", "|O"]]), json!([["a", "<f4", [1_u64 << 40]]]), json!([]), json!([["a"]]), json!(7)] {
            assert!(matches!(describe_v2(&odd).elem, ElemType::Other(_)), "{odd}");
        }
    }

    #[test]
    fn names_of_format_3() {
        assert_eq!(
            describe_v3(&json!("float16"), true).elem,
            ElemType::Number(Stored { dtype: DType::F16, big_endian: true })
        );
        assert_eq!(describe_v3(&json!("string"), false).size, 0);
        let wide = json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}});
        assert_eq!(describe_v3(&wide, true).elem, ElemType::Text(TextType::Utf32 { len: 3, big_endian: true }));
        assert!(matches!(describe_v3(&json!("complex64"), false).elem, ElemType::Other(_)));
        assert!(matches!(describe_v3(&json!({"name": "struct"}), false).elem, ElemType::Other(_)));
    }

    #[test]
    fn fill_values() {
        assert_eq!(fill(json!(7), "<i2"), Some(vec![7, 0]));
        assert_eq!(fill(json!(-1), ">i2"), Some(vec![255, 255]));
        assert_eq!(fill(json!(7), ">u4"), Some(vec![0, 0, 0, 7]));
        assert_eq!(fill(json!(null), "<f8"), Some(vec![0; 8]));
        assert_eq!(fill(json!(0.0), "|u1"), Some(vec![0]));
        assert_eq!(fill(json!(true), "|b1"), Some(vec![1]));
        assert_eq!(fill(json!(1.5), "<f4"), Some(1.5_f32.to_le_bytes().to_vec()));
        assert_eq!(fill(json!("NaN"), "<f8"), Some(f64::NAN.to_le_bytes().to_vec()));
        assert_eq!(fill(json!("-Infinity"), "<f4"), Some(f32::NEG_INFINITY.to_le_bytes().to_vec()));
        assert_eq!(fill(json!("0x3fc00000"), "<f4"), Some(1.5_f32.to_le_bytes().to_vec()));
        assert_eq!(fill(json!(1.5), "<f2"), Some(0x3e00_u16.to_le_bytes().to_vec()));
        assert_eq!(fill(json!(-2), "<f2"), Some(0xc000_u16.to_le_bytes().to_vec()));
        for (value, dtype) in [
            (json!(300), "|u1"),
            (json!(-1), "<u8"),
            (json!("x"), "<f4"),
            (json!(1.5), "<i4"),
            (json!("0x1ffffffff"), "<f4"),
        ] {
            assert_eq!(fill(value.clone(), dtype), None, "{value} {dtype}");
        }
        assert_eq!(fill(json!(0), "|O"), Some(Vec::new()));
        assert_eq!(fill(json!(u64::MAX), "<u8"), Some(vec![255; 8]));
    }
}
