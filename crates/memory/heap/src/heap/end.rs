//! The effects of a transaction's end on its steps in the heap.

use netram_rvm::{Participant, TransactionOutcome};

use super::{Inner, PendingSteps, State, Step};
use crate::class::RUNS;
use crate::layout::{PageDescriptor, SLOT_FREE, SLOT_TAKEN, page_at, state_at};

/// Capacity in steps that a reused list keeps.
const STEPS_KEPT: usize = 16 * 1024;

impl Participant for Inner {
    fn ended(&self, note: u64, outcome: TransactionOutcome) {
        let state = &mut *self.lock();
        let index = note as usize;
        let PendingSteps { mut steps, leaves } = std::mem::take(&mut state.open[index]);
        if !steps.is_empty() {
            match outcome {
                TransactionOutcome::Committed => state.counts.committed += 1,
                TransactionOutcome::Aborted => state.counts.aborted += 1,
            }
        }
        match outcome {
            TransactionOutcome::Committed => steps.iter().for_each(|step| state.committed(*step)),
            // Undone newest first, so that the oldest values remain.
            TransactionOutcome::Aborted => steps.iter().rev().for_each(|step| {
                if leaves {
                    self.put_back(*step);
                }
                state.aborted(*step);
            }),
        }
        steps.clear();
        if steps.capacity() <= STEPS_KEPT {
            state.open[index].steps = steps;
        }
        state.vacant.push(note as u16);
    }
}

impl Inner {
    /// Restores in memory what a step overwrote, for a transaction that does not restore.
    fn put_back(&self, step: Step) {
        let state = |page, slot, state: u8| self.slice.put_back(page_at(page) + state_at(slot), &[state]);
        match step {
            Step::TookSlot { page, slot } => state(page, slot, SLOT_FREE),
            Step::FreedSlot { page, slot } => state(page, slot, SLOT_TAKEN),
            Step::TookPages { page, .. } => self.put_descriptor_back(page, PageDescriptor::Empty),
            Step::Carved { page, .. } => self.put_descriptor_back(page, PageDescriptor::Empty),
            Step::GaveBack { page, class } => self.put_descriptor_back(page, PageDescriptor::Run { class }),
            Step::FreedPages { page, pages }
            | Step::Resized {
                page, from: pages, ..
            } => {
                self.put_descriptor_back(page, PageDescriptor::Extent { pages });
            }
        }
    }
}

impl State {
    /// Makes what a committed step freed available: transactions that use it commit later.
    fn committed(&mut self, step: Step) {
        match step {
            Step::TookSlot { page, slot } => self.lists.runs.disown(page, slot),
            Step::FreedSlot { page, slot } => {
                self.lists.runs.disown(page, slot);
                self.lists.runs.give(page, slot);
            }
            Step::TookPages { page, pages } => {
                self.extents.remove(&page);
                self.lists.lengths.set(page, pages);
            }
            Step::FreedPages { page, pages } => {
                self.extents.remove(&page);
                self.lists.lengths.clear(page);
                self.lists.free.give(page, pages);
            }
            Step::Carved { .. } | Step::GaveBack { .. } => {}
            Step::Resized { page, from, to } => {
                self.extents.remove(&page);
                self.lists.lengths.set(page, to);
                if to < from {
                    self.lists.free.give(page + to, from - to);
                }
            }
        }
    }

    /// Makes what an aborted step took available again.
    fn aborted(&mut self, step: Step) {
        match step {
            Step::TookSlot { page, slot } => {
                self.lists.runs.disown(page, slot);
                self.lists.runs.give(page, slot);
            }
            Step::FreedSlot { page, slot } => self.lists.runs.disown(page, slot),
            Step::TookPages { page, pages } => {
                self.extents.remove(&page);
                self.lists.free.give(page, pages);
            }
            Step::FreedPages { page, .. } => drop(self.extents.remove(&page)),
            // All later steps in the run were undone before, so it is empty and its pages are free.
            Step::Carved { page, class } => {
                self.lists.runs.leave(page);
                self.lists.free.give(page, RUNS[usize::from(class)].pages);
            }
            Step::GaveBack { page, class } => {
                let back = self.lists.free.take_at(page, RUNS[usize::from(class)].pages);
                assert!(back, "pages that were given back can be taken again");
                self.lists.runs.add_carved(page, class);
            }
            Step::Resized { page, from, to } => {
                self.extents.remove(&page);
                if to > from {
                    self.lists.free.give(page + from, to - from);
                }
            }
        }
    }
}

// A run's first page and its slots have 32-bit numbers that were checked when the run was entered.
const _: () = assert!(RUNS.len() <= u8::MAX as usize);
