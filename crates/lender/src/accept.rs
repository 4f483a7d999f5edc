//! The lender's side of accepting connections: what a client may ask for, and which thread serves it.
//!
//! A client that binds a journal is handed to the shard that owns it, and status requests are answered here.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use netram_proto::id::{DepositId, JournalId};
use netram_proto::session::{LenderSession, SessionAction, SessionError};
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::pending_connections::PendingLimits;
use netram_transport::{
    Acceptor, AcceptorLimits, ConnectionHandler, GreetOutcome, HandshakeError, Link, LinkError, Listener,
    OwnerId, Poller, SendProgress, check_proof,
};

use crate::data::{DataPermit, DataSession};
use crate::deposit::{DepositArrival, named};
use crate::limit::{FLOOD_LINE_EVERY, HOUSEKEEPING, PENDING_GRACE};
use crate::shard::SessionArrival;
use crate::state::{ConnectionPermit, DaemonState};

const EVENTS: usize = 256;

/// The kinds of session that a listener accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListenerKind {
    All,
    /// All but data sessions, which have a listener of their own.
    Members,
    Data,
    /// The operator's, who ends journals and asks for the status.
    Operator,
}

/// A client as far as it has introduced itself.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    pub(crate) session: LenderSession,
    /// The owner that the client has proven to be.
    pub(crate) owner: Option<OwnerId>,
}

/// A client's request for a session.
pub(crate) enum SessionRequest {
    Journal(JournalId),
    /// A volume's replica; holds the client's first frame.
    Data(Vec<u8>),
    /// A session of a deposit; holds its first frame's header.
    Deposit(FrameHeader, DepositId),
}

/// Greets clients and hands them to their threads.
pub(crate) struct LenderAcceptor {
    shared: Arc<DaemonState>,
    shards: Vec<Sender<SessionArrival>>,
    deposit_sender: Sender<DepositArrival>,
}

impl LenderAcceptor {
    pub(crate) fn open(
        shared: Arc<DaemonState>,
        poller: Poller,
        listeners: Vec<Listener>,
        shards: Vec<Sender<SessionArrival>>,
        deposit_sender: Sender<DepositArrival>,
    ) -> std::io::Result<Acceptor<LenderAcceptor>> {
        let limits = &shared.config.limits;
        let limits = AcceptorLimits {
            pending: PendingLimits {
                admitted_max: limits.pending_max,
                grace: PENDING_GRACE,
                patience: limits.first_frame_timeout,
            },
            events_max: EVENTS,
            accepts_a_turn: usize::MAX,
            housekeeping: HOUSEKEEPING,
            flood_log_interval: FLOOD_LINE_EVERY,
        };
        let handler = LenderAcceptor {
            shared: Arc::clone(&shared),
            shards,
            deposit_sender,
        };
        let waker = &shared.wakers[handler.shards.len() + 1];
        Acceptor::new(handler, poller, listeners, waker, limits)
    }

    /// Hands a connection to the service that keeps replicas of volumes.
    fn hand_to_data(&self, link: Link, permit: ConnectionPermit, first: Vec<u8>) {
        if let Some(data) = &self.shared.data {
            data.take(DataSession {
                link,
                first,
                permit: DataPermit { _permit: permit },
            });
        }
    }

    fn hand_to_shard(&self, arrival: SessionArrival) {
        let shard = self.shared.shard_of(arrival.journal);
        let sent = self.shards[shard].send(arrival);
        let woken = sent.is_ok().then(|| self.shared.wakers[shard].wake());
        if let Some(Err(error)) = woken {
            panic!("cannot wake a shard: {error}");
        }
        // A shard without a receiver is stopping; the connection ends with the arrival.
    }

    /// Hands a connection to the thread that keeps deposits.
    fn hand_to_deposits(&self, arrival: DepositArrival) {
        let sent = self.deposit_sender.send(arrival);
        let woken = sent.is_ok().then(|| self.shared.deposit_waker().wake());
        if let Some(Err(error)) = woken {
            panic!("cannot wake the deposit thread: {error}");
        }
    }
}

impl ConnectionHandler for LenderAcceptor {
    type Permit = ConnectionPermit;
    type Greeting = Greeting;
    type Request = SessionRequest;

    fn is_stopping(&self) -> bool {
        self.shared.stopping()
    }

    fn permit(&mut self) -> Option<ConnectionPermit> {
        self.shared.permit()
    }

