//! Drives the links to lenders: sends the machine's frames and gives it those that arrive. `leader.rs`
//! decides which thread does so.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use netram_far_machine::deposit::{DirectoryEvent, LenderViolation};
use netram_far_machine::limit::{DEPOSIT_TIMEOUT, FRAME_PAGES_MAX};
use netram_proto::id::Epoch;
use netram_proto::limit::LENDERS_MAX;
use netram_proto::time::Time;
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{Interest, Link, LinkError, Poller, ReadyEvents, WaitStep, yield_core};

use super::Inner;
use super::dialer::{DialResult, Dialer};
use super::leader::{DriveEnd, IdleWork, LEADER_TIME_MAX};
use super::link_rate::LinkRate;
use super::spill_link::SpillLink;
use crate::seal::PageSealer;

const WAKER: u64 = u64::MAX;
const EVENTS: usize = 32;
/// Interval at which the machine is told the time.
const TICK: Duration = Duration::from_millis(100);
/// Interval of pings to each lender.
const PING: Duration = Duration::from_secs(1);
/// Time after which a silent lender is considered gone, whatever its link says.
const SILENCE: Duration = Duration::from_nanos(DEPOSIT_TIMEOUT.0);
/// Delay between two attempts to connect.
const RETRY: Duration = Duration::from_millis(500);
/// Delay after a failure that only an operator can resolve.
const RETRY_REFUSED: Duration = Duration::from_secs(30);

/// State of the link to a lender.
enum LinkState {
    Idle { again: Instant },
    Connecting,
    Up(Box<LinkSession>),
}

struct LinkSession {
    link: Link,
    epoch: Epoch,
    last_received: Instant,
    pinged: Instant,
    waits_to_write: bool,
    pace: LinkRate,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum SessionEnd {
    #[error("{0}")]
    Link(LinkError),
    #[error("protocol violation: its frame answers no request")]
    Misconduct,
    #[error(
        "the name of this program's key may not have pages there, or has as many sessions as it may: its operator changes \
         that in the file of clients"
    )]
    OverClientLimit,
    #[error("it refused the session: {0:?}")]
    Refused(Option<RefusalReason>),
    #[error("it accepts no deposits, or is stopping")]
    NoDeposit,
    #[error("another configured address leads to the same lender, so two copies there would be one copy")]
    Twin,
    #[error("it did not answer in time")]
    Silent,
}

impl From<LinkError> for SessionEnd {
    fn from(error: LinkError) -> SessionEnd {
        SessionEnd::Link(error)
    }
}

impl From<LenderViolation> for SessionEnd {
    fn from(offence: LenderViolation) -> SessionEnd {
        match offence {
            LenderViolation::Misconduct => SessionEnd::Misconduct,
            LenderViolation::Twin => SessionEnd::Twin,
            LenderViolation::Refused(Some(RefusalReason::NoDeposit)) => SessionEnd::NoDeposit,
            LenderViolation::Refused(Some(RefusalReason::OverClientLimit)) => SessionEnd::OverClientLimit,
            LenderViolation::Refused(refusal) => SessionEnd::Refused(refusal),
        }
    }
}

pub(super) struct LinkDriver {
    shared: Arc<Inner>,
    poller: Poller,
    links: Vec<LinkState>,
    disk: Option<SpillLink>,
    dialers: Vec<Dialer>,
    arrivals: Receiver<DialResult>,
    events: ReadyEvents,
    started: Instant,
    now: Instant,
    /// Time of the next housekeeping.
    tick: Instant,
}

impl LinkDriver {
    pub(super) fn new(shared: Arc<Inner>, disk: Option<SpillLink>) -> std::io::Result<LinkDriver> {
        let poller = Poller::new()?;
        poller.add(shared.leadership.waker(), WAKER, Interest::Read)?;
        let now = Instant::now();
        let (sender, arrivals) = channel();
        let begin = |lender| Dialer::begin(&shared, lender, sender.clone());
        let dialers = (0..shared.config.lenders.len())
            .map(begin)
            .collect::<Result<_, _>>()?;
        Ok(LinkDriver {
            dialers,
            links: shared
                .config
                .lenders
                .iter()
                .map(|_| LinkState::Idle { again: now })
                .collect(),
            disk,
            shared,
            poller,
            arrivals,
            events: ReadyEvents::with_capacity(EVENTS),
            started: now,
            now,
            tick: now,
        })
    }

