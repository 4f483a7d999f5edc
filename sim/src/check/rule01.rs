//! Rule 1, *acked means held*: an acknowledged LSN is on the platter, or in the memory of as many members of
//! the view on the platter as the rule demands.

use netram_proto::id::Lsn;
use netram_proto::journal::{View, ViewMember};
use netram_proto::member::MemberState;

use super::violation::fail;
use crate::hosts::ClientHost;
use crate::world::World;

/// Checks an acknowledgement of everything below `upto`.
pub(crate) fn acked(world: &World, process: usize, upto: Lsn) {
    let host = &world.hosts[world.processes[process].host];
    if host
        .newer_epoch
        .is_some_and(|by| upto <= by.fork || host.view.version != by.version || by.loss_accepted)
    {
        // A newer epoch that took the members over while this acknowledgement was under way has the records
        // on its disk, or was told to do without them.
        return;
    }
    if let Err(what) = held(world, host, &host.view, upto) {
        fail(1, format!("process {process} acknowledged {upto}, but {what}"));
    }
}

/// Checks that everything below `upto` is held as `view` demands, if that view is the one on the platter.
pub(crate) fn held(world: &World, host: &ClientHost, view: &View, upto: Lsn) -> Result<(), String> {
    // Part of the log that may be acknowledged without members.
    let (who, from) = match &world.server {
        Some(server) => ("the server keeps", server.merged_end.lsn),
        None => ("the platter has", host.history.durable),
    };
    if upto <= from {
        return Ok(());
    }
    let holders = view
        .members
        .iter()
        .filter(|member| holds(world, host, member, from, upto))
        .count();
    let copies = view.rule.copies(view.members.len());
    let demanded = copies.max(world.kernel.profile.min).max(1);
    // A lying lender may have claimed any domain.
    let here = |member: &&ViewMember| {
        let index = world.lenders.lender_of(member);
        world.lenders[index].domain == "d0" && !world.lenders.is_untrusted(index)
    };
    let apart = world.kernel.profile.one_domain || view.members.iter().filter(here).count() < copies;
    if view.counting && apart && view.members.len() >= demanded && holders >= copies && copies > 0 {
        return Ok(());
    }
    Err(format!(
        "{who} it up to {from}, and of the {} members of view {} (rule {}, counting {}) {holders} hold the rest",
        view.members.len(),
        view.version,
        view.rule,
        view.counting,
    ))
}

/// Whether a member's memory really has the bytes from `from` to `upto`. A liar counts as having whatever it
/// claims.
fn holds(world: &World, host: &ClientHost, member: &ViewMember, from: Lsn, upto: Lsn) -> bool {
    let index = world.lenders.lender_of(member);
    if world.lenders.is_untrusted(index) {
        return true;
    }
    let lender = &world.lenders[index];
    let covers = |state: &MemberState| state.joined && state.trim <= from && state.held >= upto;
    if lender.incarnation != member.incarnation || !as_joined(member, &lender.state()) {
        // The member held the bytes when it answered and has died since; its acknowledgement was on the way.
        // An old file may have brought back another window of the same memory.
        let is_it = |life, state| life == member.incarnation && as_joined(member, state);
        let mut lost = lender.lost_memories.iter();
        return lost.any(|(life, state)| is_it(*life, state) && covers(state));
    }
    covers(&lender.state())
        && lender
            .window_bytes(from, upto.since(from) as usize)
            .is_some_and(|bytes| bytes == host.history.bytes(from, upto))
}

/// Number of members of `view` whose memory is still the one that the view names.
pub(crate) fn intact(world: &World, view: &View) -> usize {
    let alive = |member: &&ViewMember| {
        let lender = world.lenders.member(member);
        let state = lender.state();
        lender.incarnation == member.incarnation && state.joined && as_joined(member, &state)
    };
    view.members.iter().filter(alive).count()
}

/// Whether the window is the one that the view names. A member that joined again has emptied it.
pub(crate) fn as_joined(member: &ViewMember, state: &MemberState) -> bool {
    member
        .join
        .is_none_or(|join| (join.epoch, join.generation) == (state.window_epoch, state.generation))
}
