//! The file driver that the library reads through: our own descriptor, `pread` and nothing else.
//!
//! The library would open the path itself, a second time, and lock the file if the environment says so. A driver of our own
//! makes it read the descriptor whose stamp was taken, without any lock.
//!
//! The structures are those of `H5FDdevelop.h` of HDF5 2.2, class version 1; the bindings have an older layout. The library
//! refuses a class of another version.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::{fs, ptr, slice};

use hdf5_sys::h5i::hid_t;
use hdf5_sys::h5p::{H5Pget_driver_info, H5Pset_driver};

use crate::store::file::SourceFile;

use super::{Id, Result, checked, new_id};
type FileReply<T> = unsafe extern "C" fn(*const DriverFile, c_int) -> T;
/// A callback that this driver does not have.
type Absent = Option<unsafe extern "C" fn()>;

/// `H5FD_class_t`.
#[repr(C)]
struct DriverClass {
    version: c_uint,
    value: c_int,
    name: *const c_char,
    max_address: u64,
    close_degree: c_int,
    terminate: Absent,
    superblock: [Absent; 3],
    access_size: usize,
    access: [Absent; 3],
    transfer_size: usize,
    transfer: [Absent; 2],
    open: unsafe extern "C" fn(*const c_char, c_uint, hid_t, u64) -> *mut DriverFile,
    close: unsafe extern "C" fn(*mut DriverFile) -> c_int,
    compare: Absent,
    query: unsafe extern "C" fn(*const DriverFile, *mut c_ulong) -> c_int,
    type_map: Absent,
    allocate: [Absent; 2],
    allocated_end: FileReply<u64>,
    set_allocated_end: unsafe extern "C" fn(*mut DriverFile, c_int, u64) -> c_int,
    file_end: FileReply<u64>,
    handle: Absent,
    read: unsafe extern "C" fn(*mut DriverFile, c_int, hid_t, u64, usize, *mut c_void) -> c_int,
    write: unsafe extern "C" fn(*mut DriverFile, c_int, hid_t, u64, usize, *const c_void) -> c_int,
    vectors_and_selections: [Absent; 4],
    flush_and_truncate: [Absent; 2],
    locks: [Absent; 2],
    delete_and_control: [Absent; 2],
    free_list_map: [c_int; 7],
}

/// `H5FD_t`, which the library fills in.
#[repr(C)]
struct PublicPart {
    driver: hid_t,
    class: *const c_void,
    serial: c_ulong,
    access_flags: c_uint,
    feature_flags: c_ulong,
    max_address: u64,
    base: u64,
    threshold: u64,
    alignment: u64,
    paged: bool,
}

/// An open file of this driver.
#[repr(C)]
struct DriverFile {
    public: PublicPart,
    source: Target,
    allocated_end: u64,
}

/// What to read: travels through a property list, so it is plain bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Target {
    descriptor: RawFd,
    size: u64,
}

/// Class version of HDF5 2.2.
const CLASS_VERSION: c_uint = 1;
/// Driver numbers from 256 to 511 are free for experiments.
const DRIVER_VALUE: c_int = 500;
/// Accumulate small metadata reads, and data sieving: what the library does for local files.
const FEATURES: c_ulong = 0x0004 | 0x0008;

fn class() -> DriverClass {
    DriverClass {
        version: CLASS_VERSION,
        value: DRIVER_VALUE,
        name: c"shufflefs".as_ptr(),
        max_address: (1 << 63) - 1,
        close_degree: 3, // strong
        terminate: None,
        superblock: [None; 3],
        access_size: size_of::<Target>(),
        access: [None; 3],
        transfer_size: 0,
        transfer: [None; 2],
        open,
        close,
        compare: None,
        query,
        type_map: None,
        allocate: [None; 2],
        allocated_end,
        set_allocated_end,
        file_end,
        handle: None,
        read,
        write,
        vectors_and_selections: [None; 4],
        flush_and_truncate: [None; 2],
        locks: [None; 2],
        delete_and_control: [None; 2],
        free_list_map: [1, 1, 1, 3, 3, 1, 1], // metadata apart from data
    }
}

