//! Questions about data types.

use std::ffi::{CStr, c_int};

use hdf5_sys::h5::H5free_memory;
use hdf5_sys::h5i::hid_t;
use hdf5_sys::h5t::{
    H5Tget_array_dims2, H5Tget_array_ndims, H5Tget_ebias, H5Tget_fields, H5Tget_member_name, H5Tget_member_offset,
    H5Tget_member_type, H5Tget_member_value, H5Tget_nmembers, H5Tget_offset, H5Tget_precision, H5Tget_size,
    H5Tget_super, H5Tis_variable_str,
};

use super::{Id, LibraryError, Result, checked, last_error, locked, new_id};

unsafe extern "C" {
    fn H5Tget_class(datatype: hid_t) -> c_int;
    fn H5Tget_order(datatype: hid_t) -> c_int;
    fn H5Tget_sign(datatype: hid_t) -> c_int;
    fn H5Tget_strpad(datatype: hid_t) -> c_int;
}

/// Classes of data types, as the library numbers them.
pub mod class {
    pub const INTEGER: i32 = 0;
    pub const FLOAT: i32 = 1;
    pub const STRING: i32 = 3;
    pub const COMPOUND: i32 = 6;
    pub const REFERENCE: i32 = 7;
    pub const ENUM: i32 = 8;
    pub const ARRAY: i32 = 10;
}

/// Class of a data type, see [`class`].
#[must_use]
pub fn type_class(datatype: &Id) -> i32 {
    // SAFETY: the handle is valid.
    locked(|| unsafe { H5Tget_class(datatype.0) })
}

/// Size of an element in bytes; 0 if the library cannot tell.
#[must_use]
pub fn size(datatype: &Id) -> usize {
    // SAFETY: the handle is valid.
    locked(|| unsafe { H5Tget_size(datatype.0) })
}

/// `Some(true)` for big-endian, `Some(false)` for little-endian elements, `None` for other orders.
#[must_use]
pub fn is_big_endian(datatype: &Id) -> Option<bool> {
    // SAFETY: the handle is valid.
    match locked(|| unsafe { H5Tget_order(datatype.0) }) {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// True if an integer type has a sign.
#[must_use]
pub fn is_signed(datatype: &Id) -> bool {
    // SAFETY: the handle is valid.
    locked(|| unsafe { H5Tget_sign(datatype.0) }) == 1
}

/// Significant bits and the position of the first one.
#[must_use]
pub fn precision(datatype: &Id) -> (usize, i32) {
    // SAFETY: the handle is valid.
    locked(|| unsafe { (H5Tget_precision(datatype.0), H5Tget_offset(datatype.0)) })
}

/// Fields of a floating-point type: sign position, exponent position and bits, mantissa position and bits, exponent bias.
pub fn float_fields(datatype: &Id) -> Result<[usize; 6]> {
    let mut f = [0_usize; 6];
    let [sign, exponent, exponent_bits, mantissa, mantissa_bits, bias] = &mut f;
    // SAFETY: the library writes five integers.
    checked(|| unsafe { H5Tget_fields(datatype.0, sign, exponent, exponent_bits, mantissa, mantissa_bits) })?;
    // SAFETY: the handle is valid.
    *bias = locked(|| unsafe { H5Tget_ebias(datatype.0) });
    Ok(f)
}

/// True if a string type has variable length.
pub fn is_variable_string(datatype: &Id) -> Result<bool> {
    // SAFETY: the handle is valid.
    checked(|| unsafe { H5Tis_variable_str(datatype.0) }).map(|yes| yes > 0)
}

/// True if fixed-length strings are padded with spaces; otherwise with NULs.
#[must_use]
pub fn is_space_padded(datatype: &Id) -> bool {
    // SAFETY: the handle is valid.
    locked(|| unsafe { H5Tget_strpad(datatype.0) }) == 2
}

/// Base type of an array or enumeration type.
pub fn base_type(datatype: &Id) -> Result<Id> {
    // SAFETY: the handle is valid.
    new_id(|| unsafe { H5Tget_super(datatype.0) })
}

/// Dimensions of an array type.
pub fn array_extent(datatype: &Id) -> Result<Vec<u64>> {
    // SAFETY: the handle is valid.
    let rank = checked(|| unsafe { H5Tget_array_ndims(datatype.0) })?;
    let mut dims = vec![0; usize::try_from(rank).unwrap_or(0)];
    // SAFETY: `dims` has room for all dimensions.
    checked(|| unsafe { H5Tget_array_dims2(datatype.0, dims.as_mut_ptr()) })?;
    Ok(dims)
}

/// Number of members of a compound or enumeration type.
pub fn n_members(datatype: &Id) -> Result<u32> {
    // SAFETY: the handle is valid.
    let n = checked(|| unsafe { H5Tget_nmembers(datatype.0) })?;
    Ok(u32::try_from(n).unwrap_or(0))
}

/// Name of member `i`.
pub fn member_name(datatype: &Id, i: u32) -> Result<String> {
    locked(|| {
        // SAFETY: the handle is valid; the name is null-terminated, allocated by the library and freed here once.
        unsafe {
            let name = H5Tget_member_name(datatype.0, i);
            if name.is_null() {
                return Err(last_error());
            }
            let text = CStr::from_ptr(name).to_string_lossy().into_owned();
            H5free_memory(name.cast());
            Ok(text)
        }
    })
}

/// Type and byte offset of member `i` of a compound type.
pub fn member(datatype: &Id, i: u32) -> Result<(Id, usize)> {
    // SAFETY: the handle is valid.
    let id = new_id(|| unsafe { H5Tget_member_type(datatype.0, i) })?;
    // SAFETY: the handle is valid.
    Ok((id, locked(|| unsafe { H5Tget_member_offset(datatype.0, i) })))
}

/// Value of member `i` of an enumeration of one-byte integers.
pub fn byte_member_value(datatype: &Id, i: u32) -> Result<u8> {
    let mut value = [0_u8; 16];
    // SAFETY: the library writes one element of at most 16 bytes.
    if size(datatype) != 1 {
        return Err(LibraryError("enumeration of more than one byte".to_owned()));
    }
    // SAFETY: the library writes one byte.
    checked(|| unsafe { H5Tget_member_value(datatype.0, i, value.as_mut_ptr().cast()) })?;
    Ok(value[0])
}
