//! Conversion of shared regions' errors into failed calls.

use netram_heap::{
    AllocError, BlockAccessError, BlockError, BlockResizeError, FreeError, HeapDamage, HeapFormatError,
    HeapOpenError,
};
use netram_proto::port::{IoError, WaitError};
use netram_rvm::RangeError;
use netram_shared::channel::ChannelOpenError as LinkError;
use netram_shared::node::{
    AcquireError, DeclareError, HeapError, JoinError, LeaveError, NodeGone, SaveError, TxnCommitError,
};
use netram_shared::saved_copy::CopyError;
use netram_shared_machine::LockId;

use crate::code::ReturnCode;
use crate::failure::CallFailure;

impl From<NodeGone> for CallFailure {
    fn from(gone: NodeGone) -> CallFailure {
        CallFailure::of(ReturnCode::Gone, gone)
    }
}

impl From<AcquireError> for CallFailure {
    fn from(error: AcquireError) -> CallFailure {
        let (code, lock) = match &error {
            AcquireError::Died(lock) => (ReturnCode::Died, Some(lock)),
            AcquireError::TimedOut(lock) => (ReturnCode::TimedOut, Some(lock)),
            AcquireError::OutOfOrder(lock) | AcquireError::NoLock(lock) => (ReturnCode::Lock, Some(lock)),
            AcquireError::TooMany(_) => (ReturnCode::Lock, None),
            AcquireError::Captured => (ReturnCode::Uncommitted, None),
            AcquireError::Lost => (ReturnCode::Lost, None),
            AcquireError::Gone(_) => (ReturnCode::Gone, None),
        };
        CallFailure {
            lock: lock.map(|LockId(lock)| *lock),
            ..CallFailure::of(code, error)
        }
    }
}

/// The failure of declaring bytes at an address.
pub(super) fn declared(error: &DeclareError, address: usize) -> CallFailure {
    match error {
        DeclareError::NotHeld { lock, .. } => CallFailure {
            lock: Some(lock.0),
            ..CallFailure::of(ReturnCode::NotHeld, error)
        },
        DeclareError::NoLock { .. } => CallFailure::of(ReturnCode::NotHeld, error),
        DeclareError::Range(RangeError::Ended) => CallFailure::of(ReturnCode::Handle, error),
        DeclareError::Range(cause) => CallFailure::new(
            CallFailure::from(*cause).code,
            format!("the range at {address:#x}: {cause}"),
        ),
    }
}

impl From<TxnCommitError> for CallFailure {
    fn from(error: TxnCommitError) -> CallFailure {
        match error {
            TxnCommitError::Unknown { cause, .. } => CallFailure {
                errno: match cause {
                    WaitError::DiskFailed(IoError { errno }) => errno,
                    WaitError::Fenced { .. } | WaitError::Closed => 0,
                },
                ..CallFailure::of(ReturnCode::Unknown, error)
            },
            TxnCommitError::Lost => CallFailure::of(ReturnCode::Lost, error),
            TxnCommitError::Stray(stray) => CallFailure {
                lock: stray.lock.map(|lock| lock.0),
                stray: Some(stray),
                ..CallFailure::of(ReturnCode::Stray, error)
            },
            TxnCommitError::Gone(gone) => gone.into(),
            TxnCommitError::Refused(cause) => cause.into(),
        }
    }
}

