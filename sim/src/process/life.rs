//! A process's life: its start and its death, alone or with its machine.

use netram_proto::id::WriterId;

use super::serving::ServingState;
use super::table::ProcessPhase;
use crate::event::WorldEvent;
use crate::kernel::TICK;
use crate::world::World;

impl World {
    /// Starts a process on `host`.
    pub(crate) fn spawn(&mut self, host: usize) -> usize {
        self.hosts[host].disk.borrow_mut().revive();
        let process = self.processes.add(host, WriterId(self.kernel.rng.draw()));
        self.network.add_process();
        self.kernel.at(TICK, WorldEvent::Tick { process });
        process
    }

    /// Kills the process without a farewell; with `power_cut`, its machine.
    pub(crate) fn crash(&mut self, process: usize, power_cut: bool) {
        if !self.processes.alive(process) {
            return;
        }
        self.kernel.mark(4, process as u64 * 2 + u64::from(power_cut));
        let kind = if power_cut {
            "its machine lost power"
        } else {
            "it crashed"
        };
        self.kernel.tell(|| format!("process {process} ends: {kind}"));
        self.kernel.hit(if power_cut {
            "client power cuts"
        } else {
            "client crashes"
        });
        self.leave_view_in_doubt(process);
        self.reap(process);
        let host = self.processes[process].host;
        if power_cut {
            self.hosts[host].disk.borrow_mut().power_cut();
        }
        self.backing_disk.stop(&mut self.kernel, power_cut);
        self.hosts.refresh_view(host);
    }

    /// Ends a process for whatever reason: connections close, and events for it are dropped.
    pub(crate) fn reap(&mut self, process: usize) {
        self.network
            .close_all(&mut self.kernel, &mut self.lenders, process);
        self.processes[process].last_state = self.processes.log_state(&self.kernel.profile, process);
        self.processes[process].phase = ProcessPhase::Dead;
        self.network.set_slots(process, core::iter::empty());
    }

    /// Handles a process that died between two disk operations. Whether its machine died too is drawn.
    pub(crate) fn died_midway(&mut self, process: usize) -> bool {
        let host = self.processes[process].host;
        if !self.hosts[host].disk.borrow().is_dead() {
            return false;
        }
        let power_cut = self.kernel.rng.chance(500);
        self.crash(process, power_cut);
        true
    }

    /// Runs `work` on the process's serving machine, if it serves.
    pub(crate) fn with_serving<T>(
        &mut self,
        process: usize,
        work: impl FnOnce(&mut World, &mut ServingState) -> T,
    ) -> Option<T> {
        let mut serving = self.processes.take_serving(process)?;
        let out = work(self, &mut serving);
        self.processes.put_serving(process, serving);
        Some(out)
    }

    /// Leaves a half-done store of a view, as a machine does that dies now.
    pub(super) fn leave_view_in_doubt(&mut self, process: usize) {
        // Number of operations done on two slots, each written and synced. Zero: nothing was written.
        let operations = self.kernel.rng.below(5) as u32;
        self.with_serving(process, |world, serving| {
            let host = world.processes[process].host;
            world.hosts[host].storing = None;
            let Some(view) = serving.storing.take() else {
                return;
            };
            if operations > 0 && !world.hosts[host].disk.borrow().is_dead() {
                world.kernel.hit("views cut off while being stored");
                world.hosts[host].disk.borrow_mut().crash_after(operations);
                let _ = view.store(
                    &mut serving.view_slots,
                    &serving.view_file,
                    &mut serving.view_full,
                );
            }
        });
    }

    /// Handles a process that died between two operations on its directory's disk. Whether its machine died
    /// too is drawn.
    pub(crate) fn died_on_backing_disk(&mut self, process: usize) -> bool {
        if !self.backing_disk.has_stopped() {
            return false;
        }
        if self.processes.alive(process) {
            self.kernel.hit("files: deaths between two operations");
            let power_cut = self.kernel.rng.chance(500);
            self.crash(process, power_cut);
        }
        true
    }
}
