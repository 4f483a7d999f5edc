//! Lenders whose machines lack memory: they take no window, and ask for the one that they have.

use std::collections::BTreeSet;

use netram_proto::member::Window;
use netram_proto::planted::FaultSwitch;
use netram_proto::reclaim::{LentWindow, WindowReclaim};
use netram_proto::wire::{Flag, FrameHeader, FrameKind};

use crate::event::FrameDirection;
use crate::lender::{LENDER_BYTES, packet_of};
use crate::world::World;

/// What a lender makes of its machine's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct MachineMemory {
    /// Whether the machine lacks memory.
    pub(crate) short: bool,
    reclaim: WindowReclaim,
    /// Connections that were told.
    told: BTreeSet<usize>,
}

impl MachineMemory {
    /// Forgets what the process knew.
    pub(crate) fn restart(&mut self) {
        let short = self.short;
        *self = MachineMemory::default();
        self.short = short;
    }
}

/// Changes whether a lender's machine lacks memory.
pub(crate) fn press(world: &mut World, lender: usize, short: bool) {
    let machine = &mut world.lenders[lender];
    machine.memory.short = short;
    machine.window.limit = if short { 0 } else { LENDER_BYTES };
    world.kernel.tell(|| match short {
        true => format!("lender {lender}'s machine lacks memory"),
        false => format!("lender {lender}'s machine has memory again"),
    });
    settle(world);
}

/// Has the lenders look at their machines' memory, and tell their clients what follows.
pub(crate) fn settle(world: &mut World) {
    let planted = world.kernel.planted();
    for lender in 0..world.lenders.len() {
        let machine = &world.lenders[lender];
        if machine.up && machine.paused_until <= world.kernel.now() {
            settle_one(world, lender, planted);
        }
    }
}

fn settle_one(world: &mut World, lender: usize, planted: FaultSwitch) {
    let (now, journal) = (world.kernel.now(), world.kernel.journal());
    let conns = world.network.conns_to(lender);
    let machine = &mut world.lenders[lender];
    let bytes = match machine.state().joined && !conns.is_empty() {
        true => machine.window.capacity(),
        false => 0,
    };
    let windows = [LentWindow { journal, bytes }];
    let excess = if machine.memory.short { bytes } else { 0 };
    machine.memory.reclaim.plant(planted);
    machine
        .memory
        .reclaim
        .settle(now, &windows, excess, machine.memory.short);
    if !machine.memory.reclaim.asks(journal) {
        for conn in std::mem::take(&mut machine.memory.told) {
            world.network.break_conn(&mut world.kernel, conn);
        }
        return;
    }
    let header = FrameHeader {
        flags: Flag::DRAINS | Flag::PARTIAL,
        ..FrameHeader::new(FrameKind::Withdraw)
    };
    for conn in conns {
        if world.lenders[lender].memory.told.insert(conn) {
            world.kernel.hit("pressure: windows asked back");
            let packet = packet_of(&header, &[]);
            world
                .network
                .send(&mut world.kernel, conn, FrameDirection::Down, packet);
        }
    }
}
