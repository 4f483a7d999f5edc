//! Accepting connections: from `accept` to a client's first request, for all listeners, in one thread that
//! never waits for a single client.
//!
//! The [`ConnectionHandler`] knows what clients may ask for and who serves them. Connections that have asked
//! for nothing are bounded in number and time ([`PendingConnections`]).

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netram_proto::failure::RetryBackoff;
use netram_proto::port::IoError;

use crate::error::HandshakeError;
use crate::link::Link;
use crate::listen::{HandshakeProgress, Listener, PendingHandshake};
use crate::pending_connections::{
    Admission, PendingConnections, PendingLimits, PendingTimeout, ReportThrottle,
};
use crate::poll::{Interest, Poller, ReadyEvents, Waker};

const WAKER: u64 = u64::MAX;
/// Poller tokens of listeners begin here; those of pending connections begin at zero.
const LISTENERS: u64 = 1 << 32;
/// Pause in accepting after the system refused a connection (for example for want of file descriptors).
const PAUSE: Duration = Duration::from_millis(50);

/// Limits of an [`Acceptor`].
#[derive(Clone, Copy, Debug)]
pub struct AcceptorLimits {
    /// Limits on connections that have asked for nothing.
    pub pending: PendingLimits,
    /// Maximum number of ready connections handled per wait.
    pub events_max: usize,
    /// Maximum number of connections that one listener accepts in a row. The poller reports the others again.
    pub accepts_a_turn: usize,
    /// Interval at which timers are checked.
    pub housekeeping: Duration,
    /// Minimum time between log lines about failed handshakes.
    pub flood_log_interval: Duration,
}

/// Decisions that an [`Acceptor`] leaves to its owner.
pub trait ConnectionHandler {
    /// The right of a connection to be served, given back on drop.
    type Permit;
    /// State of a connection from its handshake to its request.
    type Greeting: Default;
    /// A client's request.
    type Request;

    /// Whether the acceptor must end. Wake it to make it look.
    fn is_stopping(&self) -> bool;

    /// Notes that the waker was woken. A handler that wakes the acceptor for other reasons than its end must
    /// drain the waker here. Then all resting connections are greeted again.
    fn on_woken(&mut self) {}

    /// Notes that the acceptor has gone round its loop, once in the interval of its housekeeping.
    fn on_housekeeping(&mut self) {}

    /// Whether there is a permit left. If not, new clients are told that the server is busy.
    fn has_permit(&self) -> bool;

    /// A permit for one more connection, whose handshake is done; `None` if there is none left.
    fn permit(&mut self) -> Option<Self::Permit>;

    /// Handles the frames of a connection of the listener with this index, as far as they have arrived.
    fn greet(
        &mut self,
        listener: usize,
        link: &mut Link,
        greeting: &mut Self::Greeting,
    ) -> GreetOutcome<Self::Request>;

    /// Takes over a connection. Must not block: its thread accepts all connections.
    fn take(&mut self, request: Self::Request, link: Link, greeting: Self::Greeting, permit: Self::Permit);

    /// Notes that a connection was closed because it asked for nothing in time.
    fn on_silent(&mut self) {}

    /// Notes that a handshake failed.
    fn on_handshake_failed(&mut self, _error: &HandshakeError) {}
}

/// Result of handling the frames of a pending connection.
#[derive(Debug)]
pub enum GreetOutcome<R> {
    /// The client has asked for nothing yet.
    Waits,
    /// The client was answered, and may ask again.
    Answered,
    /// The client's question is answered later: nothing is read from it until the acceptor is woken.
    Rests,
    /// The connection leaves this thread.
    Request(R),
    /// The link failed, or the client was refused.
    Gone,
}

