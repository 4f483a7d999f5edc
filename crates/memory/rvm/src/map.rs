//! Mapping segments, and forgetting them.

use std::sync::{Arc, Weak};

use netram_proto::port::RecordLog;

use crate::error::{ForgetError, MapError};
use crate::limit::PAGE_BYTES;
use crate::memory::Placement;
use crate::options::TruncationPolicy;
use crate::region::{Region, RegionMapping};
use crate::rvm::Rvm;
use crate::segments::{check_name, segment_io};
use crate::storage::SegmentStorage;
use crate::sync::lock;

impl<L: RecordLog, S: SegmentStorage> Rvm<L, S> {
    /// Maps `length` bytes of a segment from `offset`, a multiple of the page size. Length 0: to the end.
    ///
    /// Nothing is read until it is touched. Segment bytes can be mapped once at a time.
    pub fn map(&self, path: &str, offset: u64, length: u64) -> Result<Region, MapError> {
        self.map_placed(path, offset, length, Placement::ANYWHERE)
    }

    /// Maps like [`Rvm::map`], exactly at `address`, a multiple of the page size. Refused where anything is
    /// mapped, so that nothing is ever replaced; [`Rvm::map_over`] replaces.
    pub fn map_at(&self, path: &str, offset: u64, length: u64, address: usize) -> Result<Region, MapError> {
        self.map_placed(path, offset, length, Placement::at(address))
    }

    pub(crate) fn map_placed(
        &self,
        path: &str,
        offset: u64,
        length: u64,
        placement: Placement,
    ) -> Result<Region, MapError> {
        let shared = &*self.shared;
        check_name(path)?;
        let name = shared
            .storage
            .name(path)
            .map_err(|cause| segment_io(path, cause))?;
        if !offset.is_multiple_of(PAGE_BYTES) {
            return Err(MapError::Unaligned {
                offset,
                page: PAGE_BYTES,
            });
        }
        if let Some(address) = placement.address()
            && (address == 0 || !(address as u64).is_multiple_of(PAGE_BYTES))
        {
            return Err(MapError::AddressUnaligned {
                address,
                page: PAGE_BYTES,
            });
        }
        let mut regions = lock(&shared.regions);
        regions.retain(|region| region.strong_count() > 0);
        let log = shared.log.state();
        let opened = lock(&shared.segments).enter(&shared.storage, &name, log.head, log.tail)?;
        let end = end_of(&name, offset, length, opened.size)?;
        for region in regions.iter().filter_map(Weak::upgrade) {
            if *region.path == *name && pages_meet(&region, offset, end) {
                return Err(MapError::Overlap {
                    path: name,
                    offset,
                    end,
                });
            }
        }
        // Bytes committed through an earlier mapping may still be in the log only: a mapping made now would
        // show the file without them. Earlier mappings are gone for certain, so no more such bytes can come.
        if shared.truncation == TruncationPolicy::Here {
            shared.apply_segment(&opened.mark)?;
        }
        // No longer than the address space, or else `end_of` has refused.
        let length = (end - offset) as usize;
        let memory = shared.storage.map(&opened.file, offset, length, placement);
        let memory = memory.map_err(|cause| match placement.address() {
            None => segment_io(&name, cause).into(),
            Some(address) if cause.errno == 17 => MapError::AddressTaken { address, length },
            Some(address) => MapError::AddressUnusable {
                address,
                length,
                cause,
            },
        })?;
        assert_eq!(memory.len(), length);
        let mapping = RegionMapping::new(memory, offset, name.into(), opened.mark, shared.number);
        let mapping = Arc::new(mapping);
        regions.push(Arc::downgrade(&mapping));
        Ok(Region { mapping })
    }

    /// Takes a segment that is no longer used out of the log's table. With [`TruncationPolicy::Elsewhere`]
    /// only once the log has been trimmed of every record.
    pub fn forget_segment(&self, path: &str) -> Result<(), ForgetError> {
        let shared = &*self.shared;
        // The file may be gone; then the table's own name is the one to give.
        let name = shared.storage.name(path).unwrap_or_else(|_| path.to_owned());
        let regions = lock(&shared.regions);
        if regions
            .iter()
            .filter_map(Weak::upgrade)
            .any(|region| *region.path == *name)
        {
            return Err(ForgetError::Mapped { path: name });
        }
        let mark = lock(&shared.segments).mark(&name);
        let mark = mark.ok_or_else(|| ForgetError::Unknown { path: name.clone() })?;
        if shared.truncation == TruncationPolicy::Here {
            shared.apply_segment(&mark)?;
        } else {
            shared.check_trimmed()?;
        }
        let log = shared.log.state();
        let mut segments = lock(&shared.segments);
        // Any other log may have it from now on.
        let closed = segments.close_one(&shared.storage, mark.index, log.head, log.tail);
        closed?;
        segments.forget(&shared.storage, &name)
    }
}

/// Where bytes end that are `length` long from `offset` on; length 0 is to the end of the segment.
fn end_of(path: &str, offset: u64, length: u64, size: u64) -> Result<u64, MapError> {
    let end = match length {
        0 => Some(size),
        length => offset.checked_add(length),
    };
    let inside = |end: &u64| offset < *end && *end <= size && usize::try_from(*end - offset).is_ok();
    end.filter(inside).ok_or_else(|| MapError::OutOfSegment {
        path: path.to_owned(),
        offset,
        length,
        size,
    })
}

/// Whether bytes `offset..end` share a page with a region of the same segment.
fn pages_meet(region: &RegionMapping, offset: u64, end: u64) -> bool {
    let region_end = (region.base + region.length as u64).next_multiple_of(PAGE_BYTES);
    region.base < end.next_multiple_of(PAGE_BYTES) && offset < region_end
}
