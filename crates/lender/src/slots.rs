//! The slots that no journal uses: those that are empty, and those of journals that may be forgotten.
//!
//! A journal that may be forgotten
//! ([`MemberState::may_be_forgotten`](netram_proto::member::MemberState::may_be_forgotten)) is remembered as
//! long as there is room: an old writer that wakes up is refused, and nobody lends memory to the dead. When
//! no slot is empty, a journal that begins takes one of these: first the slots of journals that are over,
//! then those of journals that were closed whole, the oldest first. So nodes may join a region, and logs may
//! be made and removed, any number of times.

use std::collections::VecDeque;

use netram_proto::id::JournalId;

use crate::slot::{Slot, SlotState};

/// A journal that may be forgotten, and the slot that remembers it.
struct Idle {
    slot: Slot,
    state: SlotState,
}

/// The slots that no journal uses.
#[derive(Default)]
pub(crate) struct SlotPool {
    empty: Vec<Slot>,
    /// Those that have been over for longest come first.
    retired: VecDeque<Idle>,
    /// Of journals that were closed whole. Those that have been closed for longest come first.
    closed: VecDeque<Idle>,
}

impl SlotPool {
    /// All of these are empty; the first is taken first.
    pub(crate) fn all_empty(mut slots: Vec<Slot>) -> SlotPool {
        slots.reverse();
        SlotPool {
            empty: slots,
            ..SlotPool::default()
        }
    }

    /// A slot that holds nothing.
    pub(crate) fn give_empty(&mut self, slot: Slot) {
        self.empty.push(slot);
    }

    /// The slot of a journal that may be forgotten, as it was saved.
    pub(crate) fn give_idle(&mut self, slot: Slot, state: SlotState) {
        let idle = match state.member.ended {
            true => &mut self.retired,
            false => &mut self.closed,
        };
        idle.push_back(Idle { slot, state });
    }

    /// Slots that a journal may have that was never seen.
    pub(crate) fn free(&self) -> usize {
        self.empty.len() + self.retired.len() + self.closed.len()
    }

    /// A slot for a journal, with what it remembers if it is that journal's own. `None`: all are used.
    ///
    /// Looks at each journal that may be forgotten: 65,536 at most, once when a journal's first session
    /// begins.
    pub(crate) fn take(&mut self, journal: JournalId) -> Option<(Slot, Option<SlotState>)> {
        for idle in [&mut self.retired, &mut self.closed] {
            if let Some(at) = idle.iter().position(|idle| idle.state.journal == journal) {
                let own = idle.remove(at)?;
                return Some((own.slot, Some(own.state)));
            }
        }
        if let Some(slot) = self.empty.pop() {
            return Some((slot, None));
        }
        let oldest = self.retired.pop_front().or_else(|| self.closed.pop_front());
        let mut slot = oldest?.slot;
        slot.clear();
        Some((slot, None))
    }
}
