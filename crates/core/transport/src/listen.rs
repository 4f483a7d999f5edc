//! The lender's side of the handshake: a listening socket, and a state machine for each pending connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::rand::SecureRandom;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::address::NetAddress;
use crate::cipher::Cipher;
use crate::error::{HandshakeError, ListenError};
use crate::key::ClusterKey;
use crate::key_ring::{ClientIdentity, KeyRing};
use crate::link::{Link, LinkSession};
use crate::listen_socket::{ListenScope, ListenSocket};
use crate::preamble::{
    self, MODE_NOISE, MODE_PLAIN, NONCE_BYTES, PREAMBLE_BYTES, Preamble, WIRE_VERSION, WIRE_VERSIONS,
    has_nonce, may_begin_preamble,
};
use crate::secure::{CONFIRMATION_BYTES, MESSAGE_BYTES, NoiseHandshake, Prologue};
use crate::security::ListenSecurity;

/// Time that a client may take to complete the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum connections in the handshake phase, per listener. Each holds a socket and at most a few KiB. A
/// further connection is closed at once, and its client retries.
pub const PENDING_MAX: usize = 1024;
/// Maximum surplus connections closed by one [`Listener::accept`], so that a flood does not hold up the
/// lender.
const REFUSALS_MAX: usize = 64;

/// A listening socket for links. Wait until it is readable, then call [`accept`](Self::accept) until it
/// returns `None`.
pub struct Listener {
    port: ListenSocket,
    security: Arc<ListenSecurity>,
    /// Every [`PendingHandshake`] holds a clone, so the reference count is the number of handshakes under
    /// way.
    pending: Arc<()>,
}

impl Listener {
    /// Listens at `address`. Without a key only local addresses are served, and only for this user. A Unix
    /// socket file left by a dead process is replaced.
    ///
    /// # Errors
    /// `InsecureRefused` without a key for an address that other machines can reach, `InUse`, or `Failed`.
    pub fn bind(address: &NetAddress, security: impl Into<ListenSecurity>) -> Result<Listener, ListenError> {
        let security = security.into();
        let secure = !matches!(security, ListenSecurity::Insecure);
        let reach = ListenScope {
            other_machines: secure,
            other_users: secure,
        };
        Ok(Listener {
            port: ListenSocket::bind(address, reach)?,
            security: Arc::new(security),
            pending: Arc::new(()),
        })
    }

    /// The bound address, with names resolved and with the port that the system chose if zero was requested.
    pub fn address(&self) -> &NetAddress {
        self.port.address()
    }

    /// Number of connections in the handshake phase.
    pub fn pending_count(&self) -> usize {
        Arc::strong_count(&self.pending) - 1
    }

    /// Accepts the next connection; `None` if none waits.
    ///
    /// # Errors
    /// This process lacks a resource such as file descriptors. The condition passes; wait before the next
    /// call.
    pub fn accept(&self, now: Instant) -> io::Result<Option<PendingHandshake>> {
        for _ in 0..REFUSALS_MAX {
            let Some((socket, peer)) = self.port.accept()? else {
                return Ok(None);
            };
            if self.pending_count() >= PENDING_MAX {
                continue;
            }
            let security = Arc::clone(&self.security);
            let deadline = now + HANDSHAKE_TIMEOUT;
            return Ok(Some(PendingHandshake::new(
                socket,
                peer,
                security,
                deadline,
                Arc::clone(&self.pending),
            )));
        }
        Ok(None)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Listener")
            .field("address", self.address())
            .finish_non_exhaustive()
    }
}

/// A connection in its handshake. Call [`advance`](Self::advance) when it is readable and when its
/// [`deadline`](Self::deadline) has passed; drop it on error.
///
/// Methods never block. Until the client has proven the key it costs its socket, this value and one boxed
/// Noise state. It is never sent more bytes than it has sent. An epoll registration of the socket stays
/// valid, since the [`Link`] owns the same file descriptor.
pub struct PendingHandshake {
    /// `None` once the link owns it.
    socket: Option<OwnedFd>,
    peer: String,
    security: Arc<ListenSecurity>,
    deadline: Instant,
    busy: bool,
    step: AwaitedMessage,
    buffer: [u8; MESSAGE_BYTES],
    filled: usize,
    _counted: Arc<()>,
}

/// The message that the client must send next.
enum AwaitedMessage {
    Preamble,
    /// Noise message 1, for a session of this wire version. A client that does not say which key it has may
    /// have one of several.
    Message(Vec<KeyAttempt>, u16),
    Confirmation(Cipher, LinkSession, Option<Arc<ClientIdentity>>),
    /// None: the handshake has succeeded or failed.
    Over,
}

/// A key that the client may have, and whose it is.
type KeyCandidate = (ClusterKey, Option<Arc<ClientIdentity>>);
/// A handshake with one of the keys that the client may have.
type KeyAttempt = (NoiseHandshake, Option<Arc<ClientIdentity>>);

