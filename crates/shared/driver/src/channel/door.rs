//! The server's door: from `accept` to the first frame, for all listeners, in one thread that never waits for any stranger.
//!
//! Whoever says `Share`, or asks for the status where there is one, is greeted and handed to the [`Service`]. All others are
//! told where they are, and cost a bounded number of places for a bounded time.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_proto::failure::RetryBackoff;
use netram_proto::port::IoError;
use netram_proto::wire::{Frame, FrameKind, Header, Refusal};
use netram_transport::strangers::{Bounds, Flood, Overdue, Room, Strangers};
use netram_transport::{
    Address, BindError, Events, Interest, Link, LinkError, Listener, Pending, Poller, Progress, Security,
    Waker,
};

use super::Channel;
use crate::limit::{
    FIRST_FRAME_TIMEOUT, FLOOD_LINE_EVERY, HOUSEKEEPING, SESSIONS_MAX_DEFAULT, STATUS_SESSIONS_MAX,
    STRANGER_GRACE, STRANGERS_MAX_DEFAULT,
};

const WAKER: u64 = u64::MAX;
/// Listeners are named from here on, strangers from zero.
const LISTENERS: u64 = 1 << 32;
const EVENTS: usize = 64;
/// Connections that are taken before others have their turn: whoever connects faster than that keeps nobody waiting for ever.
const ACCEPTS_A_TURN: usize = 64;
/// How long nobody is let in after the system refused (no more file descriptors).
const PAUSE: Duration = Duration::from_millis(50);

/// Who the door lets in for.
pub trait Service: Send + Sync {
    /// Takes a session over. Must not wait: the thread that calls it lets strangers in.
    fn take(&self, arrival: Arrival);
}

/// Somebody who has been greeted.
#[derive(Debug)]
pub struct Arrival {
    /// What for.
    pub errand: Errand,
    /// The session. Long messages are not taken before [`Channel::let_in`].
    pub channel: Channel,
    /// Held as long as the session is. Whoever asks for the status has one of another kind, so that no node's place is taken.
    pub permit: Permit,
}

/// What somebody comes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// A node, which has not said yet which.
    Node,
    /// It only wants to be told how the region stands.
    Status,
}

/// One of the door's places, until it is dropped.
#[derive(Clone, Debug, Default)]
pub struct Permit {
    _counted: Arc<()>,
}

/// Where a door is, and how wide.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Where to listen.
    pub listen: Vec<Address>,
    /// How links are protected.
    pub security: Security,
    /// Nodes' sessions and strangers in all; more are told that the server is busy.
    pub sessions_max: usize,
    /// Of these, strangers.
    pub strangers_max: usize,
    /// How long a stranger may take to its first frame.
    pub first_frame_timeout: Duration,
    /// Whether there is a status to ask for.
    pub tells_status: bool,
}

impl DoorConfig {
    /// The usual door at these addresses.
    pub fn new(listen: Vec<Address>, security: Security) -> DoorConfig {
        DoorConfig {
            listen,
            security,
            sessions_max: SESSIONS_MAX_DEFAULT,
            strangers_max: STRANGERS_MAX_DEFAULT,
            first_frame_timeout: FIRST_FRAME_TIMEOUT,
            tells_status: false,
        }
    }
}

