//! Rule 2, *a member acknowledges what it holds*: whole records, checked and chained, without a gap, from
//! where its window begins.
//!
//! Also the parts of rules 4, 10 and 11 that concern one member alone: see [`MemberObserver::after_frame`].

use netram_proto::id::{Epoch, Lsn};
use netram_proto::member::{MemberReply, MemberState, Window};
use netram_proto::planted::FaultSwitch;
use netram_proto::wire::{ChainPoint, CrcSeed, Flag, Frame, FrameKind, ScanStep, scan_step};

use super::violation::fail;
use super::{member, rule11};
use crate::window_ring::WindowRing;

/// State that the oracle keeps for one member: the bytes that it has verified, and the writers' declarations.
#[derive(Clone, Debug, Default)]
pub struct MemberObserver {
    /// End of the records that were verified, from the window's beginning.
    walked: ChainPoint,
    /// The highest LSN that a writer declared to be on its disk.
    pub(crate) declared: Lsn,
    /// Epoch of the last fence that must hold; cleared when the journal is declared over.
    pub(crate) fenced: Epoch,
}

impl MemberObserver {
    /// Checks a member after it handled `frame`, before it answers `reply`.
    pub fn after_frame(
        &mut self,
        window: &WindowRing,
        (before, after): (&MemberState, &MemberState),
        frame: &Frame<'_>,
        reply: &MemberReply,
        seed: CrcSeed,
    ) {
        member::obeys_its_writer(before, after, frame);
        member::fence_holds(&mut self.fenced, after, frame, reply);
        rule11::read_within_window(after, reply);
        self.follow(before, after, frame);
        member::bounded(after, window.capacity(), self.declared);
        let header = reply.header();
        let claims = match header.kind {
            FrameKind::Ack | FrameKind::Pong => after.joined,
            FrameKind::Fenced => header.flags & Flag::KNOWN != 0,
            _ => false,
        };
        if claims {
            self.walk(window, after.joined, header.lsn, seed);
        }
    }

    /// Records what a writer declared to be on its disk. The member may have died while it handled the frame.
    pub(crate) fn on_declared(&mut self, frame: &Frame<'_>) {
        if matches!(frame.header.kind, FrameKind::Append | FrameKind::Ping) {
            self.declared = self.declared.max(frame.header.stable);
        }
    }

    fn follow(&mut self, before: &MemberState, after: &MemberState, frame: &Frame<'_>) {
        let joined_anew = after.joined
            && (before.generation, before.window_epoch, before.joined)
                != (after.generation, after.window_epoch, after.joined);
        let start = ChainPoint {
            lsn: frame.header.lsn,
            chain: frame.header.mark,
        };
        if joined_anew {
            self.walked = start;
            self.declared = start.lsn;
            return;
        }
        self.on_declared(frame);
        if after.trim > self.walked.lsn && after.trim == frame.header.lsn {
            // The member had fallen behind the stable LSN and begins anew there.
            self.walked = start;
        }
    }

    /// Verifies the bytes from the end of the last walk to `claimed`.
    fn walk(&mut self, window: &WindowRing, joined: bool, claimed: Lsn, seed: CrcSeed) {
        while self.walked.lsn < claimed {
            let at = self.walked.lsn;
            let there = claimed.since(at).min(window.capacity()) as usize;
            let length = window
                .copy(at, there.min(40))
                .and_then(
                    |front| match scan_step(&front, self.walked, seed, FaultSwitch::NONE) {
                        ScanStep::Incomplete(length) => Some(length),
                        ScanStep::Record(header) => Some(header.length),
                        ScanStep::Bad(_) => None,
                    },
                )
                .filter(|&length| length <= there);
            let record = length.and_then(|length| window.copy(at, length));
            match record
                .as_deref()
                .map(|record| scan_step(record, self.walked, seed, FaultSwitch::NONE))
            {
                Some(ScanStep::Record(header)) => self.walked = header.next_point(),
                _ => fail(
                    2,
                    format!("a member acknowledged {claimed}, but its window has no whole record at {at}"),
                ),
            }
        }
        if claimed < self.walked.lsn && joined {
            fail(
                2,
                format!("a member that held {} now claims {claimed}", self.walked.lsn),
            );
        }
    }
}

/// Fails the run: a lender's process died and its memory stayed, but the memory failed its check, so its
/// records are lost. Only an intruder can cause that.
pub(crate) fn fail_unproven_memory(lender: usize) -> ! {
    fail(
        2,
        format!("lender {lender}'s memory outlived its process, and does not bear out what it remembered"),
    )
}
