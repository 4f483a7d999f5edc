//! An operator deletes a copy. The directory is copied while its journal serves, rests or has just opened;
//! the original goes on and is killed, and the copy is deleted with `netram journal delete`. The original
//! must then open with everything acknowledged.

use netram_proto::journal::{ForgetNotice, FrameBody};
use netram_proto::planted::PlantedFault;
use netram_proto::time::Nanos;
use netram_proto::wire::Frame;

use super::journal;
use crate::check::rule23;
use crate::client;
use crate::event_loop;
use crate::inject::heal;
use crate::lender::PacketOutcome;
use crate::process::life::crash;
use crate::signatures::owners_packet;
use crate::world::World;

pub(super) fn run(world: &mut World) {
    let Some(first) = journal::open(world, 0) else {
        return;
    };
    let deeds = world.kernel.rng.between(0, 30);
    journal::work(world, first, deeds);
    // Long enough to rest, often.
    let pause = world.kernel.rng.pick(&[0, 0, 300, 3000]);
    event_loop::run_for(world, Nanos::from_ms(pause));
    let copy = world.copy_host(0);
    world.kernel.hit("deletions: copies");
    let deeds = world.kernel.rng.between(0, 20);
    journal::work(world, first, deeds);
    if let Some(process) = world.processes.living(0) {
        let cut = world.kernel.rng.chance(400);
        crash(world, process, cut);
    }
    heal(world);
    event_loop::run_for(world, Nanos::from_ms(3000));
    delete(world, copy);
    journal::settle_down(world, 0);
}

/// Deletes the directory on `host` as the command does, and tells all lenders.
fn delete(world: &mut World, host: usize) {
    let Ok((view, had)) = client::proven_on(world, host) else {
        return;
    };
    if view.answers() > 0 && !world.kernel.planted().is(PlantedFault::HoldingsForgotten) {
        world.kernel.hit("deletions: refused, not closed");
        return;
    }
    world
        .kernel
        .tell(|| format!("the directory on host {host} is deleted; it has everything below {had}"));
    let names: Vec<String> = (0..world.lenders.len())
        .map(|index| format!("l{index}"))
        .collect();
    let mut forget = ForgetNotice::deleted(world.kernel.journal(), (view.epoch, view.writer), had, &names);
    forget.plant(world.kernel.planted());
    for index in 0..names.len() {
        let before = world.lenders[index].state();
        tell(world, &mut forget, index);
        rule23::check_forget(world, index, &before, (&view, had));
    }
}

fn tell(world: &mut World, forget: &mut ForgetNotice, index: usize) {
    // No connection of a process has this number.
    let conn = usize::MAX;
    let (journal, planted) = (world.kernel.journal(), world.kernel.planted());
    let lender = &mut world.lenders[index];
    if !lender.up {
        return;
    }
    forget.on_connected(index);
    while let Some(outgoing) = forget.next_frame(index) {
        let FrameBody::Inline(body, length) = outgoing.body else {
            unreachable!("there is no ring here")
        };
        let packet = owners_packet(journal, &outgoing.header, &body[..length]);
        let PacketOutcome::Reply(reply) = lender.on_packet(conn, &packet, journal, planted) else {
            break;
        };
        let Ok(frame) = Frame::parse(&reply) else { break };
        forget.on_frame(index, &frame);
    }
    lender.forget(conn);
}