/// Why there is no door.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Nobody can be let in.
    #[error("no address to listen to is named")]
    Nowhere,
    /// An address cannot be had.
    #[error("{0}")]
    Bind(#[from] BindError),
    /// The system has no descriptors or threads left.
    #[error("opening the server's door: {0}")]
    System(#[from] std::io::Error),
}

/// Lets nodes in until it is dropped. Sessions that were handed over stay.
#[derive(Debug)]
pub struct Door {
    addresses: Vec<Address>,
    stop: Arc<Stop>,
    places: Arc<Places>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    waker: Waker,
}

impl Door {
    /// Listens, and lets nodes in for `service`, in a thread of its own.
    pub fn open(config: DoorConfig, service: Arc<dyn Service>) -> Result<Door, DoorError> {
        let mut listeners = Vec::with_capacity(config.listen.len());
        for address in &config.listen {
            listeners.push(Listener::bind(address, config.security.clone())?);
        }
        if listeners.is_empty() {
            return Err(DoorError::Nowhere);
        }
        let addresses = listeners.iter().map(|one| one.address().clone()).collect();
        let stop = Arc::new(Stop {
            asked: AtomicBool::new(false),
            waker: Waker::new()?,
        });
        let poller = Poller::new()?;
        for (index, listener) in listeners.iter().enumerate() {
            poller.add(listener, LISTENERS + index as u64, Interest::Read)?;
        }
        poller.add(&stop.waker, WAKER, Interest::Read)?;
        let places = Arc::new(Places::default());
        let now = Instant::now();
        let bounds = Bounds {
            admitted_max: config.strangers_max,
            grace: STRANGER_GRACE,
            patience: config.first_frame_timeout,
        };
        let keeper = Doorkeeper {
            config,
            service,
            poller,
            listeners,
            stop: Arc::clone(&stop),
            places: Arc::clone(&places),
            strangers: Strangers::new(bounds),
            flood: Flood::new(FLOOD_LINE_EVERY, now),
            refusals: RetryBackoff::new(),
            now,
        };
        let thread = std::thread::Builder::new()
            .name("netram-door".to_owned())
            .spawn(move || keeper.run())?;
        Ok(Door {
            addresses,
            stop,
            places,
            thread: Some(thread),
        })
    }

    /// Where the door is: names resolved, and ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Nodes' sessions and strangers now.
    pub fn occupied(&self) -> usize {
        self.places.sessions.given()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        // Without a wake-up the thread sees it at its next housekeeping.
        let _ = self.stop.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by itself.
            let _ = thread.join();
        }
    }
}

/// The permits that are given are clones of these.
#[derive(Debug, Default)]
struct Places {
    /// Of nodes and strangers.
    sessions: Permit,
    /// Of those who ask for the status.
    asking: Permit,
}

impl Permit {
    /// Permits besides the door's own.
    fn given(&self) -> usize {
        Arc::strong_count(&self._counted).saturating_sub(1)
    }
}

/// A connection that has not said what it wants: see [`Strangers`].
struct Stranger {
    stage: Stage,
    /// `None`: it is only here to be told that the server is busy.
    permit: Option<Permit>,
}

enum Stage {
    Shaking(Pending),
    Greeting(Link),
}

impl AsFd for Stage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stage::Shaking(pending) => pending.as_fd(),
            Stage::Greeting(link) => link.as_fd(),
        }
    }
}

struct Doorkeeper {
    config: DoorConfig,
    service: Arc<dyn Service>,
    poller: Poller,
    listeners: Vec<Listener>,
    stop: Arc<Stop>,
    places: Arc<Places>,
    strangers: Strangers<Stranger>,
    flood: Flood,
    /// What the system refused when a connection was to be accepted.
    refusals: RetryBackoff,
    now: Instant,
}

