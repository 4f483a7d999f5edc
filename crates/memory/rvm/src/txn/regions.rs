//! The regions that one transaction touches, found by address in logarithmic time.

use std::sync::Arc;

use crate::region::RegionMapping;

/// The regions of one transaction. Keeps its memory when drained.
#[derive(Debug, Default)]
pub(crate) struct TouchedRegions {
    /// Regions in the order of their first use; ranges refer to them by index in this list.
    pub(crate) list: Vec<Arc<RegionMapping>>,
    /// Indexes into `list`, in order of address: the order in which a commit takes their locks.
    order: Vec<u32>,
}

impl TouchedRegions {
    /// The index of `mapping` in the list; `Err` is the position at which it would be entered.
    pub(crate) fn find(&self, mapping: &RegionMapping) -> Result<u32, usize> {
        let found = self.search(mapping.address())?;
        Ok(self.order[found])
    }

    /// Enters a mapping that [`TouchedRegions::find`] did not find, at the position it returned. Returns its
    /// index.
    pub(crate) fn enter(&mut self, mapping: &Arc<RegionMapping>, position: usize) -> u32 {
        // Bounded by the most regions of a transaction.
        let index = self.list.len() as u32;
        self.list.push(mapping.clone());
        self.order.insert(position, index);
        index
    }

    /// The region at `position` in order of address, if there is one.
    pub(crate) fn at(&self, position: usize) -> Option<&RegionMapping> {
        let index = self.order.get(position)?;
        Some(&self.list[*index as usize])
    }

    /// The position in order of address of a region that is in the list.
    pub(crate) fn position(&self, address: usize) -> usize {
        self.search(address).expect("the region was entered")
    }

    /// Releases all regions, one after the other.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Arc<RegionMapping>> {
        self.order.clear();
        self.list.drain(..)
    }

    fn search(&self, address: usize) -> Result<usize, usize> {
        let key = |index: &u32| self.list[*index as usize].address();
        self.order.binary_search_by_key(&address, key)
    }
}
