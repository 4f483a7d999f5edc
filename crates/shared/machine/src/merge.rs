//! Several journals, one order.
//!
//! Each node's records come in the order of their numbers. The next record of a node may go when every lock
//! that it wrote stands one below, and every lock that it read has reached what was read. That is exact: it
//! needs no guess about what other journals hold, for the versions say what must have been before. Records
//! that may both go wrote under different locks, so that any choice between them leads to the same region.
//! Where a record that waits had read what another one overwrites, the reader goes first: then the order is
//! one in which the transactions could have run alone. The lowest node id goes first, so that a run can be
//! repeated.
//!
//! A lock may stand higher than what was read, where the reader comes over a slower link: what it wrote does
//! not depend on what was overwritten later, and to insist would leave records that never go.
//!
//! The same value serves the server of living nodes, for whom a record that may not go yet waits for another
//! link, and whoever merges journals that are all there: for him it is missing, and [`MergeQueue::missing`]
//! says what.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;

use super::{LockId, LockVersion, NodeId, RecordNumber, Stamp};
use crate::limit::MERGE_RECORDS_MAX;

/// A record that waits for its turn. `T` is what the caller finds its payload by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRecord<T> {
    /// Its number.
    pub number: RecordNumber,
    /// Its stamp.
    pub stamp: Stamp,
    /// What the caller knows it by.
    pub ticket: T,
}

/// A record whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeEntry<T> {
    /// Whose.
    pub node: NodeId,
    /// The record.
    pub record: QueuedRecord<T>,
}

/// A record that cannot be: whoever sent it is not to be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRecord {
    /// Its number is not the one after the node's last.
    Number {
        /// Whose.
        node: NodeId,
        /// What had to come.
        expected: RecordNumber,
        /// What came.
        found: RecordNumber,
    },
    /// It makes a version that another record has made: two wrote under the lock at once.
    Version {
        /// Whose.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Which lock.
        lock: LockId,
        /// Where the lock stands.
        stands: LockVersion,
        /// What the record makes.
        makes: LockVersion,
    },
    /// More records wait than a node may have.
    TooMany {
        /// Whose.
        node: NodeId,
    },
}

impl InvalidRecord {
    /// Whose record it is.
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
                    "node {node} gave record {found} where {expected} had to come"
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
                "record {number} of node {node} makes version {makes} of lock {lock}, which stands at {stands}: two wrote under it at once"
            ),
            InvalidRecord::TooMany { node } => write!(
                out,
                "node {node} gave more than {MERGE_RECORDS_MAX} records that depend on others"
            ),
        }
    }
}

impl core::error::Error for InvalidRecord {}

/// What a record waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingVersion {
    /// Whose record.
    pub node: NodeId,
    /// Its number.
    pub number: RecordNumber,
    /// The lock that does not stand where it must.
    pub lock: LockId,
    /// Where it must stand.
    pub needs: LockVersion,
    /// Where it stands.
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
            "record {number} of node {node} needs lock {lock} at version {needs}, and no journal here brings it beyond {stands}"
        )
    }
}

/// One node's records.
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

/// What has been merged, and what waits for its turn.
#[derive(Clone, Debug)]
pub struct MergeQueue<T> {
    versions: BTreeMap<LockId, LockVersion>,
    lanes: BTreeMap<NodeId, NodeLane<T>>,
    /// What waiting records had read, with how many of them.
    reads: BTreeMap<(LockId, LockVersion), usize>,
}

impl<T> MergeQueue<T> {
    /// Goes on where each lock stands at its version (0 if it is not named) and each node's records up to the
    /// number are merged.
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

    /// A node whose records count from 1.
    pub fn add(&mut self, node: NodeId) {
        self.lanes.entry(node).or_insert_with(|| NodeLane {
            merged: RecordNumber(0),
            waiting: VecDeque::new(),
        });
    }

    /// Nothing more is to be known of a node.
    pub fn remove(&mut self, node: NodeId) {
        self.forget_waiting(node);
        self.lanes.remove(&node);
    }

    /// Where a lock stands.
    pub fn version(&self, lock: LockId) -> LockVersion {
        self.versions.get(&lock).copied().unwrap_or_default()
    }

    /// Where all locks stand that were ever written under.
    pub fn versions(&self) -> impl Iterator<Item = (LockId, LockVersion)> {
        self.versions.iter().map(|(lock, version)| (*lock, *version))
    }

    /// The last merged record of each node.
    pub fn numbers(&self) -> impl Iterator<Item = (NodeId, RecordNumber)> {
        self.lanes.iter().map(|(node, lane)| (*node, lane.merged))
    }

    /// The node's last record that is merged.
    pub fn merged(&self, node: NodeId) -> RecordNumber {
        self.lanes.get(&node).map_or(RecordNumber(0), |lane| lane.merged)
    }

    /// The node's last record that has come, merged or not.
    pub fn last(&self, node: NodeId) -> RecordNumber {
        self.lanes.get(&node).map_or(RecordNumber(0), NodeLane::last)
    }

    /// Nothing waits.
    pub fn is_clear(&self) -> bool {
        self.lanes.values().all(|lane| lane.waiting.is_empty())
    }

    /// Forgets what waits of a node: it will come again, from elsewhere.
    pub fn forget_waiting(&mut self, node: NodeId) {
        if let Some(lane) = self.lanes.get_mut(&node) {
            for record in lane.waiting.drain(..) {
                forget_reads(&mut self.reads, &record.stamp);
            }
        }
    }

    /// Takes the node's next record. It may go at once, or wait for others.
    ///
    /// A node that was not added has no records.
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

    /// What is past never comes again: versions only grow. What is to come may be on another link.
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

    /// The next record that may go; it counts as merged.
    ///
    /// An error: a record that waited can never go any more, for another one has made the version that it
    /// makes. It stays, until [`MergeQueue::forget_waiting`].
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

    /// A record that waits had read what this one overwrites.
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

    /// The first lock that keeps a record from going: where it must stand.
    fn blocked_by(&self, record: &QueuedRecord<T>) -> Option<(LockId, LockVersion)> {
        let written = record.stamp.written.iter();
        let mut written = written.map(|(lock, makes)| (*lock, LockVersion(makes.0.saturating_sub(1))));
        let mut read = record.stamp.read.iter().copied();
        let written = written.find(|(lock, needs)| self.version(*lock) != *needs);
        written.or_else(|| read.find(|(lock, needs)| self.version(*lock) < *needs))
    }

    /// What the first record of each node waits for, once nothing more comes. Empty: everything was merged.
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
