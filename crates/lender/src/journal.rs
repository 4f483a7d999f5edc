//! The journals of one shard: each one's member, memory and sessions.

mod silent;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use netram_clients::{ClientAccount, OverLimit};
use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::limit::JOURNAL_NAME_BYTES_MAX;
use netram_proto::member::{Member, MemberReply, MemberState, Window};
use netram_proto::multicast::{Reassembly, ReassemblyVerdict};
use netram_proto::session::side_work::SideWork;
use netram_proto::spill::BindAnswer;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind};

use crate::memory::JournalMemory;
use crate::state::DaemonState;
use crate::stats::JournalStats;
use crate::store::RestoredMember;
use crate::sys::seconds_of_run;

/// A journal at this lender.
pub(crate) struct MemberJournal {
    pub(crate) id: JournalId,
    member: Member,
    pub(crate) memory: JournalMemory,
    stats: Arc<JournalStats>,
    sessions: u32,
    /// Whether a client has fenced it since it last had no session, so it is in use and not only probed.
    written: bool,
    side_work: SideWork,
    /// Whether its client has left a window since the shard last asked.
    left: bool,
    /// Whether nothing is read from its sessions for now, since they have had too much of their thread.
    pub(crate) rests: bool,
}

impl MemberJournal {
    /// Whether a stopping lender waits for its client to leave the window. An empty one is needed, too.
    fn is_awaited(&self) -> bool {
        let state = self.member.state();
        let is_unread = state.trim < state.held && !self.memory.is_on_disk();
        state.joined && (self.sessions > 0 || is_unread)
    }

    /// Whether the machine wants the memory of its window.
    pub(crate) fn is_asked_back(&self) -> bool {
        self.stats.asked_back.load(Relaxed)
    }

    /// Whether its client has left a window since the last call.
    pub(crate) fn take_left(&mut self) -> bool {
        std::mem::take(&mut self.left)
    }

