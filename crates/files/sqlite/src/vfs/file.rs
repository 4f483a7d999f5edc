//! An open file. SQLite's own VFS does the work; the database is told of writes, lengths and syncs.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use netram_proto::port::IoError;
use netram_sqlite_machine::{FileContents, FileRole};

use super::abi::{IOERR_FSYNC, IOERR_SHORT_READ, IoMethods, OK, SqliteFile};
use super::{FORKED, open_databases, report};
use crate::database::Database;

/// File structure given to SQLite. The base VFS's structure follows it in memory.
#[repr(C)]
pub(super) struct VfsFile {
    methods: *const IoMethods,
    /// `None`: the file does not belong to a managed database.
    state: Option<Box<VfsFileState>>,
}

/// Offset of the base VFS's structure in bytes.
pub(super) const BYTES: usize = size_of::<VfsFile>();

/// Database and role of a file.
pub(super) struct VfsFileState {
    pub(super) database: Arc<Database>,
    pub(super) role: FileRole,
}

impl VfsFileState {
    /// Whether the connection was inherited by `fork`. Such a connection must not write: the parent would not
    /// know of it and no record would have it.
    fn is_of_parent(&self) -> bool {
        let is = self.database.is_of_parent();
        if is {
            let path = self.database.paths().path().display();
            report(IOERR, &format!("{path} {FORKED}"));
        }
        is
    }
}

/// The base VFS's structure behind ours.
pub(super) fn base_pointer(file: *mut SqliteFile) -> *mut SqliteFile {
    file.wrapping_byte_add(BYTES)
}

/// Initialises the structure as a file that is not open.
///
/// # Safety
/// `file` points to as many bytes as the VFS declares.
pub(super) unsafe fn clear(file: *mut SqliteFile) {
    let unopened = VfsFile {
        methods: std::ptr::null(),
        state: None,
    };
    // SAFETY: the caller provides that many uninitialised bytes.
    unsafe { file.cast::<VfsFile>().write(unopened) };
    // SAFETY: as above; the base VFS's structure begins with the same header.
    unsafe {
        base_pointer(file).write(SqliteFile {
            methods: std::ptr::null(),
        })
    };
}

/// Turns a cleared structure into an open file, after the base VFS has opened its own.
///
/// # Safety
/// [`clear`] was called, and the base VFS has opened its file.
pub(super) unsafe fn begin(file: *mut SqliteFile, state: Option<VfsFileState>) {
    // SAFETY: the base VFS has opened it.
    let version = unsafe { base_file(file) }.1.version;
    // SAFETY: `clear` made it a `VfsFile`, and no other thread has it yet.
    let ours = unsafe { &mut *file.cast::<VfsFile>() };
    ours.methods = match version {
        ..=1 => &METHODS[0],
        2 => &METHODS[1],
        _ => &METHODS[2],
    };
    ours.state = state.map(Box::new);
}

/// The base VFS's structure and its methods.
///
/// # Safety
/// `file` is open, at least in the base VFS.
unsafe fn base_file<'a>(file: *mut SqliteFile) -> (*mut SqliteFile, &'a IoMethods) {
    let real = base_pointer(file);
    // SAFETY: the base VFS has opened it.
    let methods = unsafe { (*real).methods };
    // SAFETY: methods live as long as their VFS.
    (real, unsafe { &*methods })
}

/// # Safety
/// `file` is open.
unsafe fn state<'a>(file: *mut SqliteFile) -> Option<&'a VfsFileState> {
    // SAFETY: every open file is a `VfsFile`; SQLite does not close it during the call.
    let ours = unsafe { &*file.cast::<VfsFile>() };
    ours.state.as_deref()
}

/// Closes the base VFS's file behind a file of ours that was not opened.
///
/// # Safety
/// The base VFS's `open` was called for it.
pub(super) unsafe fn close_real(file: *mut SqliteFile) {
    let real = base_pointer(file);
    // SAFETY: `clear` or the base VFS has written it.
    if unsafe { (*real).methods }.is_null() {
        return;
    }
    // SAFETY: the pointer to the methods is not null, so the base VFS has opened it.
    let (real, methods) = unsafe { base_file(file) };
    if let Some(close) = methods.close {
        // SAFETY: the base VFS's own method and file.
        unsafe { close(real) };
    }
}

unsafe extern "C" fn close(file: *mut SqliteFile) -> c_int {
    // SAFETY: SQLite closes only open files.
    let (real, methods) = unsafe { base_file(file) };
    // SAFETY: the base VFS's own method and file.
    let closed = { methods.close }.map_or(OK, |close| unsafe { close(real) });
    // SAFETY: it is a `VfsFile`, and SQLite uses it no more.
    let ours = unsafe { &mut *file.cast::<VfsFile>() };
    if let Some(state) = ours.state.take() {
        if state.database.is_of_parent() {
            // Dropping the last reference would close what the parent still uses.
            let _parents = std::mem::ManuallyDrop::new(state);
        } else if state.role == FileRole::Main
            && let Err(error) = open_databases::close(state.database)
        {
            // Committed data is in the journal or on the disk.
            report(IOERR_FSYNC, &format!("closing a database: {error}"));
        }
    }
    closed
}

unsafe extern "C" fn write(file: *mut SqliteFile, from: *const c_void, bytes: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite writes only to open files.
    let (real, methods) = unsafe { base_file(file) };
    let Some(method) = methods.write else {
        return IOERR_FSYNC;
    };
    // SAFETY: the base VFS's own method, with SQLite's arguments.
    let act = || unsafe { method(real, from, bytes, offset) };
    // SAFETY: as above.
    match unsafe { state(file) } {
        Some(state) if state.is_of_parent() => IOERR,
        Some(state) => state.database.write(
            state.role,
            offset.cast_unsigned(),
            u64::from(bytes.cast_unsigned()),
            act,
        ),
        None => act(),
    }
}

