//! The owners, by number, and the disks of their spill files.

use std::ops::{Index, IndexMut};

use netram_proto::time::Time;

use super::owner::DepositOwner;
use super::spill_disk::SpillDisk;

/// All owners, by number. One that has died is `None`.
pub(super) struct DepositOwners {
    owners: Vec<Option<DepositOwner>>,
    /// Number of owners' processes so far.
    lives: u64,
}

impl DepositOwners {
    pub(super) fn new(count: usize) -> DepositOwners {
        DepositOwners {
            owners: (0..count).map(|_| None).collect(),
            lives: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    /// Number of the next owner's process.
    pub(super) fn next_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// The owners that live.
    pub(super) fn living(&self) -> impl Iterator<Item = &DepositOwner> {
        self.owners.iter().flatten()
    }

    /// The owner of this life, if it still lives.
    pub(super) fn alive(&mut self, arena: usize, life: u64) -> Option<&mut DepositOwner> {
        self.owners[arena].as_mut().filter(|owner| owner.life == life)
    }

    /// The disk of an owner's spill file.
    pub(super) fn disk_mut(&mut self, arena: usize) -> Option<&mut SpillDisk> {
        self.owners[arena].as_mut()?.disk.as_mut()
    }

    /// Whether a session with an owner's disk is up or about to be.
    pub(super) fn is_disk_open(&self, arena: usize) -> bool {
        let disk = self.owners[arena].as_ref().and_then(|owner| owner.disk.as_ref());
        disk.is_some_and(SpillDisk::is_open)
    }

    /// Whether no disk has a fault.
    pub(super) fn disks_are_sound(&self, now: Time) -> bool {
        let mut disks = self.living().filter_map(|owner| owner.disk.as_ref());
        disks.all(|disk| disk.is_sound(now))
    }

    /// Cancels the pending faults of all disks.
    pub(super) fn cancel_disk_faults(&mut self) {
        for disk in self.disks_mut() {
            disk.spill.file().next_fault = None;
        }
    }

    /// Ends all faults of all disks.
    pub(super) fn heal_disks(&mut self, room: u32) {
        for disk in self.disks_mut() {
            disk.paused_until = Time(0);
            let file = disk.spill.file();
            (file.room, file.next_fault) = (room, None);
        }
    }

    fn disks_mut(&mut self) -> impl Iterator<Item = &mut SpillDisk> {
        let owners = self.owners.iter_mut().flatten();
        owners.filter_map(|owner| owner.disk.as_mut())
    }
}

impl Index<usize> for DepositOwners {
    type Output = Option<DepositOwner>;

    fn index(&self, arena: usize) -> &Option<DepositOwner> {
        &self.owners[arena]
    }
}

impl IndexMut<usize> for DepositOwners {
    fn index_mut(&mut self, arena: usize) -> &mut Option<DepositOwner> {
        &mut self.owners[arena]
    }
}
