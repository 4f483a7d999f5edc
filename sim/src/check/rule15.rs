//! Rule 15, *a journal belongs to the holder of its key*: nobody else changes what a lender has of it, and no
//! writer stops for a fence that its owner did not make.

use netram_block_machine::ReplicaDescription;
use netram_proto::id::Epoch;
use netram_proto::member::MemberState;
use netram_proto::owner::is_owned;
use netram_proto::wire::ChainPoint;

use super::violation::fail;
use crate::data::intruder::ReplicaStanding;
use crate::kernel::SimKernel;
use crate::process::ServingState;
use crate::world::World;

/// Checks a member after a frame of a client that does not own the journal.
pub(crate) fn untouched(kernel: &SimKernel, lender: usize, before: &MemberState, after: &MemberState) {
    if is_owned(kernel.journal().0) && before != after {
        fail(
            15,
            format!("a stranger changed the owned journal at lender {lender}: {before:?}, then {after:?}"),
        );
    }
}

/// Checks that the epoch which stopped a writer is one that an opening of this journal has taken.
pub(crate) fn fenced(world: &World, serving: &ServingState) {
    let elsewhere = world.data.exists() || world.data.volume_bytes() > 0 || world.server.is_some();
    let Some(seen) = serving.writer.fenced().filter(|_| !elsewhere) else {
        return;
    };
    let newest = world.hosts.iter().map(|host| host.view.epoch).max();
    if is_owned(world.kernel.journal().0) && newest.is_none_or(|newest| seen > newest) {
        fail(
            15,
            format!("a writer stopped for epoch {seen}, which no directory of the journal has taken"),
        );
    }
}

/// Checks that a stranger's frame has left the replica, and its client's session, as they were.
pub(crate) fn untouched_replica(before: &ReplicaStanding, after: Option<&ReplicaStanding>) {
    if after != Some(before) {
        fail(
            15,
            format!("a stranger changed the replica: {before:?}, then {after:?}"),
        );
    }
}

/// Checks that a stranger is told no more of the replica than sizes and ages.
pub(crate) fn told_little(told: &ReplicaDescription) {
    if told.view.epoch != Epoch(0) || !told.view.members.is_empty() || told.end != ChainPoint::default() {
        fail(15, format!("a stranger is told {told:?}"));
    }
}
