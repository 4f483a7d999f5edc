//! Applying records of other logs to mapped memory.

use std::sync::{Arc, Weak};

use netram_proto::port::RecordLog;

use crate::error::ForeignError;
use crate::record::{RangeView, RecordChanges, RecordScope};
use crate::region::RegionMapping;
use crate::rvm::Rvm;
use crate::storage::SegmentStorage;
use crate::sync::lock;

impl<L: RecordLog, S: SegmentStorage> Rvm<L, S> {
    /// Stores the changes of another log's record to the regions mapped here, all at once, like
    /// [`Region::apply`](crate::Region::apply): readers that take the regions' locks never see a part of it.
    /// Every range must lie in a region.
    ///
    /// Allocates nothing for a record inside one region.
    ///
    /// # Errors
    ///
    /// [`ForeignError`] if a range lies in no mapped region. No byte was stored.
    pub fn apply(&self, changes: &RecordChanges<'_>) -> Result<(), ForeignError> {
        let RecordScope::Segment { .. } = changes.scope() else {
            return self.apply_to_several(changes);
        };
        let admits = |region: &Arc<RegionMapping>| region.admits(changes).is_ok();
        let only = {
            let regions = lock(&self.shared.regions);
            regions.iter().filter_map(Weak::upgrade).find(admits)
        };
        let Some(region) = only else {
            return self.apply_to_several(changes);
        };
        let mut memory = region.write();
        region.admits(changes)?;
        region.store(&mut memory, changes);
        Ok(())
    }

    fn apply_to_several(&self, changes: &RecordChanges<'_>) -> Result<(), ForeignError> {
        let mut regions: Vec<Arc<RegionMapping>> = {
            let regions = lock(&self.shared.regions);
            regions.iter().filter_map(Weak::upgrade).collect()
        };
        regions.sort_unstable_by_key(|region| (region.segment.index, region.base));
        let mut touched = vec![false; regions.len()];
        for range in changes.ranges() {
            touched[region_of(&regions, &range)?] = true;
        }
        // Locks are taken by address, as a commit takes them.
        let mut order: Vec<usize> = (0..regions.len()).filter(|at| touched[*at]).collect();
        order.sort_unstable_by_key(|at| regions[*at].address());
        let mut held: Vec<_> = regions.iter().map(|_| None).collect();
        for at in order {
            held[at] = Some(regions[at].write());
        }
        for range in changes.ranges() {
            let at = region_of(&regions, &range)?;
            let memory = held[at].as_mut().expect("every touched region is locked");
            regions[at].store_range(memory, &range);
        }
        Ok(())
    }
}

/// Index of the region that contains a whole range, by segment and offset.
fn region_of(regions: &[Arc<RegionMapping>], range: &RangeView<'_>) -> Result<usize, ForeignError> {
    let (segment, offset) = (range.segment, range.offset);
    let behind = regions.partition_point(|region| (region.segment.index, region.base) <= (segment, offset));
    let at = behind
        .checked_sub(1)
        .filter(|at| regions[*at].segment.index == segment);
    let at = at.ok_or(ForeignError::Segment { segment })?;
    let (region_start, region_end) = (regions[at].base, regions[at].base + regions[at].length as u64);
    match range.end() <= region_end {
        true => Ok(at),
        false => Err(ForeignError::OutOfRegion {
            start: offset,
            end: range.end(),
            region_start,
            region_end,
        }),
    }
}
