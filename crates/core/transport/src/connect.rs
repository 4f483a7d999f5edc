//! The client's side of the handshake. It blocks, with a deadline. Opening a journal and the thread that
//! reconnects lenders use it; a commit never does.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::address::NetAddress;
use crate::cipher::Cipher;
use crate::error::ConnectError;
use crate::key::ClusterKey;
use crate::key_ring::KeyId;
use crate::link::{Link, LinkSession};
use crate::preamble::{
    self, MODE_NOISE, MODE_PLAIN, NONCE_BYTES, PREAMBLE_BYTES, Preamble, WIRE_VERSIONS, has_nonce,
};
use crate::secure::{CONFIRMATION_BYTES, MESSAGE_BYTES, NoiseHandshake, Prologue};
use crate::security::Security;
use crate::tcp::TcpConnectError;
use crate::{tcp, unix};

/// Connects to a lender and completes the handshake within `timeout`, including the name lookup.
///
/// # Errors
/// One [`ConnectError`] a cause. Retry later after `NameNotFound`, `NameUnanswered`, `Unreachable`,
/// `TimedOut`, `Busy` and `CutOff`; the others need a changed configuration.
pub fn connect(address: &NetAddress, security: &Security, timeout: Duration) -> Result<Link, ConnectError> {
    let deadline = Instant::now() + timeout;
    if matches!(security, Security::Insecure) && !address.is_local() {
        return Err(ConnectError::InsecureRefused {
            address: address.clone(),
        });
    }
    let reached = reach(address, security, deadline)?;
    greet(address, security, reached, deadline)
}

/// Connects to a Unix socket like [`connect`], without encryption. Another process than one of `user` is sent
/// nothing.
///
/// # Errors
/// Those of [`connect`]; `Unreachable` with `PermissionDenied` if another user's process answers.
pub fn connect_to_user(address: &NetAddress, user: u32, timeout: Duration) -> Result<Link, ConnectError> {
    let deadline = Instant::now() + timeout;
    let reached = reach(address, &Security::Insecure, deadline)?;
    let answers = rustix::net::sockopt::socket_peercred(&reached.0).map(|peer| peer.uid.as_raw());
    let source = match answers {
        Ok(answers) if answers == user => return greet(address, &Security::Insecure, reached, deadline),
        Ok(answers) => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it belongs to user {user}, and a process of user {answers} answers at it"),
        ),
        Err(errno) => errno.into(),
    };
    Err(ConnectError::Unreachable {
        address: address.clone(),
        source,
    })
}

/// Completes the handshake over a socket that is connected.
fn greet(
    address: &NetAddress,
    security: &Security,
    (socket, at): (OwnedFd, Option<SocketAddr>),
    deadline: Instant,
) -> Result<Link, ConnectError> {
    let peer = at.map_or_else(|| address.to_string(), |at| format!("tcp://{at}"));
    let wire = HandshakeSocket {
        socket,
        deadline,
        address,
    };
    let (cipher, agreed) = match security {
        Security::Insecure => {
            let asked = Instant::now();
            let (prologue, version) = exchange_preambles(&wire, MODE_PLAIN, None)?;
            let agreed = LinkSession {
                version,
                id: prologue.session(),
                round_trip: asked.elapsed(),
            };
            (Cipher::Plain, agreed)
        }
        Security::Key(key) => noise_handshake(&wire, key)?,
    };
    if let (NetAddress::Tcp { host, .. }, Some(at)) = (address, at) {
        tcp::remember(host, at);
    }
    Ok(Link::new(wire.socket, peer, cipher, agreed, None))
}

/// Connects a socket; also returns the TCP address it leads to, if there is one.
fn reach(
    address: &NetAddress,
    security: &Security,
    deadline: Instant,
) -> Result<(OwnedFd, Option<SocketAddr>), ConnectError> {
    let unreachable = |source: io::Error| match source.kind() {
        io::ErrorKind::TimedOut => ConnectError::TimedOut,
        _ => ConnectError::Unreachable {
            address: address.clone(),
            source,
        },
    };
    let (host, port) = match address {
        NetAddress::Tcp { host, port } => (host, *port),
        NetAddress::Unix(path) => {
            let socket = unix::connect(path, deadline).map_err(unreachable)?;
            return Ok((socket, None));
        }
    };
    let local_only = matches!(security, Security::Insecure);
    let name = || host.to_string();
    let reached = tcp::connect(host, port, local_only, deadline);
    let (socket, at) = reached.map_err(|error| match error {
        TcpConnectError::Refused => ConnectError::InsecureRefused {
            address: address.clone(),
        },
        TcpConnectError::NameNotFound(source) => ConnectError::NameNotFound { name: name(), source },
        TcpConnectError::NameUnanswered => ConnectError::NameUnanswered { name: name() },
        TcpConnectError::Failed(source) => unreachable(source),
    })?;
    Ok((socket, Some(at)))
}

/// Exchanges preambles. Returns them and the wire version. A refusal by the lender is an error.
fn exchange_preambles(
    wire: &HandshakeSocket<'_>,
    mode: u8,
    key: Option<KeyId>,
) -> Result<(Prologue, u16), ConnectError> {
    let client = Preamble::of_client(mode, key).encode();
    wire.send(&client)?;
    let mut lender = [0; PREAMBLE_BYTES];
    wire.receive(&mut lender)?;
    let reply = Preamble::decode(&lender).ok_or(ConnectError::NotNetram)?;
    judge(reply, mode)?;
    let mut nonce = None;
    if has_nonce(reply.version) {
        wire.receive(nonce.insert([0; NONCE_BYTES]))?;
    }
    Ok((
        Prologue {
            client,
            lender,
            nonce,
        },
        reply.version,
    ))
}