/// Progress of a handshake.
#[derive(Debug)]
pub enum HandshakeProgress {
    /// More bytes of the client are needed.
    NeedRead,
    /// The handshake is complete.
    Done(Link),
}

impl PendingHandshake {
    /// Takes a connection that was just accepted. `counted` is held for as long as the handshake lasts.
    pub(crate) fn new(
        socket: OwnedFd,
        peer: String,
        security: Arc<ListenSecurity>,
        deadline: Instant,
        counted: Arc<()>,
    ) -> PendingHandshake {
        PendingHandshake {
            socket: Some(socket),
            peer,
            security,
            deadline,
            busy: false,
            step: AwaitedMessage::Preamble,
            buffer: [0; MESSAGE_BYTES],
            filled: 0,
            _counted: counted,
        }
    }

    /// When the handshake fails with [`HandshakeError::TimedOut`].
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The client's address, for people to read.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Refuses the client as soon as its preamble has arrived: it is told that the lender is busy, and
    /// `advance` returns [`HandshakeError::Busy`].
    pub fn refuse_busy(&mut self) {
        self.busy = true;
    }

    /// Continues the handshake with the bytes that have arrived. Must not be called again after `Done` or an
    /// error.
    ///
    /// # Errors
    /// One [`HandshakeError`] a cause; drop the connection.
    pub fn advance(&mut self, now: Instant) -> Result<HandshakeProgress, HandshakeError> {
        loop {
            let wanted = match self.step {
                AwaitedMessage::Preamble => PREAMBLE_BYTES,
                AwaitedMessage::Message(..) => MESSAGE_BYTES,
                AwaitedMessage::Confirmation(..) => CONFIRMATION_BYTES,
                AwaitedMessage::Over => panic!("advanced a handshake that has ended"),
            };
            if !self.fill(wanted)? {
                return if self.deadline <= now {
                    Err(HandshakeError::TimedOut)
                } else {
                    Ok(HandshakeProgress::NeedRead)
                };
            }
            let done = match std::mem::replace(&mut self.step, AwaitedMessage::Over) {
                AwaitedMessage::Preamble => self.on_preamble()?,
                AwaitedMessage::Message(attempts, version) => self.on_message(attempts, version)?,
                AwaitedMessage::Confirmation(cipher, agreed, client) => {
                    Some(self.on_confirmation(cipher, agreed, client)?)
                }
                AwaitedMessage::Over => unreachable!("returned above"),
            };
            if let Some(link) = done {
                return Ok(HandshakeProgress::Done(link));
            }
        }
    }

    fn on_preamble(&mut self) -> Result<Option<Link>, HandshakeError> {
        let client = *self
            .buffer
            .first_chunk::<PREAMBLE_BYTES>()
            .unwrap_or(&[0; PREAMBLE_BYTES]);
        let hello = Preamble::decode(&client).ok_or(HandshakeError::NotNetram)?;
        let mode = match *self.security {
            ListenSecurity::Key(_) | ListenSecurity::Clients(_) => MODE_NOISE,
            ListenSecurity::Insecure => MODE_PLAIN,
        };
        let Some(version) = WIRE_VERSIONS.common(hello.versions) else {
            self.reply(WIRE_VERSION, mode, preamble::STATUS_WRONG_VERSION)?;
            return Err(HandshakeError::WrongVersion {
                ours: WIRE_VERSIONS,
                theirs: hello.versions,
            });
        };
        let refusal = match (mode, hello.mode) {
            (_, other) if other > MODE_NOISE => return Err(HandshakeError::NotNetram),
            (MODE_NOISE, MODE_PLAIN) => {
                Some((preamble::STATUS_SECURE_REQUIRED, HandshakeError::SecureRequired))
            }
            (MODE_PLAIN, MODE_NOISE) => Some((
                preamble::STATUS_INSECURE_REQUIRED,
                HandshakeError::InsecureRequired,
            )),
            _ if self.busy => Some((preamble::STATUS_BUSY, HandshakeError::Busy)),
            _ => None,
        };
        if let Some((status, error)) = refusal {
            self.reply(version, mode, status)?;
            return Err(error);
        }
        let keys = match &*self.security {
            ListenSecurity::Insecure => Vec::new(),
            ListenSecurity::Key(key) => vec![(key.clone(), None)],
            ListenSecurity::Clients(ring) => self.candidates(ring, hello.key_id)?,
        };
        let nonce = match has_nonce(version) {
            true => Some(random_nonce().map_err(HandshakeError::Failed)?),
            false => None,
        };
        let lender = Preamble::ours(version, mode, preamble::STATUS_OK).encode();
        let answer: Vec<u8> = lender.iter().chain(nonce.iter().flatten()).copied().collect();
        self.send(&answer)?;
        let prologue = Prologue {
            client,
            lender,
            nonce,
        };
        if mode == MODE_PLAIN {
            let id = prologue.session();
            let link = self.become_link(Cipher::Plain, LinkSession::at_lender(version, id), None);
            return link.map(Some);
        }
        let attempts: io::Result<Vec<KeyAttempt>> = keys
            .into_iter()
            .map(|(key, client)| Ok((NoiseHandshake::responder(&key, &prologue)?, client)))
            .collect();
        self.step = AwaitedMessage::Message(attempts.map_err(HandshakeError::Failed)?, version);
        Ok(None)
    }

