//! A thread that owns some journals and the sessions bound to them.
//!
//! Requests are answered in the order of their arrival, but a journal whose clients ask without end rests
//! between its turns while others commit. An append touches no shared state: chunks and slots change owners
//! only when windows come and go.

mod datagrams;
mod notices;
mod resting;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use netram_proto::id::JournalId;
use netram_proto::session::side_work::LastAppends;
use netram_proto::wire::{FrameHeader, FrameKind, RefusalReason};
use netram_transport::{DropCounts, Interest, Link, MulticastReceiver, Poller, ReadyEvents};

use crate::accept::Greeting;
use crate::connection::{Connection, TurnContext};
use crate::drain::OrderNumber;
use crate::journal::{BindRefusal, JournalIndex, ShardJournals};
use crate::limit::{HOUSEKEEPING, IDLE_HOUSEKEEPING, SILENT_LOOK};
use crate::outbox::SessionEnd;
use crate::pacer::{LoopPacer, RoundStep};
use crate::silent::WindowOutcome;
use crate::state::{ConnectionPermit, DaemonState};

use self::datagrams::listen;
use self::resting::{RestingJournals, time_of};

const WAKER: u64 = u64::MAX;
const MULTICAST_TOKEN: u64 = u64::MAX - 1;
/// Maximum ready connections handled per wait.
const EVENTS: usize = 256;
/// Minimum time between log lines about the same failure.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a stopping shard checks whether it may end.
const STOPPING_TICK: Duration = Duration::from_millis(10);

/// A connection that has bound a journal.
pub(crate) struct SessionArrival {
    pub(crate) link: Link,
    pub(crate) greeting: Greeting,
    pub(crate) journal: JournalId,
    pub(crate) permit: ConnectionPermit,
}

/// What other threads of the lender tell a shard.
pub(crate) enum ShardMessage {
    Arrival(Box<SessionArrival>),
    /// A job of the disk for this journal has ended.
    Window(JournalId, WindowOutcome),
}

pub(crate) struct Shard {
    index: usize,
    shared: Arc<DaemonState>,
    poller: Poller,
    inbox: Receiver<ShardMessage>,
    journals: ShardJournals,
    connections: Vec<Option<Connection>>,
    vacant: Vec<usize>,
    /// Connections whose last turn ended before their frames did. The kernel does not report those again.
    due: Vec<usize>,
    /// The connections of `due` that are being served.
    due_now: Vec<usize>,
    resting: RestingJournals,
    last_appends: LastAppends<JournalIndex>,
    /// The multicast receiver, while a session listens to a channel.
    multicast_receiver: Option<MulticastReceiver>,
    /// The current receiver's drop counts when they were last added to the counters.
    dropped: DropCounts,
    /// Earliest time of the next log line about a failing receiver.
    log_again_at: Instant,
    now: Instant,
    housekeeping: Instant,
    next_silent_look: Instant,
    /// The operator's last order that it obeys.
    order: OrderNumber,
    /// [`DaemonState::reclaims`] when it last told its sessions.
    reclaims: u64,
}

impl Shard {
    pub(crate) fn new(
        index: usize,
        shared: Arc<DaemonState>,
        poller: Poller,
        inbox: Receiver<ShardMessage>,
        journals: ShardJournals,
    ) -> Shard {
        let now = Instant::now();
        Shard {
            index,
            shared,
            poller,
            inbox,
            journals,
            connections: Vec::new(),
            vacant: Vec::new(),
            due: Vec::new(),
            due_now: Vec::new(),
            resting: RestingJournals::default(),
            last_appends: LastAppends::NONE,
            multicast_receiver: None,
            dropped: DropCounts::default(),
            log_again_at: now,
            now,
            housekeeping: now,
            next_silent_look: now,
            order: OrderNumber::default(),
            reclaims: 0,
        }
    }

    /// Serves until the lender stops. If the shard waits for its waker, `poller` must have it already.
    pub(crate) fn run(mut self) {
        let mut pacer = LoopPacer::new(self.shared.config.wait, self.now);
        let mut events = ReadyEvents::with_capacity(EVENTS);
        loop {
            let sessions = self.connections.len() - self.vacant.len();
            let mut received = match pacer.next(self.now, sessions) {
                RoundStep::AskEach => self.ask_each(),
                RoundStep::Poll => self.wait(&mut events, Duration::ZERO),
                RoundStep::Block => self.wait(&mut events, self.until_next_timer()),
            };
            self.now = Instant::now();
            received |= self.end_rests();
            pacer.end_round(self.now, received);
            if self.now >= self.housekeeping && self.housekeep() {
                return;
            }
        }
    }

    fn until_next_timer(&self) -> Duration {
        let rested = self.resting.next_end();
        let next = rested.map_or(self.housekeeping, |end| end.min(self.housekeeping));
        next.saturating_duration_since(self.now)
    }

    /// Polls every connection directly. Returns whether a frame arrived.
    fn ask_each(&mut self) -> bool {
        // All are served below, and listed again if they have more.
        self.clear_due();
        let mut received = self.receive_multicast();
        for index in 0..self.connections.len() {
            received |= self.serve(index);
        }
        received
    }

