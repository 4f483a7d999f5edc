//! A program commits by multicast while one of its members is far away. Without faults every listener is
//! served by multicast, however late its answers are, and the bytes are sent once.

use netram_proto::port::Durability;
use netram_proto::time::Nanos;

use super::journal;
use crate::check::multicast;
use crate::client;
use crate::event_loop;
use crate::world::World;

pub(super) fn run(world: &mut World) {
    let Some(process) = journal::open(world, 0) else {
        return;
    };
    // Long enough for all to join, listen and be measured.
    event_loop::run_for(world, Nanos::from_ms(1500));
    multicast::all_listen(world, process);
    let before = multicast::stats(world, process);
    for _ in 0..world.kernel.rng.between(50, 150) {
        let mut last = None;
        for _ in 0..world.kernel.rng.between(1, 4) {
            match journal::append(world, process) {
                Ok(ticket) => last = Some(ticket),
                Err(_) => journal::trim_all(world, process),
            }
        }
        if let Some(ticket) = last
            && client::wait(world, process, ticket, Durability::Remote).is_err()
        {
            return;
        }
        let us = world.kernel.rng.pick(&[10, 1000, 10_000, 100_000]);
        let us = world.kernel.rng.below(us);
        event_loop::run_for(world, Nanos::from_us(us));
    }
    event_loop::run_for(world, Nanos::from_ms(500));
    world.kernel.hit("commits with a distant listener");
    multicast::all_listen(world, process);
    multicast::check_sent_once(world, process, before);
}
