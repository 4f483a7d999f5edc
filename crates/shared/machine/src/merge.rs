//! Merges several journals into one order.
//!
//! Each node's records come in the order of their numbers. A node's next record can be merged when every lock
//! that it wrote stands one version below, and every lock that it read has reached the version read. The
//! versions alone decide this; no knowledge of other journals is needed. Two records that can both be merged
//! wrote under different locks, so either order leads to the same region. If a waiting record had read what
//! another one overwrites, the reader goes first. The order is then one in which the transactions could have
//! run alone. Otherwise the lowest node id goes first, so that a run can be repeated.
//!
//! A lock may stand higher than the version that was read, if the reader's record comes over a slower link.
//! The reader's writes do not depend on the later version; insisting on the exact one would leave records
//! that can never be merged.
//!
//! The same type serves the server and offline merging. At the server a blocked record waits for records of
//! other links. When all journals are complete, a blocked record lacks something, and [`MergeQueue::missing`]
//! names it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;

use super::{LockId, LockVersion, NodeId, RecordNumber, Stamp};
use crate::limit::MERGE_RECORDS_MAX;

/// A record that waits to be merged. `T` is the caller's handle to the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRecord<T> {
    /// Its number in the node's journal.
    pub number: RecordNumber,
    /// The locks that it wrote and read under.
    pub stamp: Stamp,
    /// The caller's handle.
    pub ticket: T,
}

/// A record that has been merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeEntry<T> {
    /// The node that wrote it.
    pub node: NodeId,
    /// The record.
    pub record: QueuedRecord<T>,
}

/// An invalid record. Its sender violates the protocol and is not to be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRecord {
    /// The record's number does not follow the node's last one.
    Number {
        /// Sender of the record.
        node: NodeId,
        /// Number that had to come next.
        expected: RecordNumber,
        /// Number that came.
        found: RecordNumber,
    },
    /// The record makes a version that another record has made: two nodes wrote under one lock at once.
    Version {
        /// Sender of the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// Lock with the conflict.
        lock: LockId,
        /// Version that the lock has already.
        stands: LockVersion,
        /// Version that the record makes.
        makes: LockVersion,
    },
    /// More records of one node wait than a node may have ([`MERGE_RECORDS_MAX`]).
    TooMany {
        /// Sender of the records.
        node: NodeId,
    },
}

impl InvalidRecord {
    /// The node that sent the record.
    pub fn node(&self) -> NodeId {
        match self {
            InvalidRecord::Number { node, .. }
            | InvalidRecord::Version { node, .. }
            | InvalidRecord::TooMany { node } => *node,
        }
    }
}

impl fmt::Display for InvalidRecord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidRecord::Number {
                node,
                expected,
                found,
            } => {
                write!(
                    out,
                    "node {node} sent record {found}, but record {expected} was due"
                )
            }
            InvalidRecord::Version {
                node,
                number,
                lock,
                stands,
                makes,
            } => write!(
                out,
                "record {number} of node {node} makes version {makes} of lock {lock}, which is already at {stands}: two nodes wrote under it at once"
            ),
            InvalidRecord::TooMany { node } => write!(
                out,
                "node {node} sent more than {MERGE_RECORDS_MAX} records that wait for other nodes' records"
            ),
        }
    }
}

impl core::error::Error for InvalidRecord {}

/// The version that blocks a waiting record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingVersion {
    /// Node of the waiting record.
    pub node: NodeId,
    /// Number of the waiting record.
    pub number: RecordNumber,
    /// Lock that is not at the needed version.
    pub lock: LockId,
    /// Version that the record needs.
    pub needs: LockVersion,
    /// Version that the lock has.
    pub stands: LockVersion,
}

impl fmt::Display for MissingVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingVersion {
            node,
            number,
            lock,
            needs,
            stands,
        } = self;
        write!(
            out,
            "record {number} of node {node} needs lock {lock} at version {needs}, but no journal here has a version beyond {stands}"
        )
    }
}

/// Records of one node: the last merged one, and those that wait.
#[derive(Clone, Debug)]
struct NodeLane<T> {
    merged: RecordNumber,
    waiting: VecDeque<QueuedRecord<T>>,
}

