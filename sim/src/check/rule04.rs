//! Rule 4, *fencing*: a fenced member accepts nothing from a lower epoch; a fenced writer acknowledges and
//! sends nothing; and once a newer epoch has recovered, the older one acknowledges nothing that the newer one
//! lacks.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::member::{MemberReply, MemberState};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind};

use super::fail;
use crate::process::ServingState;
use crate::world::{NewerEpoch, World};

/// Checks a frame that a member handled: if its sender is not the writer that fenced the member, the member
/// may not have changed.
pub(crate) fn member(before: &MemberState, after: &MemberState, frame: &Frame<'_>) {
    let stranger = frame.header.epoch < before.epoch
        || frame.header.epoch == before.epoch && frame.header.sender != before.writer.0;
    if stranger && before != after {
        fail(
            4,
            format!(
                "a member sealed by epoch {} obeyed a {:?} of epoch {}",
                before.epoch, frame.header.kind, frame.header.epoch
            ),
        );
    }
    if after.epoch < before.epoch {
        fail(
            4,
            format!("a member forgot epoch {} for {}", before.epoch, after.epoch),
        );
    }
}

/// Checks that a fence holds. A lender may forget a fence only after the writer that set it has declared the
/// journal over or closed.
pub(crate) fn fence_holds(sealed: &mut Epoch, after: &MemberState, frame: &Frame<'_>, reply: &MemberReply) {
    if after.epoch < *sealed {
        fail(
            4,
            format!(
                "a lender forgot the seal of epoch {sealed} and obeys {}",
                after.epoch
            ),
        );
    }
    let over = frame.header.flags & (Flag::ENDED | Flag::CLOSED_CLEAN) != 0;
    match reply.header().kind {
        // The writer that ended the journal may fence it again because the answer was lost; the journal is
        // over all the same.
        FrameKind::Fenced if !after.ended && !after.closed => *sealed = after.epoch,
        FrameKind::LeaveAck if over && !after.joined => *sealed = Epoch(0),
        _ => (),
    }
}

/// Checks that a fenced writer acknowledges nothing more.
pub(crate) fn fenced(world: &mut World, serving: &mut ServingState) {
    if serving.writer.fenced().is_none() {
        return;
    }
    let acked = serving.writer.acked();
    match serving.acked_at_fence {
        None => {
            world.kernel.hit("writers fenced");
            serving.acked_at_fence = Some(acked);
        }
        Some(before) if acked > before => fail(
            4,
            format!("a fenced writer went on and acknowledged {acked} after {before}"),
        ),
        Some(_) => (),
    }
}

/// Checks a frame that a writer sends.
pub(crate) fn sends(_world: &World, process: usize, serving: &ServingState) {
    if serving.writer.fenced().is_some() {
        fail(4, format!("process {process} is fenced and still sends"));
    }
}

/// Checks that a writer calls its journal closed only when no lender will be asked for any of it.
pub(crate) fn closes(world: &World, process: usize, serving: &ServingState, sent: &FrameHeader) {
    if sent.kind != FrameKind::Leave || sent.flags & Flag::CLOSED_CLEAN == 0 {
        return;
    }
    let view = &world.hosts[world.processes[process].host].view;
    if view.counting || !view.members.is_empty() || serving.writer.stable() < serving.tail.lsn {
        fail(
            4,
            format!(
                "process {process} calls its journal closed, and goes on with view {}",
                view.version
            ),
        );
    }
}

/// Checks that a writer acknowledges `upto` without members that a newer epoch has taken over, unless that
/// epoch has the records.
pub(crate) fn acked(world: &World, process: usize, upto: Lsn) {
    let host = &world.hosts[world.processes[process].host];
    if let Some(NewerEpoch {
        fork,
        version,
        loss_accepted: false,
    }) = host.newer_epoch
        && upto > fork
        && upto > host.history.durable
        && host.view.version == version
    {
        fail(
            4,
            format!(
                "process {process} acknowledged {upto} by members; the newer epoch's log forked at {fork}"
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use netram_proto::id::{Incarnation, JournalId, WriterId};
    use netram_proto::member::Member;

    use super::*;
    use crate::lender::WindowRing;

    /// A fence repeated after the journal's end was counted as one that must hold. The oracle then reported a
    /// broken rule when the lender had reused the slot for another journal (seed 3033957).
    #[test]
    fn a_fence_repeated_after_the_end_need_not_hold() {
        let mut member = Member::new(JournalId(7), Incarnation(1));
        let mut sealed = Epoch(0);
        let mut window = WindowRing::default();
        for (kind, flags, holds) in [
            (FrameKind::Fence, 0, Epoch(3)),
            (FrameKind::Leave, Flag::ENDED, Epoch(0)),
            (FrameKind::Fence, 0, Epoch(0)),
        ] {
            let header = FrameHeader {
                flags,
                epoch: Epoch(3),
                sender: WriterId(5).0,
                ..FrameHeader::new(kind)
            };
            let frame = Frame { header, body: &[] };
            let reply = member.handle(&frame, &mut window);
            fence_holds(&mut sealed, member.state(), &frame, &reply);
            assert_eq!(sealed, holds, "{kind:?}");
        }
    }
}
