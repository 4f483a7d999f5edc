//! Asks the members of the durable view what they hold, before a journal may serve again.
//!
//! Members are fenced first and read afterwards (rule 4). A member that has promised the new epoch accepts
//! nothing more from the old one, so a later read sees everything there will ever be. Only members of the
//! incarnation that the view names count as answers (rule 5). A lender that restarted without its memory
//! answers "unknown", which does not prove that there was nothing.
//!
//! A member is a memory and not an address (rule 16). Other addresses may be asked too: a lender there that
//! has a member's incarnation answers for that member, once. A window counts only if it was opened by the
//! join that the view names, and is no larger than requested.

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use crate::limit::{LENDERS_MAX, MEMBERS_MAX};
use crate::owner::plays_back;
use crate::planted::{FaultSwitch, PlantedFault};
use crate::time::{Nanos, Time};
use crate::wire::{Frame, FrameHeader, FrameKind, RefusalReason};

use super::assemble::PeerWindow;
use super::peer::{PeerIdentity, RecoveryPeer, bind_body, is_answer, read_frame};
use super::refusal::{PeerAnswer, RecoveryError};
use super::view::{View, ViewMember};
use super::{FrameBody, OutgoingFrame};

mod identity;
mod probe;

pub use probe::{MemberReport, NotNewestError, WindowReport};

/// Maximum number of addresses asked: those of a view and of the settings.
const ADDRESSES_MAX: usize = MEMBERS_MAX + LENDERS_MAX;

/// Fences and reads the members of a view. `on_*` methods take events, [`Recovery::next_frame`] returns what
/// to send, and [`Recovery::verdict`] tells whether it is done.
#[derive(Clone, Debug)]
pub struct Recovery {
    journal: JournalId,
    epoch: Epoch,
    writer: WriterId,
    needed: usize,
    /// Number of members that hold every acknowledged record; zero if the members did not count.
    copies: usize,
    from: Lsn,
    /// Whether the log is a replica's: a window must then continue it.
    of_replica: bool,
    /// For a replica: the epoch in which its client was last heard from, if known.
    last_client_epoch: Option<Epoch>,
    /// For a replica: whether its view names no member that could tell what the client's disk had.
    unproven: bool,
    /// For a dead node's journal: the epoch whose windows count.
    of_epoch: Option<Epoch>,
    /// Until this time it waits for members beyond those needed: they may hold more of what is in doubt.
    grace: Time,
    /// Until this time it waits for the members needed.
    deadline: Time,
    members: Vec<ViewMember>,
    /// First one peer at each member's own address, in the view's order; then the other addresses.
    peers: Vec<RecoveryPeer>,
    /// Maximum size of a member's window, in bytes.
    window_bytes: u64,
    fenced: Option<Epoch>,
    /// Whether members are only probed, neither fenced nor read.
    probing: bool,
    planted: FaultSwitch,
}

impl Recovery {
    /// Begins to recover what the members of `view` hold from `from`, the local log's end, for `epoch`, whose
    /// claim is already durable. Waits up to `grace` for all members and up to `patience` for those that are
    /// needed.
    pub fn new(
        view: &View,
        epoch: Epoch,
        writer: WriterId,
        from: Lsn,
        now: Time,
        grace: Nanos,
        patience: Nanos,
    ) -> Recovery {
        let peer = |(index, member): (usize, &ViewMember)| {
            RecoveryPeer::new(&member.address, PeerIdentity::Member(index))
        };
        Recovery {
            journal: view.journal,
            epoch,
            writer,
            needed: view.answers(),
            copies: if view.counting {
                view.rule.copies(view.members.len())
            } else {
                0
            },
            from,
            of_replica: false,
            last_client_epoch: None,
            unproven: false,
            of_epoch: None,
            grace: now + grace.min(patience),
            deadline: now + patience,
            members: view.members.clone(),
            peers: view.members.iter().enumerate().map(peer).collect(),
            window_bytes: view.window_bytes_max(),
            fenced: None,
            probing: false,
            planted: FaultSwitch::NONE,
        }
    }

