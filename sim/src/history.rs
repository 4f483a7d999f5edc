//! True history of one journal, kept outside the tested code: every byte ever appended that is still part of
//! the log, the ends of its records, and the acknowledged LSN.

use netram_proto::id::Lsn;
use netram_proto::wire::ChainPoint;

/// The reference model of one journal.
#[derive(Clone, Debug, Default)]
pub struct JournalHistory {
    bytes: Vec<u8>,
    /// Where records end, with the chain value there; ascending.
    ends: Vec<ChainPoint>,
    /// The highest LSN that was acknowledged to any program.
    pub acked: Lsn,
    /// The highest LSN that was acknowledged before the platter had it.
    pub acked_by_members: Lsn,
    /// Below this LSN the platter was compared with the bytes and had them.
    pub durable: Lsn,
    /// The head as last made durable.
    pub head: Lsn,
}

impl JournalHistory {
    /// An empty log.
    pub fn new() -> JournalHistory {
        JournalHistory {
            ends: vec![ChainPoint::default()],
            ..JournalHistory::default()
        }
    }

    /// Records an appended record; `end` is the chain point behind it.
    pub fn append(&mut self, record: &[u8], end: ChainPoint) {
        self.bytes.extend_from_slice(record);
        assert_eq!(self.bytes.len() as u64, end.lsn.0);
        self.ends.push(end);
    }

    /// Where the log ends.
    pub fn tail(&self) -> Lsn {
        Lsn(self.bytes.len() as u64)
    }

    /// The bytes from `from` to `to`.
    pub fn bytes(&self, from: Lsn, to: Lsn) -> &[u8] {
        &self.bytes[from.0 as usize..to.0 as usize]
    }

    /// The chain point at `lsn`, if a record ends there.
    pub fn link_at(&self, lsn: Lsn) -> Option<ChainPoint> {
        let at = self.ends.binary_search_by_key(&lsn, |link| link.lsn).ok()?;
        Some(self.ends[at])
    }

    /// Record ends from `from` to `to`.
    pub fn ends_between(&self, from: Lsn, to: Lsn) -> &[ChainPoint] {
        let start = self.ends.partition_point(|link| link.lsn < from);
        let end = self.ends.partition_point(|link| link.lsn <= to);
        &self.ends[start..end]
    }

    /// Drops the records beyond `end`, where recovery found the log to end.
    pub fn rewind(&mut self, end: Lsn) {
        self.bytes.truncate(end.0 as usize);
        let keep = self.ends.partition_point(|link| link.lsn <= end);
        self.ends.truncate(keep);
        self.acked = self.acked.min(end);
        self.acked_by_members = self.acked_by_members.min(end);
        self.durable = self.durable.min(end);
    }
}
