//! The calls into the HDF5 library, made safe. No other file enters it.
//!
//! Every call holds the library's process-wide lock and goes through [`locked`], which prepares the library once: dynamic
//! filter plugins off (an unknown filter must not make it search the machine for code), nothing left for `atexit`, and no
//! error stack printed. Handles are [`Id`]s, closed on drop.
//!
//! The library is asked for structure only: links, attributes, data types, creation properties and chunk addresses. Values
//! of datasets (but compact ones, which lie in their header) never come through it, so that no filter of the library and none
//! of its heap code ever runs on them.
//!
//! It reads the file through a driver of ours ([`driver`]), and hands out references to text instead of text ([`text`]).
//!
//! Enumerations are declared here as plain integers: those of the bindings do not list every value that a damaged file
//! can hold, and an unlisted one would be undefined behaviour.
#![allow(unsafe_code)] // the one file that calls C; every block states why it is sound

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Once;

use hdf5_sys::h5::{H5_index_t, H5_iter_order_t, H5dont_atexit, H5open, hsize_t};
use hdf5_sys::h5a::{H5Aexists, H5Aget_space, H5Aget_type, H5Aopen, H5Aread};
use hdf5_sys::h5d::{
    H5Dchunk_iter, H5Dget_create_plist, H5Dget_offset, H5Dget_space, H5Dget_storage_size, H5Dget_type, H5Dread,
};
use hdf5_sys::h5e::{H5E_DEFAULT, H5E_direction_t, H5E_error2_t, H5Eset_auto2, H5Ewalk2};
use hdf5_sys::h5f::{H5F_ACC_RDONLY, H5F_close_degree_t, H5Fopen};
use hdf5_sys::h5i::{H5Idec_ref, hid_t};
use hdf5_sys::h5l::{H5Lexists, H5Lget_val};
use hdf5_sys::h5o::H5Oopen;
use hdf5_sys::h5p::{
    H5P_CLS_FILE_ACCESS, H5P_DEFAULT, H5Pcreate, H5Pget_chunk, H5Pget_chunk_opts, H5Pget_external_count,
    H5Pget_fill_value, H5Pget_filter2, H5Pget_nfilters, H5Pset_fclose_degree,
};
use hdf5_sys::h5r::{H5R_type_t, H5Rdereference2};
use hdf5_sys::h5s::{H5S_ALL, H5Sget_simple_extent_dims, H5Sget_simple_extent_ndims};
use hdf5_sys::h5t::{H5T_STD_REF_OBJ, H5Tequal};

use crate::store::file::SourceFile;

mod datatype;
mod driver;
mod text;

pub use datatype::*;
pub use text::text_reference_type;

mod ffi {
    use super::{c_char, c_int, c_uint, c_void, hid_t};

    /// `H5L_info2_t`, its union as bytes.
    #[repr(C)]
    pub struct LinkInfo {
        pub kind: c_int,
        pub corder_valid: u8,
        pub corder: i64,
        pub cset: c_int,
        pub value: LinkValue,
    }

    /// An object token (16 bytes) or the length of a link's value.
    #[repr(C)]
    pub union LinkValue {
        pub token: [u8; 16],
        pub len_bytes: usize,
    }

    pub type LinkCallback = unsafe extern "C" fn(hid_t, *const c_char, *const c_void, *mut c_void) -> c_int;

    unsafe extern "C" {
        pub fn H5PLset_loading_state(mask: c_uint) -> c_int;
        pub fn H5Iget_type(id: hid_t) -> c_int;
        pub fn H5Lget_info2(loc: hid_t, name: *const c_char, info: *mut LinkInfo, lapl: hid_t) -> c_int;
        pub fn H5Literate2(
            group: hid_t,
            index: super::H5_index_t,
            order: super::H5_iter_order_t,
            position: *mut u64,
            callback: LinkCallback,
            data: *mut c_void,
        ) -> c_int;
        pub fn H5Sget_simple_extent_type(space: hid_t) -> c_int;
        pub fn H5Pget_layout(plist: hid_t) -> c_int;
        pub fn H5Pfill_value_defined(plist: hid_t, status: *mut c_int) -> c_int;
    }
}

/// What the library said about a failed call: the innermost message of its error stack.
#[derive(Debug, Clone)]
pub struct LibraryError(pub String);

type Result<T> = std::result::Result<T, LibraryError>;

