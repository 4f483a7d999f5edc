//! Merging: a node's record becomes part of the region.

use netram_proto::port::{Durability, RecordLog};
use netram_proto::wire::{ByteReader, ChainPoint};
use netram_rvm::record::{KIND_COMPACT, decode};
use netram_rvm::{ForeignError, RecordChanges, RecordDecodeError, RvmCommitError};
use netram_shared_machine::limit::STAMP_LOCKS_MAX;
use netram_shared_machine::{LockId, LockVersion, NodeId, RecordNumber, Stamp, StampError};
use netram_store::RestoreMode;

use super::{DurableRecord, MergeReceipt, RegionStore, history, leaves_all_as_it_was};
use crate::server::spans::{Spans, first_outside};
use crate::server::table::{COUNTERS_AT, MERGED_AT, NodeEntryState, merged_words};

/// A node's record, checked as far as possible without the records before it: it is consistent, and all its
/// bytes are under the locks that it wrote.
#[derive(Clone, Debug)]
pub struct VerifiedRecord<'a> {
    /// Versions that the record makes, and that it had read.
    pub stamp: Stamp,
    changes: RecordChanges<'a>,
}

/// Defect in a record's payload. Its node is faulty or hostile, and is fenced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The payload is not a record.
    #[error("its payload is not a valid record: {0}")]
    Record(#[from] RecordDecodeError),
    /// The record's kind does not occur in a region.
    #[error("it has kind {0}, which a region's records never have")]
    Kind(u8),
    /// The stamp is invalid.
    #[error("its stamp is invalid: {0}")]
    Stamp(#[from] StampError),
    /// The preamble has bytes after the stamp.
    #[error("its preamble has bytes after the stamp")]
    Long,
    /// The record names a lock that the region does not have.
    #[error("it names lock {0}, which the region does not have")]
    Lock(LockId),
    /// The record changes another segment.
    #[error("it changes segment {found}; the region is segment {expected}")]
    Segment {
        /// Number of the region's segment.
        expected: u32,
        /// Segment number in the record.
        found: u32,
    },
    /// The record changes a byte that is under none of the locks that it wrote.
    #[error("it changes the byte at {offset}, which is under none of the locks that it wrote")]
    Outside {
        /// Offset of the byte in the region.
        offset: u64,
    },
}

/// Reason why a record was not merged. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The record is invalid.
    #[error("record {number} of node {node} is refused: {cause}")]
    Record {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// The defect.
        cause: PayloadError,
    },
    /// The node does not exist, or is gone.
    #[error("record {number} of node {node} is refused: the node does not exist or is gone")]
    NoNode {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
    },
    /// The record is not the node's next one.
    #[error("record {number} of node {node} is refused: record {expected} is the next one")]
    Number {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// Number that has to come next.
        expected: RecordNumber,
    },
    /// A version in the record does not follow the region's versions.
    #[error(
        "record {number} of node {node} is refused: it has version {says} of lock {lock}, which is at {stands} in the region"
    )]
    Version {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// The lock.
        lock: LockId,
        /// Version that the record makes, or had read.
        says: LockVersion,
        /// Version of the lock in the region.
        stands: LockVersion,
    },
    /// The log did not take the record. Stop; durable records are there at the next start.
    #[error("the server's log cannot take a record: {0}")]
    Log(ForeignError),
    /// An earlier change failed. Stop.
    #[error("the server's log has failed before; restart the server")]
    Failed,
}

impl MergeError {
    /// Whether the same record can be merged later: see `RegionStoreError::is_refusal`.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            MergeError::Log(ForeignError::Commit(RvmCommitError::Full { .. }))
        )
    }
}

