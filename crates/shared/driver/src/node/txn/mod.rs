//! Transactions on shared memory: locks, then ranges ([`locked_spans`]), then a commit ([`commit`]).
//!
//! Acquiring a lock whose token is here costs the node's lock and a look at the clock, 80 ns: `cargo run
//! --release -p netram-shared --example transaction`.

mod commit;
mod heap;
mod locked_spans;
mod stores;
mod transact;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netram_proto::time::{Nanos, Time};
use netram_rvm::{ExclusiveGuard, RangeError, RealStorage, RestoreMode, Transaction};
use netram_shared_machine::limit::STAMP_LOCKS_MAX;
use netram_shared_machine::lock::{Acquired, TokenError as Refused, TxnId};
use netram_shared_machine::node::NodePhase;
use netram_shared_machine::{LockId, LockMode, Stamp};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::core::{NodeCore, Sleeper};
use super::error::{AcquireError, DeclareError, NodeGone, ReadError};
use super::inner::NodeInner;
use super::node_log::NodeLog;
use super::node_ref::NodeRef;
use locked_spans::LockedSpans;
pub(super) use stores::StoreTracking;
pub use transact::TxnEdit;

/// A transaction of a node. Dropping it aborts it.
///
/// | the paper | here |
/// |---|---|
/// | `Trans.Begin` | [`Node::begin`](crate::Node::begin) |
/// | `Trans.Acquire` | [`acquire`](Txn::acquire), [`acquire_all`](Txn::acquire_all) |
/// | `Trans.SetRange` | [`set_range`](Txn::set_range); [`write`](Txn::write) and [`set`](Txn::set) store, too
/// |
/// | `Trans.Commit` | [`commit`](Txn::commit) |
/// | `Trans.Abort` | [`abort`](Txn::abort), or dropping it |
///
/// Locks are held until the transaction ends. While it waits for a lock or commits, its thread must hold no
/// guard of the region: records may have to be applied first.
pub struct Txn<'n> {
    shared: NodeRef<'n>,
    /// `None`: the transaction has ended.
    inner: Option<Transaction<NodeLog, RealStorage>>,
    id: TxnId,
    mode: RestoreMode,
    scratch: TxnScratch,
    timeout: Duration,
    /// Whether the machine knows that the transaction has ended.
    ended: bool,
    /// Whether the transaction counts among those that may store.
    writes: bool,
}

/// Data that a transaction collects. Its memory is reused, so that a short transaction allocates nothing.
#[derive(Default)]
pub(super) struct TxnScratch {
    locked_spans: LockedSpans,
    /// Locks in the order in which they are acquired.
    locks: Vec<(LockId, LockMode)>,
    stamp: Stamp,
    /// The encoded stamp.
    preamble: Vec<u8>,
}

impl TxnScratch {
    pub(super) fn clear(&mut self) {
        self.locked_spans.clear();
        self.locks.clear();
        self.stamp.clear();
        self.preamble.clear();
    }
}

