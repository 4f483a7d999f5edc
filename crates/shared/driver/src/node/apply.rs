//! Others' records, stored to the region's memory in the server's order.
//!
//! What is to be applied waits in a queue: a program that reads the region under its guard for long holds up
//! the records, and not the node's lease. Whoever has received it applies what is short, unless somebody
//! reads; a thread applies the rest. Whoever was given a lock does it himself, up to where the lock was
//! given, rather than wait for that thread to wake.

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

/// The applying thread looks up this often: a forgotten wake-up costs a delay, not a hang.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Bytes of records that are applied by the thread that has received them: waking another costs more than
/// storing so many.
const INLINE_APPLY_BYTES_MAX: usize = 64 << 10;

/// A record to be applied.
#[derive(Clone)]
pub(super) struct ApplyTask {
    pub(super) node: NodeId,
    pub(super) number: RecordNumber,
    pub(super) payload: NodePayload,
}

/// What is to be applied.
#[derive(Default)]
pub(super) struct RecordApplier {
    queue: Mutex<VecDeque<ApplyTask>>,
    more: Condvar,
    /// Held by whoever applies.
    turn: Mutex<()>,
    /// Records that were put in the queue, and that have been applied.
    added: AtomicU64,
    applied: AtomicU64,
    /// Bytes of records in the queue.
    bytes: AtomicUsize,
    asleep: AtomicBool,
    /// They are told of what was applied before it counts as applied.
    pub(super) heaps: Heaps,
}

/// More waits to be applied than is kept: somebody has read the region under a guard for too long.
pub(super) struct BacklogFull;

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

    /// Everything that was added before is in the region's memory when this returns. No region's guard may be
    /// held.
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

    /// `store` puts changes into the region's memory, or says `false`: then the record waits, and those
    /// behind it. Whether all is applied.
    fn apply_in_turn(
        &self,
        _turn: &MutexGuard<'_, ()>,
        target: u64,
        mut store: impl FnMut(&RecordChanges<'_>) -> Result<bool, ForeignError>,
    ) -> Result<bool, NodeGone> {
        while self.applied.load(Ordering::Acquire) < target {
            // One that cannot be applied stays in front: nothing behind it ever counts as applied.
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

    /// Applies what is short, unless somebody reads the region under a guard, or applies already: it waits
    /// for nobody. `false`: something is left for the thread that applies.
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

    /// Wakes the thread that applies.
    pub(super) fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            let _queue = self.queue();
            self.more.notify_one();
        }
    }

    /// Waits until there is something to apply, or for a moment.
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

/// Stores a record of another node's, all of it at once.
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
