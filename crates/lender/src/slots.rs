//! The slots that no journal uses: empty ones, and those of journals that may be forgotten.
//!
//! A journal that may be forgotten
//! ([`MemberState::may_be_forgotten`](netram_proto::member::MemberState::may_be_forgotten)) is remembered
//! while there is room. An old writer that wakes up is then refused and gets no memory. When no slot is
//! empty, a new journal takes the slot of one that is over, or else of one that was closed completely, or
//! else of one that was fenced and never had a window here, the oldest first. Nodes can therefore join a
//! region, and logs be created and removed, any number of times, and fences alone fill no lender.

use std::collections::VecDeque;

use netram_proto::id::JournalId;

use crate::slot::{Slot, SlotState};

/// A journal that may be forgotten, and the slot that remembers it.
struct Idle {
    slot: Slot,
    state: SlotState,
}

/// The pool of slots that no journal uses.
#[derive(Default)]
pub(crate) struct SlotPool {
    empty: Vec<Slot>,
    /// Slots of journals that are over, the oldest first.
    retired: VecDeque<Idle>,
    /// Slots of journals that were closed completely, the oldest first.
    closed: VecDeque<Idle>,
    /// Slots of journals that were fenced and never had a window, the oldest first.
    unused: VecDeque<Idle>,
}

impl SlotPool {
    /// A pool of empty slots; the first is taken first.
    pub(crate) fn all_empty(mut slots: Vec<Slot>) -> SlotPool {
        slots.reverse();
        SlotPool {
            empty: slots,
            ..SlotPool::default()
        }
    }

    /// Adds an empty slot.
    pub(crate) fn give_empty(&mut self, slot: Slot) {
        self.empty.push(slot);
    }

    /// Adds the slot of a journal that may be forgotten, with its saved state.
    pub(crate) fn give_idle(&mut self, slot: Slot, state: SlotState) {
        let idle = match (state.member.ended, state.member.closed) {
            (true, _) => &mut self.retired,
            (false, true) => &mut self.closed,
            (false, false) => &mut self.unused,
        };
        idle.push_back(Idle { slot, state });
    }

    /// Number of slots available to new journals.
    pub(crate) fn free(&self) -> usize {
        self.empty.len() + self.retired.len() + self.closed.len() + self.unused.len()
    }

    /// A slot for a journal, with its saved state if it is this journal's own; `None` if all are in use.
    ///
    /// Examines each journal that may be forgotten: at most 65,536, once when a journal's first session
    /// begins.
    pub(crate) fn take(&mut self, journal: JournalId) -> Option<(Slot, Option<SlotState>)> {
        for idle in [&mut self.retired, &mut self.closed, &mut self.unused] {
            if let Some(at) = idle.iter().position(|idle| idle.state.journal == journal) {
                let own = idle.remove(at)?;
                return Some((own.slot, Some(own.state)));
            }
        }
        if let Some(slot) = self.empty.pop() {
            return Some((slot, None));
        }
        let mut idle = [&mut self.retired, &mut self.closed, &mut self.unused].into_iter();
        let mut slot = idle.find_map(VecDeque::pop_front)?.slot;
        slot.clear();
        Some((slot, None))
    }
}
