//! The lender's side of accepting connections: what a client may ask for, and which thread serves it.
//!
//! A client that binds a journal is handed to the shard that owns it, and status requests are answered here.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use netram_clients::{ClientAccount, OverLimit, ResourceCharge};
use netram_proto::id::{DepositId, JournalId};
use netram_proto::session::{LenderSession, SessionAction, SessionError};
use netram_proto::wire::{ClientResource, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::pending_connections::PendingLimits;
use netram_transport::{
    Acceptor, AcceptorLimits, ConnectionHandler, GreetOutcome, HandshakeError, Link, Listener, OwnerId,
    Poller, check_proof,
};

use crate::data::{DataPermit, DataSession};
use crate::deposit::{DepositArrival, named};
use crate::limit::{ACCEPTS_PER_TURN, FLOOD_LINE_EVERY, HOUSEKEEPING, PENDING_GRACE, STRANGERS_MAX};
use crate::report_desk::ReportTicket;
use crate::shard::{SessionArrival, ShardMessage};
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

/// A client from its handshake to its request.
#[derive(Default)]
pub(crate) struct Greeting {
    pub(crate) session: LenderSession,
    /// The owner that the client has proven to be.
    pub(crate) owner: Option<OwnerId>,
    /// Its account, and its connection there.
    pub(crate) visit: Option<ClientVisit>,
    /// Its question for the status. Nothing more is read from it until it is answered.
    question: Option<ReportTicket>,
}

/// The cost of a connection for its client, given back on drop.
pub(crate) struct ClientVisit {
    pub(crate) account: Arc<ClientAccount>,
    _connection: ResourceCharge,
    session: Option<ResourceCharge>,
}

impl ClientVisit {
    /// Counts a connection for the client.
    pub(crate) fn begin(account: Arc<ClientAccount>) -> Result<ClientVisit, OverLimit> {
        Ok(ClientVisit {
            _connection: account.take(ClientResource::Connections, 1)?,
            session: None,
            account,
        })
    }
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
    shards: Vec<Sender<ShardMessage>>,
    deposit_sender: Sender<DepositArrival>,
}

impl LenderAcceptor {
    pub(crate) fn open(
        shared: Arc<DaemonState>,
        poller: Poller,
        listeners: Vec<Listener>,
        shards: Vec<Sender<ShardMessage>>,
        deposit_sender: Sender<DepositArrival>,
    ) -> std::io::Result<Acceptor<LenderAcceptor>> {
        let limits = &shared.config.limits;
        let limits = AcceptorLimits {
            pending: PendingLimits {
                strangers_max: STRANGERS_MAX,
                admitted_max: limits.pending_max,
                grace: PENDING_GRACE,
                patience: limits.first_frame_timeout,
            },
            events_max: EVENTS,
            accepts_a_turn: ACCEPTS_PER_TURN,
            housekeeping: HOUSEKEEPING,
            flood_log_interval: FLOOD_LINE_EVERY,
        };
        let handler = LenderAcceptor {
            shared: Arc::clone(&shared),
            shards,
            deposit_sender,
        };
        let waker = &shared.wakers[shared.acceptor_waker()];
        Acceptor::new(handler, poller, listeners, waker, limits)
    }

    /// Hands a connection to the service that keeps replicas of volumes.
    fn hand_to_data(&self, link: Link, greeting: Greeting, permit: ConnectionPermit, first: Vec<u8>) {
        if let Some(data) = &self.shared.data {
            data.take(DataSession {
                link,
                first,
                owned: greeting.owner.as_ref().map(|owner| JournalId(owner.owned())),
                permit: DataPermit {
                    account: greeting.visit.as_ref().map(|visit| Arc::clone(&visit.account)),
                    _visit: greeting.visit,
                    _permit: permit,
                },
            });
        }
    }

    fn hand_to_shard(&self, arrival: SessionArrival) {
        let shard = self.shared.shard_of(arrival.journal);
        let sent = self.shards[shard].send(ShardMessage::Arrival(Box::new(arrival)));
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

    fn on_woken(&mut self) {
        if let Err(error) = self.shared.wakers[self.shared.acceptor_waker()].drain() {
            panic!("the acceptor's waker failed: {error}");
        }
    }

    fn on_housekeeping(&mut self) {
        self.shared.pulses.answer(self.shared.acceptor_waker());
    }

    fn has_permit(&self) -> bool {
        self.shared.has_permit()
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
            SessionRequest::Data(first) => self.hand_to_data(link, greeting, permit, first),
            SessionRequest::Deposit(header, id) => self.hand_to_deposits(DepositArrival {
                link,
                visit: greeting.visit,
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

/// Handles a client's next frame: any number of status requests come first, then one that starts a session. A
/// client that has asked for the status gets a report once one is there, and only then may ask again.
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
    if let Err(over) = visit(shared, link, greeting) {
        // A client reads the answer to its first frame; one that came before it would be lost with the link.
        return match link.receive() {
            Ok(None) => GreetOutcome::Waits,
            Ok(Some(_)) => dismiss_over(shared, link, &over),
            Err(_) => GreetOutcome::Gone,
        };
    }
    if let Some(ticket) = greeting.question {
        let Some(bodies) = shared.desk.take(ticket) else {
            return GreetOutcome::Rests;
        };
        let report = match kind {
            ListenerKind::Operator => bodies.for_operator,
            _ => bodies.for_clients,
        };
        greeting.question = None;
        let mut header = FrameHeader::new(FrameKind::Report);
        header.sender = shared.incarnation().0;
        if link.send(&[&header.encode(report.len()), &report]).is_err() {
            return GreetOutcome::Gone;
        }
        outcome = GreetOutcome::Answered;
    }
    // A peer that does not read its answers gets no further ones.
    if !matches!(link.flush(), Ok(true)) {
        return outcome;
    }
    read_request(shared, kind, link, greeting).unwrap_or(outcome)
}

/// Reads and judges the next frame, and the proof before it if there is one; `None` if no frame has arrived.
fn read_request(
    shared: &DaemonState,
    kind: ListenerKind,
    link: &mut Link,
    greeting: &mut Greeting,
) -> Option<GreetOutcome<SessionRequest>> {
    let action = loop {
        let packet = match link.receive() {
            Ok(Some(packet)) => packet,
            Ok(None) => return None,
            Err(_) => return Some(GreetOutcome::Gone),
        };
        let frame = Frame::parse(packet).ok();
        break match frame.map(|frame| greeting.session.handle(&frame)) {
            // A session takes one proof; its request may have come with it.
            Some(Ok(SessionAction::Prove(proof))) => match check_proof(link.session(), &proof) {
                Some(owner) => {
                    greeting.session.prove(owner.owned());
                    greeting.owner = Some(owner);
                    continue;
                }
                None => return not_allowed(shared, link, BAD_PROOF),
            },
            Some(Err(SessionError::NotOwner)) => return not_allowed(shared, link, NOT_OWNER),
            Some(Err(SessionError::NotOperator)) => return not_allowed(shared, link, NOT_OPERATOR),
            // The report answers it, which is begun after the order was given.
            Some(Ok(order @ (SessionAction::Drain(_) | SessionAction::Offer(_)))) => {
                obey(shared, order);
                Some(SessionAction::Status)
            }
            Some(Ok(SessionAction::Data)) if shared.data.is_some() && kind != ListenerKind::Members => {
                if let Err(over) = may_have(Some(SessionAction::Data), greeting) {
                    return Some(dismiss_over(shared, link, &over));
                }
                return Some(GreetOutcome::Request(SessionRequest::Data(packet.to_vec())));
            }
            Some(Ok(SessionAction::Deposit))
                if kind != ListenerKind::Data && shared.config.deposits_bytes() > 0 =>
            {
                match frame.as_ref().and_then(named) {
                    Some((header, id)) => {
                        if let Err(over) = may_have(Some(SessionAction::Deposit), greeting) {
                            return Some(dismiss_over(shared, link, &over));
                        }
                        return Some(GreetOutcome::Request(SessionRequest::Deposit(header, id)));
                    }
                    None => None,
                }
            }
            judged => judged.and_then(Result::ok),
        };
    };
    if let Err(over) = may_have(action, greeting) {
        return Some(dismiss_over(shared, link, &over));
    }
    Some(match action {
        Some(SessionAction::Bind(journal, _)) if kind != ListenerKind::Data => {
            GreetOutcome::Request(SessionRequest::Journal(journal))
        }
        Some(SessionAction::Status) if kind != ListenerKind::Data => {
            greeting.question = Some(shared.desk.ask(shared.acceptor_waker()));
            GreetOutcome::Rests
        }
        refused => {
            let (reason, why) = refusal(kind, refused);
            dismiss(shared, link, reason, why)
        }
    })
}

/// Obeys the operator.
fn obey(shared: &DaemonState, order: SessionAction) {
    match order {
        SessionAction::Drain(drain) => {
            shared.power.leave_to_operator();
            shared.order_drain(drain);
        }
        SessionAction::Offer(bytes) => shared.order_offer(bytes),
        _ => (),
    }
}

const BAD_PROOF: &str =
    "client dropped: its proof that it owns a journal is wrong, or was made for another link";
const NOT_OWNER: &str = "client refused: it asks for a journal, or a volume's copy, and does not prove that it owns it (another \
                         client's, or a copied directory without its key)";

const NOT_OPERATOR: &str =
    "client refused: a lender is drained by its operator only, at the socket beside its store";

/// Counts the connection for its client, once.
fn visit(shared: &DaemonState, link: &Link, greeting: &mut Greeting) -> Result<(), OverLimit> {
    if greeting.visit.is_none() {
        let account = shared.clients.account(link.client());
        greeting.visit = Some(ClientVisit::begin(account)?);
    }
    Ok(())
}

/// Checks the client's right to what it asks for, and counts a session that begins.
fn may_have(action: Option<SessionAction>, greeting: &mut Greeting) -> Result<(), OverLimit> {
    let Some(visit) = &mut greeting.visit else {
        unreachable!("a client is greeted with an account")
    };
    let resource = match action {
        Some(SessionAction::Status) => return visit.account.check(ClientResource::Status),
        Some(SessionAction::Bind(..)) => ClientResource::Journals,
        Some(SessionAction::Data) => ClientResource::Data,
        Some(SessionAction::Deposit) => ClientResource::Pages,
        _ => return Ok(()),
    };
    visit.account.check(resource)?;
    if visit.session.is_none() {
        visit.session = Some(visit.account.take(ClientResource::Sessions, 1)?);
    }
    Ok(())
}

/// Refuses a client that may not have what it asks for, and says what.
fn dismiss_over(shared: &DaemonState, link: &mut Link, over: &OverLimit) -> GreetOutcome<SessionRequest> {
    tracing::warn!(peer = link.peer(), "client refused: {over}");
    let _ = link.send(&[&shared.over_limit(over).encode(0)]);
    GreetOutcome::Gone
}

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

/// Refuses a client that has not proven its right to what it asks for.
fn not_allowed(shared: &DaemonState, link: &mut Link, why: &str) -> Option<GreetOutcome<SessionRequest>> {
    Some(dismiss(shared, link, RefusalReason::NotOwner, why))
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
        Some(SessionAction::Drain(_) | SessionAction::Offer(_)) => {
            unreachable!("it was obeyed, and is answered as a question")
        }
        Some(SessionAction::Member(_) | SessionAction::Invite(_) | SessionAction::Prove(_)) | None => (
            RefusalReason::Malformed,
            "client dropped: its first frame is invalid",
        ),
    }
}
