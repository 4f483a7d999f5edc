//! Events of a process's link to the data lender.

use netram_proto::wire::{Frame, FrameKind};

use super::link::DataLink;
use crate::check::rule12;
use crate::process::ProcessPhase;
use crate::process::events::settle;
use crate::world::World;

pub(crate) fn on_data_connected(world: &mut World, process: usize, session: u64) {
    let now = world.kernel.now();
    let reachable = world.data.is_reachable(now);
    with_link(world, process, session, |link| link.on_connected(reachable, now));
}

pub(crate) fn on_data_up(world: &mut World, process: usize, session: u64, packet: &[u8]) {
    let from = (process, session);
    world
        .data
        .on_frame(&mut world.kernel, world.hosts.volume(), from, packet);
}

pub(crate) fn on_data_down(world: &mut World, process: usize, session: u64, packet: &[u8]) {
    let now = world.kernel.now();
    if let Ok(frame) = Frame::parse(packet) {
        if frame.header.kind == FrameKind::Flushed && is_data_session(world, process, session) {
            let end = frame.header.lsn;
            let host = world.processes[process].host;
            if let Some((head, bytes)) = world.data.lender().and_then(|data| data.platter(end)) {
                rule12::flushed(&world.hosts[host].history, end, head, &bytes);
            }
        }
        with_link(world, process, session, |link| link.on_frame(&frame, now));
    }
}

pub(crate) fn on_data_lost(world: &mut World, process: usize, session: u64) {
    let now = world.kernel.now();
    with_link(world, process, session, |link| link.on_lost(now));
}

fn is_data_session(world: &World, process: usize, session: u64) -> bool {
    let link = world
        .processes
        .serving(process)
        .and_then(|serving| serving.data.as_ref());
    link.is_some_and(|link| link.has_session(session)) && world.data.serves(session)
}

/// Runs `work` on the link of a process that serves, if `session` is its connection.
fn with_link(world: &mut World, process: usize, session: u64, work: impl FnOnce(&mut DataLink)) {
    if let ProcessPhase::Serving(serving) = &mut world.processes[process].phase
        && let Some(link) = &mut serving.data
        && link.has_session(session)
    {
        work(link);
    }
    settle(world, process);
}
