//! Why a call failed: the code that it returns, the `errno` beside it, and a sentence for people.
//!
//! The errors of the layers below already say what happened and what to do; here they only get their code.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::fmt::Display;

use netram_journal::{CreateError, OpenError};
use netram_proto::journal::LogFileError;
use netram_proto::port::{AppendError, IoError, LogError, WaitError};
use netram_rvm::{
    CloseError, CommitError, FlushError, MapError, OpenError as MemoryError, RangeError, SegmentError,
    TableError, TruncateError, UnmapError,
};
use netram_shared::node::Stray;
use netram_store::HomeError;
use netram_store::loader::{HeaderError, LayoutError};

use crate::code::Code;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// What `errno` is set to; 0 leaves it.
    pub(crate) errno: i32,
    pub(crate) text: String,
    /// The lock of a shared region that it is about.
    pub(crate) lock: Option<u32>,
    /// The stores that a commit on a shared region was refused for.
    pub(crate) stray: Option<Stray>,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure {
            code,
            errno: 0,
            text: text.into(),
            lock: None,
            stray: None,
        }
    }

    /// A system call failed, or something that a system call could have said.
    pub(crate) fn io(errno: i32, text: impl Display) -> Failure {
        let code = match errno {
            libc::ENOMEM => Code::NoMemory,
            libc::ENAMETOOLONG => Code::NameTooLong,
            _ => Code::Io,
        };
        Failure {
            errno,
            ..Failure::new(code, text.to_string())
        }
    }

    pub(crate) fn system(source: &std::io::Error, text: impl Display) -> Failure {
        Failure::io(source.raw_os_error().unwrap_or(libc::EIO), text)
    }

    pub(crate) fn of(code: Code, error: impl Display) -> Failure {
        Failure::new(code, error.to_string())
    }
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
    static LENDERS: RefCell<CString> = RefCell::default();
    static LOCK: Cell<Option<u32>> = const { Cell::new(None) };
    static STRAY: Cell<Option<Stray>> = const { Cell::new(None) };
}

/// Keeps what `rvm_lenders_text` says, for as long as its caller may look.
pub(crate) fn keep_lenders(text: &str) -> *const c_char {
    let text = CString::new(text.replace('\0', "?")).expect("the zeros were replaced");
    // As for `remember`.
    let kept = LENDERS.try_with(|kept| {
        *kept.borrow_mut() = text;
        kept.borrow().as_ptr()
    });
    kept.unwrap_or(c"".as_ptr())
}

/// Keeps the sentence for `rvm_error_text`, the lock for `rvm_error_lock`, the stores for `rvm_error_stray`.
pub(crate) fn remember(failure: &Failure) {
    let line = failure.text.replace('\0', "?");
    let text = CString::new(line).expect("the zeros were replaced");
    // A thread that is ending has no place for it any more, and nobody to ask.
    let _ = TEXT.try_with(|kept| *kept.borrow_mut() = text);
    LOCK.set(failure.lock);
    STRAY.set(failure.stray);
}

/// The lock that this thread's last failure was about.
pub(crate) fn failed_lock() -> Option<u32> {
    LOCK.get()
}

/// The stores that this thread's last failure was about.
pub(crate) fn failed_stray() -> Option<Stray> {
    STRAY.get()
}

