//! Berkeley DB behind a few C functions, a shim that is compiled where the library's header is installed, and
//! loaded at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_uint, c_void};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::NonNull;

const SOURCE: &str = include_str!("../berkeley/shim.c");
/// Maximum number of keys that a cursor fetches at a time.
const KEYS_MAX: usize = 1024;

type Handle = *mut c_void;
type Open = unsafe extern "C" fn(*const c_char, *const c_char, u32, u32, *mut Handle) -> c_int;
type Simple = unsafe extern "C" fn(Handle) -> c_int;
type Commit = unsafe extern "C" fn(Handle, c_int) -> c_int;
type Get = unsafe extern "C" fn(Handle, c_uint, *const c_void, u32, *mut c_void, u32, *mut u32) -> c_int;
type Byte = unsafe extern "C" fn(Handle, c_uint, *const c_void, u32, u32, *mut c_void, *mut u32) -> c_int;
type Put = unsafe extern "C" fn(Handle, c_uint, *const c_void, u32, *const c_void, u32) -> c_int;
type Set = unsafe extern "C" fn(Handle, c_uint, *const c_void, u32, u32, *const c_void, u32) -> c_int;
type Delete = unsafe extern "C" fn(Handle, c_uint, *const c_void, u32) -> c_int;
type Keys = unsafe extern "C" fn(
    Handle,
    c_uint,
    *const c_void,
    *const c_void,
    u32,
    *mut c_uchar,
    u32,
    *mut u32,
) -> c_int;
type Message = unsafe extern "C" fn(c_int) -> *const c_char;
type Codes = unsafe extern "C" fn(*mut c_int);

/// Berkeley DB cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum ShimLoadError {
    /// A compiler or Berkeley DB is not installed. Callers skip their measurement.
    #[error("{0}")]
    NotInstalled(String),
    /// The source of the shim could not be written.
    #[error("writing {}: {error}", path.display())]
    Write {
        /// Path of the source.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The compiled shim could not be loaded.
    #[error("loading {}: {why}", path.display())]
    Load {
        /// The compiled shim.
        path: PathBuf,
        /// Error of the loader.
        why: String,
    },
}

/// Berkeley DB refused a call.
#[derive(Debug, thiserror::Error)]
#[error("Berkeley DB cannot {what}: {message} ({code})")]
pub struct BerkeleyError {
    /// The refused operation.
    pub what: &'static str,
    /// Error code.
    pub code: i32,
    /// Error message of Berkeley DB.
    pub message: String,
}

/// The shim's functions, loaded for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct BerkeleyShim {
    open: Open,
    close: Simple,
    begin: Simple,
    commit: Commit,
    abort: Simple,
    checkpoint: Simple,
    get: Get,
    byte: Byte,
    put: Put,
    set: Set,
    delete: Delete,
    keys: Keys,
    message: Message,
    not_found: c_int,
    small: c_int,
}

impl BerkeleyShim {
    /// Compiles the shim in `directory`; returns the library's path.
    ///
    /// # Errors
    ///
    /// Fails if a compiler or Berkeley DB is missing, or the source cannot be written.
    pub fn compile(directory: &Path) -> Result<PathBuf, ShimLoadError> {
        let (source, library) = (directory.join("berkeley.c"), directory.join("berkeley.so"));
        fs::write(&source, SOURCE).map_err(|error| ShimLoadError::Write {
            path: source.clone(),
            error,
        })?;
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-shared", "-fPIC", "-o"]);
        command
            .arg(&library)
            .arg(&source)
            .arg("-ldb")
            .stdin(Stdio::null());
        let ran = command.output().map_err(|error| {
            ShimLoadError::NotInstalled(format!("no C compiler here (`apt-get install gcc`): {error}"))
        })?;
        match ran.status.success() {
            true => Ok(library),
            false => {
                let said = String::from_utf8_lossy(&ran.stderr);
                let said = said.lines().next().unwrap_or_default();
                Err(ShimLoadError::NotInstalled(format!(
                    "no Berkeley DB to compile with (`apt-get install libdb5.3-dev`): {said}"
                )))
            }
        }
    }

