//! Failed calls: the code that they return, the `errno`, and a message for users.
//!
//! The errors of the lower layers already have messages; here they only get their codes.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::fmt::Display;

use netram_journal::{JournalCreateError, JournalOpenError};
use netram_proto::journal::LogFileError;
use netram_proto::port::{AppendError, IoError, LogError, WaitError};
use netram_rvm::{
    FlushError, MapError, RangeError, RvmCloseError, RvmCommitError, RvmOpenError as MemoryError,
    SegmentError, SegmentTableError, TruncateError, UnmapError,
};
use netram_shared::node::StrayStores;
use netram_store::StoreError;
use netram_store::loader::{LoaderHeaderError, LoaderLayoutError};

use crate::code::ReturnCode;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallFailure {
    pub(crate) code: ReturnCode,
    /// The value of `errno`; 0 leaves it unchanged.
    pub(crate) errno: i32,
    pub(crate) text: String,
    /// The lock of a shared region that the failure concerns.
    pub(crate) lock: Option<u32>,
    /// The stores for which a commit on a shared region was refused.
    pub(crate) stray: Option<StrayStores>,
}

impl CallFailure {
    pub(crate) fn new(code: ReturnCode, text: impl Into<String>) -> CallFailure {
        CallFailure {
            code,
            errno: 0,
            text: text.into(),
            lock: None,
            stray: None,
        }
    }

    /// A system call failed, or an error that a system call could have returned.
    pub(crate) fn io(errno: i32, text: impl Display) -> CallFailure {
        let code = match errno {
            libc::ENOMEM => ReturnCode::NoMemory,
            libc::ENAMETOOLONG => ReturnCode::NameTooLong,
            _ => ReturnCode::Io,
        };
        CallFailure {
            errno,
            ..CallFailure::new(code, text.to_string())
        }
    }

    pub(crate) fn system(source: &std::io::Error, text: impl Display) -> CallFailure {
        CallFailure::io(source.raw_os_error().unwrap_or(libc::EIO), text)
    }

    pub(crate) fn of(code: ReturnCode, error: impl Display) -> CallFailure {
        CallFailure::new(code, error.to_string())
    }
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
    static LENDERS: RefCell<CString> = RefCell::default();
    static LOCK: Cell<Option<u32>> = const { Cell::new(None) };
    static STRAY: Cell<Option<StrayStores>> = const { Cell::new(None) };
}

/// Keeps the result of `rvm_lenders_text` until the thread's next call of it.
pub(crate) fn keep_lenders(text: &str) -> *const c_char {
    let text = CString::new(text.replace('\0', "?")).expect("zero bytes were replaced");
    // A thread that is ending can store nothing, as in `remember`.
    let kept = LENDERS.try_with(|kept| {
        *kept.borrow_mut() = text;
        kept.borrow().as_ptr()
    });
    kept.unwrap_or(c"".as_ptr())
}

/// Stores the message for `rvm_error_text`, the lock for `rvm_error_lock`, and the stores for
/// `rvm_error_stray`.
pub(crate) fn remember(failure: &CallFailure) {
    let line = failure.text.replace('\0', "?");
    let text = CString::new(line).expect("zero bytes were replaced");
    // A thread that is ending has no storage for it any more, and makes no further call.
    let _ = TEXT.try_with(|kept| *kept.borrow_mut() = text);
    LOCK.set(failure.lock);
    STRAY.set(failure.stray);
}

/// The lock that this thread's last failure concerns.
pub(crate) fn failed_lock() -> Option<u32> {
    LOCK.get()
}

/// The stores that this thread's last failure concerns.
pub(crate) fn failed_stray() -> Option<StrayStores> {
    STRAY.get()
}

