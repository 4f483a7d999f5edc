//! Failed calls of heaps: a code of `rds.h` or of `rvm.h`, and a message.

use netram_heap::{AllocError, BlockError, FreeError, HeapDamage, HeapFormatError, HeapOpenError};

use crate::code::ReturnCode;
use crate::failure::CallFailure;

/// `EBAD_SEGMENT_HDR`.
const BAD_SEGMENT_HDR: i32 = -3;
/// `EHEAP_VERSION_SKEW`.
const VERSION_SKEW: i32 = -4;
/// `EHEAP_INIT`.
const NOT_INITIALISED: i32 = -5;
/// `EBAD_ARGS`.
pub(crate) const BAD_ARGS: i32 = -6;
/// `ECORRUPT`.
const CORRUPT: i32 = -7;
/// `EFREED_TWICE`.
const FREED_TWICE: i32 = -8;
/// `ENO_ROOM`.
const NO_ROOM: i32 = -9;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RdsError {
    /// Negative codes are from `rds.h`, positive ones from `rvm.h`.
    pub(crate) code: i32,
    /// Message for `rvm_error_text`, and `errno`.
    pub(crate) failure: CallFailure,
}

impl RdsError {
    pub(crate) fn new(code: i32, text: impl ToString) -> RdsError {
        RdsError {
            code,
            failure: CallFailure::new(ReturnCode::Internal, text.to_string()),
        }
    }

    pub(super) fn no_heap() -> RdsError {
        RdsError::new(
            NOT_INITIALISED,
            "no heap has been started; call rds_load_heap or rds_start_heap first",
        )
    }

    pub(super) fn started_already() -> RdsError {
        RdsError::new(
            NOT_INITIALISED,
            "a heap has already been started, and a process has one at a time; stop or unload it first",
        )
    }

    pub(super) fn in_use() -> RdsError {
        let text = "a call in another thread uses the heap; let it return, then try again";
        CallFailure::new(ReturnCode::Uncommitted, text).into()
    }

    pub(super) fn outside(address: usize) -> RdsError {
        RdsError::new(BAD_ARGS, format!("the address {address:#x} is not in the heap"))
    }

    pub(super) fn segment(text: impl ToString) -> RdsError {
        RdsError::new(BAD_SEGMENT_HDR, text)
    }
}

impl From<CallFailure> for RdsError {
    fn from(failure: CallFailure) -> RdsError {
        RdsError {
            code: failure.code as i32,
            failure,
        }
    }
}

impl From<HeapDamage> for RdsError {
    fn from(error: HeapDamage) -> RdsError {
        RdsError::new(CORRUPT, error)
    }
}

impl From<HeapOpenError> for RdsError {
    fn from(error: HeapOpenError) -> RdsError {
        match error {
            // The region contains no heap, the original's heap, or one of another netram.
            HeapOpenError::Foreign | HeapOpenError::Version { .. } => RdsError::new(VERSION_SKEW, error),
            HeapOpenError::Busy { .. } => CallFailure::new(ReturnCode::Uncommitted, error.to_string()).into(),
            HeapOpenError::Header | HeapOpenError::Short { .. } | HeapOpenError::Damaged(_) => {
                RdsError::new(CORRUPT, error)
            }
        }
    }
}

impl From<HeapFormatError> for RdsError {
    fn from(error: HeapFormatError) -> RdsError {
        match error {
            HeapFormatError::Size { .. } => RdsError::new(BAD_ARGS, error),
            HeapFormatError::Range(error) => CallFailure::from(error).into(),
            HeapFormatError::Busy { .. } => {
                CallFailure::new(ReturnCode::Uncommitted, error.to_string()).into()
            }
            HeapFormatError::Commit(error) => CallFailure::from(error).into(),
            HeapFormatError::Open(error) => error.into(),
        }
    }
}

impl From<AllocError> for RdsError {
    fn from(error: AllocError) -> RdsError {
        match error {
            AllocError::NoRoom { .. } => RdsError::new(NO_ROOM, error),
            AllocError::Damaged(damage) => damage.into(),
            AllocError::Transactions { .. } => {
                CallFailure::new(ReturnCode::NoMemory, error.to_string()).into()
            }
            AllocError::Range(error) => CallFailure::from(error).into(),
            AllocError::Prepare(error) => CallFailure::from(error).into(),
        }
    }
}

impl From<BlockError> for RdsError {
    fn from(error: BlockError) -> RdsError {
        let code = match error {
            BlockError::Null | BlockError::Outside { .. } => BAD_ARGS,
            BlockError::NotABlock { at } if !at.is_multiple_of(netram_heap::limit::ALIGNMENT as u64) => {
                BAD_ARGS
            }
            // The original detects these by its guards.
            BlockError::NotABlock { .. } | BlockError::Damaged(_) => CORRUPT,
            BlockError::Free { .. } => FREED_TWICE,
        };
        RdsError::new(code, error)
    }
}

impl From<FreeError> for RdsError {
    fn from(error: FreeError) -> RdsError {
        match error {
            FreeError::Block(error) => error.into(),
            FreeError::Busy { .. } => CallFailure::new(ReturnCode::Uncommitted, error.to_string()).into(),
            FreeError::Transactions { .. } => {
                CallFailure::new(ReturnCode::NoMemory, error.to_string()).into()
            }
            FreeError::Range(error) => CallFailure::from(error).into(),
        }
    }
}