    /// Loads the compiled shim.
    ///
    /// # Errors
    ///
    /// Fails if the library cannot be loaded, or is another version than the header.
    pub fn load(library: &Path) -> Result<BerkeleyShim, ShimLoadError> {
        let failed = |why: String| ShimLoadError::Load {
            path: library.to_owned(),
            why,
        };
        let path = CString::new(library.as_os_str().as_bytes()).map_err(|error| failed(error.to_string()))?;
        // SAFETY: the path ends with a zero. Loading runs only Berkeley DB's own initialization, which has no
        // preconditions.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).ok_or_else(|| failed(loader_message()))?;
        let find = |name: &CStr| {
            // SAFETY: the handle is open, and stays open; the name ends with a zero.
            let found = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
            NonNull::new(found).ok_or_else(|| failed(loader_message()))
        };
        let codes: Codes = {
            let found = find(c"rex_codes")?;
            // SAFETY: the function of that name in the shim's source has this type.
            unsafe { std::mem::transmute::<NonNull<c_void>, Codes>(found) }
        };
        let mut found: [c_int; 2] = [0; 2];
        // SAFETY: the function writes two numbers, for which there is room.
        unsafe { codes(found.as_mut_ptr()) };
        macro_rules! function {
            ($name:literal, $type:ty) => {{
                let found = find($name)?;
                // SAFETY: the function of that name in the shim's source has this type.
                unsafe { std::mem::transmute::<NonNull<c_void>, $type>(found) }
            }};
        }
        Ok(BerkeleyShim {
            open: function!(c"rex_open", Open),
            close: function!(c"rex_close", Simple),
            begin: function!(c"rex_begin", Simple),
            commit: function!(c"rex_commit", Commit),
            abort: function!(c"rex_abort", Simple),
            checkpoint: function!(c"rex_checkpoint", Simple),
            get: function!(c"rex_get", Get),
            byte: function!(c"rex_byte", Byte),
            put: function!(c"rex_put", Put),
            set: function!(c"rex_set", Set),
            delete: function!(c"rex_delete", Delete),
            keys: function!(c"rex_keys", Keys),
            message: function!(c"rex_message", Message),
            not_found: found[0],
            small: found[1],
        })
    }

    fn check(&self, what: &'static str, code: c_int) -> Result<(), BerkeleyError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function accepts any number.
        let message = unsafe { (self.message)(code) };
        // SAFETY: the function returns a text that ends with a zero and is valid until the next call.
        let message = unsafe { CStr::from_ptr(message) };
        Err(BerkeleyError {
            what,
            code,
            message: message.to_string_lossy().into_owned(),
        })
    }
}

fn loader_message() -> String {
    // SAFETY: the function takes no arguments, and returns null or a text that is valid until this thread's
    // next call.
    let said = unsafe { libc::dlerror() };
    if said.is_null() {
        return "no reason was given".to_owned();
    }
    // SAFETY: the text ends with a zero.
    unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()
}

/// An environment with its tables and at most one open transaction. Dropping it makes a checkpoint.
#[derive(Debug)]
pub(crate) struct BerkeleyEngine {
    shim: BerkeleyShim,
    /// Valid from `rex_open` until `rex_close`.
    handle: NonNull<c_void>,
    tables: usize,
    /// Whether the shim has an open transaction. It is used only then.
    open: bool,
}

// SAFETY: Berkeley DB's handles belong to no thread; they are used through `&mut` only, by one thread at a
// time.
unsafe impl Send for BerkeleyEngine {}

