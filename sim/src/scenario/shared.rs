//! The journal of a node of a shared region. The server gives the node up, alive or not, and reads its
//! journal from its members. Before that the node may leave and join, and offer its records.

use netram_proto::journal::{Recovery, RecoveryError, node_records};
use netram_proto::planted::FaultSwitch;
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint;

use super::journal;
use crate::check::rule13;
use crate::client;
use crate::client::{ALL_MEMBERS_WAIT, RECOVERY_TIMEOUT};
use crate::event::WorldEvent;
use crate::event_loop;
use crate::inject::heal;
use crate::process::OpenFailure;
use crate::process::life::crash;
use crate::server::SimServer;
use crate::world::World;

/// Attempts to read before everything is healed. One more follows, which nothing interrupts.
const ATTEMPTS: u32 = 4;
/// Operations of the node between two disturbances of the server.
const STEPS: u64 = 4;

pub(super) fn run(world: &mut World) {
    let view = world.hosts[0].view.clone();
    world.server = Some(SimServer::new(view));
    world.kernel.hit("shared: worlds");
    let lives = world.kernel.rng.between(1, 3);
    for life in 1..=lives {
        let Some(node) = journal::open(world, 0) else {
            continue;
        };
        work(world, node);
        if life < lives && world.processes.alive(node) {
            let cut = world.kernel.rng.chance(500);
            crash(world, node, cut);
            let pause = world.kernel.rng.pick(&[0, 1, 30, 400, 2500]);
            event_loop::run_for(world, Nanos::from_ms(pause));
        }
    }
    let node = world.processes.living(0);
    fence(world, node);
}

/// Lets the node work while its server is disturbed.
fn work(world: &mut World, node: usize) {
    for _ in 0..world.kernel.rng.between(1, 10) {
        journal::work(world, node, STEPS);
        if world.kernel.rng.chance(200)
            && !world.nemesis.is_stopped()
            && let Some(server) = &mut world.server
        {
            server.disturb(&mut world.kernel);
        }
    }
}

/// Lets the server give the node up: it stores that, fences and reads, repeatedly until it has everything.
fn fence(world: &mut World, node: Option<usize>) {
    world.kernel.hit("shared: nodes given up");
    if let Some(node) = node {
        run_fenced_node(world, node);
    }
    if let Some(server) = &mut world.server {
        server.has_fenced = true;
    }
    world.kernel.tell(|| String::from("the server fences the node"));
    let host = world.add_blank_host();
    for attempt in 0..=ATTEMPTS {
        let last = attempt == ATTEMPTS;
        if last {
            heal(world);
            event_loop::run_for(world, Nanos::from_ms(100));
        }
        if let Some(end) = attempt_to_read(world, host, last) {
            if let Some(server) = &mut world.server {
                server.read = Some(end.lsn);
            }
            world.kernel.hit("shared: journals of fenced nodes read");
            return after(world, node);
        }
        let ms = world.kernel.rng.pick(&[0, 1, 20, 300, 2500]);
        event_loop::run_for(world, Nanos::from_ms(ms));
        if node.is_none() && !last && world.kernel.rng.chance(300) {
            reopen(world);
        }
    }
    rule13::refused(world);
    world
        .kernel
        .hit("shared: journals of fenced nodes that nobody can prove");
}

/// Draws the fate of the node that is given up: it goes on, stands still and goes on later, or dies.
fn run_fenced_node(world: &mut World, node: usize) {
    match world.kernel.rng.below(4) {
        0 => {
            let cut = world.kernel.rng.chance(500);
            crash(world, node, cut);
        }
        kind => {
            world.processes[node].appends_itself = true;
            world.kernel.at(Nanos(1), WorldEvent::Busy { process: node });
            if kind == 1 {
                let ms = world.kernel.rng.pick(&[5, 50, 500, 5000]);
                world.processes[node].paused_until = world.kernel.now() + Nanos::from_ms(ms);
                world.kernel.hit("shared: nodes given up that stood still");
            }
        }
    }
}

/// Opens the directory of a node that is being fenced with the node's own library, which must fail.
fn reopen(world: &mut World) {
    match client::open(world, 0, false) {
        Ok(_) => unreachable!("the server says that the node is fenced"),
        Err(OpenFailure::Refused(RecoveryError::Fenced { .. })) => {
            world
                .kernel
                .hit("shared: nodes that came back and were told that they are fenced");
        }
        Err(_) => (),
    }
}

/// Fences and reads the members. `None`: cut off, or too few answered.
fn attempt_to_read(world: &mut World, host: usize, last: bool) -> Option<ChainPoint> {
    let server = world.server.as_ref()?;
    let (view, kept) = (server.view.clone(), server.merged_end);
    let addresses = world.lenders.addresses();
    let mut recovery = Recovery::of_node(
        &view,
        kept.lsn,
        world.kernel.now(),
        ALL_MEMBERS_WAIT,
        RECOVERY_TIMEOUT,
    )
    .with_addresses(addresses.iter().map(String::as_str));
    recovery.plant(world.kernel.planted());
    // The server dies before the end.
    let cut = (!last && world.kernel.rng.chance(300)).then(|| {
        let us = world.kernel.rng.between(0, 500_000);
        world.kernel.now() + Nanos::from_us(us)
    });
    let windows = match client::ask_members(world, host, recovery, cut) {
        Some((Ok(()), windows)) => windows,
        Some((Err(refusal), _)) => {
            world
                .kernel
                .tell(|| format!("the server could not read: {refusal}"));
            world.kernel.hit("shared: readings refused");
            return None;
        }
        None => {
            world.kernel.hit("shared: readings cut off");
            return None;
        }
    };
    let mut records = Vec::new();
    let (end, all) = node_records(
        &windows,
        kept,
        view.epoch,
        world.kernel.journal().into(),
        FaultSwitch::NONE,
        &mut |_| true,
        &mut |record| records.extend_from_slice(record.bytes),
    );
    world
        .kernel
        .tell(|| format!("the server read from {} to {}, {all:?}", kept.lsn, end.lsn));
    if all.is_err() {
        crate::check::fail(
            13,
            String::from("intact members returned less than they claimed to hold"),
        );
    }
    if end.lsn > kept.lsn {
        world.kernel.hit("shared: readings that found records");
    }
    rule13::read(world, &records, end);
    // Until the records are merged and durable, another attempt may be needed.
    (last || world.kernel.rng.chance(700)).then_some(end)
}

/// Checks that the node, if it lives, learns that its journal was read and merged.
fn after(world: &mut World, node: Option<usize>) {
    event_loop::run_for(world, Nanos::from_ms(500));
    heal(world);
    event_loop::run_for(world, Nanos::from_ms(8000));
    if let Some(node) = node {
        rule13::learnt(world, node);
    }
}
