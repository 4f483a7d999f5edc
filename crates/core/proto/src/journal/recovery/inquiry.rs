//! The question before the fence (rule 18): would recovery succeed, and who is missing? The members of the view are asked what they hold and
//! who sealed them. Nothing changes at any of them, so a refusal leaves everything as it was.
//!
//! The answers are judged exactly as those of the fence that follows, by the same lines of code. The fence asks again: a member may have
//! lost its memory in between. Then it refuses after some members have been sealed, as it must.

use alloc::string::String;

use crate::id::{Epoch, Incarnation, Lsn, WriterId};
use crate::limit::EPOCH_MAX;
use crate::time::Time;
use crate::wire::{Cursor, Flag, Frame, FrameKind, Header, Refusal};

use super::super::peer::{Identity, Peer};
use super::super::{Body, Outgoing};
use super::{PeerAnswer, Recovery};

/// A member's answer to the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberTold {
    /// The life of the lender's memory.
    pub incarnation: Incarnation,
    /// The highest epoch that sealed it; zero: none has.
    pub sealed: Epoch,
    /// Who sealed it. Not known of a lender of an earlier release.
    pub writer: WriterId,
    /// The window; `None`: there is none, or the lender cannot say ([`MemberTold::in_part`]).
    pub window: Option<WindowTold>,
    /// The lender is of a release before the question: it says its life and who sealed it, and not what it holds.
    pub in_part: bool,
}

/// A member's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTold {
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
pub enum NotNewest {
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

impl core::fmt::Display for NotNewest {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            NotNewest::Written { address, epoch } => write!(
                out,
                "this is not the newest: at {address} another writer has written under epoch {epoch}. Use that writer's directory"
            ),
            NotNewest::Beyond { address, trim, end } => write!(
                out,
                "this is not the newest: the log ends at LSN {end}, and {address} has dropped everything below LSN {trim}, which another log must have"
            ),
            NotNewest::NoEpoch(seen) => write!(
                out,
                "epoch {seen} is among the last there are, so no directory can claim above it: remove the lenders' memory of this journal, \
                 or make a new journal from a copy of the data"
            ),
        }
    }
}

impl core::error::Error for NotNewest {}

/// The question: a ping of no reign.
pub(super) fn question() -> Outgoing {
    Outgoing {
        header: Header {
            flags: Flag::ASKS,
            ..Header::new(FrameKind::Ping)
        },
        body: Body::NONE,
    }
}

impl WindowTold {
    /// The window that a `Sealed` or `Told` frame tells of, whose epoch begins `body`; `None`: there is none.
    pub(super) fn of(header: &Header, body: &[u8]) -> Option<WindowTold> {
        let epoch = Epoch(Cursor::new(body).u32().ok()?);
        (header.flags & Flag::KNOWN != 0).then_some(WindowTold {
            epoch,
            generation: header.mark,
            trim: header.stable,
            held: header.lsn,
        })
    }
}

impl MemberTold {
    /// Reads a `Told` frame; `None`: it makes no sense.
    pub fn decode(frame: &Frame<'_>) -> Option<MemberTold> {
        let header = &frame.header;
        if header.kind != FrameKind::Told {
            return None;
        }
        let writer = WriterId(Cursor::new(frame.body).u64().ok()?);
        Some(MemberTold {
            incarnation: Incarnation(header.who),
            sealed: header.epoch,
            writer,
            window: WindowTold::of(header, frame.body.get(8..)?),
            in_part: false,
        })
    }

    /// Reads how a lender of an earlier release refuses the question: as it would any ping of a writer that is fenced.
    pub fn of_refusal(header: &Header) -> Option<MemberTold> {
        (Refusal::from_byte(header.flags) == Some(Refusal::Fenced)).then_some(MemberTold {
            incarnation: Incarnation(header.who),
            sealed: header.epoch,
            writer: WriterId(0),
            window: None,
            in_part: true,
        })
    }
}

impl Recovery {
    /// Only asks: nothing is sealed and nothing read. What [`Recovery::verdict`] then says is what the fence would come to, now.
    pub fn asking(mut self) -> Recovery {
        self.asking = true;
        self
    }

    /// Fences after `inquiry`: does not wait again for members that did not answer it.
    pub fn after(mut self, inquiry: &Recovery) -> Recovery {
        let is_found =
            |identity| matches!(identity, Identity::Member(member) if inquiry.complete(member).is_some());
        for (peer, asked) in self.peers.iter_mut().zip(&inquiry.peers) {
            // One whose member answered at another address may be the one that answers now.
            let silent = !asked.is_settled() && asked.identity != Identity::Stranger;
            peer.absent = silent && !is_found(asked.identity);
        }
        self
    }