/// Message of this thread's last failure. Valid until the next failure or the thread's end.
pub(crate) fn text() -> *const c_char {
    TEXT.try_with(|kept| kept.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

impl From<SegmentError> for CallFailure {
    fn from(error: SegmentError) -> CallFailure {
        let errno = match &error {
            SegmentError::Missing { .. } | SegmentError::NoDirectory { .. } => libc::ENOENT,
            SegmentError::Name { .. } => libc::EINVAL,
            SegmentError::TooLong { .. } => libc::EFBIG,
            SegmentError::Exists { .. } => libc::EEXIST,
            SegmentError::InUse { .. } => libc::EBUSY,
            SegmentError::Short { .. } => libc::EIO,
            SegmentError::Foreign { .. }
            | SegmentError::Overtaken { .. }
            | SegmentError::Older { .. }
            | SegmentError::TableOlder { .. }
            | SegmentError::Copy { .. } => libc::ESTALE,
            SegmentError::OwnedByOtherLog { .. } => libc::EBUSY,
            SegmentError::Io { cause, .. } => cause.errno,
        };
        CallFailure::io(errno, error)
    }
}

impl From<SegmentTableError> for CallFailure {
    fn from(error: SegmentTableError) -> CallFailure {
        match &error {
            SegmentTableError::Io { cause } => CallFailure::io(cause.errno, error),
            SegmentTableError::Version { .. } => CallFailure::of(ReturnCode::LogVersionSkew, error),
            SegmentTableError::Full { .. } | SegmentTableError::PathsTooLong { .. } => {
                CallFailure::of(ReturnCode::TooBig, error)
            }
            SegmentTableError::PathTooLong { .. } => CallFailure::of(ReturnCode::NameTooLong, error),
            SegmentTableError::Short { .. }
            | SegmentTableError::Foreign { .. }
            | SegmentTableError::Damaged => CallFailure::of(ReturnCode::Log, error),
        }
    }
}

impl From<WaitError> for CallFailure {
    fn from(error: WaitError) -> CallFailure {
        match error {
            WaitError::Fenced { .. } => CallFailure::of(ReturnCode::Log, error),
            WaitError::DiskFailed(IoError { errno }) => CallFailure::io(errno, error),
            WaitError::Closed => CallFailure::io(libc::EIO, error),
        }
    }
}

impl From<LoaderLayoutError> for CallFailure {
    fn from(error: LoaderLayoutError) -> CallFailure {
        let code = match error {
            LoaderLayoutError::Count { .. }
            | LoaderLayoutError::Overlap
            | LoaderLayoutError::NotPages { .. } => ReturnCode::Range,
            LoaderLayoutError::TooLong => ReturnCode::Offset,
        };
        CallFailure::of(code, error)
    }
}

impl From<LoaderHeaderError> for CallFailure {
    fn from(error: LoaderHeaderError) -> CallFailure {
        let code = match error {
            LoaderHeaderError::Missing | LoaderHeaderError::Damaged(_) => ReturnCode::SegmentHeader,
            LoaderHeaderError::Version => ReturnCode::VersionSkew,
        };
        CallFailure::of(code, error)
    }
}

impl From<TruncateError> for CallFailure {
    fn from(error: TruncateError) -> CallFailure {
        match error {
            TruncateError::Segment(error) => error.into(),
            TruncateError::Wait(error) => error.into(),
            TruncateError::Log(LogError::Io(cause)) => CallFailure::io(cause.errno, error),
            other => CallFailure::of(ReturnCode::Log, other),
        }
    }
}

impl From<MapError> for CallFailure {
    fn from(error: MapError) -> CallFailure {
        match error {
            MapError::Segment(error) => error.into(),
            MapError::Table(error) => error.into(),
            MapError::Truncate(error) => error.into(),
            MapError::Overlap { .. } => CallFailure::of(ReturnCode::Overlap, error),
            MapError::OutOfSegment { .. } | MapError::Unaligned { .. } => {
                CallFailure::of(ReturnCode::Offset, error)
            }
            MapError::AddressTaken { .. }
            | MapError::AddressUnaligned { .. }
            | MapError::AddressUnusable { .. } => CallFailure::of(ReturnCode::Range, error),
        }
    }
}

impl From<FlushError> for CallFailure {
    fn from(error: FlushError) -> CallFailure {
        match &error {
            FlushError::Full { cause, .. } => full(cause, &error),
            FlushError::Refused(cause) => refused(cause, &error),
            FlushError::Unknown(cause) => (*cause).into(),
        }
    }
}

impl From<RvmCloseError> for CallFailure {
    fn from(error: RvmCloseError) -> CallFailure {
        match error {
            RvmCloseError::Uncommitted { .. } => CallFailure::of(ReturnCode::Uncommitted, error),
            RvmCloseError::Flush(error) => error.into(),
            RvmCloseError::Apply(error) => error.into(),
        }
    }
}

impl From<UnmapError> for CallFailure {
    fn from(error: UnmapError) -> CallFailure {
        CallFailure::of(ReturnCode::Uncommitted, error)
    }
}

impl From<RangeError> for CallFailure {
    fn from(error: RangeError) -> CallFailure {
        let (code, lock) = match error {
            RangeError::OutOfRegion { .. } | RangeError::ForeignRegion => (ReturnCode::NotMapped, None),
            RangeError::TooLarge { .. } | RangeError::TooMany { .. } => (ReturnCode::TooBig, None),
            RangeError::Ended => (ReturnCode::Transaction, None),
            RangeError::NotHeld { lock, .. } => (ReturnCode::NotHeld, lock),
            RangeError::Captured => (ReturnCode::Uncommitted, None),
        };
        CallFailure {
            lock,
            ..CallFailure::of(code, error)
        }
    }
}

impl From<RvmCommitError> for CallFailure {
    fn from(error: RvmCommitError) -> CallFailure {
        match &error {
            RvmCommitError::Ended => CallFailure::of(ReturnCode::Transaction, error),
            RvmCommitError::TooLarge { .. } => CallFailure::of(ReturnCode::TooBig, error),
            RvmCommitError::Undeclared { .. } | RvmCommitError::Outside { .. } => {
                CallFailure::of(ReturnCode::Range, error)
            }
            RvmCommitError::Capture { cause } => CallFailure {
                errno: cause.errno,
                ..CallFailure::of(ReturnCode::Io, error)
            },
            RvmCommitError::Full { cause, .. } => full(cause, &error),
            RvmCommitError::Refused(cause) => refused(cause, &error),
            // One code for every cause, a fence too: `RVM_ELOG` would say that nothing was logged.
            RvmCommitError::Unknown { cause, .. } => CallFailure {
                errno: match cause {
                    WaitError::DiskFailed(IoError { errno }) => *errno,
                    WaitError::Fenced { .. } | WaitError::Closed => libc::EIO,
                },
                ..CallFailure::of(ReturnCode::Io, &error)
            },
        }
    }
}

/// A full log. If truncation failed its cause must be removed; otherwise the code means "no space".
fn full(cause: &Option<TruncateError>, error: impl Display) -> CallFailure {
    let errno = cause.clone().map_or(0, |cause| CallFailure::from(cause).errno);
    CallFailure::io(if errno == 0 { libc::ENOSPC } else { errno }, error)
}

fn refused(cause: &AppendError, error: impl Display) -> CallFailure {
    match cause {
        AppendError::Fenced { .. } => CallFailure::of(ReturnCode::Log, error),
        AppendError::TooLarge { .. } => CallFailure::of(ReturnCode::TooBig, error),
        AppendError::DiskFailed(cause) => CallFailure::io(cause.errno, error),
        AppendError::Full { .. } => CallFailure::io(libc::ENOSPC, error),
        AppendError::Closed => CallFailure::io(libc::EIO, error),
    }
}

impl From<StoreError> for CallFailure {
    fn from(error: StoreError) -> CallFailure {
        match &error {
            StoreError::Create(JournalCreateError::Io { source, .. }) => CallFailure::system(source, &error),
            StoreError::Create(JournalCreateError::Size(_)) => CallFailure::of(ReturnCode::TooBig, error),
            StoreError::Create(JournalCreateError::Exists(_)) => CallFailure::of(ReturnCode::Log, error),
            StoreError::Journal(opening) => from_opening(opening),
            StoreError::Table { cause, .. } => CallFailure::io(cause.errno, error),
            StoreError::Name { .. } => CallFailure::io(libc::EILSEQ, error),
            StoreError::Thread(source) => CallFailure::system(source, &error),
            StoreError::Older(cause) => CallFailure::from(cause.clone()),
            StoreError::Memory(MemoryError::Recovery(cause)) => CallFailure {
                text: error.to_string(),
                ..CallFailure::from(cause.clone())
            },
            StoreError::Memory(MemoryError::Threshold { .. }) => CallFailure::of(ReturnCode::Options, error),
            StoreError::Memory(_)
            | StoreError::Settings(_)
            | StoreError::TableMissing { .. }
            | StoreError::Relocate(_) => CallFailure::of(ReturnCode::Log, error),
        }
    }
}

fn from_opening(error: &JournalOpenError) -> CallFailure {
    match error {
        JournalOpenError::File { source, .. } | JournalOpenError::System { source, .. } => {
            CallFailure::system(source, error)
        }
        JournalOpenError::Store { source, .. } => CallFailure::io(source.errno, error),
        JournalOpenError::Log { source, .. } => match source {
            LogFileError::Io(cause) => CallFailure::io(cause.errno, error),
            LogFileError::Format(_) => CallFailure::of(ReturnCode::LogVersionSkew, error),
            _ => CallFailure::of(ReturnCode::Log, error),
        },
        _ => CallFailure::of(ReturnCode::Log, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_lower_layers_become_the_originals_codes() {
        let missing = SegmentError::Missing { path: "/x".into() };
        let failure = CallFailure::from(MapError::Segment(missing));
        assert_eq!((failure.code, failure.errno), (ReturnCode::Io, libc::ENOENT));
        assert!(failure.text.contains("/x"));
        let failure = CallFailure::from(RvmCommitError::TooLarge { bytes: 9, max: 8 });
        assert_eq!(failure.code, ReturnCode::TooBig);
        let failure = CallFailure::io(libc::ENOMEM, "no memory");
        assert_eq!(failure.code, ReturnCode::NoMemory);
    }

    /// `RVM_ELOG` says that the transaction is still open, but one whose record was written has ended.
    #[test]
    fn a_commit_of_unknown_outcome_has_one_code_whatever_the_cause() {
        let (held, seen) = Default::default();
        let of = |cause| {
            let failure = CallFailure::from(RvmCommitError::Unknown {
                lsn: Default::default(),
                cause,
            });
            (failure.code, failure.errno)
        };
        assert_eq!(of(WaitError::Closed), (ReturnCode::Io, libc::EIO));
        assert_eq!(
            of(WaitError::DiskFailed(IoError::ENOSPC)),
            (ReturnCode::Io, libc::ENOSPC)
        );
        assert_eq!(of(WaitError::Fenced { held, seen }), (ReturnCode::Io, libc::EIO));
    }

    #[test]
    fn a_log_of_another_format_has_another_code_than_a_damaged_one() {
        let of = |source| {
            let path = "/log".into();
            CallFailure::from(StoreError::Journal(JournalOpenError::Log { path, source })).code
        };
        assert_eq!(of(LogFileError::Format(9)), ReturnCode::LogVersionSkew);
        assert_eq!(of(LogFileError::Damaged), ReturnCode::Log);
        assert_eq!(of(LogFileError::NotALog), ReturnCode::Log);
        assert_eq!(of(LogFileError::Io(IoError::EIO)), ReturnCode::Io);
    }

    #[test]
    fn the_message_for_a_full_log_has_the_cause_of_failed_truncation() {
        let cause = SegmentError::Io {
            path: "/x".into(),
            cause: IoError::ENOSPC,
        };
        let full = |cause| RvmCommitError::Full {
            used: 1,
            capacity: 2,
            cause,
        };
        let failure = CallFailure::from(full(Some(TruncateError::Segment(cause))));
        assert_eq!((failure.code, failure.errno), (ReturnCode::Io, libc::ENOSPC));
        assert_eq!(CallFailure::from(full(None)).errno, libc::ENOSPC);
    }

    #[test]
    fn the_message_of_the_last_failure_is_kept_for_its_thread() {
        let kept = || TEXT.with(|kept| kept.borrow().clone());
        remember(&CallFailure::new(ReturnCode::Log, "first"));
        remember(&CallFailure::new(ReturnCode::Log, "second\0third"));
        assert_eq!(kept().as_c_str(), c"second?third");
        let other = std::thread::spawn(kept).join().expect("the thread ends");
        assert_eq!(other.as_c_str(), c"");
    }
}
