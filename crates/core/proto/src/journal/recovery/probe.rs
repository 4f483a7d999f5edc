//! The probe before the fence (rule 18): would recovery succeed, and which members are missing? It asks the
//! view's members what they hold and which epoch fenced them, and changes nothing at any of them. So a
//! refusal leaves everything as it was.
//!
//! The same code judges these answers and those to the fence that follows. The fence asks again, since a
//! member may lose its memory in between. It then refuses after some members have been fenced; that cannot be
//! avoided.

use alloc::string::String;

use crate::id::{Epoch, Incarnation, Lsn, WriterId};
use crate::limit::EPOCH_MAX;
use crate::time::Time;
use crate::wire::{ByteReader, Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use super::super::peer::{PeerIdentity, RecoveryPeer};
use super::super::{FrameBody, OutgoingFrame};
use super::{PeerAnswer, Recovery};

/// A member's answer to the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// The life of the lender's memory.
    pub incarnation: Incarnation,
    /// The highest epoch that fenced it; zero: none has.
    pub fence_epoch: Epoch,
    /// The writer that fenced it; zero if `partial`.
    pub writer: WriterId,
    /// The window; `None` if there is none, or if the lender cannot say ([`MemberReport::partial`]).
    pub window: Option<WindowReport>,
    /// Set for a lender of a release before the probe: it reports its incarnation and the epoch that fenced
    /// it, but not what it holds.
    pub partial: bool,
}

/// A member's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowReport {
    /// The epoch that joined it.
    pub epoch: Epoch,
    /// The number of that join within its epoch.
    pub generation: u32,
    /// Its first byte.
    pub trim: Lsn,
    /// End of the bytes that it holds.
    pub held: Lsn,
}

/// Why an operator's statement that a directory is the newest is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotNewestError {
    /// Another writer has written to this lender in a later epoch: its records are not in this log.
    Written {
        /// The lender.
        address: String,
        /// The later epoch.
        epoch: Epoch,
    },
    /// The member has dropped bytes that this log lacks: another log had them on its disk.
    Beyond {
        /// The lender.
        address: String,
        /// Start of the member's window.
        trim: Lsn,
        /// End of this log.
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
                "this is not the newest directory: another writer wrote to {address} under epoch {epoch}. Use that writer's directory"
            ),
            NotNewestError::Beyond { address, trim, end } => write!(
                out,
                "this is not the newest directory: its log ends at LSN {end}, but {address} has dropped everything below LSN {trim}. Use the directory whose log has those records"
            ),
            NotNewestError::NoEpoch(seen) => write!(
                out,
                "epoch {seen} is too high for any directory to claim above it: make the lenders forget this journal, or create a \
                 new journal from a copy of the data"
            ),
        }
    }
}

impl core::error::Error for NotNewestError {}