    /// Members that must answer.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// What each lender told, the view's members first.
    pub fn told(&self) -> impl Iterator<Item = (&str, PeerAnswer, Option<MemberTold>)> {
        self.peers
            .iter()
            .map(|peer| (peer.address.as_str(), peer.answer, peer.told))
    }

    /// The highest epoch that sealed any lender, as far as they told.
    pub fn highest(&self) -> Epoch {
        let sealed = self.peers.iter().filter_map(|peer| peer.told);
        sealed.map(|told| told.sealed).max().unwrap_or_default()
    }

    /// Whether any member may hold what comes next after the local log's end.
    pub fn may_continue(&self) -> bool {
        let continues = |window: WindowTold| window.held > self.from && window.trim <= self.from;
        let may = |told: MemberTold| told.in_part || told.window.is_some_and(continues);
        let complete = |peer: &&Peer| peer.answer == PeerAnswer::Complete;
        self.peers
            .iter()
            .filter(complete)
            .any(|peer| peer.told.is_some_and(may))
    }

    /// Below this, everything was on the disk, as the members were told.
    pub fn trimmed(&self) -> Lsn {
        let complete = self
            .peers
            .iter()
            .filter(|peer| peer.answer == PeerAnswer::Complete);
        let windows = complete.filter_map(|peer| peer.told?.window);
        windows.map(|window| window.trim).max().unwrap_or_default()
    }

    /// Whether what the lenders told bears out an operator's word: nobody else has written since this log's last reign. The answer is the
    /// epoch above which he may claim. Whether enough members told anything is [`Recovery::verdict`]'s affair, in the later reign.
    pub fn newest(&self) -> Result<Epoch, NotNewest> {
        for peer in &self.peers {
            let address = || peer.address.clone();
            let Some(told) = peer.told else { continue };
            let Some(window) = told.window else { continue };
            if window.epoch >= self.epoch {
                return Err(NotNewest::Written {
                    address: address(),
                    epoch: window.epoch,
                });
            }
            let is_ours = matches!(peer.identity, Identity::Member(member) if self.holds(member, told.incarnation, Some(window)));
            if window.trim > self.from && is_ours {
                return Err(NotNewest::Beyond {
                    address: address(),
                    trim: window.trim,
                    end: self.from,
                });
            }
        }
        match self.highest() {
            seen if seen.0 >= EPOCH_MAX => Err(NotNewest::NoEpoch(seen)),
            seen => Ok(seen),
        }
    }

    /// The lender at the address `index` answered the question.
    pub(super) fn on_told(&mut self, index: usize, frame: &Frame<'_>) {
        let told = match frame.header.kind {
            FrameKind::Refuse => MemberTold::of_refusal(&frame.header),
            _ => MemberTold::decode(frame),
        };
        if self.peers[index].answer != PeerAnswer::Asked {
            return;
        }
        let Some(told) = told else {
            self.peers[index].answer = PeerAnswer::Unreachable;
            return;
        };
        self.peers[index].told = Some(told);
        if told.sealed >= self.epoch {
            self.fenced = self.fenced.max(Some(told.sealed));
        }
        if self.peers[index].identity == Identity::Unknown {
            let named = self
                .members
                .iter()
                .position(|member| member.incarnation == told.incarnation);
            self.peers[index].identity = named.map_or(Identity::Stranger, Identity::Member);
        }
        let Identity::Member(member) = self.peers[index].identity else {
            return;
        };
        if self.of_replica && !self.peers[index].heard {
            self.on_heard(index, told.sealed);
            if self.peers[index].answer == PeerAnswer::Beyond {
                return;
            }
        }
        if told.in_part {
            // It may hold less than the fence will ask for. No more can be known without sealing it.
            let has_memory = told.incarnation == self.members[member].incarnation && told.sealed > Epoch(0);
            self.peers[index].answer = if has_memory {
                PeerAnswer::Complete
            } else {
                PeerAnswer::Amnesiac
            };
            return;
        }
        self.found(index, told.incarnation, told.window);
        let peer = &mut self.peers[index];
        if peer.answer == PeerAnswer::Reading {
            peer.answer = PeerAnswer::Complete;
        }
    }

    /// While it only asks, a fence is told when all have answered: whoever is told it wants to know how all stand.
    pub(super) fn may_tell_fence(&self, now: Time) -> bool {
        !self.asking || now >= self.grace || self.is_settled(now)
    }
}