impl From<JoinError> for CallFailure {
    fn from(error: JoinError) -> CallFailure {
        match error {
            JoinError::Gone(gone) => gone.into(),
            JoinError::TimedOut | JoinError::Link(LinkError::TimedOut) => {
                CallFailure::of(ReturnCode::TimedOut, error)
            }
            JoinError::Map(cause) => cause.into(),
            JoinError::Segment(cause) => cause.into(),
            JoinError::Directory { ref cause, .. } | JoinError::System(ref cause) => {
                CallFailure::system(cause, &error)
            }
            JoinError::Files(IoError { errno }) => CallFailure::io(errno, error),
            JoinError::Region { .. } => CallFailure::of(ReturnCode::Range, error),
            JoinError::Capture(_) => CallFailure::of(ReturnCode::Options, error),
            JoinError::InUse(_) => CallFailure::io(libc::EBUSY, error),
            JoinError::Name(_) => CallFailure::io(libc::EILSEQ, error),
            JoinError::LongName(_) => CallFailure::io(libc::ENAMETOOLONG, error),
            JoinError::Create(_) | JoinError::Journal(_) | JoinError::Memory(_) | JoinError::Settings(_) => {
                CallFailure::of(ReturnCode::Log, error)
            }
            JoinError::Link(_) | JoinError::Broken(_) | JoinError::Spans(_) | JoinError::Listen(_) => {
                CallFailure::io(libc::EIO, error)
            }
        }
    }
}

impl From<LeaveError> for CallFailure {
    fn from(error: LeaveError) -> CallFailure {
        match error {
            LeaveError::TimedOut => CallFailure::of(ReturnCode::TimedOut, error),
            LeaveError::Gone(gone) => gone.into(),
            LeaveError::Directory { ref cause, .. } => CallFailure::system(cause, &error),
            LeaveError::Journal(_) | LeaveError::Memory(_) => CallFailure::io(libc::EIO, error),
        }
    }
}

impl From<SaveError> for CallFailure {
    fn from(error: SaveError) -> CallFailure {
        match error {
            SaveError::Gone(gone) => gone.into(),
            SaveError::Served | SaveError::Changed => CallFailure::of(ReturnCode::Served, error),
            SaveError::Busy | SaveError::Unacknowledged => CallFailure::of(ReturnCode::Uncommitted, error),
            SaveError::Copy(CopyError::System { ref cause, .. }) => CallFailure::system(cause, &error),
            SaveError::Copy(CopyError::NoCopy { .. }) => CallFailure::io(libc::EIO, error),
        }
    }
}

impl From<HeapError> for CallFailure {
    fn from(error: HeapError) -> CallFailure {
        let (code, lock) = match error {
            HeapError::NoLock(lock) => (ReturnCode::Lock, lock),
            HeapError::NotHeld(lock) => (ReturnCode::NotHeld, lock),
            HeapError::Written(lock) | HeapError::InUse(lock) => (ReturnCode::Uncommitted, lock),
            HeapError::Format(cause) => return cause.into(),
            HeapError::Open(cause) => return cause.into(),
        };
        CallFailure {
            lock: Some(lock.0),
            ..CallFailure::of(code, error)
        }
    }
}

impl From<HeapOpenError> for CallFailure {
    fn from(error: HeapOpenError) -> CallFailure {
        let code = match error {
            HeapOpenError::Foreign => ReturnCode::NoHeap,
            // A program that took this for "no heap" would make one there and lose all blocks.
            HeapOpenError::Version { .. } => ReturnCode::VersionSkew,
            HeapOpenError::Busy { .. } => ReturnCode::Uncommitted,
            HeapOpenError::Header | HeapOpenError::Short { .. } | HeapOpenError::Damaged(_) => {
                ReturnCode::Damaged
            }
        };
        CallFailure::of(code, error)
    }
}

impl From<HeapFormatError> for CallFailure {
    fn from(error: HeapFormatError) -> CallFailure {
        match error {
            HeapFormatError::Size { .. } => CallFailure::of(ReturnCode::Range, error),
            HeapFormatError::Busy { .. } => CallFailure::of(ReturnCode::Uncommitted, error),
            HeapFormatError::Range(cause) => cause.into(),
            HeapFormatError::Commit(cause) => cause.into(),
            HeapFormatError::Open(cause) => cause.into(),
        }
    }
}

impl From<HeapDamage> for CallFailure {
    fn from(error: HeapDamage) -> CallFailure {
        CallFailure::of(ReturnCode::Damaged, error)
    }
}

impl From<BlockError> for CallFailure {
    fn from(error: BlockError) -> CallFailure {
        match error {
            BlockError::Damaged(cause) => cause.into(),
            other => CallFailure::of(ReturnCode::Block, other),
        }
    }
}

