//! Rule 13, *a fenced node has no say*. An acknowledged record of a shared journal is kept by its server, or
//! held by the newest view known to the server as the view's rule demands. The server's reading of a fenced
//! node finds everything ever acknowledged, and nothing is acknowledged afterwards.

use netram_proto::id::Lsn;
use netram_proto::journal::ViewMember;
use netram_proto::wire::ChainPoint;

use super::rule01;
use super::violation::fail;
use crate::world::World;

/// Checks an acknowledgement of everything below `upto` in a shared journal.
pub(crate) fn acked(world: &World, process: usize, upto: Lsn) {
    let Some(server) = &world.server else { return };
    if let Some(read) = server.read
        && upto > read
    {
        fail(
            13,
            format!(
                "process {process} acknowledged {upto}, and the server had read its journal up to {read}"
            ),
        );
    }
    let host = &world.hosts[world.processes[process].host];
    if let Err(what) = rule01::held(world, host, &server.view, upto) {
        fail(
            13,
            format!("process {process} acknowledged {upto}, but by the server's view {what}"),
        );
    }
}

/// Checks the server's reading of the node's journal: `records`, which end at `end`.
pub(crate) fn read(world: &World, records: &[u8], end: ChainPoint) {
    let Some(server) = &world.server else { return };
    let history = &world.hosts[0].history;
    if end.lsn > history.tail() || history.link_at(end.lsn) != Some(end) {
        fail(
            13,
            format!("the server read up to {}, where no record ends", end.lsn),
        );
    }
    if history.bytes(server.merged_end.lsn, end.lsn) != records {
        fail(
            13,
            format!(
                "the server read other records up to {} than were appended",
                end.lsn
            ),
        );
    }
    if end.lsn < history.acked {
        fail(
            13,
            format!(
                "the server read up to {}; {} had been acknowledged",
                end.lsn, history.acked
            ),
        );
    }
}

/// Checks a failed reading of the node's journal with everything healed.
pub(crate) fn refused(world: &World) {
    let Some(server) = &world.server else { return };
    let intact = rule01::intact(world, &server.view);
    if intact >= server.view.answers() {
        fail(
            13,
            format!(
                "{intact} of the {} members of view {} are intact and {} suffice, yet the server cannot read the node's journal",
                server.view.members.len(),
                server.view.version,
                server.view.answers()
            ),
        );
    }
}

/// Checks that, with everything healed, the node that was given up has learnt it.
pub(crate) fn learnt(world: &mut World, process: usize) {
    let (Some(serving), Some(server)) = (world.processes.serving(process), &world.server) else {
        return;
    };
    // A member that lost its memory since lost its fence too and cannot report it.
    let (seal, _) = server.view.fence();
    let sealed = |member: &ViewMember| world.lenders.member(member).state().epoch >= seal;
    if !server.view.members.iter().any(sealed) {
        return;
    }
    if serving.writer.fenced().is_none() {
        fail(
            13,
            String::from("a node that was fenced goes on and has not learnt it"),
        );
    }
    world.kernel.hit("shared: fenced nodes that learnt it");
}
