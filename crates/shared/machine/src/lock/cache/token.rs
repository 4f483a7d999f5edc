//! One lock at a node: its token, the transactions that use it, and those that wait for it.

use alloc::collections::VecDeque;

use super::TxnId;
use crate::lock::{LockOrder, LockRequestId, TokenClaim};
use crate::{GrantNumber, LockId, LockMode, LockVersion, RecordNumber};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Token {
    /// How the node holds the lock; `None`: not at all.
    pub(super) node_hold: Option<LockMode>,
    /// Number of the hand-over that gave the token.
    pub(super) grant: GrantNumber,
    pub(super) version: LockVersion,
    /// Number of transactions that hold the lock shared.
    readers: u32,
    /// Whether a transaction holds the lock exclusively.
    writer: bool,
    /// Last record made under the token, which is given back only after that record was sent.
    pub(super) needs: RecordNumber,
    /// Whether only `needs` keeps the token from being given back. It is then in the cache's list `unsent`.
    pub(super) unsent: bool,
    pub(super) recall: Option<TokenRecall>,
    pub(super) pending_acquire: Option<PendingAcquire>,
    pub(super) queue: VecDeque<TokenWaiter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenRecall {
    pub(super) keep: Option<LockMode>,
}

/// A request to the service that has not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingAcquire {
    pub(super) ask: LockRequestId,
    pub(super) hold: LockMode,
    pub(super) order: LockOrder,
    /// Transaction that was first in the queue; `None`: no transaction waits yet.
    pub(super) txn: Option<TxnId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenWaiter {
    pub(super) txn: TxnId,
    pub(super) hold: LockMode,
    pub(super) order: LockOrder,
    /// Whether the transaction holds the lock shared already.
    pub(super) has: bool,
}

impl Token {
    /// Whether a transaction without the lock may take it now, with no other one before it.
    #[inline]
    pub(super) fn open(&self, hold: LockMode) -> bool {
        self.free(hold) && self.queue.is_empty()
    }

    #[inline]
    fn free(&self, hold: LockMode) -> bool {
        let alone = hold == LockMode::Shared || self.readers == 0;
        self.node_hold >= Some(hold) && self.recall.is_none() && !self.writer && alone
    }

    /// Whether the first of the queue may take the lock now. A recall of the whole token does not keep a
    /// reader from upgrading, since the recall waits for the reader's end anyway. A recall that lets the node
    /// keep its part may be for a request that must not wait, and may be met soon.
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

    /// Whether some transaction's use exceeds `keep`.
    pub(super) fn used_against(&self, keep: Option<LockMode>) -> bool {
        self.writer || (keep.is_none() && self.readers > 0)
    }

    /// Queues a transaction by the rules of [`LockOrder`]. `Ok` may return one that was out of order and must
    /// not wait for it; `Err` means that this one must not wait.
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

    /// Whether a transaction would have to wait for others that use the lock, directly or by a recall that
    /// waits for them.
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

    /// Takes a granted token. Returns `false` if none was requested, or the grant does not fit the request.
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