    /// Asks these addresses too. A member may have moved there with its memory.
    pub fn with_addresses<'a>(mut self, addresses: impl IntoIterator<Item = &'a str>) -> Recovery {
        for address in addresses {
            if self.peers.len() < ADDRESSES_MAX && self.peers.iter().all(|peer| peer.address != address) {
                self.peers.push(RecoveryPeer::new(address, PeerIdentity::Unknown));
            }
        }
        self
    }

    /// Bytes of the members' windows read so far.
    pub fn bytes_read(&self) -> u64 {
        self.peers.iter().map(|peer| peer.window.bytes.len() as u64).sum()
    }

    /// Plants a fault (simulator tests only). Must come before [`Recovery::of_replica`].
    pub fn plant(&mut self, planted: FaultSwitch) {
        if planted.is(PlantedFault::OneAnswerSuffices) {
            self.needed = self.needed.min(1);
        }
        self.planted = planted;
    }

    /// Recovers a replica, whose log and view are durable while the client's own disk may have more. All
    /// members must answer, with windows that continue the replica's log. `closed` is the log's end at which
    /// the client had closed the volume, as far as the replica knows.
    ///
    /// While the data lender is in service, members hold everything that is not on both disks. A client that
    /// went on without it tells its members to drop what is stable, empties their windows, or uses a later
    /// epoch. Recovery detects each of these, but not a client that had lost its data lender *and* every
    /// member.
    ///
    /// Each member is asked which epoch had fenced it before it is fenced. The fence overwrites that epoch,
    /// and a second attempt would find nothing wrong.
    pub fn of_replica(mut self, view: &View, closed: Option<Lsn>) -> Recovery {
        if self.planted.is(PlantedFault::RestoreUnproven) {
            return self;
        }
        self.needed = self.members.len();
        self.of_replica = true;
        let fenced_first = self.planted.is(PlantedFault::FencedBeforeProbe);
        self.peers
            .iter_mut()
            .for_each(|peer| peer.fence_known = fenced_first);
        self.last_client_epoch = view.epochs.last_served_epoch();
        let complete = closed.is_some_and(|end| end <= self.from);
        let counted = view.counting || view.clean.is_some();
        self.unproven = !complete && (!counted || view.base > self.from);
        self
    }

    /// Recovers the journal of a shared region's dead node. The server has everything below `kept`, and
    /// `view` is the newest view that it has. The node's disk is not asked: `crate::journal::JournalWriter`
    /// runs a shared journal so that n - k + 1 members suffice
    /// (crates/core/proto/src/journal/writer/server_ack.rs has the argument).
    ///
    /// Epoch and writer of the fence follow from the view. So nothing need be durable before it, and it may
    /// be repeated any number of times, even by two servers at once; nothing is ever appended under it. The
    /// epoch is above any that the node's own library can have claimed, so a node that is reopened afterwards
    /// is fenced.
    ///
    /// A window counts if the view's own epoch opened it and if it begins at or below the server's end. A
    /// window of another epoch was opened by a process that used the node's directory as a journal of its
    /// own; the view's window is then gone.
    pub fn of_node(view: &View, kept: Lsn, now: Time, grace: Nanos, patience: Nanos) -> Recovery {
        let (epoch, writer) = view.fence();
        let recovery = Recovery::new(view, epoch, writer, kept, now, grace, patience);
        Recovery {
            of_epoch: Some(view.epoch),
            ..recovery
        }
    }

    /// The addresses to ask: the members' in the view's order, then others. Other methods take an index into
    /// this list.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(|peer| peer.address.as_str())
    }

    /// The state of each member, for progress and for the report.
    pub fn answers(&self) -> impl Iterator<Item = (&str, PeerAnswer)> {
        (0..self.members.len()).map(|member| match self.complete(member) {
            Some(peer) => (self.peers[peer].address.as_str(), PeerAnswer::Complete),
            None => (self.members[member].address.as_str(), self.own_answer(member)),
        })
    }

    /// The state of member `index`, which has not answered in full.
    fn own_answer(&self, index: usize) -> PeerAnswer {
        let peer = &self.peers[index];
        match peer.identity == PeerIdentity::Member(index) {
            true => peer.answer,
            // Another lender's memory is at its address.
            false => PeerAnswer::Amnesiac,
        }
    }

    /// The peer at which member `index` has answered.
    fn complete(&self, index: usize) -> Option<usize> {
        let answers = |peer: &RecoveryPeer| {
            peer.identity == PeerIdentity::Member(index) && peer.answer == PeerAnswer::Complete
        };
        self.peers.iter().position(answers)
    }

    /// Handles a new connection to the address `index`.
    pub fn on_connected(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        if peer.answer == PeerAnswer::Unreachable {
            peer.answer = PeerAnswer::Connected;
        }
        peer.bound = false;
        peer.outstanding = None;
    }

    /// Handles the loss of the connection to the address `index`.
    pub fn on_lost(&mut self, index: usize) {
        let own = index < self.members.len();
        let peer = &mut self.peers[index];
        peer.outstanding = None;
        if matches!(
            peer.answer,
            PeerAnswer::Complete | PeerAnswer::AheadOfReplica | PeerAnswer::Overclaims
        ) {
            return;
        }
        peer.answer = PeerAnswer::Unreachable;
        peer.window = PeerWindow::default();
        // Another lender may be there next. (The refusal of a lender that is no member ends its own link.)
        if own {
            peer.identity = PeerIdentity::Member(index);
        } else if peer.identity == PeerIdentity::NotMember && !peer.bound {
            peer.identity = PeerIdentity::Unknown;
        }
    }

    /// The next frame for the address `index`, if one is due. Each is answered by one frame.
    pub fn next_frame(&mut self, index: usize) -> Option<OutgoingFrame> {
        let (journal, epoch, writer) = (self.journal, self.epoch, self.writer);
        let held_up = self.yields_to_other(index);
        let peer = &mut self.peers[index];
        if peer.outstanding.is_some() || held_up {
            return None;
        }
        let header = |kind| FrameHeader {
            epoch,
            sender: writer.0,
            ..FrameHeader::new(kind)
        };
        let outgoing = match peer.answer {
            PeerAnswer::Connected if !peer.bound => OutgoingFrame {
                header: header(FrameKind::Bind),
                body: bind_body(journal),
            },
            PeerAnswer::Connected if self.probing => probe::probe_frame(),
            PeerAnswer::Connected
                if self.planted.is(PlantedFault::ReadBeforeFence) && peer.window.bytes.is_empty() =>
            {
                peer.window.from = self.from;
                read_frame(header(FrameKind::Read), self.from)
            }
            PeerAnswer::Connected
                if self.of_replica && !peer.fence_known || peer.identity == PeerIdentity::Unknown =>
            {
                OutgoingFrame {
                    // The refusal names the lender's memory and the highest epoch that fenced it. The
                    // question changes nothing.
                    header: header(FrameKind::Ping),
                    body: FrameBody::NONE,
                }
            }
            PeerAnswer::Connected => OutgoingFrame {
                header: header(FrameKind::Fence),
                body: FrameBody::NONE,
            },
            PeerAnswer::Reading => {
                let next = peer.window.from.plus(peer.window.bytes.len() as u64);
                read_frame(header(FrameKind::Read), next)
            }
            PeerAnswer::Unreachable
            | PeerAnswer::Complete
            | PeerAnswer::Amnesiac
            | PeerAnswer::AheadOfReplica
            | PeerAnswer::Overclaims => return None,
        };
        peer.outstanding = Some(outgoing.header.kind);
        Some(outgoing)
    }

    /// Handles a frame from the address `index`. A frame that answers no question is ignored: a lender does
    /// not decide what is stored here.
    pub fn on_frame(&mut self, index: usize, frame: &Frame<'_>) {
        let peer = &mut self.peers[index];
        let kind = frame.header.kind;
        if kind != FrameKind::Refuse && !peer.outstanding.is_some_and(|asked| is_answer(asked, kind)) {
            return;
        }
        peer.outstanding = None;
        if self.probing && peer.bound && matches!(kind, FrameKind::ProbeReply | FrameKind::Refuse) {
            return self.on_report(index, frame);
        }
        if peer.identity == PeerIdentity::Unknown && matches!(kind, FrameKind::Pong | FrameKind::Refuse) {
            return self.on_identity(index, frame);
        }
        let may_fence = self.may_fence(frame);
        let peer = &mut self.peers[index];
        match kind {
            FrameKind::Bound => peer.bound = true,
            FrameKind::Pong => peer.fence_known = true,
            FrameKind::Fenced => self.on_fenced(index, frame),
            FrameKind::Data => self.on_data(index, frame),
            FrameKind::Refuse => match RefusalReason::from_byte(frame.header.flags) {
                Some(RefusalReason::Fenced) if may_fence => {
                    self.fenced = self.fenced.max(Some(frame.header.epoch));
                }
                Some(RefusalReason::NotFenced) if self.of_replica && !peer.fence_known => {
                    self.on_fence_epoch(index, frame.header.epoch);
                }
                Some(RefusalReason::OutOfWindow) if self.planted.is(PlantedFault::ReadBeforeFence) => {
                    peer.window.bytes = alloc::vec![0];
                }
                // The same answer again, over a link that duplicates frames. Another question would fence the
                // member, and the epoch that had fenced it would be lost.
                _ if peer.answer == PeerAnswer::AheadOfReplica => (),
                _ => peer.answer = PeerAnswer::Unreachable,
            },
            _ => (),
        }
    }

    /// Whether a lender may refuse our epoch for the one that it names: a lower one fences nobody, nor does
    /// our own fence, so its lender lies.
    fn may_fence(&self, claim: &Frame<'_>) -> bool {
        let is_true = claim.header.epoch >= self.epoch && !plays_back(claim, self.epoch, self.writer);
        is_true || self.planted.is(PlantedFault::FenceBelieved)
    }

    fn on_fenced(&mut self, index: usize, frame: &Frame<'_>) {
        let header = &frame.header;
        if header.epoch != self.epoch || self.peers[index].answer != PeerAnswer::Connected {
            return;
        }
        let window = WindowReport::of(header, frame.body);
        self.on_window(index, Incarnation(header.sender), window);
    }

    fn on_data(&mut self, index: usize, frame: &Frame<'_>) {
        let early = self.planted.is(PlantedFault::ReadBeforeFence);
        let peer = &mut self.peers[index];
        let next = peer.window.from.plus(peer.window.bytes.len() as u64);
        let reading = peer.answer == PeerAnswer::Reading || early;
        if !reading || frame.header.lsn != next {
            return;
        }
        if frame.body.is_empty() {
            // The member claims bytes and does not return them, so this is not an answer.
            peer.answer = if early { peer.answer } else { PeerAnswer::Amnesiac };
            peer.window.bytes.resize(usize::from(early), 0);
            return;
        }
        let wanted = if early {
            usize::MAX
        } else {
            peer.read_end.since(next) as usize
        };
        peer.window
            .bytes
            .extend_from_slice(&frame.body[..frame.body.len().min(wanted)]);
        if !early && peer.window.from.plus(peer.window.bytes.len() as u64) >= peer.read_end {
            peer.answer = PeerAnswer::Complete;
        }
    }

    /// The outcome at `now`; `None` if recovery is not done yet. After `Some(Ok)`, [`Recovery::windows`]
    /// returns the windows of the members that answered.
    ///
    /// # Errors
    ///
    /// Too few members answered, a newer writer has fenced one, or a replica's completeness cannot be proven.
    pub fn verdict(&self, now: Time) -> Option<Result<(), RecoveryError>> {
        if let Some(seen) = self.fenced
            && self.may_tell_fence(now)
        {
            return Some(Err(RecoveryError::Fenced { seen }));
        }
        let answered = (0..self.members.len())
            .filter(|&member| self.complete(member).is_some())
            .count();
        let all_settled = answered == self.members.len() || self.is_settled(now);
        if self.unproven && (all_settled || now >= self.deadline) {
            return Some(Err(RecoveryError::Unproven { from: self.from }));
        }
        if answered >= self.needed && !self.unproven && (all_settled || now >= self.grace) {
            return Some(Ok(()));
        }
        if all_settled || now >= self.deadline {
            let missing = self
                .answers()
                .filter(|(_, answer)| *answer != PeerAnswer::Complete);
            return Some(Err(RecoveryError::Missing {
                needed: self.needed,
                answered,
                missing: missing
                    .map(|(address, answer)| (address.to_string(), answer))
                    .collect(),
                from: self.from,
                held_max: self.held().into_iter().max(),
            }));
        }
        None
    }

    /// Whether no further answer can change the outcome: each member has answered in some way, and no other
    /// address can still turn out to be a member's.
    fn is_settled(&self, now: Time) -> bool {
        let is_done = |(at, peer): (usize, &RecoveryPeer)| {
            let answered =
                matches!(peer.identity, PeerIdentity::Member(member) if self.complete(member).is_some());
            // At the own address of a member that answered elsewhere there may be another member by now.
            let may_be_another = at < self.members.len() && peer.identity == PeerIdentity::Member(at);
            let done = answered && !may_be_another || peer.is_over() || self.yields_to_other(at);
            // An address that is not known to be a missing member's, and cannot be reached, is not waited for
            // as long.
            let optional = at >= self.members.len() || answered;
            done || optional && peer.answer == PeerAnswer::Unreachable && now >= self.grace
        };
        self.peers.iter().enumerate().all(is_done)
    }

    /// The end that each answering member claims to hold.
    fn held(&self) -> Vec<Lsn> {
        (0..self.members.len())
            .filter_map(|member| self.complete(member))
            .map(|peer| self.peers[peer].held)
            .collect()
    }

    /// The parts of the answering members' windows above the local end. With `--accept-loss` it is called
    /// after a refusal, too.
    pub fn windows(&mut self) -> Vec<PeerWindow> {
        let promised = self.promised();
        let complete: Vec<usize> = (0..self.members.len())
            .filter_map(|member| self.complete(member))
            .collect();
        let with_promise = |peer: usize| PeerWindow {
            promised,
            ..core::mem::take(&mut self.peers[peer].window)
        };
        complete.into_iter().map(with_promise).collect()
    }

    /// The LSN below which records may have been acknowledged: held by as many members as the rule demands,
    /// if those that did not answer hold everything. Where the rule demands several, one lying member does
    /// not suffice.
    fn promised(&self) -> Lsn {
        let mut held = self.held();
        let missing = self.members.len() - held.len();
        // With `--accept-loss` too many members may be missing to conclude anything.
        if missing >= self.copies || self.planted.is(PlantedFault::ReadBeforeFence) {
            return Lsn(0);
        }
        held.sort_unstable_by(|a, b| b.cmp(a));
        held[self.copies - missing - 1]
    }
}
