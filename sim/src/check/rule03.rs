//! Rule 3, *the view is durable before it counts*: the view on the platter holds everything acknowledged as
//! soon as it is stored, and never promises less than configured. A lender that drains, or whose machine
//! lacks memory, takes no copy away.

use netram_proto::journal::View;

use super::violation::fail;
use super::{rule01, rule16, rule19};
use crate::world::World;

/// Checks `view` after its store has succeeded.
pub(crate) fn stored(world: &mut World, process: usize, view: &View) {
    rule19::stored(world, process, view);
    let host = &world.hosts[world.processes[process].host];
    if host.view != *view {
        fail(
            3,
            format!(
                "view {} counts as durable; the platter has view {}",
                view.version, host.view.version
            ),
        );
    }
    rule16::stored(world, view);
    if host.newer_epoch.is_some() {
        // A newer epoch on a copied disk may have taken the members over already.
        return;
    }
    if let Err(what) = rule01::held(world, host, view, host.history.acked) {
        fail(
            3,
            format!(
                "view {} replaced its predecessor while acknowledged records end at {}, but {what}",
                view.version, host.history.acked
            ),
        );
    }
    let few = view.members.len()
        < world
            .kernel
            .profile
            .min
            .max(view.rule.copies(view.members.len()))
            .max(1);
    if view.counting && few {
        fail(
            3,
            format!(
                "view {} counts with {} members, fewer than configured",
                view.version,
                view.members.len()
            ),
        );
    }
}

/// Checks that the view on the platter has as many copies as the world's story promises at any moment.
pub(crate) fn has_copies(world: &World, process: usize) {
    let host = &world.hosts[world.processes[process].host];
    let copies = rule01::intact(world, &host.view);
    if copies < world.copies_promised {
        fail(
            3,
            format!(
                "view {} has {copies} copies, and {} are promised throughout",
                host.view.version, world.copies_promised
            ),
        );
    }
}

/// Whether lenders, rule and number of members of the open journal are as ordered.
pub(crate) fn is_as_ordered(world: &World, process: usize) -> bool {
    let serving = world.processes.serving(process);
    serving.is_some_and(|serving| {
        let status = serving.writer.status();
        status.settled && !status.lenders.iter().any(|lender| lender.removed)
    })
}

/// Checks that a change for which there were enough lenders, for long enough, is done.
pub(crate) fn has_changed(world: &World, process: usize) {
    if !is_as_ordered(world, process) {
        let status = world
            .processes
            .serving(process)
            .map(|serving| serving.writer.status());
        fail(
            3,
            format!(
                "there are lenders enough for a change of the membership, and it is not done: {status:?}"
            ),
        );
    }
}

/// Checks that a lender for whose window there was another place, for long enough, holds none.
pub(crate) fn is_drained(world: &World, lender: usize) {
    let state = world.lenders[lender].state();
    if state.joined {
        fail(
            3,
            format!("lender {lender} is drained, others could take its place, and it still has a window"),
        );
    }
}

/// Checks that a machine that lacks memory has got its lender's window, for which there was another place.
pub(crate) fn has_moved(world: &World, lender: usize) {
    if world.lenders[lender].state().joined {
        fail(
            3,
            format!(
                "lender {lender}'s machine lacks memory, others could take its place, and it still has a window"
            ),
        );
    }
}