impl BerkeleyEngine {
    /// Opens an environment and recovers it.
    pub(crate) fn open(
        shim: BerkeleyShim,
        directory: &Path,
        tables: &[&str],
        page_bytes: u32,
        cache_bytes: u32,
    ) -> Result<BerkeleyEngine, BerkeleyError> {
        let text = |bytes: &[u8]| {
            CString::new(bytes).map_err(|error| BerkeleyError {
                what: "take a name",
                code: 0,
                message: error.to_string(),
            })
        };
        let (directory, names) = (
            text(directory.as_os_str().as_bytes())?,
            text(tables.join(",").as_bytes())?,
        );
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: both texts end with a zero; the handle is an output parameter.
        let code = unsafe {
            (shim.open)(
                directory.as_ptr(),
                names.as_ptr(),
                page_bytes,
                cache_bytes,
                &mut handle,
            )
        };
        shim.check("open an environment", code)?;
        let handle = NonNull::new(handle).expect("an environment that is opened has a handle");
        Ok(BerkeleyEngine {
            shim,
            handle,
            tables: tables.len(),
            open: false,
        })
    }

    pub(crate) fn begin(&mut self) -> Result<(), BerkeleyError> {
        assert!(!self.open, "one transaction at a time");
        // SAFETY: the handle is open.
        let code = unsafe { (self.shim.begin)(self.handle.as_ptr()) };
        self.shim.check("begin a transaction", code)?;
        self.open = true;
        Ok(())
    }

    pub(crate) fn commit(&mut self, synced: bool) -> Result<(), BerkeleyError> {
        assert!(std::mem::take(&mut self.open), "a transaction is open");
        // SAFETY: the handle is open, and has a transaction.
        let code = unsafe { (self.shim.commit)(self.handle.as_ptr(), synced.into()) };
        self.shim.check("commit", code)
    }

    pub(crate) fn abort(&mut self) -> Result<(), BerkeleyError> {
        assert!(std::mem::take(&mut self.open), "a transaction is open");
        // SAFETY: the handle is open, and has a transaction.
        let code = unsafe { (self.shim.abort)(self.handle.as_ptr()) };
        self.shim.check("abort", code)
    }

    /// Applies everything in the log to the tables' files, and removes the older log.
    pub(crate) fn checkpoint(&mut self) -> Result<(), BerkeleyError> {
        // SAFETY: the handle is open.
        let code = unsafe { (self.shim.checkpoint)(self.handle.as_ptr()) };
        self.shim.check("make a checkpoint", code)
    }

    fn table(&self, table: usize) -> c_uint {
        assert!(table < self.tables);
        table as c_uint
    }

