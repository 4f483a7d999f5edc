//! The server's door: from `accept` to the first frame, for all listeners, in one thread that never waits for
//! any stranger.
//!
//! Whoever says `Share`, or asks for the status where there is one, is greeted and handed to the
//! [`SessionHandler`]. All others are told where they are, and cost a bounded number of places for a bounded
//! time.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_proto::failure::RetryBackoff;
use netram_proto::port::IoError;
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::pending_connections::{
    Admission, PendingConnections, PendingLimits, PendingTimeout, ReportThrottle,
};
use netram_transport::{
    HandshakeProgress, Interest, Link, LinkError, ListenError, Listener, NetAddress, PendingHandshake,
    Poller, ReadyEvents, Security, Waker,
};

use super::Channel;
use crate::limit::{
    FIRST_FRAME_TIMEOUT, FLOOD_LOG_INTERVAL, HOUSEKEEPING_INTERVAL, PENDING_GRACE, PENDING_MAX_DEFAULT,
    SESSIONS_MAX_DEFAULT, STATUS_SESSIONS_MAX,
};

const WAKER_TOKEN: u64 = u64::MAX;
/// Listeners are named from here on, strangers from zero.
const LISTENER_TOKEN_MIN: u64 = 1 << 32;
const EVENTS: usize = 64;
/// Connections that are taken before others have their turn: whoever connects faster than that keeps nobody
/// waiting for ever.
const ACCEPTS_A_TURN: usize = 64;
/// How long nobody is let in after the system refused (no more file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Who the door lets in for.
pub trait SessionHandler: Send + Sync {
    /// Takes a session over. Must not wait: the thread that calls it lets strangers in.
    fn take(&self, arrival: AcceptedSession);
}

/// Somebody who has been greeted.
#[derive(Debug)]
pub struct AcceptedSession {
    /// What for.
    pub kind: SessionKind,
    /// The session. Long messages are not taken before [`Channel::let_in`].
    pub channel: Channel,
    /// Held as long as the session is. Whoever asks for the status has one of another kind, so that no node's
    /// place is taken.
    pub permit: SessionPermit,
}

/// What somebody comes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// A node, which has not said yet which.
    Node,
    /// It only wants to be told how the region stands.
    Status,
}

/// One of the door's places, until it is dropped.
#[derive(Clone, Debug, Default)]
pub struct SessionPermit {
    _counted: Arc<()>,
}

/// Where a door is, and how wide.
#[derive(Clone, Debug)]
pub struct AcceptorConfig {
    /// Where to listen.
    pub listen: Vec<NetAddress>,
    /// How links are protected.
    pub security: Security,
    /// Nodes' sessions and strangers in all; more are told that the server is busy.
    pub sessions_max: usize,
    /// Of these, strangers.
    pub pending_max: usize,
    /// How long a stranger may take to its first frame.
    pub first_frame_timeout: Duration,
    /// Whether there is a status to ask for.
    pub tells_status: bool,
}

impl AcceptorConfig {
    /// The usual door at these addresses.
    pub fn new(listen: Vec<NetAddress>, security: Security) -> AcceptorConfig {
        AcceptorConfig {
            listen,
            security,
            sessions_max: SESSIONS_MAX_DEFAULT,
            pending_max: PENDING_MAX_DEFAULT,
            first_frame_timeout: FIRST_FRAME_TIMEOUT,
            tells_status: false,
        }
    }
}

