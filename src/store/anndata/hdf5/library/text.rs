//! Variable-length text as it is stored: references into the heap, not the text itself.
//!
//! The library has no call for that. But it converts between the stored and the wanted type with functions that an
//! application may register, so a conversion of ours from variable-length strings to 16 opaque bytes, which does nothing,
//! makes it hand out the references. The text is then read by [`super::super::heap`]: the library's own way allocates whatever
//! length a damaged reference claims, and loops forever in some damaged heaps.

use std::ffi::{c_char, c_void};

use hdf5_sys::h5::herr_t;
use hdf5_sys::h5i::{H5Idec_ref, hid_t};
use hdf5_sys::h5t::{
    H5T_C_S1, H5T_VARIABLE, H5T_bkg_t, H5T_cdata_t, H5T_class_t, H5T_pers_t, H5Tcopy, H5Tcreate, H5Tregister,
    H5Tset_size,
};

use super::super::heap::REFERENCE_BYTES;
use super::{Id, Result, new_id};

const NAME: *const c_char = c"shufflefs text reference".as_ptr();

/// Leaves the stored bytes as they are.
extern "C" fn keep(
    _: hid_t,
    _: hid_t,
    call: *mut H5T_cdata_t,
    _: usize,
    _: usize,
    _: usize,
    _: *mut c_void,
    _: *mut c_void,
    _: hid_t,
) -> herr_t {
    // SAFETY: null, or the library's record of this conversion.
    if let Some(call) = unsafe { call.as_mut() } {
        call.need_bkg = H5T_bkg_t::H5T_BKG_NO;
    }
    0
}

/// Registers the conversion. Call once, under the lock.
pub(super) fn register() {
    // SAFETY: the types are made here and released again; the library keeps its own copies. If one of the calls fails, text
    // cannot be read later and says so.
    unsafe {
        let text = H5Tcopy(*H5T_C_S1);
        H5Tset_size(text, H5T_VARIABLE);
        let raw = H5Tcreate(H5T_class_t::H5T_OPAQUE, REFERENCE_BYTES);
        H5Tregister(H5T_pers_t::H5T_PERS_SOFT, NAME, text, raw, Some(keep));
        H5Idec_ref(text);
        H5Idec_ref(raw);
    }
}

/// The memory type that makes the library hand out stored references: [`REFERENCE_BYTES`] opaque bytes.
pub fn text_reference_type() -> Result<Id> {
    // SAFETY: no pointer is passed.
    new_id(|| unsafe { H5Tcreate(H5T_class_t::H5T_OPAQUE, REFERENCE_BYTES) })
}
