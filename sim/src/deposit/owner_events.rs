//! Events of an owner's process: it starts, frames arrive, and what its page client wants is done.

use netram_far_machine::deposit::{DirectoryEvent, LenderViolation};
use netram_proto::time::Nanos;
use netram_proto::wire::Frame;

use super::delivery::on_closed;
use super::disk_events::{close_disk, send_to_disk};
use super::gather::on_lies_proven;
use super::kernel::Event;
use super::owner::DepositOwner;
use super::program::collect;
use super::world::World;
use crate::event::FrameDirection;

/// Starts an owner, which connects to all lenders.
pub(super) fn start_arena(world: &mut World, arena: usize) {
    let life = world.owners.next_life();
    world.owners[arena] = Some(DepositOwner::new(&world.kernel, life));
    for lender in 0..world.kernel.profile.lenders {
        world.kernel.at(Nanos(1), Event::Dial { arena, life, lender });
    }
    world.kernel.at(Nanos(1), Event::OpenDisk { arena, life });
    world.kernel.at(Nanos(2), Event::Program { arena, life });
}

/// Handles a frame from a lender. A protocol violation ends the link.
pub(super) fn on_lender_frame(
    world: &mut World,
    arena: usize,
    lender: usize,
    frame: &Frame<'_>,
) -> Result<(), LenderViolation> {
    let Some(owner) = &mut world.owners[arena] else {
        return Ok(());
    };
    let heard = owner
        .page_client
        .handle_frame(lender, frame, world.kernel.now())?;
    let mut count = |what, times: usize| world.kernel.add(what, times as u64);
    count("far: sessions", heard.linked.into());
    count("far: lenders that were full", heard.full.into());
    count("far: pages fetched", heard.fetched);
    count("far: pages mended", heard.repairing);
    count("far: lies found", heard.forged.len());
    count("far: pages gathered from", heard.gathered);
    count("far: lies about words found", heard.disproved.len());
    on_lies_proven(world, arena, &heard.disproved);
    Ok(())
}

/// Handles the outcomes of pages, and sends the frames due.
pub(super) fn settle(world: &mut World, arena: usize) {
    let now = world.kernel.now();
    if let Some(owner) = &mut world.owners[arena] {
        owner.page_client.settle(|news| {
            if let DirectoryEvent::Stashed(_, version, copies) = news {
                world.kernel.mark(32, *version);
                world.kernel.hit(if *copies > 1 {
                    "far: pages in two places"
                } else {
                    "far: pages in one place"
                });
            }
        });
    }
    collect(world, arena);
    for lender in 0..world.kernel.profile.lenders {
        while let Some(owner) = &mut world.owners[arena]
            && let Some(conn) = owner.conns[lender]
            && world.network.has_room(conn)
            && let Some(packet) = owner.next_packet(lender, now)
        {
            world
                .network
                .send(&mut world.kernel, conn, FrameDirection::Up, packet);
        }
    }
    let spill = world.kernel.profile.lenders;
    while world.owners.is_disk_open(arena)
        && let Some(owner) = &mut world.owners[arena]
        && let Some(packet) = owner.next_packet(spill, now)
    {
        send_to_disk(world, arena, packet);
    }
}

/// Gives up links whose answers are overdue.
pub(super) fn give_up_silent(world: &mut World, arena: usize) {
    let (now, spill) = (world.kernel.now(), world.kernel.profile.lenders);
    for lender in 0..spill {
        if let Some(owner) = &mut world.owners[arena] {
            owner.note_absence(lender, now);
        }
        let silent = |owner: &&DepositOwner| owner.directory().is_silent(lender, now);
        let owner = world.owners[arena].as_ref().filter(silent);
        if let Some(conn) = owner.and_then(|owner| owner.conns[lender]) {
            world.kernel.hit("far: lenders that owed an answer");
            on_closed(world, conn);
        }
    }
    let silent = |owner: &DepositOwner| owner.directory().is_silent(spill, now);
    if world.owners.is_disk_open(arena) && world.owners[arena].as_ref().is_some_and(silent) {
        world.kernel.hit("far: disks that were given up");
        close_disk(world, arena);
    }
}