/// Accepts connections for one [`ConnectionHandler`].
pub struct Acceptor<H: ConnectionHandler> {
    handler: H,
    poller: Poller,
    listeners: Vec<Listener>,
    limits: AcceptorLimits,
    pending: PendingConnections<UnboundConnection<H>>,
    flood: ReportThrottle,
    /// The back-off after the system refused to accept a connection.
    refusals: RetryBackoff,
    now: Instant,
}

/// A connection that has not said what it wants; see [`PendingConnections`].
struct UnboundConnection<H: ConnectionHandler> {
    stage: Stage<H::Greeting>,
    /// Index of the listener that accepted it.
    listener: usize,
    /// `None` until the handshake is done.
    permit: Option<H::Permit>,
    /// The events that the poller reports.
    interest: Interest,
}

enum Stage<G> {
    Handshaking(PendingHandshake),
    Greeting(Link, G),
}

impl<G> AsFd for Stage<G> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stage::Handshaking(pending) => pending.as_fd(),
            Stage::Greeting(link, _) => link.as_fd(),
        }
    }
}

impl<H: ConnectionHandler> Acceptor<H> {
    /// Polls the listeners, and the waker that the handler is stopped with.
    ///
    /// # Errors
    /// The system's, if it cannot poll them.
    pub fn new(
        handler: H,
        poller: Poller,
        listeners: Vec<Listener>,
        waker: &Waker,
        limits: AcceptorLimits,
    ) -> std::io::Result<Acceptor<H>> {
        for (index, listener) in listeners.iter().enumerate() {
            poller.add(listener, LISTENERS + index as u64, Interest::Read)?;
        }
        poller.add(waker, WAKER, Interest::Read)?;
        let now = Instant::now();
        Ok(Acceptor {
            handler,
            poller,
            listeners,
            limits,
            pending: PendingConnections::new(limits.pending),
            flood: ReportThrottle::new(limits.flood_log_interval, now),
            refusals: RetryBackoff::new(),
            now,
        })
    }

    /// Accepts connections until the handler is stopping.
    pub fn run(mut self) {
        let mut events = ReadyEvents::with_capacity(self.limits.events_max);
        let mut housekeeping = self.now + self.limits.housekeeping;
        while !self.handler.is_stopping() {
            let timeout = housekeeping.saturating_duration_since(self.now);
            if let Err(error) = self.poller.wait(&mut events, Some(timeout)) {
                panic!("waiting for connections failed: {error}");
            }
            self.now = Instant::now();
            for ready in events.iter() {
                match ready.token {
                    WAKER => self.wake(),
                    token if token >= LISTENERS => self.accept((token - LISTENERS) as usize),
                    token => self.advance(token as usize),
                }
            }
            if self.now >= housekeeping {
                housekeeping = self.now + self.limits.housekeeping;
                self.housekeep();
            }
        }
    }

