//! Finding undeclared stores: the mistake in RVM programs that shows only after a restart.
//!
//! A *shadow* holds the region as it was logged. A commit compares it with memory that may have changed; a
//! differing byte that no open transaction has declared was stored without a declaration.

use std::collections::BTreeMap;
use std::sync::Mutex;

use netram_proto::port::IoError;

use super::{ByteRun, compare, copy_page, extent};
use crate::error::CaptureError;
use crate::limit::UNDECLARED_MAX;
use crate::memory::{PAGE, PageTrap, PageWatch, RegionMemory};
use crate::sync::lock;

/// The reaction of a commit to undeclared stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyMode {
    /// They are kept for [`crate::Region::take_undeclared`]; the commit goes on without them.
    Report,
    /// They are kept too, and the commit fails with `RvmCommitError::Undeclared`. It can be retried after
    /// they are declared.
    Refuse,
}

/// State shared by the transactions of a verified region.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) refuses: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    // Declared before the shadow, because the signal handler must be gone before the shadow is.
    finder: Finder,
    shadow: RegionMemory,
    /// Pages that were taken from the finder and may still differ from the shadow.
    suspects: Vec<usize>,
    /// Ranges that open transactions have declared, by transaction number.
    open: BTreeMap<u64, Vec<ByteRun>>,
    numbers: u64,
    /// Undeclared stores that were not taken yet, as offset in the region and length.
    undeclared: Vec<ByteRun>,
}

/// The mechanism that finds the pages that were stored to.
#[derive(Debug)]
enum Finder {
    Watch(PageWatch),
    Trap(PageTrap),
    /// No mechanism: every page is compared.
    All,
}

impl Verifier {
    /// Starts watching `memory` with the cheapest mechanism available.
    pub(crate) fn new(memory: &RegionMemory, verify: VerifyMode) -> Result<Verifier, CaptureError> {
        let length = memory.len().next_multiple_of(PAGE);
        let mut shadow = RegionMemory::reserve(length).map_err(|cause| CaptureError::System { cause })?;
        let finder = match memory.is_mapped() && rustix::param::page_size() == PAGE {
            false => Finder::All,
            true => match PageWatch::new(memory) {
                Ok(watch) => Finder::Watch(watch),
                Err(_) => PageTrap::new(memory, &shadow).map_or(Finder::All, |trap| {
                    // The shadow is complete without copies by the handler.
                    trap.set_copies(false);
                    Finder::Trap(trap)
                }),
            },
        };
        (0..memory.len().div_ceil(PAGE)).for_each(|page| copy_page(memory, &mut shadow, page));
        Ok(Verifier {
            refuses: verify == VerifyMode::Refuse,
            state: Mutex::new(State {
                finder,
                shadow,
                suspects: Vec::new(),
                open: BTreeMap::new(),
                numbers: 0,
                undeclared: Vec::new(),
            }),
        })
    }

    /// Enters a transaction; returns its number.
    pub(crate) fn enter(&self) -> u64 {
        let mut state = lock(&self.state);
        state.numbers += 1;
        let number = state.numbers;
        state.open.insert(number, Vec::new());
        number
    }

    pub(crate) fn declared(&self, number: u64, offset: usize, length: usize) {
        let mut state = lock(&self.state);
        let ranges = state.open.get_mut(&number);
        ranges
            .expect("the transaction has entered")
            .push((offset, length));
    }

    /// Finds and remembers undeclared stores. Returns the first and the number of them.
    pub(crate) fn check(&self, memory: &RegionMemory) -> Result<Option<(ByteRun, usize)>, IoError> {
        let state = &mut *lock(&self.state);
        let mut found = state.find(memory)?;
        let first = found.first().map(|first| (*first, found.len()));
        if !self.refuses {
            // Each store is reported once; a refused commit finds it again until it is declared.
            found.iter().for_each(|run| state.show(memory, *run));
        }
        let room = UNDECLARED_MAX.saturating_sub(state.undeclared.len());
        found.retain(|run| !state.undeclared.contains(run));
        state.undeclared.extend(found.into_iter().take(room));
        Ok(first)
    }

