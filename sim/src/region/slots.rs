//! The machines on which the nodes' processes run, one process after another.

use std::cell::RefCell;
use std::ops::{Index, IndexMut};
use std::rc::Rc;

use netram_proto::time::{Nanos, Time};
use netram_shared_machine::{NodeId, RecordNumber};

use super::kernel::{Clock, RegionKernel};
use super::orphan::RegionOrphan;
use super::process::RegionProcess;
use crate::disk::{DiskFaults, SimDisk, SimDiskHandle};

/// A machine on which processes run one after another.
pub(super) struct MachineSlot {
    pub(super) process: Option<RegionProcess>,
    pub(super) disk: SimDiskHandle,
    clock: Clock,
    pub(super) paused_until: Time,
    /// Lag of its clock for the times the machine slept; used only with that fault planted.
    clock_lag: Nanos,
    /// The machine and the server cannot reach each other until this time.
    pub(super) cut_off_until: Time,
    /// Journals that earlier processes left.
    pub(super) orphans: Vec<RegionOrphan>,
    /// Records whose outcome is not known here yet.
    pub(super) unknown_outcomes: Vec<(NodeId, RecordNumber)>,
}

impl MachineSlot {
    fn new(disk: SimDiskHandle, clock: Clock) -> MachineSlot {
        MachineSlot {
            process: None,
            disk,
            clock,
            paused_until: Time(0),
            clock_lag: Nanos(0),
            cut_off_until: Time(0),
            orphans: Vec::new(),
            unknown_outcomes: Vec::new(),
        }
    }

    /// The process of this life, if it still runs.
    pub(super) fn alive(&mut self, life: u64) -> Option<&mut RegionProcess> {
        self.process.as_mut().filter(|process| process.life == life)
    }

    /// Life of its process.
    pub(super) fn life(&self) -> Option<u64> {
        self.process.as_ref().map(|process| process.life)
    }

    /// The process's connection to a lender.
    pub(super) fn conn(&self, index: usize) -> Option<usize> {
        self.process.as_ref()?.conns[index]
    }

    /// Local time of the machine.
    pub(super) fn local(&self, now: Time) -> Time {
        self.clock.local(Time(now.0.saturating_sub(self.clock_lag.0)))
    }

    /// Lets the machine's clock stand still for a while.
    pub(super) fn stop_clock(&mut self, span: Nanos) {
        self.clock_lag.0 += span.0;
    }

    /// Ends its pause and its partition from the server.
    fn heal(&mut self) {
        self.paused_until = Time(0);
        self.cut_off_until = Time(0);
    }
}

/// All machines of nodes, by number.
pub(super) struct NodeSlots {
    slots: Vec<MachineSlot>,
    /// Number of processes so far.
    lives: u64,
}

impl NodeSlots {
    /// Machines without processes.
    pub(super) fn new(kernel: &mut RegionKernel, count: usize) -> NodeSlots {
        let slots = (0..count).map(|_| {
            let mut disk = SimDisk::new(kernel.rng.fork());
            disk.faults = DiskFaults {
                survives_permille: kernel.profile.survives_permille,
                ..DiskFaults::default()
            };
            MachineSlot::new(Rc::new(RefCell::new(disk)), Clock::draw(kernel))
        });
        NodeSlots {
            slots: slots.collect(),
            lives: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, slot: usize) -> Option<&MachineSlot> {
        self.slots.get(slot)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &MachineSlot> {
        self.slots.iter()
    }

    /// The process of a node.
    pub(super) fn process_of(&self, node: NodeId) -> Option<(usize, &RegionProcess)> {
        let processes = self.slots.iter().enumerate();
        let mut processes = processes.filter_map(|(slot, machine)| Some((slot, machine.process.as_ref()?)));
        processes.find(|(_, process)| process.node.id() == Some(node))
    }

    /// Number of the next process.
    pub(super) fn next_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// Ends all faults of the machines.
    pub(super) fn heal(&mut self) {
        self.slots.iter_mut().for_each(MachineSlot::heal);
    }
}

impl Index<usize> for NodeSlots {
    type Output = MachineSlot;

    fn index(&self, slot: usize) -> &MachineSlot {
        &self.slots[slot]
    }
}

impl IndexMut<usize> for NodeSlots {
    fn index_mut(&mut self, slot: usize) -> &mut MachineSlot {
        &mut self.slots[slot]
    }
}
