//! Asking the members of the durable view for what they hold, before a journal may serve again.
//!
//! Seal first, read after (rule 4): a member that has promised the new epoch takes nothing more from the old one, so
//! what is read afterwards is all there will ever be. Only members of the same incarnation as the view names count as
//! answers (rule 5): a lender that restarted without its memory answers "unknown", and is no evidence of absence.

use alloc::string::String;
use alloc::vec::Vec;

use crate::id::{Epoch, JournalId, Lsn, WriterId};
use crate::limit::FRAME_BODY_BYTES_MAX;
use crate::planted::{Fault, Planted};
use crate::time::{Span, Time};
use crate::wire::{Cursor, Flag, Frame, FrameKind, Header, Refusal};

use super::assemble::PeerWindow;
use super::reigns;
use super::view::{View, ViewMember};
use super::{Body, Outgoing};

/// How one member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// No connection yet, or it broke.
    Unreachable,
    /// Connected; not sealed yet.
    Asked,
    /// Sealed; its window is being read.
    Reading,
    /// Sealed and read.
    Complete,
    /// The lender is there, but it does not hold the window: it restarted without its memory, or gave it up.
    Amnesiac,
    /// Its window begins above the replica's end, or a reign that the replica was never told of has sealed it: the client went
    /// on without its data lender.
    Beyond,
}

/// Why recovery cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryRefusal {
    /// Too few members answered: an acknowledged record could be at those that are missing.
    Missing {
        /// Members that must answer.
        needed: usize,
        /// Members that did.
        answered: usize,
        /// The addresses that did not, and how each stands.
        missing: Vec<(String, PeerAnswer)>,
        /// The local log's end: what is in doubt begins here.
        from: Lsn,
    },
    /// A newer writer owns the journal.
    Fenced {
        /// Its epoch.
        seen: Epoch,
    },
    /// Of a replica: its view names nobody who could tell whether the client's disk had more.
    Unproven {
        /// The replica's end: what is in doubt begins here.
        from: Lsn,
    },
}

impl core::fmt::Display for RecoveryRefusal {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RecoveryRefusal::Missing {
                needed,
                answered,
                missing,
                from,
            } => {
                write!(
                    out,
                    "cannot prove that every acknowledged record was found: {answered} of {needed} needed members answered; missing:"
                )?;
                for (address, answer) in missing {
                    let why = match answer {
                        PeerAnswer::Amnesiac => "restarted without its memory",
                        PeerAnswer::Unreachable => "unreachable",
                        PeerAnswer::Beyond => "the client went on without its data lender",
                        _ => "no answer",
                    };
                    write!(out, " {address} ({why})")?;
                }
                write!(
                    out,
                    "; in doubt: LSN {from} and above. Bring a missing lender back, or give up what only it may hold with --accept-loss"
                )
            }
            RecoveryRefusal::Unproven { from } => write!(
                out,
                "no member can tell whether the client's disk had more than the replica: commits waited for the disk alone when it was last heard. In doubt: LSN {from} and above. Use the client's disk, or give up what only it may have with --accept-loss"
            ),
            RecoveryRefusal::Fenced { seen } => {
                write!(
                    out,
                    "a newer writer took epoch {seen}; this is an old copy of the journal: do not use it"
                )
            }
        }
    }
}

impl core::error::Error for RecoveryRefusal {}

#[derive(Clone, Debug)]
struct Peer {
    member: ViewMember,
    answer: PeerAnswer,
    bound: bool,
    /// It is known who sealed it before.
    heard: bool,
    /// The next control frame has been handed out and is not answered yet.
    asked: bool,
    trim: Lsn,
    held: Lsn,
    window: PeerWindow,
}

/// Seals and reads the members of a view. Methods: `on_*` tell it what happened, [`Recovery::next_frame`] says what to
/// send, [`Recovery::verdict`] whether it is done.
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
    last_heard: Option<Epoch>,
    /// Of a replica whose view names nobody who could tell.
    unproven: bool,
    /// Of a dead node's journal: the reign whose windows count.
    of_reign: Option<Epoch>,
    /// Until then it waits for members beyond those needed: they may hold more of what is in doubt.
    grace: Time,
    /// Until then it waits for those needed.
    deadline: Time,
    peers: Vec<Peer>,
    fenced: Option<Epoch>,
    planted: Planted,
}

