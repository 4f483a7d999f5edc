//! Whose memory answers behind each address, and whether its window counts (rule 16).

use alloc::vec::Vec;

use crate::id::{Epoch, Incarnation, Lsn};
use crate::limit::LSN_LAST;
use crate::planted::PlantedFault;
use crate::wire::{Frame, FrameKind, RefusalReason};

use super::super::assemble::PeerWindow;
use super::super::epoch_history;
use super::super::peer::{PeerIdentity, RecoveryPeer};
use super::{PeerAnswer, Recovery, WindowReport};

impl Recovery {
    /// Whether the address `index` is not to be asked: it is no member's, or another address of its member
    /// answers or is about to.
    pub(super) fn yields_to_other(&self, index: usize) -> bool {
        let PeerIdentity::Member(member) = self.peers[index].identity else {
            let unknown = self.peers[index].identity == PeerIdentity::Unknown;
            return !unknown || self.planted.is(PlantedFault::MovedCountsAsGone);
        };
        let goes_first = |(other, peer): (usize, &RecoveryPeer)| {
            let able = !matches!(peer.answer, PeerAnswer::Unreachable | PeerAnswer::Amnesiac);
            peer.identity == PeerIdentity::Member(member) && able && (other == member || other < index)
        };
        index != member
            && self
                .peers
                .iter()
                .enumerate()
                .any(|other| other.0 != index && goes_first(other))
    }

    /// Identifies the memory behind the address `index`: once the journal is bound, any answer names it.
    pub(super) fn on_identity(&mut self, index: usize, frame: &Frame<'_>) {
        let life = Incarnation(frame.header.sender);
        let named = self.members.iter().position(|member| member.incarnation == life);
        let refusal = RefusalReason::from_byte(frame.header.flags);
        let may_fence = self.may_fence(frame);
        let peer = &mut self.peers[index];
        if !peer.bound {
            // The lender refused the journal; it may accept it later.
            peer.answer = PeerAnswer::Unreachable;
            return;
        }
        match named {
            Some(member) => {
                peer.identity = PeerIdentity::Member(member);
                match (frame.header.kind, refusal) {
                    (FrameKind::Refuse, Some(RefusalReason::Fenced)) if may_fence => {
                        self.fenced = self.fenced.max(Some(frame.header.epoch));
                    }
                    _ => self.on_fence_epoch(index, frame.header.epoch),
                }
            }
            None => peer.identity = PeerIdentity::NotMember,
        }
    }

    /// Notes the epoch `seen`, below ours, that had last fenced the address `index`. If the replica never
    /// heard of that epoch, and no attempt to restore took it, the client went on without its data lender.
    pub(super) fn on_fence_epoch(&mut self, index: usize, seen: Epoch) {
        let peer = &mut self.peers[index];
        peer.fence_known = true;
        let unheard_of = |last: Epoch| last < seen && seen < epoch_history::epoch_after_any(last);
        if self.of_replica && self.last_client_epoch.is_some_and(unheard_of) {
            peer.answer = PeerAnswer::AheadOfReplica;
        }
    }

    /// Judges the window that the lender at the address `index` reports, in the memory of this life.
    pub(super) fn on_window(&mut self, index: usize, life: Incarnation, window: Option<WindowReport>) {
        let from = self.from;
        let Some(member) = self.identify(index, life) else {
            return;
        };
        let holds = self.holds(member, life, window) || self.planted.is(PlantedFault::AmnesiacCounts);
        let (trim, held) = window.map_or_else(Default::default, |window| (window.trim, window.held));
        // A window is read once, over whichever of its lender's addresses answers first.
        let elsewhere = !self.probing && self.complete(member).is_some_and(|other| other != index);
        let counted = elsewhere || self.counts_already(index);
        let window_bytes = self.window_bytes;
        let believed = self.planted.is(PlantedFault::OverclaimBelieved);
        self.drop_other_reads(index, member);
        let peer = &mut self.peers[index];
        if !holds || counted {
            peer.answer = PeerAnswer::Amnesiac;
            return;
        }
        if (held < trim || held > LSN_LAST || held.since(trim) > window_bytes) && !believed {
            peer.answer = PeerAnswer::Overclaims;
            return;
        }
        peer.held = held;
        // Reads the whole window even if the log lacks space for it: a copy of the directory with an old head
        // must see what it cannot take, and refuse. `window_bytes` bounds what is read.
        peer.read_end = held;
        if (self.of_replica || self.of_epoch.is_some()) && trim > from {
            peer.answer = PeerAnswer::AheadOfReplica;
            return;
        }
        if self.planted.is(PlantedFault::ReadBeforeFence) && !peer.window.bytes.is_empty() {
            peer.answer = PeerAnswer::Complete;
            return;
        }
        // A window that begins above our end cannot continue it, but its start proves what had been durable.
        peer.window = PeerWindow {
            trim,
            from: trim.max(from),
            bytes: Vec::new(),
            promised: Lsn(0),
        };
        peer.answer = if peer.read_end > peer.window.from {
            PeerAnswer::Reading
        } else {
            PeerAnswer::Complete
        };
    }

    /// The member whose memory is behind the address `index`. At a member's own address there may be another
    /// member's memory by now.
    fn identify(&mut self, index: usize, life: Incarnation) -> Option<usize> {
        let PeerIdentity::Member(member) = self.peers[index].identity else {
            return None;
        };
        let named = self.members.iter().position(|member| member.incarnation == life);
        match named {
            Some(other) if self.members[member].incarnation != life => {
                self.peers[index].identity = PeerIdentity::Member(other);
                let answers = self.yields_to_other(index) || self.planted.is(PlantedFault::MovedCountsAsGone);
                (!answers).then_some(other)
            }
            _ => Some(member),
        }
    }

    /// Stops reading the member's window over its other addresses.
    fn drop_other_reads(&mut self, index: usize, member: usize) {
        for (other, peer) in self.peers.iter_mut().enumerate() {
            let same = peer.identity == PeerIdentity::Member(member);
            if same && other != index && peer.answer == PeerAnswer::Reading {
                peer.answer = PeerAnswer::Connected;
                peer.window = PeerWindow::default();
            }
        }
    }

    /// Whether the fenced lender has the window that the view names: in this memory, and of the join in the
    /// view.
    pub(super) fn holds(&self, member: usize, life: Incarnation, window: Option<WindowReport>) -> bool {
        let member = &self.members[member];
        let Some(window) = window.filter(|_| life == member.incarnation) else {
            return false;
        };
        let same_epoch = self.of_epoch.is_none_or(|wanted| window.epoch == wanted);
        let same_join = member
            .join
            .is_none_or(|join| window.epoch == join.epoch && window.generation == join.generation);
        same_epoch && (same_join || self.planted.is(PlantedFault::JoinIgnored))
    }

    /// Whether the memory behind the address `index` already answers for another member. Only a view of an
    /// earlier format can name one memory twice without telling its joins apart.
    fn counts_already(&self, index: usize) -> bool {
        let PeerIdentity::Member(named) = self.peers[index].identity else {
            return false;
        };
        let life = self.members[named].incarnation;
        let other = |peer: &RecoveryPeer| {
            let answers = matches!(peer.answer, PeerAnswer::Reading | PeerAnswer::Complete);
            matches!(peer.identity, PeerIdentity::Member(member) if answers && member != named && self.members[member].incarnation == life)
        };
        self.peers.iter().any(other)
    }
}
