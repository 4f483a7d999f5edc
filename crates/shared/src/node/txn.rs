//! Transactions on shared memory: locks, then ranges, then a commit that waits for the members.
//!
//! ```text
//! stamp --> append --> machine told --> members --> machine told: tail to be sent --> locks free --> success
//! ```
//!
//! The hot path has no message, system call or allocation up to the append: a lock whose token is here costs the node's lock
//! and a look at the clock.

mod stores;

use std::ops::Range;
use std::time::Duration;

use netram_proto::limit::STAMP_LOCKS_MAX;
use netram_proto::port::{AppendError, Durability, Log, Ticket, WaitError};
use netram_proto::shared::lock::{AcquireError as Refused, Acquired, TxnId};
use netram_proto::shared::node::State;
use netram_proto::shared::{Hold, LockId, Number};
use netram_proto::time::{Span, Time};
use netram_rvm::{CommitError as Uncommitted, Mode, RangeError, RealStorage, Transaction};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::core::{Core, Sleeper};
use super::error::{AcquireError, Commit, CommitError, DeclareError, Gone, ReadError};
use super::grip::Grip;
use super::held::HeldSpans;
use super::shared::Shared;
use super::tails::{Appended, Tails};
pub(super) use stores::Stores;

/// A transaction of a node. Dropping it aborts it.
///
/// | the paper's | here |
/// |---|---|
/// | `Trans.Begin` | [`Node::begin`](crate::Node::begin) |
/// | `Trans.Acquire` | [`acquire`](Txn::acquire), [`acquire_all`](Txn::acquire_all) |
/// | `Trans.SetRange` | [`set_range`](Txn::set_range); [`write`](Txn::write) and [`set`](Txn::set) store, too |
/// | `Trans.Commit` | [`commit`](Txn::commit) |
/// | `Trans.Abort` | [`abort`](Txn::abort), or dropping it |
///
/// Locks are held until it ends. While one is waited for, and while it commits, the thread may hold no guard of the region: what it
/// waits for may have to be applied there.
pub struct Txn<'n> {
    shared: Grip<'n>,
    /// `None`: it has ended.
    inner: Option<Transaction<Tails, RealStorage>>,
    id: TxnId,
    mode: Mode,
    held: HeldSpans,
    timeout: Duration,
    /// The machine knows that it has ended.
    ended: bool,
}