/// The probe's frame: a ping with epoch 0.
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
    /// The window that a `Fenced` or `ProbeReply` frame reports; `body` begins with the window's epoch.
    /// `None` if there is no window.
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
    /// Reads a `ProbeReply` frame; `None` if it is malformed.
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

    /// Reads the refusal of a lender of an earlier release, which treats the probe as the ping of a fenced
    /// writer.
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
    /// Turns this into a probe, which neither fences nor reads. [`Recovery::verdict`] then predicts the
    /// outcome of the fence at this moment.
    pub fn probing(mut self) -> Recovery {
        self.probing = true;
        self
    }

    /// Fences after the probe `inquiry`, without waiting again for members that did not answer it.
    pub fn after_probe(mut self, inquiry: &Recovery) -> Recovery {
        let is_found =
            |identity| matches!(identity, PeerIdentity::Member(member) if inquiry.complete(member).is_some());
        for (peer, asked) in self.peers.iter_mut().zip(&inquiry.peers) {
            // An address whose member answered elsewhere may be the one that answers now.
            let silent = !asked.is_settled() && asked.identity != PeerIdentity::NotMember;
            peer.absent = silent && !is_found(asked.identity);
        }
        self
    }

    /// Number of members that must answer.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// The address, state and report of each lender, the view's members first.
    pub fn reports(&self) -> impl Iterator<Item = (&str, PeerAnswer, Option<MemberReport>)> {
        self.peers
            .iter()
            .map(|peer| (peer.address.as_str(), peer.answer, peer.report))
    }

    /// The highest epoch that fenced any lender, as far as they reported.
    pub fn highest_epoch(&self) -> Epoch {
        let reports = self.peers.iter().filter_map(|peer| peer.report);
        reports.map(|report| report.fence_epoch).max().unwrap_or_default()
    }

    /// Whether any member may hold the bytes after the local log's end.
    pub fn may_continue(&self) -> bool {
        let continues = |window: WindowReport| window.held > self.from && window.trim <= self.from;
        let may = |report: MemberReport| report.partial || report.window.is_some_and(continues);
        let complete = |peer: &&RecoveryPeer| peer.answer == PeerAnswer::Complete;
        self.peers
            .iter()
            .filter(complete)
            .any(|peer| peer.report.is_some_and(may))
    }

    /// The LSN below which everything was on the disk, as the members were told.
    pub fn trimmed(&self) -> Lsn {
        let complete = self
            .peers
            .iter()
            .filter(|peer| peer.answer == PeerAnswer::Complete);
        let windows = complete.filter_map(|peer| peer.report?.window);
        windows.map(|window| window.trim).max().unwrap_or_default()
    }

    /// Checks an operator's statement that this directory is the newest: no other writer has written since
    /// this log's last epoch. Returns the epoch above which the operator may claim. Whether enough members
    /// answer is decided by [`Recovery::verdict`] in the new epoch.
    ///
    /// # Errors
    ///
    /// Another writer has written to a lender, a member has dropped bytes that this log lacks, or no higher
    /// epoch is left.
    pub fn newest(&self) -> Result<Epoch, NotNewestError> {
        for peer in &self.peers {
            let address = || peer.address.clone();
            let Some(report) = peer.report else { continue };
            let Some(window) = report.window else { continue };
            if window.epoch >= self.epoch {
                return Err(NotNewestError::Written {
                    address: address(),
                    epoch: window.epoch,
                });
            }
            let is_ours = matches!(peer.identity, PeerIdentity::Member(member) if self.holds(member, report.incarnation, Some(window)));
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

    /// Handles a lender's answer to the probe.
    pub(super) fn on_report(&mut self, index: usize, frame: &Frame<'_>) {
        let report = match frame.header.kind {
            FrameKind::Refuse => MemberReport::of_refusal(&frame.header),
            _ => MemberReport::decode(frame),
        };
        if self.peers[index].answer != PeerAnswer::Connected {
            return;
        }
        let Some(report) = report else {
            self.peers[index].answer = PeerAnswer::Unreachable;
            return;
        };
        self.peers[index].report = Some(report);
        if report.fence_epoch >= self.epoch {
            self.fenced = self.fenced.max(Some(report.fence_epoch));
        }
        if self.peers[index].identity == PeerIdentity::Unknown {
            let named = self
                .members
                .iter()
                .position(|member| member.incarnation == report.incarnation);
            self.peers[index].identity = named.map_or(PeerIdentity::NotMember, PeerIdentity::Member);
        }
        let PeerIdentity::Member(member) = self.peers[index].identity else {
            return;
        };
        if self.of_replica && !self.peers[index].fence_known {
            self.on_fence_epoch(index, report.fence_epoch);
            if self.peers[index].answer == PeerAnswer::AheadOfReplica {
                return;
            }
        }
        if report.partial {
            // The member may hold less than the fence will require, which cannot be known without fencing it.
            let has_memory =
                report.incarnation == self.members[member].incarnation && report.fence_epoch > Epoch(0);
            self.peers[index].answer = if has_memory {
                PeerAnswer::Complete
            } else {
                PeerAnswer::Amnesiac
            };
            return;
        }
        self.on_window(index, report.incarnation, report.window);
        let peer = &mut self.peers[index];
        if peer.answer == PeerAnswer::Reading {
            peer.answer = PeerAnswer::Complete;
        }
    }

    /// Whether a fence may be reported now. A probe reports it when all have answered, so that its report
    /// covers all members.
    pub(super) fn may_tell_fence(&self, now: Time) -> bool {
        !self.probing || now >= self.grace || self.is_settled(now)
    }
}