unsafe extern "C" {
    fn H5FDregister(class: *const DriverClass) -> hid_t;
}

/// Makes the files that are opened with `access` read `file`, which must stay open as long as they do.
pub fn set(access: &Id, file: &SourceFile) -> Result<()> {
    let class = class();
    // SAFETY: the library copies the class, whose callbacks and name are static.
    let driver = new_id(|| unsafe { H5FDregister(&raw const class) })?;
    let target = Target { descriptor: file.as_file().as_raw_fd(), size: file.stamp().size };
    // SAFETY: the library copies `access_size` bytes of the target, and takes its own reference to the driver.
    checked(|| unsafe { H5Pset_driver(access.0, driver.0, (&raw const target).cast()) })?;
    Ok(())
}

unsafe extern "C" fn open(_: *const c_char, _: c_uint, access: hid_t, max_address: u64) -> *mut DriverFile {
    // SAFETY: the property list holds the bytes of a `Target`, put there by `set`, or nothing.
    let Some(&source) = (unsafe { H5Pget_driver_info(access).cast::<Target>().as_ref() }) else {
        return ptr::null_mut();
    };
    let public = PublicPart {
        driver: 0,
        class: ptr::null(),
        serial: 0,
        access_flags: 0,
        feature_flags: 0,
        max_address,
        base: 0,
        threshold: 0,
        alignment: 0,
        paged: false,
    };
    Box::into_raw(Box::new(DriverFile { public, source, allocated_end: 0 }))
}

unsafe extern "C" fn close(file: *mut DriverFile) -> c_int {
    if !file.is_null() {
        // SAFETY: made by `open`, and closed once.
        drop(unsafe { Box::from_raw(file) });
    }
    0
}

unsafe extern "C" fn query(_: *const DriverFile, features: *mut c_ulong) -> c_int {
    // SAFETY: null, or a place for one number.
    if let Some(features) = unsafe { features.as_mut() } {
        *features = FEATURES;
    }
    0
}

unsafe extern "C" fn allocated_end(file: *const DriverFile, _: c_int) -> u64 {
    // SAFETY: a file made by `open`.
    unsafe { file.as_ref() }.map_or(u64::MAX, |file| file.allocated_end)
}

unsafe extern "C" fn set_allocated_end(file: *mut DriverFile, _: c_int, end: u64) -> c_int {
    // SAFETY: a file made by `open`.
    match unsafe { file.as_mut() } {
        Some(file) => {
            file.allocated_end = end;
            0
        }
        None => -1,
    }
}

unsafe extern "C" fn file_end(file: *const DriverFile, _: c_int) -> u64 {
    // SAFETY: a file made by `open`.
    unsafe { file.as_ref() }.map_or(u64::MAX, |file| file.source.size)
}

unsafe extern "C" fn read(
    file: *mut DriverFile,
    _: c_int,
    _: hid_t,
    address: u64,
    len_bytes: usize,
    out: *mut c_void,
) -> c_int {
    // SAFETY: a file made by `open`.
    let Some(file) = (unsafe { file.as_ref() }) else { return -1 };
    // SAFETY: the library gives room for `len_bytes` bytes; they are initialised before they are read.
    let out = unsafe {
        ptr::write_bytes(out.cast::<u8>(), 0, len_bytes);
        slice::from_raw_parts_mut(out.cast::<u8>(), len_bytes)
    };
    // SAFETY: the caller of `set` keeps the descriptor open; it is not closed here.
    let source = ManuallyDrop::new(unsafe { fs::File::from_raw_fd(file.source.descriptor) });
    // What lies behind the end of the file reads as zeros, as with the drivers of the library.
    let here = usize::try_from(file.source.size.saturating_sub(address)).unwrap_or(usize::MAX).min(len_bytes);
    let Some(present) = out.get_mut(..here) else { return -1 };
    if source.read_exact_at(present, address).is_err() {
        return -1;
    }
    0
}

unsafe extern "C" fn write(_: *mut DriverFile, _: c_int, _: hid_t, _: u64, _: usize, _: *const c_void) -> c_int {
    -1
}
