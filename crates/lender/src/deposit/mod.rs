//! Deposits: pages of other machines' far-memory arenas, kept in the lent memory.
//!
//! One thread serves all deposits and their sessions, apart from the journals: decrypting and copying a frame
//! of pages takes as long as fifty commits and must not delay one. `netram_far_machine::deposit` decides what
//! sessions may do and what a deposit holds.
//!
//! *Not here:* deposits do not outlive the process as windows do. No slot of the store names their chunks, so
//! the next process finds them free.

mod memory;
mod pressure;
mod session;
mod stalls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use netram_clients::ClientAccount;
use netram_far_machine::deposit::{DepositServer, level, slots_to_keep};
use netram_far_machine::limit::{DEPOSIT_SLOTS_MAX, PAGE_BYTES};
use netram_proto::id::{DepositId, Epoch};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{Interest, Link, LinkError, Poller, ReadyEvents};

use crate::accept::ClientVisit;
use crate::drain::OrderNumber;
use crate::limit::{DEPOSITS_MAX, HOUSEKEEPING, IDLE_HOUSEKEEPING};
use crate::outbox::SessionEnd;
use crate::pacer::{LoopPacer, RoundStep};
use crate::report::DepositReport;
use crate::state::{ConnectionPermit, DaemonState};
use crate::superblock::fresh_incarnation;
use memory::DepositMemory;
use pressure::PressureWatch;
use session::DepositSession;

const WAKER: u64 = u64::MAX;
const STALLS: u64 = u64::MAX - 1;
const EVENTS: usize = 64;
/// Interval at which a stopping lender checks whether all pages have been moved away.
const STOPPING_TICK: Duration = Duration::from_millis(10);

/// A connection whose first frame opens a session of a deposit.
pub(crate) struct DepositArrival {
    pub(crate) link: Link,
    pub(crate) visit: Option<ClientVisit>,
    pub(crate) header: FrameHeader,
    pub(crate) id: DepositId,
    pub(crate) permit: ConnectionPermit,
}

/// A deposit, and its current session.
struct Deposit {
    server: DepositServer,
    memory: DepositMemory,
    session: Option<usize>,
}

/// The thread that keeps deposits.
pub(crate) struct DepositThread {
    shared: Arc<DaemonState>,
    poller: Poller,
    inbox: Receiver<DepositArrival>,
    deposits: BTreeMap<DepositId, Deposit>,
    sessions: Vec<Option<DepositSession>>,
    /// Sessions whose last turn ended before their frames did. The kernel does not report those again.
    due: Vec<usize>,
    /// The sessions of `due` that are being served.
    due_now: Vec<usize>,
    watch: PressureWatch,
    /// The operator's last order that it obeys.
    order: OrderNumber,
    now: Instant,
    housekeeping: Instant,
}

impl DepositThread {
    pub(crate) fn new(
        shared: Arc<DaemonState>,
        inbox: Receiver<DepositArrival>,
    ) -> std::io::Result<DepositThread> {
        let poller = Poller::new()?;
        poller.add(shared.deposit_waker(), WAKER, Interest::Read)?;
        let now = Instant::now();
        let watch = PressureWatch::new(Arc::clone(&shared), now);
        watch.add_to(&poller, STALLS)?;
        Ok(DepositThread {
            watch,
            shared,
            poller,
            inbox,
            deposits: BTreeMap::new(),
            sessions: Vec::new(),
            due: Vec::new(),
            due_now: Vec::new(),
            order: OrderNumber::default(),
            now,
            housekeeping: now,
        })
    }

    /// Serves until the lender stops. Uses the shards' wait policy while there is a session, and blocks
    /// otherwise.
    pub(crate) fn run(mut self) {
        let mut pacer = LoopPacer::new(self.shared.config.wait, self.now);
        let mut events = ReadyEvents::with_capacity(EVENTS);
        loop {
            let step = match self.sessions.iter().flatten().count() {
                0 => pacer.block(),
                sessions => pacer.next(self.now, sessions),
            };
            let received = match step {
                RoundStep::AskEach => self.ask_each(),
                RoundStep::Poll => self.wait(&mut events, Duration::ZERO),
                RoundStep::Block => {
                    let next = self.housekeeping.min(self.watch.next());
                    self.wait(&mut events, next.saturating_duration_since(self.now))
                }
            };
            self.now = Instant::now();
            pacer.end_round(self.now, received);
            if self.now >= self.watch.next() && self.watch.look(self.now, self.time()) {
                self.ask_back();
            }
            if self.now >= self.housekeeping && self.housekeep() {
                return;
            }
        }
    }

