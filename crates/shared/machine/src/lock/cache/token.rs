//! One lock at a node: its token, who uses it, who waits for it.

use alloc::collections::VecDeque;

use super::TxnId;
use crate::lock::{Ask, Claim, Order};
use crate::{Grant, Hold, LockId, Number, Version};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Token {
    /// How the node holds the lock.
    pub(super) held: Option<Hold>,
    /// The hand-over that gave it.
    pub(super) grant: Grant,
    pub(super) version: Version,
    /// Transactions that use it shared.
    readers: u32,
    /// One uses it alone.
    writer: bool,
    /// Records made under it go up to this one: it is not given back before they have been sent.
    pub(super) needs: Number,
    /// It would be given back if they had been, and is in the cache's list of those.
    pub(super) unsent: bool,
    pub(super) recall: Option<Recall>,
    pub(super) asked: Option<Asked>,
    pub(super) queue: VecDeque<Waiter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recall {
    pub(super) keep: Option<Hold>,
}

/// What the service has been asked for, and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub(super) ask: Ask,
    pub(super) hold: Hold,
    pub(super) order: Order,
    /// Who was first in the queue; `None`: nobody yet.
    pub(super) txn: Option<TxnId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) txn: TxnId,
    pub(super) hold: Hold,
    pub(super) order: Order,
    /// It uses the lock shared already.
    pub(super) has: bool,
}

impl Token {
    /// Whether a transaction that does not use the lock yet may do so now, with nobody before it.
    #[inline]
    pub(super) fn open(&self, hold: Hold) -> bool {
        self.free(hold) && self.queue.is_empty()
    }

    #[inline]
    fn free(&self, hold: Hold) -> bool {
        let alone = hold == Hold::Shared || self.readers == 0;
        self.held >= Some(hold) && self.recall.is_none() && !self.writer && alone
    }

    /// Whether the first of the queue may use the lock now. One that already reads is not kept from writing by a recall of the whole token:
    /// that waits for its end anyhow. A recall that leaves it what it has may be about to be met, for one that must not wait.
    pub(super) fn serves(&self, waiter: &Waiter) -> bool {
        let gives_way = self.recall.is_some_and(|recall| recall.keep.is_some());
        match waiter.has {
            true => self.held == Some(Hold::Exclusive) && self.readers == 1 && !gives_way,
            false => self.free(waiter.hold),
        }
    }

    #[inline]
    pub(super) fn enter(&mut self, hold: Hold) {
        match hold {
            Hold::Shared => self.readers += 1,
            Hold::Exclusive => self.writer = true,
        }
    }

    #[inline]
    pub(super) fn leave(&mut self, hold: Hold) {
        match hold {
            Hold::Shared => self.readers -= 1,
            Hold::Exclusive => self.writer = false,
        }
    }

    /// Whether some transaction's use is more than `keep`.
    pub(super) fn used_against(&self, keep: Option<Hold>) -> bool {
        self.writer || (keep.is_none() && self.readers > 0)
    }

    /// Puts a transaction into the queue, by the rules of [`Order`]. `Ok` names one that was out of order and must not wait for it;
    /// `Err`: this one must not wait.
    pub(super) fn line_up(&mut self, waiter: Waiter) -> Result<Option<Waiter>, ()> {
        let front = self.queue.front().copied();
        match waiter.order {
            Order::Up => {
                self.queue.push_back(waiter);
                Ok(None)
            }
            Order::Upgrade => {
                if front.is_some_and(|front| front.order == Order::Upgrade) {
                    return Err(());
                }
                let out = front.filter(|front| front.order == Order::Out);
                if out.is_some() {
                    self.queue.pop_front();
                }
                self.queue.push_front(waiter);
                Ok(out)
            }
            Order::Out => {
                let waits = self.asked.is_some_and(|asked| asked.order != Order::Out);
                if front.is_some() || self.is_used_against(&waiter) || waits {
                    return Err(());
                }
                self.queue.push_front(waiter);
                Ok(None)
            }
        }
    }

    /// Whether a transaction would have to wait for others that use the lock: because of what they do, or of a recall that waits for them.
    pub(super) fn is_used_against(&self, waiter: &Waiter) -> bool {
        let others = self.writer || self.readers > u32::from(waiter.has);
        match waiter.hold {
            Hold::Exclusive => others,
            Hold::Shared => self.writer || (others && self.recall.is_some()),
        }
    }

    /// Whether the service has to be asked for what the first of the queue needs.
    pub(super) fn must_ask(&self, front: &Waiter) -> bool {
        let jumps = |asked: Asked| front.order == Order::Upgrade && asked.order != Order::Upgrade;
        self.held < Some(front.hold) && self.asked.is_none_or(jumps)
    }

    /// A token has come. `false`: none was asked for, or it cannot be this one.
    pub(super) fn grant(&mut self, grant: Grant, hold: Hold, version: Version) -> bool {
        let Some(asked) = self.asked else {
            return false;
        };
        if grant <= self.grant || version < self.version || Some(hold) <= self.held {
            return false;
        }
        if hold >= asked.hold {
            self.asked = None;
        }
        self.held = Some(hold);
        self.grant = grant;
        self.version = version;
        self.recall = None;
        true
    }

    pub(super) fn claim(&self, lock: LockId) -> Option<Claim> {
        let (grant, version) = (self.grant, self.version);
        self.held.map(|hold| Claim {
            lock,
            grant,
            hold,
            version,
        })
    }
}