    /// The incarnation under which the member answers.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.member.incarnation()
    }

    /// The fence that the journal obeys.
    pub(crate) fn last_fence(&self) -> (Epoch, WriterId) {
        let state = self.member.state();
        (state.epoch, state.writer)
    }

    /// Makes `client` pay for the journal, since it joins a window.
    ///
    /// # Errors
    /// The client may not have what the journal costs.
    #[cold]
    pub(crate) fn pay_by(&mut self, client: &Arc<ClientAccount>) -> Result<(), OverLimit> {
        self.memory.pay_by(client)?;
        self.stats.set_names(self.memory.names());
        Ok(())
    }

    /// Passes one frame to the member. The new state is saved only by [`MemberJournal::settle`].
    pub(crate) fn handle(&mut self, frame: &Frame<'_>) -> MemberReply {
        if frame.header.kind != FrameKind::Append {
            return self.handle_rare(frame);
        }
        let end = frame.header.lsn.0.saturating_add(frame.body.len() as u64);
        if self.memory.overwrites_saved(Lsn(end)) {
            self.trim_first(frame);
        }
        self.member.handle(frame, &mut self.memory)
    }

    /// Saves a higher trim point before an append overwrites bytes that the saved state counts as held. The
    /// append's stable LSN permits that, but a kill between the bytes and the state would cost the whole
    /// window. A ping moves the trim point and nothing else.
    #[cold]
    fn trim_first(&mut self, frame: &Frame<'_>) {
        let header = FrameHeader {
            kind: FrameKind::Ping,
            ..frame.header
        };
        self.member.handle(&Frame { header, body: &[] }, &mut self.memory);
        self.memory.save(self.member.state());
    }

    /// Handles an append of a session that listens to multicast, and the appends whose turn comes with it.
    pub(crate) fn reassemble(
        &mut self,
        reassembly: &mut Reassembly,
        frame: &Frame<'_>,
        way: AppendPath,
    ) -> ReassemblyOutcome {
        if !self.member.accepts(frame) {
            // A datagram may date from before the writer left or was fenced. Frames of its link get the
            // answers it needs.
            return match way {
                AppendPath::Link => ReassemblyOutcome::Reply(self.handle(frame)),
                AppendPath::Multicast => ReassemblyOutcome::Nothing,
            };
        }
        let state = self.member.state();
        reassembly.begin_window(state.window_epoch, state.generation);
        match reassembly.handle(frame, self.member.state().received) {
            ReassemblyVerdict::Deliver => {
                let mut reply = self.handle(frame);
                while reply.header().kind == FrameKind::Ack
                    && let Some(piece) = reassembly.next(self.member.state().received)
                {
                    reply = self.handle(&piece.frame());
                }
                ReassemblyOutcome::Reply(reply)
            }
            ReassemblyVerdict::Buffered(Some(hole)) => ReassemblyOutcome::Missing(self.member.missing(hole)),
            // The acknowledgement was lost, or a session began again.
            ReassemblyVerdict::Duplicate if way == AppendPath::Link => {
                ReassemblyOutcome::Reply(self.member.acknowledge())
            }
            ReassemblyVerdict::Buffered(None) | ReassemblyVerdict::Duplicate | ReassemblyVerdict::Full => {
                ReassemblyOutcome::Nothing
            }
        }
    }

    #[cold]
    fn handle_rare(&mut self, frame: &Frame<'_>) -> MemberReply {
        let alone = frame.header.kind == FrameKind::Leave && frame.header.flags & Flag::UNLESS_IN_USE != 0;
        if alone && self.sessions > 1 {
            return self.member.in_use();
        }
        let before = *self.member.state();
        let reply = self.member.handle(frame, &mut self.memory);
        if reply.header().kind == FrameKind::Fenced {
            self.written = true;
            self.note_contact();
        }
        let after = *self.member.state();
        if (after.epoch, after.writer) != (before.epoch, before.writer) {
            tracing::debug!(journal = %self.id, epoch = %after.epoch, writer = %after.writer, "fenced by a new writer");
        }
        let join_of = |state: &MemberState| (state.window_epoch, state.generation);
        if after.joined && join_of(&after) != join_of(&before) {
            self.note_name(frame.body);
            tracing::debug!(journal = %self.id, window_bytes = self.memory.capacity(), from = %after.trim, "joined");
        }
        if after.ended && !before.ended {
            tracing::debug!(journal = %self.id, "over");
        }
        if before.joined && !after.joined {
            self.left = true;
            tracing::debug!(journal = %self.id, "window released");
        }
        // A refused join releases memory without any state to save.
        self.stats.publish(&after, self.memory.capacity());
        self.stats.set_on_disk(self.memory.is_on_disk());
        reply
    }

    /// Notes what the client calls the journal, which follows the window's size in a `Join`.
    fn note_name(&mut self, body: &[u8]) {
        let name = body.get(8..).filter(|name| name.len() <= JOURNAL_NAME_BYTES_MAX);
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        if let Some(name) = name.filter(|name| !name.contains(char::is_control)) {
            self.memory.set_name(name);
            self.stats.set_names(self.memory.names());
        }
    }

    /// Saves the member's state. Answers must not be sent before.
    pub(crate) fn settle(&mut self) {
        let state = self.member.state();
        if state != self.memory.saved() {
            self.memory.save(state);
            self.stats.publish(state, self.memory.capacity());
        }
    }

    /// Notes that a client of the journal connects or disconnects.
    fn note_contact(&mut self) {
        let now = seconds_of_run();
        self.memory.note_contact(now);
        self.stats.last_contact.store(now, Relaxed);
    }

    pub(crate) fn appended(&self, started: Instant, now: Instant) {
        self.stats.appended(started, now);
    }

    /// Whether its sessions' turns are timed as a whole: see [`SideWork::is_watched`].
    pub(crate) fn is_watched(&self) -> bool {
        self.side_work
            .is_watched(SideWork::allowance(self.memory.capacity()))
    }

    /// Notes side work of its sessions that ends at `now`. Returns how long they rest.
    pub(crate) fn note_side_work(
        &mut self,
        took: Duration,
        now: Time,
        contended: bool,
        resting: usize,
    ) -> Duration {
        let took = Nanos(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let allowance = SideWork::allowance(self.memory.capacity());
        let Nanos(rest) = self.side_work.note(took, now, allowance, contended, resting);
        self.rests = rest > 0;
        Duration::from_nanos(rest)
    }
}

/// How an append arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendPath {
    /// Over the session's own link.
    Link,
    /// By multicast.
    Multicast,
}

/// Result of an append that went through a [`Reassembly`].
pub(crate) enum ReassemblyOutcome {
    /// The last answer; it includes the acknowledgements before it.
    Reply(MemberReply),
    /// A gap that must be reported to the writer.
    Missing(FrameHeader),
    /// No answer: the append is a duplicate, or waits for an earlier one.
    Nothing,
}

/// Index of a journal in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalIndex(usize);

/// Why a session cannot be bound to a new journal.
#[derive(Debug)]
pub(crate) enum BindRefusal {
    /// The lender cannot remember another journal.
    TableFull,
    /// The window is at the disk.
    ComeAgain,
    /// The client may not have another journal.
    OverLimit(OverLimit),
}

