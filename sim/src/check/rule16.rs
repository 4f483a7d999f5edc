//! Rule 16, *recovery takes a window only as it was joined*: a lender is its memory. A view names each memory
//! once; a window that the only durable view names is not emptied; and recovery reads it as it was joined, or
//! not at all.

use netram_proto::journal::{View, ViewMember};
use netram_proto::member::MemberState;

use super::fail;
use crate::lender::SimLender;
use crate::world::World;

/// The store of `view` ended well.
pub(crate) fn stored(world: &World, view: &View) {
    if world.has_liars() {
        // A liar may say that its memory is another's.
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

/// Recovery counts `member`'s answer; the lender that gave it has this window.
pub(crate) fn as_joined(lender: usize, member: &ViewMember, state: &MemberState) {
    let joined = member
        .join
        .is_none_or(|join| (join.epoch, join.generation) == (state.window_epoch, state.generation));
    if !joined {
        fail(
            16,
            format!(
                "lender {lender} counts as an answer with the window of join {} in reign {}; the view means {:?}",
                state.generation, state.window_epoch, member.join
            ),
        );
    }
}

/// A frame was handled by `lender`, whose window had been as `before` says.
pub(crate) fn not_emptied(world: &World, lender: &SimLender, before: &MemberState) {
    let after = lender.state();
    let window = |state: &MemberState| (state.joined, state.window_epoch, state.generation);
    let [host] = &world.hosts[..] else { return };
    // A replica that is taken over knows an older view than the client that is gone had.
    let replicated = world.data.is_some() || world.volume_bytes > 0;
    let excused = host.damaged || replicated || world.has_liars() || world.server.is_some();
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
