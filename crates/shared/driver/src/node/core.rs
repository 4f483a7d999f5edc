//! The machine, and what stands beside it under the node's one lock; and how its deeds are carried out.
//!
//! | deed | carried out |
//! |---|---|
//! | send | put behind what the link's thread is to send |
//! | apply | put behind what is to be applied ([`super::hands`]); who gets a lock waits until that is done |
//! | kept | told to the journal when the lock is free |
//! | waited | the transaction's thread is woken |
//! | straight | put behind what goes to peers; sent when the lock is free ([`super::peers`]) |
//!
//! Locks are taken in this order: a region's, this one, then those of the journal and of
//! [`NodeLog`](super::node_log::NodeLog). So nothing is applied, and nothing waited for, under this one: it
//! is held for less than a microsecond.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use netram_proto::journal::ServerAck;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::node::{NodeAction, NodeEnd, RegionNode as Machine, WaitOutcome};
use netram_shared_machine::{NodeId, RecordNumber, ToServer};

use super::RecordProgress;
use super::apply::{ApplyTask, BacklogFull, RecordApplier};
use super::error::NodeGone;
use super::payload::NodePayload;
use super::peers::Peers;
use super::txn::TxnScratch;
use crate::limit::DEFERRED_BYTES_MAX;

/// Transactions whose memory is kept for the next ones: as many as run at once, usually.
const SCRATCHES_MAX: usize = 64;

/// A thread that waits for a transaction's locks.
pub(super) struct Sleeper {
    pub(super) done: AtomicBool,
    pub(super) thread: Thread,
}

impl Sleeper {
    pub(super) fn here() -> Arc<Sleeper> {
        Arc::new(Sleeper {
            done: AtomicBool::new(false),
            thread: std::thread::current(),
        })
    }

