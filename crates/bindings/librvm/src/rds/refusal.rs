//! Why a heap's call failed: the code of `rds.h`, or a code of `rvm.h`, and a sentence.

use netram_heap::{AllocError, BlockError, Damage, FormatError, FreeError, OpenError};

use crate::code::Code;
use crate::failure::Failure;

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
pub(crate) struct Refusal {
    /// Negative: of `rds.h`. Positive: of `rvm.h`.
    pub(crate) code: i32,
    /// What `rvm_error_text` and `errno` say.
    pub(crate) failure: Failure,
}

impl Refusal {
    pub(crate) fn new(code: i32, text: impl ToString) -> Refusal {
        Refusal {
            code,
            failure: Failure::new(Code::Internal, text.to_string()),
        }
    }

    pub(super) fn no_heap() -> Refusal {
        Refusal::new(
            NOT_INITIALISED,
            "no heap is started; call rds_load_heap or rds_start_heap first",
        )
    }

    pub(super) fn started_already() -> Refusal {
        Refusal::new(
            NOT_INITIALISED,
            "a heap is started already; a process has one at a time: stop or unload it first",
        )
    }

    pub(super) fn in_use() -> Refusal {
        let text = "a call in another thread uses the heap; let it return, then try again";
        Failure::new(Code::Uncommitted, text).into()
    }

    pub(super) fn outside(address: usize) -> Refusal {
        Refusal::new(BAD_ARGS, format!("the address {address:#x} is not in the heap"))
    }

    pub(super) fn segment(text: impl ToString) -> Refusal {
        Refusal::new(BAD_SEGMENT_HDR, text)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal {
            code: failure.code as i32,
            failure,
        }
    }
}

impl From<Damage> for Refusal {
    fn from(error: Damage) -> Refusal {
        Refusal::new(CORRUPT, error)
    }
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Refusal {
        match error {
            // Nothing, the original's heap, or another netram's.
            OpenError::Foreign | OpenError::Version { .. } => Refusal::new(VERSION_SKEW, error),
            OpenError::Busy { .. } => Failure::new(Code::Uncommitted, error.to_string()).into(),
            OpenError::Header | OpenError::Short { .. } | OpenError::Damaged(_) => {
                Refusal::new(CORRUPT, error)
            }
        }
    }
}

impl From<FormatError> for Refusal {
    fn from(error: FormatError) -> Refusal {
        match error {
            FormatError::Size { .. } => Refusal::new(BAD_ARGS, error),
            FormatError::Range(error) => Failure::from(error).into(),
            FormatError::Busy { .. } => Failure::new(Code::Uncommitted, error.to_string()).into(),
            FormatError::Commit(error) => Failure::from(error).into(),
            FormatError::Open(error) => error.into(),
        }
    }
}

impl From<AllocError> for Refusal {
    fn from(error: AllocError) -> Refusal {
        match error {
            AllocError::NoRoom { .. } => Refusal::new(NO_ROOM, error),
            AllocError::Damaged(damage) => damage.into(),
            AllocError::Transactions { .. } => Failure::new(Code::NoMemory, error.to_string()).into(),
            AllocError::Range(error) => Failure::from(error).into(),
            AllocError::Prepare(error) => Failure::from(error).into(),
        }
    }
}

impl From<BlockError> for Refusal {
    fn from(error: BlockError) -> Refusal {
        let code = match error {
            BlockError::Null | BlockError::Outside { .. } => BAD_ARGS,
            BlockError::NotABlock { at } if !at.is_multiple_of(netram_heap::limit::ALIGNMENT as u64) => {
                BAD_ARGS
            }
            // Where the original finds no guards.
            BlockError::NotABlock { .. } | BlockError::Damaged(_) => CORRUPT,
            BlockError::Free { .. } => FREED_TWICE,
        };
        Refusal::new(code, error)
    }
}

impl From<FreeError> for Refusal {
    fn from(error: FreeError) -> Refusal {
        match error {
            FreeError::Block(error) => error.into(),
            FreeError::Busy { .. } => Failure::new(Code::Uncommitted, error.to_string()).into(),
            FreeError::Transactions { .. } => Failure::new(Code::NoMemory, error.to_string()).into(),
            FreeError::Range(error) => Failure::from(error).into(),
        }
    }
}