    fn greet(
        &mut self,
        listener: usize,
        link: &mut Link,
        greeting: &mut Greeting,
    ) -> GreetOutcome<SessionRequest> {
        let ordinary = self.shared.addresses.len();
        let kind = match &self.shared.config.data_listener {
            _ if listener >= ordinary + self.shared.data_addresses.len() => ListenerKind::Operator,
            None => ListenerKind::All,
            Some(_) if listener < ordinary => ListenerKind::Members,
            Some(_) => ListenerKind::Data,
        };
        greet(&self.shared, kind, link, greeting)
    }

    fn take(&mut self, request: SessionRequest, link: Link, greeting: Greeting, permit: ConnectionPermit) {
        match request {
            SessionRequest::Journal(journal) => self.hand_to_shard(SessionArrival {
                link,
                greeting,
                journal,
                permit,
            }),
            SessionRequest::Data(first) => self.hand_to_data(link, permit, first),
            SessionRequest::Deposit(header, id) => self.hand_to_deposits(DepositArrival {
                link,
                header,
                id,
                permit,
            }),
        }
    }

    fn on_silent(&mut self) {
        self.shared.handshakes.silent();
    }

    fn on_handshake_failed(&mut self, error: &HandshakeError) {
        self.shared.handshakes.failed(error);
    }
}

/// Handles a client's first frames: any number of status requests, then one that starts a session.
fn greet(
    shared: &DaemonState,
    kind: ListenerKind,
    link: &mut Link,
    greeting: &mut Greeting,
) -> GreetOutcome<SessionRequest> {
    let mut outcome = GreetOutcome::Waits;
    if kind == ListenerKind::Operator {
        greeting.session.trust_operator();
    }
    // A peer that does not read its answers gets no further ones.
    while let Ok(true) = link.flush() {
        let action = match link.receive() {
            Ok(Some(packet)) => {
                let frame = Frame::parse(packet).ok();
                let judged = frame.map(|frame| greeting.session.handle(&frame));
                if let Some(Ok(SessionAction::Prove(proof))) = judged {
                    let Some(owner) = check_proof(link.session(), &proof) else {
                        return dismiss(shared, link, RefusalReason::NotOwner, BAD_PROOF);
                    };
                    greeting.session.prove(owner.owned());
                    greeting.owner = Some(owner);
                    continue;
                }
                if let Some(Err(SessionError::NotOwner)) = judged {
                    return dismiss(shared, link, RefusalReason::NotOwner, NOT_OWNER);
                }
                match judged.and_then(Result::ok) {
                    Some(SessionAction::Data) if shared.data.is_some() && kind != ListenerKind::Members => {
                        return GreetOutcome::Request(SessionRequest::Data(packet.to_vec()));
                    }
                    Some(SessionAction::Deposit)
                        if kind != ListenerKind::Data && shared.config.deposits_bytes() > 0 =>
                    {
                        match frame.as_ref().and_then(named) {
                            Some((header, id)) => {
                                return GreetOutcome::Request(SessionRequest::Deposit(header, id));
                            }
                            None => None,
                        }
                    }
                    action => action,
                }
            }
            Ok(None) => return outcome,
            Err(_) => return GreetOutcome::Gone,
        };
        match action {
            Some(SessionAction::Bind(journal, _)) if kind != ListenerKind::Data => {
                return GreetOutcome::Request(SessionRequest::Journal(journal));
            }
            Some(SessionAction::Status) if kind != ListenerKind::Data => match send_report(shared, link) {
                Ok(SendProgress::Whole | SendProgress::Queued) => outcome = GreetOutcome::Answered,
                Err(_) => return GreetOutcome::Gone,
            },
            refused => {
                let (reason, why) = refusal(kind, refused);
                return dismiss(shared, link, reason, why);
            }
        }
    }
    outcome
}

const BAD_PROOF: &str =
    "client dropped: its proof that it owns a journal is wrong, or was made for another link";
const NOT_OWNER: &str = "client refused: it asks for a journal and does not prove that it owns it (another client's \
                         journal, or a copy of one without its key)";

/// Refuses a client. The answer is best effort; the connection ends in any case.
fn dismiss(
    shared: &DaemonState,
    link: &mut Link,
    reason: RefusalReason,
    why: &str,
) -> GreetOutcome<SessionRequest> {
    tracing::warn!(peer = link.peer(), "{why}");
    let _ = link.send(&[&shared.refusal(reason).encode(0)]);
    GreetOutcome::Gone
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
        Some(SessionAction::Member(_) | SessionAction::Invite(_) | SessionAction::Prove(_)) | None => (
            RefusalReason::Malformed,
            "client dropped: its first frame is invalid",
        ),
    }
}
