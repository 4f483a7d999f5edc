//! The disk beneath a directory of files, in worlds that have one: it stops with the process that uses it,
//! and loses power with the first host, whose it is.

use crate::world::World;

impl World {
    /// The process is dead, perhaps with its machine: nothing that its directory still wants is done on the
    /// disk.
    pub(super) fn stop_backing_disk(&mut self, power_cut: bool) {
        let Some(tree) = &self.backing_disk else { return };
        if power_cut {
            let survives = self.profile.disk.survives_permille;
            tree.power_off(|| self.rng.chance(survives));
            self.coverage.hit("files: power cuts of the disk beneath");
        }
        tree.fail_after(0);
    }

    /// The process died between two operations on its directory's disk. Whether the machine died with it,
    /// chance says.
    pub(crate) fn died_on_backing_disk(&mut self, process: usize) -> bool {
        if !self.backing_disk.as_ref().is_some_and(|tree| tree.has_stopped()) {
            return false;
        }
        if self.alive(process) {
            self.coverage.hit("files: deaths between two operations");
            let power_cut = self.rng.chance(500);
            self.crash(process, power_cut);
        }
        true
    }
}
