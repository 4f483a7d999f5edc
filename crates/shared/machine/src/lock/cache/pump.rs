//! Consequences of events: transactions that wait or are served, tokens that are requested or given back.

use super::token::{PendingAcquire, Token, TokenWaiter};
use super::txn::TokenWait;
use super::{Acquired, CacheEvent, TokenCache, TokenError, TxnId};
use crate::limit::STAMP_LOCKS_MAX;
use crate::lock::{LockOrder, ToService};
use crate::{LockId, LockMode};
use netram_proto::time::Time;

impl TokenCache {
    /// The general path: a lock that the transaction has already, an upgrade, a lock out of order, or a token
    /// that is not here or not free.
    pub(super) fn acquire_or_wait(
        &mut self,
        now: Time,
        txn: TxnId,
        lock: LockId,
        hold: LockMode,
        deadline: Time,
    ) -> Result<Acquired, TokenError> {
        let leased = self.leased(now);
        let state = self.txns.ready(txn)?;
        let at = self.tokens.find_or(lock, Token::default);
        let has = state.has(at);
        if has >= Some(hold) {
            return Ok(Acquired::Granted);
        }
        if has.is_none() && state.uses.len() >= STAMP_LOCKS_MAX {
            return Err(TokenError::TooMany);
        }
        let order = match state.highest {
            Some(highest) if highest > lock => LockOrder::Out,
            Some(highest) if highest == lock => LockOrder::Upgrade,
            _ => LockOrder::Up,
        };
        if order != LockOrder::Up && !state.undoable {
            return Err(TokenError::OutOfOrder(lock));
        }
        let waiter = TokenWaiter {
            txn,
            hold,
            order,
            has: has.is_some(),
        };
        let token = self.tokens.at_mut(at);
        if leased && token.serves(&waiter) && (waiter.has || token.queue.is_empty()) {
            self.enter(at, &waiter);
            return Ok(Acquired::Granted);
        }
        let out = match token.line_up(waiter) {
            Ok(out) => out,
            Err(()) => return Err(TokenError::Died(lock)),
        };
        state.wait = Some(TokenWait { at, deadline });
        if let Some(out) = out {
            self.on_died(out.txn, lock);
        }
        self.pump(now, at);
        Ok(Acquired::Waits)
    }

    pub(super) fn has(&self, txn: TxnId, lock: LockId) -> Option<LockMode> {
        self.txns.get(txn)?.has(self.tokens.find(lock)?)
    }

    /// Acquires the rest of a transaction's planned locks, until it has to wait.
    pub(super) fn go_on(&mut self, now: Time, txn: TxnId) -> Result<Acquired, TokenError> {
        loop {
            let state = self.txns.ready(txn)?;
            let deadline = state.deadline;
            let Some((lock, hold)) = state.plan.pop() else {
                return Ok(Acquired::Granted);
            };
            match self.acquire(now, txn, lock, hold, deadline) {
                Ok(Acquired::Granted) => {}
                Ok(Acquired::Waits) => return Ok(Acquired::Waits),
                Err(error) => {
                    if let Ok(state) = self.txns.ready(txn) {
                        state.plan.clear();
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Requests a token that will be wanted, in order, once others have come. No transaction waits by this
    /// request: if the token is recalled before it is wanted, it is given back and requested again.
    pub(super) fn ask_ahead(&mut self, now: Time, lock: LockId, hold: LockMode) {
        let may = self.linked && self.leased(now);
        let at = self.tokens.find_or(lock, Token::default);
        let token = self.tokens.at(at);
        if may && token.node_hold < Some(hold) && token.pending_acquire.is_none() && token.queue.is_empty() {
            self.ask(at, hold, LockOrder::Up, None);
        }
    }

    /// Brings one token's state up to date: gives it back if possible, serves waiting transactions, and
    /// requests what the first remaining one needs.
    pub(super) fn pump(&mut self, now: Time, at: usize) {
        loop {
            self.give_back(at);
            let leased = self.leased(now);
            let token = self.tokens.at_mut(at);
            let Some(front) = token.queue.front().copied() else {
                return;
            };
            if leased && token.serves(&front) {
                token.queue.pop_front();
                self.enter(at, &front);
                self.txns.stop_waiting(front.txn);
                match self.go_on(now, front.txn) {
                    Ok(Acquired::Granted) => self.out.push_back(CacheEvent::Acquired(front.txn)),
                    Ok(Acquired::Waits) => {}
                    // A later lock of `acquire_all`: order and number of locks were checked at its start.
                    Err(TokenError::Died(lock)) => self.out.push_back(CacheEvent::Died(front.txn, lock)),
                    Err(_) => self.out.push_back(CacheEvent::Lost(front.txn)),
                }
                continue;
            }
            // It waited for the lease, and the token has been recalled since.
            if front.order == LockOrder::Out && token.is_used_against(&front) {
                token.queue.pop_front();
                let lock = self.tokens.lock(at);
                self.on_died(front.txn, lock);
                continue;
            }
            // Without a lease the token could not be used. It would be recalled and requested again, over and
            // over.
            if leased && self.linked && token.must_ask(&front) {
                self.ask(at, front.hold, front.order, Some(front.txn));
            }
            return;
        }
    }

    pub(super) fn pump_all(&mut self, now: Time) {
        for at in 0..self.tokens.len() {
            let token = self.tokens.at(at);
            if token.recall.is_some() || !token.queue.is_empty() {
                self.pump(now, at);
            }
        }
    }

    /// Gives back a recalled token, or the part of it that may not be kept, once no transaction uses it and
    /// the records made under it have been sent.
    pub(super) fn give_back(&mut self, at: usize) {
        let lock = self.tokens.lock(at);
        let token = self.tokens.at_mut(at);
        let Some(recall) = token.recall else {
            return;
        };
        if token.node_hold <= recall.keep {
            token.recall = None;
            return;
        }
        if token.used_against(recall.keep) || !self.linked {
            return;
        }
        if token.needs > self.sent {
            if !token.unsent {
                token.unsent = true;
                self.unsent.push_back(at);
            }
            return;
        }
        token.recall = None;
        token.node_hold = recall.keep;
        let (grant, version, keep) = (token.grant, token.version, recall.keep);
        self.out.push_back(CacheEvent::Send(ToService::Release {
            lock,
            grant,
            version,
            keep,
        }));
    }

    pub(super) fn ask(&mut self, at: usize, hold: LockMode, order: LockOrder, txn: Option<TxnId>) {
        self.ask.0 += 1;
        let ask = self.ask;
        let lock = self.tokens.lock(at);
        self.tokens.at_mut(at).pending_acquire = Some(PendingAcquire {
            ask,
            hold,
            order,
            txn,
        });
        self.out.push_back(CacheEvent::Send(ToService::Acquire {
            lock,
            hold,
            order,
            ask,
        }));
    }

    pub(super) fn enter(&mut self, at: usize, waiter: &TokenWaiter) {
        let lock = self.tokens.lock(at);
        let token = self.tokens.at_mut(at);
        if waiter.has {
            token.leave(LockMode::Shared);
        }
        token.enter(waiter.hold);
        self.txns.enter(waiter.txn, at, lock, waiter.hold);
    }

    pub(super) fn on_died(&mut self, txn: TxnId, lock: LockId) {
        self.txns.stop(txn);
        self.out.push_back(CacheEvent::Died(txn, lock));
    }
}
