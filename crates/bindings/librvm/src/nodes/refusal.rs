//! Why a call on a shared region failed, as C is told it.

use netram_heap::{
    AccessError, AllocError, BlockError, Damage, FormatError, FreeError, OpenError, ResizeError,
};
use netram_proto::port::{IoError, WaitError};
use netram_rvm::RangeError;
use netram_shared::channel::OpenError as LinkError;
use netram_shared::node::{
    AcquireError, CommitError, DeclareError, Gone, HeapError, JoinError, LeaveError, SaveError,
};
use netram_shared::saved::CopyError;
use netram_shared_machine::LockId;

use crate::code::Code;
use crate::failure::Failure;

impl From<Gone> for Failure {
    fn from(gone: Gone) -> Failure {
        Failure::of(Code::Gone, gone)
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Failure {
        let (code, lock) = match &error {
            AcquireError::Died(lock) => (Code::Died, Some(lock)),
            AcquireError::TimedOut(lock) => (Code::TimedOut, Some(lock)),
            AcquireError::OutOfOrder(lock) | AcquireError::NoLock(lock) => (Code::Lock, Some(lock)),
            AcquireError::TooMany(_) => (Code::Lock, None),
            AcquireError::Captured => (Code::Uncommitted, None),
            AcquireError::Lost => (Code::Lost, None),
            AcquireError::Gone(_) => (Code::Gone, None),
        };
        Failure {
            lock: lock.map(|LockId(lock)| *lock),
            ..Failure::of(code, error)
        }
    }
}

/// Why bytes at an address were not declared.
pub(super) fn declared(error: &DeclareError, address: usize) -> Failure {
    match error {
        DeclareError::NotHeld { lock, .. } => Failure {
            lock: Some(lock.0),
            ..Failure::of(Code::NotHeld, error)
        },
        DeclareError::NoLock { .. } => Failure::of(Code::NotHeld, error),
        DeclareError::Range(RangeError::Ended) => Failure::of(Code::Handle, error),
        DeclareError::Range(cause) => Failure::new(
            Failure::from(*cause).code,
            format!("the range at {address:#x}: {cause}"),
        ),
    }
}

impl From<CommitError> for Failure {
    fn from(error: CommitError) -> Failure {
        match error {
            CommitError::Unknown { cause, .. } => Failure {
                errno: match cause {
                    WaitError::DiskFailed(IoError { errno }) => errno,
                    WaitError::Fenced { .. } | WaitError::Closed => 0,
                },
                ..Failure::of(Code::Unknown, error)
            },
            CommitError::Lost => Failure::of(Code::Lost, error),
            CommitError::Stray(stray) => Failure {
                lock: stray.lock.map(|lock| lock.0),
                stray: Some(stray),
                ..Failure::of(Code::Stray, error)
            },
            CommitError::Gone(gone) => gone.into(),
            CommitError::Refused(cause) => cause.into(),
        }
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Failure {
        match error {
            JoinError::Gone(gone) => gone.into(),
            JoinError::TimedOut | JoinError::Link(LinkError::TimedOut) => Failure::of(Code::TimedOut, error),
            JoinError::Map(cause) => cause.into(),
            JoinError::Segment(cause) => cause.into(),
            JoinError::Directory { ref cause, .. } | JoinError::System(ref cause) => {
                Failure::system(cause, &error)
            }
            JoinError::Files(IoError { errno }) => Failure::io(errno, error),
            JoinError::Region { .. } => Failure::of(Code::Range, error),
            JoinError::Capture(_) => Failure::of(Code::Options, error),
            JoinError::InUse(_) => Failure::io(libc::EBUSY, error),
            JoinError::Name(_) => Failure::io(libc::EILSEQ, error),
            JoinError::LongName(_) => Failure::io(libc::ENAMETOOLONG, error),
            JoinError::Create(_) | JoinError::Journal(_) | JoinError::Memory(_) | JoinError::Settings(_) => {
                Failure::of(Code::Log, error)
            }
            JoinError::Link(_) | JoinError::Broken(_) | JoinError::Spans(_) | JoinError::Listen(_) => {
                Failure::io(libc::EIO, error)
            }
        }
    }
}

impl From<LeaveError> for Failure {
    fn from(error: LeaveError) -> Failure {
        match error {
            LeaveError::TimedOut => Failure::of(Code::TimedOut, error),
            LeaveError::Gone(gone) => gone.into(),
            LeaveError::Directory { ref cause, .. } => Failure::system(cause, &error),
            LeaveError::Journal(_) | LeaveError::Memory(_) => Failure::io(libc::EIO, error),
        }
    }
}

impl From<SaveError> for Failure {
    fn from(error: SaveError) -> Failure {
        match error {
            SaveError::Gone(gone) => gone.into(),
            SaveError::Served | SaveError::Changed => Failure::of(Code::Served, error),
            SaveError::Busy | SaveError::Unacknowledged => Failure::of(Code::Uncommitted, error),
            SaveError::Copy(CopyError::System { ref cause, .. }) => Failure::system(cause, &error),
            SaveError::Copy(CopyError::NoCopy { .. }) => Failure::io(libc::EIO, error),
        }
    }
}

impl From<HeapError> for Failure {
    fn from(error: HeapError) -> Failure {
        let (code, lock) = match error {
            HeapError::NoLock(lock) => (Code::Lock, lock),
            HeapError::NotHeld(lock) => (Code::NotHeld, lock),
            HeapError::Written(lock) | HeapError::InUse(lock) => (Code::Uncommitted, lock),
            HeapError::Format(cause) => return cause.into(),
            HeapError::Open(cause) => return cause.into(),
        };
        Failure {
            lock: Some(lock.0),
            ..Failure::of(code, error)
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let code = match error {
            OpenError::Foreign => Code::NoHeap,
            // Whoever takes it for no heap makes one there, and all blocks are void.
            OpenError::Version { .. } => Code::VersionSkew,
            OpenError::Busy { .. } => Code::Uncommitted,
            OpenError::Header | OpenError::Short { .. } | OpenError::Damaged(_) => Code::Damaged,
        };
        Failure::of(code, error)
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Failure {
        match error {
            FormatError::Size { .. } => Failure::of(Code::Range, error),
            FormatError::Busy { .. } => Failure::of(Code::Uncommitted, error),
            FormatError::Range(cause) => cause.into(),
            FormatError::Commit(cause) => cause.into(),
            FormatError::Open(cause) => cause.into(),
        }
    }
}

impl From<Damage> for Failure {
    fn from(error: Damage) -> Failure {
        Failure::of(Code::Damaged, error)
    }
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Failure {
        match error {
            BlockError::Damaged(cause) => cause.into(),
            other => Failure::of(Code::Block, other),
        }
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Failure {
        match error {
            AllocError::NoRoom { .. } => Failure::of(Code::NoRoom, error),
            AllocError::Transactions { .. } => Failure::of(Code::NoMemory, error),
            AllocError::Range(cause) => cause.into(),
            AllocError::Damaged(cause) => cause.into(),
            AllocError::Prepare(cause) => cause.into(),
        }
    }
}

impl From<FreeError> for Failure {
    fn from(error: FreeError) -> Failure {
        match error {
            FreeError::Block(cause) => cause.into(),
            FreeError::Busy { .. } => Failure::of(Code::Uncommitted, error),
            FreeError::Transactions { .. } => Failure::of(Code::NoMemory, error),
            FreeError::Range(cause) => cause.into(),
        }
    }
}

impl From<ResizeError> for Failure {
    fn from(error: ResizeError) -> Failure {
        match error {
            ResizeError::Free(cause) => cause.into(),
            ResizeError::Alloc(cause) => cause.into(),
            ResizeError::Range(cause) => cause.into(),
        }
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Failure {
        match error {
            AccessError::Block(cause) => cause.into(),
            AccessError::Range(cause) => cause.into(),
            AccessError::Root { .. } => Failure::of(Code::Range, error),
            AccessError::Small { .. } | AccessError::Unaligned { .. } => Failure::of(Code::Block, error),
        }
    }
}

pub(super) fn no_lock(lock: u32) -> Failure {
    AcquireError::NoLock(LockId(lock)).into()
}

pub(super) fn expired() -> Failure {
    Failure::of(Code::Expired, netram_shared::node::Expired)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_shared_machine::{NodeId, Number};

    #[test]
    fn a_failure_names_the_lock_that_it_is_about() {
        let died = Failure::from(AcquireError::Died(LockId(7)));
        assert_eq!((died.code, died.lock), (Code::Died, Some(7)));
        let gone = Failure::from(AcquireError::Lost);
        assert_eq!((gone.code, gone.lock), (Code::Lost, None));
        let (offset, address, lock) = (8, 4104, LockId(3));
        let not_held = DeclareError::NotHeld {
            offset,
            address,
            lock,
        };
        let refused = declared(&not_held, 4096);
        assert_eq!((refused.code, refused.lock), (Code::NotHeld, Some(3)));
    }

    /// `RVM_ENO_HEAP` is answered by making a heap.
    #[test]
    fn only_what_is_no_heap_at_all_is_told_as_none() {
        let of = |error: OpenError| Failure::from(error).code;
        assert_eq!(of(OpenError::Foreign), Code::NoHeap);
        assert_eq!(of(OpenError::Version { found: 2, known: 1 }), Code::VersionSkew);
        assert_eq!(of(OpenError::Header), Code::Damaged);
    }

    #[test]
    fn an_unknown_commit_is_told_from_an_aborted_one_whatever_cut_it_off() {
        for cause in [
            WaitError::Closed,
            WaitError::DiskFailed(IoError::ENOSPC),
            WaitError::Fenced {
                held: Default::default(),
                seen: Default::default(),
            },
        ] {
            let (node, number) = (NodeId(4), Number(9));
            let failure = Failure::from(CommitError::Unknown { node, number, cause });
            assert_eq!(failure.code, Code::Unknown);
            assert!(failure.text.contains("record 9 of node 4"), "{}", failure.text);
        }
        assert_eq!(Failure::from(CommitError::Lost).code, Code::Lost);
    }
}
