//! The slots that no journal uses: those that are empty, and those of journals that are over.
//!
//! What is over is remembered as long as there is room: an old writer that wakes up is refused, and nobody lends memory to the dead. When no
//! slot is empty, the journal that has been over for longest is forgotten for one that begins; that costs no acknowledged byte
//! ([`MemberState::may_be_forgotten`](netram_proto::member::MemberState::may_be_forgotten)). So nodes may join a region any number of times.

use std::collections::VecDeque;

use netram_proto::id::JournalId;

use crate::slot::{Slot, SlotState};

/// A journal that is over, and the slot that remembers it.
struct Over {
    slot: Slot,
    state: SlotState,
}

/// The slots that no journal uses.
#[derive(Default)]
pub(crate) struct Slots {
    empty: Vec<Slot>,
    /// Those that have been over for longest come first.
    over: VecDeque<Over>,
}

impl Slots {
    /// All of these are empty; the first is taken first.
    pub(crate) fn all_empty(mut slots: Vec<Slot>) -> Slots {
        slots.reverse();
        let over = VecDeque::new();
        Slots { empty: slots, over }
    }

    /// A slot that holds nothing.
    pub(crate) fn give_empty(&mut self, slot: Slot) {
        self.empty.push(slot);
    }

    /// The slot of a journal that is over, as it was saved.
    pub(crate) fn give_over(&mut self, slot: Slot, state: SlotState) {
        self.over.push_back(Over { slot, state });
    }

    /// A slot for a journal, with what it remembers if it is that journal's own. `None`: all are used.
    ///
    /// Looks at each journal that is over: 65,536 at most, once when a journal's first session begins.
    pub(crate) fn take(&mut self, journal: JournalId) -> Option<(Slot, Option<SlotState>)> {
        if let Some(at) = self.over.iter().position(|over| over.state.journal == journal) {
            let own = self.over.remove(at)?;
            return Some((own.slot, Some(own.state)));
        }
        if let Some(slot) = self.empty.pop() {
            return Some((slot, None));
        }
        let mut slot = self.over.pop_front()?.slot;
        slot.clear();
        Some((slot, None))
    }
}