    fn wake(&self) {
        self.done.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// What the lock protects.
pub(super) struct NodeCore {
    pub(super) machine: Machine<NodePayload>,
    /// What the link's thread is to send, in order. Empty while there is no link.
    pub(super) to_send: VecDeque<ToServer<NodePayload>>,
    /// Bytes of records that went there since the link's thread was last told to hurry.
    deferred_bytes: usize,
    /// Why there is no node any more.
    pub(super) gone: Option<NodeGone>,
    /// Records that have not been trimmed away, with where they end.
    pub(super) ends: RecordEnds,
    sleepers: HashMap<TxnId, Arc<Sleeper>>,
    wait_outcomes: HashMap<TxnId, WaitOutcome>,
    /// Answers to questions, until they are fetched.
    pub(super) outcomes: HashMap<(NodeId, RecordNumber), RecordOutcome>,
    pub(super) wanted: HashMap<NodeId, Option<RecordNumber>>,
    /// Memory of transactions that have ended.
    scratches: Vec<TxnScratch>,
    /// How often pinned readers have expired.
    pub(super) expired: u64,
    /// Commits whose record may be in the journal while the machine does not know of it.
    committing: u32,
    leave_deferred: bool,
    /// What the machine was told last.
    pub(super) too_few_members: bool,
    pub(super) view: u64,
}

/// What is to be done when the lock is free.
#[derive(Default)]
#[must_use]
pub(super) struct DeferredWork {
    pub(super) kept: Option<ServerAck>,
    pub(super) fenced: bool,
    pub(super) sends: bool,
    /// Somebody may wait for the server to have that.
    pub(super) urgent: bool,
    pub(super) applies: bool,
    /// There is something for peers.
    pub(super) to_peers: bool,
    /// Somebody may wait for what has happened.
    pub(super) wake_watchers: bool,
}

impl NodeCore {
    pub(super) fn new(machine: Machine<NodePayload>, view: u64, begins: ChainPoint) -> NodeCore {
        NodeCore {
            machine,
            to_send: VecDeque::new(),
            deferred_bytes: 0,
            gone: None,
            ends: RecordEnds::new(begins),
            sleepers: HashMap::new(),
            wait_outcomes: HashMap::new(),
            outcomes: HashMap::new(),
            wanted: HashMap::new(),
            scratches: Vec::new(),
            expired: 0,
            committing: 0,
            leave_deferred: false,
            too_few_members: false,
            view,
        }
    }

    /// Fails unless there is a node.
    pub(super) fn alive(&self) -> Result<(), NodeGone> {
        self.gone.clone().map_or(Ok(()), Err)
    }

    /// Memory for a transaction that begins.
    pub(super) fn take_scratch(&mut self) -> TxnScratch {
        self.scratches.pop().unwrap_or_default()
    }

    /// A transaction has ended.
    pub(super) fn give_scratch(&mut self, mut scratch: TxnScratch) {
        if self.scratches.len() < SCRATCHES_MAX {
            scratch.clear();
            self.scratches.push(scratch);
        }
    }

    /// The calling thread is going to wait for this transaction's locks.
    pub(super) fn sleeps(&mut self, txn: TxnId, sleeper: Arc<Sleeper>) {
        self.wait_outcomes.remove(&txn);
        self.sleepers.insert(txn, sleeper);
    }

    /// How the waiting of a transaction ended, when its sleeper is done; `None`: the node is gone.
    pub(super) fn take_wait_outcome(&mut self, txn: TxnId) -> Option<WaitOutcome> {
        self.sleepers.remove(&txn);
        self.wait_outcomes.remove(&txn)
    }

    /// The node is none any more.
    pub(super) fn fail(&mut self, gone: NodeGone) {
        if self.gone.is_none() {
            match gone {
                NodeGone::Ended(NodeEnd::Left) => tracing::debug!("a node of a shared region has left"),
                _ => tracing::warn!(%gone, "a node of a shared region has ended"),
            }
            self.gone = Some(gone);
        }
        for (_, sleeper) in self.sleepers.drain() {
            sleeper.wake();
        }
    }

    /// A commit begins that the machine will be told of by [`NodeCore::on_appended`], before it says that it
    /// leaves.
    pub(super) fn begin_commit(&mut self) {
        self.committing += 1;
    }

    /// The journal has no record that the machine does not know of, or that nobody has acknowledged.
    pub(super) fn is_settled(&self) -> bool {
        self.committing == 0 && self.ends.all_acked()
    }

    /// The machine has been told of whatever the commit appended.
    pub(super) fn end_commit(&mut self) {
        self.committing -= 1;
        // With a record on its way the machine says again that it leaves, once that is safe.
        if self.committing == 0 && std::mem::take(&mut self.leave_deferred) && self.ends.all_acked() {
            self.to_send.push_back(ToServer::Leave);
        }
    }

    /// Carries out what the machine says, as far as that can be done under the lock. To be called after
    /// everything that it is told.
    pub(super) fn settle(&mut self, hands: &RecordApplier, peers: Option<&Peers>) -> DeferredWork {
        let mut afterwards = DeferredWork::default();
        while let Some(deed) = self.machine.poll() {
            self.carry_out(deed, hands, peers, &mut afterwards);
        }
        afterwards.sends = !self.to_send.is_empty();
        afterwards
    }

    fn carry_out(
        &mut self,
        deed: NodeAction<NodePayload>,
        hands: &RecordApplier,
        peers: Option<&Peers>,
        afterwards: &mut DeferredWork,
    ) {
        match deed {
            NodeAction::Send(ToServer::Leave) if self.committing > 0 => self.leave_deferred = true,
            // Of a node that is none any more, the server is to hear nothing: it reads the journal.
            NodeAction::Send(_) if self.gone.is_some() => {}
            NodeAction::Send(message) => self.send(message, afterwards),
            NodeAction::Apply {
                node,
                number,
                payload,
            } => {
                let work = ApplyTask {
                    node,
                    number,
                    payload,
                };
                if let Err(BacklogFull) = hands.add(work) {
                    self.fail(NodeGone::Behind);
                    (afterwards.fenced, afterwards.wake_watchers) = (true, true);
                }
                afterwards.applies = true;
            }
            NodeAction::Durable { number, end, view } => match self.ends.on_kept(number, end) {
                Ok(end) => afterwards.kept = Some(ServerAck { end, version: view }),
                Err(NoSuchEnd) => {
                    self.fail(NodeGone::NoSuchEnd(number));
                    (afterwards.fenced, afterwards.wake_watchers) = (true, true);
                }
            },
            NodeAction::WaitEnded(waited) => self.on_wait_ended(waited),
            NodeAction::Expired => self.expired += 1,
            NodeAction::Outcome { node, number, fate } => {
                self.outcomes.insert((node, number), fate);
                afterwards.wake_watchers = true;
            }
            NodeAction::OrphanWanted { node, from } => {
                self.wanted.insert(node, from);
                afterwards.wake_watchers = true;
            }
            NodeAction::Rejoin => tracing::warn!("the node has fallen behind, and leaves"),
            NodeAction::Ended(over) => {
                afterwards.fenced = over != NodeEnd::Left;
                afterwards.wake_watchers = true;
                self.fail(NodeGone::Ended(over));
            }
            // Only before the region is whole, which joining sees to.
            NodeAction::Open(_) | NodeAction::Page { .. } | NodeAction::Whole => {}
            NodeAction::Peer(straight) => {
                if let Some(peers) = peers {
                    peers.add(straight);
                    afterwards.to_peers = true;
                }
            }
        }
    }

    fn send(&mut self, message: ToServer<NodePayload>, afterwards: &mut DeferredWork) {
        let bytes = message.payload().map_or(0, |payload| payload.as_ref().len());
        self.deferred_bytes += bytes;
        if self.deferred_bytes > DEFERRED_BYTES_MAX || self.machine.is_urgent(&message) {
            self.deferred_bytes = 0;
            afterwards.urgent = true;
        }
        self.to_send.push_back(message);
    }

    fn on_wait_ended(&mut self, waited: WaitOutcome) {
        let (WaitOutcome::Acquired(txn)
        | WaitOutcome::Died(txn, _)
        | WaitOutcome::TimedOut(txn, _)
        | WaitOutcome::Lost(txn)) = waited;
        self.wait_outcomes.insert(txn, waited);
        if let Some(sleeper) = self.sleepers.get(&txn) {
            sleeper.wake();
        }
    }
}

/// The server said that a record ends where none does.
pub(super) struct NoSuchEnd;

/// Where the node's records end, from the first that was not trimmed away.
pub(super) struct RecordEnds {
    /// The last that was trimmed away: number 0 is the journal's beginning.
    trimmed: (RecordNumber, ChainPoint),
    /// Those after it.
    ends: VecDeque<ChainPoint>,
    kept: RecordNumber,
    acked: RecordNumber,
}

impl RecordEnds {
    fn new(begins: ChainPoint) -> RecordEnds {
        RecordEnds {
            trimmed: (RecordNumber(0), begins),
            ends: VecDeque::new(),
            kept: RecordNumber(0),
            acked: RecordNumber(0),
        }
    }

    pub(super) fn on_appended(&mut self, number: RecordNumber, end: ChainPoint) {
        assert_eq!(number.0, self.trimmed.0.0 + self.ends.len() as u64 + 1);
        self.ends.push_back(end);
    }

    pub(super) fn on_acked(&mut self, number: RecordNumber) {
        self.acked = self.acked.max(number);
    }

    fn all_acked(&self) -> bool {
        let progress = self.progress();
        progress.acked >= progress.appended
    }

    pub(super) fn progress(&self) -> RecordProgress {
        RecordProgress {
            appended: RecordNumber(self.trimmed.0.0 + self.ends.len() as u64),
            acked: self.acked.max(self.kept),
            durable: self.kept,
        }
    }

    /// The server keeps so much, and says where that ends. Returns where it does.
    fn on_kept(&mut self, number: RecordNumber, end: ChainPoint) -> Result<ChainPoint, NoSuchEnd> {
        if number <= self.trimmed.0 {
            return Ok(self.trimmed.1);
        }
        let place = (number.0 - self.trimmed.0.0 - 1) as usize;
        let known = self.ends.get(place).filter(|known| **known == end);
        let known = *known.ok_or(NoSuchEnd)?;
        self.kept = self.kept.max(number);
        Ok(known)
    }

    /// The record that ends there.
    pub(super) fn number(&self, end: netram_proto::id::Lsn) -> Option<RecordNumber> {
        let place = self.ends.binary_search_by_key(&end, |link| link.lsn).ok()?;
        Some(RecordNumber(self.trimmed.0.0 + place as u64 + 1))
    }

    /// The last record that the server keeps and that is below `stable`, with where it ends, if the log can
    /// be trimmed there.
    pub(super) fn trimmable(&self, stable: netram_proto::id::Lsn) -> Option<(RecordNumber, ChainPoint)> {
        let kept = (self.kept.0.saturating_sub(self.trimmed.0.0) as usize).min(self.ends.len());
        let stable = self.ends.partition_point(|link| link.lsn <= stable);
        let count = kept.min(stable);
        let end = self.ends.get(count.checked_sub(1)?)?;
        Some((RecordNumber(self.trimmed.0.0 + count as u64), *end))
    }

    /// The last record that was trimmed away, with where it ended.
    pub(super) fn trimmed(&self) -> (RecordNumber, ChainPoint) {
        self.trimmed
    }

    pub(super) fn on_trimmed(&mut self, number: RecordNumber) {
        while self.trimmed.0 < number
            && let Some(end) = self.ends.pop_front()
        {
            self.trimmed = (self.trimmed.0.next(), end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_proto::id::Lsn;

    fn link(lsn: u64) -> ChainPoint {
        ChainPoint {
            lsn: Lsn(lsn),
            chain: lsn as u32,
        }
    }

    fn ends() -> RecordEnds {
        let mut ends = RecordEnds::new(link(0));
        (1..=4).for_each(|number| ends.on_appended(RecordNumber(number), link(number * 10)));
        ends
    }

    #[test]
    fn the_server_can_keep_only_what_was_appended_and_where_it_ends() {
        let mut ends = ends();
        assert_eq!(ends.on_kept(RecordNumber(2), link(20)).ok(), Some(link(20)));
        assert!(ends.on_kept(RecordNumber(3), link(40)).is_err());
        assert!(ends.on_kept(RecordNumber(5), link(50)).is_err());
        let other = ChainPoint {
            chain: 99,
            ..link(30)
        };
        assert!(ends.on_kept(RecordNumber(3), other).is_err());
    }

    #[test]
    fn the_log_is_trimmed_where_server_and_disk_have_it() {
        let mut ends = ends();
        assert_eq!(ends.trimmable(Lsn(40)), None);
        assert!(ends.on_kept(RecordNumber(3), link(30)).is_ok());
        assert_eq!(ends.trimmable(Lsn(9)), None);
        assert_eq!(ends.trimmable(Lsn(25)), Some((RecordNumber(2), link(20))));
        assert_eq!(ends.trimmable(Lsn(40)), Some((RecordNumber(3), link(30))));
        ends.on_trimmed(RecordNumber(3));
        assert_eq!(ends.trimmed(), (RecordNumber(3), link(30)));
        assert_eq!(ends.number(Lsn(40)), Some(RecordNumber(4)));
        assert_eq!(ends.trimmable(Lsn(40)), None);
        assert!(ends.on_kept(RecordNumber(4), link(40)).is_ok());
        assert_eq!(ends.trimmable(Lsn(40)), Some((RecordNumber(4), link(40))));
        assert_eq!(ends.on_kept(RecordNumber(1), link(10)).ok(), Some(link(30)));
    }
}