impl<T> NodeLane<T> {
    fn last(&self) -> RecordNumber {
        RecordNumber(self.merged.0 + self.waiting.len() as u64)
    }
}

/// Merges the records of all nodes, and keeps those that have to wait.
#[derive(Clone, Debug)]
pub struct MergeQueue<T> {
    versions: BTreeMap<LockId, LockVersion>,
    lanes: BTreeMap<NodeId, NodeLane<T>>,
    /// Versions that waiting records had read, with the number of those records.
    reads: BTreeMap<(LockId, LockVersion), usize>,
}

impl<T> MergeQueue<T> {
    /// Starts with each lock at its version (0 if it is not listed) and each node's records merged up to its
    /// number.
    pub fn new(
        versions: impl IntoIterator<Item = (LockId, LockVersion)>,
        merged: impl IntoIterator<Item = (NodeId, RecordNumber)>,
    ) -> MergeQueue<T> {
        let lanes = merged.into_iter().map(|(node, merged)| {
            let waiting = VecDeque::new();
            (node, NodeLane { merged, waiting })
        });
        MergeQueue {
            versions: versions.into_iter().collect(),
            lanes: lanes.collect(),
            reads: BTreeMap::new(),
        }
    }

    /// Adds a node whose records count from 1.
    pub fn add(&mut self, node: NodeId) {
        self.lanes.entry(node).or_insert_with(|| NodeLane {
            merged: RecordNumber(0),
            waiting: VecDeque::new(),
        });
    }

    /// Removes a node and its waiting records.
    pub fn remove(&mut self, node: NodeId) {
        self.forget_waiting(node);
        self.lanes.remove(&node);
    }

    /// Current version of a lock.
    pub fn version(&self, lock: LockId) -> LockVersion {
        self.versions.get(&lock).copied().unwrap_or_default()
    }

    /// Current versions of all locks that were ever written under.
    pub fn versions(&self) -> impl Iterator<Item = (LockId, LockVersion)> {
        self.versions.iter().map(|(lock, version)| (*lock, *version))
    }

    /// Last merged record of each node.
    pub fn numbers(&self) -> impl Iterator<Item = (NodeId, RecordNumber)> {
        self.lanes.iter().map(|(node, lane)| (*node, lane.merged))
    }

    /// Last merged record of a node.
    pub fn merged(&self, node: NodeId) -> RecordNumber {
        self.lanes.get(&node).map_or(RecordNumber(0), |lane| lane.merged)
    }

    /// Last record of a node that has come, merged or not.
    pub fn last(&self, node: NodeId) -> RecordNumber {
        self.lanes.get(&node).map_or(RecordNumber(0), NodeLane::last)
    }

    /// Whether no record waits.
    pub fn is_clear(&self) -> bool {
        self.lanes.values().all(|lane| lane.waiting.is_empty())
    }

    /// Drops the waiting records of a node: they will come again from elsewhere.
    pub fn forget_waiting(&mut self, node: NodeId) {
        if let Some(lane) = self.lanes.get_mut(&node) {
            for record in lane.waiting.drain(..) {
                forget_reads(&mut self.reads, &record.stamp);
            }
        }
    }

    /// Adds the node's next record; [`MergeQueue::pop`] returns it once it can be merged.
    ///
    /// # Errors
    ///
    /// [`InvalidRecord`] if the record's number does not follow the node's last one, the node was not added,
    /// too many of its records wait, or the record makes a version that is already merged.
    pub fn push(&mut self, node: NodeId, record: QueuedRecord<T>) -> Result<(), InvalidRecord> {
        let Some(lane) = self.lanes.get(&node) else {
            let (expected, found) = (RecordNumber(0), record.number);
            return Err(InvalidRecord::Number {
                node,
                expected,
                found,
            });
        };
        let (expected, found) = (lane.last().next(), record.number);
        if expected != found {
            return Err(InvalidRecord::Number {
                node,
                expected,
                found,
            });
        }
        if lane.waiting.len() >= MERGE_RECORDS_MAX {
            return Err(InvalidRecord::TooMany { node });
        }
        self.check_past(node, &record)?;
        if let Some(lane) = self.lanes.get_mut(&node) {
            for read in &record.stamp.read {
                *self.reads.entry(*read).or_default() += 1;
            }
            lane.waiting.push_back(record);
        }
        Ok(())
    }

