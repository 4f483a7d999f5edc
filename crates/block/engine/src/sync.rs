//! Locks, and the signals between writers and the applier.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::ApplyError;

/// Maximum wait of a writer before it looks again: a lost wake-up costs a delay, not a hang.
const LOOK_MAX: Duration = Duration::from_millis(50);

/// Locks and ignores poison: the data behind these locks is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
pub(crate) struct StageSignal {
    state: Mutex<State>,
    wanted: Condvar,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a thread applies stages.
    attended: bool,
    stop: bool,
    requested: bool,
    failure: Option<ApplyError>,
}

/// Outcome of a wait for room.
pub(crate) enum RoomWait {
    /// The state changed; look again.
    Changed,
    /// The image cannot be written.
    Failed(ApplyError),
    /// No thread applies stages: the caller must do it.
    Unattended,
}

/// Next task of the applier thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplierTask {
    /// Apply closed stages and pass on the time.
    Look,
    /// End the thread.
    Stop,
}

impl StageSignal {
    pub(crate) fn applier_started(&self) {
        let mut state = lock(&self.state);
        state.attended = true;
        state.stop = false;
    }

    pub(crate) fn applier_ended(&self) {
        lock(&self.state).attended = false;
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stop = true;
        self.wanted.notify_all();
    }

    /// A stage was closed.
    pub(crate) fn request(&self) {
        lock(&self.state).requested = true;
        self.wanted.notify_one();
    }

    /// A step ended a stage, or failed.
    pub(crate) fn report(&self, failure: Option<ApplyError>) {
        lock(&self.state).failure = failure;
        self.changed.notify_all();
    }

    /// Room may have become free.
    pub(crate) fn change(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn failure(&self) -> Option<ApplyError> {
        lock(&self.state).failure
    }

    /// Blocks the applier thread until there is work, for at most `longest`.
    pub(crate) fn next(&self, longest: Duration) -> ApplierTask {
        let state = lock(&self.state);
        let idle = |state: &mut State| !state.stop && !state.requested;
        let waited = self.wanted.wait_timeout_while(state, longest, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.requested = false;
        match state.stop {
            true => ApplierTask::Stop,
            false => ApplierTask::Look,
        }
    }

    /// Waits until the state changes, unless `enough` holds already. `enough` runs with the signal locked, so
    /// the caller must not hold any lock that it takes.
    pub(crate) fn wait(&self, enough: &dyn Fn() -> bool) -> RoomWait {
        let state = lock(&self.state);
        if enough() {
            return RoomWait::Changed;
        }
        if !state.attended {
            return RoomWait::Unattended;
        }
        if let Some(failure) = state.failure {
            return RoomWait::Failed(failure);
        }
        let waited = self.changed.wait_timeout(state, LOOK_MAX);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        RoomWait::Changed
    }
}
