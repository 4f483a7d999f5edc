//! Worlds in which several nodes share a region. The machines of a shared region (`RegionServer`,
//! `RegionNode`) and those of the nodes' journals (`JournalWriter`, `Recovery`, `assemble`, `MemberForget`)
//! are the ones that ship.
//!
//! There are machines with processes of a node, lenders, and the server, with a clock each. Links between
//! them are late and break. A process dies, its machine loses power, or any of them stands still.
//! `docs/design/simulator.md` lists all faults; the rules are those of `docs/design/shared.md`.
//!
//! The world consists of parts, each with private state. Drivers are functions of the whole world. From
//! below: parts, world, oracles, drivers.
//!
//! | module | is |
//! |---|---|
//! | `kernel`, `profile`, `bytes` | events, kernel, clocks; parameters; a region of words, spans, records |
//! | `lenders`, `net` | parts: the lenders, and connections to them |
//! | `queries` | part: queries that fence and read members, or tell them to forget |
//! | `server`, `server_disk` | part: the server's machine and its disk |
//! | `slots`, `process`, `journal`, `orphan` | part: the nodes' machines, with what is on each |
//! | `node_links` | part: links between nodes and server |
//! | `history` | part: true history |
//! | `world` | the parts together |
//! | `check` | the oracles |
//! | `delivery`, `query_events`, `link_events`, `hints` | drivers: connections, queries, links, hints |
//! | `server_events`, `readings` | drivers: the server, and the journals that it reads |
//! | `life`, `node_events`, `journal_events` | drivers: a node's process, its machine, its journal |
//! | `program`, `orphans` | drivers: the program in a process; journals of earlier processes |
//! | `intruder` | driver: a client with the cluster's key that speaks for others' nodes |
//! | `nemesis`, `scenario`, `quiescence` | drivers: faults, one seed's scenario, and the end of both |
//! | `event_loop` | the event loop |

mod bytes;
mod check;
mod delivery;
mod event_loop;
mod hints;
mod history;
mod intruder;
mod journal;
mod journal_events;
mod kernel;
mod lenders;
mod life;
mod link_events;
mod nemesis;
mod net;
mod node_events;
mod node_links;
mod orphan;
mod orphans;
mod process;
mod profile;
mod program;
mod queries;
mod query_events;
mod quiescence;
mod readings;
mod scenario;
mod server;
mod server_disk;
mod server_events;
mod slots;
mod world;

use netram_proto::planted::FaultSwitch;

use crate::coverage::Coverage;
use crate::rng::Rng;
use crate::trace::EventTrace;
pub use check::REGION_RULES;
use event_loop::run_for;
use kernel::Event;
use nemesis::plan_nemesis;
use profile::RegionProfile;
use quiescence::quiesce;
use scenario::plan_scenario;
use server_events::start_server;
use world::World;

/// Runs the region of one seed until it rests. Returns its fingerprint and its coverage.
pub(crate) fn run(mut rng: Rng, planted: FaultSwitch, trace: EventTrace) -> (u64, Coverage) {
    let profile = RegionProfile::draw(&mut rng);
    let lasts = profile.run_time;
    let mut world = World::new(rng, profile, planted, trace);
    world.kernel.hit("region: worlds");
    start_server(&mut world);
    for slot in 0..world.slots.len() {
        let ms = world.kernel.rng.pick(&[0, 0, 30, 300]);
        world.kernel.after_ms(ms, Event::SlotUp { slot });
    }
    plan_nemesis(&mut world);
    plan_scenario(&mut world);
    run_for(&mut world, lasts);
    quiesce(&mut world);
    world.kernel.finish()
}
