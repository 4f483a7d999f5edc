//! Rule 19, *an idle journal is clean*: everything that a view calls clean is on the platter. A journal at
//! rest survives the loss of its machine's power together with all of its members' memory, without an
//! operator's decision.

use netram_proto::journal::View;

use super::violation::fail;
use crate::process::OpenFailure;
use crate::world::World;

/// Checks `view` after its store has succeeded.
pub(crate) fn stored(world: &mut World, process: usize, view: &View) {
    let Some(clean) = view.clean else { return };
    world.kernel.hit("journals called clean");
    let host = &world.hosts[world.processes[process].host];
    let kept = world.server.as_ref().map(|server| server.merged_end.lsn);
    let safe = host.history.durable.max(kept.unwrap_or_default());
    if clean > host.history.durable || host.history.acked > safe {
        fail(
            19,
            format!(
                "the journal is called clean at {clean}; the platter has it up to {}, and {} was acknowledged",
                host.history.durable, host.history.acked
            ),
        );
    }
    if view.counting {
        fail(
            19,
            format!("view {} is clean, and its members count", view.version),
        );
    }
}

/// Checks a process that has been idle, with members and a sound disk.
pub(crate) fn rests(world: &World, process: usize) {
    let Some(serving) = world.processes.serving(process) else {
        return;
    };
    let host = &world.hosts[world.processes[process].host];
    let counts = serving.writer.blocked().is_none() && serving.poisoned.is_none();
    if counts && host.view.clean != Some(serving.writer.tail()) {
        fail(
            19,
            format!(
                "nothing has happened for long, and view {} is clean at {:?}, not at {}",
                host.view.version,
                host.view.clean,
                serving.writer.tail()
            ),
        );
    }
}

/// Checks the opening of an idle journal after everything else was lost.
pub(crate) fn opened(failure: &OpenFailure) {
    fail(
        19,
        format!("an idle journal lost its members and its machine's power, and does not open: {failure:?}"),
    );
}