/// The journals of one shard.
pub(crate) struct ShardJournals {
    shared: Arc<DaemonState>,
    by_id: HashMap<JournalId, JournalIndex>,
    journals: Vec<Option<MemberJournal>>,
    free: Vec<JournalIndex>,
    /// Time of the next attempt after a window could not be written to the disk.
    silent_refused_until: Option<Instant>,
}

impl ShardJournals {
    pub(crate) fn new(shared: Arc<DaemonState>, kept: Vec<RestoredMember>) -> ShardJournals {
        let mut journals = ShardJournals {
            shared,
            by_id: HashMap::new(),
            journals: Vec::new(),
            free: Vec::new(),
            silent_refused_until: None,
        };
        for kept in kept {
            let (id, mut memory) = (kept.memory.journal(), kept.memory);
            let payer = journals.shared.clients.account_named(&memory.payer());
            memory.count_for(&payer);
            journals.put(id, kept.member, memory);
        }
        journals
    }

    fn put(&mut self, id: JournalId, member: Member, memory: JournalMemory) -> JournalIndex {
        let stats = self.shared.list(id);
        stats.last_contact.store(memory.last_contact(), Relaxed);
        stats.publish(member.state(), memory.capacity());
        stats.set_names(memory.names());
        stats.set_on_disk(memory.is_on_disk());
        memory.offer();
        let journal = MemberJournal {
            id,
            member,
            memory,
            stats,
            sessions: 0,
            written: false,
            side_work: SideWork::default(),
            left: false,
            rests: false,
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.journals.push(None);
            JournalIndex(self.journals.len() - 1)
        });
        self.journals[place.0] = Some(journal);
        self.by_id.insert(id, place);
        place
    }

    /// Binds a session of this client to a journal. The client pays for a journal that is unknown.
    pub(crate) fn bind(
        &mut self,
        id: JournalId,
        client: &Arc<ClientAccount>,
    ) -> Result<JournalIndex, BindRefusal> {
        let place = match self.by_id.get(&id) {
            Some(place) => *place,
            None => {
                let (member, mut memory) = self.shared.store.journal(id).ok_or(BindRefusal::TableFull)?;
                if let Err(over) = memory.pay_by(client) {
                    memory.let_go();
                    return Err(BindRefusal::OverLimit(over));
                }
                self.put(id, member, memory)
            }
        };
        let journal = self.at(place);
        if journal.answer_bind() != BindAnswer::Serve {
            return Err(BindRefusal::ComeAgain);
        }
        journal.sessions += 1;
        journal.stats.sessions.store(journal.sessions, Relaxed);
        Ok(place)
    }

    /// Unbinds a session. A journal that was never fenced is forgotten with its last session, and one that
    /// may be forgotten when its slot is needed. Any other is remembered for the life of the memory.
    pub(crate) fn unbind(&mut self, place: JournalIndex) {
        let journal = self.at(place);
        journal.sessions -= 1;
        journal.stats.sessions.store(journal.sessions, Relaxed);
        journal.settle();
        if journal.written {
            journal.note_contact();
            journal.written = journal.sessions > 0;
        }
        if journal.sessions == 0 {
            journal.memory.offer();
        }
        if journal.sessions > 0 || !journal.member.may_be_forgotten() {
            return;
        }
        if let Some(journal) = self.journals[place.0].take() {
            self.by_id.remove(&journal.id);
            self.shared.unlist(journal.id);
            journal.memory.let_go();
            self.free.push(place);
        }
    }

    /// The journal at `place`, which a bound session keeps there.
    pub(crate) fn at(&mut self, place: JournalIndex) -> &mut MemberJournal {
        match &mut self.journals[place.0] {
            Some(journal) => journal,
            None => unreachable!("a bound session keeps its journal in place"),
        }
    }

    /// Ends the rest of the journal at `place`, if one is still there.
    pub(crate) fn end_rest(&mut self, place: JournalIndex) {
        if let Some(journal) = &mut self.journals[place.0] {
            journal.rests = false;
        }
    }

    /// Number of windows, with bytes or without.
    pub(crate) fn windows(&self) -> usize {
        let journals = self.journals.iter().flatten();
        journals.filter(|one| one.member.state().joined).count()
    }

    /// Whether a stopping lender waits for one of the windows.
    pub(crate) fn awaits(&self) -> bool {
        self.journals.iter().flatten().any(MemberJournal::is_awaited)
    }
}
