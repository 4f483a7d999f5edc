//! Transactions on a region whose stores are captured or verified: their changes are known when they commit.
//!
//! Captured stores must lie under locks that are held exclusively, and determine which locks were written
//! under. Any other store is a mistake of the program; it is reported by address and undone. A page may hold
//! bytes under several locks, some of them held by other nodes.
//!
//! Where stores are captured by page, only one transaction of a node at a time may store, since a page does
//! not tell which transaction stored to it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use netram_rvm::limit::PAGE_BYTES;
use netram_rvm::{
    CaptureMode, RangeError, RealStorage, Region, RestoreMode, RvmCommitError as Uncommitted, Transaction,
    VerifyMode,
};
use netram_shared_machine::LockMode;
use netram_transport::{WaitStep, yield_core};

use super::super::error::{AcquireError, NodeGone, StrayStores, TxnCommitError};
use super::super::node_log::NodeLog;
use super::Txn;
use crate::server::Spans;

/// Pause between two checks whether another transaction has ended.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_micros(50);

/// How a node's stores are captured.
#[derive(Clone, Copy)]
pub(in super::super) struct StoreTracking {
    capture: CaptureMode,
    /// Whether no page has bytes under two locks.
    aligned: bool,
}

impl StoreTracking {
    pub(in super::super) fn new(capture: CaptureMode, spans: &Spans, region_bytes: u64) -> StoreTracking {
        let on_page = |at: u64| at.is_multiple_of(PAGE_BYTES) || at == region_bytes;
        StoreTracking {
            capture,
            aligned: spans
                .iter()
                .all(|span| on_page(span.offset) && on_page(span.end())),
        }
    }

    /// Whether only declared ranges count as written.
    fn are_declared(self) -> bool {
        self.capture == CaptureMode::Declared
    }

    /// Restore mode of the memory's transaction. Where there are twins, every abort can be undone; and where
    /// a page has bytes under several locks, there must be twins.
    pub(super) fn mode(self, mode: RestoreMode) -> RestoreMode {
        match self.capture {
            CaptureMode::Twins(_) => RestoreMode::Restore,
            CaptureMode::Pages(_) if !self.aligned => RestoreMode::Restore,
            _ => mode,
        }
    }

    /// Prepares a new transaction. Where stores are verified, each transaction is checked for undeclared
    /// stores, even if it declares none.
    pub(super) fn begin(self, inner: &mut Transaction<NodeLog, RealStorage>, region: &Region) {
        if matches!(self.capture, CaptureMode::Verified(_)) {
            let entered = inner.capture(region);
            entered.expect("the transaction is open, and the region is of its memory");
        }
    }
}

impl Txn<'_> {
    /// Prepares for acquiring a lock in this mode. Where stores are captured, later stores count as this
    /// transaction's.
    pub(super) fn enter(&mut self, hold: LockMode) -> Result<(), AcquireError> {
        if hold != LockMode::Exclusive {
            return Ok(());
        }
        if !self.writes {
            self.writes = true;
            self.shared.entered.fetch_add(1, Ordering::SeqCst);
            self.shared.writers.fetch_add(1, Ordering::SeqCst);
        }
        if self.shared.stores.are_declared() {
            return Ok(());
        }
        let since = Instant::now();
        loop {
            let inner = self.inner.as_mut().ok_or(AcquireError::Lost)?;
            match inner.capture(&self.shared.region) {
                Ok(()) => return Ok(()),
                // A transaction with locks must not wait here, or two might wait for each other.
                Err(RangeError::Captured)
                    if self.scratch.locked_spans.is_empty() && since.elapsed() < self.timeout =>
                {
                    match self.shared.wait.step(since.elapsed()) {
                        WaitStep::Poll => std::hint::spin_loop(),
                        WaitStep::Yield => yield_core(),
                        WaitStep::Block => std::thread::sleep(POLL_INTERVAL),
                    }
                }
                Err(RangeError::Captured) => return Err(AcquireError::Captured),
                Err(_) => return Err(AcquireError::Lost),
            }
        }
    }

    /// Collects the captured stores. Marks the locks written under, and checks that all of them are held.
    pub(super) fn gather(&mut self) -> Result<(), TxnCommitError> {
        if self.shared.stores.are_declared() {
            return Ok(());
        }
        let region = &self.shared.region;
        let inner = self.inner.as_mut().ok_or(Uncommitted::Ended)?;
        let within: Vec<_> = self.scratch.locked_spans.exclusive().collect();
        if !within.is_empty() {
            let entered = inner.confine(region, &within);
            entered.map_err(|_| Uncommitted::Ended)?;
        }
        match inner.gather() {
            Ok(()) => {}
            Err(Uncommitted::Outside { first, count }) => {
                return Err(self.stray(first.region_offset, first.length, count));
            }
            // The region begins where its segment does.
            Err(Uncommitted::Undeclared {
                offset,
                length,
                count,
                ..
            }) => return Err(self.stray(offset as usize, length, count)),
            Err(other) => return Err(other.into()),
        }
        for found in inner.gathered(region) {
            if let Ok(places) = self
                .scratch
                .locked_spans
                .cover(found.start, found.end, LockMode::Exclusive)
            {
                self.scratch.locked_spans.set_written(places);
            }
        }
        Ok(())
    }

    /// Commits the memory's transaction: with captured stores the second half, otherwise all of it.
    pub(super) fn commit_inner(&mut self) -> Result<netram_rvm::CommitReceipt, Uncommitted> {
        let inner = self.inner.as_mut().ok_or(Uncommitted::Ended)?;
        // Waiting for safety comes later, when the machine knows the record.
        let lazy = netram_proto::port::Durability::Lazy;
        match self.shared.stores.are_declared() {
            true => inner.try_commit(lazy),
            false => inner.commit_gathered(lazy),
        }
    }

    #[cold]
    fn stray(&self, offset: usize, length: usize, count: usize) -> TxnCommitError {
        let (address, lock) = self.place_of(offset);
        let held = self
            .scratch
            .locked_spans
            .cover(offset, offset + 1, LockMode::Exclusive)
            .is_ok();
        let stray = StrayStores {
            offset,
            address,
            length,
            count,
            lock,
            held,
        };
        tracing::error!(%stray, "commit refused because of stores outside the transaction's locks or declarations");
        TxnCommitError::Stray(stray)
    }

    /// Prepares for the undoing of a transaction that was not committed.
    pub(super) fn before_undoing(&mut self) {
        let region = &self.shared.region;
        if self.shared.stores.capture == CaptureMode::Verified(VerifyMode::Refuse)
            && region.undo_undeclared().is_err()
        {
            self.shared.fail(NodeGone::CopyInvalid);
        }
        if self.corrupts_copy() {
            self.shared.fail(NodeGone::CopyInvalid);
        }
    }

    /// Whether the transaction has changed the node's copy in a way that cannot be undone.
    fn corrupts_copy(&mut self) -> bool {
        let Some(inner) = self.inner.as_mut().filter(|inner| inner.is_open()) else {
            return false;
        };
        if inner.mode() == RestoreMode::Restore {
            return false;
        }
        let finds = !self.shared.stores.are_declared();
        self.scratch.locked_spans.any_written()
            || finds && (inner.gather().is_err() || inner.gathered(&self.shared.region).next().is_some())
    }
}
