//! The scenarios: programs of a client that run while faults happen.

mod copies;
mod deletion;
mod distant;
mod drains;
mod elastic;
mod files;
mod journal;
mod member;
mod operators;
mod pressure;
mod quiet;
mod replica;
mod replica_proof;
mod restore;
mod rolled_back;
mod rvm;
mod second;
mod shared;
mod steady;
mod volume;

use netram_proto::planted::FaultSwitch;
use netram_proto::time::Nanos;

use crate::coverage::Coverage;
use crate::database;
use crate::deposit;
use crate::profile::{LinkKind, WorldFault, WorldProfile};
use crate::region;
use crate::rng::Rng;
use crate::trace::{EventTrace, TraceSink};
use crate::world::World;

/// Result of one seed's run that broke no rule.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The run's fingerprint.
    pub hash: u64,
    /// Counts of interesting events.
    pub coverage: Coverage,
}

/// Mixed into a seed to draw which worlds multicast.
const MULTICAST_DRAW: u64 = 0x6D63_6173_7421_7421;
/// Mixed into a seed to draw which worlds have a distant member.
const DISTANT_DRAW: u64 = 0x6469_7374_616E_7421;
/// Mixed into a seed to draw which worlds have a data lender.
const DATA_DRAW: u64 = 0x6461_7461_6C65_6E64;

/// Mixed into a seed to draw which worlds with two directories of a journal are those of operators.
const OPERATORS_DRAW: u64 = 0x6F70_6572_6174_6F72;

/// Mixed into a seed to draw which worlds with two directories of a journal are those in which one is
/// deleted.
const DELETION_DRAW: u64 = 0x6465_6C65_7465_6421;

/// Mixed into a seed to draw which worlds with two directories of a journal are those of a disk that goes
/// back in time.
const ROLLED_BACK_DRAW: u64 = 0x736E_6170_7368_6F74;

/// Mixed into a seed to draw which worlds' journals are a node's.
const SHARED_DRAW: u64 = 0x7368_6172_6564_2121;

/// Mixed into a seed to draw which worlds are those of a shared region.
const REGION_DRAW: u64 = 0x7265_6769_6F6E_2121;

/// Mixed into a seed to draw which worlds are those of deposits.
const DEPOSIT_DRAW: u64 = 0x6661_7221_6661_7221;

/// Mixed into a seed to draw which worlds are those of a directory of files.
const FILES_DRAW: u64 = 0x6669_6C65_7321_2121;

/// Mixed into a seed to draw which worlds of recoverable memory have a copy of their log.
const COPIES_DRAW: u64 = 0x636F_7069_6573_2121;
/// Mixed into a seed to draw which worlds are those of a database's processes.
const DATABASE_DRAW: u64 = 0x7061_7274_7921_2121;
/// Mixed into a seed to draw which worlds have several addresses for each lender.
const ADDRESSES_DRAW: u64 = 0x6E61_6D65_7321_2121;

/// Mixed into a seed to draw which worlds are quiet, and after how long a journal rests.
const QUIET_DRAW: u64 = 0x7175_6965_7421_2121;

/// Mixed into a seed to draw which worlds are those of a rolling restart.
const DRAINS_DRAW: u64 = 0x6472_6169_6E73_2121;

/// Mixed into a seed to draw which worlds have lenders whose machines lack memory.
const PRESSURE_DRAW: u64 = 0x7072_6573_7365_6421;

/// Mixed into a seed to draw in which worlds lenders, rule and number of members change, and how.
const ELASTIC_DRAW: u64 = 0x656C_6173_7469_6321;

/// Mixed into a seed to draw which worlds have a client with the cluster's key that means harm.
const INTRUDER_DRAW: u64 = 0x696E_7472_7564_6521;

/// Mixed into a seed to draw in which worlds lenders write their memory to their disks.
const SPILL_DRAW: u64 = 0x7370_696C_6C73_2121;

/// Mixed into a seed to draw which worlds have lenders whose clients have names.
const NAMED_DRAW: u64 = 0x6E61_6D65_6421_2121;

/// Kind of world that is drawn for no other scenario.
const FILES_KIND: u64 = 100;

/// Whether the world of `seed` is that of several processes that have a database open.
pub fn is_database(seed: u64) -> bool {
    !is_region(seed) && !is_deposit(seed) && !is_files(seed) && Rng::new(seed ^ DATABASE_DRAW).chance(60)
}

/// Whether the world of `seed` is that of a directory of files.
pub fn is_files(seed: u64) -> bool {
    !is_region(seed) && !is_deposit(seed) && Rng::new(seed ^ FILES_DRAW).chance(30)
}

/// Whether the world of `seed` is that of owners with pages at lenders.
pub fn is_deposit(seed: u64) -> bool {
    !is_region(seed) && Rng::new(seed ^ DEPOSIT_DRAW).chance(40)
}