    /// Fills `into` with a record. `false` if there is none.
    pub(crate) fn get(
        &mut self,
        table: usize,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<bool, BerkeleyError> {
        let at = self.table(table);
        into.resize(into.capacity().max(64), 0);
        loop {
            let (mut length, room) = (0, bytes(into));
            let (key, key_bytes, bytes) = (key.as_ptr().cast(), bytes(key), into.as_mut_ptr().cast());
            let handle = self.handle.as_ptr();
            // SAFETY: the handle is open and has the table; `key` and `into` have the given lengths.
            let code = unsafe { (self.shim.get)(handle, at, key, key_bytes, bytes, room, &mut length) };
            if code == self.shim.not_found {
                into.clear();
                return Ok(false);
            }
            if code == self.shim.small && length > room {
                into.resize(length as usize, 0);
                continue;
            }
            self.shim.check("read a record", code)?;
            into.truncate(length as usize);
            return Ok(true);
        }
    }

    /// The byte of a record at offset `from`.
    pub(crate) fn byte(&mut self, table: usize, key: &[u8], from: u32) -> Result<Option<u8>, BerkeleyError> {
        let at = self.table(table);
        let (mut byte, mut length) = ([0_u8], 0);
        let (key, key_bytes, into) = (key.as_ptr().cast(), bytes(key), byte.as_mut_ptr().cast());
        // SAFETY: the handle is open and has the table; `key` has the given length, and there is room for one
        // byte.
        let code =
            unsafe { (self.shim.byte)(self.handle.as_ptr(), at, key, key_bytes, from, into, &mut length) };
        if code == self.shim.not_found {
            return Ok(None);
        }
        self.shim.check("read a byte", code)?;
        Ok((length == 1).then_some(byte[0]))
    }

    pub(crate) fn put(&mut self, table: usize, key: &[u8], record: &[u8]) -> Result<(), BerkeleyError> {
        let at = self.table(table);
        let (key, key_bytes) = (key.as_ptr().cast(), bytes(key));
        let (record, length) = (record.as_ptr().cast(), bytes(record));
        // SAFETY: the handle is open and has the table; `key` and `record` have the given lengths.
        let code = unsafe { (self.shim.put)(self.handle.as_ptr(), at, key, key_bytes, record, length) };
        self.shim.check("write a record", code)
    }

    /// Replaces bytes of a record, from `from` on.
    pub(crate) fn set(
        &mut self,
        table: usize,
        key: &[u8],
        from: u32,
        new: &[u8],
    ) -> Result<(), BerkeleyError> {
        let at = self.table(table);
        let (key, key_bytes) = (key.as_ptr().cast(), bytes(key));
        let (new, length) = (new.as_ptr().cast(), bytes(new));
        // SAFETY: the handle is open and has the table; `key` and `new` have the given lengths.
        let code = unsafe { (self.shim.set)(self.handle.as_ptr(), at, key, key_bytes, from, new, length) };
        self.shim.check("change a record", code)
    }

    /// `false` if there was none.
    pub(crate) fn delete(&mut self, table: usize, key: &[u8]) -> Result<bool, BerkeleyError> {
        let at = self.table(table);
        let (key, key_bytes) = (key.as_ptr().cast(), bytes(key));
        // SAFETY: the handle is open and has the table; `key` has the given length.
        let code = unsafe { (self.shim.delete)(self.handle.as_ptr(), at, key, key_bytes) };
        if code == self.shim.not_found {
            return Ok(false);
        }
        self.shim.check("delete a record", code)?;
        Ok(true)
    }

    /// Passes each key from `first` to `last` to the caller, in order. All keys of the table have this
    /// length.
    pub(crate) fn keys<const N: usize>(
        &mut self,
        table: usize,
        first: [u8; N],
        last: [u8; N],
        mut give: impl FnMut([u8; N]),
    ) -> Result<(), BerkeleyError> {
        let at = self.table(table);
        let mut from = first;
        let mut found = vec![[0_u8; N]; KEYS_MAX];
        loop {
            let (handle, mut count) = (self.handle.as_ptr(), 0);
            let (low, high, into) = (
                from.as_ptr().cast(),
                last.as_ptr().cast(),
                found.as_mut_ptr().cast(),
            );
            let (key_bytes, room) = (N as u32, KEYS_MAX as u32);
            // SAFETY: the handle is open and has the table; both keys have the given length, and there is
            // room for the keys.
            let code = unsafe { (self.shim.keys)(handle, at, low, high, key_bytes, into, room, &mut count) };
            self.shim.check("go through a table", code)?;
            let keys = &found[..count as usize];
            keys.iter().for_each(|key| give(*key));
            match keys
                .last()
                .filter(|_| keys.len() == KEYS_MAX)
                .and_then(|key| next_key(*key))
            {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

impl Drop for BerkeleyEngine {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and not used afterwards. An environment that is not closed is recovered
        // later.
        unsafe { (self.shim.close)(self.handle.as_ptr()) };
    }
}

/// The smallest greater key. `None` if there is none.
fn next_key<const N: usize>(mut key: [u8; N]) -> Option<[u8; N]> {
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(key);
        }
    }
    None
}

fn bytes(of: &[u8]) -> u32 {
    u32::try_from(of.len()).expect("records are far smaller than 4 GiB")
}