    /// Refuses a record whose versions are already merged: versions only grow. Versions still to come may be
    /// on another link.
    fn check_past(&self, node: NodeId, record: &QueuedRecord<T>) -> Result<(), InvalidRecord> {
        let number = record.number;
        for (lock, makes) in record.stamp.written.iter().copied() {
            let stands = self.version(lock);
            if makes <= stands {
                return Err(InvalidRecord::Version {
                    node,
                    number,
                    lock,
                    stands,
                    makes,
                });
            }
        }
        Ok(())
    }

    /// Merges and returns the next record that can be merged, if any.
    ///
    /// # Errors
    ///
    /// [`InvalidRecord`] if a waiting record can never be merged, because another one made the version that
    /// it makes. The record stays until [`MergeQueue::forget_waiting`].
    pub fn pop(&mut self) -> Result<Option<MergeEntry<T>>, InvalidRecord> {
        let heads = self.lanes.iter();
        let heads = heads.filter_map(|(node, lane)| Some((*node, lane.waiting.front()?)));
        let mut ready = heads.filter(|(_, head)| self.blocked_by(head).is_none());
        let first = ready.next();
        let unread = |(_, head): &(NodeId, &QueuedRecord<T>)| !self.overwrites_a_read(head);
        let chosen = first.filter(unread).or_else(|| ready.find(unread)).or(first);
        let Some((node, _)) = chosen else {
            return self.check_heads();
        };
        let Some(lane) = self.lanes.get_mut(&node) else {
            return Ok(None);
        };
        let Some(record) = lane.waiting.pop_front() else {
            return Ok(None);
        };
        lane.merged = record.number;
        self.versions.extend(record.stamp.written.iter().copied());
        forget_reads(&mut self.reads, &record.stamp);
        Ok(Some(MergeEntry { node, record }))
    }

    /// Whether a waiting record had read a version that this record overwrites.
    fn overwrites_a_read(&self, record: &QueuedRecord<T>) -> bool {
        let mut written = record.stamp.written.iter();
        written.any(|(lock, makes)| {
            let older = (*lock, LockVersion(0))..(*lock, *makes);
            self.reads.range(older).next().is_some()
        })
    }

    fn check_heads(&self) -> Result<Option<MergeEntry<T>>, InvalidRecord> {
        for (node, lane) in &self.lanes {
            if let Some(head) = lane.waiting.front() {
                self.check_past(*node, head)?;
            }
        }
        Ok(None)
    }

    /// First lock that blocks a record, and the version that it needs.
    fn blocked_by(&self, record: &QueuedRecord<T>) -> Option<(LockId, LockVersion)> {
        let written = record.stamp.written.iter();
        let mut written = written.map(|(lock, makes)| (*lock, LockVersion(makes.0.saturating_sub(1))));
        let mut read = record.stamp.read.iter().copied();
        let written = written.find(|(lock, needs)| self.version(*lock) != *needs);
        written.or_else(|| read.find(|(lock, needs)| self.version(*lock) < *needs))
    }

    /// Versions that block the first record of each node, once no more records come. Empty: everything is
    /// merged.
    pub fn missing(&self) -> Vec<MissingVersion> {
        let heads = self.lanes.iter().filter_map(|(node, lane)| {
            let head = lane.waiting.front()?;
            let (lock, needs) = self.blocked_by(head)?;
            Some(MissingVersion {
                node: *node,
                number: head.number,
                lock,
                needs,
                stands: self.version(lock),
            })
        });
        heads.collect()
    }
}

fn forget_reads(reads: &mut BTreeMap<(LockId, LockVersion), usize>, stamp: &Stamp) {
    for read in &stamp.read {
        if let Some(count) = reads.get_mut(read) {
            *count -= 1;
            if *count == 0 {
                reads.remove(read);
            }
        }
    }
}
