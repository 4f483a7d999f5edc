//! A connected, handshaken, non-blocking connection that moves packets.
//!
//! On the wire a packet is its length as two little-endian bytes, then that many bytes: the packet itself, or
//! sealed (16 bytes longer).
//!
//! Nothing here allocates after construction. A send is one system call, a poll that finds nothing is one
//! system call, and one receive may bring many packets.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netram_proto::limit::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::buffer::ByteQueue;
use crate::cipher::{Cipher, DecryptError, TAG_BYTES};
use crate::error::LinkError;

/// Bytes of a packet: one frame, header and body.
pub const PACKET_BYTES_MAX: usize = FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX;
/// Bytes that wait for a socket that takes no more. A slow peer is congested between half of this and all.
pub const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// Bytes that one receive may bring.
pub const RECEIVE_BUFFER_BYTES: usize = 128 * 1024;

const LENGTH_BYTES: usize = 2;
const WIRE_BYTES_MAX: usize = LENGTH_BYTES + PACKET_BYTES_MAX + TAG_BYTES;

const _: () = assert!(
    PACKET_BYTES_MAX + TAG_BYTES <= u16::MAX as usize,
    "the length fits its two bytes"
);
const _: () = assert!(
    2 * WIRE_BYTES_MAX <= SEND_BUFFER_BYTES,
    "half a send buffer takes any packet"
);
const _: () = assert!(
    2 * WIRE_BYTES_MAX <= RECEIVE_BUFFER_BYTES,
    "beside a part of one packet fits another"
);

/// A link between a client and a lender. Made by [`connect`](crate::connect()) and
/// [`PendingHandshake::advance`](crate::PendingHandshake::advance).
///
/// Methods never block. A caller that sleeps waits for readability (level-triggered) when
/// [`receive`](Self::receive) has returned `None`, and also for writability while [`flush`](Self::flush)
/// returns `false`. After any error but [`LinkError::Congested`] the link is of no further use.
pub struct Link {
    socket: OwnedFd,
    peer: String,
    cipher: Cipher,
    outgoing: ByteQueue,
    incoming: ByteQueue,
    /// Set by the first packet that could not be believed; nothing behind it is.
    fault: Option<LinkError>,
}

/// What became of a packet given to [`Link::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// The socket has all of it, and everything before.
    Whole,
    /// The socket was full; the rest waits for [`Link::flush`].
    Queued,
}

impl Link {
    /// The socket is connected, non-blocking, and has said all its handshake.
    pub(crate) fn new(socket: OwnedFd, peer: String, cipher: Cipher) -> Link {
        Link {
            socket,
            peer,
            cipher,
            outgoing: ByteQueue::new(SEND_BUFFER_BYTES),
            incoming: ByteQueue::new(RECEIVE_BUFFER_BYTES),
            fault: None,
        }
    }

    /// The other end, as an address for people to read.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether packets are encrypted and the peer was proven to hold the cluster key.
    pub fn is_secure(&self) -> bool {
        matches!(self.cipher, Cipher::Noise(_))
    }

    /// The socket, to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends the concatenation of `parts` as one packet of 1 to [`PACKET_BYTES_MAX`] bytes, with one system
    /// call. After [`LinkError::Congested`] nothing was taken, and the packet may be given again.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<SendProgress, LinkError> {
        self.queue(parts)?;
        Ok(if self.flush()? {
            SendProgress::Whole
        } else {
            SendProgress::Queued
        })
    }

    /// Queues a packet like [`send`](Self::send), without a system call: for answers that go out together
    /// with one [`flush`](Self::flush).
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

    /// Gives the socket what waits, with one system call if anything does. `true`: nothing waits any more.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        while !self.outgoing.is_empty() {
            match send(
                &self.socket,
                self.outgoing.queued(),
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(sent) => {
                    self.outgoing.pop(sent);
                    // A partial send means that the socket is full now; asking again would only say so.
                    break;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(self.outgoing.is_empty())
    }

    /// The next packet, or `None` when no whole packet has arrived. Asks the socket, once, only when no whole
    /// packet is buffered.
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

    /// Whether [`receive`](Self::receive) can return something without asking the socket. Before sleeping
    /// this must be `false`: the kernel does not tell of bytes that have left it.
    pub fn has_buffered(&self) -> bool {
        !matches!(self.buffered(), Ok(None))
    }

    /// Finds the next whole packet, with at most one receive. Returns where it stands in `incoming`'s queue.
    fn next_on_wire(&mut self) -> Result<Option<Range<usize>>, LinkError> {
        let found = match self.buffered() {
            Ok(None) if self.fill()? => self.buffered(),
            other => other,
        };
        found.inspect_err(|&fault| self.fault = Some(fault))
    }

    /// The place of the first queued packet, if all of it is there.
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

    /// Receives once. `true`: something came.
    fn fill(&mut self) -> Result<bool, LinkError> {
        if self.incoming.room() < WIRE_BYTES_MAX {
            // Less than a packet is queued here, so this moves less than one receive has brought.
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

/// Copies `parts` one behind the other; together they fill `target`.
fn join(parts: &[&[u8]], mut target: &mut [u8]) {
    for part in parts {
        let (place, rest) = target.split_at_mut(part.len());
        place.copy_from_slice(part);
        target = rest;
    }
    assert!(target.is_empty());
}
