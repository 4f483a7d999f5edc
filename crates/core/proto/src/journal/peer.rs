//! One address that recovery asks, and the few frames that go there.

use alloc::string::{String, ToString};

use crate::id::{JournalId, Lsn};
use crate::limit::FRAME_BODY_BYTES_MAX;
use crate::wire::{FrameKind, Header};

use super::assemble::PeerWindow;
use super::recovery::MemberTold;
use super::refusal::PeerAnswer;
use super::{Body, Outgoing};

/// Whose memory is behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// That of the view's member with this number, or so the view says.
    Member(usize),
    /// Not known yet.
    Unknown,
    /// Nobody's of the view.
    Stranger,
}

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) address: String,
    pub(super) identity: Identity,
    pub(super) answer: PeerAnswer,
    pub(super) bound: bool,
    /// It is known who sealed it before.
    pub(super) heard: bool,
    /// The frame that has been handed out and is not answered yet.
    pub(super) asked: Option<FrameKind>,
    /// Where its window ends, as it says.
    pub(super) held: Lsn,
    /// Up to where it is read.
    pub(super) goal: Lsn,
    pub(super) window: PeerWindow,
    /// What it told when it was only asked.
    pub(super) told: Option<MemberTold>,
    /// It did not answer the question: nothing is waited for.
    pub(super) absent: bool,
}

impl Peer {
    pub(super) fn new(address: &str, identity: Identity) -> Peer {
        Peer {
            address: address.to_string(),
            identity,
            answer: PeerAnswer::Unreachable,
            bound: false,
            heard: false,
            asked: None,
            held: Lsn(0),
            goal: Lsn(0),
            window: PeerWindow::default(),
            told: None,
            absent: false,
        }
    }

    /// Nothing is waited for any more.
    pub(super) fn is_over(&self) -> bool {
        let silent = matches!(self.answer, PeerAnswer::Unreachable | PeerAnswer::Asked);
        self.is_settled() || self.absent && silent
    }

    /// Whether it has said all that it will.
    pub(super) fn is_settled(&self) -> bool {
        !matches!(
            self.answer,
            PeerAnswer::Unreachable | PeerAnswer::Asked | PeerAnswer::Reading
        )
    }
}

/// Whether a frame of `kind` answers one of `asked`.
pub(super) fn is_answer(asked: FrameKind, kind: FrameKind) -> bool {
    matches!(
        (asked, kind),
        (FrameKind::Bind, FrameKind::Bound)
            | (FrameKind::Ping, FrameKind::Pong | FrameKind::Told)
            | (FrameKind::Seal, FrameKind::Sealed)
            | (FrameKind::Read, FrameKind::Data)
    )
}

/// The body of a `Bind`.
pub(super) fn bind_body(journal: JournalId) -> Body {
    Body::Inline(journal.0.to_le_bytes(), 16)
}

pub(super) fn read_frame(header: Header, from: Lsn) -> Outgoing {
    let mut body = [0; 16];
    body[..4].copy_from_slice(&(FRAME_BODY_BYTES_MAX as u32).to_le_bytes());
    Outgoing {
        header: Header { lsn: from, ..header },
        body: Body::Inline(body, 4),
    }
}