impl<'n> Txn<'n> {
    pub(super) fn begin(
        shared: NodeRef<'n>,
        mode: RestoreMode,
        timeout: Duration,
    ) -> Result<Txn<'n>, NodeGone> {
        let undoable = mode == RestoreMode::Restore;
        let (id, scratch) = {
            let mut core = shared.core();
            core.alive()?;
            match core.machine.state() {
                NodePhase::Whole => (core.machine.begin(undoable), core.take_scratch()),
                _ => return Err(NodeGone::Behind),
            }
        };
        let mut inner = shared.rvm.begin(shared.stores.mode(mode));
        shared.stores.begin(&mut inner, &shared.region);
        Ok(Txn {
            inner: Some(inner),
            shared,
            id,
            mode,
            scratch,
            timeout,
            ended: false,
            writes: false,
        })
    }

    /// Sets how long an acquire waits for other transactions; initially
    /// [`NodeOptions::lock_timeout`](crate::NodeOptions::lock_timeout).
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Acquires a lock until the transaction ends: shared to read what it covers, exclusive to write there.
    ///
    /// Acquire locks in ascending order, or all at once: then the transaction waits for their holders. Out of
    /// order it waits for no other transaction, and dies at once instead.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the region does not have the lock, or the transaction must not wait for it or
    /// waited in vain, or the node has lost its locks or has ended.
    #[inline]
    pub fn acquire(&mut self, lock: LockId, hold: LockMode) -> Result<(), AcquireError> {
        let place = self.shared.spans.find(lock).ok_or(AcquireError::NoLock(lock))?;
        self.enter(hold)?;
        let (id, timeout) = (self.id, self.timeout);
        let sleeper = self.shared.with(|core, now| {
            core.alive()?;
            let acquired = core.machine.acquire(now, id, lock, hold, after(now, timeout));
            sleeper(core, id, acquired)
        })?;
        self.await_turn(sleeper)?;
        self.scratch.locked_spans.enter(self.shared.spans.at(place), hold);
        Ok(())
    }

    /// Acquires several locks, in ascending order whatever order they are named in.
    ///
    /// # Errors
    ///
    /// The same as for [`Txn::acquire`].
    pub fn acquire_all(&mut self, locks: &[(LockId, LockMode)]) -> Result<(), AcquireError> {
        for (lock, _) in locks {
            self.shared.spans.find(*lock).ok_or(AcquireError::NoLock(*lock))?;
        }
        self.enter(
            locks
                .iter()
                .map(|(_, hold)| *hold)
                .max()
                .unwrap_or(LockMode::Shared),
        )?;
        let (id, timeout) = (self.id, self.timeout);
        let sorted = &mut self.scratch.locks;
        sorted.clear();
        sorted.extend_from_slice(locks);
        let sleeper = self.shared.with(|core, now| {
            core.alive()?;
            let until = after(now, timeout);
            let acquired = core.machine.acquire_all(now, id, sorted, until);
            sleeper(core, id, acquired)
        })?;
        self.await_turn(sleeper)?;
        for (lock, hold) in locks {
            if let Some(place) = self.shared.spans.find(*lock) {
                self.scratch
                    .locked_spans
                    .enter(self.shared.spans.at(place), *hold);
            }
        }
        Ok(())
    }

    #[inline]
    fn await_turn(&self, sleeper: Option<std::sync::Arc<Sleeper>>) -> Result<(), AcquireError> {
        if let Some(sleeper) = sleeper {
            self.shared.sleep(self.id, &sleeper)?;
        }
        Ok(self.shared.catch_up()?)
    }

    /// Copies the value at `offset`, which need not be aligned. All of its bytes must be under held locks.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if a byte is under no lock that is held, or outside the region.
    pub fn get<T: FromBytes>(&self, offset: usize) -> Result<T, ReadError> {
        self.readable(offset, size_of::<T>())?;
        Ok(self.shared.region.get(offset)?)
    }

    /// Copies bytes from `offset` on. All of them must be under held locks.
    ///
    /// [`Node::region`](crate::Node::region) reads without that check.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if a byte is under no lock that is held, or outside the region.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), ReadError> {
        self.readable(offset, into.len())?;
        Ok(self.shared.region.read_into(offset, into)?)
    }

    fn readable(&self, offset: usize, length: usize) -> Result<(), ReadError> {
        let end = self.inside(offset, length)?;
        match self.scratch.locked_spans.cover(offset, end, LockMode::Shared) {
            Ok(_) => Ok(()),
            Err(offset) => {
                let (address, lock) = self.place_of(offset);
                Err(match lock {
                    Some(lock) => ReadError::NotHeld {
                        offset,
                        address,
                        lock,
                    },
                    None => ReadError::NoLock { offset, address },
                })
            }
        }
    }

    /// Declares that these bytes will change. All of them must be under locks that are held exclusively.
    ///
    /// # Errors
    ///
    /// [`DeclareError`] if a byte is under no lock that is held exclusively, or outside the region.
    pub fn set_range(&mut self, offset: usize, length: usize) -> Result<(), DeclareError> {
        self.declare(offset, length, |inner, shared| {
            inner.set_range(&shared.region, offset, length)
        })
    }

    /// Declares the bytes and stores them.
    ///
    /// # Errors
    ///
    /// The same as for [`Txn::set_range`].
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), DeclareError> {
        self.declare(offset, bytes.len(), |inner, shared| {
            inner.write(&shared.region, offset, bytes)
        })
    }

    /// Declares and stores bytes under an existing guard of the region, for many small changes. The guard
    /// must be dropped before the transaction acquires another lock or commits.
    ///
    /// # Errors
    ///
    /// The same as for [`Txn::set_range`]; also if the guard is of another region.
    pub fn write_in(
        &mut self,
        held: &mut ExclusiveGuard<'_>,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), DeclareError> {
        if !std::ptr::eq(held.region(), &*self.shared.region) {
            return Err(RangeError::ForeignRegion.into());
        }
        self.declare(offset, bytes.len(), |inner, _| {
            inner.write_in(held, offset, bytes)
        })
    }

    /// Declares the bytes of `value` at `offset`, which need not be aligned, and stores it there.
    ///
    /// # Errors
    ///
    /// The same as for [`Txn::set_range`].
    pub fn set<T: IntoBytes + Immutable>(&mut self, offset: usize, value: &T) -> Result<(), DeclareError> {
        self.write(offset, value.as_bytes())
    }

    fn declare(
        &mut self,
        offset: usize,
        length: usize,
        declare: impl FnOnce(&mut Transaction<NodeLog, RealStorage>, &NodeInner) -> Result<(), RangeError>,
    ) -> Result<(), DeclareError> {
        let places = self.admit(offset, length)?;
        let inner = self.inner.as_mut().ok_or(RangeError::Ended)?;
        declare(inner, &self.shared)?;
        self.scratch.locked_spans.set_written(places);
        Ok(())
    }

    /// Indexes of the held spans that contain the bytes.
    fn admit(&self, offset: usize, length: usize) -> Result<Range<usize>, DeclareError> {
        let end = self.inside(offset, length)?;
        let covered = self.scratch.locked_spans.cover(offset, end, LockMode::Exclusive);
        covered.map_err(|offset| {
            let (address, lock) = self.place_of(offset);
            match lock {
                Some(lock) => DeclareError::NotHeld {
                    offset,
                    address,
                    lock,
                },
                None => DeclareError::NoLock { offset, address },
            }
        })
    }

    /// End of the bytes, if that is inside the region.
    fn inside(&self, offset: usize, length: usize) -> Result<usize, RangeError> {
        let region = self.shared.region.len();
        let end = offset.checked_add(length).filter(|end| *end <= region);
        end.ok_or(RangeError::OutOfRegion {
            offset,
            length,
            region,
        })
    }

    /// Address of a byte in this process, and its lock.
    #[cold]
    fn place_of(&self, offset: usize) -> (usize, Option<LockId>) {
        let address = self.shared.region.as_ptr().addr() + offset;
        (address, self.shared.lock_at(offset as u64))
    }

    /// Ends the transaction without effect. If one of [`RestoreMode::NoRestore`] has declared bytes, the
    /// node's copy becomes invalid and the node ends.
    pub fn abort(self) {
        // The drop aborts it.
    }
}