    fn ask_each(&mut self) -> bool {
        // All are served below, and listed again if they have more.
        self.clear_due();
        let mut received = false;
        for index in 0..self.sessions.len() {
            received |= self.serve(index);
        }
        received
    }

    fn wait(&mut self, events: &mut ReadyEvents, timeout: Duration) -> bool {
        let timeout = if self.due.is_empty() {
            timeout
        } else {
            Duration::ZERO
        };
        if let Err(error) = self.poller.wait(events, Some(timeout)) {
            panic!("waiting for deposits' sessions failed: {error}");
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
                received = true;
            } else if ready.token == STALLS {
                self.watch.on_stall(self.now);
            } else {
                received |= self.serve(ready.token as usize);
            }
        }
        received
    }

    fn take_arrivals(&mut self) {
        if let Err(error) = self.shared.deposit_waker().drain() {
            panic!("the deposit thread's waker failed: {error}");
        }
        while let Ok(arrival) = self.inbox.try_recv() {
            self.arrive(arrival);
            self.housekeeping = self.housekeeping.min(self.now + HOUSEKEEPING);
        }
        self.watch.hurry(self.now);
        self.obey();
        if self.shared.stopping() {
            self.housekeeping = self.now;
        }
    }

    /// Obeys the operator's last order, as the shards do.
    fn obey(&mut self) {
        let order = self.shared.drain.last();
        if order == self.order {
            return;
        }
        self.order = order;
        for index in 0..self.sessions.len() {
            let told = |session: &DepositSession| session.told.is_some();
            if order.drains() || self.shared.stopping() {
                self.give_notice(index);
            } else if self.sessions[index].as_ref().is_some_and(told) {
                self.end(index, SessionEnd::Undrained);
            }
        }
        self.shared.drain.obey(self.shared.counters.len(), order);
    }

    fn arrive(&mut self, arrival: DepositArrival) {
        let DepositArrival {
            mut link,
            visit,
            header,
            id,
            permit,
        } = arrival;
        let Some(visit) = visit else {
            unreachable!("a client is greeted with an account")
        };
        let lease = self.lease();
        let answer = match self.deposit(id, &visit.account) {
            Some(deposit) => deposit.server.open(&header, lease),
            None => {
                let mut refusal = self.shared.refusal(RefusalReason::NoDeposit);
                refusal.stable.0 = DEPOSITS_MAX as u64;
                refusal
            }
        };
        if answer.kind == FrameKind::Refuse {
            self.shared.deposits.refused(answer.flags);
            tracing::warn!(deposit = %id, peer = link.peer(), refusal = answer.flags, "refused a deposit session");
            // The answer is best effort; the session ends in any case.
            let _ = link.send(&[&answer.encode(0)]);
            return;
        }
        tracing::info!(deposit = %id, peer = link.peer(), session = %header.epoch, "deposit session opened");
        if let Some(old) = self
            .deposits
            .get_mut(&id)
            .and_then(|deposit| deposit.session.take())
        {
            self.end(old, SessionEnd::Replaced);
        }
        let index = self.vacancy();
        let added = self.poller.add(&link, index as u64, Interest::Read);
        let mut session = DepositSession::new(link, id, header.epoch, (visit, permit), self.now);
        let said = session.say(&answer, &[], self.now);
        self.sessions[index] = Some(session);
        if let Some(deposit) = self.deposits.get_mut(&id) {
            deposit.session = Some(index);
        }
        match (added, said) {
            (Err(error), _) => {
                tracing::error!(%error, "cannot poll a deposit session");
                self.end(index, SessionEnd::Stopping);
            }
            (Ok(()), Err(ending)) => self.end(index, ending),
            // The link may have read packets behind the first one, which the kernel does not report again.
            (Ok(()), Ok(())) => {
                self.serve(index);
                self.ask_back();
                self.give_notice(index);
            }
        }
        self.publish(id);
    }

    /// The deposit with this id; an unknown one is created if there is room for it, and this client pays.
    fn deposit(&mut self, id: DepositId, client: &Arc<ClientAccount>) -> Option<&mut Deposit> {
        let full = self.deposits.len() >= DEPOSITS_MAX;
        if !self.deposits.contains_key(&id) {
            let life = fresh_incarnation().ok().filter(|_| !full)?;
            let deposit = Deposit {
                server: DepositServer::new(id, life, self.time()),
                memory: DepositMemory::new(Arc::clone(&self.shared), Arc::clone(client)),
                session: None,
            };
            self.deposits.insert(id, deposit);
        }
        self.deposits.get_mut(&id)
    }

    fn vacancy(&mut self) -> usize {
        if let Some(index) = self.sessions.iter().position(Option::is_none) {
            return index;
        }
        self.sessions.push(None);
        self.sessions.len() - 1
    }

    /// Gives one session one turn. Returns whether a frame arrived.
    fn serve(&mut self, index: usize) -> bool {
        let Some(session) = self.sessions.get_mut(index).and_then(Option::as_mut) else {
            return false;
        };
        let Some(deposit) = self.deposits.get_mut(&session.id) else {
            unreachable!("a deposit outlives its session")
        };
        let slots = deposit.server.slots();
        let turn = session.turn(&mut deposit.server, &mut deposit.memory, &self.shared, self.now);
        let (id, resized) = (session.id, deposit.server.slots() != slots);
        let received = match turn {
            Ok(received) => received,
            Err(ending) => {
                self.end(index, ending);
                return true;
            }
        };
        watch(&self.poller, session, index);
        if session.has_more() && !session.is_due {
            session.is_due = true;
            self.due.push(index);
        }
        if resized {
            self.watch.hurry(self.now);
            self.ask_back();
            self.publish(id);
        }
        received
    }

    /// Takes the list of sessions that are due.
    fn clear_due(&mut self) {
        self.due_now.clear();
        std::mem::swap(&mut self.due, &mut self.due_now);
        for &index in &self.due_now {
            if let Some(session) = &mut self.sessions[index] {
                session.is_due = false;
            }
        }
    }

    fn end(&mut self, index: usize, ending: SessionEnd) {
        let Some(mut session) = self.sessions[index].take() else {
            return;
        };
        let now = self.time();
        let (id, peer) = (session.id, session.outbox.link.peer());
        match ending {
            SessionEnd::Link(LinkError::Closed)
            | SessionEnd::Stopping
            | SessionEnd::Outlived
            | SessionEnd::Undrained
            | SessionEnd::Replaced => {
                tracing::debug!(deposit = %id, peer, "deposit session closed");
            }
            ending => tracing::warn!(deposit = %id, peer, ?ending, "deposit session ended"),
        }
        if let Some(deposit) = self.deposits.get_mut(&id) {
            if matches!(ending, SessionEnd::Link(_)) {
                session.finish(&mut deposit.server, &mut deposit.memory, &self.shared);
            }
            deposit.server.end_session(session.epoch, now);
            deposit.session = deposit.session.filter(|at| *at != index);
        }
        drop(session);
        self.publish(id);
    }

    /// Checks timers. Returns whether the thread is done.
    fn housekeep(&mut self) -> bool {
        let limits = self.shared.config.limits;
        for index in 0..self.sessions.len() {
            let overdue = self.sessions[index].as_ref().and_then(|session| {
                let (idle, slow) = (limits.idle_timeout, limits.slow_reader_timeout);
                let revoked = session.outbox.link.is_revoked();
                let timeout = || session.outbox.timeout(self.now, idle, slow);
                { revoked }.then_some(SessionEnd::Revoked).or_else(timeout)
            });
            if let Some(overdue) = overdue {
                self.end(index, overdue);
            }
        }
        let (now, lease) = (self.time(), self.lease());
        let over = |(id, deposit): (&DepositId, &Deposit)| deposit.server.is_over(now, lease).then_some(*id);
        let over: Vec<DepositId> = self.deposits.iter().filter_map(over).collect();
        if !over.is_empty() {
            self.watch.hurry(self.now);
        }
        for id in over {
            if let Some(deposit) = self.deposits.remove(&id) {
                let (slots, held) = (deposit.server.slots(), deposit.server.used_slots());
                tracing::debug!(deposit = %id, slots, held, "the deposit's lease has expired");
            }
            self.shared.deposits.unlist(id);
        }
        let ids: Vec<DepositId> = self.deposits.keys().copied().collect();
        ids.into_iter().for_each(|id| self.publish(id));
        let idle = self.deposits.is_empty() && self.sessions.iter().all(Option::is_none);
        self.housekeeping = self.now + if idle { IDLE_HOUSEKEEPING } else { HOUSEKEEPING };
        self.obey();
        self.shared.pulses.answer(self.shared.counters.len());
        (0..self.sessions.len()).for_each(|index| self.give_notice(index));
        self.shared.stopping() && self.stop()
    }

    /// Returns whether owners have moved their pages away, or the time is up.
    fn stop(&mut self) -> bool {
        self.housekeeping = self.now + STOPPING_TICK;
        let attended = self
            .deposits
            .values()
            .filter(|deposit| deposit.server.has_session());
        let slots: u32 = attended.map(|deposit| deposit.server.slots()).sum();
        let over = self.shared.deadline().is_none_or(|deadline| deadline <= self.now);
        if slots > 0 && !over {
            return false;
        }
        let left: u32 = self
            .deposits
            .values()
            .map(|deposit| deposit.server.used_slots())
            .sum();
        if left > 0 {
            tracing::warn!(
                pages = left,
                "pages of deposits were not moved away in time and are lost with the process"
            );
        }
        for index in 0..self.sessions.len() {
            self.end(index, SessionEnd::Stopping);
        }
        true
    }

    /// Tells an owner, once and as soon as it reads its answers, that it should move its pages away, if it
    /// should. To an owner a drain and a stop are the same: its pages go as soon as they have another place.
    fn give_notice(&mut self, index: usize) {
        let Some(notice) = self.shared.leave_notice(self.now) else {
            return;
        };
        let untold = |session: &&mut DepositSession| session.told.is_none() && !session.outbox.is_blocked();
        let Some(session) = self.sessions[index].as_mut().filter(untold) else {
            return;
        };
        session.told = Some(notice);
        let header = notice.frame(self.shared.incarnation().0);
        let said = session.say(&header, &[], self.now);
        watch(&self.poller, session, index);
        if let Err(ending) = said {
            self.end(index, ending);
        }
    }

    /// Tells owners how many of their slots the machine wants back, or that it wants none any more; once
    /// each, as soon as they read their answers.
    fn ask_back(&mut self) {
        let shift = self.shared.store.chunk_shift();
        let sizes = self
            .deposits
            .values()
            .map(|deposit| deposit.memory.chunks() as u64);
        let level = self
            .watch
            .deposits_limit()
            .map(|limit| level(sizes, limit >> shift));
        let most = u64::from(DEPOSIT_SLOTS_MAX);
        let level = level.map(|chunks| most.min((chunks << shift) / PAGE_BYTES as u64) as u32);
        for index in 0..self.sessions.len() {
            let Some(session) = self.sessions[index]
                .as_mut()
                .filter(|session| !session.outbox.is_blocked())
            else {
                continue;
            };
            let Some(deposit) = self.deposits.get_mut(&session.id) else {
                unreachable!("a deposit outlives its session")
            };
            let holder = &mut deposit.server;
            let Some(header) = holder.ask_back(slots_to_keep(holder.slots(), holder.keep(), level)) else {
                continue;
            };
            let said = session.say(&header, &[], self.now);
            watch(&self.poller, session, index);
            if let Err(ending) = said {
                self.end(index, ending);
            }
        }
    }

    /// Updates the report of a deposit.
    fn publish(&self, id: DepositId) {
        let Some(deposit) = self.deposits.get(&id) else {
            return;
        };
        self.shared.deposits.list(
            id,
            DepositReport {
                id: id.to_string()[..8].to_owned(),
                slots: deposit.server.slots(),
                held: deposit.server.used_slots(),
                bytes: deposit.memory.lent_bytes(),
                connected: deposit.server.has_session(),
                session: 0,
                asked_back: deposit.server.asked_back(),
            },
        );
    }

    fn lease(&self) -> Nanos {
        Nanos::from_ms(self.shared.config.limits.deposit_lease.as_millis() as u64)
    }

    fn time(&self) -> Time {
        Time(self.now.duration_since(self.shared.started).as_nanos() as u64)
    }
}

/// Polls for writability while answers are queued, and only then.
fn watch(poller: &Poller, session: &mut DepositSession, index: usize) {
    if let Err(error) = session.outbox.watch(poller, index, false) {
        // The next frame, which a client sends within a heartbeat, makes the session try again.
        tracing::error!(%error, "cannot change what a connection is polled for; retrying");
    }
}

/// The deposit that a session's first frame names.
pub(crate) fn named(frame: &Frame<'_>) -> Option<(FrameHeader, DepositId)> {
    let id = DepositId(u128::from_le_bytes(frame.body.try_into().ok()?));
    (frame.header.epoch > Epoch(0)).then_some((frame.header, id))
}
