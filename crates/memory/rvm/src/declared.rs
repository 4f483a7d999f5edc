//! Ranges of bytes that transactions declared, and runs of bytes that were stored without a declaration.

use std::sync::Arc;

/// Bytes of one region that a transaction declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredRange {
    /// Where in the region it begins.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Index of the region in the transaction's list.
    pub(crate) region: u32,
}

impl DeclaredRange {
    pub(crate) fn end(self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// A run of bytes that was stored without a declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndeclaredStore {
    /// The segment's path.
    pub segment: Arc<str>,
    /// Offset in the segment.
    pub offset: u64,
    /// Offset in the region.
    pub region_offset: usize,
    /// Length in bytes.
    pub length: usize,
    /// Address in memory.
    pub address: usize,
}
