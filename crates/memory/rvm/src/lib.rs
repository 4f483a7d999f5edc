//! Internal to netram: programs use the crate `netram`.
//!
//! Recoverable virtual memory (RVM) over a journal held in other machines' RAM.
//!
//! Map a file, declare what a transaction changes, change it in place, commit: after a crash the memory is
//! what was committed. Formats, crash arguments and limits: `docs/design/rvm.md`.
//!
//! ```no_run
//! # use netram_proto::{id::JournalId, port::{Durability, RecordLog}};
//! # use netram_rvm::{RealStorage, RestoreMode, Rvm, RvmOptions, SegmentAllocation};
//! # fn example(log: impl RecordLog) -> Result<(), Box<dyn std::error::Error>> {
//! let rvm = Rvm::open(log, RealStorage::create("bank.segments")?, RvmOptions::new(JournalId(1)))?;
//! rvm.create_segment("bank.data", 1 << 20, SegmentAllocation::Preallocated)?;
//! let accounts = rvm.map("bank.data", 0, 0)?;
//!
//! let mut transfer = rvm.begin(RestoreMode::Restore);
//! let balance: u64 = accounts.get(64)?;
//! transfer.set(&accounts, 64, &(balance + 100))?;
//! transfer.commit(Durability::Remote)?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | does |
//! |---|---|
//! | [`Rvm`] | opening with recovery, mapping, truncation |
//! | [`Transaction`], [`EditGuard`] | ranges, commit, abort |
//! | [`Region`] | mapped memory and its lock |
//! | [`CaptureMode`] | how stores are found: declared, or by page |
//! | [`record`] | encoding of a transaction as a log record |
//! | [`SegmentStorage`] | where segments live: real files, or the simulator's virtual ones |
//! | [`TableView`] | read-only view of a log's segments, for tools |
//! | [`limit`] | every limit of the crate |
//!
//! This crate sees the log only as `netram_proto::port::RecordLog`. Sockets, lenders and the log's own
//! recovery belong to `netram-journal`.
#![deny(unsafe_code)]

mod background;
mod buffers;
mod capture;
mod declared;
mod error;
mod file;
mod foreign;
#[doc(hidden)]
pub mod fuzzed;
mod granules;
mod inspect;
pub mod limit;
mod map;
mod memory;
mod merge;
mod newest;
mod options;
mod participant;
mod radix;
mod range;
mod real_stamp;
mod real_storage;
pub mod record;
mod refusal;
mod region;
mod relocate;
mod run;
mod rvm;
mod segments;
mod spool;
mod stamp;
mod state;
mod stats;
mod storage;
mod sync;
mod table;
mod trim;
mod truncate;
mod txn;

pub use capture::{CaptureMode, DetectMethod, VerifyMode, differences};
pub use declared::UndeclaredStore;
pub use error::{
    CaptureError, FlushError, ForeignError, ForgetError, MapError, PreambleError, RangeError,
    RecordDecodeError, RvmCloseError, RvmCommitError, RvmOpenError, SegmentError, SegmentTableError,
    TruncateError, UnmapError,
};
pub use inspect::{SegmentFile, SegmentView, TableView};
pub use memory::{Placement, RegionMemory};
pub use newest::refuse_older;
pub use options::{RestoreMode, RvmOptions, TruncationPolicy};
pub use participant::{Participant, TransactionOutcome};
pub use real_storage::{RealFile, RealStorage};
pub use record::{RangeView, RecordChanges};
pub use region::{ExclusiveGuard, ReadGuard, Region};
pub use relocate::{RelocateError, RelocatedSegment, relocate};
pub use rvm::{RegionStatus, Rvm, RvmStatus, SegmentInfo};
pub use stamp::{SegmentStamp, StampId};
pub use stats::{COUNT_CLASSES, LENGTH_CLASSES, Statistics};
pub use storage::{SegmentAllocation, SegmentIdentity, SegmentStorage};
pub use truncate::{RecoveryReport, TruncateProgress};
pub use txn::{CommitReceipt, EditGuard, Transaction};