    /// Sends and polls until `enough` is true, `meanwhile` has other work, or nothing has arrived for so long
    /// that it is time to sleep, which only the maintenance thread does here.
    pub(super) fn drive(
        &mut self,
        mut enough: impl FnMut() -> bool,
        meanwhile: &mut dyn IdleWork,
    ) -> DriveEnd {
        let policy = self.shared.config.wait;
        self.now = Instant::now();
        let began = self.now;
        let mut idle_since = began;
        loop {
            self.settle();
            if enough() {
                return DriveEnd::Enough;
            }
            let step = policy.step(self.now.duration_since(idle_since));
            if step == WaitStep::Block || self.now.duration_since(began) > LEADER_TIME_MAX {
                return DriveEnd::Idle;
            }
            if meanwhile.look() {
                return DriveEnd::Interrupted;
            }
            if self.take_in(Duration::ZERO) {
                idle_since = self.now;
            } else if step == WaitStep::Yield {
                yield_core();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Drives the links until another thread wants them or everything ends; sleeps while nothing arrives.
    pub(super) fn maintain(&mut self) {
        let policy = self.shared.config.wait;
        self.now = Instant::now();
        let mut idle_since = self.now;
        loop {
            self.settle();
            if self.is_relieved() {
                return;
            }
            let came = match policy.step(self.now.duration_since(idle_since)) {
                WaitStep::Block => self.sleep(),
                WaitStep::Yield => {
                    yield_core();
                    self.take_in(Duration::ZERO)
                }
                WaitStep::Poll => {
                    std::hint::spin_loop();
                    self.take_in(Duration::ZERO)
                }
            };
            if came {
                idle_since = self.now;
            }
        }
    }

    fn is_relieved(&self) -> bool {
        self.shared.leadership.is_wanted() || self.shared.is_stopping()
    }

    /// Sleeps until something arrives, something is to be sent, or housekeeping is due.
    fn sleep(&mut self) -> bool {
        self.shared.leadership.will_sleep();
        // Anything noted before this point is seen now; anything noted later ends the sleep.
        self.take_others();
        self.settle();
        let timeout = match self.is_relieved() {
            true => Duration::ZERO,
            false => self.tick.saturating_duration_since(Instant::now()),
        };
        let came = self.take_in(timeout);
        self.shared.leadership.has_slept();
        came
    }

    /// Receives frames. Returns whether any arrived.
    fn take_in(&mut self, timeout: Duration) -> bool {
        if let Err(error) = self.poller.wait(&mut self.events, Some(timeout)) {
            panic!("waiting for lenders failed: {error}");
        }
        self.now = Instant::now();
        let came = !self.events.is_empty();
        if came {
            let mut ready = [false; LENDERS_MAX];
            for event in self.events.iter() {
                match ready.get_mut(event.token as usize) {
                    Some(lender) => *lender = true,
                    None => self.drain_waker(),
                }
            }
            (0..self.links.len())
                .filter(|lender| ready[*lender])
                .for_each(|lender| self.receive(lender));
        }
        self.take_others();
        if self.now >= self.tick {
            self.tick = self.now + TICK;
            self.housekeep();
        }
        came
    }

    fn drain_waker(&self) {
        if let Err(error) = self.shared.leadership.waker().drain() {
            panic!("the waker of remote pages failed: {error}");
        }
    }

    /// Takes results of other threads: new links, and replies of the spill file.
    fn take_others(&mut self) {
        self.take_arrivals();
        self.receive_spill();
    }

    fn housekeep(&mut self) {
        let now = self.time();
        self.shared.lock().links().tick(now);
        if let Some(disk) = &mut self.disk {
            disk.housekeep(&self.shared, self.now, now);
        }
        for lender in 0..self.links.len() {
            match &mut self.links[lender] {
                LinkState::Idle { again } if *again <= self.now => self.dial(lender),
                LinkState::Up(session)
                    if self.now.duration_since(session.last_received) > SILENCE
                        || self.shared.lock().directory().is_silent(lender, now) =>
                {
                    self.end(lender, SessionEnd::Silent);
                }
                LinkState::Up(session)
                    if self.now.duration_since(session.pinged) > PING
                        && self.shared.lock().directory().is_linked(lender) =>
                {
                    session.pinged = self.now;
                    let ping = session.header(FrameKind::Ping, self.shared.owner());
                    if let Err(error) = session.send_frame(&ping, &[&[]]) {
                        self.end(lender, error.into());
                    }
                }
                _ => (),
            }
        }
    }

    /// Has a lender connected by its dialer thread.
    fn dial(&mut self, lender: usize) {
        self.links[lender] = match self.dialers[lender].dial() {
            true => LinkState::Connecting,
            false => {
                tracing::error!(
                    "the thread that connects a lender has failed; the lender is not used until the program is restarted"
                );
                self.idle()
            }
        };
    }

    fn take_arrivals(&mut self) {
        while let Ok((lender, link)) = self.arrivals.try_recv() {
            let address = &self.shared.config.lenders[lender];
            let link = match link {
                Ok(link) => {
                    self.shared.away()[lender] = None;
                    link
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "a lender cannot be reached");
                    self.shared.away()[lender] = Some(error.to_string());
                    self.links[lender] = self.idle();
                    continue;
                }
            };
            let epoch = self.shared.lock().links().next_session(lender);
            let mut session = LinkSession {
                link,
                epoch,
                last_received: self.now,
                pinged: self.now,
                waits_to_write: false,
                pace: LinkRate::default(),
            };
            let header = session.header(FrameKind::Deposit, self.shared.owner());
            let added = self.poller.add(&session.link, lender as u64, Interest::Read);
            let said = session.send_frame(&header, &[&self.shared.id().0.to_le_bytes()]);
            self.links[lender] = match (added, said) {
                (Ok(()), Ok(())) => LinkState::Up(Box::new(session)),
                (added, said) => {
                    tracing::warn!(%address, ?added, ?said, "a new link to a lender failed immediately");
                    self.idle()
                }
            };
        }
    }

    /// Handles what one read of the socket brings from a lender, so that one that sends without end keeps
    /// neither the other links nor the clock waiting.
    fn receive(&mut self, lender: usize) {
        let LinkState::Up(session) = &mut self.links[lender] else {
            return;
        };
        let now = Time(self.now.duration_since(self.started).as_nanos() as u64);
        let mut came = false;
        let ended = loop {
            match session.link.receive() {
                Ok(Some(packet)) => {
                    session.last_received = self.now;
                    let told = match Frame::parse(packet) {
                        Ok(frame) => {
                            if frame.header.kind == FrameKind::PutAck {
                                session.pace.landed(self.now, &self.shared.byte_ps);
                            }
                            handle_frame(&self.shared, lender, &frame, now)
                        }
                        Err(_) => Err(SessionEnd::Misconduct),
                    };
                    match told {
                        Ok(more) => came |= more,
                        Err(ending) => break Some(ending),
                    }
                    if !session.link.has_buffered() {
                        break None;
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error.into()),
            }
        };
        if came {
            self.shared.tell();
        }
        if let Some(ending) = ended {
            self.end(lender, ending);
        }
    }

    fn receive_spill(&mut self) {
        let now = self.time();
        if let Some(disk) = &mut self.disk
            && disk.receive(&self.shared, self.now, now)
        {
            self.shared.tell();
        }
    }

    fn end(&mut self, lender: usize, ending: SessionEnd) {
        let address = &self.shared.config.lenders[lender];
        tracing::warn!(%address, %ending, "a lender's session has ended");
        let retry = match ending {
            SessionEnd::NoDeposit | SessionEnd::Twin => RETRY_REFUSED,
            _ => RETRY,
        };
        self.links[lender] = LinkState::Idle {
            again: self.now + retry,
        };
        let now = self.time();
        self.shared.lock().links().on_unlinked(lender, now);
    }

    /// Notifies waiters, and sends pending frames.
    pub(super) fn settle(&mut self) {
        let mut changed = false;
        self.shared.lock().settle(|_: &DirectoryEvent| changed = true);
        if changed {
            self.shared.tell();
            if let Some(less_aside) = self.shared.listener.get() {
                less_aside();
            }
        }
        let now = self.time();
        if let Some(disk) = &mut self.disk {
            disk.send(&self.shared, now);
        }
        for lender in 0..self.links.len() {
            let LinkState::Up(session) = &mut self.links[lender] else {
                continue;
            };
            if let Err(error) = send_all(&self.shared, session, lender, now) {
                self.end(lender, error.into());
            } else if let Err(error) = session.watch(&self.poller, lender) {
                panic!("a link's registration with the poller could not be changed: {error}");
            }
        }
    }

    /// Tells all lenders that the deposits are no longer needed, so that they free the memory at once.
    pub(super) fn give_all_back(&mut self) {
        for way in &mut self.links {
            if let LinkState::Up(session) = way {
                let header = session.header(FrameKind::Resize, self.shared.owner());
                // A lender that cannot be told frees it when the lease ends.
                let _ = session.send_frame(&header, &[&[]]);
            }
        }
    }

    fn idle(&self) -> LinkState {
        LinkState::Idle {
            again: self.now + RETRY,
        }
    }

    fn time(&self) -> Time {
        Time(self.now.duration_since(self.started).as_nanos() as u64)
    }
}

impl LinkSession {
    fn header(&self, kind: FrameKind, who: u64) -> FrameHeader {
        FrameHeader {
            epoch: self.epoch,
            sender: who,
            ..FrameHeader::new(kind)
        }
    }

    fn send_frame(&mut self, header: &FrameHeader, body: &[&[u8]]) -> Result<(), LinkError> {
        let bytes = body.iter().map(|part| part.len()).sum();
        let head = header.encode(bytes);
        let mut parts: [&[u8]; 2 + 2 * FRAME_PAGES_MAX] = [&[]; 2 + 2 * FRAME_PAGES_MAX];
        parts[0] = &head;
        parts[1..=body.len()].copy_from_slice(body);
        self.link.queue(&parts[..=body.len()])?;
        self.link.flush().map(|_| ())
    }

    /// Waits for writability only while frames are queued.
    fn watch(&mut self, poller: &Poller, lender: usize) -> std::io::Result<()> {
        let stuck = match self.link.flush() {
            Ok(whole) => !whole,
            // The next receive reports the error.
            Err(_) => return Ok(()),
        };
        if stuck == self.waits_to_write {
            return Ok(());
        }
        self.waits_to_write = stuck;
        let interest = if stuck {
            Interest::ReadWrite
        } else {
            Interest::Read
        };
        poller.modify(&self.link, lender as u64, interest)
    }
}

/// Passes a lender's frame to the client. Returns whether a waiter may be affected.
fn handle_frame(shared: &Inner, lender: usize, frame: &Frame<'_>, now: Time) -> Result<bool, SessionEnd> {
    let heard = shared.lock().handle_frame(lender, frame, now)?;
    for page in &heard.forged {
        let address = &shared.config.lenders[lender];
        tracing::error!(%address, page = page.0, "a lender returned a page whose bytes are not those it was given; the copy is dropped");
    }
    for page in &heard.disproved {
        tracing::error!(
            page = page.0,
            "a lender returned forged words of a page, and the program has used them"
        );
    }
    Ok(heard.fetched + heard.gathered > 0)
}

/// Sends a lender's pending frames, as far as the link takes them.
fn send_all(shared: &Inner, session: &mut LinkSession, lender: usize, now: Time) -> Result<(), LinkError> {
    while session.link.flush()? {
        let next = shared.lock().next_frame(lender, now);
        let Some(mut outgoing) = next else {
            return Ok(());
        };
        outgoing.header.sender = shared.owner();
        let parts: Vec<&[u8]> = outgoing.parts::<PageSealer>().collect();
        if outgoing.header.kind == FrameKind::Put {
            session.pace.sent(parts.iter().map(|part| part.len()).sum());
        }
        session.send_frame(&outgoing.header, &parts)?;
    }
    Ok(())
}
