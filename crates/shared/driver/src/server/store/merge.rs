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

/// A node's record, checked as far as it can be without knowing what came before: what it says holds
/// together, and all its bytes are under the locks that it wrote.
#[derive(Clone, Debug)]
pub struct VerifiedRecord<'a> {
    /// Which versions it makes, which it had read.
    pub stamp: Stamp,
    changes: RecordChanges<'a>,
}

/// Why a payload is no record of the region. Its node errs, or lies: fence it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// No record at all.
    #[error("it is no record: {0}")]
    Record(#[from] RecordDecodeError),
    /// Another kind of record.
    #[error("records of kind {0} are none of a region")]
    Kind(u8),
    /// No stamp.
    #[error("its stamp is none: {0}")]
    Stamp(#[from] StampError),
    /// Something behind the stamp.
    #[error("its stamp goes on behind its end")]
    Long,
    /// A lock that the region has not.
    #[error("it names lock {0}, which the region does not have")]
    Lock(LockId),
    /// Another segment.
    #[error("it changes segment {found}; the region is segment {expected}")]
    Segment {
        /// The region's.
        expected: u32,
        /// The record's.
        found: u32,
    },
    /// A byte that is under none of its locks.
    #[error("it changes the byte at {offset}, which is under none of the locks that it wrote")]
    Outside {
        /// Where.
        offset: u64,
    },
}

/// Why a record was not merged. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The record is none.
    #[error("record {number} of node {node} is refused: {cause}")]
    Record {
        /// Whose.
        node: NodeId,
        /// Which.
        number: RecordNumber,
        /// Why.
        cause: PayloadError,
    },
    /// No such node, or one that is gone.
    #[error("record {number} of node {node} is refused: there is no such node")]
    NoNode {
        /// Whose.
        node: NodeId,
        /// Which.
        number: RecordNumber,
    },
    /// Not the node's next.
    #[error("record {number} of node {node} is refused: {expected} has to come")]
    Number {
        /// Whose.
        node: NodeId,
        /// What came.
        number: RecordNumber,
        /// What has to come.
        expected: RecordNumber,
    },
    /// A version that does not follow.
    #[error(
        "record {number} of node {node} is refused: it says version {says} of lock {lock}, which stands at {stands}"
    )]
    Version {
        /// Whose.
        node: NodeId,
        /// Which.
        number: RecordNumber,
        /// The lock.
        lock: LockId,
        /// The version that it makes, or had read.
        says: LockVersion,
        /// Where the lock stands.
        stands: LockVersion,
    },
    /// The log did not take it. Stop; what is durable is there at the next start.
    #[error("the server's log does not take a record: {0}")]
    Log(ForeignError),
    /// An earlier change failed. Stop.
    #[error("the server's log has failed before; start it again")]
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
    /// Checks a record's payload against a region's spans; `segment` is the region's number in records.
    ///
    /// A nanosecond or two a range.
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
    /// Checks a node's record before its turn has come.
    pub fn check<'a>(&self, payload: &'a [u8]) -> Result<VerifiedRecord<'a>, PayloadError> {
        VerifiedRecord::check(payload, &self.table.spans, self.region.segment_number())
    }

    /// The longest payload that one record of the log surely takes, with what the table says of it.
    pub fn payload_bytes_max(&self) -> usize {
        const TABLE_BYTES: usize = STAMP_LOCKS_MAX * 32 + 4096;
        self.memory.log().state().payload_max.saturating_sub(TABLE_BYTES)
    }

    /// Makes a node's record part of the region: its bytes, the versions that it makes, its number, where it
    /// `ends` in its journal (`None`: it was read there, or offered) and its position are one record of the
    /// log. On an error nothing has changed.
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
        said.expect("a stamp leaves room for whose it is (history.rs)");
        let mut write = |offset, bytes: &[u8]| {
            let written = transaction.write(&self.words, offset, bytes);
            written.expect("the table's places are inside its segment");
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
        let ticket = commit.ticket.expect("the server's home has no spool");
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

    /// The node's place among the table's nodes, if the record is its next and comes after everything that it
    /// depends on.
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
        // Others may have written since it had read: that does not touch what it wrote.
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

    /// Whether records of the node come from its journal now, and not from itself.
    pub fn is_fencing(&self, node: NodeId) -> bool {
        let known = self.table.node(node);
        known.is_some_and(|node| node.state == NodeEntryState::Fencing)
    }
}
