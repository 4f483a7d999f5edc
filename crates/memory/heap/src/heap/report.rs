//! Reports on a heap: statistics, and a check of its bytes.

use super::Heap;
use crate::check::{HeapReport, inspect_in};
use crate::class::RUNS;
use crate::error::{HeapDamage, HeapOpenError};
use crate::layout::page_at;
use crate::limit::PAGE_BYTES;
use crate::stats::{ClassStats, HeapStats};

impl Heap {
    /// Statistics of the heap. The first call after an opening reads the states of all runs, one page each.
    /// On a shared region they date from the heap's last use under its lock ([`Heap::catch_up`]).
    ///
    /// # Errors
    ///
    /// [`HeapDamage`] if a run read for the statistics is damaged.
    pub fn statistics(&self) -> Result<HeapStats, HeapDamage> {
        let state = &mut *self.inner.lock();
        self.inner.read_all(state)?;
        let geometry = self.inner.geometry;
        let mut statistics = HeapStats {
            bytes: geometry.bytes(),
            bytes_usable: page_at(geometry.usable()),
            bytes_free_pages: state.lists.free.total() * PAGE_BYTES as u64,
            largest_free: page_at(state.lists.free.largest()),
            free_extents: state.lists.free.extents() as u64,
            counts: state.counts,
            ..HeapStats::default()
        };
        let mut in_runs = 0;
        for (run, count) in RUNS.iter().zip(state.lists.runs.count()) {
            if count.runs == 0 {
                continue;
            }
            let class = ClassStats {
                bytes: run.bytes.into(),
                runs: count.runs,
                slots: count.runs * u64::from(run.slots),
                free: count.free_slots,
            };
            in_runs += class.runs * page_at(run.pages);
            statistics.bytes_taken += (class.slots - class.free) * class.bytes;
            statistics.bytes_free_slots += class.free * class.bytes;
            statistics.classes.push(class);
        }
        statistics.bytes_overhead = in_runs - statistics.bytes_taken - statistics.bytes_free_slots;
        let large = statistics.bytes_usable - statistics.bytes_free_pages - in_runs;
        statistics.bytes_taken_large = large;
        statistics.bytes_taken += large;
        statistics.large_blocks = self.inner.count_extents()?;
        Ok(statistics)
    }

    /// Checks the whole heap: header, table, every run. See [`crate::inspect`].
    ///
    /// Changes of open transactions count as made. Waits for calls in progress.
    ///
    /// # Errors
    ///
    /// The first damage found, as [`HeapOpenError`].
    pub fn check(&self) -> Result<HeapReport, HeapOpenError> {
        let _state = self.inner.lock();
        inspect_in(
            &self.inner.slice,
            self.inner.slice.len() as u64,
            self.inner.geometry.origin,
        )
    }
}

impl super::Inner {
    fn count_extents(&self) -> Result<u64, HeapDamage> {
        let mut count = 0;
        super::scan(&self.slice, self.geometry, &mut |found| {
            count += u64::from(matches!(found, super::ScanItem::Extent { .. }));
        })?;
        Ok(count)
    }
}
