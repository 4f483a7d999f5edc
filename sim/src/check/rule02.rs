//! Rule 2, *a member acknowledges what it holds*: whole records, checked and chained, without a gap, from where its
//! window begins.
//!
//! Also what rules 4, 10 and 11 say of a member alone: see [`Witness::after_frame`].

use netram_proto::id::{Epoch, Lsn};
use netram_proto::member::{MemberState, Reply, Window};
use netram_proto::planted::Planted;
use netram_proto::wire::{Flag, Frame, FrameKind, Link, Seed, Step, step};

use super::{fail, rule04, rule10, rule11};
use crate::lender::Lender;

/// What an observer remembers of one member: which bytes it has walked over, and what writers declared.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    /// Records were walked over from the window's beginning to here.
    walked: Link,
    /// The highest LSN that a writer declared to be on its disk.
    pub(crate) declared: Lsn,
    /// The epoch of the last seal that must hold: nobody has said that the journal is over.
    pub(crate) sealed: Epoch,
}

impl Witness {
    /// A member has handled `frame` and will answer `reply`.
    pub fn after_frame(
        &mut self,
        lender: &Lender,
        before: &MemberState,
        frame: &Frame<'_>,
        reply: &Reply,
        seed: Seed,
    ) {
        let after = lender.state();
        rule04::member(before, &after, frame);
        rule04::seal_holds(&mut self.sealed, &after, frame, reply);
        rule11::read_within_window(&after, reply);
        self.follow(before, &after, frame);
        rule10::member(&after, lender.window.capacity(), self.declared);
        let header = reply.header();
        let claims = match header.kind {
            FrameKind::Ack | FrameKind::Pong => after.joined,
            FrameKind::Sealed => header.flags & Flag::KNOWN != 0,
            _ => false,
        };
        if claims {
            self.walk(lender, header.lsn, seed);
        }
    }

    /// A writer declared what it has on its disk, to a member that may have died over it.
    pub(crate) fn heard(&mut self, frame: &Frame<'_>) {
        if matches!(frame.header.kind, FrameKind::Append | FrameKind::Ping) {
            self.declared = self.declared.max(frame.header.stable);
        }
    }

    fn follow(&mut self, before: &MemberState, after: &MemberState, frame: &Frame<'_>) {
        let joined_anew = after.joined
            && (before.generation, before.window_epoch, before.joined)
                != (after.generation, after.window_epoch, after.joined);
        let start = Link {
            lsn: frame.header.lsn,
            chain: frame.header.mark,
        };
        if joined_anew {
            self.walked = start;
            self.declared = start.lsn;
            return;
        }
        self.heard(frame);
        if after.trim > self.walked.lsn && after.trim == frame.header.lsn {
            // It had fallen behind what is stable, and begins anew there.
            self.walked = start;
        }
    }

    /// Walks over the bytes from where the last walk ended to `claimed`.
    fn walk(&mut self, lender: &Lender, claimed: Lsn, seed: Seed) {
        while self.walked.lsn < claimed {
            let at = self.walked.lsn;
            let there = claimed.since(at).min(lender.window.capacity()) as usize;
            let length = lender
                .window_bytes(at, there.min(40))
                .and_then(|front| match step(&front, self.walked, seed, Planted::NONE) {
                    Step::Incomplete(length) => Some(length),
                    Step::Record(header) => Some(header.length),
                    Step::Bad(_) => None,
                })
                .filter(|&length| length <= there);
            let record = length.and_then(|length| lender.window_bytes(at, length));
            match record
                .as_deref()
                .map(|record| step(record, self.walked, seed, Planted::NONE))
            {
                Some(Step::Record(header)) => self.walked = header.link(),
                _ => fail(
                    2,
                    format!("a member acknowledged {claimed}, but its window has no whole record at {at}"),
                ),
            }
        }
        if claimed < self.walked.lsn && lender.state().joined {
            fail(
                2,
                format!("a member that held {} now claims {claimed}", self.walked.lsn),
            );
        }
    }
}

/// A lender's process died and its memory stayed, but did not check: what it held is as good as lost. Only an
/// intruder gives it reason to.
pub(crate) fn not_borne_out(lender: usize) -> ! {
    fail(
        2,
        format!("lender {lender}'s memory outlived its process, and does not bear out what it remembered"),
    )
}