/// An open handle of the library; closed on drop.
#[derive(Debug)]
pub struct Id(hid_t);

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the handle was returned by the library and is owned by this value alone.
        locked(|| unsafe { H5Idec_ref(self.0) });
    }
}

/// What a handle refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A group.
    Group,
    /// A dataset.
    Dataset,
    /// A named data type or something newer.
    Other,
}

/// What a name of a group stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// The object itself.
    Hard,
    /// Another path of the same file.
    Soft(String),
    /// Another file, or a kind only its writer knows.
    External,
}

/// Extent of a dataset or an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// No value at all.
    Null,
    /// Dimensions; none for a scalar.
    Dims(Vec<u64>),
}

/// Storage layouts, as the library numbers them.
pub mod layout {
    pub const COMPACT: i32 = 0;
    pub const CONTIGUOUS: i32 = 1;
    pub const CHUNKED: i32 = 2;
    pub const VIRTUAL: i32 = 3;
}

/// One filter of a dataset's pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterInfo {
    /// Number in the filter registry.
    pub id: i32,
    /// Client data.
    pub values: Vec<u32>,
}

/// A chunk as the library lists it.
#[derive(Debug, Clone, Copy)]
pub struct ListedChunk<'a> {
    /// First element along each axis.
    pub offset: &'a [u64],
    /// Bit i set: filter i was skipped.
    pub mask: u32,
    /// Absolute address in the file, user block included.
    pub address: u64,
    /// Stored size in bytes.
    pub len_bytes: u64,
}

/// Runs `f` while holding the library's lock, on a prepared library.
fn locked<T>(f: impl FnOnce() -> T) -> T {
    static PREPARED: Once = Once::new();
    let _guard = hdf5_sys::LOCK.lock();
    PREPARED.call_once(|| {
        // SAFETY: called under the lock; none of the calls takes a pointer.
        unsafe {
            H5dont_atexit();
            H5open();
            ffi::H5PLset_loading_state(0);
        }
        text::register();
    });
    // SAFETY: under the lock; no callback and no data are given. Repeated, since the setting may belong to a thread.
    unsafe { H5Eset_auto2(H5E_DEFAULT, None, ptr::null_mut()) };
    f()
}

unsafe extern "C" fn keep_description(_: c_uint, frame: *const H5E_error2_t, data: *mut c_void) -> c_int {
    // SAFETY: the library passes a valid frame, whose text is null-terminated, and the `String` given by `last_error`.
    unsafe {
        if let (Some(frame), Some(text)) = (frame.as_ref(), data.cast::<String>().as_mut())
            && !frame.desc.is_null()
        {
            *text = CStr::from_ptr(frame.desc).to_string_lossy().into_owned();
        }
    }
    0
}

/// The innermost message of the error stack. Call under the lock, right after the failed call.
fn last_error() -> LibraryError {
    let mut text = String::new();
    // SAFETY: the callback gets the address of `text`, which outlives the call.
    unsafe {
        H5Ewalk2(
            H5E_DEFAULT,
            H5E_direction_t::H5E_WALK_DOWNWARD,
            Some(keep_description),
            ptr::from_mut(&mut text).cast(),
        );
    }
    LibraryError(if text.is_empty() { "no reason given".to_owned() } else { text })
}

/// A handle from a call that returns one.
fn new_id(call: impl FnOnce() -> hid_t) -> Result<Id> {
    locked(|| match call() {
        id if id >= 0 => Ok(Id(id)),
        _ => Err(last_error()),
    })
}

/// The result of a call whose negative values mean failure.
fn checked(call: impl FnOnce() -> c_int) -> Result<c_int> {
    locked(|| match call() {
        value if value >= 0 => Ok(value),
        _ => Err(last_error()),
    })
}

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| LibraryError("the name holds a NUL".to_owned()))
}

/// Opens a file for reading. It is read through the descriptor of `file`, which must stay open as long as the handle; closing
/// the handle closes all others of the file with it.
pub fn open_file(file: &SourceFile) -> Result<Id> {
    let path =
        CString::new(file.path().as_os_str().as_bytes()).map_err(|_| LibraryError("path with a NUL".to_owned()))?;
    // SAFETY: plain property calls on a list that lives as long as `access`.
    let access = new_id(|| unsafe { H5Pcreate(*H5P_CLS_FILE_ACCESS) })?;
    // SAFETY: as above.
    checked(|| unsafe { H5Pset_fclose_degree(access.0, H5F_close_degree_t::H5F_CLOSE_STRONG) })?;
    driver::set(&access, file)?;
    // SAFETY: `path` is null-terminated and outlives the call.
    new_id(|| unsafe { H5Fopen(path.as_ptr(), H5F_ACC_RDONLY, access.0) })
}

