//! The question before the fence (rule 18): would recovery succeed, and who is missing? The members of the
//! view are asked what they hold and who sealed them. Nothing changes at any of them, so a refusal leaves
//! everything as it was.
//!
//! The answers are judged exactly as those of the fence that follows, by the same lines of code. The fence
//! asks again: a member may have lost its memory in between. Then it refuses after some members have been
//! sealed, as it must.

use alloc::string::String;

use crate::id::{Epoch, Incarnation, Lsn, WriterId};
use crate::limit::EPOCH_MAX;
use crate::time::Time;
use crate::wire::{ByteReader, Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use super::super::peer::{PeerIdentity, RecoveryPeer};
use super::super::{FrameBody, OutgoingFrame};
use super::{PeerAnswer, Recovery};

/// A member's answer to the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// The life of the lender's memory.
    pub incarnation: Incarnation,
    /// The highest epoch that sealed it; zero: none has.
    pub fence_epoch: Epoch,
    /// Who sealed it. Not known of a lender of an earlier release.
    pub writer: WriterId,
    /// The window; `None`: there is none, or the lender cannot say ([`MemberReport::in_part`]).
    pub window: Option<WindowReport>,
    /// The lender is of a release before the question: it says its life and who sealed it, and not what it
    /// holds.
    pub partial: bool,
}

/// A member's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowReport {
    /// The reign that joined it.
    pub epoch: Epoch,
    /// The number of that join.
    pub generation: u32,
    /// Its first byte.
    pub trim: Lsn,
    /// Where what it holds ends.
    pub held: Lsn,
}

/// Why an operator's word that a directory is the newest is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotNewestError {
    /// Another writer has written there under a later epoch: its records are not in this log.
    Written {
        /// The lender.
        address: String,
        /// The later reign.
        epoch: Epoch,
    },
    /// The member has dropped bytes that this log lacks: another log had them on its disk.
    Beyond {
        /// The lender.
        address: String,
        /// What it holds begins here.
        trim: Lsn,
        /// This log ends here.
        end: Lsn,
    },
    /// No epoch is left above the one that fenced the journal.
    NoEpoch(Epoch),
}

impl core::fmt::Display for NotNewestError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            NotNewestError::Written { address, epoch } => write!(
                out,
                "this is not the newest: at {address} another writer has written under epoch {epoch}. Use that writer's directory"
            ),
            NotNewestError::Beyond { address, trim, end } => write!(
                out,
                "this is not the newest: the log ends at LSN {end}, and {address} has dropped everything below LSN {trim}, which another log must have"
            ),
            NotNewestError::NoEpoch(seen) => write!(
                out,
                "epoch {seen} is among the last there are, so no directory can claim above it: remove the lenders' memory of this journal, \
                 or make a new journal from a copy of the data"
            ),
        }
    }
}

impl core::error::Error for NotNewestError {}

/// The question: a ping of no reign.
pub(super) fn probe_frame() -> OutgoingFrame {
    OutgoingFrame {
        header: FrameHeader {
            flags: Flag::PROBE,
            ..FrameHeader::new(FrameKind::Ping)
        },
        body: FrameBody::NONE,
    }
}

impl WindowReport {
    /// The window that a `Fenced` or `ProbeReply` frame tells of, whose epoch begins `body`; `None`: there is
    /// none.
    pub(super) fn of(header: &FrameHeader, body: &[u8]) -> Option<WindowReport> {
        let epoch = Epoch(ByteReader::new(body).u32().ok()?);
        (header.flags & Flag::KNOWN != 0).then_some(WindowReport {
            epoch,
            generation: header.mark,
            trim: header.stable,
            held: header.lsn,
        })
    }
}

impl MemberReport {
    /// Reads a `ProbeReply` frame; `None`: it makes no sense.
    pub fn decode(frame: &Frame<'_>) -> Option<MemberReport> {
        let header = &frame.header;
        if header.kind != FrameKind::ProbeReply {
            return None;
        }
        let writer = WriterId(ByteReader::new(frame.body).u64().ok()?);
        Some(MemberReport {
            incarnation: Incarnation(header.sender),
            fence_epoch: header.epoch,
            writer,
            window: WindowReport::of(header, frame.body.get(8..)?),
            partial: false,
        })
    }

    /// Reads how a lender of an earlier release refuses the question: as it would any ping of a writer that
    /// is fenced.
    pub fn of_refusal(header: &FrameHeader) -> Option<MemberReport> {
        (RefusalReason::from_byte(header.flags) == Some(RefusalReason::Fenced)).then_some(MemberReport {
            incarnation: Incarnation(header.sender),
            fence_epoch: header.epoch,
            writer: WriterId(0),
            window: None,
            partial: true,
        })
    }
}

impl Recovery {
    /// Only asks: nothing is sealed and nothing read. What [`Recovery::verdict`] then says is what the fence
    /// would come to, now.
    pub fn probing(mut self) -> Recovery {
        self.probing = true;
        self
    }

