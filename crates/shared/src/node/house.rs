//! What is done from time to time: the machine's clock, the journal's views and members, trimming its log.

use std::time::Duration;

use netram_proto::port::{Log, WaitError};

use super::error::Gone;
use super::shared::Shared;

/// How often time is looked at: a lock that is waited for in vain, or a view, waits for this at most.
const TICK: Duration = Duration::from_millis(5);
/// How often the log is looked at though nobody has said that it is full: the local disk tells nobody when it has more.
const LOOK: Duration = Duration::from_millis(5);
/// The same, while nobody wants room.
const LOOK_IDLY: Duration = Duration::from_millis(50);
/// A log fuller than one so-manieth is trimmed though nobody waits for room: each trimming costs a sync or two.
const TRIM_PART: u64 = 4;

/// Until the node ends. Nothing here waits for a disk: the lease hangs on it.
pub(super) fn run(shared: &Shared) {
    while !shared.is_stopping() {
        keep_time(shared);
        std::thread::park_timeout(TICK);
    }
}

/// Gives up what the log has and nobody needs, until the node ends.
pub(super) fn trim(shared: &Shared) {
    let tails = shared.rvm.log();
    tails.set_trimmer(std::thread::current());
    while !shared.is_over() {
        trim_once(shared);
        std::thread::park_timeout(match tails.wants_room() {
            true => LOOK,
            false => LOOK_IDLY,
        });
    }
}

/// Applies what comes, until the node ends.
pub(super) fn apply(shared: &Shared) {
    while !shared.is_stopping() {
        if shared.catch_up().is_err() {
            return;
        }
        shared.hands.rest();
    }
}

/// Tells the machine the time, and what the journal has to say to the server.
pub(super) fn keep_time(shared: &Shared) {
    let journal = shared.rvm.log().journal();
    let few = journal.needs_server();
    let view = journal.view_for_server().map(|_| journal.newest_view());
    shared.with(|core, now| {
        if core.gone.is_some() {
            return;
        }
        core.machine.on_tick(now);
        if core.few != few {
            core.few = few;
            core.machine.on_members(now, few);
        }
        if let Some(view) = view.filter(|view| view.version > core.view) {
            core.view = view.version;
            core.machine.on_view(view);
        }
    });
}

/// Gives up the log's records that the server keeps, if somebody waits for room or may soon.
fn trim_once(shared: &Shared) {
    let tails = shared.rvm.log();
    let state = tails.state();
    let used = state.tail.since(state.head);
    if !tails.wants_room() && used < state.capacity / TRIM_PART {
        return;
    }
    let (from, to) = {
        let core = shared.core();
        (core.ends.trimmed(), core.ends.trimmable(tails.trimmable()))
    };
    let Some((number, end)) = to else {
        return;
    };
    let marked = shared
        .mark
        .write(&[(from.0, from.1.lsn), (number, end.lsn)])
        .map_err(|error| error.to_string());
    let trimmed = marked.and_then(|()| shared.rvm.trim(end.lsn).map_err(|error| error.to_string()));
    match trimmed {
        Ok(_) => shared.core().ends.on_trimmed(number),
        Err(error) => {
            tracing::error!(error, "the journal of a node cannot be trimmed");
            // Without room no commit would ever end.
            let cause = tails.journal().status().disk_error.map(WaitError::DiskFailed);
            shared.fail(Gone::Journal(cause.unwrap_or(WaitError::Closed)));
        }
    }
}
