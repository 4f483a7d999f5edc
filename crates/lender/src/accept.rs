//! Accepting connections: from `accept` to the first frame, for all listeners, in one thread that never waits
//! for a single client.
//!
//! A client that binds a journal is handed to the shard that owns it, and status requests are answered here.
//! Connections that bind nothing are bounded in number and time.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use netram_proto::failure::RetryBackoff;
use netram_proto::id::{DepositId, JournalId};
use netram_proto::port::IoError;
use netram_proto::session::{LenderSession, SessionAction};
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::pending_connections::{
    Admission, PendingConnections, PendingLimits, PendingTimeout, ReportThrottle,
};
use netram_transport::{
    HandshakeProgress, Interest, Link, LinkError, Listener, PendingHandshake, Poller, ReadyEvents,
    SendProgress,
};

use crate::data::{DataPermit, DataSession};
use crate::deposit::{DepositArrival, named};
use crate::limit::{FLOOD_LINE_EVERY, HOUSEKEEPING, PENDING_GRACE};
use crate::shard::SessionArrival;
use crate::state::{ConnectionPermit, DaemonState};

const WAKER: u64 = u64::MAX;
/// Poller tokens of listeners begin here; those of pending connections begin at zero.
const LISTENERS: u64 = 1 << 32;
const EVENTS: usize = 256;
/// Pause in accepting after the system refused a connection (for example for want of file descriptors).
const PAUSE: Duration = Duration::from_millis(50);

/// A connection that has not said what it wants; see [`PendingConnections`].
struct UnboundConnection {
    stage: Stage,
    kind: ListenerKind,
    /// `None` for a connection that is kept only to be told that the lender is busy.
    permit: Option<ConnectionPermit>,
}

/// The kinds of session that a listener accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListenerKind {
    All,
    /// All but data sessions, which have a listener of their own.
    Members,
    Data,
}

enum Stage {
    Handshaking(PendingHandshake),
    Greeting(Link, LenderSession),
}

impl AsFd for Stage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stage::Handshaking(pending) => pending.as_fd(),
            Stage::Greeting(link, _) => link.as_fd(),
        }
    }
}

/// The next step for a pending connection.
enum Outcome {
    Stays,
    Answered,
    Bound(JournalId),
    /// The client asks for a volume's replica; holds its first frame.
    Data(Vec<u8>),
    /// The client opens a session of a deposit; holds its first frame's header.
    Deposit(FrameHeader, DepositId),
    Gone,
}

pub(crate) struct Acceptor {
    shared: Arc<DaemonState>,
    poller: Poller,
    listeners: Vec<Listener>,
    shards: Vec<Sender<SessionArrival>>,
    deposit_sender: Sender<DepositArrival>,
    pending: PendingConnections<UnboundConnection>,
    flood: ReportThrottle,
    /// The back-off after the system refused to accept a connection.
    refusals: RetryBackoff,
    now: Instant,
}

impl Acceptor {
    pub(crate) fn new(
        shared: Arc<DaemonState>,
        poller: Poller,
        listeners: Vec<Listener>,
        shards: Vec<Sender<SessionArrival>>,
        deposit_sender: Sender<DepositArrival>,
    ) -> std::io::Result<Acceptor> {
        for (index, listener) in listeners.iter().enumerate() {
            poller.add(listener, LISTENERS + index as u64, Interest::Read)?;
        }
        poller.add(&shared.wakers[shards.len() + 1], WAKER, Interest::Read)?;
        let now = Instant::now();
        let limits = &shared.config.limits;
        let bounds = PendingLimits {
            admitted_max: limits.pending_max,
            grace: PENDING_GRACE,
            patience: limits.first_frame_timeout,
        };
        Ok(Acceptor {
            shared,
            poller,
            listeners,
            shards,
            deposit_sender,
            pending: PendingConnections::new(bounds),
            flood: ReportThrottle::new(FLOOD_LINE_EVERY, now),
            refusals: RetryBackoff::new(),
            now,
        })
    }

    /// Accepts connections until the lender stops.
    pub(crate) fn run(mut self) {
        let mut events = ReadyEvents::with_capacity(EVENTS);
        let mut housekeeping = self.now + HOUSEKEEPING;
        while !self.shared.stopping() {
            let timeout = housekeeping.saturating_duration_since(self.now);
            if let Err(error) = self.poller.wait(&mut events, Some(timeout)) {
                panic!("waiting for connections failed: {error}");
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
                self.housekeep();
            }
        }
    }

