//! The oracles, one module for each rule of the journal (`docs/design/failure-model.md`). Each checks its
//! rule from outside.
//!
//! An oracle compares answers of the machines with the bytes in the members' windows and on the platter, and
//! with [`crate::history::JournalHistory`], never with another machine's answer.

pub mod files;
pub mod liveness;
mod member;
pub mod multicast;
pub mod rule01;
pub mod rule02;
pub mod rule03;
pub mod rule04;
pub mod rule05;
pub mod rule06;
pub mod rule08;
pub mod rule09;
pub mod rule10;
pub mod rule11;
pub mod rule12;
pub mod rule13;
pub mod rule15;
pub mod rule16;
pub mod rule17;
pub mod rule18;
pub mod rule19;
pub mod rule20;
pub mod rule21;
pub mod rule23;
pub mod rule25;
pub mod rvm;
pub mod violation;

pub use violation::RuleViolation;
pub(crate) use violation::fail;

use crate::process::ServingState;
use crate::world::World;

/// Runs the checks that follow every event of a serving process.
pub(crate) fn after_event(world: &mut World, process: usize, serving: &mut ServingState) {
    rule10::bounded(world, serving);
    rule03::has_copies(world, process);
    rule04::fenced(world, serving);
    rule15::fenced(world, serving);
    rule25::not_understated(world, process, serving);
    let acked = serving.writer.acked();
    let host = world.processes[process].host;
    if acked > world.hosts[host].history.acked {
        rule01::acked(world, process, acked);
        rule04::acked(world, process, acked);
        rule13::acked(world, process, acked);
        world.kernel.mark(7, acked.0);
        let history = &mut world.hosts[host].history;
        let records = history.ends_between(history.acked.plus(1), acked).len();
        history.acked = acked;
        if acked > history.durable {
            history.acked_by_members = acked;
            if serving.writer.replica_ack().is_some() {
                world.data.note_acked(acked);
            }
        }
        world.kernel.add("records acknowledged", records as u64);
    }
}
