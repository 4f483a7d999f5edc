//! Orphan journals of earlier processes on a machine's disk. They are recovered as the node's own library
//! does it, from local log and members in an epoch of their own, offered to the server, and removed once it
//! has all of them.

use netram_proto::id::{JournalId, WriterId};
use netram_proto::journal::{AssembleOptions, ForgetNotice, LogFile, Recovery, SlotPair, View, assemble};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::Time;
use netram_shared_machine::message::OrphanJournalId;
use netram_shared_machine::{NodeId, RecordNumber};

use super::World;
use super::bytes::PayloadBytes;
use super::journal::{RegionJournal, RegionJournalFiles};
use super::member_query::{ALL_MEMBERS_WAIT, QUERY_TIMEOUT, QueryKind, QueryOwner, ReadOutcome};

/// A record number that no node has.
pub(super) const NEVER: RecordNumber = RecordNumber(u64::MAX);

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Unread,
    Asking,
    /// Its records with the number of the first, and how often it was offered.
    Read(RecordNumber, Vec<PayloadBytes>),
    /// The server needs nothing of it. Its lenders are told that it is over, then it is removed.
    Over,
}

pub(super) struct RegionOrphan {
    pub(super) node: NodeId,
    id: JournalId,
    files: RegionJournalFiles,
    /// The record before the beginning of the log.
    before: RecordNumber,
    state: State,
    retry_at: Time,
}

impl RegionOrphan {
    pub(super) fn from_journal(node: NodeId, journal: &RegionJournal) -> RegionOrphan {
        RegionOrphan {
            node,
            id: journal.id,
            files: journal.files.clone(),
            before: journal.trimmed,
            state: State::Unread,
            retry_at: Time(0),
        }
    }

    /// Handles the end of the process that read it.
    pub(super) fn interrupt(&mut self) {
        self.state = State::Unread;
    }
}

impl World {
    /// Reads orphan journals, and offers those that were read.
    pub(super) fn offer_orphans(&mut self, slot: usize) {
        let now = self.now;
        let due =
            |left: &RegionOrphan| left.retry_at <= now && !matches!(left.state, State::Asking | State::Over);
        let Some(at) = self.slots[slot].orphans.iter().position(due) else {
            return;
        };
        self.slots[slot].orphans[at].retry_at = now + self.profile.offer_interval;
        // No one needs the journal of a node that is gone, and one whose members are fenced cannot be opened.
        let node = self.slots[slot].orphans[at].node;
        if let Some(process) = &mut self.slots[slot].process {
            process.node.ask_outcome(node, NEVER);
        }
        match &self.slots[slot].orphans[at].state {
            State::Unread => self.open_orphan(slot, at),
            State::Read(first, records) => {
                let last = RecordNumber(first.0 + records.len() as u64 - 1);
                let RegionOrphan { node, id, .. } = self.slots[slot].orphans[at];
                let old = OrphanJournalId { node, journal: id };
                if let Some(process) = &mut self.slots[slot].process {
                    process.node.offer_orphan(old, last);
                    self.coverage.hit("region: journals offered");
                }
            }
            State::Asking | State::Over => (),
        }
    }

    /// Handles the server's durable statement that it needs nothing of this node's journal. A process that
    /// stood still may have joined a lender after the server told that lender that the node is gone, if the
    /// lender lost its memory in between.
    pub(super) fn orphan_is_over(&mut self, slot: usize, node: NodeId) {
        let Some(life) = self.slots[slot].process.as_ref().map(|process| process.life) else {
            return;
        };
        let lenders: Vec<String> = (0..self.machines.len())
            .map(|index| format!("l{index}"))
            .collect();
        let mut its = self.slots[slot].orphans.iter_mut();
        let Some(left) = its.find(|left| left.node == node && left.state != State::Over) else {
            return;
        };
        let begun = left.state == State::Asking;
        left.state = State::Over;
        let id = left.id;
        let Ok((_, payload)) = SlotPair::open(&left.files.view(), View::MAGIC, SLOT_BYTES) else {
            return self.orphan_is_told(slot, id, true);
        };
        if begun {
            self.stop_queries_about(id);
        }
        let view = View::decode(&payload).expect("what was stored");
        let talk = QueryKind::Forget(ForgetNotice::deleted(
            id,
            (view.epoch, view.writer),
            ForgetNotice::ALL,
            &lenders,
        ));
        self.start_query(talk, QueryOwner::Orphan { slot, life }, slot, &view);
    }