/// Whether the lender's preamble accepts ours.
fn judge(reply: Preamble, mode: u8) -> Result<(), ConnectError> {
    let agreed = reply.status != preamble::STATUS_WRONG_VERSION && WIRE_VERSIONS.contains(reply.version);
    if !agreed || WIRE_VERSIONS.common(reply.versions).is_none() {
        return Err(ConnectError::WrongVersion {
            ours: WIRE_VERSIONS,
            theirs: reply.versions,
        });
    }
    match (reply.status, mode, reply.mode) {
        (preamble::STATUS_BUSY, _, _) => Err(ConnectError::Busy),
        (preamble::STATUS_WRONG_KEY, MODE_NOISE, _) => Err(ConnectError::WrongKey),
        (preamble::STATUS_SECURE_REQUIRED, MODE_PLAIN, _) => Err(ConnectError::SecureRequired),
        (preamble::STATUS_INSECURE_REQUIRED, MODE_NOISE, _) => Err(ConnectError::InsecureRequired),
        (preamble::STATUS_OK, ours, theirs) if ours == theirs => Ok(()),
        // A client with a key never continues in the clear, whether the lender or a man in the middle offers
        // it.
        (preamble::STATUS_OK, MODE_NOISE, MODE_PLAIN) => Err(ConnectError::InsecureRequired),
        (preamble::STATUS_OK, MODE_PLAIN, MODE_NOISE) => Err(ConnectError::SecureRequired),
        _ => Err(ConnectError::NotNetram),
    }
}

/// The whole secure handshake, to the confirmation.
fn noise_handshake(
    wire: &HandshakeSocket<'_>,
    key: &ClusterKey,
) -> Result<(Cipher, LinkSession), ConnectError> {
    let local = |source| ConnectError::Unreachable {
        address: wire.address.clone(),
        source,
    };
    let asked = Instant::now();
    let (prologue, version) = exchange_preambles(wire, MODE_NOISE, Some(KeyId::of(key)))?;
    let preambles = asked.elapsed();
    let mut noise = NoiseHandshake::initiator(key, &prologue).map_err(local)?;
    let message = noise.write().map_err(local)?;
    let asked = Instant::now();
    wire.send(&message)?;

    let mut message = [0; MESSAGE_BYTES];
    let (first, rest) = message.split_at_mut(PREAMBLE_BYTES);
    wire.receive(first)?;
    // A refusal has the form of a preamble. A fresh public key begins with the same six bytes with
    // probability 2^-48.
    let refusal = first.first_chunk().and_then(Preamble::decode);
    if let Some(refusal) = refusal.filter(|refusal| refusal.status != preamble::STATUS_OK) {
        judge(refusal, MODE_NOISE)?;
    }
    wire.receive(rest)?;
    // The lender does key agreement before this answer, and may be late to see a new connection before the
    // first one: the quicker of the two is nearer to the network's round trip.
    let round_trip = preambles.min(asked.elapsed());
    noise.read(&message).map_err(|_| ConnectError::WrongKey)?;

    let (mut cipher, id) = noise.finish();
    if let Cipher::Noise(ways) = &mut cipher {
        let mut confirmation = [0; CONFIRMATION_BYTES];
        ways.seal(&mut confirmation);
        wire.send(&confirmation)?;
    }
    let agreed = LinkSession {
        version,
        id,
        round_trip,
    };
    Ok((cipher, agreed))
}

/// A connected non-blocking socket with blocking calls that end at a deadline.
struct HandshakeSocket<'a> {
    socket: OwnedFd,
    deadline: Instant,
    address: &'a NetAddress,
}

impl HandshakeSocket<'_> {
    fn send(&self, mut bytes: &[u8]) -> Result<(), ConnectError> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(errno) => self.recover(errno, PollFlags::OUT)?,
            }
        }
        Ok(())
    }

    fn receive(&self, into: &mut [u8]) -> Result<(), ConnectError> {
        let mut filled = 0;
        while filled < into.len() {
            match recv(&self.socket, &mut into[filled..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(ConnectError::CutOff),
                Ok((_, received)) => filled += received,
                Err(errno) => self.recover(errno, PollFlags::IN)?,
            }
        }
        Ok(())
    }

    /// Returns `Ok` when the call that failed with `errno` should be repeated, after waiting if necessary.
    fn recover(&self, errno: Errno, until: PollFlags) -> Result<(), ConnectError> {
        match errno {
            Errno::INTR => Ok(()),
            Errno::PIPE | Errno::CONNRESET => Err(ConnectError::CutOff),
            Errno::AGAIN => self.wait(until),
            other => Err(ConnectError::Unreachable {
                address: self.address.clone(),
                source: other.into(),
            }),
        }
    }

    fn wait(&self, until: PollFlags) -> Result<(), ConnectError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.socket, until)], Some(&timeout)) {
            Ok(0) => Err(ConnectError::TimedOut),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(ConnectError::Unreachable {
                address: self.address.clone(),
                source: errno.into(),
            }),
        }
    }
}
