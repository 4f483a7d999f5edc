//! Accepts connections for all listeners and takes each to its first frame, in one thread that never waits
//! for any client.
//!
//! A client that sends `Share`, or asks for the status where there is one, is greeted and handed to the
//! [`SessionHandler`]. Every other client is refused with a reason. Pending sessions are bounded in number
//! and time.

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
/// Poller tokens of listeners start here, those of pending sessions at zero.
const LISTENER_TOKEN_MIN: u64 = 1 << 32;
const EVENTS: usize = 64;
/// Number of connections accepted in a row, so that a flood of connections does not starve the others.
const ACCEPTS_A_TURN: usize = 64;
/// Time without accepting after the system refused a connection, for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Receiver of accepted sessions.
pub trait SessionHandler: Send + Sync {
    /// Takes over a session. It must not block: its thread accepts all connections.
    fn take(&self, arrival: AcceptedSession);
}

/// A session that has been greeted.
#[derive(Debug)]
pub struct AcceptedSession {
    /// Purpose of the session.
    pub kind: SessionKind,
    /// The session's channel. It refuses long messages until [`Channel::allow_long_messages`].
    pub channel: Channel,
    /// Permit of the session, held as long as the session. Status sessions have permits of their own, so that
    /// they take none from nodes.
    pub permit: SessionPermit,
}

/// Purpose of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// A node, which has not sent its id yet.
    Node,
    /// A client that only asks for the region's status.
    Status,
}

/// One of the acceptor's permits, given back on drop.
#[derive(Clone, Debug, Default)]
pub struct SessionPermit {
    _counted: Arc<()>,
}

/// Configuration of an acceptor.
#[derive(Clone, Debug)]
pub struct AcceptorConfig {
    /// Addresses to listen on.
    pub listen: Vec<NetAddress>,
    /// Protection of the links.
    pub security: Security,
    /// Maximum number of nodes' sessions and pending ones together. Further clients are told that the server
    /// is busy.
    pub sessions_max: usize,
    /// Maximum number of pending sessions, which count among `sessions_max`.
    pub pending_max: usize,
    /// Time that a pending session has for its first frame.
    pub first_frame_timeout: Duration,
    /// Whether clients may ask for the status.
    pub tells_status: bool,
}

impl AcceptorConfig {
    /// Creates the default configuration with these addresses.
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

/// Failure to open an acceptor.
#[derive(Debug, thiserror::Error)]
pub enum AcceptorError {
    /// The configuration has no address.
    #[error("no address to listen on was given; name at least one")]
    Nowhere,
    /// An address cannot be listened on.
    #[error("{0}")]
    Bind(#[from] ListenError),
    /// The system has no file descriptors or threads left.
    #[error("cannot accept connections: {0}")]
    System(#[from] std::io::Error),
}

/// Accepts sessions until it is dropped. Accepted sessions live on.
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
    /// Listens, and accepts sessions for `service`, in a thread of its own.
    ///
    /// # Errors
    ///
    /// [`AcceptorError`] if there is no address, one cannot be listened on, or the system has no descriptors
    /// or threads left.
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

    /// Addresses that are listened on: names resolved, and ports that the system chose.
    pub fn addresses(&self) -> &[NetAddress] {
        &self.addresses
    }

    /// Number of nodes' sessions and pending ones.
    pub fn occupied(&self) -> usize {
        self.permits.sessions.count()
    }
}

impl Drop for SessionAcceptor {
    fn drop(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        // If waking fails, the thread sees the request at its next housekeeping.
        let _ = self.stop.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread has reported a panic itself.
            let _ = thread.join();
        }
    }
}

/// Prototypes of the permits, which are their clones.
#[derive(Debug, Default)]
struct SessionPermits {
    /// Permits of nodes and of pending sessions.
    sessions: SessionPermit,
    /// Permits of status sessions.
    status: SessionPermit,
}

impl SessionPermit {
    /// Number of permits besides the prototype.
    fn count(&self) -> usize {
        Arc::strong_count(&self._counted).saturating_sub(1)
    }
}

/// A connection that has not sent its purpose; see [`PendingConnections`].
struct PendingSession {
    stage: Stage,
    /// `None`: the client is only here to be told that the server is busy.
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
    /// Backoff after errors of accepting a connection.
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
        // The poller reports the remaining connections again.
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
                        tracing::error!(%error, "cannot accept connections; trying again");
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
            unreachable!("the session was inserted just now")
        };
        if let Err(error) = self.poller.add(&stranger.stage, index as u64, Interest::Read) {
            tracing::error!(%error, "cannot wait for a new connection; it is closed");
            self.pending.remove(index);
            return;
        }
        self.advance(index);
    }

    /// Advances one pending session as far as its bytes allow.
    fn advance(&mut self, index: usize) {
        // `None`: the session was removed earlier in this round.
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
            unreachable!("a greeted session has finished its handshake, which needs a permit")
        };
        if let Err(error) = self.poller.remove(&link) {
            // The drop closes the connection. The client notices and connects again.
            tracing::error!(%error, "cannot hand over a new connection; it is closed");
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
                // The handshake itself reports that its time is over.
                PendingTimeout::Handshake => self.advance(index),
                PendingTimeout::FirstRequest => drop(self.pending.remove(index)),
            }
        }
        if let Some(count) = self.flood.due(self.now) {
            tracing::warn!(count, "further handshakes failed");
        }
    }
}

/// Result of looking for a pending session's first frame.
enum GreetOutcome {
    /// The frame has not come.
    Silent,
    /// The client was greeted.
    Welcome(SessionKind),
    Refused,
}

/// Handles a pending session's first frame. `may_ask`: the answer to a request for the status.
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
        RefusalReason::NoRoom => tracing::info!(
            peer,
            "too many clients ask for the status at once; one was refused"
        ),
        _ => tracing::warn!(
            peer,
            ?kind,
            "connection refused: the client asked for something else than a shared region"
        ),
    }
    let mut header = FrameHeader::new(FrameKind::Refuse);
    header.flags = refusal as u8;
    // The client may not read it; the connection ends in any case.
    link.send(&[&header.encode(0)])?;
    Ok(GreetOutcome::Refused)
}
