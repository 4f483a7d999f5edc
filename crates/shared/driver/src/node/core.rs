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
//! Locks are taken in this order: a region's, this one, then those of the journal and of [`Tails`](super::tails::Tails). So nothing
//! is applied, and nothing waited for, under this one: it is held for less than a microsecond.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use netram_proto::journal::ServerKept;
use netram_proto::wire::Link;
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::Fate;
use netram_shared_machine::node::{Deed, Node as Machine, Over, Waited};
use netram_shared_machine::{NodeId, Number, ToServer};

use super::Progress;
use super::error::Gone;
use super::hands::{Hands, TooMuch, Work};
use super::payload::Payload;
use super::peers::Peers;
use super::txn::Scratch;
use crate::limit::UNHURRIED_BYTES_MAX;

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
pub(super) struct Core {
    pub(super) machine: Machine<Payload>,
    /// What the link's thread is to send, in order. Empty while there is no link.
    pub(super) to_send: VecDeque<ToServer<Payload>>,
    /// Bytes of records that went there since the link's thread was last told to hurry.
    unhurried_bytes: usize,
    /// Why there is no node any more.
    pub(super) gone: Option<Gone>,
    /// Records that have not been trimmed away, with where they end.
    pub(super) ends: Ends,
    sleepers: HashMap<TxnId, Arc<Sleeper>>,
    waited: HashMap<TxnId, Waited>,
    /// Answers to questions, until they are fetched.
    pub(super) fates: HashMap<(NodeId, Number), Fate>,
    pub(super) wanted: HashMap<NodeId, Option<Number>>,
    /// Memory of transactions that have ended.
    scratches: Vec<Scratch>,
    /// How often pinned readers have expired.
    pub(super) expired: u64,
    /// Commits whose record may be in the journal while the machine does not know of it.
    committing: u32,
    leave_held: bool,
    /// What the machine was told last.
    pub(super) few: bool,
    pub(super) view: u64,
}

/// What is to be done when the lock is free.
#[derive(Default)]
#[must_use]
pub(super) struct Afterwards {
    pub(super) kept: Option<ServerKept>,
    pub(super) fenced: bool,
    pub(super) sends: bool,
    /// Somebody may wait for the server to have that.
    pub(super) hurries: bool,
    pub(super) applies: bool,
    /// There is something for peers.
    pub(super) straight: bool,
    /// Somebody may wait for what has happened.
    pub(super) news: bool,
}

impl Core {
    pub(super) fn new(machine: Machine<Payload>, view: u64, begins: Link) -> Core {
        Core {
            machine,
            to_send: VecDeque::new(),
            unhurried_bytes: 0,
            gone: None,
            ends: Ends::new(begins),
            sleepers: HashMap::new(),
            waited: HashMap::new(),
            fates: HashMap::new(),
            wanted: HashMap::new(),
            scratches: Vec::new(),
            expired: 0,
            committing: 0,
            leave_held: false,
            few: false,
            view,
        }
    }

    /// Fails unless there is a node.
    pub(super) fn alive(&self) -> Result<(), Gone> {
        self.gone.clone().map_or(Ok(()), Err)
    }

    /// Memory for a transaction that begins.
    pub(super) fn take_scratch(&mut self) -> Scratch {
        self.scratches.pop().unwrap_or_default()
    }

    /// A transaction has ended.
    pub(super) fn give_scratch(&mut self, mut scratch: Scratch) {
        if self.scratches.len() < SCRATCHES_MAX {
            scratch.clear();
            self.scratches.push(scratch);
        }
    }

    /// The calling thread is going to wait for this transaction's locks.
    pub(super) fn sleeps(&mut self, txn: TxnId, sleeper: Arc<Sleeper>) {
        self.waited.remove(&txn);
        self.sleepers.insert(txn, sleeper);
    }

    /// How the waiting of a transaction ended, when its sleeper is done; `None`: the node is gone.
    pub(super) fn fetch_waited(&mut self, txn: TxnId) -> Option<Waited> {
        self.sleepers.remove(&txn);
        self.waited.remove(&txn)
    }

