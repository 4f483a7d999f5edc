//! The parts of rules 4 and 10 that concern one member alone. Rule 4: a fenced member accepts nothing from a
//! lower epoch. Rule 10: a window never exceeds its size, and drops nothing that is not declared stable.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::member::{MemberReply, MemberState};
use netram_proto::wire::{Flag, Frame, FrameKind};

use super::violation::fail;

/// Checks a frame that a member handled: if its sender is not the writer that fenced the member, the member
/// may not have changed.
pub(crate) fn obeys_its_writer(before: &MemberState, after: &MemberState, frame: &Frame<'_>) {
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
/// journal over or closed, or if no writer has ever had a window there. Whether an old writer that comes back
/// to such a lender does harm, rules 1, 4 and 5 tell.
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
        FrameKind::Fenced if !after.ended && !after.closed && after.was_joined() => *sealed = after.epoch,
        FrameKind::Ack if frame.header.kind == FrameKind::Join && after.joined => *sealed = after.epoch,
        FrameKind::LeaveAck if over && !after.joined => *sealed = Epoch(0),
        _ => (),
    }
}

/// Checks the size and the trim point of one member's window.
pub(crate) fn bounded(state: &MemberState, capacity: u64, declared: Lsn) {
    if !state.joined {
        return;
    }
    let used = state.received.since(state.trim);
    if used > capacity {
        fail(
            10,
            format!("a member holds {used} bytes in a window of {capacity}"),
        );
    }
    if state.trim > declared {
        fail(
            10,
            format!(
                "a member gave up bytes below {}, its writer had declared {declared} stable",
                state.trim
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use netram_proto::id::{Incarnation, JournalId, WriterId};
    use netram_proto::member::Member;
    use netram_proto::wire::FrameHeader;

    use super::*;
    use crate::window_ring::WindowRing;

    /// A journal that has had a window is remembered, whoever fences it next.
    #[test]
    fn a_fence_must_hold_from_the_first_window_on() {
        let mut member = Member::new(JournalId(7), Incarnation(1));
        let (mut sealed, mut window) = (Epoch(0), WindowRing::new(1 << 20));
        for (kind, epoch, holds) in [
            (FrameKind::Fence, 3, Epoch(0)),
            (FrameKind::Join, 3, Epoch(3)),
            (FrameKind::Fence, 4, Epoch(4)),
        ] {
            let header = FrameHeader {
                epoch: Epoch(epoch),
                sender: WriterId(5).0,
                stable: Lsn(1),
                ..FrameHeader::new(kind)
            };
            let bytes = (64_u64 * 1024).to_le_bytes();
            let body = if kind == FrameKind::Join { &bytes[..] } else { &[] };
            let frame = Frame { header, body };
            let reply = member.handle(&frame, &mut window);
            fence_holds(&mut sealed, member.state(), &frame, &reply);
            assert_eq!(sealed, holds, "{kind:?}");
        }
    }

    /// A fence repeated after the journal's end was counted as one that must hold. The oracle then reported a
    /// broken rule when the lender had reused the slot for another journal (seed 3033957).
    #[test]
    fn a_fence_repeated_after_the_end_need_not_hold() {
        let mut member = Member::new(JournalId(7), Incarnation(1));
        let mut sealed = Epoch(0);
        let mut window = WindowRing::new(1 << 20);
        let join = FrameHeader {
            epoch: Epoch(3),
            sender: WriterId(5).0,
            stable: Lsn(1),
            ..FrameHeader::new(FrameKind::Join)
        };
        member.handle(
            &Frame {
                header: FrameHeader {
                    kind: FrameKind::Fence,
                    ..join
                },
                body: &[],
            },
            &mut window,
        );
        let bytes = (64_u64 * 1024).to_le_bytes();
        member.handle(
            &Frame {
                header: join,
                body: &bytes,
            },
            &mut window,
        );
        for (kind, flags, holds) in [
            (FrameKind::Fence, 0, Epoch(3)),
            (FrameKind::Leave, Flag::ENDED, Epoch(0)),
            (FrameKind::Fence, 0, Epoch(0)),
        ] {
            let header = FrameHeader {
                flags,
                epoch: Epoch(3),
                sender: WriterId(5).0,
                // The window, as `Leave` names it.
                lsn: Lsn(3),
                mark: 1,
                ..FrameHeader::new(kind)
            };
            let frame = Frame { header, body: &[] };
            let reply = member.handle(&frame, &mut window);
            fence_holds(&mut sealed, member.state(), &frame, &reply);
            assert_eq!(sealed, holds, "{kind:?}");
        }
    }
}