    /// Greets the connections that rest.
    fn wake(&mut self) {
        self.handler.on_woken();
        let rests = |connection: &UnboundConnection<H>| connection.interest == Interest::Nothing;
        for index in self.pending.find(rests) {
            self.advance(index);
        }
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..self.limits.accepts_a_turn {
            match self.listeners[listener].accept(self.now) {
                Ok(Some(pending)) => {
                    self.refusals.succeeded();
                    self.admit(pending, listener);
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
            }
        }
    }

    fn admit(&mut self, mut pending: PendingHandshake, listener: usize) {
        if self.pending.evict_stranger().is_some() {
            self.handler.on_silent();
        }
        if !self.handler.has_permit() || self.pending.is_full(self.now) {
            pending.refuse_busy();
        }
        let deadline = pending.deadline();
        let connection = UnboundConnection {
            stage: Stage::Handshaking(pending),
            listener,
            permit: None,
            interest: Interest::Read,
        };
        let index = self.pending.insert(self.now, deadline, false, connection);
        let Some(connection) = self.pending.get_mut(index) else {
            unreachable!("it was inserted above")
        };
        if let Err(error) = self.poller.add(&connection.stage, index as u64, Interest::Read) {
            tracing::error!(%error, "cannot poll a new connection; it is closed");
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
                    connection.stage = Stage::Greeting(link, H::Greeting::default());
                }
                Err(error) => {
                    self.handler.on_handshake_failed(&error);
                    if let Some(count) = self.flood.count(self.now) {
                        tracing::warn!(peer = pending.peer(), count, "handshake failed: {error}");
                    }
                    self.pending.remove(index);
                    return;
                }
            }
            if !self.admit_client(index) {
                return;
            }
        }
        let Some(connection) = self.pending.get_mut(index) else {
            return;
        };
        let Stage::Greeting(link, greeting) = &mut connection.stage else {
            return;
        };
        let outcome = self.handler.greet(connection.listener, link, greeting);
        // A socket polled for what is not taken from it would keep the thread awake.
        let interest = match &outcome {
            GreetOutcome::Rests => Interest::Nothing,
            _ if !link.is_flushed() => Interest::Write,
            _ => Interest::Read,
        };
        match outcome {
            GreetOutcome::Waits => (),
            // Who has asked is not silent while it waits.
            GreetOutcome::Answered | GreetOutcome::Rests => self.pending.on_answered(self.now, index),
            GreetOutcome::Request(request) => return self.hand_over(index, request),
            GreetOutcome::Gone => {
                self.pending.remove(index);
                return;
            }
        }
        self.poll_for(index, interest);
    }

    /// Polls a connection for these events only.
    fn poll_for(&mut self, index: usize, interest: Interest) {
        let Some(connection) = self.pending.get_mut(index) else {
            return;
        };
        if connection.interest == interest {
            return;
        }
        connection.interest = interest;
        if let Err(error) = self.poller.modify(&connection.stage, index as u64, interest) {
            tracing::error!(%error, "cannot change what a new connection is polled for; it is closed");
            self.pending.remove(index);
        }
    }

    /// Gives a connection whose handshake is done its place. Without room it is closed, and its client
    /// retries.
    fn admit_client(&mut self, index: usize) -> bool {
        let permit = match self.pending.admit(self.now, index) {
            Admission::Full => None,
            Admission::Free => self.handler.permit(),
            Admission::Evicted(silent) => {
                drop(silent);
                self.handler.on_silent();
                self.handler.permit()
            }
        };
        let (Some(connection), Some(permit)) = (self.pending.get_mut(index), permit) else {
            self.pending.remove(index);
            return false;
        };
        connection.permit = Some(permit);
        true
    }

    /// Removes a connection that has said what it wants from this thread, and hands it over. If the system
    /// refuses, the connection is closed, and its client retries.
    fn hand_over(&mut self, index: usize, request: H::Request) {
        let Some(UnboundConnection {
            stage: Stage::Greeting(link, greeting),
            permit: Some(permit),
            ..
        }) = self.pending.remove(index)
        else {
            unreachable!("a greeted connection has completed its handshake, which takes a permit")
        };
        if let Err(error) = self.poller.remove(&link) {
            tracing::error!(%error, "cannot hand over a connection; it is closed");
            return;
        }
        self.handler.take(request, link, greeting, permit);
    }

    fn housekeep(&mut self) {
        for (index, overdue) in self.pending.overdue(self.now) {
            match overdue {
                // The call fails with the timeout.
                PendingTimeout::Handshake => self.advance(index),
                PendingTimeout::FirstRequest => {
                    self.handler.on_silent();
                    self.pending.remove(index);
                }
            }
        }
        let is_revoked = |connection: &UnboundConnection<H>| match &connection.stage {
            Stage::Greeting(link, _) => link.is_revoked(),
            Stage::Handshaking(_) => false,
        };
        for index in self.pending.find(is_revoked) {
            self.pending.remove(index);
        }
        if let Some(count) = self.flood.due(self.now) {
            tracing::warn!(count, "further handshakes failed");
        }
        self.handler.on_housekeeping();
    }
}