    /// The node is none any more.
    pub(super) fn fail(&mut self, gone: Gone) {
        if self.gone.is_none() {
            match gone {
                Gone::Over(Over::Left) => tracing::debug!("a node of a shared region has left"),
                _ => tracing::warn!(%gone, "a node of a shared region has ended"),
            }
            self.gone = Some(gone);
        }
        for (_, sleeper) in self.sleepers.drain() {
            sleeper.wake();
        }
    }

    /// A commit begins that the machine will be told of by [`Core::on_appended`], before it says that it leaves.
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
        if self.committing == 0 && std::mem::take(&mut self.leave_held) && self.ends.all_acked() {
            self.to_send.push_back(ToServer::Leave);
        }
    }

    /// Carries out what the machine says, as far as that can be done under the lock. To be called after everything that it is told.
    pub(super) fn settle(&mut self, hands: &Hands, peers: Option<&Peers>) -> Afterwards {
        let mut afterwards = Afterwards::default();
        while let Some(deed) = self.machine.poll() {
            self.carry_out(deed, hands, peers, &mut afterwards);
        }
        afterwards.sends = !self.to_send.is_empty();
        afterwards
    }

    fn carry_out(
        &mut self,
        deed: Deed<Payload>,
        hands: &Hands,
        peers: Option<&Peers>,
        afterwards: &mut Afterwards,
    ) {
        match deed {
            Deed::Send(ToServer::Leave) if self.committing > 0 => self.leave_held = true,
            // Of a node that is none any more, the server is to hear nothing: it reads the journal.
            Deed::Send(_) if self.gone.is_some() => {}
            Deed::Send(message) => self.send(message, afterwards),
            Deed::Apply {
                node,
                number,
                payload,
            } => {
                let work = Work {
                    node,
                    number,
                    payload,
                };
                if let Err(TooMuch) = hands.add(work) {
                    self.fail(Gone::Behind);
                    (afterwards.fenced, afterwards.news) = (true, true);
                }
                afterwards.applies = true;
            }
            Deed::Kept { number, end, view } => match self.ends.on_kept(number, end) {
                Ok(end) => afterwards.kept = Some(ServerKept { end, version: view }),
                Err(NoSuchEnd) => {
                    self.fail(Gone::Kept(number));
                    (afterwards.fenced, afterwards.news) = (true, true);
                }
            },
            Deed::Waited(waited) => self.on_waited(waited),
            Deed::Expired => self.expired += 1,
            Deed::Fate { node, number, fate } => {
                self.fates.insert((node, number), fate);
                afterwards.news = true;
            }
            Deed::Wanted { node, from } => {
                self.wanted.insert(node, from);
                afterwards.news = true;
            }
            Deed::Anew => tracing::warn!("the node has fallen behind, and leaves"),
            Deed::Over(over) => {
                afterwards.fenced = over != Over::Left;
                afterwards.news = true;
                self.fail(Gone::Over(over));
            }
            // Only before the region is whole, which joining sees to.
            Deed::Open(_) | Deed::Page { .. } | Deed::Whole => {}
            Deed::Straight(straight) => {
                if let Some(peers) = peers {
                    peers.add(straight);
                    afterwards.straight = true;
                }
            }
        }
    }

    fn send(&mut self, message: ToServer<Payload>, afterwards: &mut Afterwards) {
        let bytes = message.payload().map_or(0, |payload| payload.as_ref().len());
        self.unhurried_bytes += bytes;
        if self.unhurried_bytes > UNHURRIED_BYTES_MAX || self.machine.hurries(&message) {
            self.unhurried_bytes = 0;
            afterwards.hurries = true;
        }
        self.to_send.push_back(message);
    }

    fn on_waited(&mut self, waited: Waited) {
        let (Waited::Held(txn) | Waited::Died(txn, _) | Waited::TimedOut(txn, _) | Waited::Lost(txn)) =
            waited;
        self.waited.insert(txn, waited);
        if let Some(sleeper) = self.sleepers.get(&txn) {
            sleeper.wake();
        }
    }
}

/// The server said that a record ends where none does.
pub(super) struct NoSuchEnd;