    /// Takes the list of connections that are due.
    fn clear_due(&mut self) {
        self.due_now.clear();
        std::mem::swap(&mut self.due, &mut self.due_now);
        for &index in &self.due_now {
            if let Some(connection) = &mut self.connections[index] {
                connection.is_due = false;
            }
        }
    }

    /// Waits for ready connections and serves them, and those that are due. Returns whether a frame arrived.
    fn wait(&mut self, events: &mut ReadyEvents, timeout: Duration) -> bool {
        let timeout = if self.due.is_empty() {
            timeout
        } else {
            Duration::ZERO
        };
        if let Err(error) = self.poller.wait(events, Some(timeout)) {
            // The poller is our own and the arguments are valid, so it does not fail; if it does, the shard
            // is useless.
            panic!("waiting for connections failed: {error}");
        }
        self.now = Instant::now();
        let mut received = false;
        self.clear_due();
        for at in 0..self.due_now.len() {
            received |= self.serve(self.due_now[at]);
        }
        for ready in events.iter() {
            if ready.token == WAKER {
                self.take_arrivals();
                self.answer_questions();
                received = true;
            } else if ready.token == MULTICAST_TOKEN {
                received |= self.receive_multicast();
            } else {
                received |= self.serve(ready.token as usize);
            }
        }
        received
    }