/// Opens the root group of a file.
pub fn open_root(file: &Id) -> Result<Id> {
    // SAFETY: a constant null-terminated name.
    new_id(|| unsafe { H5Oopen(file.0, c"/".as_ptr(), H5P_DEFAULT) })
}

/// Opens the object that the hard link `name` of `group` stands for. Check the link first: this call follows all kinds.
pub fn open_object(group: &Id, name: &str) -> Result<Id> {
    let name = c_name(name)?;
    // SAFETY: `name` is null-terminated and outlives the call.
    new_id(|| unsafe { H5Oopen(group.0, name.as_ptr(), H5P_DEFAULT) })
}

/// What an open object is.
#[must_use]
pub fn object_kind(id: &Id) -> ObjectKind {
    // SAFETY: the handle is valid.
    match locked(|| unsafe { ffi::H5Iget_type(id.0) }) {
        2 => ObjectKind::Group,
        5 => ObjectKind::Dataset,
        _ => ObjectKind::Other,
    }
}

/// The link `name` of `group`, if there is one. `name` must not be a path.
pub fn link(group: &Id, name: &str) -> Result<Option<Link>> {
    let name = c_name(name)?;
    // SAFETY: `name` is null-terminated and outlives the call.
    if checked(|| unsafe { H5Lexists(group.0, name.as_ptr(), H5P_DEFAULT) })? == 0 {
        return Ok(None);
    }
    let mut info =
        ffi::LinkInfo { kind: -1, corder_valid: 0, corder: 0, cset: 0, value: ffi::LinkValue { token: [0; 16] } };
    // SAFETY: `info` has the layout of `H5L_info2_t`.
    checked(|| unsafe { ffi::H5Lget_info2(group.0, name.as_ptr(), &raw mut info, H5P_DEFAULT) })?;
    match info.kind {
        0 => Ok(Some(Link::Hard)),
        1 => {
            // SAFETY: for soft links the union holds the length of the value.
            let len_bytes = unsafe { info.value.len_bytes };
            if len_bytes > 1 << 16 {
                return Err(LibraryError("soft link with a path of more than 64 KiB".to_owned()));
            }
            let mut value = vec![0_u8; len_bytes + 1];
            // SAFETY: the library writes at most the given number of bytes.
            checked(|| unsafe {
                H5Lget_val(group.0, name.as_ptr(), value.as_mut_ptr().cast(), value.len(), H5P_DEFAULT)
            })?;
            let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
            value.truncate(end);
            let path = String::from_utf8(value).map_err(|_| LibraryError("soft link that is not UTF-8".to_owned()))?;
            Ok(Some(Link::Soft(path)))
        }
        _ => Ok(Some(Link::External)),
    }
}

unsafe extern "C" fn keep_name(_: hid_t, name: *const c_char, _: *const c_void, data: *mut c_void) -> c_int {
    // SAFETY: the library passes a null-terminated name and the list given by `children`.
    unsafe {
        if let Some(names) = data.cast::<Vec<String>>().as_mut()
            && let Ok(name) = CStr::from_ptr(name).to_str()
        {
            names.push(name.to_owned());
        }
    }
    0
}

/// Names of all links of a group, by name. Names that are not UTF-8 are left out.
pub fn children(group: &Id) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    let mut position = 0;
    // SAFETY: the callback gets the address of `names`, which outlives the call.
    checked(|| unsafe {
        ffi::H5Literate2(
            group.0,
            H5_index_t::H5_INDEX_NAME,
            H5_iter_order_t::H5_ITER_INC,
            &raw mut position,
            keep_name,
            ptr::from_mut(&mut names).cast(),
        )
    })?;
    Ok(names)
}

/// The attribute `name` of an object, if there is one.
pub fn attribute(object: &Id, name: &str) -> Result<Option<Id>> {
    let name = c_name(name)?;
    // SAFETY: `name` is null-terminated and outlives the calls.
    if checked(|| unsafe { H5Aexists(object.0, name.as_ptr()) })? == 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    new_id(|| unsafe { H5Aopen(object.0, name.as_ptr(), H5P_DEFAULT) }).map(Some)
}

