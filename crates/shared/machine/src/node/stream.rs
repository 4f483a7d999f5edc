//! Other nodes' records: applied at once, or held back while readers are pinned.

use alloc::collections::VecDeque;
use core::fmt;

use super::{NodeAction, NodeEnd, NodePhase, RegionNode, Wire};
use crate::lock::ToCache;
use crate::{LockId, LockVersion, NodeId, Position, RecordNumber, Stamp, StampError};
use netram_proto::time::{Nanos, Time};

/// Fate of pinned readers that hold back too many records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedOverflow {
    /// The readers see newer data, and are told so.
    Expire,
    /// The readers keep their data; the node leaves and joins again.
    FallBehind,
}

/// A message that the server must not send: a bug or an attack. It does not change the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerViolation {
    /// The named message does not fit the state of the link.
    OutOfPlace(&'static str),
    /// A record's number does not follow its node's last one.
    Number {
        /// Node that wrote the record.
        node: NodeId,
        /// Number that had to come next.
        expected: RecordNumber,
        /// Number that came.
        found: RecordNumber,
    },
    /// A record has an invalid stamp.
    Stamp(StampError),
    /// A record does not follow on the versions that are here.
    Version {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// The lock.
        lock: LockId,
        /// The lock's version here.
        stands: LockVersion,
        /// Version that the record needs.
        needs: LockVersion,
    },
    /// The lock was granted without a request, or at a version that the node has not reached.
    Grant(LockId),
}

impl fmt::Display for ServerViolation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerViolation::OutOfPlace(what) => write!(out, "the server sent {what} at the wrong time"),
            ServerViolation::Number {
                node,
                expected,
                found,
            } => {
                write!(
                    out,
                    "the server sent record {found} of node {node}, but record {expected} was due"
                )
            }
            ServerViolation::Stamp(error) => error.fmt(out),
            ServerViolation::Version {
                node,
                number,
                lock,
                stands,
                needs,
            } => write!(
                out,
                "record {number} of node {node} needs lock {lock} at version {needs}, but it is at {stands} here"
            ),
            ServerViolation::Grant(lock) => write!(
                out,
                "the server granted lock {lock} without a request, or at a version that this node has not reached"
            ),
        }
    }
}

/// Age of the data that readers see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderLag {
    /// Number of positions in the server's order that are not applied.
    pub positions: u64,
    /// Time for which the oldest held-back record has been here.
    pub time: Nanos,
}

#[derive(Clone, Debug)]
struct WaitingRecord<P> {
    node: NodeId,
    number: RecordNumber,
    payload: P,
    came: Time,
}

/// Records that wait for pinned readers.
#[derive(Clone, Debug)]
pub(super) struct ForeignRecords<P> {
    pub(super) readers: u32,
    waiting: VecDeque<WaitingRecord<P>>,
    pub(super) bytes: usize,
    /// Position up to which everything is applied.
    applied: Position,
}

impl<P> Default for ForeignRecords<P> {
    fn default() -> ForeignRecords<P> {
        ForeignRecords {
            readers: 0,
            waiting: VecDeque::new(),
            bytes: 0,
            applied: Position(0),
        }
    }
}

impl<P: Clone + AsRef<[u8]>> RegionNode<P> {
    /// Handles the next record of the server's order.
    pub(super) fn on_record(
        &mut self,
        now: Time,
        position: Position,
        node: NodeId,
        number: RecordNumber,
        payload: P,
    ) -> Result<(), ServerViolation> {
        if position <= self.position || self.wire != Wire::Up {
            return Err(ServerViolation::OutOfPlace("a record"));
        }
        // A leaving node keeps its copy as its readers have it.
        if self.state == NodePhase::Leaving {
            return Ok(());
        }
        // The positions in between are this node's own records.
        self.position = position;
        self.newest = self.newest.max(position);
        let taken = self.received.get(&node).copied().unwrap_or_default();
        if number > taken {
            if number != taken.next() {
                let (expected, found) = (taken.next(), number);
                return Err(ServerViolation::Number {
                    node,
                    expected,
                    found,
                });
            }
            let stamp = Stamp::of(payload.as_ref()).map_err(ServerViolation::Stamp)?;
            if let Some((lock, needs)) = self.unfit(&stamp) {
                let stands = self.version(lock);
                return Err(ServerViolation::Version {
                    node,
                    number,
                    lock,
                    stands,
                    needs,
                });
            }
            self.take(now, node, number, &stamp, payload);
        }
        self.direct_peers.streamed(node, number);
        if self.foreign.waiting.is_empty() {
            self.foreign.applied = position;
        }
        Ok(())
    }

