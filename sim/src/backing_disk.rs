//! The backing disk of a directory of files, beside the first host's other one, in worlds that have one. It
//! stops with the process that uses it, and loses power with the first host, to which it belongs.

use netram_files::model::MemoryDisk;

use crate::kernel::SimKernel;

/// The backing disk of a world, if it has one.
#[derive(Default)]
pub(crate) struct BackingDisk(Option<MemoryDisk>);

impl BackingDisk {
    /// Gives the world a backing disk.
    pub(crate) fn attach(&mut self, disk: MemoryDisk) {
        self.0 = Some(disk);
    }

    /// Stops the disk with its process, perhaps with its machine: pending operations of the directory are not
    /// done.
    pub(crate) fn stop(&self, kernel: &mut SimKernel, power_cut: bool) {
        let Some(disk) = &self.0 else { return };
        if power_cut {
            let survives = kernel.profile.disk.survives_permille;
            disk.power_off(|| kernel.rng.chance(survives));
            kernel.hit("files: power cuts of the disk beneath");
        }
        disk.fail_after(0);
    }

    /// Whether the disk has stopped, so that its process is dead.
    pub(crate) fn has_stopped(&self) -> bool {
        self.0.as_ref().is_some_and(MemoryDisk::has_stopped)
    }
}
