//! Locks, and the word between committers and the truncation thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::TruncateError;

/// Locks, passing over poison: the data behind these locks is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held by tests that start processes, and by those that close locked files and open them again: a child has
/// what is open here until it runs its own program.
#[cfg(test)]
pub(crate) static STARTING: Mutex<()> = Mutex::new(());

/// Tells the truncation thread what is wanted, and the committers what came of it.
#[derive(Debug, Default)]
pub(crate) struct TruncationSignal {
    state: Mutex<State>,
    wanted: Condvar,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    stop: bool,
    /// Requests made so far.
    requested: u64,
    /// Requests answered: a whole truncation began after they were made, and ended.
    answered: u64,
    /// The thread is to look around, though nobody asked for truncation.
    nudged: bool,
    failures: u64,
    last_failure: Option<TruncateError>,
}

/// What the truncation thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TruncationWork {
    /// End.
    Stop,
    /// Truncate; every request up to this number is then answered.
    Requested(u64),
    /// Nobody asked: time has passed, or something changed.
    Look,
}

/// What came of a request for room.
#[derive(Debug)]
pub(crate) enum TruncationAnswer {
    /// There is room now, or the log was truncated as far as it goes.
    Done,
    Failed(TruncateError),
    /// No thread will answer; the caller must truncate itself.
    NoThread,
}

impl TruncationSignal {
    /// The thread is about to start.
    pub(crate) fn start(&self) {
        lock(&self.state).running = true;
    }

    /// The thread has ended.
    pub(crate) fn ended(&self) {
        lock(&self.state).running = false;
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stop = true;
        self.wanted.notify_all();
    }

    pub(crate) fn stopping(&self) -> bool {
        lock(&self.state).stop
    }

    /// Asks for truncation and does not wait.
    pub(crate) fn request(&self) {
        lock(&self.state).requested += 1;
        self.wanted.notify_one();
    }

    /// The log's head moved.
    pub(crate) fn progress(&self) {
        // The lock orders this after a waiter's look at the head, so that the wake is not lost.
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    /// Asks for truncation and waits until `enough`, or until the thread has done what it can.
    pub(crate) fn request_and_wait(&self, enough: impl Fn() -> bool) -> TruncationAnswer {
        let mut state = lock(&self.state);
        state.requested += 1;
        self.wanted.notify_one();
        let (mine, failures) = (state.requested, state.failures);
        loop {
            if enough() {
                return TruncationAnswer::Done;
            }
            if !state.running || state.stop {
                return TruncationAnswer::NoThread;
            }
            if state.failures > failures {
                let failure = state.last_failure.clone();
                return TruncationAnswer::Failed(failure.expect("a counted failure is kept"));
            }
            if state.answered >= mine {
                return TruncationAnswer::Done;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the log's head to move until `enough`; `false` when `patience` ended before.
    pub(crate) fn wait_until(&self, patience: Duration, enough: impl Fn() -> bool) -> bool {
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, patience, |_| !enough());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Wakes the thread, which may have to wake by itself from now on.
    pub(crate) fn nudge(&self) {
        lock(&self.state).nudged = true;
        self.wanted.notify_one();
    }

    /// The thread's wait for work, `timeout` long at most.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> TruncationWork {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return TruncationWork::Stop;
            }
            if state.requested > state.answered {
                return TruncationWork::Requested(state.requested);
            }
            if std::mem::take(&mut state.nudged) {
                return TruncationWork::Look;
            }
            state = match timeout {
                None => self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let (state, waited) = self
                        .wanted
                        .wait_timeout(state, timeout)
                        .unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() && !state.stop {
                        return TruncationWork::Look;
                    }
                    state
                }
            };
        }
    }

    /// The thread's answer to every request up to `request`.
    pub(crate) fn answer(&self, request: u64, failure: Option<TruncateError>) {
        let mut state = lock(&self.state);
        state.answered = state.answered.max(request);
        if let Some(failure) = failure {
            state.failures += 1;
            state.last_failure = Some(failure);
        }
        drop(state);
        self.changed.notify_all();
    }
}
