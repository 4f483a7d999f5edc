//! Rule 16, *recovery takes a window only as it was joined*. A lender is identified by its memory, and a view
//! names each memory once. A window that only the durable view names is not emptied. Recovery reads a window
//! as it was joined, or not at all.

use netram_proto::journal::{View, ViewMember};
use netram_proto::member::MemberState;

use super::violation::fail;
use crate::lender::SimLender;
use crate::world::World;

/// Checks `view` after its store has succeeded.
pub(crate) fn stored(world: &World, view: &View) {
    if world.lenders.has_liars() {
        // A lying lender may claim another's incarnation.
        return;
    }
    for (index, member) in view.members.iter().enumerate() {
        let life = member.incarnation;
        if view.members[..index]
            .iter()
            .any(|other| other.incarnation == life)
        {
            fail(
                16,
                format!("view {} names the memory {life:?} twice", view.version),
            );
        }
    }
}

/// Checks `member`'s answer, which recovery counts, against the window of the lender that gave it.
pub(crate) fn as_joined(lender: usize, member: &ViewMember, state: &MemberState) {
    let joined = member
        .join
        .is_none_or(|join| (join.epoch, join.generation) == (state.window_epoch, state.generation));
    if !joined {
        fail(
            16,
            format!(
                "lender {lender} counts as an answer with the window of join {} in epoch {}; the view means {:?}",
                state.generation, state.window_epoch, member.join
            ),
        );
    }
}

/// Checks `lender` after it handled a frame; `before` describes its window until then.
pub(crate) fn not_emptied(world: &World, lender: &SimLender, before: &MemberState) {
    let after = lender.state();
    let window = |state: &MemberState| (state.joined, state.window_epoch, state.generation);
    if world.hosts.len() > 1 {
        return;
    }
    let host = &world.hosts[0];
    // A replica that is taken over knows an older view than the lost client had.
    let replicated = world.data.exists() || world.data.volume_bytes() > 0;
    let excused = host.damaged || replicated || world.lenders.has_liars() || world.server.is_some();
    if !before.joined || window(before) == window(&after) || excused {
        return;
    }
    let named = |member: &ViewMember| {
        let join = member.join.map(|join| (true, join.epoch, join.generation));
        member.incarnation == lender.incarnation && join == Some(window(before))
    };
    if host.view.counting && host.view.members.iter().any(named) {
        fail(
            16,
            format!(
                "a window that view {} names, {:?}, is {:?} now",
                host.view.version,
                window(before),
                window(&after)
            ),
        );
    }
}
