//! The records of a database's journal.

use netram_proto::id::Lsn;
use netram_proto::port::RecordKind;

use crate::rng::Rng;

/// Bytes of a record's header.
pub(super) const RECORD_BYTES: u64 = 8;

/// Records of one journal.
#[derive(Clone, Debug, Default)]
pub(super) struct JournalContents {
    pub(super) records: Vec<(Lsn, RecordKind, Vec<u8>)>,
    pub(super) head: Lsn,
    pub(super) tail: Lsn,
    pub(super) durable: Lsn,
    /// Whether the journal failed. Then nothing is held until it is opened anew.
    pub(super) broken: bool,
}

impl JournalContents {
    /// Reduces the journal to the records that recovery finds.
    pub(super) fn recover(&mut self, rng: &mut Rng) {
        let held = { self.records.iter() }
            .filter(|(lsn, ..)| *lsn < self.durable)
            .count();
        let more = rng.index(self.records.len() - held + 1);
        self.records.truncate(held + more);
        let end =
            |(lsn, _, payload): &(Lsn, RecordKind, Vec<u8>)| Lsn(lsn.0 + RECORD_BYTES + payload.len() as u64);
        self.tail = self.records.last().map_or(self.head, end).max(self.head);
        self.durable = self.tail;
        self.broken = false;
    }
}
