//! A node's side: the tokens that are here, the transactions that use them, and those that wait.
//!
//! A token stays when its transaction has ended, so that the next one that needs it asks nobody
//! ([`TokenCache::acquire`]: no message, no allocation). When the service recalls it, transactions that use
//! it go on, later ones queue, and it is given back when the last has ended and the node's tails have gone
//! that far ([`TokenCache::on_sent`]).
//!
//! Every method leaves the state clean; what came of it is taken with [`TokenCache::poll`] before the next.
//! Messages of the service are handed in in the order of its stream, among the records: a grant when its
//! version has been applied.
//!
//! | state of the node | tokens | transactions |
//! |---|---|---|
//! | [linked](TokenCache::on_linked) | asked for, given back | |
//! | [unlinked](TokenCache::on_unlinked) | kept; not given back, nothing asked | go on, wait |
//! | lease over ([`TokenCache::on_renewed`] ends it) | kept; given back, nothing asked | those that have locks go on; who acquires waits |
//! | [lost](TokenCache::lose) | gone | every call says [`TokenError::Lost`], until each has ended |

mod event;
mod pump;
mod token;
mod txn;

use alloc::collections::VecDeque;

use super::table::LockTable;
use super::{LockRequestId, ToCache, ToService, TokenClaim};
use crate::limit::STAMP_LOCKS_MAX;
use crate::{LockId, LockMode, LockVersion, RecordNumber};
use netram_proto::time::Time;
use token::{Token, TokenRecall};
use txn::CacheTxns;

pub use event::{Acquired, CacheEvent, HeldLock, TokenError, UnaskedReply};
pub use txn::TxnId;

/// A node's tokens: see the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenCache {
    tokens: LockTable<Token>,
    txns: CacheTxns,
    /// No kept token is used from here on.
    lease: Time,
    linked: bool,
    /// Which of the node's records have been sent to the server, over the present link or an earlier one that
    /// it has merged.
    sent: RecordNumber,
    ask: LockRequestId,
    /// Tokens that wait for `sent` only.
    unsent: VecDeque<usize>,
    out: VecDeque<CacheEvent>,
}

impl Default for TokenCache {
    fn default() -> TokenCache {
        TokenCache::new()
    }
}

