//! Rule 18, *prove, then fence*: an opening that is refused before it has proven that it can succeed has
//! changed neither the view on its own platter nor any member's fence.

use netram_proto::id::{Epoch, WriterId};

use super::violation::fail;
use crate::world::World;

/// Newest epoch on the platter of a host, with its writer and view number.
pub(crate) fn newest_epoch(world: &World, host: usize) -> (Epoch, WriterId, u64) {
    let view = &world.hosts[host].view;
    (view.epoch, view.writer, view.version)
}

/// Checks a refused opening in `process`; `before` is the newest epoch on the host's platter when it began.
pub(crate) fn refused(world: &mut World, process: usize, before: (Epoch, WriterId, u64)) {
    if world.processes[process].proven {
        // The members' state changed between their answers and the fence.
        world.kernel.hit("openings refused after their proof");
        return;
    }
    let host = world.processes[process].host;
    let now = newest_epoch(world, host);
    if now != before {
        fail(
            18,
            format!(
                "process {process} was refused without a proof, and its view is of epoch {} now; it was of {}",
                now.0, before.0
            ),
        );
    }
    fences_are_proven(world);
    world.kernel.hit("openings refused that changed nothing");
}

/// Checks that every writer that fenced a member had proven before that its opening could succeed.
pub(crate) fn fences_are_proven(world: &World) {
    for (number, lender) in world.lenders.iter().enumerate() {
        let writer = lender.state().writer;
        let by = |process: &&crate::process::SimProcess| process.writer == writer;
        if let Some(process) = world.processes.iter().find(by)
            && !process.proven
        {
            fail(
                18,
                format!(
                    "lender {number} was sealed by a process of host {} that had proven nothing",
                    process.host
                ),
            );
        }
    }
}

/// Checks an opening on `host` that is refused as fenced, with everything healed, although it was the last to
/// be proven: another opening must have been proven later.
pub(crate) fn is_fenced(world: &mut World, host: usize) {
    let states = world.lenders.iter().map(crate::lender::SimLender::state);
    let highest = states.clone().map(|state| state.epoch).max().unwrap_or_default();
    // Two openings with the same epoch may have fenced one member each. This host's opening is one of them if
    // it went on without the other's member.
    let others = states.filter(|state| state.epoch == highest).any(|state| {
        let mut processes = world.processes.iter();
        processes.any(|process| process.writer == state.writer && process.host != host && process.proven)
    });
    if !others && highest > Epoch(0) {
        fail(
            18,
            format!(
                "host {host} was proven able to open, and is now fenced by epoch {highest}, which was never proven"
            ),
        );
    }
    world
        .kernel
        .hit("operators: fences of later openings that arrived late");
}