/// The sentence of this thread's last failure. Valid until the next one, or the thread's end.
pub(crate) fn text() -> *const c_char {
    TEXT.try_with(|kept| kept.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

impl From<SegmentError> for Failure {
    fn from(error: SegmentError) -> Failure {
        let errno = match &error {
            SegmentError::Missing { .. } | SegmentError::NoFolder { .. } => libc::ENOENT,
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
            SegmentError::Held { .. } => libc::EBUSY,
            SegmentError::Io { cause, .. } => cause.errno,
        };
        Failure::io(errno, error)
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Failure {
        match &error {
            TableError::Io { cause } => Failure::io(cause.errno, error),
            TableError::Version { .. } => Failure::of(Code::LogVersionSkew, error),
            TableError::Full { .. } | TableError::PathsTooLong { .. } => Failure::of(Code::TooBig, error),
            TableError::PathTooLong { .. } => Failure::of(Code::NameTooLong, error),
            TableError::Short { .. } | TableError::Foreign { .. } | TableError::Damaged => {
                Failure::of(Code::Log, error)
            }
        }
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Failure {
        match error {
            WaitError::Fenced { .. } => Failure::of(Code::Log, error),
            WaitError::DiskFailed(IoError { errno }) => Failure::io(errno, error),
            WaitError::Closed => Failure::io(libc::EIO, error),
        }
    }
}

impl From<LayoutError> for Failure {
    fn from(error: LayoutError) -> Failure {
        let code = match error {
            LayoutError::Count { .. } | LayoutError::Overlap | LayoutError::NotPages { .. } => Code::Range,
            LayoutError::TooLong => Code::Offset,
        };
        Failure::of(code, error)
    }
}

impl From<HeaderError> for Failure {
    fn from(error: HeaderError) -> Failure {
        let code = match error {
            HeaderError::Missing | HeaderError::Damaged(_) => Code::SegmentHeader,
            HeaderError::Version => Code::VersionSkew,
        };
        Failure::of(code, error)
    }
}

impl From<TruncateError> for Failure {
    fn from(error: TruncateError) -> Failure {
        match error {
            TruncateError::Segment(error) => error.into(),
            TruncateError::Wait(error) => error.into(),
            TruncateError::Log(LogError::Io(cause)) => Failure::io(cause.errno, error),
            other => Failure::of(Code::Log, other),
        }
    }
}

impl From<MapError> for Failure {
    fn from(error: MapError) -> Failure {
        match error {
            MapError::Segment(error) => error.into(),
            MapError::Table(error) => error.into(),
            MapError::Truncate(error) => error.into(),
            MapError::Overlap { .. } => Failure::of(Code::Overlap, error),
            MapError::OutOfSegment { .. } | MapError::Unaligned { .. } => Failure::of(Code::Offset, error),
            MapError::AddressTaken { .. }
            | MapError::AddressUnaligned { .. }
            | MapError::AddressUnusable { .. } => Failure::of(Code::Range, error),
        }
    }
}

impl From<FlushError> for Failure {
    fn from(error: FlushError) -> Failure {
        match &error {
            FlushError::Full { cause, .. } => full(cause, &error),
            FlushError::Refused(cause) => refused(cause, &error),
            FlushError::Unknown(cause) => (*cause).into(),
        }
    }
}

impl From<CloseError> for Failure {
    fn from(error: CloseError) -> Failure {
        match error {
            CloseError::Uncommitted { .. } => Failure::of(Code::Uncommitted, error),
            CloseError::Flush(error) => error.into(),
            CloseError::Apply(error) => error.into(),
        }
    }
}

impl From<UnmapError> for Failure {
    fn from(error: UnmapError) -> Failure {
        Failure::of(Code::Uncommitted, error)
    }
}

impl From<RangeError> for Failure {
    fn from(error: RangeError) -> Failure {
        let (code, lock) = match error {
            RangeError::OutOfRegion { .. } | RangeError::ForeignRegion => (Code::NotMapped, None),
            RangeError::TooLarge { .. } | RangeError::TooMany { .. } => (Code::TooBig, None),
            RangeError::Ended => (Code::Transaction, None),
            RangeError::NotHeld { lock, .. } => (Code::NotHeld, lock),
            RangeError::Captured => (Code::Uncommitted, None),
        };
        Failure {
            lock,
            ..Failure::of(code, error)
        }
    }
}

impl From<CommitError> for Failure {
    fn from(error: CommitError) -> Failure {
        match &error {
            CommitError::Ended => Failure::of(Code::Transaction, error),
            CommitError::TooLarge { .. } => Failure::of(Code::TooBig, error),
            CommitError::Undeclared { .. } | CommitError::Outside { .. } => Failure::of(Code::Range, error),
            CommitError::Capture { cause } => Failure {
                errno: cause.errno,
                ..Failure::of(Code::Io, error)
            },
            CommitError::Full { cause, .. } => full(cause, &error),
            CommitError::Refused(cause) => refused(cause, &error),
            // One code for every cause, a fence too: `RVM_ELOG` says that nothing was logged.
            CommitError::Unknown { cause, .. } => Failure {
                errno: match cause {
                    WaitError::DiskFailed(IoError { errno }) => *errno,
                    WaitError::Fenced { .. } | WaitError::Closed => libc::EIO,
                },
                ..Failure::of(Code::Io, &error)
            },
        }
    }
}

/// A full log: what stopped truncation must be mended, and nothing else says more than "no space".
fn full(cause: &Option<TruncateError>, error: impl Display) -> Failure {
    let errno = cause.clone().map_or(0, |cause| Failure::from(cause).errno);
    Failure::io(if errno == 0 { libc::ENOSPC } else { errno }, error)
}

fn refused(cause: &AppendError, error: impl Display) -> Failure {
    match cause {
        AppendError::Fenced { .. } => Failure::of(Code::Log, error),
        AppendError::TooLarge { .. } => Failure::of(Code::TooBig, error),
        AppendError::DiskFailed(cause) => Failure::io(cause.errno, error),
        AppendError::Full { .. } => Failure::io(libc::ENOSPC, error),
        AppendError::Closed => Failure::io(libc::EIO, error),
    }
}

impl From<HomeError> for Failure {
    fn from(error: HomeError) -> Failure {
        match &error {
            HomeError::Create(CreateError::Io { source, .. }) => Failure::system(source, &error),
            HomeError::Create(CreateError::Size(_)) => Failure::of(Code::TooBig, error),
            HomeError::Create(CreateError::Exists(_)) => Failure::of(Code::Log, error),
            HomeError::Journal(opening) => from_opening(opening),
            HomeError::Table { cause, .. } => Failure::io(cause.errno, error),
            HomeError::Name { .. } => Failure::io(libc::EILSEQ, error),
            HomeError::Thread(source) => Failure::system(source, &error),
            HomeError::Older(cause) => Failure::from(cause.clone()),
            HomeError::Memory(MemoryError::Recovery(cause)) => Failure {
                text: error.to_string(),
                ..Failure::from(cause.clone())
            },
            HomeError::Memory(MemoryError::Threshold { .. }) => Failure::of(Code::Options, error),
            HomeError::Memory(_)
            | HomeError::Settings(_)
            | HomeError::TableMissing { .. }
            | HomeError::Relocate(_) => Failure::of(Code::Log, error),
        }
    }
}

fn from_opening(error: &OpenError) -> Failure {
    match error {
        OpenError::File { source, .. } | OpenError::System { source, .. } => Failure::system(source, error),
        OpenError::Store { source, .. } => Failure::io(source.errno, error),
        OpenError::Log { source, .. } => match source {
            LogFileError::Io(cause) => Failure::io(cause.errno, error),
            LogFileError::Format(_) => Failure::of(Code::LogVersionSkew, error),
            _ => Failure::of(Code::Log, error),
        },
        _ => Failure::of(Code::Log, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_below_become_the_originals_codes() {
        let missing = SegmentError::Missing { path: "/x".into() };
        let failure = Failure::from(MapError::Segment(missing));
        assert_eq!((failure.code, failure.errno), (Code::Io, libc::ENOENT));
        assert!(failure.text.contains("/x"));
        let failure = Failure::from(CommitError::TooLarge { bytes: 9, max: 8 });
        assert_eq!(failure.code, Code::TooBig);
        let failure = Failure::io(libc::ENOMEM, "no memory");
        assert_eq!(failure.code, Code::NoMemory);
    }

    /// `RVM_ELOG` says that the transaction is open, which one is not whose record was written.
    #[test]
    fn a_commit_of_unknown_fate_has_one_code_whatever_the_cause() {
        let (held, seen) = Default::default();
        let of = |cause| {
            let failure = Failure::from(CommitError::Unknown {
                lsn: Default::default(),
                cause,
            });
            (failure.code, failure.errno)
        };
        assert_eq!(of(WaitError::Closed), (Code::Io, libc::EIO));
        assert_eq!(
            of(WaitError::DiskFailed(IoError::ENOSPC)),
            (Code::Io, libc::ENOSPC)
        );
        assert_eq!(of(WaitError::Fenced { held, seen }), (Code::Io, libc::EIO));
    }

    #[test]
    fn a_log_of_another_format_is_told_from_a_damaged_one() {
        let of = |source| {
            let path = "/log".into();
            Failure::from(HomeError::Journal(OpenError::Log { path, source })).code
        };
        assert_eq!(of(LogFileError::Format(9)), Code::LogVersionSkew);
        assert_eq!(of(LogFileError::Damaged), Code::Log);
        assert_eq!(of(LogFileError::NotALog), Code::Log);
        assert_eq!(of(LogFileError::Io(IoError::EIO)), Code::Io);
    }

    #[test]
    fn a_full_log_says_what_stopped_its_truncation() {
        let cause = SegmentError::Io {
            path: "/x".into(),
            cause: IoError::ENOSPC,
        };
        let full = |cause| CommitError::Full {
            used: 1,
            capacity: 2,
            cause,
        };
        let failure = Failure::from(full(Some(TruncateError::Segment(cause))));
        assert_eq!((failure.code, failure.errno), (Code::Io, libc::ENOSPC));
        assert_eq!(Failure::from(full(None)).errno, libc::ENOSPC);
    }

    #[test]
    fn the_sentence_of_the_last_failure_is_kept_for_its_thread() {
        let kept = || TEXT.with(|kept| kept.borrow().clone());
        remember(&Failure::new(Code::Log, "first"));
        remember(&Failure::new(Code::Log, "second\0third"));
        assert_eq!(kept().as_c_str(), c"second?third");
        let other = std::thread::spawn(kept).join().expect("the thread ends");
        assert_eq!(other.as_c_str(), c"");
    }
}