/// Why there is no door.
#[derive(Debug, thiserror::Error)]
pub enum AcceptorError {
    /// Nobody can be let in.
    #[error("no address to listen to is named")]
    Nowhere,
    /// An address cannot be had.
    #[error("{0}")]
    Bind(#[from] ListenError),
    /// The system has no descriptors or threads left.
    #[error("opening the server's door: {0}")]
    System(#[from] std::io::Error),
}

/// Lets nodes in until it is dropped. Sessions that were handed over stay.
#[derive(Debug)]
pub struct SessionAcceptor {
    addresses: Vec<NetAddress>,
    stop: Arc<Stop>,
    permits: Arc<SessionPermits>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    waker: Waker,
}

impl SessionAcceptor {
    /// Listens, and lets nodes in for `service`, in a thread of its own.
    pub fn open(
        config: AcceptorConfig,
        service: Arc<dyn SessionHandler>,
    ) -> Result<SessionAcceptor, AcceptorError> {
        let mut listeners = Vec::with_capacity(config.listen.len());
        for address in &config.listen {
            listeners.push(Listener::bind(address, config.security.clone())?);
        }
        if listeners.is_empty() {
            return Err(AcceptorError::Nowhere);
        }
        let addresses = listeners.iter().map(|one| one.address().clone()).collect();
        let stop = Arc::new(Stop {
            asked: AtomicBool::new(false),
            waker: Waker::new()?,
        });
        let poller = Poller::new()?;
        for (index, listener) in listeners.iter().enumerate() {
            poller.add(listener, LISTENER_TOKEN_MIN + index as u64, Interest::Read)?;
        }
        poller.add(&stop.waker, WAKER_TOKEN, Interest::Read)?;
        let places = Arc::new(SessionPermits::default());
        let now = Instant::now();
        let bounds = PendingLimits {
            admitted_max: config.pending_max,
            grace: PENDING_GRACE,
            patience: config.first_frame_timeout,
        };
        let keeper = AcceptorThread {
            config,
            service,
            poller,
            listeners,
            stop: Arc::clone(&stop),
            permits: Arc::clone(&places),
            pending: PendingConnections::new(bounds),
            flood: ReportThrottle::new(FLOOD_LOG_INTERVAL, now),
            refusals: RetryBackoff::new(),
            now,
        };
        let thread = std::thread::Builder::new()
            .name("netram-door".to_owned())
            .spawn(move || keeper.run())?;
        Ok(SessionAcceptor {
            addresses,
            stop,
            permits: places,
            thread: Some(thread),
        })
    }

    /// Where the door is: names resolved, and ports that the system chose.
    pub fn addresses(&self) -> &[NetAddress] {
        &self.addresses
    }

    /// Nodes' sessions and strangers now.
    pub fn occupied(&self) -> usize {
        self.permits.sessions.count()
    }
}

impl Drop for SessionAcceptor {
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
struct SessionPermits {
    /// Of nodes and strangers.
    sessions: SessionPermit,
    /// Of those who ask for the status.
    status: SessionPermit,
}

impl SessionPermit {
    /// Permits besides the door's own.
    fn count(&self) -> usize {
        Arc::strong_count(&self._counted).saturating_sub(1)
    }
}

/// A connection that has not said what it wants: see [`Strangers`].
struct PendingSession {
    stage: Stage,
    /// `None`: it is only here to be told that the server is busy.
    permit: Option<SessionPermit>,
}

enum Stage {
    Handshake(PendingHandshake),
    Greeting(Link),
}

impl AsFd for Stage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stage::Handshake(pending) => pending.as_fd(),
            Stage::Greeting(link) => link.as_fd(),
        }
    }
}

struct AcceptorThread {
    config: AcceptorConfig,
    service: Arc<dyn SessionHandler>,
    poller: Poller,
    listeners: Vec<Listener>,
    stop: Arc<Stop>,
    permits: Arc<SessionPermits>,
    pending: PendingConnections<PendingSession>,
    flood: ReportThrottle,
    /// What the system refused when a connection was to be accepted.
    refusals: RetryBackoff,
    now: Instant,
}

impl AcceptorThread {
    fn run(mut self) {
        let mut events = ReadyEvents::with_capacity(EVENTS);
        let mut housekeeping = self.now + HOUSEKEEPING_INTERVAL;
        while !self.stop.asked.load(Ordering::Acquire) {
            let timeout = housekeeping.saturating_duration_since(self.now);
            if let Err(error) = self.poller.wait(&mut events, Some(timeout)) {
                panic!("waiting for nodes failed: {error}");
            }
            self.now = Instant::now();
            for ready in events.iter() {
                match ready.token {
                    WAKER_TOKEN => (),
                    token if token >= LISTENER_TOKEN_MIN => {
                        self.accept((token - LISTENER_TOKEN_MIN) as usize)
                    }
                    token => self.advance(token as usize),
                }
            }
            if self.now >= housekeeping {
                housekeeping = self.now + HOUSEKEEPING_INTERVAL;
                self.housekeep();
            }
        }
    }

