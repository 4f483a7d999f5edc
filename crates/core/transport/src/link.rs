//! An established non-blocking connection that carries packets.
//!
//! On the wire a packet is its length as two little-endian bytes, followed by that many bytes. These are the
//! packet itself, or the sealed packet, which is 16 bytes longer.
//!
//! A link does not allocate after its construction. A send is one system call, a receive at most one, and one
//! system call may bring many packets.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use netram_proto::limit::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES};
use netram_proto::owner::SESSION_ID_BYTES;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::buffer::ByteQueue;
use crate::cipher::{Cipher, DecryptError, TAG_BYTES};
use crate::error::LinkError;
use crate::key_ring::ClientIdentity;

/// Maximum bytes of a packet: one frame, header and body.
pub const PACKET_BYTES_MAX: usize = FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX;
/// Bytes of the send buffer. A packet is refused as congested only when at least half of it is full.
pub const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// Bytes of the receive buffer.
pub const RECEIVE_BUFFER_BYTES: usize = 128 * 1024;

const LENGTH_BYTES: usize = 2;
const WIRE_BYTES_MAX: usize = LENGTH_BYTES + PACKET_BYTES_MAX + TAG_BYTES;

const _: () = assert!(
    PACKET_BYTES_MAX + TAG_BYTES <= u16::MAX as usize,
    "a packet's length fits its two bytes"
);
const _: () = assert!(
    2 * WIRE_BYTES_MAX <= SEND_BUFFER_BYTES,
    "half the send buffer holds any packet"
);
const _: () = assert!(
    2 * WIRE_BYTES_MAX <= RECEIVE_BUFFER_BYTES,
    "a whole packet fits beside part of another"
);

/// An established link between a client and a lender. [`connect`](crate::connect()) and
/// [`PendingHandshake::advance`](crate::PendingHandshake::advance) create it.
///
/// Methods never block. A caller that sleeps waits for readability (level-triggered) once
/// [`receive`](Self::receive) has returned `None`, and for writability while [`flush`](Self::flush) returns
/// `false`. After any error but [`LinkError::Congested`] the link must be dropped.
pub struct Link {
    socket: OwnedFd,
    peer: String,
    cipher: Cipher,
    agreed: LinkSession,
    client: Option<Arc<ClientIdentity>>,
    outgoing: ByteQueue,
    incoming: ByteQueue,
    /// The error of the first invalid packet. Packets behind it are not read.
    fault: Option<LinkError>,
}

/// Facts of a link that both ends know after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkSession {
    /// The wire version that the lender chose.
    pub(crate) version: u16,
    /// The id that no other link has, from version 2 on.
    pub(crate) id: [u8; SESSION_ID_BYTES],
    /// Time of the handshake's quickest exchange. Zero at a lender's end, which starts none.
    pub(crate) round_trip: Duration,
}

impl LinkSession {
    /// The lender's end of a link.
    pub(crate) fn at_lender(version: u16, id: [u8; SESSION_ID_BYTES]) -> LinkSession {
        LinkSession {
            version,
            id,
            round_trip: Duration::ZERO,
        }
    }
}

/// How much of a packet [`Link::send`] has given to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// The socket has taken the packet and everything before it.
    Whole,
    /// The socket is full; the rest waits for [`Link::flush`].
    Queued,
}

impl Link {
    /// Takes a connected non-blocking socket whose handshake is complete.
    pub(crate) fn new(
        socket: OwnedFd,
        peer: String,
        cipher: Cipher,
        agreed: LinkSession,
        client: Option<Arc<ClientIdentity>>,
    ) -> Link {
        Link {
            socket,
            peer,
            cipher,
            agreed,
            client,
            outgoing: ByteQueue::new(SEND_BUFFER_BYTES),
            incoming: ByteQueue::new(RECEIVE_BUFFER_BYTES),
            fault: None,
        }
    }

    /// The peer's address, for people to read.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Time of the handshake's quickest exchange with the lender: about a round trip. Zero at a lender's end.
    pub fn round_trip(&self) -> Duration {
        self.agreed.round_trip
    }

    /// The named client at the other end; `None` at a listener without named clients, and at a client's end.
    pub fn client(&self) -> Option<&Arc<ClientIdentity>> {
        self.client.as_ref()
    }