    fn take_arrivals(&mut self) {
        if let Err(error) = self.shared.wakers[self.index].drain() {
            panic!("a shard's waker failed: {error}");
        }
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                ShardMessage::Arrival(arrival) => {
                    self.arrive(*arrival);
                    self.housekeeping = self.housekeeping.min(self.now + HOUSEKEEPING);
                }
                ShardMessage::Window(journal, outcome) => self.journals.end_job(journal, outcome, self.now),
            }
        }
        self.obey();
        if self.shared.stopping() {
            self.housekeeping = self.now;
        }
    }

    /// Serves the connections that wait for a report.
    fn answer_questions(&mut self) {
        for index in 0..self.connections.len() {
            if self.connections[index]
                .as_ref()
                .is_some_and(Connection::has_asked)
            {
                self.serve(index);
            }
        }
    }

    fn arrive(&mut self, arrival: SessionArrival) {
        let SessionArrival {
            mut link,
            mut greeting,
            journal,
            permit,
        } = arrival;
        let Some(visit) = greeting.visit.take() else {
            unreachable!("a client is greeted with an account")
        };
        let place = match self.journals.bind(journal, &visit.account) {
            Ok(place) => place,
            Err(BindRefusal::OverLimit(over)) => {
                let counters = &self.shared.counters[self.index];
                counters.refused(RefusalReason::OverClientLimit as u8);
                tracing::warn!(%journal, peer = link.peer(), "refused: {over}");
                let _ = link.send(&[&self.shared.over_limit(&over).encode(0)]);
                return;
            }
            Err(BindRefusal::ComeAgain) => {
                tracing::info!(%journal, peer = link.peer(), "client asked to come again: its window is at the disk");
                return;
            }
            Err(BindRefusal::TableFull) => {
                let counters = &self.shared.counters[self.index];
                counters.refused(RefusalReason::TooManyJournals as u8);
                let mut header = self.shared.refusal(RefusalReason::TooManyJournals);
                header.stable.0 = self.shared.store.journals_max().into();
                tracing::warn!(%journal, peer = link.peer(), "refused: the lender already remembers {} journals, its maximum", header.stable);
                // The answer is best effort; the session ends in any case.
                let _ = link.send(&[&header.encode(0)]);
                return;
            }
        };
        tracing::info!(%journal, peer = link.peer(), secure = link.is_secure(), "client bound");
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let added = self.poller.add(&link, index as u64, Interest::Read);
        let incarnation = self.journals.at(place).incarnation();
        let mut connection = Connection::new(link, greeting, visit, (place, incarnation), permit, self.now);
        let mut header = FrameHeader::new(FrameKind::Bound);
        header.sender = incarnation.0;
        let said = connection.say(header, self.shared.config.domain.as_bytes(), self.now);
        self.connections[index] = Some(connection);
        match (added, said) {
            (Err(error), _) => {
                tracing::error!(%error, "cannot poll a session");
                self.end(index, SessionEnd::Stopping);
            }
            (Ok(()), Err(ending)) => self.end(index, ending),
            (Ok(()), Ok(())) => {
                self.give_notice(index);
                // The link may have read packets behind the bind, which the kernel does not report again.
                self.serve(index);
            }
        }
    }

    /// Gives one connection one turn. Returns whether a frame arrived.
    fn serve(&mut self, index: usize) -> bool {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            // Ended earlier in this round.
            return false;
        };
        let turn = TurnContext {
            now: self.now,
            shard: self.index,
            shared: &self.shared,
            counters: &self.shared.counters[self.index],
        };
        let place = connection.index;
        let journal = self.journals.at(place);
        if journal.rests {
            return self.let_rest(index);
        }
        let outcome = match connection.turn(journal, &turn) {
            Ok(outcome) => outcome,
            Err(ending) => {
                self.end(index, ending);
                return true;
            }
        };
        if journal.take_left() {
            self.shared.window_left();
        }
        if outcome.appended {
            let time = time_of(self.now, self.shared.started);
            self.last_appends.note(place, time);
        }
        if let Some((number, tune)) = connection.channel_request.take() {
            let answer = if listen(
                &mut self.multicast_receiver,
                &self.poller,
                &self.shared,
                &tune,
                index,
            ) {
                connection.listen();
                let mut header = FrameHeader::new(FrameKind::Listening);
                header.sender = self.shared.incarnation().0;
                header.lsn = number;
                header
            } else {
                turn.counters.refused(RefusalReason::NoGroup as u8);
                self.shared.refusal(RefusalReason::NoGroup)
            };
            if let Err(ending) = connection.say(answer, &[], self.now) {
                self.end(index, ending);
                return true;
            }
        }
        watch(&self.poller, connection, index);
        if connection.has_more() && !connection.is_due {
            connection.is_due = true;
            self.due.push(index);
        }
        if let Some(took) = outcome.side_work {
            self.note_side_work(place, took);
        }
        outcome.received
    }

    fn end(&mut self, index: usize, ending: SessionEnd) {
        let Some(connection) = self.connections[index].take() else {
            return;
        };
        self.vacant.push(index);
        if let Some(receiver) = &mut self.multicast_receiver {
            receiver.forget(index);
        }
        if self
            .multicast_receiver
            .as_ref()
            .is_some_and(|receiver| receiver.channels() == 0)
        {
            self.count_dropped();
            self.dropped = DropCounts::default();
            self.multicast_receiver = None;
        }
        if connection.is_resting {
            self.resting.forget(index);
        }
        let place = connection.index;
        let (journal, peer) = (self.journals.at(place).id, connection.outbox.link.peer());
        match ending {
            SessionEnd::Link(netram_transport::LinkError::Closed)
            | SessionEnd::Stopping
            | SessionEnd::Outlived
            | SessionEnd::Undrained
            | SessionEnd::Replaced => {
                tracing::debug!(%journal, peer, "client left");
            }
            SessionEnd::Link(error) => tracing::warn!(%journal, peer, %error, "client dropped"),
            SessionEnd::Refused(_) => {
                tracing::warn!(%journal, peer, "client dropped: it sent an invalid frame")
            }
            SessionEnd::Revoked => {
                tracing::warn!(%journal, peer, "client dropped: its key is no longer in the file of clients")
            }
            SessionEnd::Idle => {
                tracing::warn!(%journal, peer, "client dropped: it was silent for too long")
            }
            SessionEnd::SlowReader => {
                tracing::warn!(%journal, peer, "client dropped: it does not read its answers")
            }
        }
        drop(connection);
        self.journals.unbind(place);
    }

    /// Checks timers. Returns whether the shard is done.
    fn housekeep(&mut self) -> bool {
        let limits = self.shared.config.limits;
        for index in 0..self.connections.len() {
            let overdue = self.connections[index].as_ref().and_then(|connection| {
                let (idle, slow) = (limits.idle_timeout, limits.slow_reader_timeout);
                let revoked = connection.outbox.link.is_revoked();
                let timeout = || connection.outbox.timeout(self.now, idle, slow);
                { revoked }.then_some(SessionEnd::Revoked).or_else(timeout)
            });
            if let Some(overdue) = overdue {
                self.end(index, overdue);
            }
        }
        self.count_dropped();
        if self.now >= self.next_silent_look {
            self.next_silent_look = self.now + SILENT_LOOK;
            self.journals.look_at_silent(self.index, self.now);
        }
        let idle = self.connections.len() == self.vacant.len() && self.journals.windows() == 0;
        self.housekeeping = self.now + if idle { IDLE_HOUSEKEEPING } else { HOUSEKEEPING };
        self.obey();
        self.shared.pulses.answer(self.index);
        // Sessions that did not read their answers before.
        (0..self.connections.len()).for_each(|index| self.give_notice(index));
        self.shared.stopping() && self.stop()
    }

    /// Returns whether all clients have moved their windows away, or the time is up.
    fn stop(&mut self) -> bool {
        self.housekeeping = self.now + STOPPING_TICK;
        let over = self.shared.deadline().is_none_or(|deadline| deadline <= self.now);
        if self.journals.awaits() && !over {
            return false;
        }
        self.shared.leave_windows(self.journals.windows());
        for index in 0..self.connections.len() {
            self.end(index, SessionEnd::Stopping);
        }
        true
    }
}

/// Polls for writability while answers are queued, and only then.
fn watch(poller: &Poller, connection: &mut Connection, index: usize) {
    if let Err(error) = connection.outbox.watch(poller, index, connection.is_paused()) {
        // The next frame, which a client sends within a heartbeat, makes the session try again.
        tracing::error!(%error, "cannot change what a connection is polled for; retrying");
    }
}