impl Doorkeeper {
    fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut housekeeping = self.now + HOUSEKEEPING;
        while !self.stop.asked.load(Ordering::Acquire) {
            let timeout = housekeeping.saturating_duration_since(self.now);
            if let Err(error) = self.poller.wait(&mut events, Some(timeout)) {
                panic!("waiting for nodes failed: {error}");
            }
            self.now = Instant::now();
            for ready in events.iter() {
                match ready.token {
                    WAKER => (),
                    token if token >= LISTENERS => self.accept((token - LISTENERS) as usize),
                    token => self.advance(token as usize),
                }
            }
            if self.now >= housekeeping {
                housekeeping = self.now + HOUSEKEEPING;
                self.keep_house();
            }
        }
    }

    fn accept(&mut self, listener: usize) {
        // The poller tells of the rest again.
        for _ in 0..ACCEPTS_A_TURN {
            match self.listeners[listener].accept(self.now) {
                Ok(Some(pending)) => {
                    self.refusals.succeeded();
                    self.place(pending);
                }
                Ok(None) => return,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(IoError::EIO.errno);
                    if self.refusals.failed(IoError { errno }).news {
                        tracing::error!(%error, "no connection can be accepted; trying again");
                    }
                    std::thread::sleep(PAUSE);
                    return;
                }
            }
        }
    }

    fn place(&mut self, mut pending: Pending) {
        let room = !matches!(self.strangers.make_room(self.now), Room::Full);
        let sessions = &self.places.sessions;
        let permit = (room && sessions.given() < self.config.sessions_max).then(|| sessions.clone());
        if permit.is_none() {
            pending.refuse_busy();
        }
        let (deadline, admitted) = (pending.deadline(), permit.is_some());
        let stage = Stage::Shaking(pending);
        let stranger = Stranger { stage, permit };
        let index = self.strangers.place(self.now, deadline, admitted, stranger);
        let Some(stranger) = self.strangers.get_mut(index) else {
            unreachable!("it was placed a moment ago")
        };
        if let Err(error) = self.poller.add(&stranger.stage, index as u64, Interest::Read) {
            tracing::error!(%error, "a connection could not be waited for");
            self.strangers.remove(index);
            return;
        }
        self.advance(index);
    }

    /// Goes on with one stranger as far as its bytes allow.
    fn advance(&mut self, index: usize) {
        // `None`: removed earlier in this round.
        let Some(stranger) = self.strangers.get_mut(index) else {
            return;
        };
        if let Stage::Shaking(pending) = &mut stranger.stage {
            match pending.advance(self.now) {
                Ok(Progress::NeedRead) => return,
                Ok(Progress::Done(link)) => stranger.stage = Stage::Greeting(link),
                Err(error) => {
                    if let Some(count) = self.flood.happened(self.now) {
                        tracing::warn!(peer = pending.peer(), count, "handshake failed: {error}");
                    }
                    self.strangers.remove(index);
                    return;
                }
            }
            self.strangers.shook(index);
        }
        let Some(stranger) = self.strangers.get_mut(index) else {
            return;
        };
        let Stage::Greeting(link) = &mut stranger.stage else {
            return;
        };
        let asking = &self.places.asking;
        let may_ask = match self.config.tells_status {
            false => Err(Refusal::RegionOnly),
            true if asking.given() >= STATUS_SESSIONS_MAX => Err(Refusal::NoRoom),
            true => Ok(Errand::Status),
        };
        match greet(link, may_ask) {
            Ok(Greeted::Silent) => (),
            Ok(Greeted::Welcome(errand)) => self.hand_over(index, errand),
            Ok(Greeted::Refused) | Err(_) => {
                self.strangers.remove(index);
            }
        }
    }

    fn hand_over(&mut self, index: usize, errand: Errand) {
        let Some(Stranger {
            stage: Stage::Greeting(link),
            permit: Some(permit),
        }) = self.strangers.remove(index)
        else {
            unreachable!("a stranger that was greeted has shaken hands, which takes a permit")
        };
        if let Err(error) = self.poller.remove(&link) {
            // Dropping it closes it. Whoever came finds that, and comes again.
            tracing::error!(%error, "a connection could not be handed over, and is closed");
            return;
        }
        let permit = match errand {
            Errand::Node => permit,
            Errand::Status => self.places.asking.clone(),
        };
        self.service.take(Arrival {
            errand,
            channel: Channel::new(link),
            permit,
        });
    }

    fn keep_house(&mut self) {
        for (index, overdue) in self.strangers.overdue(self.now) {
            match overdue {
                // It says itself that it is too late.
                Overdue::Handshake => self.advance(index),
                Overdue::Word => drop(self.strangers.remove(index)),
            }
        }
        if let Some(count) = self.flood.due(self.now) {
            tracing::warn!(count, "further handshakes failed");
        }
    }
}

/// What became of a stranger's first frame.
enum Greeted {
    /// It has not come.
    Silent,
    /// It has been answered.
    Welcome(Errand),
    Refused,
}

/// Takes a stranger's first frame. `may_ask`: what becomes of one who asks for the status.
fn greet(link: &mut Link, may_ask: Result<Errand, Refusal>) -> Result<Greeted, LinkError> {
    let Some(packet) = link.receive()? else {
        return Ok(Greeted::Silent);
    };
    let kind = Frame::parse(packet).map(|frame| frame.header.kind);
    let errand = match kind {
        Ok(FrameKind::Share) => Ok(Errand::Node),
        Ok(FrameKind::Status) => may_ask,
        Ok(_) => Err(Refusal::RegionOnly),
        Err(_) => Err(Refusal::Malformed),
    };
    let refusal = match errand {
        Ok(errand) => {
            link.send(&[&Header::new(FrameKind::Shared).encode(0)])?;
            return Ok(Greeted::Welcome(errand));
        }
        Err(refusal) => refusal,
    };
    let peer = link.peer();
    match refusal {
        Refusal::NoRoom => tracing::info!(peer, "too many ask for the status at once: one is refused"),
        _ => tracing::warn!(
            peer,
            ?kind,
            "connection refused: a shared region is served here, and nothing else"
        ),
    }
    let mut header = Header::new(FrameKind::Refuse);
    header.flags = refusal as u8;
    // It is told if it listens; it ends in any case.
    link.send(&[&header.encode(0)])?;
    Ok(Greeted::Refused)
}