/// Whether the world of `seed` is that of several nodes that share a region.
pub fn is_region(seed: u64) -> bool {
    Rng::new(seed ^ REGION_DRAW).chance(60)
}

/// Whether the journal of the world of `seed` is that of a node of a shared region, if it is one in which a
/// client journals.
pub fn is_shared(seed: u64) -> bool {
    Rng::new(seed ^ SHARED_DRAW).chance(100)
}

/// Whether a log is copied in the world of `seed`, if it is one of recoverable memory.
pub fn has_copy(seed: u64) -> bool {
    Rng::new(seed ^ COPIES_DRAW).chance(300)
}

/// Whether the world of `seed` has a data lender, if it is one in which a client journals.
pub fn has_data_lender(seed: u64) -> bool {
    Rng::new(seed ^ DATA_DRAW).chance(100)
}

/// Whether a client with the cluster's key means harm in the world of `seed`, if it is one in which a client
/// journals alone.
pub fn is_intruded(seed: u64) -> bool {
    Rng::new(seed ^ INTRUDER_DRAW).chance(80)
}

/// Whether lenders that stop write their memory to their disks in the world of `seed`, if it is one in which
/// a client journals alone.
pub fn has_spills(seed: u64) -> bool {
    Rng::new(seed ^ SPILL_DRAW).chance(80)
}

/// Whether lenders' clients have names and limits in the world of `seed`, if it is one in which a client
/// journals alone.
pub fn has_named_clients(seed: u64) -> bool {
    !is_intruded(seed) && !has_spills(seed) && Rng::new(seed ^ NAMED_DRAW).chance(80)
}

/// Whether lenders are drained and restarted one by one in the world of `seed`, if it is one in which a
/// client journals alone.
pub fn has_drains(seed: u64) -> bool {
    Rng::new(seed ^ DRAINS_DRAW).chance(40)
}

/// Whether lenders' machines lack memory in the world of `seed`, if it is one in which a client journals
/// alone.
pub fn has_pressure(seed: u64) -> bool {
    !has_drains(seed) && Rng::new(seed ^ PRESSURE_DRAW).chance(40)
}

/// Whether lenders, rule and number of members of the open journal change in the world of `seed`, if it is
/// one in which a client journals alone.
pub fn is_elastic(seed: u64) -> bool {
    let watched = has_drains(seed) || has_pressure(seed);
    let others = watched || is_intruded(seed) || has_spills(seed) || has_named_clients(seed);
    !others && Rng::new(seed ^ ELASTIC_DRAW).chance(120)
}

/// Whether copies are promised throughout in the world of `seed`, if it is an elastic one.
fn is_steadily_elastic(seed: u64) -> bool {
    is_elastic(seed) && Rng::new(seed ^ ELASTIC_DRAW ^ 1).chance(400)
}

/// Whether lenders have several addresses in the world of `seed`, or move, if its links are streams.
pub fn has_many_addresses(seed: u64) -> bool {
    Rng::new(seed ^ ADDRESSES_DRAW).chance(200)
}

/// Whether the world of `seed` is one of operators who open original and copy by turns, if it is one of two
/// directories.
pub fn is_of_operators(seed: u64) -> bool {
    Rng::new(seed ^ OPERATORS_DRAW).chance(500)
}

/// Whether a copy of the journal's directory is deleted in the world of `seed`, if it is one of two
/// directories.
pub fn has_deletion(seed: u64) -> bool {
    Rng::new(seed ^ DELETION_DRAW).chance(200)
}

/// Whether the journal's disk goes back in time in the world of `seed`, if it is one of two directories.
pub fn is_rolled_back(seed: u64) -> bool {
    Rng::new(seed ^ ROLLED_BACK_DRAW).chance(200)
}

/// Runs a world that has an event loop of its own.
type RunWorld = fn(Rng, FaultSwitch, EventTrace) -> (u64, Coverage);

fn separate_world(seed: u64) -> Option<RunWorld> {
    if is_region(seed) {
        return Some(region::run);
    }
    if is_deposit(seed) {
        return Some(deposit::run);
    }
    is_database(seed).then_some(database::run as RunWorld)
}

/// Adapts the world of `seed`, in which a client journals, alone or as a node.
fn profile_journal(seed: u64, (alone, shared): (bool, bool), profile: &mut WorldProfile) {
    if !alone {
        let changes = shared && is_elastic(seed);
        profile
            .faults
            .extend(changes.then_some(WorldFault::ChangeMembership));
    } else if has_drains(seed) {
        profile.drained(&mut Rng::new(seed ^ DRAINS_DRAW ^ 1));
    } else if has_pressure(seed) {
        profile.drained(&mut Rng::new(seed ^ PRESSURE_DRAW ^ 1));
    } else if is_intruded(seed) {
        profile.intruded();
    } else if has_spills(seed) {
        profile.spilling(&mut Rng::new(seed ^ SPILL_DRAW ^ 1));
    } else if has_named_clients(seed) {
        profile.name_clients();
    } else if is_steadily_elastic(seed) {
        profile.drained(&mut Rng::new(seed ^ ELASTIC_DRAW ^ 2));
    } else if is_elastic(seed) {
        profile.elastic(&mut Rng::new(seed ^ ELASTIC_DRAW ^ 2));
    }
}