    /// Fences after `inquiry`: does not wait again for members that did not answer it.
    pub fn after_probe(mut self, inquiry: &Recovery) -> Recovery {
        let is_found =
            |identity| matches!(identity, PeerIdentity::Member(member) if inquiry.complete(member).is_some());
        for (peer, asked) in self.peers.iter_mut().zip(&inquiry.peers) {
            // One whose member answered at another address may be the one that answers now.
            let silent = !asked.is_settled() && asked.identity != PeerIdentity::NotMember;
            peer.absent = silent && !is_found(asked.identity);
        }
        self
    }

    /// Members that must answer.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// What each lender told, the view's members first.
    pub fn reports(&self) -> impl Iterator<Item = (&str, PeerAnswer, Option<MemberReport>)> {
        self.peers
            .iter()
            .map(|peer| (peer.address.as_str(), peer.answer, peer.report))
    }

    /// The highest epoch that sealed any lender, as far as they told.
    pub fn highest_epoch(&self) -> Epoch {
        let sealed = self.peers.iter().filter_map(|peer| peer.report);
        sealed.map(|told| told.fence_epoch).max().unwrap_or_default()
    }

    /// Whether any member may hold what comes next after the local log's end.
    pub fn may_continue(&self) -> bool {
        let continues = |window: WindowReport| window.held > self.from && window.trim <= self.from;
        let may = |told: MemberReport| told.partial || told.window.is_some_and(continues);
        let complete = |peer: &&RecoveryPeer| peer.answer == PeerAnswer::Complete;
        self.peers
            .iter()
            .filter(complete)
            .any(|peer| peer.report.is_some_and(may))
    }

    /// Below this, everything was on the disk, as the members were told.
    pub fn trimmed(&self) -> Lsn {
        let complete = self
            .peers
            .iter()
            .filter(|peer| peer.answer == PeerAnswer::Complete);
        let windows = complete.filter_map(|peer| peer.report?.window);
        windows.map(|window| window.trim).max().unwrap_or_default()
    }

    /// Whether what the lenders told bears out an operator's word: nobody else has written since this log's
    /// last reign. The answer is the epoch above which he may claim. Whether enough members told anything is
    /// [`Recovery::verdict`]'s affair, in the later reign.
    pub fn newest(&self) -> Result<Epoch, NotNewestError> {
        for peer in &self.peers {
            let address = || peer.address.clone();
            let Some(told) = peer.report else { continue };
            let Some(window) = told.window else { continue };
            if window.epoch >= self.epoch {
                return Err(NotNewestError::Written {
                    address: address(),
                    epoch: window.epoch,
                });
            }
            let is_ours = matches!(peer.identity, PeerIdentity::Member(member) if self.holds(member, told.incarnation, Some(window)));
            if window.trim > self.from && is_ours {
                return Err(NotNewestError::Beyond {
                    address: address(),
                    trim: window.trim,
                    end: self.from,
                });
            }
        }
        match self.highest_epoch() {
            seen if seen.0 >= EPOCH_MAX => Err(NotNewestError::NoEpoch(seen)),
            seen => Ok(seen),
        }
    }

    /// The lender at the address `index` answered the question.
    pub(super) fn on_report(&mut self, index: usize, frame: &Frame<'_>) {
        let told = match frame.header.kind {
            FrameKind::Refuse => MemberReport::of_refusal(&frame.header),
            _ => MemberReport::decode(frame),
        };
        if self.peers[index].answer != PeerAnswer::Connected {
            return;
        }
        let Some(told) = told else {
            self.peers[index].answer = PeerAnswer::Unreachable;
            return;
        };
        self.peers[index].report = Some(told);
        if told.fence_epoch >= self.epoch {
            self.fenced = self.fenced.max(Some(told.fence_epoch));
        }
        if self.peers[index].identity == PeerIdentity::Unknown {
            let named = self
                .members
                .iter()
                .position(|member| member.incarnation == told.incarnation);
            self.peers[index].identity = named.map_or(PeerIdentity::NotMember, PeerIdentity::Member);
        }
        let PeerIdentity::Member(member) = self.peers[index].identity else {
            return;
        };
        if self.of_replica && !self.peers[index].fence_known {
            self.on_fence_epoch(index, told.fence_epoch);
            if self.peers[index].answer == PeerAnswer::AheadOfReplica {
                return;
            }
        }
        if told.partial {
            // It may hold less than the fence will ask for. No more can be known without sealing it.
            let has_memory =
                told.incarnation == self.members[member].incarnation && told.fence_epoch > Epoch(0);
            self.peers[index].answer = if has_memory {
                PeerAnswer::Complete
            } else {
                PeerAnswer::Amnesiac
            };
            return;
        }
        self.on_window(index, told.incarnation, told.window);
        let peer = &mut self.peers[index];
        if peer.answer == PeerAnswer::Reading {
            peer.answer = PeerAnswer::Complete;
        }
    }

    /// While it only asks, a fence is told when all have answered: whoever is told it wants to know how all
    /// stand.
    pub(super) fn may_tell_fence(&self, now: Time) -> bool {
        !self.probing || now >= self.grace || self.is_settled(now)
    }
}
