//! Events of the server: its process starts and dies, messages arrive, time passes, writes reach the disk.

use netram_proto::journal::ForgetNotice;
use netram_proto::time::Nanos;
use netram_shared_machine::server::{DurableFact, LinkEnd, ServerAction, SessionId};
use netram_shared_machine::{Position, RegionServer, ToServer};

use super::bytes::PayloadBytes;
use super::check::{RegionRule, check_fencing, check_gone, check_merged, fail};
use super::kernel::Event;
use super::queries::{QueryKind, QueryOwner};
use super::query_events::start_query;
use super::readings::read_due;
use super::server::JournalReading;
use super::server_disk::{QueuedWrite, ServerRecord};
use super::world::World;

/// Interval at which the process is told the time.
const TICK: Nanos = Nanos::from_ms(10);

pub(super) fn start_server(world: &mut World) {
    if world.server.is_up() {
        return;
    }
    world.server.start(&mut world.kernel);
    let boot = world.server.boot;
    after_server(world);
    world.kernel.at(TICK, Event::ServerTick { boot });
}

/// Kills the server's process. Some of its unsynced writes are on the disk all the same.
pub(super) fn kill_server(world: &mut World) {
    if !world.server.is_up() {
        return;
    }
    world.kernel.tell(|| String::from("the server dies"));
    world.kernel.hit("region: deaths of the server");
    world.server.stop();
    let written = world.kernel.rng.index(world.server.pending_writes() + 1);
    flush(world, written);
    if world.server.lose_writes() > 0 {
        world.kernel.hit("region: deaths of the server that lost writes");
    }
    world.queries.stop(
        &mut world.kernel,
        &mut world.network,
        &mut world.lenders,
        |query| matches!(query.owner, QueryOwner::Server { .. }),
    );
    for session in world.node_links.sessions() {
        world.node_links.break_link(&mut world.kernel, session);
    }
    let ms = world.kernel.rng.pick(&[1, 10, 100, 500]);
    world.kernel.after_ms(ms, Event::ServerUp);
}

pub(super) fn on_server_message(world: &mut World, session: SessionId, message: ToServer<PayloadBytes>) {
    let now = world.server.local(world.kernel.now());
    world.kernel.mark(20, session.0);
    if let Some(slot) = world.node_links.slot_of(session) {
        world
            .kernel
            .tell(|| format!("the server hears {message:?} of slot {slot}"));
    }
    let link = world.node_links.get_mut(session);
    let proof = link.and_then(|link| link.take_proof());
    if let Some(process) = world.server.process_mut() {
        if let Some(journal) = proof {
            process.on_proven(session, journal);
        }
        process.handle(now, session, message);
    }
    after_server(world);
}

pub(super) fn on_server_link_lost(world: &mut World, session: SessionId, closed: LinkEnd) {
    let now = world.server.local(world.kernel.now());
    if let Some(process) = world.server.process_mut() {
        if closed == LinkEnd::HungUp && process.node(session).is_some() {
            world
                .kernel
                .hit("region: links closed by the machine of a dead process");
        }
        process.on_closed(now, session, closed);
    }
    after_server(world);
}

pub(super) fn on_server_tick(world: &mut World, boot: u32) {
    let now = world.server.local(world.kernel.now());
    if boot != world.server.boot {
        return;
    }
    let Some(process) = world.server.process_mut() else {
        return;
    };
    process.on_tick(now);
    after_server(world);
    read_due(world);
    world.kernel.at(TICK, Event::ServerTick { boot });
}

/// Performs the machine's actions, and sends its messages.
pub(super) fn after_server(world: &mut World) {
    while let Some(action) = world.server.process_mut().and_then(RegionServer::poll) {
        run_server_action(world, action);
    }
    world.server.begin_flush(&mut world.kernel);
    for session in world.node_links.sessions() {
        world
            .node_links
            .send_down(&mut world.kernel, &mut world.server, session);
    }
}

fn run_server_action(world: &mut World, action: ServerAction<PayloadBytes>) {
    match action {
        ServerAction::Store { ticket, fact } => world.server.write(QueuedWrite::Fact(ticket, fact)),
        ServerAction::Apply {
            position,
            node,
            number,
            end,
            payload,
        } => {
            check_merged(world, node, number, &payload);
            world.server.write(QueuedWrite::Record(ServerRecord {
                position,
                node,
                number,
                end,
                payload,
            }));
        }
        ServerAction::Recover { node, journal } => {
            let reading = JournalReading::new(journal, world.kernel.now());
            world.server.readings.insert(node, reading);
            read_due(world);
        }
        ServerAction::Forget { node, journal } => {
            world.server.readings.remove(&node);
            let (boot, host) = (world.server.boot, world.slots.len());
            let notice = ForgetNotice::new(&journal.view, &world.lenders.addresses());
            let owner = QueryOwner::Server { boot, node };
            start_query(world, QueryKind::Forget(notice), owner, host, &journal.view);
        }
        ServerAction::Close(session) => world.node_links.break_link(&mut world.kernel, session),
        ServerAction::Fenced { node, why } => {
            world.kernel.tell(|| format!("node {node} is fenced: {why}"));
            world.kernel.hit("region: nodes fenced");
            check_fencing(world, node, why);
        }
        ServerAction::Refused { node, why } => {
            let what = format!("a record of {node} was refused: {why}");
            fail(RegionRule::Versions, &what);
        }
    }
}

pub(super) fn on_server_flushed(world: &mut World, boot: u32, count: usize) {
    if boot != world.server.boot || !world.server.is_up() {
        return;
    }
    world.server.end_flush();
    let (ticket, position) = flush(world, count);
    let now = world.server.local(world.kernel.now());
    if let Some(process) = world.server.process_mut() {
        if let Some(position) = position {
            process.on_durable(position);
        }
        if let Some(ticket) = ticket {
            process.on_stored(now, ticket);
        }
    }
    after_server(world);
}

/// Applies the first `count` writes to the disk.
pub(super) fn flush(world: &mut World, count: usize) -> (Option<u64>, Option<Position>) {
    let (mut ticket, mut position) = (None, None);
    for write in world.server.take_writes(count) {
        match write {
            QueuedWrite::Fact(number, fact) => {
                ticket = Some(number);
                store_fact(world, fact);
            }
            QueuedWrite::Record(merged) => {
                position = Some(merged.position);
                world.server.disk.store_record(merged);
            }
        }
    }
    (ticket, position)
}

/// Stores a fact on the disk.
pub(super) fn store_fact(world: &mut World, fact: DurableFact) {
    let gone = match &fact {
        DurableFact::Gone { node } => Some(*node),
        _ => None,
    };
    world.server.disk.store_fact(&mut world.kernel, fact);
    if let Some(node) = gone {
        check_gone(world, node);
    }
}