impl Recovery {
    /// Begins to recover what the members of `view` hold from `from`, the local log's end, for the reign `epoch`, which
    /// is durable already. Waits up to `grace` for all members and up to `patience` for those that are needed.
    pub fn new(
        view: &View,
        epoch: Epoch,
        writer: WriterId,
        from: Lsn,
        now: Time,
        grace: Span,
        patience: Span,
    ) -> Recovery {
        let peer = |member: &ViewMember| Peer {
            member: member.clone(),
            answer: PeerAnswer::Unreachable,
            bound: false,
            heard: false,
            asked: false,
            trim: Lsn(0),
            held: Lsn(0),
            window: PeerWindow::default(),
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
            last_heard: None,
            unproven: false,
            of_reign: None,
            grace: now + grace.min(patience),
            deadline: now + patience,
            peers: view.members.iter().map(peer).collect(),
            fenced: None,
            planted: Planted::NONE,
        }
    }

    /// Plants a fault (tests of the simulator only); before [`Recovery::of_replica`].
    pub fn plant(&mut self, planted: Planted) {
        if planted.is(Fault::OneAnswerSuffices) {
            self.needed = self.needed.min(1);
        }
        self.planted = planted;
    }

    /// The log and the view are a replica's, made durable there before the client's own disk is known to have less: all
    /// members must answer, with windows that continue the replica's log. `closed`: the client had closed the volume when
    /// its log ended here, as far as the replica was told.
    ///
    /// Members hold whatever is not on both disks while the data lender is in service. A client that went on without it
    /// tells its members to drop what is stable, empties their windows, or reigns by a later epoch: each shows. What
    /// does not show is a client that had lost its data lender *and* every member.
    ///
    /// A member is asked who sealed it before it is sealed: afterwards it would have forgotten, and the next attempt find
    /// nothing wrong.
    pub fn of_replica(mut self, view: &View, closed: Option<Lsn>) -> Recovery {
        if self.planted.is(Fault::RestoreUnproven) {
            return self;
        }
        self.needed = self.peers.len();
        self.of_replica = true;
        let sealed_first = self.planted.is(Fault::SealedBeforeAsked);
        self.peers.iter_mut().for_each(|peer| peer.heard = sealed_first);
        self.last_heard = view.reigns.served();
        let complete = closed.is_some_and(|end| end <= self.from);
        self.unproven = !complete && (!view.counting || view.base > self.from);
        self
    }

    /// The journal of a node of a shared region, of which the server keeps everything below `kept`, and `view` is the newest
    /// that it has. No disk is asked: `crate::journal::Writer` keeps a shared journal so that n - k + 1 members suffice
    /// (crates/proto/src/journal/writer/shared.rs has the argument).
    ///
    /// Epoch and writer of the seal follow from the view, so nothing need be durable before it, and it may be repeated any
    /// number of times, even by two at once: nothing is ever appended under it. It comes after whatever the node's own
    /// library may have claimed; a node that is reopened afterwards finds itself fenced.
    ///
    /// A window counts that the view's own reign opened and that begins where the server is, or below. Another reign's was
    /// opened by somebody who used the node's directory as a journal of his own: what the view's reign had there is gone.
    pub fn of_node(view: &View, kept: Lsn, now: Time, grace: Span, patience: Span) -> Recovery {
        let (epoch, writer) = view.fence();
        let recovery = Recovery::new(view, epoch, writer, kept, now, grace, patience);
        Recovery {
            of_reign: Some(view.epoch),
            ..recovery
        }
    }

