//! Events of the links between nodes and their server: both ends get messages, and learn of a break.

use netram_shared_machine::ToNode;
use netram_shared_machine::server::{LinkEnd, SessionId};

use super::kernel::Event;
use super::node_events::settle;
use super::server_events::{on_server_link_lost, on_server_message};
use super::world::World;

/// Begins to connect a node's process to the server.
pub(super) fn connect_node(world: &mut World, slot: usize) {
    let (now, boot) = (world.kernel.now(), world.server.boot);
    if !world.server.is_up() || world.slots[slot].cut_off_until > now {
        return;
    }
    if let Some(process) = &mut world.slots[slot].process {
        let (node, journal) = ((slot, process.life), process.journal.id);
        let links = &mut world.node_links;
        process.session = Some(links.open(&mut world.kernel, node, journal, boot));
    }
}

pub(super) fn on_linked(world: &mut World, session: SessionId) {
    if let Some(link) = world.node_links.get_mut(session) {
        link.on_linked();
    }
    if let Some(slot) = node_end(world, session)
        && let Some(process) = &mut world.slots[slot].process
    {
        process.node.on_linked();
        settle(world, slot);
    }
}

/// The slot whose process has this link, if it has not given it up.
fn node_end(world: &World, session: SessionId) -> Option<usize> {
    let link = world.node_links.get(session)?;
    let process = world.slots[link.slot].process.as_ref()?;
    (process.life == link.life && process.session == Some(session)).then_some(link.slot)
}

pub(super) fn on_up(world: &mut World, session: SessionId) {
    let Some(link) = world.node_links.get(session) else {
        return;
    };
    let cut_off = world.slots[link.slot].cut_off_until;
    let wait = cut_off.max(world.server.paused_until).max(link.delayed_until);
    if wait > world.kernel.now() {
        return world.kernel.push(wait, Event::Up { session });
    }
    if link.boot != world.server.boot || !world.server.is_up() {
        return world.node_links.break_link(&mut world.kernel, session);
    }
    let message = world.node_links.get_mut(session).and_then(|link| link.take_up());
    if let Some(message) = message {
        on_server_message(world, session, message);
        world.node_links.maybe_break(&mut world.kernel, session);
    }
}

pub(super) fn on_down(world: &mut World, session: SessionId) {
    let Some(link) = world.node_links.get_mut(session) else {
        return;
    };
    let (slot, life) = (link.slot, link.life);
    let wait = world.slots[slot]
        .cut_off_until
        .max(world.slots[slot].paused_until);
    if wait > world.kernel.now() {
        return world.kernel.push(wait, Event::Down { session });
    }
    let Some(message) = link.take_down() else {
        return;
    };
    let now = world.local(slot);
    if let Some(process) = world.slots[slot].alive(life)
        && process.session == Some(session)
    {
        world.kernel.mark(21, slot as u64);
        if let ToNode::Lock(message) = &message {
            world.kernel.tell(|| format!("slot {slot} is told {message:?}"));
        }
        process.node.handle(now, message);
        settle(world, slot);
    }
    world
        .node_links
        .send_down(&mut world.kernel, &mut world.server, session);
    world.node_links.maybe_break(&mut world.kernel, session);
}

/// Makes a link silent for ever, in one direction or both. Before the link is established, or while its node
/// has no lease, only the driver's timeout ends it.
pub(super) fn silence_link(world: &mut World) {
    let ways = world
        .kernel
        .rng
        .pick(&[[true, true], [true, false], [false, true]]);
    let is_known = |session: &SessionId| {
        let process = |slot: usize| world.slots[slot].process.as_ref();
        let process = node_end(world, *session).and_then(process);
        process.is_some_and(|process| process.node.id().is_some())
    };
    let known: Vec<SessionId> = world.node_links.linked().filter(is_known).collect();
    if known.is_empty() {
        return;
    }
    let session = known[world.kernel.rng.index(known.len())];
    if let Some(link) = world.node_links.get_mut(session) {
        link.silence(ways);
        world.kernel.hit("region: links that fell silent");
        world
            .kernel
            .tell(|| format!("session {session:?} falls silent: {ways:?}"));
    }
}

/// Lets a node give up its silent link and connect again.
pub(super) fn give_up_link(world: &mut World, slot: usize) {
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let Some(session) = process.session.take() else {
        return;
    };
    process.node.on_unlinked();
    world.kernel.hit("region: links given up for their silence");
    world
        .kernel
        .tell(|| format!("slot {slot} gives up session {session:?}"));
    world.node_links.break_link(&mut world.kernel, session);
    settle(world, slot);
}

/// Tells the node that its link is gone.
pub(super) fn on_unlinked(world: &mut World, session: SessionId) {
    let Some(slot) = node_end(world, session) else {
        return world.node_links.node_knows(session);
    };
    let paused = world.slots[slot].paused_until;
    if paused > world.kernel.now() {
        return world.kernel.push(paused, Event::Unlinked { session });
    }
    if let Some(process) = &mut world.slots[slot].process {
        process.session = None;
        process.node.on_unlinked();
        settle(world, slot);
    }
    // Both ends know of a link that was closed in order.
    if world.node_links.get(session).is_some_and(|link| link.is_closed()) {
        world.node_links.server_knows(session);
    }
    world.node_links.node_knows(session);
}

/// Tells the server that the link is gone.
pub(super) fn on_hung_up(world: &mut World, session: SessionId, closed: LinkEnd) {
    let paused = world.server.paused_until;
    if paused > world.kernel.now() {
        return world.kernel.push(paused, Event::HungUp { session, closed });
    }
    let Some(link) = world.node_links.get_mut(session) else {
        return;
    };
    link.drop_up();
    if link.boot == world.server.boot {
        on_server_link_lost(world, session, closed);
    }
    world.node_links.server_knows(session);
}
