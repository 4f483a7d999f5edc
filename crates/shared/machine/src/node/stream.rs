//! Others' records: applied at once, or held back while readers are pinned.

use alloc::collections::VecDeque;
use core::fmt;

use super::{NodeAction, NodeEnd, NodePhase, RegionNode, Wire};
use crate::lock::ToCache;
use crate::{LockId, LockVersion, NodeId, Position, RecordNumber, Stamp, StampError};
use netram_proto::time::{Nanos, Time};

/// What becomes of pinned readers that hold back too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedOverflow {
    /// They see what is new, and are told that what they had is past.
    Expire,
    /// They keep it, and the node leaves, to join again.
    FallBehind,
}

/// The server sent what cannot be: a bug or an attack. The node's memory is not changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerViolation {
    /// Something that has no place here.
    OutOfPlace(&'static str),
    /// A record's number is not the one after its node's last.
    Number {
        /// Whose.
        node: NodeId,
        /// What had to come.
        expected: RecordNumber,
        /// What came.
        found: RecordNumber,
    },
    /// A record's stamp is none.
    Stamp(StampError),
    /// A record that does not follow on what is here.
    Version {
        /// Whose.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Which lock.
        lock: LockId,
        /// Where it stands here.
        stands: LockVersion,
        /// Where it must stand.
        needs: LockVersion,
    },
    /// A lock was granted that nobody asked for, or at a version that is not here.
    Grant(LockId),
}

impl fmt::Display for ServerViolation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerViolation::OutOfPlace(what) => write!(out, "the server sent {what} where it has no place"),
            ServerViolation::Number {
                node,
                expected,
                found,
            } => {
                write!(
                    out,
                    "the server sent record {found} of node {node} where {expected} had to come"
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
                "record {number} of node {node} needs lock {lock} at version {needs}, and it stands at {stands}"
            ),
            ServerViolation::Grant(lock) => write!(out, "the server granted lock {lock} out of place"),
        }
    }
}

/// How old what a reader sees is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderLag {
    /// Places of the server's order that have not been applied.
    pub positions: u64,
    /// How long the oldest of them has been here.
    pub time: Nanos,
}

#[derive(Clone, Debug)]
struct WaitingRecord<P> {
    node: NodeId,
    number: RecordNumber,
    payload: P,
    came: Time,
}

/// What waits for readers.
#[derive(Clone, Debug)]
pub(super) struct ForeignRecords<P> {
    pub(super) readers: u32,
    waiting: VecDeque<WaitingRecord<P>>,
    pub(super) bytes: usize,
    /// The place up to which everything is applied.
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
    /// The next record of the server's order.
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
        // Who leaves keeps what its readers have.
        if self.state == NodePhase::Leaving {
            return Ok(());
        }
        // Places between are of this node's own records.
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

    /// The first lock that keeps a record from being applied, and where it must stand.
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

    /// A message of the lock service. A grant stands behind the records that it needs; what of them waits for
    /// readers is applied before anybody has the lock.
    pub(super) fn on_lock(&mut self, now: Time, message: ToCache) -> Result<(), ServerViolation> {
        if self.state != NodePhase::Whole {
            return Ok(());
        }
        if let ToCache::Grant { lock, version, .. } = message {
            if self.version(lock) < version {
                return Err(ServerViolation::Grant(lock));
            }
            // A hint is taken while the lease runs, so that no other node had the lock meanwhile: somebody
            // made that version without it.
            if self.version(lock) > version {
                self.over(NodeEnd::Diverged);
                return Ok(());
            }
        }
        self.tokens
            .handle(now, message)
            .map_err(|unasked| ServerViolation::Grant(unasked.0))
    }

    /// A reader begins: the memory stays as it is until [`RegionNode::accept`], or until its transactions
    /// acquire a lock.
    pub fn begin_read(&mut self) {
        self.foreign.readers += 1;
    }

    /// A reader ends; with the last, what waits is applied. After [`NodeAction::Expired`] none has to end.
    pub fn end_read(&mut self) {
        self.foreign.readers = self.foreign.readers.saturating_sub(1);
        if self.foreign.readers == 0 {
            self.accept();
        }
    }

    /// Applies all that waits for readers, and lets them stay pinned there.
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

    /// Whether the region's memory has this version of a lock, or is about to: nothing of it waits for a
    /// reader.
    pub fn shows(&self, lock: LockId, version: LockVersion) -> bool {
        let makes = |held: &WaitingRecord<P>| {
            let stamp = Stamp::of(held.payload.as_ref());
            let mut written = stamp.iter().flat_map(|stamp| &stamp.written);
            written.any(|(other, makes)| *other == lock && *makes <= version)
        };
        self.version(lock) >= version && !self.foreign.waiting.iter().any(makes)
    }

    /// How old what readers see is.
    pub fn age(&self, now: Time) -> ReaderLag {
        let oldest = self.foreign.waiting.front();
        ReaderLag {
            positions: self.newest.0.saturating_sub(self.foreign.applied.0),
            time: oldest.map_or(Nanos(0), |held| now.since(held.came)),
        }
    }
}
