//! Accepts connections for all listeners and takes each to its first frame, in one thread that never waits
//! for any client.
//!
//! A client that sends `Share`, or asks for the status where there is one, is greeted and handed to the
//! [`SessionHandler`]. Every other client is refused with a reason. Pending sessions are bounded in number
//! and time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use netram_clients::{ClientAccount, ClientRegistry, OverLimit, ResourceCharge};
use netram_proto::id::JournalId;
use netram_proto::owner::OwnerProof;
use netram_proto::wire::{ClientResource, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::pending_connections::PendingLimits;
use netram_transport::{
    Acceptor, AcceptorLimits, ConnectionHandler, GreetOutcome, Link, LinkError, ListenError, Listener,
    NetAddress, Poller, Security, Waker, check_proof,
};

use super::Channel;
use crate::limit::{
    FIRST_FRAME_TIMEOUT, FLOOD_LOG_INTERVAL, HOUSEKEEPING_INTERVAL, PENDING_GRACE, PENDING_MAX_DEFAULT,
    SESSIONS_MAX_DEFAULT, STATUS_SESSIONS_MAX, STRANGERS_MAX,
};

const EVENTS: usize = 64;
/// Number of connections accepted in a row, so that a flood of connections does not starve the others.
const ACCEPTS_A_TURN: usize = 64;

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
    /// Journal whose key the client has proven to hold.
    pub owned: Option<JournalId>,
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
    /// The cost of the session for its client.
    _client: Vec<Arc<ResourceCharge>>,
}

/// Configuration of an acceptor.
#[derive(Clone, Debug)]
pub struct AcceptorConfig {
    /// Addresses to listen on.
    pub listen: Vec<NetAddress>,
    /// Protection of the links. Named clients have keys of their own; then it counts for nothing.
    pub security: Security,
    /// Named clients; `None`: all clients are one, which may have everything.
    pub clients: Option<Arc<ClientRegistry>>,
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
            clients: None,
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
        let clients = config.clients.clone();
        let clients = clients.unwrap_or_else(|| Arc::new(ClientRegistry::of_one()));
        for address in &config.listen {
            let security = clients.listen_security(&config.security);
            listeners.push(Listener::bind(address, security)?);
        }
        if listeners.is_empty() {
            return Err(AcceptorError::Nowhere);
        }
        let addresses = listeners.iter().map(|one| one.address().clone()).collect();
        let stop = Arc::new(Stop {
            asked: AtomicBool::new(false),
            waker: Waker::new()?,
        });
        let places = Arc::new(SessionPermits::default());
        let limits = AcceptorLimits {
            pending: PendingLimits {
                strangers_max: STRANGERS_MAX,
                admitted_max: config.pending_max,
                grace: PENDING_GRACE,
                patience: config.first_frame_timeout,
            },
            events_max: EVENTS,
            accepts_a_turn: ACCEPTS_A_TURN,
            housekeeping: HOUSEKEEPING_INTERVAL,
            flood_log_interval: FLOOD_LOG_INTERVAL,
        };
        let greeter = SessionGreeter {
            config,
            clients,
            service,
            stop: Arc::clone(&stop),
            permits: Arc::clone(&places),
        };
        let acceptor = Acceptor::new(greeter, Poller::new()?, listeners, &stop.waker, limits)?;
        let thread = std::thread::Builder::new()
            .name("netram-accept".to_owned())
            .spawn(move || acceptor.run())?;
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

/// A client from its handshake to its request.
#[derive(Default)]
struct Greeting {
    /// The journal that the client has proven to own.
    owned: Option<JournalId>,
    /// The cost of its connection and its session.
    charges: Vec<Arc<ResourceCharge>>,
}

impl Greeting {
    /// Checks the client's right to a session, and counts a node's.
    fn may_have(&mut self, kind: SessionKind, account: &Arc<ClientAccount>) -> Result<(), OverLimit> {
        if kind == SessionKind::Status {
            return account.check(ClientResource::Status);
        }
        account.check(ClientResource::Shared)?;
        self.charges
            .push(Arc::new(account.take(ClientResource::Sessions, 1)?));
        Ok(())
    }
}

/// Greets clients and hands them to the service.
struct SessionGreeter {
    config: AcceptorConfig,
    clients: Arc<ClientRegistry>,
    service: Arc<dyn SessionHandler>,
    stop: Arc<Stop>,
    permits: Arc<SessionPermits>,
}

impl ConnectionHandler for SessionGreeter {
    type Permit = SessionPermit;
    type Greeting = Greeting;
    type Request = SessionKind;

    fn is_stopping(&self) -> bool {
        self.stop.asked.load(Ordering::Acquire)
    }

