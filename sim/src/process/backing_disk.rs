//! The backing disk of a directory of files, in worlds that have one. It stops with the process that uses it,
//! and loses power with the first host, to which it belongs.

use crate::world::World;

impl World {
    /// Stops the disk with its process, perhaps with its machine: pending operations of the directory are not
    /// done.
    pub(super) fn stop_backing_disk(&mut self, power_cut: bool) {
        let Some(tree) = &self.backing_disk else { return };
        if power_cut {
            let survives = self.kernel.profile.disk.survives_permille;
            tree.power_off(|| self.kernel.rng.chance(survives));
            self.kernel.hit("files: power cuts of the disk beneath");
        }
        tree.fail_after(0);
    }

    /// Handles a process that died between two operations on its directory's disk. Whether its machine died
    /// too is drawn.
    pub(crate) fn died_on_backing_disk(&mut self, process: usize) -> bool {
        if !self.backing_disk.as_ref().is_some_and(|tree| tree.has_stopped()) {
            return false;
        }
        if self.alive(process) {
            self.kernel.hit("files: deaths between two operations");
            let power_cut = self.kernel.rng.chance(500);
            self.crash(process, power_cut);
        }
        true
    }
}
