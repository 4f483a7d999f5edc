//! Periodic work: the machine's clock, the journal's views and members, trimming the log.

use std::sync::atomic::Ordering;
use std::time::Duration;

use netram_proto::failure::RetryBackoff;
use netram_proto::port::{IoError, LogError, RecordLog, WaitError};
use netram_rvm::TruncateError;

use super::error::NodeGone;
use super::inner::NodeInner;

/// Tick interval: the maximum delay for a lock's timeout or a new view.
const TICK: Duration = Duration::from_millis(5);
/// Interval at which the log is checked while an append waits for room. The local disk does not report its
/// progress.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which the log is checked while none waits.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Reciprocal of the fill level above which the log is trimmed although no append waits. Each trimming costs
/// a sync or two.
const TRIM_PART: u64 = 4;

/// Ticks until the node ends. This thread never waits for a disk, since the lease depends on it.
pub(super) fn run(shared: &NodeInner) {
    while !shared.is_stopping() {
        tick(shared);
        std::thread::park_timeout(TICK);
    }
}

/// Trims log records that are not needed any more, until the node ends.
pub(super) fn trim(shared: &NodeInner) {
    let tails = shared.rvm.log();
    tails.set_trimmer(std::thread::current());
    let mut refusals = RetryBackoff::new();
    while !shared.is_over() {
        let look = if tails.wants_room() {
            LOG_POLL_INTERVAL
        } else {
            IDLE_POLL_INTERVAL
        };
        std::thread::park_timeout(match trim_once(shared) {
            Ok(()) => {
                refusals.succeeded();
                look
            }
            Err(error) => {
                let pause = refusals.failed(error);
                if pause.should_log {
                    tracing::error!(%error, "the journal of a node cannot be trimmed; trying again");
                }
                Duration::from_nanos(pause.pause.0)
            }
        });
    }
}

/// Applies records until the node ends.
pub(super) fn apply(shared: &NodeInner) {
    while !shared.is_stopping() {
        if shared.catch_up().is_err() {
            return;
        }
        shared.applier.wait();
    }
}

/// Tells the machine the time, and the state of the journal.
pub(super) fn tick(shared: &NodeInner) {
    let journal = shared.rvm.log().journal();
    let few = journal.needs_server();
    let view = journal.view_for_server().map(|_| journal.newest_view());
    shared.with(|core, now| {
        if core.gone.is_some() {
            return;
        }
        core.machine.on_tick(now);
        if core.machine.is_link_silent() {
            shared.silent.store(true, Ordering::SeqCst);
        }
        if core.too_few_members != few {
            core.too_few_members = few;
            core.machine.on_members(now, few);
        }
        if let Some(view) = view.filter(|view| view.version > core.view) {
            core.view = view.version;
            core.machine.on_view(view);
        }
    });
}

/// Trims the log's records that the server has durable, if an append waits for room or may soon. An error is
/// a refusal (rule 17): the log is unchanged, and the caller tries again. A failed disk ends the node.
fn trim_once(shared: &NodeInner) -> Result<(), IoError> {
    let tails = shared.rvm.log();
    let state = tails.state();
    let used = state.tail.since(state.head);
    if !tails.wants_room() && used < state.capacity / TRIM_PART {
        return Ok(());
    }
    let (from, to) = {
        let core = shared.core();
        (core.ends.trimmed(), core.ends.trimmable(tails.trimmable()))
    };
    let Some((number, end)) = to else {
        return Ok(());
    };
    // Without room no commit would ever finish.
    let fail = |error: &dyn std::fmt::Display, cause| {
        tracing::error!(%error, "the journal of a node cannot be trimmed");
        shared.fail(NodeGone::Journal(cause));
        Ok(())
    };
    if let Err(failure) = shared.mark.write(&[(from.0, from.1.lsn), (number, end.lsn)]) {
        return match failure.is_final() {
            true => fail(&failure, WaitError::DiskFailed(failure.error)),
            false => Err(failure.error),
        };
    }
    match shared.rvm.trim(end.lsn) {
        Ok(_) => {
            shared.core().ends.on_trimmed(number);
            Ok(())
        }
        Err(error) => match (tails.journal().status().disk_error, &error) {
            (None, TruncateError::Log(LogError::Io(refused))) => Err(*refused),
            (cause, _) => fail(&error, cause.map_or(WaitError::Closed, WaitError::DiskFailed)),
        },
    }
}