/// Where the node's records end, from the first that was not trimmed away.
pub(super) struct Ends {
    /// The last that was trimmed away: number 0 is the journal's beginning.
    trimmed: (Number, Link),
    /// Those after it.
    ends: VecDeque<Link>,
    kept: Number,
    acked: Number,
}

impl Ends {
    fn new(begins: Link) -> Ends {
        Ends {
            trimmed: (Number(0), begins),
            ends: VecDeque::new(),
            kept: Number(0),
            acked: Number(0),
        }
    }

    pub(super) fn on_appended(&mut self, number: Number, end: Link) {
        assert_eq!(number.0, self.trimmed.0.0 + self.ends.len() as u64 + 1);
        self.ends.push_back(end);
    }

    pub(super) fn on_acked(&mut self, number: Number) {
        self.acked = self.acked.max(number);
    }

    fn all_acked(&self) -> bool {
        let progress = self.progress();
        progress.acked >= progress.appended
    }

    pub(super) fn progress(&self) -> Progress {
        Progress {
            appended: Number(self.trimmed.0.0 + self.ends.len() as u64),
            acked: self.acked.max(self.kept),
            kept: self.kept,
        }
    }

    /// The server keeps so much, and says where that ends. Returns where it does.
    fn on_kept(&mut self, number: Number, end: Link) -> Result<Link, NoSuchEnd> {
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
    pub(super) fn number(&self, end: netram_proto::id::Lsn) -> Option<Number> {
        let place = self.ends.binary_search_by_key(&end, |link| link.lsn).ok()?;
        Some(Number(self.trimmed.0.0 + place as u64 + 1))
    }

    /// The last record that the server keeps and that is below `stable`, with where it ends, if the log can be trimmed there.
    pub(super) fn trimmable(&self, stable: netram_proto::id::Lsn) -> Option<(Number, Link)> {
        let kept = (self.kept.0.saturating_sub(self.trimmed.0.0) as usize).min(self.ends.len());
        let stable = self.ends.partition_point(|link| link.lsn <= stable);
        let count = kept.min(stable);
        let end = self.ends.get(count.checked_sub(1)?)?;
        Some((Number(self.trimmed.0.0 + count as u64), *end))
    }

    /// The last record that was trimmed away, with where it ended.
    pub(super) fn trimmed(&self) -> (Number, Link) {
        self.trimmed
    }

    pub(super) fn on_trimmed(&mut self, number: Number) {
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

    fn link(lsn: u64) -> Link {
        Link {
            lsn: Lsn(lsn),
            chain: lsn as u32,
        }
    }

    fn ends() -> Ends {
        let mut ends = Ends::new(link(0));
        (1..=4).for_each(|number| ends.on_appended(Number(number), link(number * 10)));
        ends
    }

    #[test]
    fn the_server_can_keep_only_what_was_appended_and_where_it_ends() {
        let mut ends = ends();
        assert_eq!(ends.on_kept(Number(2), link(20)).ok(), Some(link(20)));
        assert!(ends.on_kept(Number(3), link(40)).is_err());
        assert!(ends.on_kept(Number(5), link(50)).is_err());
        let other = Link {
            chain: 99,
            ..link(30)
        };
        assert!(ends.on_kept(Number(3), other).is_err());
    }

    #[test]
    fn the_log_is_trimmed_where_server_and_disk_have_it() {
        let mut ends = ends();
        assert_eq!(ends.trimmable(Lsn(40)), None);
        assert!(ends.on_kept(Number(3), link(30)).is_ok());
        assert_eq!(ends.trimmable(Lsn(9)), None);
        assert_eq!(ends.trimmable(Lsn(25)), Some((Number(2), link(20))));
        assert_eq!(ends.trimmable(Lsn(40)), Some((Number(3), link(30))));
        ends.on_trimmed(Number(3));
        assert_eq!(ends.trimmed(), (Number(3), link(30)));
        assert_eq!(ends.number(Lsn(40)), Some(Number(4)));
        assert_eq!(ends.trimmable(Lsn(40)), None);
        assert!(ends.on_kept(Number(4), link(40)).is_ok());
        assert_eq!(ends.trimmable(Lsn(40)), Some((Number(4), link(40))));
        assert_eq!(ends.on_kept(Number(1), link(10)).ok(), Some(link(30)));
    }
}
