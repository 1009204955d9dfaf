//! Checked conversions between the integer widths of files, memory and the kernel.

// Everything below relies on it: a `u64` from a file that passed its limits is an address or a length in memory.
const _: () = assert!(usize::BITS == 64, "shufflefs needs a 64-bit target");

/// `u64` to `usize`: the identity on the 64-bit targets this crate builds for.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // asserted above
pub const fn to_usize(value: u64) -> usize {
    value as usize
}

/// `usize` to `u64`: the identity on the 64-bit targets this crate builds for.
#[must_use]
pub const fn to_u64(value: usize) -> u64 {
    value as u64
}

/// `value` rounded up to a multiple of `align` (a power of two); `None` on overflow.
#[must_use]
pub const fn align_up(value: u64, align: u64) -> Option<u64> {
    debug_assert!(align.is_power_of_two());
    match value.checked_add(align - 1) {
        Some(v) => Some(v & !(align - 1)),
        None => None,
    }
}
