//! An orphan journal of an earlier process on a machine's disk. It is recovered as the node's own library
//! does it, from local log and members in an epoch of its own.

use netram_proto::id::{JournalId, WriterId};
use netram_proto::journal::{AssembleOptions, LogFile, PeerWindow, Recovery, SlotPair, View, assemble};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::{NodeId, RecordNumber};

use super::bytes::PayloadBytes;
use super::journal::{RegionJournal, RegionJournalFiles};
use super::queries::{ALL_MEMBERS_WAIT, QUERY_TIMEOUT};

/// A record number that no node has.
pub(super) const NEVER: RecordNumber = RecordNumber(u64::MAX);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OrphanState {
    Unread,
    Asking,
    /// Records of the dead node, with the number of the first.
    Read(RecordNumber, Vec<PayloadBytes>),
    /// The server needs nothing of it. Its lenders are told that it is over, then it is removed.
    Over,
}

pub(super) struct RegionOrphan {
    pub(super) node: NodeId,
    pub(super) id: JournalId,
    files: RegionJournalFiles,
    /// The record before the beginning of the log.
    before: RecordNumber,
    pub(super) state: OrphanState,
    retry_at: Time,
}

impl RegionOrphan {
    pub(super) fn from_journal(node: NodeId, journal: &RegionJournal) -> RegionOrphan {
        RegionOrphan {
            node,
            id: journal.id,
            files: journal.files.clone(),
            before: journal.trimmed,
            state: OrphanState::Unread,
            retry_at: Time(0),
        }
    }

    /// Handles the end of the process that read it.
    pub(super) fn interrupt(&mut self) {
        self.state = OrphanState::Unread;
    }

    /// Whether it is to be read, or offered again.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.retry_at <= now && !matches!(self.state, OrphanState::Asking | OrphanState::Over)
    }

    /// Puts the next attempt off.
    pub(super) fn retry_after(&mut self, now: Time, interval: Nanos) {
        self.retry_at = now + interval;
    }

    /// The view on the disk. `None`: it has none that is valid.
    pub(super) fn view(&self) -> Option<View> {
        let (_, payload) = SlotPair::open(&self.files.view(), View::MAGIC, SLOT_BYTES).ok()?;
        Some(View::decode(&payload).expect("what was stored"))
    }

    /// Claims it for `who`, and begins to ask its members. `None`: it has no valid view.
    pub(super) fn open(&mut self, who: WriterId, now: Time) -> Option<(Recovery, View)> {
        let file = self.files.view();
        let (mut slots, payload) = SlotPair::open(&file, View::MAGIC, SLOT_BYTES).ok()?;
        let view = View::decode(&payload).expect("what was stored").claimed(who);
        slots.store(&file, &view.encode()).expect("a healthy disk");
        let (log, _, superblock) = LogFile::open(self.files.log()).expect("a log");
        let limit = superblock.head.lsn.plus(log.capacity());
        let local = log.scan(superblock.head, limit, &mut |_| true);
        self.state = OrphanState::Asking;
        let recovery = Recovery::new(
            &view,
            view.epoch,
            view.writer,
            local.end.lsn,
            now,
            ALL_MEMBERS_WAIT,
            QUERY_TIMEOUT,
        );
        Some((recovery, view))
    }

    /// Completes the log with the members' windows, and reads it. Returns the number of records that only
    /// members had.
    pub(super) fn read(&mut self, windows: &[PeerWindow]) -> u64 {
        let (log, mut slots, mut superblock) = LogFile::open(self.files.log()).expect("a log");
        let limit = superblock.head.lsn.plus(log.capacity());
        let local = log.scan(superblock.head, limit, &mut |_| true);
        let view = self.view().expect("a view");
        let known = AssembleOptions {
            proof: superblock.stable.max(view.base),
            limit,
            accept_loss: false,
            local_durable: None,
        };
        let taken = assemble(&log, &local, windows, known, FaultSwitch::NONE, &mut |_| true);
        let taken = taken.expect("a disk that loses nothing but what was not synced");
        superblock.stable = taken.end.lsn;
        log.store(&mut slots, &superblock).expect("a healthy disk");
        let mut records = Vec::new();
        log.scan(superblock.head, taken.end.lsn, &mut |record| {
            records.push(PayloadBytes::from(record.payload()));
            true
        });
        self.state = OrphanState::Read(self.before.next(), records);
        self.retry_at = Time(0);
        taken.records_from_members
    }
}