/// Data type of an attribute.
pub fn attribute_type(attribute: &Id) -> Result<Id> {
    // SAFETY: the handle is valid.
    new_id(|| unsafe { H5Aget_type(attribute.0) })
}

/// Extent of an attribute.
pub fn attribute_shape(attribute: &Id) -> Result<Shape> {
    // SAFETY: the handle is valid.
    shape(&new_id(|| unsafe { H5Aget_space(attribute.0) })?)
}

/// Reads an attribute as stored. `datatype` is its own type, or for variable-length text [`text_reference_type`];
/// `len_bytes` is elements times the size of `datatype`.
pub fn read_attribute(attribute: &Id, datatype: &Id, len_bytes: usize) -> Result<Vec<u8>> {
    let mut buf = vec![0_u8; len_bytes];
    // SAFETY: the library writes elements * element size of the memory type = `len_bytes` bytes.
    checked(|| unsafe { H5Aread(attribute.0, datatype.0, buf.as_mut_ptr().cast()) })?;
    Ok(buf)
}

/// Opens the object that a stored object reference of `file` points to.
pub fn dereference(file: &Id, reference: [u8; 8]) -> Result<Id> {
    // SAFETY: an object reference is 8 bytes, as stored.
    new_id(|| unsafe { H5Rdereference2(file.0, H5P_DEFAULT, H5R_type_t::H5R_OBJECT1, reference.as_ptr().cast()) })
}

/// True if a type of class reference is the 8-byte object reference.
#[must_use]
pub fn is_object_reference(datatype: &Id) -> bool {
    // SAFETY: both handles are valid.
    checked(|| unsafe { H5Tequal(datatype.0, *H5T_STD_REF_OBJ) }).is_ok_and(|equal| equal > 0)
}

fn shape(space: &Id) -> Result<Shape> {
    // SAFETY: the handle is valid.
    match checked(|| unsafe { ffi::H5Sget_simple_extent_type(space.0) })? {
        0 => Ok(Shape::Dims(Vec::new())),
        1 => {
            // SAFETY: the handle is valid.
            let rank = checked(|| unsafe { H5Sget_simple_extent_ndims(space.0) })?;
            let mut dims = vec![0; usize::try_from(rank).unwrap_or(0)];
            // SAFETY: `dims` has room for all dimensions; the largest ones are not asked for.
            checked(|| unsafe { H5Sget_simple_extent_dims(space.0, dims.as_mut_ptr(), ptr::null_mut()) })?;
            Ok(Shape::Dims(dims))
        }
        _ => Ok(Shape::Null),
    }
}

/// Data type of a dataset.
pub fn dataset_type(dataset: &Id) -> Result<Id> {
    // SAFETY: the handle is valid.
    new_id(|| unsafe { H5Dget_type(dataset.0) })
}

/// Extent of a dataset.
pub fn dataset_shape(dataset: &Id) -> Result<Shape> {
    // SAFETY: the handle is valid.
    shape(&new_id(|| unsafe { H5Dget_space(dataset.0) })?)
}

/// Absolute address of the data of a contiguous dataset, user block included; `None` if never allocated.
#[must_use]
pub fn dataset_address(dataset: &Id) -> Option<u64> {
    // SAFETY: the handle is valid.
    Some(locked(|| unsafe { H5Dget_offset(dataset.0) })).filter(|&address| address != u64::MAX)
}

/// Bytes that the data of a dataset take in the file.
#[must_use]
pub fn stored_bytes(dataset: &Id) -> u64 {
    // SAFETY: the handle is valid.
    locked(|| unsafe { H5Dget_storage_size(dataset.0) })
}

/// Creation properties of a dataset.
pub fn creation(dataset: &Id) -> Result<Id> {
    // SAFETY: the handle is valid.
    new_id(|| unsafe { H5Dget_create_plist(dataset.0) })
}

/// Storage layout, see [`layout`].
pub fn storage_layout(creation: &Id) -> Result<i32> {
    // SAFETY: the handle is valid.
    checked(|| unsafe { ffi::H5Pget_layout(creation.0) })
}

/// Number of external files that hold the data.
pub fn external_files(creation: &Id) -> Result<i32> {
    // SAFETY: the handle is valid.
    checked(|| unsafe { H5Pget_external_count(creation.0) })
}

