//! Making a heap for C programs in a new segment: the one that `rds_load_heap` loads and `rds_zap_heap`
//! makes.
//!
//! ```text
//!   page 0      heap_bytes                          static_bytes
//! +-----------+-----------------------------------+------------------+
//! |  header   |  heap (docs/design/heap.md)              |  zeros           |
//! +-----------+-----------------------------------+------------------+
//!              at `address`                        right behind it
//! ```

use std::path::{Path, PathBuf};

use netram_heap::{Heap, HeapFormatError};
use netram_proto::port::Durability;
use netram_rvm::limit::PAGE_BYTES;
use netram_rvm::{MapError, RangeError, RestoreMode, RvmCommitError, SegmentAllocation, SegmentError};

use crate::loader::{HEADER_BYTES, LoaderLayoutError, RegionDefinition, encode, lay_out};
use crate::store::JournaledRvm;

/// Parameters of a heap to be made.
#[derive(Clone, Copy, Debug)]
pub struct HeapPlan<'a> {
    /// Path of the new segment's file.
    pub path: &'a Path,
    /// Address at which programs map the heap: a multiple of the page size.
    pub address: usize,
    /// Length of the heap in bytes, rounded up to whole pages.
    pub heap_bytes: usize,
    /// Length in bytes of the program's own data behind it, rounded up to whole pages; at least one page.
    pub static_bytes: usize,
    /// How the segment gets its space.
    pub allocation: SegmentAllocation,
}

/// Why a heap could not be made.
#[derive(Debug, thiserror::Error)]
pub enum HeapCreateError {
    /// The path is not UTF-8. Nothing was created.
    #[error("{path:?} is not UTF-8; choose another name. Nothing was created")]
    Name {
        /// The path.
        path: PathBuf,
    },
    /// Heap and data cannot have these addresses. Nothing was created.
    #[error("{0}; choose another address or size. Nothing was created")]
    Layout(#[from] LoaderLayoutError),
    /// The segment could not be created. Nothing was created.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// The segment was created but could not be mapped.
    #[error("the segment was created, but the heap was not: {0}")]
    Map(#[from] MapError),
    /// The segment was created, but the heap could not be formatted in it.
    #[error("the segment was created, but the heap was not: {0}")]
    Format(#[from] HeapFormatError),
    /// The segment and the heap were created, but the header's bytes were refused.
    #[error("the segment was created, but its header was not: {0}")]
    Range(#[from] RangeError),
    /// The segment and the heap were created, but the header could not be committed.
    #[error("the segment was created, but its header was not: {0}")]
    Commit(#[from] RvmCommitError),
}

impl HeapPlan<'_> {
    /// Creates the segment and the heap. The header is written last: until then no program can load the
    /// segment.
    ///
    /// # Errors
    ///
    /// [`HeapCreateError`]; its message says what was created.
    pub fn make(&self, memory: &JournaledRvm) -> Result<(), HeapCreateError> {
        let path = self.path.to_str().ok_or_else(|| HeapCreateError::Name {
            path: self.path.to_path_buf(),
        })?;
        let definitions = self.lay_out()?;
        let [heap, data] = definitions;
        let length = data.offset + data.length as u64;
        memory.create_segment(path, length, self.allocation)?;
        {
            let region = memory.map(path, heap.offset, heap.length as u64)?;
            Heap::format_part(memory, &region, 0, heap.length)?;
        }
        let first = memory.map(path, 0, HEADER_BYTES as u64)?;
        let mut transaction = memory.begin(RestoreMode::Restore);
        transaction.write(&first, 0, &encode(&definitions))?;
        transaction.commit(Durability::Remote)?;
        Ok(())
    }

    fn lay_out(&self) -> Result<[RegionDefinition; 2], LoaderLayoutError> {
        let page = PAGE_BYTES as usize;
        let pages = |bytes: usize| bytes.max(1).checked_next_multiple_of(page);
        let (Some(heap_bytes), Some(static_bytes)) = (pages(self.heap_bytes), pages(self.static_bytes))
        else {
            return Err(LoaderLayoutError::TooLong);
        };
        let end = self.address.checked_add(heap_bytes);
        let mut definitions = [
            RegionDefinition {
                offset: 0,
                length: heap_bytes,
                address: self.address,
            },
            RegionDefinition {
                offset: 0,
                length: static_bytes,
                address: end.ok_or(LoaderLayoutError::TooLong)?,
            },
        ];
        lay_out(&mut definitions)?;
        Ok(definitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(address: usize, heap_bytes: usize) -> HeapPlan<'static> {
        HeapPlan {
            path: Path::new("data"),
            address,
            heap_bytes,
            static_bytes: 0,
            allocation: SegmentAllocation::Sparse,
        }
    }

    #[test]
    fn data_directly_follows_the_heap_in_memory_and_in_the_segment() {
        let [heap, data] = plan(0x2000_0000, 100_000).lay_out().unwrap();
        assert_eq!(
            (heap.address, heap.offset, heap.length),
            (0x2000_0000, 4096, 102_400)
        );
        assert_eq!(
            (data.address, data.offset),
            (0x2000_0000 + 102_400, 4096 + 102_400)
        );
        assert_eq!(data.length, 4096);
    }

    #[test]
    fn addresses_and_sizes_beyond_memory_are_refused() {
        for (address, bytes) in [
            (0, 4096),
            (100, 4096),
            (4096, usize::MAX),
            (usize::MAX - 4095, 4096),
        ] {
            assert!(plan(address, bytes).lay_out().is_err(), "{address:#x} {bytes}");
        }
    }
}
