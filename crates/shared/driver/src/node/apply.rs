//! Applies other nodes' records to the region's memory, in the server's order.
//!
//! Records wait in a queue, so that a program that reads the region under its guard for long delays records,
//! but not the node's lease. The thread that has received a short record applies it, unless a guard is held;
//! a thread of its own applies the rest. A thread that was granted a lock applies the records up to the grant
//! itself, rather than wait for that thread to wake.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use netram_rvm::record::{KIND_COMPACT, decode};
use netram_rvm::{ForeignError, RecordChanges, Region};
use netram_shared_machine::{NodeId, RecordNumber};

use super::error::NodeGone;
use super::heaps::Heaps;
use super::payload::NodePayload;
use crate::limit::UNAPPLIED_BYTES_MAX;

/// Maximum sleep of the applying thread: a missed wake-up costs a delay, not a hang.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Bytes of records that the receiving thread applies itself: waking another thread costs more than applying
/// them.
const INLINE_APPLY_BYTES_MAX: usize = 64 << 10;

/// A record to apply.
#[derive(Clone)]
pub(super) struct ApplyTask {
    pub(super) node: NodeId,
    pub(super) number: RecordNumber,
    pub(super) payload: NodePayload,
}

/// Queue of records to apply.
#[derive(Default)]
pub(super) struct RecordApplier {
    queue: Mutex<VecDeque<ApplyTask>>,
    more: Condvar,
    /// Held by the thread that applies.
    turn: Mutex<()>,
    /// Number of records that were queued, and that were applied.
    added: AtomicU64,
    applied: AtomicU64,
    /// Bytes of the queued records.
    bytes: AtomicUsize,
    asleep: AtomicBool,
    /// Heaps, which are notified of a record before it counts as applied.
    pub(super) heaps: Heaps,
}

/// More bytes wait than [`UNAPPLIED_BYTES_MAX`]: the program has read the region under a guard for too long.
pub(super) struct BacklogFull;

/// Number and bytes of records that wait to be applied.
pub(super) struct ApplyBacklog {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl RecordApplier {
    pub(super) fn add(&self, work: ApplyTask) -> Result<(), BacklogFull> {
        let length = work.payload.as_ref().len();
        let before = self.bytes.fetch_add(length, Ordering::Relaxed);
        self.queue().push_back(work);
        self.added.fetch_add(1, Ordering::Release);
        match before + length <= UNAPPLIED_BYTES_MAX {
            true => Ok(()),
            false => Err(BacklogFull),
        }
    }

    /// Returns when everything that was queued before is in the region's memory. The caller must hold no
    /// guard of the region.
    #[inline]
    pub(super) fn catch_up(&self, region: &Region) -> Result<(), NodeGone> {
        let target = self.added.load(Ordering::Acquire);
        match self.applied.load(Ordering::Acquire) >= target {
            true => Ok(()),
            false => self.apply_to(target, region),
        }
    }

    #[cold]
    fn apply_to(&self, target: u64, region: &Region) -> Result<(), NodeGone> {
        let turn = self.turn.lock().expect("nothing panics under this lock");
        self.apply_in_turn(&turn, target, |changes| region.apply(changes).map(|()| true))
            .map(drop)
    }

    /// Applies queued records with `store`, up to `target`. If `store` returns `false`, that record and those
    /// after it stay queued. Returns whether all were applied.
    fn apply_in_turn(
        &self,
        _turn: &MutexGuard<'_, ()>,
        target: u64,
        mut store: impl FnMut(&RecordChanges<'_>) -> Result<bool, ForeignError>,
    ) -> Result<bool, NodeGone> {
        while self.applied.load(Ordering::Acquire) < target {
            // A record that cannot be applied stays at the front, so that nothing after it ever counts as
            // applied.
            let next = self.queue().front().cloned();
            let Some(work) = next else {
                break;
            };
            let stored = store_with(&work, |changes| {
                let stored = store(changes)?;
                if stored {
                    self.heaps.touched(changes);
                }
                Ok(stored)
            })?;
            if !stored {
                return Ok(false);
            }
            self.queue().pop_front();
            self.bytes
                .fetch_sub(work.payload.as_ref().len(), Ordering::Relaxed);
            self.applied.fetch_add(1, Ordering::Release);
        }
        Ok(true)
    }

    /// Applies short records, unless a guard is held or another thread applies. Never waits. Returns `false`
    /// if something is left for the applying thread.
    pub(super) fn try_catch_up(&self, region: &Region) -> Result<bool, NodeGone> {
        let target = self.added.load(Ordering::Acquire);
        if self.applied.load(Ordering::Acquire) >= target {
            return Ok(true);
        }
        if self.bytes.load(Ordering::Relaxed) > INLINE_APPLY_BYTES_MAX {
            return Ok(false);
        }
        let Ok(turn) = self.turn.try_lock() else {
            return Ok(false);
        };
        self.apply_in_turn(&turn, target, |changes| region.try_apply(changes))
    }

    /// Records that wait to be applied.
    pub(super) fn backlog(&self) -> ApplyBacklog {
        // What is applied between the two readings must not make it negative.
        let applied = self.applied.load(Ordering::Acquire);
        ApplyBacklog {
            records: self.added.load(Ordering::Acquire).saturating_sub(applied),
            bytes: self.bytes.load(Ordering::Relaxed) as u64,
        }
    }

    /// Wakes the applying thread.
    pub(super) fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            let _queue = self.queue();
            self.more.notify_one();
        }
    }

    /// Waits until there is something to apply, or for [`WAIT_MAX`].
    pub(super) fn wait(&self) {
        let queue = self.queue();
        self.asleep.store(true, Ordering::SeqCst);
        if queue.is_empty() {
            let rested = self.more.wait_timeout(queue, WAIT_MAX);
            drop(rested.expect("nothing panics under this lock"));
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<ApplyTask>> {
        self.queue.lock().expect("nothing panics under this lock")
    }
}

/// Applies a record of another node, all of it at once.
pub(super) fn apply(work: &ApplyTask, region: &Region) -> Result<(), NodeGone> {
    store_with(work, |changes| region.apply(changes))
}

fn store_with<T>(
    work: &ApplyTask,
    store: impl FnOnce(&RecordChanges<'_>) -> Result<T, ForeignError>,
) -> Result<T, NodeGone> {
    let wrong = |cause: String| NodeGone::Record {
        node: work.node,
        number: work.number,
        cause,
    };
    let changes = decode(KIND_COMPACT, work.payload.as_ref()).map_err(|error| wrong(error.to_string()))?;
    store(&changes).map_err(|error| wrong(error.to_string()))
}
