//! The thread that has the links to lenders: sends what the machine says, tells it what comes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use netram_proto::deposit::{Cut, Misconduct, News, Send, page_head};
use netram_proto::id::{Epoch, Incarnation, Lsn};
use netram_proto::limit::{DEPOSIT_SILENCE, FRAME_PAGES_MAX};
use netram_proto::time::{Span, Time};
use netram_proto::wire::{Frame, FrameKind, Header, Refusal};
use netram_transport::{
    ConnectError, Events, Interest, Link, LinkError, Poller, WaitPolicy, WaitStep, connect,
};

use super::{Shared, State};

const WAKER: u64 = u64::MAX;
const EVENTS: usize = 32;
/// How often the time is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often a lender is asked whether it is there.
const PING: Duration = Duration::from_secs(1);
/// A lender that says nothing for so long is gone, whatever its link says.
const SILENCE: Duration = Duration::from_nanos(DEPOSIT_SILENCE.0);
/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(500);
/// After a lender was no use for a reason that only its operator, or ours, can mend.
const RETRY_REFUSED: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A link to a lender, or the way there.
enum Way {
    Idle { again: Instant },
    Connecting,
    Up(Session),
}

struct Session {
    link: Link,
    epoch: Epoch,
    /// The lender has answered the first frame.
    stands: bool,
    heard: Instant,
    pinged: Instant,
    waits_to_write: bool,
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
enum Ending {
    #[error("{0}")]
    Link(LinkError),
    #[error("it sent what answers nothing that it was asked")]
    Misconduct,
    #[error("it refused: {0:?}")]
    Refused(Option<Refusal>),
    #[error("no deposits are taken there, or no more")]
    NoDeposit,
    #[error("it is a lender that another address leads to as well; two copies there would be one copy")]
    Twice,
    #[error("it did not answer in time")]
    Silent,
}

impl From<LinkError> for Ending {
    fn from(error: LinkError) -> Ending {
        Ending::Link(error)
    }
}

impl From<Misconduct> for Ending {
    fn from(_: Misconduct) -> Ending {
        Ending::Misconduct
    }
}

type Connected = (usize, Result<Link, ConnectError>);

pub(super) struct Driver {
    shared: Arc<Shared>,
    poller: Poller,
    ways: Vec<Way>,
    sender: Sender<Connected>,
    arrivals: Receiver<Connected>,
    started: Instant,
    now: Instant,
}

/// Tells whoever waits when the thread has ended by a panic.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
            // Whoever has looked at `failed` and is about to wait has the lock.
            drop(self.0.lock());
            self.0.changed.notify_all();
        }
    }
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>) -> std::io::Result<Driver> {
        let poller = Poller::new()?;
        poller.add(&shared.waker, WAKER, Interest::Read)?;
        let now = Instant::now();
        let (sender, arrivals) = channel();
        Ok(Driver {
            ways: shared
                .config
                .lenders
                .iter()
                .map(|_| Way::Idle { again: now })
                .collect(),
            shared,
            poller,
            sender,
            arrivals,
            started: now,
            now,
        })
    }

    pub(super) fn run(mut self) {
        let _guard = EndGuard(Arc::clone(&self.shared));
        let policy = self.shared.config.wait;
        let mut events = Events::with_capacity(EVENTS);
        let (mut tick, mut idle_since) = (self.now, self.now);
        while !self.shared.stopping.load(Ordering::Acquire) {
            let step = policy.step(self.now.duration_since(idle_since));
            let timeout = match step {
                WaitStep::Block => tick.saturating_duration_since(self.now),
                WaitStep::Poll | WaitStep::Yield => Duration::ZERO,
            };
            if let Err(error) = self.poller.wait(&mut events, Some(timeout)) {
                panic!("waiting for lenders failed: {error}");
            }
            self.now = Instant::now();
            if !events.is_empty() {
                idle_since = self.now;
                if let Err(error) = self.shared.waker.drain() {
                    panic!("the depot's waker failed: {error}");
                }
                self.take_arrivals();
                (0..self.ways.len()).for_each(|lender| self.receive(lender));
            } else if step == WaitStep::Yield {
                std::thread::yield_now();
            } else if policy == WaitPolicy::Spin {
                std::hint::spin_loop();
            }
            if self.now >= tick {
                tick = self.now + TICK;
                self.keep_house();
            }
            self.settle();
        }
        self.give_all_back();
    }

    fn keep_house(&mut self) {
        let now = self.time();
        self.shared.lock().machine.tick(now);
        for lender in 0..self.ways.len() {
            match &mut self.ways[lender] {
                Way::Idle { again } if *again <= self.now => self.dial(lender),
                Way::Up(session)
                    if self.now.duration_since(session.heard) > SILENCE
                        || self.shared.lock().machine.is_silent(lender, now) =>
                {
                    self.end(lender, Ending::Silent);
                }
                Way::Up(session) if session.stands && self.now.duration_since(session.pinged) > PING => {
                    session.pinged = self.now;
                    let ping = session.header(FrameKind::Ping, self.shared.id.0 as u64);
                    if let Err(error) = session.say(&ping, &[&[]]) {
                        self.end(lender, error.into());
                    }
                }
                _ => (),
            }
        }
    }

    /// Connects in a thread of its own: that waits.
    fn dial(&mut self, lender: usize) {
        let (shared, sender) = (Arc::clone(&self.shared), self.sender.clone());
        let body = move || {
            let address = &shared.config.lenders[lender];
            let link = connect(address, &shared.config.security, CONNECT_TIMEOUT);
            // A depot that is gone needs no link.
            if sender.send((lender, link)).is_ok() {
                shared.wake();
            }
        };
        let thread = std::thread::Builder::new()
            .name("netram-connect".to_owned())
            .spawn(body);
        self.ways[lender] = match thread {
            Ok(_) => Way::Connecting,
            Err(error) => {
                tracing::error!(%error, "no thread could be started to connect a lender");
                self.idle()
            }
        };
    }

    fn take_arrivals(&mut self) {
        while let Ok((lender, link)) = self.arrivals.try_recv() {
            let address = &self.shared.config.lenders[lender];
            let link = match link {
                Ok(link) => link,
                Err(error) => {
                    tracing::debug!(%address, %error, "a lender cannot be reached");
                    self.ways[lender] = self.idle();
                    continue;
                }
            };
            let epoch = self.shared.lock().machine.next_session(lender);
            let mut session = Session {
                link,
                epoch,
                stands: false,
                heard: self.now,
                pinged: self.now,
                waits_to_write: false,
            };
            let header = session.header(FrameKind::Deposit, self.shared.id.0 as u64);
            let added = self.poller.add(&session.link, lender as u64, Interest::Read);
            let said = session.say(&header, &[&self.shared.id.0.to_le_bytes()]);
            self.ways[lender] = match (added, said) {
                (Ok(()), Ok(())) => Way::Up(session),
                (added, said) => {
                    tracing::warn!(%address, ?added, ?said, "a lender's link was lost at once");
                    self.idle()
                }
            };
        }
    }

    fn receive(&mut self, lender: usize) {
        let Way::Up(session) = &mut self.ways[lender] else {
            return;
        };
        let now = Time(self.now.duration_since(self.started).as_nanos() as u64);
        let ended = loop {
            match session.link.receive() {
                Ok(Some(packet)) => {
                    session.heard = self.now;
                    let told = match Frame::parse(packet) {
                        Ok(frame) => hear(&self.shared, lender, &mut session.stands, &frame, now),
                        Err(_) => Err(Ending::Misconduct),
                    };
                    if let Err(ending) = told {
                        break Some(ending);
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error.into()),
            }
        };
        if let Some(ending) = ended {
            self.end(lender, ending);
        }
    }

    fn end(&mut self, lender: usize, ending: Ending) {
        let address = &self.shared.config.lenders[lender];
        tracing::warn!(%address, %ending, "a lender's session has ended");
        let retry = match ending {
            Ending::NoDeposit | Ending::Twice => RETRY_REFUSED,
            _ => RETRY,
        };
        self.ways[lender] = Way::Idle {
            again: self.now + retry,
        };
        let now = self.time();
        self.shared.lock().machine.on_unlinked(lender, now);
    }

    /// Tells what became of pages, and sends what is to be sent.
    fn settle(&mut self) {
        let mut changed = false;
        let mut state = self.shared.lock();
        while let Some(news) = state.machine.news() {
            changed = true;
            match news {
                News::Stashed(page, version, _) => {
                    if state.aside.get(&page).is_some_and(|aside| aside.0 == version) {
                        state.aside.remove(&page);
                    }
                }
                News::Lost(page, lenders) => {
                    state.ahead.remove(&page);
                    if state.waiters.contains_key(&page) {
                        state.came.insert(page, Err(lenders));
                    }
                }
            }
        }
        drop(state);
        if changed {
            self.shared.changed.notify_all();
        }
        for lender in 0..self.ways.len() {
            let Way::Up(session) = &mut self.ways[lender] else {
                continue;
            };
            let now = Time(self.now.duration_since(self.started).as_nanos() as u64);
            if let Err(error) = send_all(&self.shared, session, lender, now) {
                self.end(lender, error.into());
            } else if let Err(error) = session.watch(&self.poller, lender) {
                panic!("a link that is waited for cannot be waited for otherwise: {error}");
            }
        }
    }

    /// A lender that is told so frees the memory at once.
    fn give_all_back(&mut self) {
        for way in &mut self.ways {
            if let Way::Up(session) = way {
                let header = session.header(FrameKind::Resize, self.shared.id.0 as u64);
                // One that cannot be told learns it by its lease.
                let _ = session.say(&header, &[&[]]);
            }
        }
    }

    fn idle(&self) -> Way {
        Way::Idle {
            again: self.now + RETRY,
        }
    }

    fn time(&self) -> Time {
        Time(self.now.duration_since(self.started).as_nanos() as u64)
    }
}