fn after(now: Time, timeout: Duration) -> Time {
    now + Nanos(
        u64::try_from(timeout.as_nanos())
            .unwrap_or(u64::MAX / 2)
            .min(u64::MAX / 2),
    )
}

/// The sleeper to wait with, if the locks were not granted at once.
fn sleeper(
    core: &mut NodeCore,
    txn: TxnId,
    acquired: Result<Acquired, Refused>,
) -> Result<Option<std::sync::Arc<Sleeper>>, AcquireError> {
    match acquired {
        Ok(Acquired::Granted) => Ok(None),
        Ok(Acquired::Waits) => {
            let sleeper = Sleeper::here();
            core.sleeps(txn, sleeper.clone());
            Ok(Some(sleeper))
        }
        Err(Refused::Died(lock)) => Err(AcquireError::Died(lock)),
        Err(Refused::OutOfOrder(lock)) => Err(AcquireError::OutOfOrder(lock)),
        Err(Refused::TooMany) => Err(AcquireError::TooMany(STAMP_LOCKS_MAX)),
        // A waiting transaction is borrowed by its thread, and one that has ended does not exist any more.
        Err(Refused::Lost | Refused::Waiting | Refused::NoSuchTxn) => Err(AcquireError::Lost),
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        if self.inner.as_ref().is_some_and(Transaction::is_open) {
            self.before_undoing();
        }
        // Memory is restored before other transactions can get the locks.
        self.inner = None;
        if self.writes {
            self.shared.writers.fetch_sub(1, Ordering::SeqCst);
        }
        let scratch = std::mem::take(&mut self.scratch);
        if self.ended {
            return;
        }
        self.shared.with(|core, now| {
            // After a commit with unknown outcome the locks stay taken until the server has read the journal.
            if core.gone.is_none() {
                core.machine.end(now, self.id, None);
            }
            core.give_scratch(scratch);
        });
    }
}

impl std::fmt::Debug for Txn<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Txn")
            .field("id", &self.id)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
