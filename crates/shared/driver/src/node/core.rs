//! The state under the node's one lock: the state machine and its surroundings; and how its actions are
//! carried out.
//!
//! | action | carried out |
//! |---|---|
//! | `Send` | queued for the link's thread |
//! | `Apply` | queued for [`super::apply`]; a transaction with a new lock waits until that is done |
//! | `Durable` | reported to the journal when the lock is free |
//! | `WaitEnded` | the transaction's thread is woken |
//! | `Peer` | queued for peers; sent when the lock is free ([`super::peers`]) |
//!
//! Locks are taken in this order: a region's, this one, then those of the journal and of
//! [`NodeLog`](super::node_log::NodeLog). So nothing is applied or waited for under this one: it is held for
//! less than a microsecond.

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

/// Number of ended transactions whose memory is kept: usually as many as run at once.
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

/// State under the node's lock.
pub(super) struct NodeCore {
    pub(super) machine: Machine<NodePayload>,
    /// Messages for the link's thread, in order. Empty while there is no link.
    pub(super) to_send: VecDeque<ToServer<NodePayload>>,
    /// Bytes of records queued there since the last urgent message.
    deferred_bytes: usize,
    /// Reason why the node has ended, if it has.
    pub(super) gone: Option<NodeGone>,
    /// Records that were not trimmed, with their ends.
    pub(super) ends: RecordEnds,
    sleepers: HashMap<TxnId, Arc<Sleeper>>,
    wait_outcomes: HashMap<TxnId, WaitOutcome>,
    /// Server's answers, until they are fetched.
    pub(super) outcomes: HashMap<(NodeId, RecordNumber), RecordOutcome>,
    pub(super) wanted: HashMap<NodeId, Option<RecordNumber>>,
    /// Memory of ended transactions.
    scratches: Vec<TxnScratch>,
    /// Number of times that pinned readers have expired.
    pub(super) expired: u64,
    /// Number of commits whose record may be in the journal and is not reported to the machine.
    committing: u32,
    leave_deferred: bool,
    /// State that was last reported to the machine.
    pub(super) too_few_members: bool,
    pub(super) view: u64,
}

/// Work to do when the lock is free.
#[derive(Default)]
#[must_use]
pub(super) struct DeferredWork {
    pub(super) kept: Option<ServerAck>,
    pub(super) fenced: bool,
    pub(super) sends: bool,
    /// Whether a transaction may be waiting for the server to have the messages.
    pub(super) urgent: bool,
    pub(super) applies: bool,
    /// Whether there is something for peers.
    pub(super) to_peers: bool,
    /// Whether a thread may be waiting for what has happened.
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

    /// Fails if the node has ended.
    pub(super) fn alive(&self) -> Result<(), NodeGone> {
        self.gone.clone().map_or(Ok(()), Err)
    }

    /// Memory for a new transaction.
    pub(super) fn take_scratch(&mut self) -> TxnScratch {
        self.scratches.pop().unwrap_or_default()
    }

    /// Takes back an ended transaction's memory.
    pub(super) fn give_scratch(&mut self, mut scratch: TxnScratch) {
        if self.scratches.len() < SCRATCHES_MAX {
            scratch.clear();
            self.scratches.push(scratch);
        }
    }

    /// Registers the calling thread, which is going to wait for this transaction's locks.
    pub(super) fn sleeps(&mut self, txn: TxnId, sleeper: Arc<Sleeper>) {
        self.wait_outcomes.remove(&txn);
        self.sleepers.insert(txn, sleeper);
    }

    /// Outcome of a transaction's waiting, once its sleeper is done; `None`: the node has ended.
    pub(super) fn take_wait_outcome(&mut self, txn: TxnId) -> Option<WaitOutcome> {
        self.sleepers.remove(&txn);
        self.wait_outcomes.remove(&txn)
    }

    /// Ends the node.
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

    /// Begins a commit. The machine learns of its record by [`RegionNode::on_appended`](Machine::on_appended)
    /// before it reports that the node leaves.
    pub(super) fn begin_commit(&mut self) {
        self.committing += 1;
    }

    /// Whether the machine knows every record of the journal, and all are acknowledged.
    pub(super) fn is_settled(&self) -> bool {
        self.committing == 0 && self.ends.all_acked()
    }

    /// Ends a commit whose record was reported to the machine.
    pub(super) fn end_commit(&mut self) {
        self.committing -= 1;
        // With an unacknowledged record the machine sends `Leave` again, once the record is safe.
        if self.committing == 0 && std::mem::take(&mut self.leave_deferred) && self.ends.all_acked() {
            self.to_send.push_back(ToServer::Leave);
        }
    }

    /// Carries out the machine's actions, as far as possible under the lock. Call it after everything that
    /// the machine is told.
    pub(super) fn settle(&mut self, hands: &RecordApplier, peers: Option<&Peers>) -> DeferredWork {
        let mut afterwards = DeferredWork::default();
        while let Some(action) = self.machine.poll() {
            self.carry_out(action, hands, peers, &mut afterwards);
        }
        afterwards.sends = !self.to_send.is_empty();
        afterwards
    }

    fn carry_out(
        &mut self,
        action: NodeAction<NodePayload>,
        hands: &RecordApplier,
        peers: Option<&Peers>,
        afterwards: &mut DeferredWork,
    ) {
        match action {
            NodeAction::Send(ToServer::Leave) if self.committing > 0 => self.leave_deferred = true,
            // The server must hear nothing of a node that has ended: it reads the journal.
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
            NodeAction::Rejoin => tracing::warn!("the node of a shared region has fallen behind and leaves"),
            NodeAction::Ended(over) => {
                afterwards.fenced = over != NodeEnd::Left;
                afterwards.wake_watchers = true;
                self.fail(NodeGone::Ended(over));
            }
            // These come only before the region is complete, and joining handles them.
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

/// The server named an end of a record where this journal has none.
pub(super) struct NoSuchEnd;

/// Ends of the node's records, from the first that was not trimmed.
pub(super) struct RecordEnds {
    /// Last trimmed record with its end; number 0 is the journal's beginning.
    trimmed: (RecordNumber, ChainPoint),
    /// Ends of the later records.
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

    /// Notes that the server has made the records up to `number` durable, the last of which ends at `end`.
    /// Returns the end to report to the journal.
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

    /// Number of the record that ends at `end`.
    pub(super) fn number(&self, end: netram_proto::id::Lsn) -> Option<RecordNumber> {
        let place = self.ends.binary_search_by_key(&end, |link| link.lsn).ok()?;
        Some(RecordNumber(self.trimmed.0.0 + place as u64 + 1))
    }

    /// Last record that the server has durable and that is below `stable`, with its end; `None`: nothing can
    /// be trimmed.
    pub(super) fn trimmable(&self, stable: netram_proto::id::Lsn) -> Option<(RecordNumber, ChainPoint)> {
        let kept = (self.kept.0.saturating_sub(self.trimmed.0.0) as usize).min(self.ends.len());
        let stable = self.ends.partition_point(|link| link.lsn <= stable);
        let count = kept.min(stable);
        let end = self.ends.get(count.checked_sub(1)?)?;
        Some((RecordNumber(self.trimmed.0.0 + count as u64), *end))
    }

    /// Last trimmed record, with its end.
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
