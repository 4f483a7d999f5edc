//! Worlds of deposits: owners keep pages at lenders. `RemotePageClient` and `DepositServer` are the ones that
//! ship.
//!
//! Links are late and break, and their last frames may arrive after those of the next link. Lenders die and
//! lose everything, stand still, run out of room, withdraw, or lie. An owner dies and another begins.
//! `docs/design/simulator.md` lists all faults. Rule 14 of `docs/design/failure-model.md` is checked wherever
//! a page comes back, and at quiescence.
//!
//! The world consists of parts, each with private state. Drivers are functions of the whole world. From
//! below: parts, world, oracles, drivers.
//!
//! | module | is |
//! |---|---|
//! | `kernel`, `profile` | events and kernel; parameters of one seed's world |
//! | `lenders` | part: deposit servers and their memory |
//! | `owner`, `owners` | part: the owners, each with its page client, memory and expected contents |
//! | `spill`, `spill_disk` | an owner's spill file and its disk |
//! | `net` | part: connections |
//! | `world` | the parts together |
//! | `check`, `wait_bound` | oracles: rule 14, and the longest wait for a page |
//! | `delivery`, `owner_events`, `disk_events` | drivers: connections, owners, disks |
//! | `program`, `gather` | drivers: an owner's program; reads of blocks of remote pages |
//! | `nemesis`, `pressure` | drivers: faults; lenders that reclaim slots |
//! | `quiescence` | state that must hold once no more faults happen |
//! | `event_loop` | the event loop |

mod check;
mod delivery;
mod disk_events;
mod event_loop;
mod gather;
mod kernel;
mod lenders;
mod nemesis;
mod net;
mod owner;
mod owner_events;
mod owners;
mod pressure;
mod profile;
mod program;
mod quiescence;
mod spill;
mod spill_disk;
mod wait_bound;
mod world;

use netram_proto::planted::FaultSwitch;
use netram_proto::time::Nanos;

use crate::coverage::Coverage;
use crate::rng::Rng;
use crate::trace::EventTrace;
use event_loop::{TICK, run_for};
use kernel::Event;
use nemesis::plan_nemesis;
use profile::DepositProfile;
use quiescence::quiesce;
use world::World;

/// Runs the world of one seed until it rests. Returns its fingerprint and its coverage.
pub(crate) fn run(mut rng: Rng, planted: FaultSwitch, trace: EventTrace) -> (u64, Coverage) {
    let profile = DepositProfile::draw(&mut rng);
    let lasts = profile.run_time;
    let mut world = World::new(rng, profile, planted, trace);
    world.kernel.hit("far: worlds");
    for arena in 0..world.owners.len() {
        world.kernel.at(Nanos(1), Event::ArenaUp { arena });
    }
    world.kernel.at(TICK, Event::Tick);
    plan_nemesis(&mut world);
    run_for(&mut world, lasts);
    quiesce(&mut world);
    world.kernel.finish()
}
