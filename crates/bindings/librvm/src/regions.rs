//! The table of mapped regions: finding the region of an address.

use std::sync::{Arc, PoisonError, RwLock};

use netram_rvm::Region;

/// A mapped region and its addresses.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) region: Region,
}

impl MappedRegion {
    pub(crate) fn of(region: Region) -> MappedRegion {
        MappedRegion {
            start: region.as_ptr().addr(),
            length: region.len(),
            region,
        }
    }

    /// Offset in the region of `length` bytes at `address`; `None` unless all are in it.
    #[inline]
    pub(crate) fn offset(&self, address: usize, length: usize) -> Option<usize> {
        let offset = address.checked_sub(self.start)?;
        let room = self.length.checked_sub(offset)?;
        (length <= room).then_some(offset)
    }
}

/// All mapped regions, by address. A transaction remembers the region it used last, so most calls do not
/// search here. Those cost 13 ns in total, and two threads do not slow each other
/// (`crates/bindings/librvm/benches/calls.c`).
#[derive(Debug, Default)]
pub(crate) struct Regions(RwLock<Vec<Arc<MappedRegion>>>);

/// Address and length.
pub(crate) type AddressSpan = (usize, usize);

/// Why a region is not removed from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeRegionError {
    /// No region begins there.
    NoRegion,
    /// The addresses are a part of a region.
    Part,
    /// An open transaction has ranges in the region or is declaring some, or a heap is started there.
    InUse,
}

impl Regions {
    pub(crate) const fn new() -> Regions {
        Regions(RwLock::new(Vec::new()))
    }

    /// The region that contains all of these bytes. An empty range counts as inside the region of its
    /// address.
    pub(crate) fn find(&self, address: usize, length: usize) -> Option<Arc<MappedRegion>> {
        let regions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mapped = &regions[last_from(&regions, address)?];
        mapped.offset(address, length).map(|_| Arc::clone(mapped))
    }

    /// Whether any region contains some of these addresses.
    pub(crate) fn meet(&self, start: usize, length: usize) -> bool {
        let regions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        regions
            .iter()
            .any(|mapped| start < mapped.start + mapped.length && mapped.start < start.saturating_add(length))
    }

    pub(crate) fn insert(&self, mapped: Arc<MappedRegion>) {
        let mut regions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let index = regions.partition_point(|other| other.start < mapped.start);
        regions.insert(index, mapped);
    }

    /// Removes the region that begins at `start` and has this length. A region in use is never removed even
    /// briefly, because another thread's range would then be refused: ranges begin with [`Regions::find`],
    /// which waits.
    pub(crate) fn take(&self, start: usize, length: usize) -> Result<MappedRegion, TakeRegionError> {
        let mut regions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let index = whole(&regions, start, length)?;
        if regions[index].region.open_transactions() > 0 {
            return Err(TakeRegionError::InUse);
        }
        Arc::try_unwrap(regions.remove(index)).map_err(|shared| {
            regions.insert(index, shared);
            TakeRegionError::InUse
        })
    }

    /// Removes the regions with these addresses and lengths: all of them or, if one is missing or not idle,
    /// none. No thread finds a region here while `idle` checks it.
    pub(crate) fn take_several(
        &self,
        spans: &[AddressSpan],
        idle: impl Fn(&Arc<MappedRegion>) -> bool,
    ) -> Result<Vec<Arc<MappedRegion>>, (TakeRegionError, AddressSpan)> {
        let mut regions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for span in spans {
            let index = whole(&regions, span.0, span.1).map_err(|why| (why, *span))?;
            if !idle(&regions[index]) {
                return Err((TakeRegionError::InUse, *span));
            }
        }
        let wanted = |mapped: &mut Arc<MappedRegion>| spans.contains(&(mapped.start, mapped.length));
        Ok(regions.extract_if(.., wanted).collect())
    }

    /// Removes all regions.
    pub(crate) fn take_all(&self) -> Vec<Arc<MappedRegion>> {
        std::mem::take(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Index of the region that begins at `start` and has this length.
fn whole(regions: &[Arc<MappedRegion>], start: usize, length: usize) -> Result<usize, TakeRegionError> {
    let index = last_from(regions, start).ok_or(TakeRegionError::NoRegion)?;
    let mapped = &regions[index];
    if mapped.start == start && mapped.length == length {
        return Ok(index);
    }
    match mapped.offset(start, length) {
        Some(_) => Err(TakeRegionError::Part),
        None => Err(TakeRegionError::NoRegion),
    }
}

/// Index of the last region that begins at or below `address`.
fn last_from(regions: &[Arc<MappedRegion>], address: usize) -> Option<usize> {
    regions
        .partition_point(|mapped| mapped.start <= address)
        .checked_sub(1)
}