    /// The keys that the client may have. A client whose key is not on the list is refused at once.
    fn candidates(&self, ring: &KeyRing, id: u16) -> Result<Vec<KeyCandidate>, HandshakeError> {
        let found = ring.candidates(id);
        if found.is_empty() {
            self.reply(WIRE_VERSION, MODE_NOISE, preamble::STATUS_WRONG_KEY)?;
            return Err(HandshakeError::WrongKey);
        }
        let named = |(key, client)| (key, Some(client));
        Ok(found.into_iter().map(named).collect())
    }

    fn on_message(
        &mut self,
        attempts: Vec<KeyAttempt>,
        version: u16,
    ) -> Result<Option<Link>, HandshakeError> {
        let message = &self.buffer;
        let proven = attempts
            .into_iter()
            .find_map(|(mut noise, client)| noise.read(message).is_ok().then_some((noise, client)));
        let Some((mut noise, client)) = proven else {
            self.reply(WIRE_VERSION, MODE_NOISE, preamble::STATUS_WRONG_KEY)?;
            return Err(HandshakeError::WrongKey);
        };
        let answer = noise.write().map_err(HandshakeError::Failed)?;
        self.send(&answer)?;
        let (cipher, id) = noise.finish();
        self.step = AwaitedMessage::Confirmation(cipher, LinkSession::at_lender(version, id), client);
        Ok(None)
    }

    fn on_confirmation(
        &mut self,
        mut cipher: Cipher,
        agreed: LinkSession,
        client: Option<Arc<ClientIdentity>>,
    ) -> Result<Link, HandshakeError> {
        if let Cipher::Noise(ways) = &mut cipher {
            let sealed = &mut self.buffer[..CONFIRMATION_BYTES];
            ways.open(sealed).map_err(|_| HandshakeError::WrongKey)?;
        }
        self.become_link(cipher, agreed, client)
    }

    fn become_link(
        &mut self,
        cipher: Cipher,
        agreed: LinkSession,
        client: Option<Arc<ClientIdentity>>,
    ) -> Result<Link, HandshakeError> {
        let socket = self.socket.take().ok_or(HandshakeError::CutOff)?;
        let mut peer = std::mem::take(&mut self.peer);
        if let Some(client) = &client {
            // Every line of the log that names the peer says who it is.
            peer = format!("{} at {peer}", client.name());
        }
        Ok(Link::new(socket, peer, cipher, agreed, client))
    }

    /// Reads until `wanted` bytes are buffered, and never more, since later bytes belong to the link. Returns
    /// whether they are; if so, the next step begins with an empty buffer.
    fn fill(&mut self, wanted: usize) -> Result<bool, HandshakeError> {
        let socket = self.socket.as_ref().ok_or(HandshakeError::CutOff)?;
        while self.filled < wanted {
            match recv(socket, &mut self.buffer[self.filled..wanted], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(HandshakeError::CutOff),
                Ok((_, received)) => self.filled += received,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => (),
                Err(errno) => return Err(cut_off_or_failed(errno)),
            }
            let greeting = matches!(self.step, AwaitedMessage::Preamble);
            if greeting && !may_begin_preamble(&self.buffer[..self.filled]) {
                return Err(HandshakeError::NotNetram);
            }
        }
        self.filled = 0;
        Ok(true)
    }

    fn reply(&self, version: u16, mode: u8, status: u8) -> Result<(), HandshakeError> {
        self.send(&Preamble::ours(version, mode, status).encode())
    }

    /// Sends a message. A fresh socket's buffer holds these few bytes; one that does not is treated as
    /// failed.
    fn send(&self, bytes: &[u8]) -> Result<(), HandshakeError> {
        let socket = self.socket.as_ref().ok_or(HandshakeError::CutOff)?;
        match send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Err(HandshakeError::CutOff),
            Err(errno) => Err(cut_off_or_failed(errno)),
        }
    }
}

/// Draws the nonce that follows a lender's preamble.
fn random_nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    let drawn = ring::rand::SystemRandom::new().fill(&mut nonce);
    drawn.map_err(|_| io::Error::other("the system gives no random bytes"))?;
    Ok(nonce)
}

fn cut_off_or_failed(errno: Errno) -> HandshakeError {
    match errno {
        Errno::PIPE | Errno::CONNRESET => HandshakeError::CutOff,
        other => HandshakeError::Failed(other.into()),
    }
}

impl AsFd for PendingHandshake {
    /// # Panics
    /// If the handshake is complete, since the link then owns the socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Some(socket) => socket.as_fd(),
            None => panic!("the handshake is complete; the link owns the socket"),
        }
    }
}

impl std::fmt::Debug for PendingHandshake {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pending")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
