//! Events of queries: time passes, connections come and go, frames arrive, and answers reach their owners.

use netram_proto::journal::View;
use netram_proto::time::Nanos;
use netram_proto::wire::Frame;

use super::kernel::Event;
use super::orphans::{orphan_is_read, orphan_is_told};
use super::queries::{QueryAnswer, QueryKind, QueryOwner};
use super::readings::{on_server_forget_done, on_server_read};
use super::world::World;

const POLL_INTERVAL: Nanos = Nanos::from_ms(10);

pub(super) fn start_query(world: &mut World, kind: QueryKind, owner: QueryOwner, host: usize, view: &View) {
    let now = world.kernel.now();
    let query = world.queries.add(kind, owner, host, view, now);
    on_query(world, query);
}

pub(super) fn on_query(world: &mut World, query: usize) {
    let Some(host) = world.queries.get(query).map(|query| query.host) else {
        return;
    };
    let paused = world.paused_until(host);
    if paused > world.kernel.now() {
        return world.kernel.push(paused, Event::Query { query });
    }
    settle_query(world, query);
    if world.queries.get(query).is_some() {
        world.kernel.at(POLL_INTERVAL, Event::Query { query });
    }
}

pub(super) fn query_linked(world: &mut World, query: usize, index: usize) {
    if let Some(found) = world.queries.get_mut(query) {
        found.on_connected(index);
        settle_query(world, query);
    }
}

pub(super) fn query_lost(world: &mut World, query: usize, index: usize) {
    if let Some(found) = world.queries.get_mut(query) {
        found.on_lost(index);
        settle_query(world, query);
    }
}

pub(super) fn on_query_frame(world: &mut World, query: usize, index: usize, frame: &Frame<'_>) {
    if let Some(found) = world.queries.get_mut(query) {
        found.on_frame(index, frame);
        settle_query(world, query);
    }
}

fn settle_query(world: &mut World, query: usize) {
    match world.queries.has_answer(query, world.kernel.now()) {
        true => answered(world, query),
        false => world
            .queries
            .ask_all(&mut world.kernel, &mut world.network, query),
    }
}

fn answered(world: &mut World, query: usize) {
    let taken = world
        .queries
        .take(&mut world.kernel, &mut world.network, &mut world.lenders, query);
    let Some(mut taken) = taken else { return };
    let journal = taken.journal;
    match (taken.answer(world.kernel.now()), taken.owner) {
        (None, _) => (),
        (Some(QueryAnswer::Told(all)), QueryOwner::Server { node, .. }) => {
            on_server_forget_done(world, node, all)
        }
        (Some(QueryAnswer::Told(all)), QueryOwner::Orphan { slot, .. }) => {
            orphan_is_told(world, slot, journal, all)
        }
        (Some(QueryAnswer::Read(read)), QueryOwner::Server { node, .. }) => on_server_read(world, node, read),
        (Some(QueryAnswer::Read(read)), QueryOwner::Orphan { slot, .. }) => {
            orphan_is_read(world, slot, journal, read)
        }
    }
}