impl<'n> Txn<'n> {
    pub(super) fn begin(shared: Grip<'n>, mode: Mode, timeout: Duration) -> Result<Txn<'n>, Gone> {
        let undoable = mode == Mode::Restore;
        let id = shared.with(|core, _| {
            core.alive()?;
            match core.machine.state() {
                State::Whole => Ok(core.machine.begin(undoable)),
                _ => Err(Gone::Behind),
            }
        })?;
        let mut inner = shared.rvm.begin(shared.stores.mode(mode));
        shared.stores.begin(&mut inner, &shared.region);
        Ok(Txn {
            inner: Some(inner),
            shared,
            id,
            mode,
            held: HeldSpans::default(),
            timeout,
            ended: false,
        })
    }

    /// How long an acquire waits for others; at first [`Options::lock_timeout`](crate::Options::lock_timeout).
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Acquires a lock, to hold until the transaction ends: shared to read what it covers, exclusive to write there.
    ///
    /// Locks are best acquired in ascending order, or all at once: then it waits for whoever uses them. Out of order it waits for no
    /// transaction, and dies at once instead.
    #[inline]
    pub fn acquire(&mut self, lock: LockId, hold: Hold) -> Result<(), AcquireError> {
        let place = self.shared.spans.find(lock).ok_or(AcquireError::NoLock(lock))?;
        self.enter(hold)?;
        let (id, timeout) = (self.id, self.timeout);
        let sleeper = self.shared.with(|core, now| {
            core.alive()?;
            let acquired = core.machine.acquire(now, id, lock, hold, after(now, timeout));
            sleeper(core, id, acquired)
        })?;
        self.await_turn(sleeper)?;
        self.held.enter(self.shared.spans.at(place), hold);
        Ok(())
    }

    /// Acquires several locks, in their order, whatever order they are named in.
    pub fn acquire_all(&mut self, locks: &[(LockId, Hold)]) -> Result<(), AcquireError> {
        for (lock, _) in locks {
            self.shared.spans.find(*lock).ok_or(AcquireError::NoLock(*lock))?;
        }
        self.enter(locks.iter().map(|(_, hold)| *hold).max().unwrap_or(Hold::Shared))?;
        let (id, timeout) = (self.id, self.timeout);
        let mut sorted = locks.to_vec();
        let sleeper = self.shared.with(|core, now| {
            core.alive()?;
            let until = after(now, timeout);
            let acquired = core.machine.acquire_all(now, id, &mut sorted, until);
            sleeper(core, id, acquired)
        })?;
        self.await_turn(sleeper)?;
        for (lock, hold) in locks {
            if let Some(place) = self.shared.spans.find(*lock) {
                self.held.enter(self.shared.spans.at(place), *hold);
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

    /// A copy of the value at `offset`, which need not be aligned, as of now: all of it must be under locks that are held.
    pub fn get<T: FromBytes>(&self, offset: usize) -> Result<T, ReadError> {
        self.readable(offset, size_of::<T>())?;
        Ok(self.shared.region.get(offset)?)
    }

    /// Copies bytes from `offset` on. All of them must be under locks that are held.
    ///
    /// [`Node::region`](crate::Node::region) reads without that check.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), ReadError> {
        self.readable(offset, into.len())?;
        Ok(self.shared.region.read_into(offset, into)?)
    }

    fn readable(&self, offset: usize, length: usize) -> Result<(), ReadError> {
        let end = self.inside(offset, length)?;
        match self.held.cover(offset, end, Hold::Shared) {
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
    pub fn set_range(&mut self, offset: usize, length: usize) -> Result<(), DeclareError> {
        self.declare(offset, length, |inner, shared| {
            inner.set_range(&shared.region, offset, length)
        })
    }

    /// Declares the bytes and stores them.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), DeclareError> {
        self.declare(offset, bytes.len(), |inner, shared| {
            inner.write(&shared.region, offset, bytes)
        })
    }

    /// Declares the place of `value` and stores it there; `offset` need not be aligned.
    pub fn set<T: IntoBytes + Immutable>(&mut self, offset: usize, value: &T) -> Result<(), DeclareError> {
        self.write(offset, value.as_bytes())
    }

    fn declare(
        &mut self,
        offset: usize,
        length: usize,
        declare: impl FnOnce(&mut Transaction<Tails, RealStorage>, &Shared) -> Result<(), RangeError>,
    ) -> Result<(), DeclareError> {
        let places = self.admit(offset, length)?;
        let inner = self.inner.as_mut().ok_or(RangeError::Ended)?;
        declare(inner, &self.shared)?;
        self.held.set_written(places);
        Ok(())
    }

    /// The held spans that the bytes lie in.
    fn admit(&self, offset: usize, length: usize) -> Result<Range<usize>, DeclareError> {
        let end = self.inside(offset, length)?;
        let covered = self.held.cover(offset, end, Hold::Exclusive);
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

    /// Where the bytes end, if that is in the region.
    fn inside(&self, offset: usize, length: usize) -> Result<usize, RangeError> {
        let region = self.shared.region.len();
        let end = offset.checked_add(length).filter(|end| *end <= region);
        end.ok_or(RangeError::OutOfRegion {
            offset,
            length,
            region,
        })
    }

    /// A byte's address in this process, and its lock.
    #[cold]
    fn place_of(&self, offset: usize) -> (usize, Option<LockId>) {
        let address = self.shared.region.as_ptr().addr() + offset;
        (address, self.shared.lock_at(offset as u64))
    }

    /// Commits: waits until the members (or the server's disk) hold what was declared, as it is now, and then frees the locks.
    ///
    /// [`Durability::Lazy`] counts as [`Durability::Remote`]: nobody else may be shown what is not safe. A transaction that wrote nothing
    /// sends nothing, and waits for nobody.
    pub fn commit(mut self, durability: Durability) -> Result<Commit, CommitError> {
        self.gather()?;
        if !self.held.any_written() {
            return self.commit_reading();
        }
        let stamp = self.shared.with(|core, _| self.stamp(core))?;
        let logged = self.log(&stamp);
        let told = self.shared.with(|core, now| {
            tell_appended(self.shared.rvm.log(), core, now);
            core.end_commit();
            let ticket = logged.as_ref().ok().copied().flatten()?;
            Some((ticket, core.ends.number(ticket.end)?))
        });
        if let Err(error) = logged {
            return Err(self.refused(error));
        }
        match told {
            Some((ticket, number)) => self.wait(ticket, number, durability),
            // Nothing was declared but empty ranges.
            None => self.commit_reading(),
        }
    }

    /// What the record is to say of locks. From here on the machine does not leave before it was told of the record.
    fn stamp(&self, core: &mut Core) -> Result<Vec<u8>, CommitError> {
        core.alive()?;
        if core.machine.state() != State::Whole {
            return Err(CommitError::Lost);
        }
        for lock in self.held.written() {
            core.machine.wrote(self.id, lock).ok_or(CommitError::Lost)?;
        }
        core.begin_commit();
        let mut stamp = Vec::with_capacity(64);
        core.machine.stamp(self.id).encode(&mut stamp);
        Ok(stamp)
    }

    /// Appends the record. `None`: there was nothing to append.
    fn log(&mut self, stamp: &[u8]) -> Result<Option<Ticket>, Uncommitted> {
        let inner = self.inner.as_mut().ok_or(Uncommitted::Ended)?;
        let given = inner.set_preamble(stamp);
        given.expect("a stamp fits a preamble (rvm's limit.rs), and the transaction is open");
        Ok(self.commit_inner()?.ticket)
    }

    fn wait(mut self, ticket: Ticket, number: Number, durability: Durability) -> Result<Commit, CommitError> {
        let durability = match durability {
            Durability::Lazy => Durability::Remote,
            durability => durability,
        };
        let node = self.shared.id;
        self.inner = None;
        match self.shared.rvm.log().wait(ticket, durability) {
            Ok(votes) => {
                self.shared.with(|core, now| {
                    core.machine.on_acked(now, number);
                    core.ends.on_acked(number);
                    core.machine.end(now, self.id, Some(number));
                });
                self.ended = true;
                let record = Some((node, number));
                Ok(Commit { record, votes })
            }
            Err(cause) => {
                self.shared.fail(Gone::Journal(cause));
                Err(CommitError::Unknown { node, number, cause })
            }
        }
    }

    fn commit_reading(mut self) -> Result<Commit, CommitError> {
        let leased = self.shared.with(|core, now| {
            core.alive()?;
            Ok::<bool, Gone>(core.machine.tokens().leased(now))
        })?;
        if self.inner.as_ref().is_some_and(Transaction::is_open) {
            self.commit_inner()?;
        }
        self.inner = None;
        let votes = netram_proto::port::Votes::default();
        let record = None;
        // Without a lease others may have written what this one has read under its tokens.
        match leased || self.held.is_empty() {
            true => Ok(Commit { record, votes }),
            false => Err(CommitError::Lost),
        }
    }

    /// Nothing was logged. If the journal will take nothing more, neither will the node.
    fn refused(self, error: Uncommitted) -> CommitError {
        let gone = match error {
            Uncommitted::Refused(AppendError::Fenced { held, seen }) => {
                Some(WaitError::Fenced { held, seen })
            }
            Uncommitted::Refused(AppendError::DiskFailed(error)) => Some(WaitError::DiskFailed(error)),
            Uncommitted::Refused(AppendError::Closed) => Some(WaitError::Closed),
            _ => None,
        };
        if let Some(cause) = gone {
            self.shared.fail(Gone::Journal(cause));
        }
        CommitError::Refused(error)
    }

    /// Ends the transaction without a trace. What one of [`Mode::NoRestore`] has declared spoils the node's copy: it is none any more.
    pub fn abort(self) {
        // The drop does it.
    }
}

/// Tells the machine of everything that was appended, in the journal's order.
fn tell_appended(tails: &Tails, core: &mut Core, now: Time) {
    while let Some(Appended { stamp, end, payload }) = tails.next_appended() {
        let number = core.machine.on_appended(now, stamp, end, payload);
        core.ends.on_appended(number, end);
    }
}

fn after(now: Time, timeout: Duration) -> Time {
    now + Span(
        u64::try_from(timeout.as_nanos())
            .unwrap_or(u64::MAX / 2)
            .min(u64::MAX / 2),
    )
}

/// What is to be waited for.
fn sleeper(
    core: &mut Core,
    txn: TxnId,
    acquired: Result<Acquired, Refused>,
) -> Result<Option<std::sync::Arc<Sleeper>>, AcquireError> {
    match acquired {
        Ok(Acquired::Held) => Ok(None),
        Ok(Acquired::Waits) => {
            let sleeper = Sleeper::here();
            core.sleeps(txn, sleeper.clone());
            Ok(Some(sleeper))
        }
        Err(Refused::Died(lock)) => Err(AcquireError::Died(lock)),
        Err(Refused::OutOfOrder(lock)) => Err(AcquireError::OutOfOrder(lock)),
        Err(Refused::TooMany) => Err(AcquireError::TooMany(STAMP_LOCKS_MAX)),
        // A transaction that waits is borrowed by its waiting thread, and one that has ended is no more.
        Err(Refused::Lost | Refused::Waiting | Refused::NoSuchTxn) => Err(AcquireError::Lost),
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        if self.inner.as_ref().is_some_and(Transaction::is_open) {
            self.before_undoing();
        }
        // Memory is as it was before anybody else has the locks.
        self.inner = None;
        if self.ended {
            return;
        }
        self.shared.with(|core, now| {
            // Of one whose outcome is unknown the locks stay taken until the server has read the journal.
            if core.gone.is_none() {
                core.machine.end(now, self.id, None);
            }
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
