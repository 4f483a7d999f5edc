//! Records sent directly between processes: lost, late, twice, in any order.

use netram_proto::time::Nanos;
use netram_shared_machine::message::{PeerHint as Record, ToPeer};
use netram_shared_machine::node::PeerAction;
use netram_shared_machine::{LockId, LockVersion};

use super::bytes::{self, PayloadBytes};
use super::{RegionRule, SentHint, World, WorldBug};

impl World {
    pub(super) fn on_peer_action(&mut self, slot: usize, straight: PeerAction<PayloadBytes>) {
        // Processes have no links between them here: every running process can be sent to.
        if let PeerAction::Hint(hint) = straight {
            self.history.hints_sent += 1;
            self.send_hint(slot, hint);
        }
    }

    fn send_hint(&mut self, from: usize, mut hint: Record<PayloadBytes>) {
        if self.planted == WorldBug::HintWithoutNeeds {
            hint.needs.clear();
        }
        let message = ToPeer::Hint(hint);
        let mut bytes = Vec::new();
        message.head(&mut bytes);
        bytes.extend_from_slice(message.payload().map_or(&[], |payload| payload));
        for slot in 0..self.slots.len() {
            for _ in 0..2 {
                if slot != from && self.dice.percent(self.fault_rates.hints) {
                    let at = self.now + Nanos::from_us(self.dice.below(20_000));
                    let bytes = bytes.clone();
                    self.hints.push(SentHint { at, slot, bytes });
                }
            }
        }
    }

    /// Sends a process's newest record as a hint, safe or not.
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
                    number: netram_shared_machine::RecordNumber(number),
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
        let ToPeer::Hint(hint) = message.map(PayloadBytes::from) else {
            return;
        };
        let payload = hint.payload.clone();
        let taken = process.node.on_hint(now, hint);
        self.run_actions(slot);
        // A token given back before the records made under it is granted before those are anywhere.
        let planted = self.planted == WorldBug::ReleaseBeforeTail;
        self.history.hints_taken += u64::from(taken);
        if taken && !planted {
            self.check_overwritten(slot, &payload);
        }
    }

    /// Checks, after a hint was applied, that records which had read the overwritten data are there, too.
    /// Otherwise a reader sees a state that no order of the records has.
    fn check_overwritten(&self, slot: usize, payload: &PayloadBytes) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        // Records that wait for a reader are not in the memory yet.
        let has = |lock: &LockId, version: &LockVersion| process.node.version(*lock) >= *version;
        let safe = self.journals.values();
        let safe = safe.flat_map(|journal| &journal.records[..journal.acked]);
        for (lock, makes) in bytes::stamp(payload).written {
            for record in safe.clone() {
                let stamp = bytes::stamp(record);
                let read = stamp.read.contains(&(lock, LockVersion(makes.0 - 1)));
                if read && !stamp.written.iter().all(|(lock, version)| has(lock, version)) {
                    self.fail(
                        RegionRule::Readers,
                        &format!(
                            "slot {slot}: version {makes} of lock {lock} is there, and {stamp:?} is not"
                        ),
                    );
                }
            }
        }
    }
}
