//! Records straight from process to process: lost, late, twice, in any order.

use netram_proto::time::Span;
use netram_shared_machine::message::{Hint as Record, ToPeer};
use netram_shared_machine::node::Straight;
use netram_shared_machine::{LockId, Version};

use super::bytes::{self, P};
use super::{Hint, Planted, Rule, World};

impl World {
    pub(super) fn on_straight(&mut self, slot: usize, straight: Straight<P>) {
        // There are no links between processes here: whoever is there may be sent to.
        if let Straight::Hint(hint) = straight {
            self.book.hinted += 1;
            self.send_hint(slot, hint);
        }
    }

    fn send_hint(&mut self, from: usize, mut hint: Record<P>) {
        if self.planted == Planted::HintWithoutNeeds {
            hint.needs.clear();
        }
        let message = ToPeer::Hint(hint);
        let mut bytes = Vec::new();
        message.head(&mut bytes);
        bytes.extend_from_slice(message.payload().map_or(&[], |payload| payload));
        for slot in 0..self.slots.len() {
            for _ in 0..2 {
                if slot != from && self.dice.percent(self.dangers.hints) {
                    let at = self.now + Span::from_us(self.dice.below(20_000));
                    let bytes = bytes.clone();
                    self.hints.push(Hint { at, slot, bytes });
                }
            }
        }
    }

    /// Sends what the newest record of a process is, safe or not.
    pub(super) fn send_unsafe(&mut self, slot: usize) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        let (journal, id) = (self.journals.get(&process.journal), process.node.id());
        let newest = journal.and_then(|journal| {
            let number = journal.records.len() as u64;
            Some((number, journal.records.last()?.clone()))
        });
        if let (Some(node), Some((number, payload))) = (id, newest) {
            self.send_hint(
                slot,
                Record {
                    node,
                    number: netram_shared_machine::Number(number),
                    needs: Vec::new(),
                    payload,
                },
            );
        }
    }

    pub(super) fn take_hint(&mut self, slot: usize, bytes: &[u8]) {
        let now = self.now;
        let Some(process) = self.slots[slot].awake(now) else {
            return;
        };
        let message = ToPeer::decode(bytes).expect("what a process says is a message");
        let ToPeer::Hint(hint) = message.map(P::from) else {
            return;
        };
        let payload = hint.payload.clone();
        let taken = process.node.on_hint(now, hint);
        self.do_deeds(slot);
        // A token that goes back before the records made under it is given on before those are anywhere.
        let planted = self.planted == Planted::ReleaseBeforeTail;
        self.book.taken += u64::from(taken);
        if taken && !planted {
            self.check_overwritten(slot, &payload);
        }
    }

    /// A hint was taken: whatever had read what it overwrote is there as well. Otherwise a reader sees what no order of the
    /// records ever shows.
    fn check_overwritten(&self, slot: usize, payload: &P) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        // What waits for a reader is not in the memory yet.
        let has = |lock: &LockId, version: &Version| process.node.version(*lock) >= *version;
        let safe = self.journals.values();
        let safe = safe.flat_map(|journal| &journal.records[..journal.acked]);
        for (lock, makes) in bytes::stamp(payload).written {
            for record in safe.clone() {
                let stamp = bytes::stamp(record);
                let read = stamp.read.contains(&(lock, Version(makes.0 - 1)));
                if read && !stamp.written.iter().all(|(lock, version)| has(lock, version)) {
                    self.fail(
                        Rule::Readers,
                        &format!(
                            "slot {slot}: version {makes} of lock {lock} is there, and {stamp:?} is not"
                        ),
                    );
                }
            }
        }
    }
}
