//! The log: naming, creating and opening it.
//!
//! For C a log is a file. `netram-store` manages all other files that belong to it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use netram_journal::UncountedReason;
use netram_process::files::{self, FileAccess};
use netram_proto::journal::JournalLenderStatus;
use netram_proto::limit::LOG_BYTES_MIN;
use netram_store::{JournalLayout, JournaledRvm, OpenStore, Store, StoreError, StoreSettings};

use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::COALESCE_TRANS;
use crate::record::{
    FLUSH_BUFFER_DEFAULT, LendersRecord, READ_DEFAULT, RECOVERY_BUFFER_DEFAULT, TRUNCATE_DEFAULT,
};

/// Bytes of lazy commits that are spooled if the program enables that and the settings give no number.
const SPOOL_BYTES_DEFAULT: usize = 1024 * 1024;
/// Bytes of the ring of a log without lenders. Half of it, or half of the log, is the largest transaction.
/// The original accepted any that its log had room for; a larger ring would occupy more memory.
const RING_BYTES_ALONE: u64 = 64 * 1024 * 1024;
/// Bytes of a name with its terminating zero: `MAXPATHLEN`.
const NAME_BYTES: usize = libc::PATH_MAX as usize;

/// Suffixes of the files that are created beside a log.
const COMPANIONS: [&str; 4] = [".view", ".key", ".lock", ".segments"];

/// Text in the original's status block, which is in a file here and on a raw device there.
const ORIGINAL_MARK: &[u8] = b"RVM Log Version";
const ORIGINAL_DEVICE_OFFSET: usize = 8192;
const ORIGINAL_STATUS_BYTES: usize = 2560;

/// The options chosen by an options record.
#[derive(Clone, Debug)]
pub(crate) struct LibraryOptions {
    pub(crate) log: Option<PathBuf>,
    /// Percentage; at 0 and below, and above 100, the truncation thread does not act.
    pub(crate) truncate: i64,
    pub(crate) recovery_buffer: u64,
    pub(crate) flush_buffer: u64,
    pub(crate) read: u64,
    pub(crate) flags: u64,
    pub(crate) create: Option<NewLog>,
}

/// Parameters of a log to be created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewLog {
    pub(crate) bytes: u64,
    pub(crate) mode: i64,
}

/// The process's log and the memory over it.
pub(crate) struct LibraryLog {
    /// Absolute name of the log.
    pub(crate) name: String,
    pub(crate) memory: JournaledRvm,
    path: PathBuf,
    settings: StoreSettings,
    /// Number of lenders that should hold the log's newest part.
    members: usize,
}

impl LibraryOptions {
    /// The defaults of a library that was given no options.
    pub(crate) const fn new() -> LibraryOptions {
        LibraryOptions {
            log: None,
            truncate: TRUNCATE_DEFAULT,
            recovery_buffer: RECOVERY_BUFFER_DEFAULT,
            flush_buffer: FLUSH_BUFFER_DEFAULT,
            read: READ_DEFAULT,
            flags: 0,
            create: None,
        }
    }
}

impl LibraryLog {
    /// Recovers the log at `path`.
    pub(crate) fn open(path: &Path) -> Result<LibraryLog, CallFailure> {
        let path = absolute(path)?;
        refuse_original(&path)?;
        let store = Store::at(&path);
        let mut settings = store.settings()?;
        if !settings.uses_lenders() {
            settings.window_bytes.get_or_insert(RING_BYTES_ALONE);
        }
        let members = settings.journal_config().map_err(StoreError::from)?.members;
        let opened = open_apart(store, settings.clone())?;
        Ok(LibraryLog {
            name: path.to_string_lossy().into_owned(),
            memory: opened.memory,
            path,
            settings,
            members,
        })
    }

    /// Fails if `named` is another log.
    pub(crate) fn must_be(&self, named: &Path) -> Result<(), CallFailure> {
        let named = absolute(named)?;
        if named == self.path || same_file(&named, &self.path) {
            return Ok(());
        }
        Err(CallFailure::new(
            ReturnCode::Log,
            format!(
                "the log {} is open, so {} cannot be opened: a process has one log",
                self.name,
                named.display()
            ),
        ))
    }

    /// Applies flags and threshold.
    pub(crate) fn choose(&self, choices: &LibraryOptions) {
        // The program's flag enables the spool, the settings give its size.
        let spool = match choices.flags & COALESCE_TRANS {
            0 => 0,
            _ => self.settings.spool_bytes.unwrap_or(SPOOL_BYTES_DEFAULT),
        };
        self.memory.set_spool_bytes(spool);
        // The threshold in the settings replaces the default, but not one that the program chose.
        let percent = match (choices.truncate, self.settings.truncation_threshold_percent) {
            (TRUNCATE_DEFAULT, Some(percent)) => percent,
            (chosen, _) => threshold(chosen),
        };
        self.memory.set_truncation_threshold(percent);
    }

    /// State of the log's lenders.
    pub(crate) fn lenders(&self) -> LendersRecord {
        let status = self.memory.log().status();
        let held = status.writer.lenders.iter().filter(|lender| lender.member);
        LendersRecord {
            configured: status.writer.lenders.len() as u64,
            members: held.count() as u64,
            wanted: self.members as u64,
            counting: status.writer.blocked.is_none().into(),
        }
    }