impl Session {
    fn header(&self, kind: FrameKind, who: u64) -> Header {
        Header {
            epoch: self.epoch,
            who,
            ..Header::new(kind)
        }
    }

    fn say(&mut self, header: &Header, body: &[&[u8]]) -> Result<(), LinkError> {
        let bytes = body.iter().map(|part| part.len()).sum();
        let head = header.encode(bytes);
        let mut parts: [&[u8]; 2 + 2 * FRAME_PAGES_MAX] = [&[]; 2 + 2 * FRAME_PAGES_MAX];
        parts[0] = &head;
        parts[1..=body.len()].copy_from_slice(body);
        self.link.queue(&parts[..=body.len()])?;
        self.link.flush().map(|_| ())
    }

    /// Waits for room to write while something waits to be sent.
    fn watch(&mut self, poller: &Poller, lender: usize) -> std::io::Result<()> {
        let stuck = match self.link.flush() {
            Ok(whole) => !whole,
            // The next receive tells.
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

/// Tells the machine what a lender says.
fn hear(
    shared: &Shared,
    lender: usize,
    stands: &mut bool,
    frame: &Frame<'_>,
    now: Time,
) -> Result<(), Ending> {
    let header = &frame.header;
    let slots = |lsn: Lsn| u32::try_from(lsn.0).map_err(|_| Ending::Misconduct);
    let mut state = shared.lock();
    match header.kind {
        FrameKind::Deposited if *stands => Ok(state.machine.on_resized(lender, slots(header.lsn)?)?),
        FrameKind::Deposited => {
            *stands = true;
            let lease = Span::from_ms(u64::from(header.mark) * 1000);
            let life = Incarnation(header.stable.0);
            let linked = state.machine.on_linked(lender, life, slots(header.lsn)?, lease);
            linked.map_err(|Misconduct| Ending::Twice)
        }
        FrameKind::Stashed => Ok(state.machine.on_stashed(lender, header.mark)?),
        FrameKind::Got => {
            let cut = Cut::parse(frame.body).map_err(|_| Ending::Misconduct)?;
            on_got(shared, &mut state, lender, header.mark, &cut)?;
            drop(state);
            shared.changed.notify_all();
            Ok(())
        }
        FrameKind::Pong => Ok(()),
        FrameKind::Withdraw => {
            state.machine.on_withdraw(lender);
            Ok(())
        }
        FrameKind::Refuse => match Refusal::from_byte(header.flags) {
            Some(Refusal::NoRoom) => Ok(state.machine.on_no_room(lender, slots(header.stable)?, now)?),
            Some(Refusal::NoDeposit) => Err(Ending::NoDeposit),
            refusal => Err(Ending::Refused(refusal)),
        },
        _ => Err(Ending::Misconduct),
    }
}

fn on_got(
    shared: &Shared,
    state: &mut State,
    lender: usize,
    number: u32,
    cut: &Cut<'_>,
) -> Result<(), Misconduct> {
    for due in state.machine.on_got(lender, number, cut)? {
        let (page, version) = (due.page, due.version);
        let sealed = cut.pages()[due.index].bytes;
        let Some(bytes) = shared
            .sealer
            .open(page, version, &state.tags[page.0 as usize], sealed)
        else {
            let address = &shared.config.lenders[lender];
            tracing::error!(%address, page = page.0, "a lender gave a page that is not the one it was given");
            state.machine.damaged(lender, page, version);
            continue;
        };
        let taken = state.machine.take(lender, page, version);
        if taken.aside
            && let Some(sealed) = sealed.first_chunk()
        {
            state.aside.insert(page, (version, Box::new(*sealed)));
        }
        if taken.wanted && (state.waiters.contains_key(&page) || state.ahead.contains(&page)) {
            state.came.insert(page, Ok(bytes));
        }
    }
    Ok(())
}

/// Sends a lender what the machine has for it, as far as the link takes it.
fn send_all(shared: &Shared, session: &mut Session, lender: usize, now: Time) -> Result<(), LinkError> {
    while session.link.flush()? {
        let mut state = shared.lock();
        let Some(send) = state.machine.poll(lender, now) else {
            return Ok(());
        };
        let mut header = session.header(FrameKind::Resize, shared.id.0 as u64);
        let mut heads = Vec::new();
        let mut sealed = Vec::new();
        match send {
            Send::Resize(slots) => header.lsn = Lsn(slots.into()),
            Send::Get(number, items) => {
                (header.kind, header.mark) = (FrameKind::Get, number);
                heads.extend(items.iter().map(|item| page_head(item.slot, item.version, 0)));
            }
            Send::Put(number, items) => {
                (header.kind, header.mark) = (FrameKind::Put, number);
                for item in items {
                    let Some((version, bytes)) = state.aside.get(&item.page) else {
                        unreachable!("what is not stashed is aside")
                    };
                    assert_eq!(*version, item.version, "the newest version is aside");
                    heads.push(page_head(item.slot, item.version, bytes.len()));
                    sealed.push(bytes.clone());
                }
            }
        }
        drop(state);
        let mut parts: Vec<&[u8]> = Vec::with_capacity(2 * heads.len());
        for (index, head) in heads.iter().enumerate() {
            parts.push(head);
            parts.extend(sealed.get(index).map(|bytes| &bytes[..]));
        }
        session.say(&header, &parts)?;
    }
    Ok(())
}