/// Chunk extent of a chunked dataset of `rank` dimensions.
pub fn chunk_extent(creation: &Id, rank: usize) -> Result<Vec<u64>> {
    let mut dims: Vec<hsize_t> = vec![0; rank];
    let n = c_int::try_from(rank).unwrap_or(0);
    // SAFETY: the library writes at most `n` dimensions.
    checked(|| unsafe { H5Pget_chunk(creation.0, n, dims.as_mut_ptr()) })?;
    Ok(dims)
}

/// True if partial chunks at the edges are stored without filters.
pub fn edge_chunks_unfiltered(creation: &Id) -> Result<bool> {
    let mut options: c_uint = 0;
    // SAFETY: the library writes one integer.
    checked(|| unsafe { H5Pget_chunk_opts(creation.0, &raw mut options) })?;
    Ok(options & 2 != 0)
}

/// Filters in encode order.
pub fn filters(creation: &Id) -> Result<Vec<FilterInfo>> {
    // SAFETY: the handle is valid.
    let n = checked(|| unsafe { H5Pget_nfilters(creation.0) })?;
    (0..c_uint::try_from(n).unwrap_or(0))
        .map(|i| {
            let (mut flags, mut config, mut n_values) = (0, 0, 64_usize);
            let mut values = vec![0; n_values];
            // SAFETY: the library writes at most `n_values` integers and no name.
            let id = checked(|| unsafe {
                H5Pget_filter2(
                    creation.0,
                    i,
                    &raw mut flags,
                    &raw mut n_values,
                    values.as_mut_ptr(),
                    0,
                    ptr::null_mut(),
                    &raw mut config,
                )
            })?;
            values.truncate(n_values);
            Ok(FilterInfo { id, values })
        })
        .collect()
}

/// The fill value in the stored type, `size` bytes; zeros if none was set. Only for numbers.
pub fn fill_value(creation: &Id, datatype: &Id, size: usize) -> Result<Vec<u8>> {
    let mut value = vec![0_u8; size];
    let mut status = 0;
    // Asked first, since the library dereferences null for a fill value of negative size.
    // SAFETY: the library writes one integer.
    checked(|| unsafe { ffi::H5Pfill_value_defined(creation.0, &raw mut status) })?;
    if status == 2 {
        // SAFETY: the memory type is the stored one, of `size` bytes.
        checked(|| unsafe { H5Pget_fill_value(creation.0, datatype.0, value.as_mut_ptr().cast()) })?;
    }
    Ok(value)
}

struct Visit<'a> {
    rank: usize,
    each: &'a mut dyn FnMut(ListedChunk<'_>) -> bool,
}

unsafe extern "C" fn visit_chunk(
    offset: *const hsize_t,
    mask: c_uint,
    address: u64,
    len_bytes: hsize_t,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the library passes `rank` offsets and the `Visit` given by `visit_chunks`.
    unsafe {
        let Some(visit) = data.cast::<Visit<'_>>().as_mut() else { return -1 };
        let offset = std::slice::from_raw_parts(offset, visit.rank);
        c_int::from(!(visit.each)(ListedChunk { offset, mask, address, len_bytes }))
    }
}

/// Calls `each` for every allocated chunk, in no promised order, until it returns false. Linear in the number of chunks,
/// unlike asking for them by number.
pub fn visit_chunks(dataset: &Id, rank: usize, each: &mut dyn FnMut(ListedChunk<'_>) -> bool) -> Result<()> {
    let mut visit = Visit { rank, each };
    // SAFETY: the callback gets the address of `visit`, which outlives the call.
    checked(|| unsafe { H5Dchunk_iter(dataset.0, H5P_DEFAULT, Some(visit_chunk), ptr::from_mut(&mut visit).cast()) })?;
    Ok(())
}

/// Reads a dataset of compact layout as stored, `datatype` and `len_bytes` as in [`read_attribute`]. Only for types without
/// variable-length members.
pub fn read_compact(dataset: &Id, datatype: &Id, len_bytes: usize) -> Result<Vec<u8>> {
    let mut buf = vec![0_u8; len_bytes];
    // SAFETY: the library writes elements * element size of the memory type = `len_bytes` bytes.
    checked(|| unsafe { H5Dread(dataset.0, datatype.0, H5S_ALL, H5S_ALL, H5P_DEFAULT, buf.as_mut_ptr().cast()) })?;
    Ok(buf)
}

/// A second handle of an open object.
pub fn reopen(object: &Id) -> Result<Id> {
    // SAFETY: a constant null-terminated name.
    new_id(|| unsafe { H5Oopen(object.0, c".".as_ptr(), H5P_DEFAULT) })
}
