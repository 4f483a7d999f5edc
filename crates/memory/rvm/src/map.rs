//! Mapping segments, and removing them from the table.

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
    /// Maps `length` bytes of a segment from `offset`, a multiple of the page size. Length 0 means up to the
    /// end.
    ///
    /// Pages are read when they are first touched. A byte of a segment can be mapped only once at a time.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the range is not free, aligned and inside the segment, or the segment cannot be used
    /// by this log.
    pub fn map(&self, path: &str, offset: u64, length: u64) -> Result<Region, MapError> {
        self.map_placed(path, offset, length, Placement::ANYWHERE)
    }

    /// Maps like [`Rvm::map`], exactly at `address`, a multiple of the page size. Never replaces an existing
    /// mapping; [`Rvm::map_placed`] can.
    ///
    /// # Errors
    ///
    /// As [`Rvm::map`]; also [`MapError::AddressTaken`], [`MapError::AddressUnaligned`] or
    /// [`MapError::AddressUnusable`].
    pub fn map_at(&self, path: &str, offset: u64, length: u64, address: usize) -> Result<Region, MapError> {
        self.map_placed(path, offset, length, Placement::at(address))
    }

    /// Maps like [`Rvm::map`], at a given placement. [`Placement::over`] replaces pages that the caller owns,
    /// for example an address range that it reserved; with length 0 it must own as many as the rest of the
    /// segment needs.
    ///
    /// # Errors
    ///
    /// As [`Rvm::map_at`]; [`MapError::AddressTaken`] only if the placement replaces nothing.
    pub fn map_placed(
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
        // Bytes committed through an earlier mapping may still be only in the log, and a new mapping would
        // show the file without them. That mapping is gone, so no more such bytes can come.
        if shared.truncation == TruncationPolicy::Here {
            shared.apply_segment(&opened.mark)?;
        }
        // The length fits the address space, or `end_of` has refused it.
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

    /// Removes a segment that is no longer used from the log's table. With [`TruncationPolicy::Elsewhere`]
    /// the log must first be trimmed of every record.
    ///
    /// # Errors
    ///
    /// [`ForgetError::Mapped`] or [`ForgetError::Unknown`] for the path; other variants if commits cannot be
    /// applied or the table not written.
    pub fn forget_segment(&self, path: &str) -> Result<(), ForgetError> {
        let shared = &*self.shared;
        // If the file is gone, the name in the table is used.
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
        // Any other log may use the segment from now on.
        let closed = segments.close_one(&shared.storage, mark.index, log.head, log.tail);
        closed?;
        segments.forget(&shared.storage, &name)
    }
}

/// Offset behind the last of `length` bytes from `offset`; length 0 means the end of the segment.
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