    fn accept(&mut self, listener: usize) {
        // The poller tells of the rest again.
        for _ in 0..ACCEPTS_A_TURN {
            match self.listeners[listener].accept(self.now) {
                Ok(Some(pending)) => {
                    self.refusals.succeeded();
                    self.add_pending(pending);
                }
                Ok(None) => return,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(IoError::EIO.errno);
                    if self.refusals.failed(IoError { errno }).should_log {
                        tracing::error!(%error, "no connection can be accepted; trying again");
                    }
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn add_pending(&mut self, mut pending: PendingHandshake) {
        let room = !matches!(self.pending.make_room(self.now), Admission::Full);
        let sessions = &self.permits.sessions;
        let permit = (room && sessions.count() < self.config.sessions_max).then(|| sessions.clone());
        if permit.is_none() {
            pending.refuse_busy();
        }
        let (deadline, admitted) = (pending.deadline(), permit.is_some());
        let stage = Stage::Handshake(pending);
        let stranger = PendingSession { stage, permit };
        let index = self.pending.insert(self.now, deadline, admitted, stranger);
        let Some(stranger) = self.pending.get_mut(index) else {
            unreachable!("it was placed a moment ago")
        };
        if let Err(error) = self.poller.add(&stranger.stage, index as u64, Interest::Read) {
            tracing::error!(%error, "a connection could not be waited for");
            self.pending.remove(index);
            return;
        }
        self.advance(index);
    }

    /// Goes on with one stranger as far as its bytes allow.
    fn advance(&mut self, index: usize) {
        // `None`: removed earlier in this round.
        let Some(stranger) = self.pending.get_mut(index) else {
            return;
        };
        if let Stage::Handshake(pending) = &mut stranger.stage {
            match pending.advance(self.now) {
                Ok(HandshakeProgress::NeedRead) => return,
                Ok(HandshakeProgress::Done(link)) => stranger.stage = Stage::Greeting(link),
                Err(error) => {
                    if let Some(count) = self.flood.count(self.now) {
                        tracing::warn!(peer = pending.peer(), count, "handshake failed: {error}");
                    }
                    self.pending.remove(index);
                    return;
                }
            }
            self.pending.on_handshake_done(index);
        }
        let Some(stranger) = self.pending.get_mut(index) else {
            return;
        };
        let Stage::Greeting(link) = &mut stranger.stage else {
            return;
        };
        let asking = &self.permits.status;
        let may_ask = match self.config.tells_status {
            false => Err(RefusalReason::RegionOnly),
            true if asking.count() >= STATUS_SESSIONS_MAX => Err(RefusalReason::NoRoom),
            true => Ok(SessionKind::Status),
        };
        match greet(link, may_ask) {
            Ok(GreetOutcome::Silent) => (),
            Ok(GreetOutcome::Welcome(errand)) => self.hand_over(index, errand),
            Ok(GreetOutcome::Refused) | Err(_) => {
                self.pending.remove(index);
            }
        }
    }

    fn hand_over(&mut self, index: usize, errand: SessionKind) {
        let Some(PendingSession {
            stage: Stage::Greeting(link),
            permit: Some(permit),
        }) = self.pending.remove(index)
        else {
            unreachable!("a stranger that was greeted has shaken hands, which takes a permit")
        };
        if let Err(error) = self.poller.remove(&link) {
            // Dropping it closes it. Whoever came finds that, and comes again.
            tracing::error!(%error, "a connection could not be handed over, and is closed");
            return;
        }
        let permit = match errand {
            SessionKind::Node => permit,
            SessionKind::Status => self.permits.status.clone(),
        };
        self.service.take(AcceptedSession {
            kind: errand,
            channel: Channel::new(link),
            permit,
        });
    }

    fn housekeep(&mut self) {
        for (index, overdue) in self.pending.overdue(self.now) {
            match overdue {
                // It says itself that it is too late.
                PendingTimeout::Handshake => self.advance(index),
                PendingTimeout::FirstRequest => drop(self.pending.remove(index)),
            }
        }
        if let Some(count) = self.flood.due(self.now) {
            tracing::warn!(count, "further handshakes failed");
        }
    }
}

/// What became of a stranger's first frame.
enum GreetOutcome {
    /// It has not come.
    Silent,
    /// It has been answered.
    Welcome(SessionKind),
    Refused,
}

/// Takes a stranger's first frame. `may_ask`: what becomes of one who asks for the status.
fn greet(link: &mut Link, may_ask: Result<SessionKind, RefusalReason>) -> Result<GreetOutcome, LinkError> {
    let Some(packet) = link.receive()? else {
        return Ok(GreetOutcome::Silent);
    };
    let kind = Frame::parse(packet).map(|frame| frame.header.kind);
    let errand = match kind {
        Ok(FrameKind::Share) => Ok(SessionKind::Node),
        Ok(FrameKind::Status) => may_ask,
        Ok(_) => Err(RefusalReason::RegionOnly),
        Err(_) => Err(RefusalReason::Malformed),
    };
    let refusal = match errand {
        Ok(errand) => {
            link.send(&[&FrameHeader::new(FrameKind::ShareAck).encode(0)])?;
            return Ok(GreetOutcome::Welcome(errand));
        }
        Err(refusal) => refusal,
    };
    let peer = link.peer();
    match refusal {
        RefusalReason::NoRoom => tracing::info!(peer, "too many ask for the status at once: one is refused"),
        _ => tracing::warn!(
            peer,
            ?kind,
            "connection refused: a shared region is served here, and nothing else"
        ),
    }
    let mut header = FrameHeader::new(FrameKind::Refuse);
    header.flags = refusal as u8;
    // It is told if it listens; it ends in any case.
    link.send(&[&header.encode(0)])?;
    Ok(GreetOutcome::Refused)
}
