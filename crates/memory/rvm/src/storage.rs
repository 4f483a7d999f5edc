//! Storage of segments and the segment table. [`crate::RealStorage`] implements it with real files.

use netram_proto::id::JournalId;
use netram_proto::port::{IoError, StorageFile};
use netram_proto::time::Time;

use crate::memory::{Placement, RegionMemory};
use crate::stamp::{SegmentStamp, StampId};

/// Random bytes that distinguish a segment file from another of the same name. Zeros mean that the file
/// system cannot keep them, and the check is skipped.
pub type SegmentIdentity = [u8; 16];

/// How a new segment gets its space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentAllocation {
    /// All blocks are allocated at once, so that truncation cannot meet a full disk.
    #[default]
    Preallocated,
    /// The file has holes. A full disk then stops truncation, and later commits, until space is freed.
    Sparse,
}

/// The files behind recoverable memory: real ones here, virtual ones in the simulator.
///
/// # Errors
///
/// Every method returns the system's error, or one that the system would return.
pub trait SegmentStorage {
    /// An open file.
    type File: StorageFile;

    /// The canonical name of the file at `path`, so that two spellings do not count as two segments.
    fn name(&self, path: &str) -> Result<String, IoError>;
    /// Creates a segment of zeros, durable on return. Fails with EEXIST if the file exists.
    fn create_segment(&self, path: &str, length: u64, allocation: SegmentAllocation) -> Result<(), IoError>;
    /// Opens a segment for reading and writing, locked for this process alone.
    fn open_segment(&self, path: &str) -> Result<Self::File, IoError>;
    /// Maps bytes of a segment; stores to the memory must never reach the file. EEXIST means that the
    /// addresses are in use.
    fn map(
        &self,
        file: &Self::File,
        offset: u64,
        length: usize,
        placement: Placement,
    ) -> Result<RegionMemory, IoError>;
    /// The segment's identity; zeros when it has none.
    fn identity(&self, file: &Self::File) -> Result<SegmentIdentity, IoError>;
    /// Gives the segment a new identity and returns it; zeros when it cannot keep one.
    fn assign_identity(&self, file: &Self::File) -> Result<SegmentIdentity, IoError>;
    /// The stamp left last on the segment; `None` if none can be read.
    fn stamp(&self, file: &Self::File, path: &str) -> Result<Option<SegmentStamp>, IoError>;
    /// Replaces the stamp durably: after a crash the segment has the old one or the new one. Returns `false`
    /// if no stamp can be kept here.
    fn leave_stamp(&self, file: &Self::File, path: &str, stamp: &SegmentStamp) -> Result<bool, IoError>;
    /// Draws an unused stamp id.
    fn draw_stamp(&self) -> Result<StampId, IoError>;
    /// A number that the file keeps under every name while it exists, and that no copy of it has.
    fn number(&self, file: &Self::File) -> Result<u64, IoError>;
    /// Full path of the segment table's directory; empty if there is none.
    fn directory(&self) -> &str {
        ""
    }
    /// Full path of the segment table; empty if there is none.
    fn table_path(&self) -> &str {
        ""
    }
    /// Whether `path` is a segment table of `journal` other than this storage's own.
    fn is_table_of(&self, _path: &str, _journal: JournalId) -> bool {
        false
    }
    /// Whether `file` is still the file at `path`, and not replaced. ENOENT if no file is there.
    fn is_same(&self, _file: &Self::File, _path: &str) -> Result<bool, IoError> {
        Ok(true)
    }
    /// The segment table's file, [`crate::limit::TABLE_BYTES`] long and all zeros when new.
    fn table(&self) -> &Self::File;
    /// The time, for statistics.
    fn now(&self) -> Time;
}
