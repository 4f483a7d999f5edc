//! Open transactions of a node: the locks that each one uses and waits for. Their memory is reused, so that a
//! short transaction allocates nothing.

use alloc::vec::Vec;

use super::TokenError;
use crate::{LockId, LockMode};
use netram_proto::time::Time;

/// Identifies an open transaction of one [`TokenCache`](super::TokenCache).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxnId {
    index: u32,
    /// Number of transactions that had this index before.
    turn: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CacheTxns {
    all: Vec<CacheTxn>,
    free: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CacheTxn {
    turn: u32,
    live: bool,
    lost: bool,
    pub(super) undoable: bool,
    /// Highest lock in `uses`.
    pub(super) highest: Option<LockId>,
    pub(super) uses: Vec<TokenUse>,
    pub(super) wait: Option<TokenWait>,
    /// Locks still to be acquired, in descending order.
    pub(super) plan: Vec<(LockId, LockMode)>,
    /// Deadline for acquiring the planned locks.
    pub(super) deadline: Time,
}

/// A lock that a transaction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenUse {
    /// Index of its token.
    pub(super) at: usize,
    pub(super) hold: LockMode,
    pub(super) wrote: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenWait {
    /// Index of the token.
    pub(super) at: usize,
    pub(super) deadline: Time,
}

impl CacheTxns {
    pub(super) fn begin(&mut self, undoable: bool) -> TxnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(CacheTxn::default());
            (self.all.len() - 1) as u32
        });
        let txn = &mut self.all[index as usize];
        txn.live = true;
        txn.undoable = undoable;
        TxnId {
            index,
            turn: txn.turn,
        }
    }

    pub(super) fn live(&self) -> usize {
        self.all.len() - self.free.len()
    }

    #[inline]
    pub(super) fn get(&self, txn: TxnId) -> Option<&CacheTxn> {
        let found = self.all.get(txn.index as usize);
        found.filter(|found| found.live && found.turn == txn.turn)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, txn: TxnId) -> Option<&mut CacheTxn> {
        let found = self.all.get_mut(txn.index as usize);
        found.filter(|found| found.live && found.turn == txn.turn)
    }

    /// The transaction, if it may acquire a lock.
    #[inline]
    pub(super) fn ready(&mut self, txn: TxnId) -> Result<&mut CacheTxn, TokenError> {
        let state = self.get_mut(txn).ok_or(TokenError::NoSuchTxn)?;
        match (state.lost, state.wait) {
            (true, _) => Err(TokenError::Lost),
            (false, Some(_)) => Err(TokenError::Waiting),
            (false, None) => Ok(state),
        }
    }

    /// Transactions that wait for a lock.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (TxnId, TokenWait)> {
        let wait = |(index, txn): (usize, &CacheTxn)| {
            let turn = txn.turn;
            let index = index as u32;
            txn.wait.map(|wait| (TxnId { index, turn }, wait))
        };
        self.all.iter().enumerate().filter_map(wait)
    }

    /// Ends a transaction. The returned list of its locks is to be [given back](CacheTxns::give_back).
    pub(super) fn end(&mut self, txn: TxnId) -> Option<Vec<TokenUse>> {
        let state = self.get_mut(txn)?;
        state.live = false;
        state.lost = false;
        state.turn = state.turn.wrapping_add(1);
        state.highest = None;
        state.wait = None;
        state.plan.clear();
        let uses = core::mem::take(&mut state.uses);
        self.free.push(txn.index);
        Some(uses)
    }

    /// Keeps the list's memory for the next transaction.
    pub(super) fn give_back(&mut self, uses: Vec<TokenUse>) {
        assert!(uses.is_empty());
        if let Some(index) = self.free.last() {
            self.all[*index as usize].uses = uses;
        }
    }

    /// Drops the transaction's plan and its waiting. Returns the lock that it waited for.
    pub(super) fn stop(&mut self, txn: TxnId) -> Option<TokenWait> {
        let state = self.get_mut(txn)?;
        state.plan.clear();
        state.wait.take()
    }

    /// Notes that the transaction has the lock that it waited for.
    pub(super) fn stop_waiting(&mut self, txn: TxnId) {
        if let Some(state) = self.get_mut(txn) {
            state.wait = None;
        }
    }

    pub(super) fn enter(&mut self, txn: TxnId, at: usize, lock: LockId, hold: LockMode) {
        if let Some(state) = self.get_mut(txn) {
            state.enter(at, lock, hold);
        }
    }

    /// Drops all tokens, and calls `waited` for each transaction that waited.
    pub(super) fn lose(&mut self, mut waited: impl FnMut(TxnId)) {
        for (index, state) in self.all.iter_mut().enumerate().filter(|(_, state)| state.live) {
            state.lost = true;
            state.uses.clear();
            state.plan.clear();
            state.highest = None;
            if state.wait.take().is_some() {
                waited(TxnId {
                    index: index as u32,
                    turn: state.turn,
                });
            }
        }
    }
}

impl CacheTxn {
    #[inline]
    pub(super) fn enter(&mut self, at: usize, lock: LockId, hold: LockMode) {
        // Only an upgrade is here already, and it was found before: the common path does not search.
        if self.highest >= Some(lock)
            && let Some(used) = self.uses.iter_mut().find(|used| used.at == at)
        {
            used.hold = hold;
            return;
        }
        self.uses.push(TokenUse {
            at,
            hold,
            wrote: false,
        });
        self.highest = self.highest.max(Some(lock));
    }

    /// How the transaction uses the token at index `at`.
    pub(super) fn has(&self, at: usize) -> Option<LockMode> {
        let used = self.uses.iter().find(|used| used.at == at);
        used.map(|used| used.hold)
    }
}