    /// Handles the end of telling the lenders. `all`: every one was told. The others may keep a window until
    /// their operator frees it.
    pub(super) fn orphan_is_told(&mut self, slot: usize, journal: JournalId, all: bool) {
        self.slots[slot].orphans.retain(|left| left.id != journal);
        self.coverage.hit("region: journals left that were removed");
        if !all {
            self.pending_forgets.insert(journal);
        }
    }

    fn open_orphan(&mut self, slot: usize, at: usize) {
        let who = WriterId(self.rng.draw());
        let now = self.now;
        let Some(life) = self.slots[slot].process.as_ref().map(|process| process.life) else {
            return;
        };
        let left = &mut self.slots[slot].orphans[at];
        let file = left.files.view();
        let Ok((mut slots, payload)) = SlotPair::open(&file, View::MAGIC, SLOT_BYTES) else {
            return;
        };
        let view = View::decode(&payload).expect("what was stored").claimed(who);
        slots.store(&file, &view.encode()).expect("a healthy disk");
        let (log, _, superblock) = LogFile::open(left.files.log()).expect("a log");
        let limit = superblock.head.lsn.plus(log.capacity());
        let local = log.scan(superblock.head, limit, &mut |_| true);
        left.state = State::Asking;
        let recovery = Recovery::new(
            &view,
            view.epoch,
            view.writer,
            local.end.lsn,
            now,
            ALL_MEMBERS_WAIT,
            QUERY_TIMEOUT,
        );
        self.start_query(
            QueryKind::Read(recovery),
            QueryOwner::Orphan { slot, life },
            slot,
            &view,
        );
    }

    /// Handles the members' answers about an orphan journal.
    pub(super) fn orphan_is_read(
        &mut self,
        slot: usize,
        journal: JournalId,
        (verdict, windows): ReadOutcome,
    ) {
        let mut its = self.slots[slot].orphans.iter_mut();
        let Some(left) = its.find(|left| left.id == journal) else {
            return;
        };
        left.state = State::Unread;
        if let Err(refusal) = verdict {
            self.coverage
                .hit("region: journals left that could not be opened");
            return self.tell(|| format!("slot {slot} cannot open a journal: {refusal}"));
        }
        let (log, mut slots, mut superblock) = LogFile::open(left.files.log()).expect("a log");
        let limit = superblock.head.lsn.plus(log.capacity());
        let local = log.scan(superblock.head, limit, &mut |_| true);
        let view = left.files.view();
        let (_, payload) = SlotPair::open(&view, View::MAGIC, SLOT_BYTES).expect("a view");
        let view = View::decode(&payload).expect("what was stored");
        let known = AssembleOptions {
            proof: superblock.stable.max(view.base),
            limit,
            accept_loss: false,
            local_durable: None,
        };
        let taken = assemble(&log, &local, &windows, known, FaultSwitch::NONE, &mut |_| true);
        let taken = taken.expect("a disk that loses nothing but what was not synced");
        superblock.stable = taken.end.lsn;
        log.store(&mut slots, &superblock).expect("a healthy disk");
        let mut records = Vec::new();
        log.scan(superblock.head, taken.end.lsn, &mut |record| {
            records.push(PayloadBytes::from(record.payload()));
            true
        });
        let (node, first) = (left.node, left.before.next());
        left.state = State::Read(first, records.clone());
        left.retry_at = Time(0);
        self.coverage.hit("region: journals left that were opened");
        if taken.records_from_members > 0 {
            self.coverage
                .hit("region: journals left whose members had more than the disk");
        }
        self.check_orphan(node, first, &records);
    }

    /// Handles the server's answer to an offer.
    pub(super) fn on_wanted(&mut self, slot: usize, node: NodeId, from: Option<RecordNumber>) {
        let Some(at) = self.slots[slot].orphans.iter().position(|left| left.node == node) else {
            return;
        };
        let Some(from) = from else {
            // The server answers so too if it only has all offered records. The outcome of a record that
            // never existed shows that no more will come.
            if let Some(process) = &mut self.slots[slot].process {
                process.node.ask_outcome(node, NEVER);
            }
            return;
        };
        let State::Read(first, records) = self.slots[slot].orphans[at].state.clone() else {
            return;
        };
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        // The server has the records that are no longer in the log, or has lost them and reads them from the
        // members.
        for (index, payload) in records.into_iter().enumerate() {
            let number = RecordNumber(first.0 + index as u64);
            if number >= from && from >= first {
                process.node.send_orphan_record(node, number, payload);
            }
        }
        self.run_actions(slot);
    }
}
