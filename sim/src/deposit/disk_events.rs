//! Events of a spill file's disk: requests and answers arrive, sessions begin and end, faults are injected.

use netram_proto::time::Nanos;
use netram_proto::wire::{Frame, FrameKind};

use super::check::fail;
use super::kernel::Event;
use super::lenders::frame;
use super::owner_events::{on_lender_frame, settle};
use super::spill::SpillFault;
use super::world::World;
use crate::event::FrameDirection;

/// Begins a session with the disk of an owner's spill file.
pub(super) fn open_disk(world: &mut World, arena: usize, life: u64) {
    let Some(owner) = world.owners.alive(arena, life) else {
        return;
    };
    let Some(spill) = owner.directory().spill() else {
        return;
    };
    let epoch = owner.directory_mut().next_session(spill);
    let packet = frame(FrameKind::Deposit, epoch, owner.writer())
        .encode(0)
        .to_vec();
    if let Some(disk) = &mut owner.disk {
        disk.open();
    }
    send_to_disk(world, arena, packet);
}

/// Sends a request to the disk.
pub(super) fn send_to_disk(world: &mut World, arena: usize, packet: Vec<u8>) {
    let at = world.kernel.now() + Nanos::from_us(world.kernel.rng.between(5, 20_000));
    if let Some(owner) = &mut world.owners[arena]
        && let Some(disk) = &mut owner.disk
    {
        disk.send(&mut world.kernel, (arena, owner.life), packet, at);
    }
}

pub(super) fn on_disk(world: &mut World, arena: usize, life: u64, way: FrameDirection) {
    let Some(owner) = world.owners.alive(arena, life) else {
        return;
    };
    let Some(spill) = owner.directory().spill() else {
        return;
    };
    let epoch = owner.directory().session(spill);
    let Some(disk) = &mut owner.disk else { return };
    match way {
        FrameDirection::Up if disk.paused_until > world.kernel.now() => {
            let until = disk.paused_until;
            world.kernel.push(until, Event::Disk { arena, life, way });
        }
        FrameDirection::Up => {
            let at = world.kernel.now() + Nanos::from_us(world.kernel.rng.between(1, 50));
            disk.serve(&mut world.kernel, (arena, life), at);
        }
        FrameDirection::Down => match disk.take_answer(epoch) {
            Some(Some(packet)) => owner_reads(world, arena, spill, &packet),
            Some(None) => close_disk(world, arena),
            None => (),
        },
    }
}

fn owner_reads(world: &mut World, arena: usize, spill: usize, packet: &[u8]) {
    let Ok(frame) = Frame::parse(packet) else {
        unreachable!("the spill file answers in frames")
    };
    match frame.header.kind {
        FrameKind::GetReply => world.kernel.hit("far: pages read from a spill file"),
        FrameKind::PutAck => world.kernel.hit("far: pages written to a spill file"),
        FrameKind::Refuse => world.kernel.hit("far: disks that were full"),
        _ => (),
    }
    if let Err(offence) = on_lender_frame(world, arena, spill, &frame) {
        fail(format!("the spill file sent an unexpected message: {offence:?}"));
    }
    settle(world, arena);
}

/// Ends the disk's session, after a failed write or too long a silence.
pub(super) fn close_disk(world: &mut World, arena: usize) {
    let now = world.kernel.now();
    let Some(owner) = &mut world.owners[arena] else {
        return;
    };
    let (life, spill) = (owner.life, owner.directory().spill());
    if let (Some(disk), Some(spill)) = (&mut owner.disk, spill) {
        disk.close();
        owner.directory_mut().on_unlinked(spill, now);
        let ms = world.kernel.rng.pick(&[1, 300, 2500]);
        world
            .kernel
            .at(Nanos::from_ms(ms), Event::OpenDisk { arena, life });
        settle(world, arena);
    }
}

/// Injects a fault into the disk.
pub(super) fn inject_disk_fault(world: &mut World, arena: usize, fault: SpillFault) {
    if let Some(disk) = world.owners.disk_mut(arena) {
        disk.spill.file().next_fault = Some(fault);
        world.kernel.hit(match fault {
            SpillFault::WriteError => "far: disks that are to fail",
            SpillFault::TornWrite => "far: disks that are to tear a write",
            SpillFault::ReadError => "far: disks that are to lose a page",
        });
    }
}

/// Makes the disk stand still.
pub(super) fn stall_disk(world: &mut World, arena: usize, span: Nanos) {
    let until = world.kernel.now() + span;
    if let Some(disk) = world.owners.disk_mut(arena) {
        disk.paused_until = until;
        world.kernel.hit("far: disks that stood still");
    }
}

/// Gives the disk less room, or more.
pub(super) fn fill_disk(world: &mut World, arena: usize) {
    let room = world.kernel.rng.between(0, world.kernel.profile.spill.into()) as u32;
    if let Some(disk) = world.owners.disk_mut(arena) {
        disk.spill.file().room = room;
    }
}
