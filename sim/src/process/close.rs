//! The orderly end of a process: its journal is closed first.

use netram_proto::journal::View;

use crate::process::life::{crash, with_serving};
use crate::process::serve::pump;
use crate::world::World;

/// Ends the process; in one of four cases it closes its journal first. With `power_cut` its machine dies.
pub(crate) fn end_process(world: &mut World, process: usize, power_cut: bool) {
    if !power_cut && world.kernel.rng.chance(250) {
        close_journal(world, process);
    }
    crash(world, process, power_cut);
}

/// Closes the journal before the process ends, as a program does that is told to stop, if the disk has
/// everything at this moment.
pub(crate) fn close_journal(world: &mut World, process: usize) {
    with_serving(world, process, |world, serving| {
        let busy = serving.poisoned.is_some() || serving.storing.is_some() || serving.flushing.is_some();
        let whole = serving.writer.stable() == serving.tail.lsn && serving.writer.fenced().is_none();
        if busy || !whole || serving.server.is_some() || serving.data.is_some() {
            return;
        }
        let host = world.processes[process].host;
        let newest = &world.hosts[host].view;
        let view = View {
            version: newest.version + 1,
            epochs: serving.writer.epochs().clone(),
            counting: false,
            clean: None,
            base: serving.writer.stable(),
            members: Vec::new(),
            ..newest.clone()
        };
        let stored = view.store(
            &mut serving.view_slots,
            &serving.view_file,
            &mut serving.view_full,
        );
        world.hosts.refresh_view(host);
        if stored.is_err() || world.hosts[host].disk.borrow().is_dead() {
            return;
        }
        world.kernel.hit("journals closed");
        world
            .kernel
            .tell(|| format!("process {process} closes its journal"));
        serving.writer.on_close();
        pump(world, process, serving);
    });
}