    fn accept(&mut self, listener: usize) {
        loop {
            let pending = match self.listeners[listener].accept(self.now) {
                Ok(Some(pending)) => {
                    self.refusals.succeeded();
                    pending
                }
                Ok(None) => return,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(IoError::EIO.errno);
                    if self.refusals.failed(IoError { errno }).should_log {
                        tracing::error!(%error, "cannot accept connections; retrying");
                    }
                    std::thread::sleep(PAUSE);
                    return;
                }
            };
            let kind = match &self.shared.config.data_listener {
                None => ListenerKind::All,
                Some(_) if listener < self.shared.addresses.len() => ListenerKind::Members,
                Some(_) => ListenerKind::Data,
            };
            self.admit(pending, kind);
        }
    }

    fn admit(&mut self, mut pending: PendingHandshake, kind: ListenerKind) {
        let permit = match self.pending.make_room(self.now) {
            Admission::Full => None,
            Admission::Free => self.shared.permit(),
            Admission::Evicted(silent) => {
                drop(silent);
                self.shared.handshakes.silent();
                self.shared.permit()
            }
        };
        if permit.is_none() {
            pending.refuse_busy();
        }
        let (deadline, admitted) = (pending.deadline(), permit.is_some());
        let stage = Stage::Handshaking(pending);
        let connection = UnboundConnection { stage, kind, permit };
        let index = self.pending.insert(self.now, deadline, admitted, connection);
        let Some(connection) = self.pending.get_mut(index) else {
            unreachable!("it was inserted above")
        };
        if let Err(error) = self.poller.add(&connection.stage, index as u64, Interest::Read) {
            tracing::error!(%error, "cannot poll a new connection");
            self.pending.remove(index);
            return;
        }
        self.advance(index);
    }

    /// Advances one pending connection as far as its bytes allow.
    fn advance(&mut self, index: usize) {
        // `None` if it was removed earlier in this round.
        let Some(connection) = self.pending.get_mut(index) else {
            return;
        };
        if let Stage::Handshaking(pending) = &mut connection.stage {
            match pending.advance(self.now) {
                Ok(HandshakeProgress::NeedRead) => return,
                Ok(HandshakeProgress::Done(link)) => {
                    connection.stage = Stage::Greeting(link, LenderSession::default())
                }
                Err(error) => {
                    self.shared.handshakes.failed(&error);
                    if let Some(count) = self.flood.count(self.now) {
                        tracing::warn!(peer = pending.peer(), count, "handshake failed: {error}");
                    }
                    self.pending.remove(index);
                    return;
                }
            }
            self.pending.on_handshake_done(index);
        }
        let Some(connection) = self.pending.get_mut(index) else {
            return;
        };
        let Stage::Greeting(link, session) = &mut connection.stage else {
            return;
        };
        match greet(&self.shared, connection.kind, link, session) {
            Outcome::Stays => (),
            Outcome::Answered => self.pending.on_answered(self.now, index),
            Outcome::Bound(journal) => self.hand_over(index, journal),
            Outcome::Data(first) => self.hand_to_data(index, first),
            Outcome::Deposit(header, id) => self.deposit(index, header, id),
            Outcome::Gone => {
                self.pending.remove(index);
            }
        }
    }

    /// Removes a connection that has said what it wants from this thread. `None` if the system refuses; the
    /// connection is then closed, and its client retries.
    fn let_go(&mut self, index: usize) -> Option<(Link, LenderSession, ConnectionPermit)> {
        let Some(UnboundConnection {
            stage: Stage::Greeting(link, session),
            permit: Some(permit),
            ..
        }) = self.pending.remove(index)
        else {
            unreachable!("a bound connection has completed its handshake, which takes a permit")
        };
        if let Err(error) = self.poller.remove(&link) {
            tracing::error!(%error, "cannot hand over a connection; it is closed");
            return None;
        }
        Some((link, session, permit))
    }

    /// Hands a connection to the service that keeps replicas of volumes.
    fn hand_to_data(&mut self, index: usize, first: Vec<u8>) {
        let Some((link, _, permit)) = self.let_go(index) else {
            return;
        };
        if let Some(data) = &self.shared.data {
            data.take(DataSession {
                link,
                first,
                permit: DataPermit { _permit: permit },
            });
        }
    }

    fn hand_over(&mut self, index: usize, journal: JournalId) {
        let Some((link, session, permit)) = self.let_go(index) else {
            return;
        };
        let shard = self.shared.shard_of(journal);
        let sent = self.shards[shard].send(SessionArrival {
            link,
            session,
            journal,
            permit,
        });
        let woken = sent.is_ok().then(|| self.shared.wakers[shard].wake());
        if let Some(Err(error)) = woken {
            panic!("cannot wake a shard: {error}");
        }
        // A shard without a receiver is stopping; the connection ends with the arrival.
    }

    /// Hands a connection to the thread that keeps deposits.
    fn deposit(&mut self, index: usize, header: FrameHeader, id: DepositId) {
        let Some((link, _, permit)) = self.let_go(index) else {
            return;
        };
        let sent = self.deposit_sender.send(DepositArrival {
            link,
            header,
            id,
            permit,
        });
        let woken = sent.is_ok().then(|| self.shared.deposit_waker().wake());
        if let Some(Err(error)) = woken {
            panic!("cannot wake the deposit thread: {error}");
        }
    }

    fn housekeep(&mut self) {
        for (index, overdue) in self.pending.overdue(self.now) {
            match overdue {
                // The call fails with the timeout.
                PendingTimeout::Handshake => self.advance(index),
                PendingTimeout::FirstRequest => {
                    self.shared.handshakes.silent();
                    self.pending.remove(index);
                }
            }
        }
        if let Some(count) = self.flood.due(self.now) {
            tracing::warn!(count, "further handshakes failed");
        }
    }
}