    /// Members to ask, in the view's order; `index` below is a place in it.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(|peer| peer.member.address.as_str())
    }

    /// How each member stands, for progress and for the report.
    pub fn answers(&self) -> impl Iterator<Item = (&str, PeerAnswer)> {
        self.peers
            .iter()
            .map(|peer| (peer.member.address.as_str(), peer.answer))
    }

    /// A connection to member `index` stands.
    pub fn on_connected(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        if peer.answer == PeerAnswer::Unreachable {
            peer.answer = PeerAnswer::Asked;
        }
        peer.bound = false;
        peer.asked = false;
    }

    /// The connection to member `index` broke.
    pub fn on_lost(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        if !matches!(peer.answer, PeerAnswer::Complete | PeerAnswer::Beyond) {
            peer.answer = PeerAnswer::Unreachable;
        }
        peer.asked = false;
    }

    /// The next frame for member `index`, if it is time for one. Each is answered by one frame.
    pub fn next_frame(&mut self, index: usize) -> Option<Outgoing> {
        let (journal, epoch, writer) = (self.journal, self.epoch, self.writer);
        let peer = &mut self.peers[index];
        if peer.asked {
            return None;
        }
        let header = |kind| Header {
            epoch,
            who: writer.0,
            ..Header::new(kind)
        };
        let outgoing = match peer.answer {
            PeerAnswer::Asked if !peer.bound => Outgoing {
                header: header(FrameKind::Bind),
                body: bind_body(journal),
            },
            PeerAnswer::Asked if self.planted.is(Fault::ReadBeforeSeal) && peer.window.bytes.is_empty() => {
                peer.window.from = self.from;
                read_frame(header(FrameKind::Read), self.from)
            }
            PeerAnswer::Asked if self.of_replica && !peer.heard => Outgoing {
                // Its refusal names the highest epoch that sealed it.
                header: header(FrameKind::Ping),
                body: Body::NONE,
            },
            PeerAnswer::Asked => Outgoing {
                header: header(FrameKind::Seal),
                body: Body::NONE,
            },
            PeerAnswer::Reading => {
                let next = peer.window.from.plus(peer.window.bytes.len() as u64);
                read_frame(header(FrameKind::Read), next)
            }
            PeerAnswer::Unreachable | PeerAnswer::Complete | PeerAnswer::Amnesiac | PeerAnswer::Beyond => {
                return None;
            }
        };
        peer.asked = true;
        Some(outgoing)
    }

    /// Member `index` sent a frame.
    pub fn on_frame(&mut self, index: usize, frame: &Frame<'_>) {
        let peer = &mut self.peers[index];
        peer.asked = false;
        match frame.header.kind {
            FrameKind::Bound => peer.bound = true,
            FrameKind::Pong => peer.heard = true,
            FrameKind::Sealed => self.on_sealed(index, frame),
            FrameKind::Data => self.on_data(index, frame),
            FrameKind::Refuse => match Refusal::from_byte(frame.header.flags) {
                Some(Refusal::Fenced) => self.fenced = Some(frame.header.epoch),
                Some(Refusal::NotSealed) if self.of_replica && !peer.heard => {
                    self.on_heard(index, frame.header.epoch);
                }
                Some(Refusal::OutOfWindow) if self.planted.is(Fault::ReadBeforeSeal) => {
                    peer.window.bytes = alloc::vec![0];
                }
                // The same answer again, over a link that doubles. Asked once more it would be sealed, and have forgotten.
                _ if peer.answer == PeerAnswer::Beyond => (),
                _ => peer.answer = PeerAnswer::Unreachable,
            },
            _ => (),
        }
    }

    /// Member `index` was last sealed by the reign `seen`, below ours: the last one that the replica was told of or one before,
    /// or an earlier attempt to restore.
    fn on_heard(&mut self, index: usize, seen: Epoch) {
        let peer = &mut self.peers[index];
        peer.heard = true;
        let unheard_of = |last: Epoch| last < seen && seen < reigns::after_any(last);
        if self.last_heard.is_some_and(unheard_of) {
            peer.answer = PeerAnswer::Beyond;
        }
    }

    fn on_sealed(&mut self, index: usize, frame: &Frame<'_>) {
        let (epoch, from) = (self.epoch, self.from);
        let peer = &mut self.peers[index];
        if frame.header.epoch != epoch || peer.answer != PeerAnswer::Asked {
            return;
        }
        let same_memory = frame.header.who == peer.member.incarnation.0;
        let known = frame.header.flags & Flag::KNOWN != 0;
        let window_epoch = Cursor::new(frame.body).u32().map(Epoch);
        let same_reign = self.of_reign.is_none_or(|reign| window_epoch == Ok(reign));
        let holds = same_memory && known && same_reign || self.planted.is(Fault::AmnesiacCounts);
        if !holds {
            peer.answer = PeerAnswer::Amnesiac;
            return;
        }
        peer.trim = frame.header.stable;
        peer.held = frame.header.lsn;
        if (self.of_replica || self.of_reign.is_some()) && peer.trim > from {
            peer.answer = PeerAnswer::Beyond;
            return;
        }
        if self.planted.is(Fault::ReadBeforeSeal) && !peer.window.bytes.is_empty() {
            peer.answer = PeerAnswer::Complete;
            return;
        }
        // A window that begins above our end cannot be chained to, but its beginning proves what had been durable.
        peer.window = PeerWindow {
            trim: peer.trim,
            from: peer.trim.max(from),
            bytes: Vec::new(),
            promised: Lsn(0),
        };
        peer.answer = if peer.held > peer.window.from {
            PeerAnswer::Reading
        } else {
            PeerAnswer::Complete
        };
    }

    fn on_data(&mut self, index: usize, frame: &Frame<'_>) {
        let early = self.planted.is(Fault::ReadBeforeSeal);
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
            peer.held.since(next) as usize
        };
        peer.window
            .bytes
            .extend_from_slice(&frame.body[..frame.body.len().min(wanted)]);
        if !early && peer.window.from.plus(peer.window.bytes.len() as u64) >= peer.held {
            peer.answer = PeerAnswer::Complete;
        }
    }

    /// `None`: not done yet. `Some(Ok)`: enough members answered; their windows are in [`Recovery::windows`].
    pub fn verdict(&self, now: Time) -> Option<Result<(), RecoveryRefusal>> {
        if let Some(seen) = self.fenced {
            return Some(Err(RecoveryRefusal::Fenced { seen }));
        }
        let answered = self.count(PeerAnswer::Complete);
        let settled = answered + self.count(PeerAnswer::Amnesiac) + self.count(PeerAnswer::Beyond);
        let all_settled = settled == self.peers.len();
        if self.unproven && (all_settled || now >= self.deadline) {
            return Some(Err(RecoveryRefusal::Unproven { from: self.from }));
        }
        if answered >= self.needed && !self.unproven && (all_settled || now >= self.grace) {
            return Some(Ok(()));
        }
        if all_settled || now >= self.deadline {
            let missing = self
                .peers
                .iter()
                .filter(|peer| peer.answer != PeerAnswer::Complete);
            return Some(Err(RecoveryRefusal::Missing {
                needed: self.needed,
                answered,
                missing: missing
                    .map(|peer| (peer.member.address.clone(), peer.answer))
                    .collect(),
                from: self.from,
            }));
        }
        None
    }

    /// What the members that answered hold above the local end. (With `--accept-loss` also asked after a refusal.)
    pub fn windows(&mut self) -> Vec<PeerWindow> {
        let promised = self.promised();
        let complete = self
            .peers
            .iter_mut()
            .filter(|peer| peer.answer == PeerAnswer::Complete);
        let with_promise = |peer: &mut Peer| PeerWindow {
            promised,
            ..core::mem::take(&mut peer.window)
        };
        complete.map(with_promise).collect()
    }

    /// Below this, records may have been acknowledged: what as many members as the rule demands hold, if those that did
    /// not answer hold everything. The word of one member that lies does not suffice where the rule asks for more.
    fn promised(&self) -> Lsn {
        let complete = |peer: &&Peer| peer.answer == PeerAnswer::Complete;
        let mut held: Vec<Lsn> = self.peers.iter().filter(complete).map(|peer| peer.held).collect();
        let missing = self.peers.len() - held.len();
        // With `--accept-loss` so many may be missing that nothing can be said.
        if missing >= self.copies || self.planted.is(Fault::ReadBeforeSeal) {
            return Lsn(0);
        }
        held.sort_unstable_by(|a, b| b.cmp(a));
        held[self.copies - missing - 1]
    }

    fn count(&self, answer: PeerAnswer) -> usize {
        self.peers.iter().filter(|peer| peer.answer == answer).count()
    }
}

/// The body of a `Bind`.
pub(super) fn bind_body(journal: JournalId) -> Body {
    Body::Inline(journal.0.to_le_bytes(), 16)
}

fn read_frame(header: Header, from: Lsn) -> Outgoing {
    let mut body = [0; 16];
    body[..4].copy_from_slice(&(FRAME_BODY_BYTES_MAX as u32).to_le_bytes());
    Outgoing {
        header: Header { lsn: from, ..header },
        body: Body::Inline(body, 4),
    }
}
