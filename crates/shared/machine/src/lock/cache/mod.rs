//! A node's side of locking: its tokens, the transactions that use them, and those that wait.
//!
//! A token stays at the node when its transaction has ended, so that the next one needs no message and no
//! allocation ([`TokenCache::acquire`]). When the service recalls it, transactions that use it go on and
//! later ones queue. The token is given back when the last user has ended and the node's records have been
//! sent that far ([`TokenCache::on_sent`]).
//!
//! Every method leaves the state consistent; take the results with [`TokenCache::poll`] before the next call.
//! Hand in the service's messages in the order of its stream, among the records: a grant once its version has
//! been applied.
//!
//! | state of the node | tokens | transactions |
//! |---|---|---|
//! | [linked](TokenCache::on_linked) | requested and given back | |
//! | [unlinked](TokenCache::on_unlinked) | kept; none is requested or given back | go on, or wait |
//! | lease over ([`TokenCache::on_renewed`] renews it) | kept; given back, none is requested | those with
//! locks go on; new requests wait |
//! | [lost](TokenCache::lose) | gone | every call returns [`TokenError::Lost`] until each has ended |

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

/// Tokens and transactions of one node; see the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenCache {
    tokens: LockTable<Token>,
    txns: CacheTxns,
    /// Time after which no kept token may be used.
    lease: Time,
    linked: bool,
    /// Last record of this node that was sent to the server: over the present link, or over an earlier one if
    /// the server has merged it.
    sent: RecordNumber,
    ask: LockRequestId,
    /// Tokens that wait only for `sent`.
    unsent: VecDeque<usize>,
    out: VecDeque<CacheEvent>,
}

impl Default for TokenCache {
    fn default() -> TokenCache {
        TokenCache::new()
    }
}

impl TokenCache {
    /// Creates a cache without tokens, lease or link.
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

    /// Next event for the driver.
    pub fn poll(&mut self) -> Option<CacheEvent> {
        self.out.pop_front()
    }

    /// Next time at which [`TokenCache::on_tick`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        self.txns.waiting().map(|(_, wait)| wait.deadline).min()
    }

    /// Whether kept tokens may be used. Data read under them is current if this still holds when the
    /// transaction ends.
    pub fn leased(&self, now: Time) -> bool {
        now < self.lease
    }

    /// Whether the node has a token of this lock, of either mode. No other node writes under the lock then.
    pub fn keeps(&self, lock: LockId) -> bool {
        let at = self.tokens.find(lock);
        at.is_some_and(|at| self.tokens.at(at).node_hold.is_some())
    }

    /// Whether no transaction is open.
    pub fn idle(&self) -> bool {
        self.txns.live() == 0
    }

    /// Begins a transaction. One that is not `undoable` never dies because of a lock, but may not acquire out
    /// of order.
    pub fn begin(&mut self, undoable: bool) -> TxnId {
        self.txns.begin(undoable)
    }

    /// Acquires `lock` for `txn`, which keeps it until it ends and may wait for it until `deadline`. The
    /// region must have the lock. If the token is here and free, this function alone serves the request.
    ///
    /// # Errors
    ///
    /// [`TokenError`] if the lock is out of order and must not be waited for, or if the transaction has too
    /// many locks, is waiting, has lost its locks or has ended.
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

    /// Acquires all of these locks; they are sorted, and of two requests for one lock the stronger counts.
    /// They are in order if the lowest is above every lock that `txn` has. Missing tokens are requested all
    /// at once.
    ///
    /// # Errors
    ///
    /// The same as for [`TokenCache::acquire`].
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
        // Taken from the end: the lowest lock, and of two requests for one lock the stronger.
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

    /// Locks that `txn` has.
    pub fn held_locks(&self, txn: TxnId) -> impl Iterator<Item = HeldLock> {
        let uses = self.txns.get(txn).map_or(&[][..], |state| &state.uses[..]);
        uses.iter().map(|used| HeldLock {
            lock: self.tokens.lock(used.at),
            hold: used.hold,
            version: self.tokens.at(used.at).version,
            wrote: used.wrote,
        })
    }

    /// Notes that `txn` has written under `lock`. Returns the version that its record makes, once `txn` has
    /// ended with that record's number. `None`: `txn` does not hold the lock exclusively.
    pub fn on_written(&mut self, txn: TxnId, lock: LockId) -> Option<LockVersion> {
        let state = self.txns.get_mut(txn)?;
        let at = self.tokens.find(lock)?;
        let mut uses = state.uses.iter_mut();
        let used = uses.find(|used| used.at == at && used.hold == LockMode::Exclusive)?;
        used.wrote = true;
        Some(self.tokens.at(at).version.next())
    }

    /// Ends `txn`: committed by its node's safe record `number`, or without a record. Its locks are free for
    /// other transactions here at once. Other nodes can get them when record `number` has been
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

    /// Stops the waiting of `txn`, which keeps the locks that it has. No [`CacheEvent`] follows.
    pub fn cancel(&mut self, now: Time, txn: TxnId) {
        let Some(wait) = self.txns.stop(txn) else {
            return;
        };
        let token = self.tokens.at_mut(wait.at);
        token.queue.retain(|waiter| waiter.txn != txn);
        self.pump(now, wait.at);
    }

    /// Ends the waiting of transactions whose deadline has passed.
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

    /// Extends the lease to `until`.
    pub fn on_renewed(&mut self, now: Time, until: Time) {
        let over = !self.leased(now);
        self.lease = self.lease.max(until);
        // Requests that found the lease over are waiting.
        if over {
            self.pump_all(now);
        }
    }

    /// Notes that every record up to `number` was sent: over the present link, or over an earlier one if the
    /// server has merged it.
    pub fn on_sent(&mut self, now: Time, number: RecordNumber) {
        self.sent = self.sent.max(number);
        // A token that still has to wait goes to the end of the list again.
        for _ in 0..self.unsent.len() {
            if let Some(at) = self.unsent.pop_front() {
                self.tokens.at_mut(at).unsent = false;
                self.pump(now, at);
            }
        }
    }

    /// Notes that the link is gone: requests and recalls over it are void.
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

    /// Tokens to claim over a new link.
    pub fn claims(&self) -> impl Iterator<Item = TokenClaim> {
        let claim = |(lock, token): (LockId, &Token)| token.claim(lock);
        self.tokens.iter().filter_map(claim)
    }

    /// Notes that a new link is up and the claims have been sent. The server has merged the node's records up
    /// to `merged`; later ones must be sent again before tokens used for them are given back.
    pub fn on_linked(&mut self, now: Time, merged: RecordNumber) {
        self.linked = true;
        self.sent = merged;
        self.pump_all(now);
    }

    /// Drops all tokens, because the node is fenced or starts anew. Each open transaction must still be
    /// [ended](TokenCache::end).
    pub fn lose(&mut self) {
        self.on_unlinked();
        self.lease = Time(0);
        self.tokens = LockTable::new();
        self.out.clear();
        let out = &mut self.out;
        self.txns.lose(|waited| out.push_back(CacheEvent::Lost(waited)));
    }

    /// Handles a message of the service.
    ///
    /// # Errors
    ///
    /// [`UnaskedReply`] if a token is granted that was not requested.
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
                // A void recall has crossed the release on the link, or precedes a later grant.
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
                // The requester of an earlier recall may be gone. The newest recall is for the first request
                // in the service's queue.
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