/// Handles a client's first frames: any number of status requests, then one that starts a session.
fn greet(shared: &DaemonState, kind: ListenerKind, link: &mut Link, session: &mut LenderSession) -> Outcome {
    let mut outcome = Outcome::Stays;
    // A peer that does not read its answers gets no further ones.
    while let Ok(true) = link.flush() {
        let action = match link.receive() {
            Ok(Some(packet)) => {
                let frame = Frame::parse(packet).ok();
                match frame.and_then(|frame| session.handle(&frame).ok()) {
                    Some(SessionAction::Data) if shared.data.is_some() && kind != ListenerKind::Members => {
                        return Outcome::Data(packet.to_vec());
                    }
                    Some(SessionAction::Deposit)
                        if kind != ListenerKind::Data && shared.config.deposits_bytes() > 0 =>
                    {
                        match frame.as_ref().and_then(named) {
                            Some((header, id)) => return Outcome::Deposit(header, id),
                            None => None,
                        }
                    }
                    action => action,
                }
            }
            Ok(None) => return outcome,
            Err(_) => return Outcome::Gone,
        };
        match action {
            Some(SessionAction::Bind(journal, _)) if kind != ListenerKind::Data => {
                return Outcome::Bound(journal);
            }
            Some(SessionAction::Status) if kind != ListenerKind::Data => match send_report(shared, link) {
                Ok(SendProgress::Whole | SendProgress::Queued) => outcome = Outcome::Answered,
                Err(_) => return Outcome::Gone,
            },
            refused => {
                let (reason, why) = refusal(kind, refused);
                tracing::warn!(peer = link.peer(), "{why}");
                // The answer is best effort; the connection ends in any case.
                let _ = link.send(&[&shared.refusal(reason).encode(0)]);
                return Outcome::Gone;
            }
        }
    }
    outcome
}

fn send_report(shared: &DaemonState, link: &mut Link) -> Result<SendProgress, LinkError> {
    let mut header = FrameHeader::new(FrameKind::Report);
    header.sender = shared.incarnation().0;
    let body = shared.report().to_frame_body();
    link.send(&[&header.encode(body.len()), &body])
}

/// The reason of a refusal for the client, and its log line. `None` is an invalid frame.
fn refusal(kind: ListenerKind, action: Option<SessionAction>) -> (RefusalReason, &'static str) {
    match action {
        Some(SessionAction::Bind(..) | SessionAction::Status | SessionAction::Deposit)
            if kind == ListenerKind::Data =>
        {
            (
                RefusalReason::DataOnly,
                "client refused: this address takes data sessions only; use an address of --listen",
            )
        }
        Some(SessionAction::Data) if kind == ListenerKind::Members => (
            RefusalReason::DataElsewhere,
            "client refused: data sessions use an address of --data-listen, and its key",
        ),
        Some(SessionAction::Data) => (
            RefusalReason::NoReplica,
            "client refused: this lender keeps no replicas of volumes",
        ),
        Some(SessionAction::Share) => (
            RefusalReason::NoRegion,
            "node refused: this is a lender, not the server of a shared region",
        ),
        Some(SessionAction::Deposit) => (
            RefusalReason::NoDeposit,
            "client refused: this lender takes no deposits",
        ),
        Some(SessionAction::Bind(..) | SessionAction::Status) => {
            unreachable!("this listener binds journals and answers status requests")
        }
        Some(SessionAction::Member(_) | SessionAction::Invite(_)) | None => (
            RefusalReason::Malformed,
            "client dropped: its first frame is invalid",
        ),
    }
}