    /// Waits until acknowledgements of lenders complete commits.
    pub(crate) fn wait_for_lenders(&self, timeout: Duration) -> Result<(), CallFailure> {
        if self.settings.lenders.is_empty() {
            return Err(CallFailure::io(
                libc::ENODEV,
                format!(
                    "no lenders are configured in {}.toml or in NETRAM_LENDERS",
                    self.name
                ),
            ));
        }
        let waited = self.memory.log().wait_for_members(timeout);
        waited.map_err(|why| {
            CallFailure::io(libc::ETIMEDOUT, format!("commits still wait for the disk: {why}"))
        })
    }

    /// For each lender that does not acknowledge, a line with the reason; empty if all do or none is
    /// configured.
    pub(crate) fn lenders_text(&self) -> String {
        let status = self.memory.log().status();
        let lenders = status.writer.lenders.iter().zip(&status.reasons);
        let line = |(lender, reason): (&JournalLenderStatus, &Option<UncountedReason>)| {
            let reason = reason.as_ref()?;
            Some(format!("{}: {reason}\n", lender.address))
        };
        lenders.filter_map(line).collect()
    }

    /// Flushes and closes. On an error returns the cause, and the log if it is still open.
    pub(crate) fn close(self) -> Result<(), (CallFailure, Option<Box<LibraryLog>>)> {
        let LibraryLog {
            name,
            memory,
            path,
            settings,
            members,
        } = self;
        let journal = memory.close().map_err(|(error, memory)| {
            let log = LibraryLog {
                name,
                memory,
                path,
                settings,
                members,
            };
            (CallFailure::from(error), Some(Box::new(log)))
        })?;
        journal.close().map_err(|error| (CallFailure::from(error), None))
    }
}

/// Opens the log in a thread that blocks signals: all threads of the library are created during an opening,
/// or by such threads. The caller, which may wait for lenders here, continues to receive signals.
fn open_apart(store: Store, settings: StoreSettings) -> Result<OpenStore, CallFailure> {
    let opener = std::thread::Builder::new().name("netram-open".into());
    let thread = crate::abi::blocked(|| opener.spawn(move || store.open(&settings)))
        .map_err(|error| CallFailure::system(&error, format!("a thread could not be started: {error}")))?;
    match thread.join() {
        Ok(opened) => Ok(opened?),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Creates a log; after an error none exists.
pub(crate) fn create(path: Option<&Path>, wanted: &NewLog) -> Result<Store, CallFailure> {
    let path = path.ok_or_else(|| CallFailure::new(ReturnCode::Log, "`log_dev` names no log"))?;
    let path = absolute(path)?;
    // Errors of a later opening are reported before a log is created: the next attempt would find one.
    Store::at(&path)
        .settings()?
        .journal_config()
        .map_err(StoreError::from)?;
    let store = Store::create(&path, JournalLayout::Beside, wanted.bytes.max(LOG_BYTES_MIN))?;
    let mode = (wanted.mode & 0o777) as u32;
    if let Err(failure) = set_modes(&path, mode) {
        store.discard();
        return Err(failure);
    }
    Ok(store)
}

fn set_modes(path: &Path, mode: u32) -> Result<(), CallFailure> {
    set_mode(path, mode)?;
    for companion in COMPANIONS {
        let mut name = path.to_path_buf().into_os_string();
        name.push(companion);
        // Every user of the log needs these files. Others do not, least of all the key.
        set_mode(Path::new(&name), mode & 0o770)?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<(), CallFailure> {
    // Of the file that was just created, also if somebody has replaced its name.
    let opened = files::open(path, FileAccess::Read).map_err(io::Error::from);
    let set = opened.and_then(|file| file.set_permissions(fs::Permissions::from_mode(mode)));
    set.map_err(|error| {
        CallFailure::system(
            &error,
            format!("the permissions of {} could not be set: {error}", path.display()),
        )
    })
}

/// The absolute path, if it is short enough.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, CallFailure> {
    let name = std::path::absolute(path)
        .map_err(|error| CallFailure::system(&error, format!("{}: {error}", path.display())))?;
    if name.as_os_str().as_bytes().len() >= NAME_BYTES {
        return Err(CallFailure::new(
            ReturnCode::NameTooLong,
            format!(
                "the name has {} bytes; at most {} are possible",
                name.as_os_str().len(),
                NAME_BYTES - 1
            ),
        ));
    }
    Ok(name)
}

/// The truncation thread's threshold. Outside its range the thread does not act until a commit finds the log
/// full.
fn threshold(truncate: i64) -> u8 {
    match truncate {
        1..=95 => truncate as u8,
        _ => 100,
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(a).is_some_and(|found| Some(found) == identity(b))
}

/// Refuses a log of the original, which only the original can read and empty.
fn refuse_original(path: &Path) -> Result<(), CallFailure> {
    let mut front = Vec::new();
    let bytes = (ORIGINAL_DEVICE_OFFSET + ORIGINAL_STATUS_BYTES) as u64;
    // The opening that follows reports read errors.
    let read = File::open(path).and_then(|file| file.take(bytes).read_to_end(&mut front));
    let status = |at: usize| {
        front
            .get(at..front.len().min(at + ORIGINAL_STATUS_BYTES))
            .unwrap_or_default()
    };
    let marked = |block: &[u8]| {
        block
            .windows(ORIGINAL_MARK.len())
            .any(|text| text == ORIGINAL_MARK)
    };
    if read.is_err() || !(marked(status(0)) || marked(status(ORIGINAL_DEVICE_OFFSET))) {
        return Ok(());
    }
    Err(CallFailure::new(
        ReturnCode::LogVersionSkew,
        format!(
            "{} is a log of the original RVM; start the program once more with the original library and let it call \
             rvm_truncate, so that everything is in the segments, then make a new log: segments can stay as they are",
            path.display()
        ),
    ))
}
