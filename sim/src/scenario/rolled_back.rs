//! A disk that goes back in time. A snapshot is taken of a machine's disk, the journal goes on in later
//! epochs, and the lenders lose their memory. The snapshot is then put in place of the disk and opened.
//! Nobody is left who knows the later epochs, so the journal counts the same epochs and LSNs again.

use netram_proto::time::Nanos;

use super::journal;
use crate::check::rule21;
use crate::event_loop;
use crate::inject::heal;
use crate::process::life::crash;
use crate::world::World;

pub(super) fn run(world: &mut World) {
    live(world, 0);
    let snapshot = world.copy_host(0);
    world.kernel.hit("rolled back: snapshots");
    for _ in 0..world.kernel.rng.between(1, 2) {
        live(world, 0);
    }
    for lender in 0..world.lenders.len() {
        let conns = world.network.conns_to(lender);
        world.lenders.lose(lender, world.kernel.now());
        for conn in conns {
            world.network.break_conn(&mut world.kernel, conn);
        }
    }
    heal(world);
    event_loop::run_for(world, Nanos::from_ms(1000));
    for _ in 0..world.kernel.rng.between(1, 3) {
        live(world, snapshot);
    }
    journal::settle_down(world, snapshot);
}

/// One life of a process on `host`, which is killed in the end.
fn live(world: &mut World, host: usize) {
    let Some(process) = journal::open(world, host) else {
        return;
    };
    let deeds = world.kernel.rng.between(5, 30);
    if let Some(serving) = world.processes.serving(process) {
        let (epoch, from) = (serving.writer.epoch(), serving.tail.lsn);
        if rule21::is_repeated(world, epoch, from) {
            world.kernel.hit("rolled back: epochs and LSNs repeated");
        }
    }
    journal::work(world, process, deeds);
    let cut = world.kernel.rng.chance(300);
    crash(world, process, cut);
}