impl<'a> VerifiedRecord<'a> {
    /// Checks a record's payload against a region's spans. `segment`: the region's number in records. Costs a
    /// nanosecond or two per range.
    ///
    /// # Errors
    ///
    /// [`PayloadError`] for the first defect.
    pub fn check(payload: &'a [u8], spans: &Spans, segment: u32) -> Result<VerifiedRecord<'a>, PayloadError> {
        let changes = decode(KIND_COMPACT, payload)?;
        let mut preamble = ByteReader::new(changes.preamble());
        let stamp = Stamp::decode(&mut preamble)?;
        if !preamble.rest().is_empty() {
            return Err(PayloadError::Long);
        }
        if let Some((lock, _)) = stamp.read.iter().find(|(lock, _)| spans.find(*lock).is_none()) {
            return Err(PayloadError::Lock(*lock));
        }
        let cover = spans.cover(&stamp.written).map_err(PayloadError::Lock)?;
        if let Some(range) = changes.ranges().find(|range| range.segment != segment) {
            return Err(PayloadError::Segment {
                expected: segment,
                found: range.segment,
            });
        }
        let ranges = changes.ranges().map(|range| (range.offset, range.end()));
        match first_outside(&cover, ranges) {
            Some(offset) => Err(PayloadError::Outside { offset }),
            None => Ok(VerifiedRecord { stamp, changes }),
        }
    }
}

impl RegionStore {
    /// Checks a node's record before it can be merged.
    ///
    /// # Errors
    ///
    /// [`PayloadError`] for the first defect.
    pub fn check<'a>(&self, payload: &'a [u8]) -> Result<VerifiedRecord<'a>, PayloadError> {
        VerifiedRecord::check(payload, &self.table.spans, self.region.segment_number())
    }

    /// Longest payload in bytes that one record of the log surely takes, together with the table's changes.
    pub fn payload_bytes_max(&self) -> usize {
        const TABLE_BYTES: usize = STAMP_LOCKS_MAX * 32 + 4096;
        self.memory.log().state().payload_max.saturating_sub(TABLE_BYTES)
    }

    /// Merges a node's record into the region. Its bytes, versions, number, end in its journal and position
    /// are one record of the log. `ends`: where it ends in its journal; `None`: it was read there, or
    /// offered.
    ///
    /// # Errors
    ///
    /// [`MergeError`]; nothing has changed then.
    pub fn merge(
        &mut self,
        node: NodeId,
        number: RecordNumber,
        ends: Option<ChainPoint>,
        payload: &[u8],
    ) -> Result<MergeReceipt, MergeError> {
        let foreign = self
            .check(payload)
            .map_err(|cause| MergeError::Record { node, number, cause })?;
        self.merge_checked(node, number, ends, &foreign)
    }

    /// Merges a record that was [checked](RegionStore::check) when it came.
    ///
    /// # Errors
    ///
    /// [`MergeError`]; nothing has changed then.
    pub fn merge_checked(
        &mut self,
        node: NodeId,
        number: RecordNumber,
        ends: Option<ChainPoint>,
        foreign: &VerifiedRecord<'_>,
    ) -> Result<MergeReceipt, MergeError> {
        if self.failed {
            return Err(MergeError::Failed);
        }
        let index = self.follows(node, number, &foreign.stamp)?;
        let known = &self.table.nodes[index];
        let (marked, end) = match ends {
            Some(end) => (number, end),
            None => (known.marked, known.end),
        };
        let places = self.table.places();
        let position = self.table.counters.position.next();
        let mut transaction = self.memory.begin(RestoreMode::Restore);
        let said = transaction.set_preamble(&history::preamble(node, number, position, &foreign.changes));
        said.expect("a stamp leaves room for the record's origin (history.rs)");
        let mut write = |offset, bytes: &[u8]| {
            let written = transaction.write(&self.words, offset, bytes);
            written.expect("the table's entries are inside its segment");
        };
        write(COUNTERS_AT, &position.0.to_le_bytes());
        write(
            places.node(self.table.nodes[index].slot) + MERGED_AT,
            &merged_words(number, marked, end),
        );
        for (lock, version) in &foreign.stamp.written {
            let place = self.table.spans.find(*lock).expect("the locks were checked");
            write(places.version(place), &version.0.to_le_bytes());
        }
        let commit = transaction.commit_foreign(&self.region, foreign.changes, Durability::Lazy);
        let commit = commit.map_err(|error| {
            self.failed = match &error {
                ForeignError::Commit(error) => !leaves_all_as_it_was(error),
                _ => true,
            };
            MergeError::Log(error)
        })?;
        let ticket = commit.ticket.expect("the server's store has no spool");
        self.log_syncer.request(ticket);
        let known = &mut self.table.nodes[index];
        (known.merged, known.marked, known.end) = (number, marked, end);
        self.note(&foreign.stamp);
        let kept = DurableRecord {
            node,
            number,
            end,
            position,
        };
        self.pending.push_back((ticket.end, kept));
        Ok(MergeReceipt {
            position,
            end: ticket.end,
        })
    }

    /// Index of the node in the table, if the record is its next one and follows all versions that it depends
    /// on.
    fn follows(&self, node: NodeId, number: RecordNumber, stamp: &Stamp) -> Result<usize, MergeError> {
        let index = self.table.nodes.iter().position(|known| known.id == node);
        let index = index.ok_or(MergeError::NoNode { node, number })?;
        let expected = self.table.nodes[index].merged.next();
        if number != expected {
            return Err(MergeError::Number {
                node,
                number,
                expected,
            });
        }
        let stands = |lock: LockId| self.table.version(lock).expect("the locks were checked");
        let written = stamp
            .written
            .iter()
            .find(|(lock, makes)| stands(*lock).next() != *makes);
        // Other nodes may have written since then, which does not affect this record's writes.
        let read = stamp.read.iter().find(|(lock, had)| stands(*lock) < *had);
        match written.or(read) {
            None => Ok(index),
            Some((lock, says)) => Err(MergeError::Version {
                node,
                number,
                lock: *lock,
                says: *says,
                stands: stands(*lock),
            }),
        }
    }

    fn note(&mut self, stamp: &Stamp) {
        self.table.counters.position = self.table.counters.position.next();
        for (lock, version) in &stamp.written {
            if let Some(place) = self.table.spans.find(*lock) {
                self.table.versions.set(place, *version);
            }
        }
    }

    /// Whether the node's records come from its journal now, and not from the node itself.
    pub fn is_fencing(&self, node: NodeId) -> bool {
        let known = self.table.node(node);
        known.is_some_and(|node| node.state == NodeEntryState::Fencing)
    }
}