impl TokenCache {
    /// Without tokens, lease or link.
    pub fn new() -> TokenCache {
        TokenCache {
            tokens: LockTable::new(),
            txns: CacheTxns::default(),
            lease: Time(0),
            linked: false,
            sent: RecordNumber(0),
            ask: LockRequestId(0),
            unsent: VecDeque::new(),
            out: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<CacheEvent> {
        self.out.pop_front()
    }

    /// When [`TokenCache::on_tick`] has something to do next.
    pub fn deadline(&self) -> Option<Time> {
        self.txns.waiting().map(|(_, wait)| wait.deadline).min()
    }

    /// Whether kept tokens may be used. What was read under them counts as current if this still holds when
    /// the transaction ends.
    pub fn leased(&self, now: Time) -> bool {
        now < self.lease
    }

    /// Whether the node has a token of this lock, of any mode: then no other node writes under it.
    pub fn keeps(&self, lock: LockId) -> bool {
        let at = self.tokens.find(lock);
        at.is_some_and(|at| self.tokens.at(at).node_hold.is_some())
    }

    /// Whether no transaction is open.
    pub fn idle(&self) -> bool {
        self.txns.live() == 0
    }

    /// A transaction begins. One that is not `undoable` never dies of a lock; it may not acquire out of order
    /// instead.
    pub fn begin(&mut self, undoable: bool) -> TxnId {
        self.txns.begin(undoable)
    }

    /// `txn` wants to use `lock`, which the region must have. It keeps it until it ends. If it has to wait,
    /// then until `deadline`.
    ///
    /// The way through for a token that is here and free is this function alone.
    #[inline]
    pub fn acquire(
        &mut self,
        now: Time,
        txn: TxnId,
        lock: LockId,
        hold: LockMode,
        deadline: Time,
    ) -> Result<Acquired, TokenError> {
        let leased = now < self.lease;
        let state = self.txns.ready(txn)?;
        if leased
            && state.highest.is_none_or(|highest| highest < lock)
            && state.uses.len() < STAMP_LOCKS_MAX
            && let Some(at) = self.tokens.find(lock)
            && self.tokens.at(at).open(hold)
        {
            self.tokens.at_mut(at).enter(hold);
            state.enter(at, lock, hold);
            return Ok(Acquired::Granted);
        }
        self.acquire_or_wait(now, txn, lock, hold, deadline)
    }

    /// `txn` wants all of these; they are sorted, and of two of one lock the stronger counts. In order, so
    /// long as the lowest is above all that it has. Tokens that are not here are asked for all at once.
    pub fn acquire_all(
        &mut self,
        now: Time,
        txn: TxnId,
        locks: &mut [(LockId, LockMode)],
        deadline: Time,
    ) -> Result<Acquired, TokenError> {
        let state = self.txns.ready(txn)?;
        if state.uses.len() + locks.len() > STAMP_LOCKS_MAX {
            return Err(TokenError::TooMany);
        }
        // Taken from the end: the lowest lock, and of two of one lock the stronger.
        locks.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        let (highest, undoable) = (state.highest, state.undoable);
        for (lock, hold) in locks.iter().rev() {
            if Some(*lock) > highest {
                self.ask_ahead(now, *lock, *hold);
            } else if !undoable && self.has(txn, *lock) < Some(*hold) {
                return Err(TokenError::OutOfOrder(*lock));
            }
        }
        let state = self.txns.ready(txn)?;
        state.plan.extend_from_slice(locks);
        state.deadline = deadline;
        self.go_on(now, txn)
    }

    /// What `txn` has.
    pub fn held_locks(&self, txn: TxnId) -> impl Iterator<Item = HeldLock> {
        let uses = self.txns.get(txn).map_or(&[][..], |state| &state.uses[..]);
        uses.iter().map(|used| HeldLock {
            lock: self.tokens.lock(used.at),
            hold: used.hold,
            version: self.tokens.at(used.at).version,
            wrote: used.wrote,
        })
    }

    /// `txn` has written under `lock`: its record makes the version that is returned, once it has ended with
    /// that record's number. `None`: it does not have the lock alone.
    pub fn on_written(&mut self, txn: TxnId, lock: LockId) -> Option<LockVersion> {
        let state = self.txns.get_mut(txn)?;
        let at = self.tokens.find(lock)?;
        let mut uses = state.uses.iter_mut();
        let used = uses.find(|used| used.at == at && used.hold == LockMode::Exclusive)?;
        used.wrote = true;
        Some(self.tokens.at(at).version.next())
    }

    /// `txn` is over: committed by its node's record `number`, which is safe; or, with `None`, without a
    /// record. Its locks are free for others here; for other nodes when the tail of `number` has been
    /// [sent](TokenCache::on_sent).
    pub fn end(&mut self, now: Time, txn: TxnId, number: Option<RecordNumber>) {
        self.cancel(now, txn);
        let Some(mut uses) = self.txns.end(txn) else {
            return;
        };
        for used in &uses {
            let token = self.tokens.at_mut(used.at);
            token.leave(used.hold);
            if let Some(number) = number {
                token.needs = token.needs.max(number);
                if used.wrote {
                    token.version = token.version.next();
                }
            }
            if token.recall.is_some() || !token.queue.is_empty() {
                self.pump(now, used.at);
            }
        }
        uses.clear();
        self.txns.give_back(uses);
    }

    /// `txn` does not wait any more. What it has it keeps. No [`CacheEvent`] comes of it.
    pub fn cancel(&mut self, now: Time, txn: TxnId) {
        let Some(wait) = self.txns.stop(txn) else {
            return;
        };
        let token = self.tokens.at_mut(wait.at);
        token.queue.retain(|waiter| waiter.txn != txn);
        self.pump(now, wait.at);
    }

    /// Time has passed: whoever has waited too long is told.
    pub fn on_tick(&mut self, now: Time) {
        loop {
            let late = self.txns.waiting().find(|(_, wait)| wait.deadline <= now);
            let Some((txn, wait)) = late else {
                return;
            };
            let lock = self.tokens.lock(wait.at);
            self.cancel(now, txn);
            self.out.push_back(CacheEvent::TimedOut(txn, lock));
        }
    }

    /// The lease runs until then.
    pub fn on_renewed(&mut self, now: Time, until: Time) {
        let over = !self.leased(now);
        self.lease = self.lease.max(until);
        // Who found it over waits.
        if over {
            self.pump_all(now);
        }
    }

    /// Every record up to `number` has been sent to the server, over the present link or one whose records it
    /// has merged.
    pub fn on_sent(&mut self, now: Time, number: RecordNumber) {
        self.sent = self.sent.max(number);
        // What still has to wait goes to the end of the list again.
        for _ in 0..self.unsent.len() {
            if let Some(at) = self.unsent.pop_front() {
                self.tokens.at_mut(at).unsent = false;
                self.pump(now, at);
            }
        }
    }

    /// The link is gone: whatever was asked, or recalled, over it is void.
    pub fn on_unlinked(&mut self) {
        self.linked = false;
        self.out.retain(|event| !matches!(event, CacheEvent::Send(_)));
        self.unsent.clear();
        for at in 0..self.tokens.len() {
            let token = self.tokens.at_mut(at);
            token.pending_acquire = None;
            token.recall = None;
            token.unsent = false;
        }
    }

    /// What is to be claimed over a new link.
    pub fn claims(&self) -> impl Iterator<Item = TokenClaim> {
        let claim = |(lock, token): (LockId, &Token)| token.claim(lock);
        self.tokens.iter().filter_map(claim)
    }

    /// There is a new link, the claims have been sent, and the server has merged the node's records up to
    /// `merged`: later ones must be sent again, and until then nothing is given back that they were made
    /// under.
    pub fn on_linked(&mut self, now: Time, merged: RecordNumber) {
        self.linked = true;
        self.sent = merged;
        self.pump_all(now);
    }

    /// The node is fenced, or is to begin anew: everything is lost. Each open transaction has still to
    /// [end](TokenCache::end).
    pub fn lose(&mut self) {
        self.on_unlinked();
        self.lease = Time(0);
        self.tokens = LockTable::new();
        self.out.clear();
        let out = &mut self.out;
        self.txns.lose(|waited| out.push_back(CacheEvent::Lost(waited)));
    }

    /// A message of the service.
    pub fn handle(&mut self, now: Time, message: ToCache) -> Result<(), UnaskedReply> {
        match message {
            ToCache::Grant {
                lock,
                grant,
                hold,
                version,
            } => {
                let at = self.tokens.find(lock).ok_or(UnaskedReply(lock))?;
                let token = self.tokens.at_mut(at);
                if !token.grant(grant, hold, version) {
                    return Err(UnaskedReply(lock));
                }
                self.pump(now, at);
            }
            ToCache::Recall {
                lock,
                grant,
                keep,
                asker,
                waits,
            } => {
                // One that is void has crossed the release, or comes before a later grant.
                let Some(at) = self.tokens.find(lock) else {
                    return Ok(());
                };
                let token = self.tokens.at_mut(at);
                if token.node_hold.is_none() || token.grant != grant {
                    return Ok(());
                }
                if !waits && token.used_against(keep) {
                    self.out
                        .push_back(CacheEvent::Send(ToService::Die { lock, asker }));
                    return Ok(());
                }
                // Whoever an earlier one was for may be gone: the newest is what the first in the service's
                // queue needs.
                token.recall = Some(TokenRecall { keep });
                self.pump(now, at);
            }
            ToCache::Died { lock, ask } => {
                let Some(at) = self.tokens.find(lock) else {
                    return Ok(());
                };
                let token = self.tokens.at_mut(at);
                let Some(asked) = token.pending_acquire.filter(|asked| asked.ask == ask) else {
                    return Ok(());
                };
                token.pending_acquire = None;
                if let Some(front) = token.queue.front().filter(|front| Some(front.txn) == asked.txn) {
                    let txn = front.txn;
                    token.queue.pop_front();
                    self.on_died(txn, lock);
                }
                self.pump(now, at);
            }
        }
        Ok(())
    }
}