unsafe extern "C" fn truncate(file: *mut SqliteFile, size: i64) -> c_int {
    // SAFETY: SQLite truncates only open files.
    let (real, methods) = unsafe { base_file(file) };
    let Some(method) = methods.truncate else {
        return IOERR_FSYNC;
    };
    // SAFETY: the base VFS's own method, with SQLite's arguments.
    let act = || unsafe { method(real, size) };
    // SAFETY: as above.
    match unsafe { state(file) } {
        Some(state) if state.is_of_parent() => IOERR,
        Some(state) => state.database.resize(state.role, size.cast_unsigned(), act),
        None => act(),
    }
}

unsafe extern "C" fn sync(file: *mut SqliteFile, flags: c_int) -> c_int {
    // SAFETY: SQLite syncs only open files.
    let (real, methods) = unsafe { base_file(file) };
    // SAFETY: as above.
    let Some(state) = (unsafe { state(file) }) else {
        // SAFETY: the base VFS's own method, with SQLite's arguments.
        return { methods.sync }.map_or(IOERR_FSYNC, |method| unsafe { method(real, flags) });
    };
    if state.is_of_parent() {
        return IOERR;
    }
    match state.database.sync(state.role, &mut BaseFile { real, methods }) {
        Ok(_) => OK,
        Err(error) => {
            report(IOERR_FSYNC, &format!("syncing a database's file: {error}"));
            IOERR_FSYNC
        }
    }
}

/// A file's current content, read through the base VFS.
struct BaseFile<'a> {
    real: *mut SqliteFile,
    methods: &'a IoMethods,
}

impl FileContents for BaseFile<'_> {
    fn size(&mut self) -> Result<u64, IoError> {
        let mut size = 0;
        let method = self.methods.file_size.ok_or(IoError::EIO)?;
        // SAFETY: the base VFS's own method; the file is open while this value lives, and `size` is a local.
        match unsafe { method(self.real, &raw mut size) } {
            OK => Ok(size.cast_unsigned()),
            _ => Err(IoError::EIO),
        }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, IoError> {
        let there = self.size()?.saturating_sub(offset).min(into.len() as u64);
        if there == 0 {
            return Ok(0);
        }
        let bytes = c_int::try_from(there).unwrap_or(c_int::MAX);
        let method = self.methods.read.ok_or(IoError::EIO)?;
        let to = into.as_mut_ptr().cast::<c_void>();
        // SAFETY: the base VFS's own method; the file is open while this value lives, and `into` is at least
        // `bytes` long.
        match unsafe { method(self.real, to, bytes, offset.cast_signed()) } {
            OK => Ok(bytes as usize),
            IOERR_SHORT_READ => Ok(0),
            _ => Err(IoError::EIO),
        }
    }
}

/// Forwards a method to the base VFS.
macro_rules! pass {
    ($name:ident($($argument:ident: $type:ty),*) -> $out:ty, $none:expr) => {
        unsafe extern "C" fn $name(file: *mut SqliteFile, $($argument: $type),*) -> $out {
            // SAFETY: SQLite calls it with an open file.
            let (real, methods) = unsafe { base_file(file) };
            match methods.$name {
                // SAFETY: the base VFS's own method, with SQLite's arguments.
                Some(method) => unsafe { method(real, $($argument),*) },
                None => $none,
            }
        }
    };
}

/// Code for an unknown file control.
const NOTFOUND: c_int = 12;
/// Code for a method that the base VFS should have by its version, but lacks.
const IOERR: c_int = 10;

pass!(read(to: *mut c_void, bytes: c_int, offset: i64) -> c_int, IOERR);
pass!(file_size(size: *mut i64) -> c_int, IOERR);
pass!(lock(level: c_int) -> c_int, IOERR);
pass!(unlock(level: c_int) -> c_int, IOERR);
pass!(check_reserved_lock(is: *mut c_int) -> c_int, IOERR);
pass!(file_control(what: c_int, argument: *mut c_void) -> c_int, NOTFOUND);
pass!(sector_size() -> c_int, 4096);
pass!(device_characteristics() -> c_int, 0);
pass!(shm_map(page: c_int, bytes: c_int, extend: c_int, at: *mut *mut c_void) -> c_int, IOERR);
pass!(shm_lock(offset: c_int, count: c_int, flags: c_int) -> c_int, IOERR);
pass!(shm_barrier() -> (), ());
pass!(shm_unmap(delete: c_int) -> c_int, IOERR);
pass!(fetch(offset: i64, bytes: c_int, at: *mut *mut c_void) -> c_int, IOERR);
pass!(unfetch(offset: i64, at: *mut c_void) -> c_int, IOERR);

const fn methods(version: c_int) -> IoMethods {
    IoMethods {
        version,
        close: Some(close),
        read: Some(read),
        write: Some(write),
        truncate: Some(truncate),
        sync: Some(sync),
        file_size: Some(file_size),
        lock: Some(lock),
        unlock: Some(unlock),
        check_reserved_lock: Some(check_reserved_lock),
        file_control: Some(file_control),
        sector_size: Some(sector_size),
        device_characteristics: Some(device_characteristics),
        shm_map: Some(shm_map),
        shm_lock: Some(shm_lock),
        shm_barrier: Some(shm_barrier),
        shm_unmap: Some(shm_unmap),
        fetch: Some(fetch),
        unfetch: Some(unfetch),
    }
}

/// Methods for a base VFS of each version.
static METHODS: [IoMethods; 3] = [methods(1), methods(2), methods(3)];
