//! Locks, and the signals between committers and the truncation thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::TruncateError;

/// Locks and ignores poisoning: the data behind these locks is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held by tests that start processes, and by those that close locked files and reopen them: a child process
/// keeps this process's descriptors open until it executes its own program.
#[cfg(test)]
pub(crate) static STARTING: Mutex<()> = Mutex::new(());

/// Passes requests to the truncation thread, and its answers to the committers.
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
    /// Requests answered: a whole truncation began after they were made and has ended.
    answered: u64,
    /// The thread should look for work although no truncation was requested.
    nudged: bool,
    failures: u64,
    last_failure: Option<TruncateError>,
}

/// The next task of the truncation thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TruncationWork {
    /// End the thread.
    Stop,
    /// Truncate; this answers every request up to this number.
    Requested(u64),
    /// Look for work: time has passed, or something changed.
    Look,
}

/// Answer to a request for room.
#[derive(Debug)]
pub(crate) enum TruncationAnswer {
    /// The log has room, or was truncated as far as possible.
    Done,
    Failed(TruncateError),
    /// No thread runs; the caller must truncate itself.
    NoThread,
}

impl TruncationSignal {
    /// Marks the thread as about to start.
    pub(crate) fn start(&self) {
        lock(&self.state).running = true;
    }

    /// Marks the thread as ended.
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

    /// Requests truncation without waiting.
    pub(crate) fn request(&self) {
        lock(&self.state).requested += 1;
        self.wanted.notify_one();
    }

    /// Wakes waiters after the log's head moved.
    pub(crate) fn progress(&self) {
        // The lock orders this after a waiter's look at the head, so that the wake-up is not lost.
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    /// Requests truncation and waits until `enough` returns true, or until the thread has truncated as far as
    /// possible.
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
                return TruncationAnswer::Failed(failure.expect("a counted failure is stored"));
            }
            if state.answered >= mine {
                return TruncationAnswer::Done;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the log's head to move until `enough` returns true; returns `false` after `patience`.
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

    /// Waits for the thread's next task, at most for `timeout`.
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

    /// Answers every request up to `request`.
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