    /// Whether the client's key is no longer accepted, so that the link must end.
    pub fn is_revoked(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.is_revoked())
    }

    /// The wire version of this link.
    pub fn version(&self) -> u16 {
        self.agreed.version
    }

    /// The link's session id. Both ends know it, and from wire version 2 on no other link has it: a signature
    /// over it proves something on this link only. Without a cluster key it holds against replays, and not
    /// against a peer that passes everything on.
    pub fn session(&self) -> &[u8; SESSION_ID_BYTES] {
        &self.agreed.id
    }

    /// Whether packets are encrypted and the peer has proven that it holds the cluster key.
    pub fn is_secure(&self) -> bool {
        matches!(self.cipher, Cipher::Noise(_))
    }

    /// The socket, for polling.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends the concatenation of `parts` as one packet of 1 to [`PACKET_BYTES_MAX`] bytes, with one system
    /// call.
    ///
    /// # Errors
    /// [`LinkError::Congested`]: no byte was taken, and the packet may be sent again. Any other error ends
    /// the link.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<SendProgress, LinkError> {
        self.queue(parts)?;
        Ok(if self.flush()? {
            SendProgress::Whole
        } else {
            SendProgress::Queued
        })
    }

    /// Queues a packet like [`send`](Self::send) but without a system call, so that several answers go out
    /// with one [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`LinkError::Congested`]: the buffer has no room, and no byte was taken.
    pub fn queue(&mut self, parts: &[&[u8]]) -> Result<(), LinkError> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        assert!(
            (1..=PACKET_BYTES_MAX).contains(&length),
            "a packet of {length} bytes"
        );
        let on_wire = length + self.cipher.overhead();
        if self.outgoing.room() < LENGTH_BYTES + on_wire {
            self.outgoing.compact_if_cheap();
            if self.outgoing.room() < LENGTH_BYTES + on_wire {
                return Err(LinkError::Congested);
            }
        }
        let (prefix, rest) = self.outgoing.free().split_at_mut(LENGTH_BYTES);
        prefix.copy_from_slice(&(on_wire as u16).to_le_bytes());
        let target = &mut rest[..on_wire];
        join(parts, &mut target[..length]);
        if let Cipher::Noise(ways) = &mut self.cipher {
            ways.seal(target);
        }
        self.outgoing.push(LENGTH_BYTES + on_wire);
        Ok(())
    }

    /// Writes queued bytes to the socket, with one system call if there are any. Returns whether the queue is
    /// empty.
    ///
    /// # Errors
    /// The connection is closed or broken.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        while !self.outgoing.is_empty() {
            match send(
                &self.socket,
                self.outgoing.queued(),
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(sent) => {
                    self.outgoing.pop(sent);
                    // A partial send means that the socket is full; a second call would only confirm it.
                    break;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(self.outgoing.is_empty())
    }

    /// Whether the socket has taken all queued bytes.
    pub fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Returns the next packet, or `None` if no whole packet has arrived. Reads the socket, once, only if no
    /// whole packet is buffered.
    ///
    /// # Errors
    /// The connection is closed or broken, or the packet is malformed or altered.
    pub fn receive(&mut self) -> Result<Option<&[u8]>, LinkError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let Some(on_wire) = self.next_on_wire()? else {
            return Ok(None);
        };
        let packet = self.incoming.take(on_wire);
        let Cipher::Noise(ways) = &mut self.cipher else {
            return Ok(Some(packet));
        };
        match ways.open(packet) {
            Ok(length) => Ok(Some(&packet[..length])),
            Err(DecryptError) => {
                self.fault = Some(LinkError::Tampered);
                Err(LinkError::Tampered)
            }
        }
    }

    /// Whether [`receive`](Self::receive) can return a packet or an error without reading the socket. A
    /// caller must not sleep while this is `true`, since the kernel reports only unread bytes.
    pub fn has_buffered(&self) -> bool {
        !matches!(self.buffered(), Ok(None))
    }

    /// Finds the next whole packet with at most one read. Returns its range in the queue of `incoming`.
    fn next_on_wire(&mut self) -> Result<Option<Range<usize>>, LinkError> {
        let found = match self.buffered() {
            Ok(None) if self.fill()? => self.buffered(),
            other => other,
        };
        found.inspect_err(|&fault| self.fault = Some(fault))
    }

    /// The range of the first queued packet, if it is complete.
    fn buffered(&self) -> Result<Option<Range<usize>>, LinkError> {
        let queued = self.incoming.queued();
        let Some(prefix) = queued.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes(*prefix));
        let overhead = self.cipher.overhead();
        if length <= overhead || length > PACKET_BYTES_MAX + overhead {
            return Err(LinkError::Malformed { length });
        }
        let whole = LENGTH_BYTES..LENGTH_BYTES + length;
        Ok((whole.end <= queued.len()).then_some(whole))
    }

    /// Reads the socket once. Returns whether bytes arrived.
    fn fill(&mut self) -> Result<bool, LinkError> {
        if self.incoming.room() < WIRE_BYTES_MAX {
            // Less than a packet is queued, so this moves fewer bytes than one read has brought.
            self.incoming.compact();
        }
        loop {
            match recv(&self.socket, self.incoming.free(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(LinkError::Closed),
                Ok((_, received)) => {
                    self.incoming.push(received);
                    return Ok(true);
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Link")
            .field("peer", &self.peer)
            .field("secure", &self.is_secure())
            .finish_non_exhaustive()
    }
}

/// Copies `parts` one after the other into `target`, which they fill.
fn join(parts: &[&[u8]], mut target: &mut [u8]) {
    for part in parts {
        let (place, rest) = target.split_at_mut(part.len());
        place.copy_from_slice(part);
        target = rest;
    }
    assert!(target.is_empty());
}
