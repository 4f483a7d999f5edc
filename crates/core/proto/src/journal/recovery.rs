//! Asking the members of the durable view for what they hold, before a journal may serve again.
//!
//! Seal first, read after (rule 4): a member that has promised the new epoch takes nothing more from the old
//! one, so what is read afterwards is all there will ever be. Only members of the same incarnation as the
//! view names count as answers (rule 5): a lender that restarted without its memory answers "unknown", and is
//! no evidence of absence.
//!
//! A member is a memory and not an address (rule 16). Other addresses may be asked too: whoever has a
//! member's incarnation there answers for it, once. And a window counts only as it was joined: of this join,
//! and no larger than it was asked to be.

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use crate::limit::{LENDERS_MAX, LSN_LAST, MEMBERS_MAX};
use crate::planted::{FaultSwitch, PlantedFault};
use crate::time::{Nanos, Time};
use crate::wire::{Frame, FrameHeader, FrameKind, RefusalReason};

use super::assemble::PeerWindow;
use super::epoch_history;
use super::peer::{PeerIdentity, RecoveryPeer, bind_body, is_answer, read_frame};
use super::refusal::{PeerAnswer, RecoveryError};
use super::view::{View, ViewMember};
use super::{FrameBody, OutgoingFrame};

mod probe;

pub use probe::{MemberReport, NotNewestError, WindowReport};

/// Addresses asked: those of a view and of the settings.
const ADDRESSES_MAX: usize = MEMBERS_MAX + LENDERS_MAX;

/// Seals and reads the members of a view. Methods: `on_*` tell it what happened, [`Recovery::next_frame`]
/// says what to send, [`Recovery::verdict`] whether it is done.
#[derive(Clone, Debug)]
pub struct Recovery {
    journal: JournalId,
    epoch: Epoch,
    writer: WriterId,
    needed: usize,
    /// Members that hold every acknowledged record; zero where their word did not count.
    copies: usize,
    from: Lsn,
    /// The log is a replica's: a window must continue it.
    of_replica: bool,
    /// Of a replica: the reign in which its client was last heard, if that is known.
    last_client_epoch: Option<Epoch>,
    /// Of a replica whose view names nobody who could tell.
    unproven: bool,
    /// Of a dead node's journal: the reign whose windows count.
    of_epoch: Option<Epoch>,
    /// Until then it waits for members beyond those needed: they may hold more of what is in doubt.
    grace: Time,
    /// Until then it waits for those needed.
    deadline: Time,
    members: Vec<ViewMember>,
    /// At the members' own addresses, in the view's order; then at others.
    peers: Vec<RecoveryPeer>,
    /// Bytes that a member's window can hold.
    window_bytes: u64,
    fenced: Option<Epoch>,
    /// Members are asked, and neither sealed nor read.
    probing: bool,
    planted: FaultSwitch,
}

impl Recovery {
    /// Begins to recover what the members of `view` hold from `from`, the local log's end, for the reign
    /// `epoch`, which is durable already. Waits up to `grace` for all members and up to `patience` for those
    /// that are needed.
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