impl From<AllocError> for CallFailure {
    fn from(error: AllocError) -> CallFailure {
        match error {
            AllocError::NoRoom { .. } => CallFailure::of(ReturnCode::NoRoom, error),
            AllocError::Transactions { .. } => CallFailure::of(ReturnCode::NoMemory, error),
            AllocError::Range(cause) => cause.into(),
            AllocError::Damaged(cause) => cause.into(),
            AllocError::Prepare(cause) => cause.into(),
        }
    }
}

impl From<FreeError> for CallFailure {
    fn from(error: FreeError) -> CallFailure {
        match error {
            FreeError::Block(cause) => cause.into(),
            FreeError::Busy { .. } => CallFailure::of(ReturnCode::Uncommitted, error),
            FreeError::Transactions { .. } => CallFailure::of(ReturnCode::NoMemory, error),
            FreeError::Range(cause) => cause.into(),
        }
    }
}

impl From<BlockResizeError> for CallFailure {
    fn from(error: BlockResizeError) -> CallFailure {
        match error {
            BlockResizeError::Free(cause) => cause.into(),
            BlockResizeError::Alloc(cause) => cause.into(),
            BlockResizeError::Range(cause) => cause.into(),
        }
    }
}

impl From<BlockAccessError> for CallFailure {
    fn from(error: BlockAccessError) -> CallFailure {
        match error {
            BlockAccessError::Block(cause) => cause.into(),
            BlockAccessError::Range(cause) => cause.into(),
            BlockAccessError::Root { .. } => CallFailure::of(ReturnCode::Range, error),
            BlockAccessError::Small { .. } | BlockAccessError::Unaligned { .. } => {
                CallFailure::of(ReturnCode::Block, error)
            }
        }
    }
}

pub(super) fn no_lock(lock: u32) -> CallFailure {
    AcquireError::NoLock(LockId(lock)).into()
}

pub(super) fn expired() -> CallFailure {
    CallFailure::of(ReturnCode::Expired, netram_shared::node::ReaderExpired)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_shared_machine::{NodeId, RecordNumber};

    #[test]
    fn a_failure_names_the_lock_that_it_concerns() {
        let died = CallFailure::from(AcquireError::Died(LockId(7)));
        assert_eq!((died.code, died.lock), (ReturnCode::Died, Some(7)));
        let gone = CallFailure::from(AcquireError::Lost);
        assert_eq!((gone.code, gone.lock), (ReturnCode::Lost, None));
        let (offset, address, lock) = (8, 4104, LockId(3));
        let not_held = DeclareError::NotHeld {
            offset,
            address,
            lock,
        };
        let refused = declared(&not_held, 4096);
        assert_eq!((refused.code, refused.lock), (ReturnCode::NotHeld, Some(3)));
    }

    /// Programs answer `RVM_ENO_HEAP` by making a heap.
    #[test]
    fn only_a_missing_heap_has_the_code_for_no_heap() {
        let of = |error: HeapOpenError| CallFailure::from(error).code;
        assert_eq!(of(HeapOpenError::Foreign), ReturnCode::NoHeap);
        assert_eq!(
            of(HeapOpenError::Version { found: 2, known: 1 }),
            ReturnCode::VersionSkew
        );
        assert_eq!(of(HeapOpenError::Header), ReturnCode::Damaged);
    }

    #[test]
    fn an_unknown_commit_has_another_code_than_an_aborted_one() {
        for cause in [
            WaitError::Closed,
            WaitError::DiskFailed(IoError::ENOSPC),
            WaitError::Fenced {
                held: Default::default(),
                seen: Default::default(),
            },
        ] {
            let (node, number) = (NodeId(4), RecordNumber(9));
            let failure = CallFailure::from(TxnCommitError::Unknown { node, number, cause });
            assert_eq!(failure.code, ReturnCode::Unknown);
            assert!(failure.text.contains("record 9 of node 4"), "{}", failure.text);
        }
        assert_eq!(CallFailure::from(TxnCommitError::Lost).code, ReturnCode::Lost);
    }
}
