//! Rules by which a restore from a replica, or its refusal, is judged.

use netram_proto::id::Lsn;
use netram_proto::journal::{CommitRule, View, ViewMember};

use crate::check::rule01;
use crate::world::World;

/// LSN that the client's members had acknowledged, which a restore that is not refused must find.
pub(super) fn acked_by_members(world: &World, host: usize, kept: &View) -> Lsn {
    let host = &world.hosts[host];
    let same = |view: &View| {
        view.members.iter().all(|member| {
            kept.members
                .iter()
                .any(|other| other.address == member.address && other.incarnation == member.incarnation)
        })
    };
    // Out of service, a view may have followed that the data lender was never told of. With rule `all` every
    // member of it has everything, and any that the replica names gives it. With other rules a restore cannot
    // tell.
    let shared = host.view.members.iter().any(|member| {
        kept.members
            .iter()
            .any(|other| other.address == member.address && other.incarnation == member.incarnation)
    });
    let decidable = host.view.epoch == kept.epoch
        && (same(&host.view) && host.view.members.len() == kept.members.len()
            || shared && host.view.rule == CommitRule::All);
    if decidable {
        host.history.acked_by_members.max(world.data.acked_in_service())
    } else {
        world.data.acked_in_service()
    }
}

/// Whether the members that the replica names have all that it lacks, so that a restore must be possible.
pub(super) fn is_backed(world: &World, kept: &View, end: Lsn) -> bool {
    let holds = |index: usize, member: &ViewMember| {
        let state = world.lenders[index].state();
        let unheard_of = kept.epoch < state.epoch && state.epoch < kept.restored(kept.writer).epoch;
        let same = rule01::as_joined(member, &state) && state.window_epoch == kept.epoch;
        state.joined && state.trim <= end && same && !unheard_of
    };
    let counted = kept.counting || kept.clean.is_some_and(|clean| clean <= end);
    counted
        && kept.base <= end
        && kept.members.iter().all(|member| {
            let index = world.lenders.lender_of(member);
            world.lenders[index].incarnation == member.incarnation && holds(index, member)
        })
}

/// Failure message of a restore after [`is_fenced_unheard_of`].
pub(super) const FENCED_UNHEARD_OF: &str =
    "a member was fenced by an epoch that the replica never heard of, and yet the volume was restored";
/// Failure message of a refusal after [`is_provable`].
pub(super) const PROVES_NO_MORE: &str =
    "an attempt that was cut off removed the proof: the next one is refused as unproven";

/// Whether a member that the replica names was fenced by a later epoch of its client, whose records may be
/// anywhere.
pub(super) fn is_fenced_unheard_of(world: &World, kept: &View) -> bool {
    let leap = kept.restored(kept.writer).epoch;
    kept.members.iter().any(|member| {
        let lender = world.lenders.member(member);
        let fenced_by = lender.state().epoch;
        lender.incarnation == member.incarnation && kept.epoch < fenced_by && fenced_by < leap
    })
}

/// Whether the members that the view names alone can prove that a replica whose log ends at `end` lacks only
/// records that they hold.
pub(super) fn is_provable(kept: &View, end: Lsn) -> bool {
    (kept.counting || kept.clean.is_some()) && kept.base <= end
}