    /// Asks at these addresses too, for a member may have moved: whoever has its memory answers for it.
    pub fn with_addresses<'a>(mut self, addresses: impl IntoIterator<Item = &'a str>) -> Recovery {
        for address in addresses {
            if self.peers.len() < ADDRESSES_MAX && self.peers.iter().all(|peer| peer.address != address) {
                self.peers.push(RecoveryPeer::new(address, PeerIdentity::Unknown));
            }
        }
        self
    }

    /// Bytes of the members' windows in memory.
    pub fn bytes_read(&self) -> u64 {
        self.peers.iter().map(|peer| peer.window.bytes.len() as u64).sum()
    }

    /// Plants a fault (tests of the simulator only); before [`Recovery::of_replica`].
    pub fn plant(&mut self, planted: FaultSwitch) {
        if planted.is(PlantedFault::OneAnswerSuffices) {
            self.needed = self.needed.min(1);
        }
        self.planted = planted;
    }

    /// The log and the view are a replica's, made durable there before the client's own disk is known to have
    /// less: all members must answer, with windows that continue the replica's log. `closed`: the client had
    /// closed the volume when its log ended here, as far as the replica was told.
    ///
    /// Members hold whatever is not on both disks while the data lender is in service. A client that went on
    /// without it tells its members to drop what is stable, empties their windows, or reigns by a later
    /// epoch: each shows. What does not show is a client that had lost its data lender *and* every member.
    ///
    /// A member is asked who sealed it before it is sealed: afterwards it would have forgotten, and the next
    /// attempt find nothing wrong.
    pub fn of_replica(mut self, view: &View, closed: Option<Lsn>) -> Recovery {
        if self.planted.is(PlantedFault::RestoreUnproven) {
            return self;
        }
        self.needed = self.members.len();
        self.of_replica = true;
        let sealed_first = self.planted.is(PlantedFault::FencedBeforeProbe);
        self.peers
            .iter_mut()
            .for_each(|peer| peer.fence_known = sealed_first);
        self.last_client_epoch = view.epochs.last_served_epoch();
        let complete = closed.is_some_and(|end| end <= self.from);
        let counted = view.counting || view.clean.is_some();
        self.unproven = !complete && (!counted || view.base > self.from);
        self
    }

    /// The journal of a node of a shared region, of which the server keeps everything below `kept`, and
    /// `view` is the newest that it has. No disk is asked: `crate::journal::JournalWriter` keeps a shared
    /// journal so that n - k + 1 members suffice (crates/core/proto/src/journal/writer/server_ack.rs has the
    /// argument).
    ///
    /// Epoch and writer of the seal follow from the view, so nothing need be durable before it, and it may be
    /// repeated any number of times, even by two at once: nothing is ever appended under it. It comes after
    /// whatever the node's own library may have claimed; a node that is reopened afterwards finds itself
    /// fenced.
    ///
    /// A window counts that the view's own reign opened and that begins where the server is, or below.
    /// Another reign's was opened by somebody who used the node's directory as a journal of his own: what the
    /// view's reign had there is gone.
    pub fn of_node(view: &View, kept: Lsn, now: Time, grace: Nanos, patience: Nanos) -> Recovery {
        let (epoch, writer) = view.fence();
        let recovery = Recovery::new(view, epoch, writer, kept, now, grace, patience);
        Recovery {
            of_epoch: Some(view.epoch),
            ..recovery
        }
    }

    /// Where to ask: the members' addresses in the view's order, then others; `index` below is a place in it.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(|peer| peer.address.as_str())
    }

    /// How each member stands, for progress and for the report.
    pub fn answers(&self) -> impl Iterator<Item = (&str, PeerAnswer)> {
        (0..self.members.len()).map(|member| match self.complete(member) {
            Some(peer) => (self.peers[peer].address.as_str(), PeerAnswer::Complete),
            None => (self.members[member].address.as_str(), self.own_answer(member)),
        })
    }

    /// How member `index` stands that has not answered in full.
    fn own_answer(&self, index: usize) -> PeerAnswer {
        let peer = &self.peers[index];
        match peer.identity == PeerIdentity::Member(index) {
            true => peer.answer,
            // Another's memory is at its address.
            false => PeerAnswer::Amnesiac,
        }
    }

    /// Where member `index` has answered.
    fn complete(&self, index: usize) -> Option<usize> {
        let answers = |peer: &RecoveryPeer| {
            peer.identity == PeerIdentity::Member(index) && peer.answer == PeerAnswer::Complete
        };
        self.peers.iter().position(answers)
    }

    /// A connection to the address `index` stands.
    pub fn on_connected(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        if peer.answer == PeerAnswer::Unreachable {
            peer.answer = PeerAnswer::Connected;
        }
        peer.bound = false;
        peer.outstanding = None;
    }

    /// The connection to the address `index` broke.
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
        // Whoever is there next may be somebody else. (A stranger's refusal ends the link that brought it.)
        if own {
            peer.identity = PeerIdentity::Member(index);
        } else if peer.identity == PeerIdentity::NotMember && !peer.bound {
            peer.identity = PeerIdentity::Unknown;
        }
    }

    /// The next frame for the address `index`, if it is time for one. Each is answered by one frame.
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
                    // Its refusal names its memory, and the highest epoch that sealed it. Nothing is changed
                    // by asking.
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

    /// Whether the address `index` is another one of a member that answers at its own, or is about to.
    fn yields_to_other(&self, index: usize) -> bool {
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

    /// The address `index` sent a frame. One that answers nothing is passed over: a lender does not decide
    /// what is kept here.
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
        let peer = &mut self.peers[index];
        match kind {
            FrameKind::Bound => peer.bound = true,
            FrameKind::Pong => peer.fence_known = true,
            FrameKind::Fenced => self.on_fenced(index, frame),
            FrameKind::Data => self.on_data(index, frame),
            FrameKind::Refuse => match RefusalReason::from_byte(frame.header.flags) {
                Some(RefusalReason::Fenced) => self.fenced = Some(frame.header.epoch),
                Some(RefusalReason::NotFenced) if self.of_replica && !peer.fence_known => {
                    self.on_fence_epoch(index, frame.header.epoch);
                }
                Some(RefusalReason::OutOfWindow) if self.planted.is(PlantedFault::ReadBeforeFence) => {
                    peer.window.bytes = alloc::vec![0];
                }
                // The same answer again, over a link that doubles. Asked once more it would be sealed, and
                // have forgotten.
                _ if peer.answer == PeerAnswer::AheadOfReplica => (),
                _ => peer.answer = PeerAnswer::Unreachable,
            },
            _ => (),
        }
    }

    /// Whose memory is behind the address `index`: an answer of any kind names it, once the journal is bound.
    fn on_identity(&mut self, index: usize, frame: &Frame<'_>) {
        let life = Incarnation(frame.header.sender);
        let named = self.members.iter().position(|member| member.incarnation == life);
        let refusal = RefusalReason::from_byte(frame.header.flags);
        let peer = &mut self.peers[index];
        if !peer.bound {
            // It would not take the journal at all; it may in a moment.
            peer.answer = PeerAnswer::Unreachable;
            return;
        }
        match named {
            Some(member) => {
                peer.identity = PeerIdentity::Member(member);
                match (frame.header.kind, refusal) {
                    (FrameKind::Refuse, Some(RefusalReason::Fenced)) => {
                        self.fenced = Some(frame.header.epoch)
                    }
                    _ => self.on_fence_epoch(index, frame.header.epoch),
                }
            }
            None => peer.identity = PeerIdentity::NotMember,
        }
    }

    /// The address `index` was last sealed by the reign `seen`, below ours: the last one that the replica was
    /// told of or one before, or an earlier attempt to restore.
    fn on_fence_epoch(&mut self, index: usize, seen: Epoch) {
        let peer = &mut self.peers[index];
        peer.fence_known = true;
        let unheard_of = |last: Epoch| last < seen && seen < epoch_history::epoch_after_any(last);
        if self.of_replica && self.last_client_epoch.is_some_and(unheard_of) {
            peer.answer = PeerAnswer::AheadOfReplica;
        }
    }

    fn on_fenced(&mut self, index: usize, frame: &Frame<'_>) {
        let header = &frame.header;
        if header.epoch != self.epoch || self.peers[index].answer != PeerAnswer::Connected {
            return;
        }
        let window = WindowReport::of(header, frame.body);
        self.on_window(index, Incarnation(header.sender), window);
    }

    /// The lender at the address `index` has this window, in the memory of this life.
    fn on_window(&mut self, index: usize, life: Incarnation, window: Option<WindowReport>) {
        let from = self.from;
        let Some(member) = self.identify(index, life) else {
            return;
        };
        let holds = self.holds(member, life, window) || self.planted.is(PlantedFault::AmnesiacCounts);
        let (trim, held) = window.map_or_else(Default::default, |window| (window.trim, window.held));
        // One window is read once, over whichever of its lender's addresses answers first.
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
        // The whole window, though the log may lack room for it: a copy of the directory with an old head
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
        // A window that begins above our end cannot be chained to, but its beginning proves what had been
        // durable.
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

    /// Which member the memory behind the address `index` is. At a member's own address there may be another
    /// member's by now.
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

    /// What the member gave in part over another address is not needed twice.
    fn drop_other_reads(&mut self, index: usize, member: usize) {
        for (other, peer) in self.peers.iter_mut().enumerate() {
            let same = peer.identity == PeerIdentity::Member(member);
            if same && other != index && peer.answer == PeerAnswer::Reading {
                peer.answer = PeerAnswer::Connected;
                peer.window = PeerWindow::default();
            }
        }
    }

    /// Whether the lender that was sealed has the window that the view names: of this memory, and as it was
    /// joined.
    fn holds(&self, member: usize, life: Incarnation, window: Option<WindowReport>) -> bool {
        let member = &self.members[member];
        let Some(window) = window.filter(|_| life == member.incarnation) else {
            return false;
        };
        let same_reign = self.of_epoch.is_none_or(|wanted| window.epoch == wanted);
        let same_join = member
            .join
            .is_none_or(|join| window.epoch == join.epoch && window.generation == join.generation);
        same_reign && (same_join || self.planted.is(PlantedFault::JoinIgnored))
    }

    /// Whether the memory behind the address `index` answers for another member already. Only a view of an
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

    fn on_data(&mut self, index: usize, frame: &Frame<'_>) {
        let early = self.planted.is(PlantedFault::ReadBeforeFence);
        let peer = &mut self.peers[index];
        let next = peer.window.from.plus(peer.window.bytes.len() as u64);
        let reading = peer.answer == PeerAnswer::Reading || early;
        if !reading || frame.header.lsn != next {
            return;
        }
        if frame.body.is_empty() {
            // It sealed, told what it holds, and does not give it: whatever this is, it is no answer.
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

    /// `None`: not done yet. `Some(Ok)`: enough members answered; their windows are in [`Recovery::windows`].
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

    /// Whether nobody can still say more: each member has answered in some way, and nobody else may turn out
    /// to be one.
    fn is_settled(&self, now: Time) -> bool {
        let is_done = |(at, peer): (usize, &RecoveryPeer)| {
            let answered =
                matches!(peer.identity, PeerIdentity::Member(member) if self.complete(member).is_some());
            // At the own address of a member that answered elsewhere there may be another member by now.
            let may_be_another = at < self.members.len() && peer.identity == PeerIdentity::Member(at);
            let done = answered && !may_be_another || peer.is_over() || self.yields_to_other(at);
            // One that is no missing member's, as far as is known, and cannot be reached is not waited for as
            // long.
            let optional = at >= self.members.len() || answered;
            done || optional && peer.answer == PeerAnswer::Unreachable && now >= self.grace
        };
        self.peers.iter().enumerate().all(is_done)
    }

    /// What each member that answered says it holds.
    fn held(&self) -> Vec<Lsn> {
        (0..self.members.len())
            .filter_map(|member| self.complete(member))
            .map(|peer| self.peers[peer].held)
            .collect()
    }

    /// What the members that answered hold above the local end. (With `--accept-loss` also asked after a
    /// refusal.)
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

    /// Below this, records may have been acknowledged: what as many members as the rule demands hold, if
    /// those that did not answer hold everything. The word of one member that lies does not suffice where the
    /// rule asks for more.
    fn promised(&self) -> Lsn {
        let mut held = self.held();
        let missing = self.members.len() - held.len();
        // With `--accept-loss` so many may be missing that nothing can be said.
        if missing >= self.copies || self.planted.is(PlantedFault::ReadBeforeFence) {
            return Lsn(0);
        }
        held.sort_unstable_by(|a, b| b.cmp(a));
        held[self.copies - missing - 1]
    }
}
