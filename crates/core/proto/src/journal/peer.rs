//! One address that recovery asks, and the frames sent to it.

use alloc::string::{String, ToString};

use crate::id::{JournalId, Lsn};
use crate::limit::FRAME_BODY_BYTES_MAX;
use crate::wire::{FrameHeader, FrameKind};

use super::assemble::PeerWindow;
use super::recovery::MemberReport;
use super::refusal::PeerAnswer;
use super::{FrameBody, OutgoingFrame};

/// The owner of the memory behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerIdentity {
    /// The view's member with this index, at least according to the view.
    Member(usize),
    /// Not known yet.
    Unknown,
    /// No member of the view.
    NotMember,
}

#[derive(Clone, Debug)]
pub(super) struct RecoveryPeer {
    pub(super) address: String,
    pub(super) identity: PeerIdentity,
    pub(super) answer: PeerAnswer,
    pub(super) bound: bool,
    /// Whether the epoch that had fenced it is known.
    pub(super) fence_known: bool,
    /// The kind of the frame that was sent and is not answered yet.
    pub(super) outstanding: Option<FrameKind>,
    /// End of its window, according to the member.
    pub(super) held: Lsn,
    /// End of the range to read.
    pub(super) read_end: Lsn,
    pub(super) window: PeerWindow,
    /// Its answer to the probe.
    pub(super) report: Option<MemberReport>,
    /// Whether it failed to answer the probe, so that recovery does not wait for it.
    pub(super) absent: bool,
}

impl RecoveryPeer {
    pub(super) fn new(address: &str, identity: PeerIdentity) -> RecoveryPeer {
        RecoveryPeer {
            address: address.to_string(),
            identity,
            answer: PeerAnswer::Unreachable,
            bound: false,
            fence_known: false,
            outstanding: None,
            held: Lsn(0),
            read_end: Lsn(0),
            window: PeerWindow::default(),
            report: None,
            absent: false,
        }
    }

    /// Whether recovery no longer waits for this address.
    pub(super) fn is_over(&self) -> bool {
        let silent = matches!(self.answer, PeerAnswer::Unreachable | PeerAnswer::Connected);
        self.is_settled() || self.absent && silent
    }

    /// Whether it has given its final answer.
    pub(super) fn is_settled(&self) -> bool {
        !matches!(
            self.answer,
            PeerAnswer::Unreachable | PeerAnswer::Connected | PeerAnswer::Reading
        )
    }
}

/// Whether a frame of `kind` answers one of `asked`.
pub(super) fn is_answer(asked: FrameKind, kind: FrameKind) -> bool {
    matches!(
        (asked, kind),
        (FrameKind::Bind, FrameKind::Bound)
            | (FrameKind::Ping, FrameKind::Pong | FrameKind::ProbeReply)
            | (FrameKind::Fence, FrameKind::Fenced)
            | (FrameKind::Read, FrameKind::Data)
    )
}

/// The body of a `Bind`.
pub(super) fn bind_body(journal: JournalId) -> FrameBody {
    FrameBody::Inline(journal.0.to_le_bytes(), 16)
}

pub(super) fn read_frame(header: FrameHeader, from: Lsn) -> OutgoingFrame {
    let mut body = [0; 16];
    body[..4].copy_from_slice(&(FRAME_BODY_BYTES_MAX as u32).to_le_bytes());
    OutgoingFrame {
        header: FrameHeader { lsn: from, ..header },
        body: FrameBody::Inline(body, 4),
    }
}
