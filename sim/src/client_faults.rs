//! Faults of lenders whose clients have names: others beside the journal's client come and go, its limits
//! change, and its key is revoked and accepted again.

use netram_proto::member::Window;
use netram_proto::planted::PlantedFault;
use netram_proto::time::Nanos;
use netram_proto::wire::{ClientResource, Frame, FrameKind};

use crate::check::{rule20, rule23};
use crate::event::WorldEvent;
use crate::lender::PacketOutcome;
use crate::named_clients::{OTHERS, WRITER, refused_resource};
use crate::profile::WorldFault;
use crate::world::World;

/// Injects a fault at `lender`.
pub(crate) fn inject(world: &mut World, lender: usize, action: WorldFault) {
    match action {
        WorldFault::ShareLender => share(world, lender),
        WorldFault::LimitClient => limit(world, lender),
        _ => revoke(world, lender),
    }
}

/// Other clients take windows, up to their limits, and give some back.
fn share(world: &mut World, lender: usize) {
    let planted = world.kernel.planted();
    for _ in 0..world.kernel.rng.between(1, 6) {
        let name = world.kernel.rng.pick(&OTHERS);
        let gives = world.kernel.rng.chance(300);
        let index = world.kernel.rng.index(4);
        let window = world.kernel.profile.window;
        let one = &mut world.lenders[lender];
        let Some(clients) = one.clients.as_mut().filter(|_| one.up) else {
            return;
        };
        clients.plant(planted);
        if gives {
            clients.other_gives(index);
            continue;
        }
        let wanted = clients.bytes_of(name) + window;
        match clients.other_takes(name) {
            Ok(()) => rule20::granted(world, lender, name, wanted),
            Err(over) => rule20::over_limit(world, lender, name, (over.resource, wanted)),
        }
    }
}

/// The operator leaves the journal's client less than it needs of one resource, for a while.
fn limit(world: &mut World, lender: usize) {
    let resource = world.kernel.rng.pick(&[
        ClientResource::Memory,
        ClientResource::Journals,
        ClientResource::Sessions,
    ]);
    let least = match resource {
        ClientResource::Memory => world.kernel.profile.window / 2,
        _ => 0,
    };
    let Some(clients) = &mut world.lenders[lender].clients else {
        return;
    };
    world.kernel.hit("clients: limits lowered");
    world
        .kernel
        .tell(|| format!("lender {lender} lets its client have {resource} = {least}"));
    clients.set_limit(resource, least);
    later(world, lender);
}

/// The operator revokes the journal's client: its sessions end, and its window stays.
fn revoke(world: &mut World, lender: usize) {
    let planted = world.kernel.planted();
    let one = &mut world.lenders[lender];
    let (before, capacity) = (one.state(), one.window.capacity());
    let Some(clients) = &mut one.clients else {
        return;
    };
    world.kernel.hit("clients: revoked");
    world
        .kernel
        .tell(|| format!("lender {lender} revokes its client"));
    clients.revoke();
    clients.revoked_at = before.joined.then_some(before.generation);
    if one.up {
        one.end_sessions();
        one.forget_ended_journals();
        if planted.is(PlantedFault::RevokedWindowDropped) {
            one.drop_journal();
        }
    }
    rule23::kept_when_revoked(world, lender, (&before, capacity));
    world.network.break_all(&mut world.kernel, lender);
    later(world, lender);
}

fn later(world: &mut World, lender: usize) {
    let delay = Nanos::from_ms(world.kernel.rng.pick(&[50, 400, 1500, 5000]));
    world.kernel.at(delay, WorldEvent::ClientsGranted { lender });
}

/// The operator gives all clients of a lender back what they may have.
pub(crate) fn grant(world: &mut World, lender: usize) {
    let planted = world.kernel.planted();
    if let Some(clients) = &mut world.lenders[lender].clients {
        clients.plant(planted);
        clients.grant_all();
        world
            .kernel
            .tell(|| format!("lender {lender} lets its clients have enough"));
    }
}

/// Checks a lender's answer to a frame of the journal's client.
pub(crate) fn check_answer(world: &mut World, lender: usize, packet: &[u8], outcome: &PacketOutcome) {
    let state = world.lenders[lender].state();
    let window = world.kernel.profile.window;
    let Some(clients) = &mut world.lenders[lender].clients else {
        return;
    };
    let reads = Frame::parse(packet).is_ok_and(|frame| frame.header.kind == FrameKind::Read);
    if reads
        && clients
            .revoked_at
            .is_some_and(|at| state.joined && state.generation == at)
    {
        clients.revoked_at = None;
        world
            .kernel
            .hit("clients: windows read after their client was revoked");
    }
    let Some(resource) = clients.take_turned_away().or_else(|| refused_resource(outcome)) else {
        return;
    };
    let wanted = match resource {
        ClientResource::Memory => window,
        ClientResource::Sessions => clients.sessions() + 1,
        _ => 1,
    };
    rule20::over_limit(world, lender, WRITER, (resource, wanted));
}
