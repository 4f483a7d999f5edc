//! One lock at a node: its token, who uses it, who waits for it.

use alloc::collections::VecDeque;

use super::TxnId;
use crate::lock::{LockOrder, LockRequestId, TokenClaim};
use crate::{GrantNumber, LockId, LockMode, LockVersion, RecordNumber};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Token {
    /// How the node holds the lock.
    pub(super) node_hold: Option<LockMode>,
    /// The hand-over that gave it.
    pub(super) grant: GrantNumber,
    pub(super) version: LockVersion,
    /// Transactions that use it shared.
    readers: u32,
    /// One uses it alone.
    writer: bool,
    /// Records made under it go up to this one: it is not given back before they have been sent.
    pub(super) needs: RecordNumber,
    /// It would be given back if they had been, and is in the cache's list of those.
    pub(super) unsent: bool,
    pub(super) recall: Option<TokenRecall>,
    pub(super) pending_acquire: Option<PendingAcquire>,
    pub(super) queue: VecDeque<TokenWaiter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenRecall {
    pub(super) keep: Option<LockMode>,
}

/// What the service has been asked for, and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingAcquire {
    pub(super) ask: LockRequestId,
    pub(super) hold: LockMode,
    pub(super) order: LockOrder,
    /// Who was first in the queue; `None`: nobody yet.
    pub(super) txn: Option<TxnId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenWaiter {
    pub(super) txn: TxnId,
    pub(super) hold: LockMode,
    pub(super) order: LockOrder,
    /// It uses the lock shared already.
    pub(super) has: bool,
}

impl Token {
    /// Whether a transaction that does not use the lock yet may do so now, with nobody before it.
    #[inline]
    pub(super) fn open(&self, hold: LockMode) -> bool {
        self.free(hold) && self.queue.is_empty()
    }

    #[inline]
    fn free(&self, hold: LockMode) -> bool {
        let alone = hold == LockMode::Shared || self.readers == 0;
        self.node_hold >= Some(hold) && self.recall.is_none() && !self.writer && alone
    }

    /// Whether the first of the queue may use the lock now. One that already reads is not kept from writing
    /// by a recall of the whole token: that waits for its end anyhow. A recall that leaves it what it has may
    /// be about to be met, for one that must not wait.
    pub(super) fn serves(&self, waiter: &TokenWaiter) -> bool {
        let gives_way = self.recall.is_some_and(|recall| recall.keep.is_some());
        match waiter.has {
            true => self.node_hold == Some(LockMode::Exclusive) && self.readers == 1 && !gives_way,
            false => self.free(waiter.hold),
        }
    }

    #[inline]
    pub(super) fn enter(&mut self, hold: LockMode) {
        match hold {
            LockMode::Shared => self.readers += 1,
            LockMode::Exclusive => self.writer = true,
        }
    }

    #[inline]
    pub(super) fn leave(&mut self, hold: LockMode) {
        match hold {
            LockMode::Shared => self.readers -= 1,
            LockMode::Exclusive => self.writer = false,
        }
    }

    /// Whether some transaction's use is more than `keep`.
    pub(super) fn used_against(&self, keep: Option<LockMode>) -> bool {
        self.writer || (keep.is_none() && self.readers > 0)
    }

    /// Puts a transaction into the queue, by the rules of [`LockOrder`]. `Ok` names one that was out of order
    /// and must not wait for it; `Err`: this one must not wait.
    pub(super) fn line_up(&mut self, waiter: TokenWaiter) -> Result<Option<TokenWaiter>, ()> {
        let front = self.queue.front().copied();
        match waiter.order {
            LockOrder::Up => {
                self.queue.push_back(waiter);
                Ok(None)
            }
            LockOrder::Upgrade => {
                if front.is_some_and(|front| front.order == LockOrder::Upgrade) {
                    return Err(());
                }
                let out = front.filter(|front| front.order == LockOrder::Out);
                if out.is_some() {
                    self.queue.pop_front();
                }
                self.queue.push_front(waiter);
                Ok(out)
            }
            LockOrder::Out => {
                let waits = self
                    .pending_acquire
                    .is_some_and(|asked| asked.order != LockOrder::Out);
                if front.is_some() || self.is_used_against(&waiter) || waits {
                    return Err(());
                }
                self.queue.push_front(waiter);
                Ok(None)
            }
        }
    }

    /// Whether a transaction would have to wait for others that use the lock: because of what they do, or of
    /// a recall that waits for them.
    pub(super) fn is_used_against(&self, waiter: &TokenWaiter) -> bool {
        let others = self.writer || self.readers > u32::from(waiter.has);
        match waiter.hold {
            LockMode::Exclusive => others,
            LockMode::Shared => self.writer || (others && self.recall.is_some()),
        }
    }

    /// Whether the service has to be asked for what the first of the queue needs.
    pub(super) fn must_ask(&self, front: &TokenWaiter) -> bool {
        let jumps =
            |asked: PendingAcquire| front.order == LockOrder::Upgrade && asked.order != LockOrder::Upgrade;
        self.node_hold < Some(front.hold) && self.pending_acquire.is_none_or(jumps)
    }

    /// A token has come. `false`: none was asked for, or it cannot be this one.
    pub(super) fn grant(&mut self, grant: GrantNumber, hold: LockMode, version: LockVersion) -> bool {
        let Some(asked) = self.pending_acquire else {
            return false;
        };
        if grant <= self.grant || version < self.version || Some(hold) <= self.node_hold {
            return false;
        }
        if hold >= asked.hold {
            self.pending_acquire = None;
        }
        self.node_hold = Some(hold);
        self.grant = grant;
        self.version = version;
        self.recall = None;
        true
    }

    pub(super) fn claim(&self, lock: LockId) -> Option<TokenClaim> {
        let (grant, version) = (self.grant, self.version);
        self.node_hold.map(|hold| TokenClaim {
            lock,
            grant,
            hold,
            version,
        })
    }
}