    /// Restores bytes that were stored without a declaration.
    pub(crate) fn undo(&self, memory: &mut RegionMemory) -> Result<(), IoError> {
        let state = &mut *lock(&self.state);
        let mut bytes = [0; PAGE];
        for (offset, length) in state.find(memory)? {
            // A run is no longer than a page.
            state.shadow.copy_out(offset, &mut bytes[..length]);
            memory.copy_in(offset, &bytes[..length]);
        }
        Ok(())
    }

    /// Ends a transaction: from now on its declared bytes are as they should be, logged or not.
    pub(crate) fn leave(&self, number: u64, memory: &RegionMemory) {
        let state = &mut *lock(&self.state);
        for run in state.open.remove(&number).unwrap_or_default() {
            state.show(memory, run);
        }
    }

    /// Accepts bytes that the library itself has stored.
    pub(crate) fn stored(&self, memory: &RegionMemory, offset: usize, length: usize) {
        lock(&self.state).show(memory, (offset, length));
    }

    /// Takes the undeclared stores found since the last call, as offset in the region and length.
    pub(crate) fn take_undeclared(&self) -> Vec<ByteRun> {
        std::mem::take(&mut lock(&self.state).undeclared)
    }
}

impl State {
    /// Undeclared stores, in order.
    fn find(&mut self, memory: &RegionMemory) -> Result<Vec<ByteRun>, IoError> {
        match &self.finder {
            Finder::Watch(watch) => watch.take(&mut self.suspects)?,
            Finder::Trap(trap) => trap.take(&mut self.suspects)?,
            Finder::All => self.suspects.extend(0..memory.len().div_ceil(PAGE)),
        }
        self.suspects.sort_unstable();
        self.suspects.dedup();
        let mut declared: Vec<ByteRun> = self.open.values().flatten().copied().collect();
        declared.sort_unstable();
        let mut found = Vec::new();
        self.suspects.retain(|page| {
            let start = extent(memory, *page).0;
            let mut differs = false;
            compare(memory, &self.shadow, *page, |at, count| {
                differs = true;
                subtract(start + at, start + at + count, &declared, &mut found);
            });
            differs
        });
        Ok(found)
    }

    /// Copies these bytes from memory to the shadow.
    fn show(&mut self, memory: &RegionMemory, (offset, length): ByteRun) {
        let mut bytes = [0; PAGE];
        for at in (offset..offset + length).step_by(PAGE) {
            let bytes = &mut bytes[..PAGE.min(offset + length - at)];
            memory.copy_out(at, bytes);
            self.shadow.copy_in(at, bytes);
        }
    }
}

/// Adds the parts of `from..to` that no sorted range covers to `left`.
fn subtract(from: usize, to: usize, ranges: &[ByteRun], left: &mut Vec<ByteRun>) {
    let mut at = from;
    // Sorted by their starts. A long range may begin much earlier, so all ranges before `to` are checked.
    for (offset, length) in ranges.iter().take_while(|(offset, _)| *offset < to) {
        if offset + length <= at {
            continue;
        }
        if *offset > at {
            left.push((at, offset - at));
        }
        at = offset + length;
        if at >= to {
            return;
        }
    }
    left.push((at, to - at));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_remainder_is_exactly_the_uncovered_bytes(
            from in 0usize..50, length in 1usize..50,
            mut ranges in proptest::collection::vec((0usize..100, 1usize..30), 0..8),
        ) {
            ranges.sort_unstable();
            let mut left = Vec::new();
            subtract(from, from + length, &ranges, &mut left);
            let left: Vec<usize> = left.iter().flat_map(|(at, count)| *at..at + count).collect();
            let has = |at: usize| ranges.iter().any(|(offset, length)| (*offset..offset + length).contains(&at));
            let expected: Vec<usize> = (from..from + length).filter(|at| !has(*at)).collect();
            prop_assert_eq!(left, expected);
        }
    }
}
