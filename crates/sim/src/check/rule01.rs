//! Rule 1, *acked means held*: an acknowledged LSN is on the platter, or in the memory of as many members of the view on
//! the platter as the rule demands.

use netram_proto::id::Lsn;
use netram_proto::journal::{View, ViewMember};

use super::fail;
use crate::process::lender_at;
use crate::world::{Host, World};

/// The writer acknowledges everything below `upto`.
pub(crate) fn acked(world: &World, process: usize, upto: Lsn) {
    let host = &world.hosts[world.processes[process].host];
    if let Err(what) = held(world, host, &host.view, upto) {
        fail(1, format!("process {process} acknowledged {upto}, but {what}"));
    }
}

/// Whether everything below `upto` is held as `view`, if it is the one on the platter, demands.
pub(crate) fn held(world: &World, host: &Host, view: &View, upto: Lsn) -> Result<(), String> {
    let from = host.history.durable;
    if upto <= from {
        return Ok(());
    }
    let holders = view.members.iter().filter(|member| holds(world, host, member, from, upto)).count();
    let copies = view.rule.copies(view.members.len());
    let demanded = copies.max(world.profile.min).max(1);
    let apart = world.profile.one_domain
        || view.members.iter().any(|member| world.lenders[lender_at(&member.address)].domain != "d0");
    if view.counting && apart && view.members.len() >= demanded && holders >= copies && copies > 0 {
        return Ok(());
    }
    Err(format!(
        "the platter has it up to {from}, and of the {} members of view {} (rule {}, counting {}) {holders} hold the rest",
        view.members.len(),
        view.version,
        view.rule,
        view.counting,
    ))
}

/// Whether a member's memory really has the bytes from `from` to `upto`. A liar has whatever it says.
fn holds(world: &World, host: &Host, member: &ViewMember, from: Lsn, upto: Lsn) -> bool {
    let index = lender_at(&member.address);
    if world.profile.hostile == Some(index) {
        return true;
    }
    let lender = &world.lenders[index];
    let state = lender.state();
    let there = lender.incarnation == member.incarnation && state.joined && state.trim <= from && state.held >= upto;
    there
        && lender
            .window_bytes(from, upto.since(from) as usize)
            .is_some_and(|bytes| bytes == host.history.bytes(from, upto))
}

/// Members of the view on the platter whose memory still has everything from the platter's end to what was
/// acknowledged.
pub(crate) fn intact(world: &World, host: &Host, view: &View) -> usize {
    let (from, upto) = (host.history.durable, host.history.acked);
    let alive = |member: &&ViewMember| {
        let lender = &world.lenders[lender_at(&member.address)];
        lender.incarnation == member.incarnation && lender.state().joined
    };
    let _ = (from, upto);
    view.members.iter().filter(alive).count()
}