    /// First lock that keeps a record from being applied, with the version that it needs.
    pub(super) fn unfit(&self, stamp: &Stamp) -> Option<(LockId, LockVersion)> {
        let mut written = stamp.written.iter();
        let mut read = stamp.read.iter();
        let written = written.find(|(lock, makes)| self.version(*lock).next() != *makes);
        let written = written.map(|(lock, makes)| (*lock, LockVersion(makes.0 - 1)));
        written.or_else(|| read.find(|(lock, needs)| self.version(*lock) < *needs).copied())
    }

    pub(super) fn take(&mut self, now: Time, node: NodeId, number: RecordNumber, stamp: &Stamp, payload: P) {
        self.received.insert(node, number);
        self.versions.extend(stamp.written.iter().copied());
        if self.foreign.readers == 0 {
            return self.actions.push_back(NodeAction::Apply {
                node,
                number,
                payload,
            });
        }
        self.foreign.bytes += payload.as_ref().len();
        self.foreign.waiting.push_back(WaitingRecord {
            node,
            number,
            payload,
            came: now,
        });
        if self.foreign.bytes > self.config.pinned_bytes_max {
            match self.config.full {
                PinnedOverflow::Expire => {
                    self.foreign.readers = 0;
                    self.actions.push_back(NodeAction::Expired);
                    self.accept();
                }
                PinnedOverflow::FallBehind => self.leave(),
            }
        }
    }

    /// Handles a message of the lock service. A grant follows the records that it needs; those that wait for
    /// pinned readers are applied before the transaction has the lock.
    pub(super) fn on_lock(&mut self, now: Time, message: ToCache) -> Result<(), ServerViolation> {
        if self.state != NodePhase::Whole {
            return Ok(());
        }
        if let ToCache::Grant { lock, version, .. } = message {
            if self.version(lock) < version {
                return Err(ServerViolation::Grant(lock));
            }
            // A hint is applied only while the lease runs, so that no other node had the lock in that time. A
            // higher version here was made by a record that the server does not have.
            if self.version(lock) > version {
                self.over(NodeEnd::Diverged);
                return Ok(());
            }
        }
        self.tokens
            .handle(now, message)
            .map_err(|unasked| ServerViolation::Grant(unasked.0))
    }

    /// Begins a pinned read: the memory stays as it is until [`RegionNode::accept`], or until this node's
    /// transactions acquire a lock.
    pub fn begin_read(&mut self) {
        self.foreign.readers += 1;
    }

    /// Ends a pinned read; with the last one, waiting records are applied. After [`NodeAction::Expired`] no
    /// reader needs to end.
    pub fn end_read(&mut self) {
        self.foreign.readers = self.foreign.readers.saturating_sub(1);
        if self.foreign.readers == 0 {
            self.accept();
        }
    }

    /// Applies all records that wait for readers, which stay pinned at the new state.
    pub fn accept(&mut self) {
        for held in self.foreign.waiting.drain(..) {
            let WaitingRecord {
                node,
                number,
                payload,
                ..
            } = held;
            self.actions.push_back(NodeAction::Apply {
                node,
                number,
                payload,
            });
        }
        self.foreign.bytes = 0;
        self.foreign.applied = self.position;
    }

    /// Whether the region's memory has this version of a lock, or will once the actions are done: no record
    /// up to it waits for readers.
    pub fn shows(&self, lock: LockId, version: LockVersion) -> bool {
        let makes = |held: &WaitingRecord<P>| {
            let stamp = Stamp::of(held.payload.as_ref());
            let mut written = stamp.iter().flat_map(|stamp| &stamp.written);
            written.any(|(other, makes)| *other == lock && *makes <= version)
        };
        self.version(lock) >= version && !self.foreign.waiting.iter().any(makes)
    }

    /// Age of the data that readers see.
    pub fn age(&self, now: Time) -> ReaderLag {
        let oldest = self.foreign.waiting.front();
        ReaderLag {
            positions: self.newest.0.saturating_sub(self.foreign.applied.0),
            time: oldest.map_or(Nanos(0), |held| now.since(held.came)),
        }
    }
}
