//! Transactions on a region whose stores are found, or verified: what they changed is known when they commit.
//!
//! What is found must lie under locks that are held exclusively; it says which locks were written under. Anything else is a mistake of
//! the program, and is named by address and put back. Pages may hold bytes under several locks, also such as other nodes hold.
//!
//! One transaction of a node at a time may store where stores are found by page: a page does not say whose a store is.

use std::sync::atomic::Ordering;
use std::time::Instant;

use netram_rvm::limit::PAGE_BYTES;
use netram_rvm::{
    Capture, CommitError as Uncommitted, Mode, RangeError, RealStorage, Region, Transaction, Verify,
};
use netram_shared_machine::Hold;
use netram_transport::WaitStep;

use super::super::error::{AcquireError, CommitError, Gone, Stray};
use super::super::tails::Tails;
use super::Txn;
use crate::server::Spans;

/// Between two looks whether another transaction has ended.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_micros(50);

/// How a node's stores are found.
#[derive(Clone, Copy)]
pub(in super::super) struct Stores {
    capture: Capture,
    /// No page has bytes under two locks.
    aligned: bool,
}

impl Stores {
    pub(in super::super) fn new(capture: Capture, spans: &Spans, region_bytes: u64) -> Stores {
        let on_page = |at: u64| at.is_multiple_of(PAGE_BYTES) || at == region_bytes;
        Stores {
            capture,
            aligned: spans
                .iter()
                .all(|span| on_page(span.offset) && on_page(span.end())),
        }
    }

    /// The program's declarations are all that is to be known.
    fn are_declared(self) -> bool {
        self.capture == Capture::Declared
    }

    /// The memory's mode for a transaction of this mode. Where there are twins anyway, every abort can be undone; and
    /// there must be some where a page has bytes under several locks.
    pub(super) fn mode(self, mode: Mode) -> Mode {
        match self.capture {
            Capture::Twins(_) => Mode::Restore,
            Capture::Pages(_) if !self.aligned => Mode::Restore,
            _ => mode,
        }
    }

    /// A transaction begins. Where stores are verified, each looks for those that it has not declared, also if it declares none.
    pub(super) fn begin(self, inner: &mut Transaction<Tails, RealStorage>, region: &Region) {
        if matches!(self.capture, Capture::Verified(_)) {
            let entered = inner.capture(region);
            entered.expect("the transaction is open, and the region is of its memory");
        }
    }
}

impl Txn<'_> {
    /// A lock is going to be acquired like this. Where stores are found, those from now on are this transaction's.
    pub(super) fn enter(&mut self, hold: Hold) -> Result<(), AcquireError> {
        if hold != Hold::Exclusive {
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
                // Who holds locks waits upwards only, or two might wait for each other.
                Err(RangeError::Captured)
                    if self.scratch.held.is_empty() && since.elapsed() < self.timeout =>
                {
                    match self.shared.wait.step(since.elapsed()) {
                        WaitStep::Poll => std::hint::spin_loop(),
                        WaitStep::Yield => std::thread::yield_now(),
                        WaitStep::Block => std::thread::sleep(LOOK_EVERY),
                    }
                }
                Err(RangeError::Captured) => return Err(AcquireError::Captured),
                Err(_) => return Err(AcquireError::Lost),
            }
        }
    }

    /// Finds what was stored: which locks were written under, and whether all of them are held.
    pub(super) fn gather(&mut self) -> Result<(), CommitError> {
        if self.shared.stores.are_declared() {
            return Ok(());
        }
        let region = &self.shared.region;
        let inner = self.inner.as_mut().ok_or(Uncommitted::Ended)?;
        let within: Vec<_> = self.scratch.held.exclusive().collect();
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
            if let Ok(places) = self.scratch.held.cover(found.start, found.end, Hold::Exclusive) {
                self.scratch.held.set_written(places);
            }
        }
        Ok(())
    }

    /// The second half of the memory's commit, or both.
    pub(super) fn commit_inner(&mut self) -> Result<netram_rvm::Commit, Uncommitted> {
        let inner = self.inner.as_mut().ok_or(Uncommitted::Ended)?;
        // Whether that is safe is waited for when the machine knows of it.
        let lazy = netram_proto::port::Durability::Lazy;
        match self.shared.stores.are_declared() {
            true => inner.try_commit(lazy),
            false => inner.commit_gathered(lazy),
        }
    }

    #[cold]
    fn stray(&self, offset: usize, length: usize, count: usize) -> CommitError {
        let (address, lock) = self.place_of(offset);
        let held = self
            .scratch
            .held
            .cover(offset, offset + 1, Hold::Exclusive)
            .is_ok();
        let stray = Stray {
            offset,
            address,
            length,
            count,
            lock,
            held,
        };
        tracing::error!(%stray, "a commit is refused");
        CommitError::Stray(stray)
    }

    /// What is to be done before the memory undoes a transaction that has not been committed.
    pub(super) fn before_undoing(&mut self) {
        let region = &self.shared.region;
        if self.shared.stores.capture == Capture::Verified(Verify::Refuse)
            && region.undo_undeclared().is_err()
        {
            self.shared.fail(Gone::Spoilt);
        }
        if self.spoils() {
            self.shared.fail(Gone::Spoilt);
        }
    }

    /// It has changed the node's copy, and nothing will change it back.
    fn spoils(&mut self) -> bool {
        let Some(inner) = self.inner.as_mut().filter(|inner| inner.is_open()) else {
            return false;
        };
        if inner.mode() == Mode::Restore {
            return false;
        }
        let finds = !self.shared.stores.are_declared();
        self.scratch.held.any_written()
            || finds && (inner.gather().is_err() || inner.gathered(&self.shared.region).next().is_some())
    }
}