    fn has_permit(&self) -> bool {
        self.permits.sessions.count() < self.config.sessions_max
    }

    fn permit(&mut self) -> Option<SessionPermit> {
        let sessions = &self.permits.sessions;
        (sessions.count() < self.config.sessions_max).then(|| sessions.clone())
    }

    fn greet(
        &mut self,
        _listener: usize,
        link: &mut Link,
        greeting: &mut Greeting,
    ) -> GreetOutcome<SessionKind> {
        let account = self.clients.account(link.client());
        if greeting.charges.is_empty() {
            match account.take(ClientResource::Connections, 1) {
                Ok(charge) => greeting.charges.push(Arc::new(charge)),
                // A client reads the answer to its first frame.
                Err(over) => {
                    return match link.receive() {
                        Ok(None) => GreetOutcome::Waits,
                        Ok(Some(_)) => dismiss_over(link, &over),
                        Err(_) => GreetOutcome::Gone,
                    };
                }
            }
        }
        let asking = &self.permits.status;
        let may_ask = match self.config.tells_status {
            false => Err(RefusalReason::RegionOnly),
            true if asking.count() >= STATUS_SESSIONS_MAX => Err(RefusalReason::NoRoom),
            true => Ok(SessionKind::Status),
        };
        greet(link, &account, may_ask, greeting).unwrap_or(GreetOutcome::Gone)
    }

    fn take(&mut self, errand: SessionKind, link: Link, greeting: Greeting, permit: SessionPermit) {
        let mut permit = match errand {
            SessionKind::Node => permit,
            SessionKind::Status => self.permits.status.clone(),
        };
        permit._client = greeting.charges;
        self.service.take(AcceptedSession {
            kind: errand,
            owned: greeting.owned,
            channel: Channel::new(link),
            permit,
        });
    }
}

/// Handles a pending session's first frame, and the proof before it if there is one. `may_ask`: the answer to
/// a request for the status. The client pays for the session.
fn greet(
    link: &mut Link,
    account: &Arc<ClientAccount>,
    may_ask: Result<SessionKind, RefusalReason>,
    greeting: &mut Greeting,
) -> Result<GreetOutcome<SessionKind>, LinkError> {
    let kind = loop {
        let Some(packet) = link.receive()? else {
            return Ok(GreetOutcome::Waits);
        };
        let frame = Frame::parse(packet);
        match &frame {
            // A session takes one proof, so that it costs at most one check of a signature.
            Ok(frame) if frame.header.kind == FrameKind::Prove && greeting.owned.is_none() => {
                let proof = OwnerProof::parse(frame.body);
                let owner = proof.and_then(|proof| check_proof(link.session(), &proof));
                match owner {
                    Some(owner) => greeting.owned = Some(JournalId(owner.owned())),
                    None => break Ok(FrameKind::Prove),
                }
            }
            _ => break frame.map(|frame| frame.header.kind),
        }
    };
    let errand = match kind {
        Ok(FrameKind::Share) => Ok(SessionKind::Node),
        Ok(FrameKind::Prove) if greeting.owned.is_none() => Err(RefusalReason::NotOwner),
        Ok(FrameKind::Prove) => Err(RefusalReason::Malformed),
        Ok(FrameKind::Status) => may_ask,
        Ok(_) => Err(RefusalReason::RegionOnly),
        Err(_) => Err(RefusalReason::Malformed),
    };
    if let Ok(kind) = errand
        && let Err(over) = greeting.may_have(kind, account)
    {
        return Ok(dismiss_over(link, &over));
    }
    let refusal = match errand {
        Ok(errand) => {
            link.send(&[&FrameHeader::new(FrameKind::ShareAck).encode(0)])?;
            return Ok(GreetOutcome::Request(errand));
        }
        Err(refusal) => refusal,
    };
    let peer = link.peer();
    match refusal {
        RefusalReason::NoRoom => tracing::info!(
            peer,
            "too many clients ask for the status at once; one was refused"
        ),
        RefusalReason::NotOwner => tracing::warn!(
            peer,
            "connection refused: its proof that it owns a journal is wrong, or was made for another link"
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
    Ok(GreetOutcome::Gone)
}

/// Refuses a client that may not have what it asks for, and says what.
fn dismiss_over(link: &mut Link, over: &OverLimit) -> GreetOutcome<SessionKind> {
    tracing::warn!(peer = link.peer(), "client refused: {over}");
    let mut header = FrameHeader::new(FrameKind::Refuse);
    header.flags = RefusalReason::OverClientLimit as u8;
    header.lsn.0 = over.resource as u64;
    header.stable.0 = over.limit;
    // The client may not read it; the connection ends in any case.
    let _ = link.send(&[&header.encode(0)]);
    GreetOutcome::Gone
}