/// Runs `seed`. Unwinds with a [`crate::check::RuleViolation`] when a rule is broken.
pub fn run(seed: u64, planted: FaultSwitch, story: Option<TraceSink>) -> RunOutcome {
    let mut rng = Rng::new(seed);
    if let Some(run) = separate_world(seed) {
        let (hash, coverage) = run(rng, planted, EventTrace::new(story));
        return RunOutcome { hash, coverage };
    }
    let mut profile = WorldProfile::draw(&mut rng);
    let kind = match is_files(seed) {
        true => FILES_KIND,
        false => rng.below(100),
    };
    if (70..80).contains(&kind) {
        profile.hostile = Some(rng.index(profile.lenders));
    }
    if kind < 5 {
        profile.storm(&mut rng);
    }
    // Drawn from a separate generator, so that the worlds of other seeds do not change.
    let mut apart = Rng::new(seed ^ MULTICAST_DRAW);
    if kind >= 5 && apart.chance(250) {
        profile.multicast(&mut apart);
    }
    let kept = (5..60).contains(&kind) && has_data_lender(seed);
    let shared = (5..60).contains(&kind) && !kept && is_shared(seed);
    let mut far = Rng::new(seed ^ DISTANT_DRAW);
    let distant = (5..60).contains(&kind) && !kept && !shared && far.chance(20);
    if distant {
        profile.distant(&mut far);
    }
    // A restore asks each address who fenced its memory before it fences. A change of the memory at an
    // address in between is not modelled.
    if has_many_addresses(seed) && profile.links == LinkKind::Stream && !distant && !kept && kind >= 5 {
        profile.many_addresses(&mut Rng::new(seed ^ ADDRESSES_DRAW ^ 1));
    }
    let single = (5..60).contains(&kind) && !kept && !shared && !distant;
    let mut quietly = Rng::new(seed ^ QUIET_DRAW);
    let quiet = single && quietly.chance(40);
    let alone = single && !quiet;
    if quiet {
        profile.quiet(&mut quietly);
    }
    let elastic = alone && is_steadily_elastic(seed);
    profile_journal(seed, (alone, shared), &mut profile);
    profile.timing.idle = Nanos::from_ms(quietly.pick(&[50, 200, 1000]));
    if kept {
        replica::adapt(&mut profile);
    }
    let mut world = World::new(rng, profile, planted, EventTrace::new(story));
    tell_profile(&mut world, seed);
    match kind {
        _ if quiet => quiet::run(&mut world),
        _ if alone && has_drains(seed) => drains::run(&mut world),
        _ if alone && has_pressure(seed) => pressure::run(&mut world),
        _ if elastic => elastic::run(&mut world),
        _ if distant => distant::run(&mut world),
        _ if shared => shared::run(&mut world),
        _ if kept => world = replica::run(world),
        0..60 | 70..80 => journal::run(&mut world),
        60..70 if has_deletion(seed) => deletion::run(&mut world),
        60..70 if is_rolled_back(seed) => rolled_back::run(&mut world),
        60..70 if is_of_operators(seed) => operators::run(&mut world),
        60..70 => second::run(&mut world),
        80..84 => member::run(&mut world),
        84..95 if has_copy(seed) => world = copies::run(world),
        84..95 => world = rvm::run(world),
        FILES_KIND => world = files::run(world),
        _ => world = volume::run(world),
    }
    outcome(&mut world)
}

fn tell_profile(world: &mut World, seed: u64) {
    let description = format!("seed {seed}: {:?}", world.kernel.profile);
    world.kernel.tell(|| description);
}

fn outcome(world: &mut World) -> RunOutcome {
    for host in world.hosts.iter() {
        let counts = host.disk.borrow().counts;
        world.kernel.add("disk: syncs that failed", counts.sync_failures);
        world.kernel.add("disk: writes that found no space", counts.full);
        world.kernel.add("disk: calls that were refused", counts.refused);
        world
            .kernel
            .add("disk: reads of unreadable sectors", counts.unreadable);
        world
            .kernel
            .add("disk: power cuts that lost sectors", counts.cuts_with_loss);
        world
            .kernel
            .add("disk: deaths between two operations", counts.crashes_midway);
    }
    let (hash, coverage) = world.kernel.finish();
    RunOutcome { hash, coverage }
}
