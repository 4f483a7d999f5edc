//! Datagrams to a multicast group: the sockets, and the sealing of datagrams.
//!
//! A client's [`MulticastSender`] cuts appends into datagrams, seals them under its channel's key and sends
//! each once. The [`MulticastReceiver`] of every lender that was given the key decrypts them.
//! `netram_proto::multicast` defines the contents, and handles datagrams that are lost, repeated or late.
//! This module neither waits nor retransmits.
//!
//! Every datagram is encrypted and authenticated, even where links are not (`--insecure`): there the key
//! travels over a link that does not leave the machine. A key belongs to one sender. Its datagrams are
//! numbered and the number is the nonce; a process generates new keys, so no number is used twice under one
//! key. Every holder of the key could send under it; `docs/design/protocol.md` says what that means.
//!
//! A datagram that cannot be decrypted is dropped and counted without an answer. Answers never go to a
//! datagram's source address.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};

use netram_proto::limit::{
    CHANNEL_BYTES_MAX, CHANNEL_DATAGRAMS_MAX, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, DATAGRAM_HEADER_BYTES,
    FRAME_HEADER_BYTES,
};
use netram_proto::multicast::{
    CHANNEL_KEY_BYTES, ChannelInvite, DatagramHeader, ReplayWindow, fragment_append,
};
use netram_proto::wire::FrameHeader;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use zeroize::{Zeroize, Zeroizing};

pub use crate::group::{MulticastGroup, MulticastGroupError};
use crate::sys::{self, BATCH};

/// Default bytes of a datagram on an ordinary Ethernet (1,500 bytes): it stays whole even inside a tunnel.
pub const DATAGRAM_BYTES_ETHERNET: usize = 1400;
/// MTU of an ordinary Ethernet, in bytes.
const ETHERNET_BYTES: usize = 1500;
/// Bytes of the headers of IPv4 and UDP.
const PACKET_HEADER_BYTES: usize = 28;
/// Maximum bytes given to the kernel in one call: the payload of the largest IP packet, since the kernel
/// segments it only when it leaves.
const TRAIN_BYTES_MAX: usize = 65_535 - PACKET_HEADER_BYTES;
/// Maximum datagrams in one call (the kernel's UDP_MAX_SEGMENTS).
const TRAIN_DATAGRAMS_MAX: usize = 64;
/// Bytes of the receive buffer per datagram. One more than the longest: a longer datagram is truncated and
/// then fails authentication.
const SLOT_BYTES: usize = DATAGRAM_BYTES_MAX + 1;
/// Socket buffer sizes requested of the kernel, in bytes. The kernel may grant less (`net.core.rmem_max`,
/// `wmem_max`).
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Default TTL: datagrams do not leave the network segment, so that no router leaks them.
pub const TTL_DEFAULT: u8 = 1;

/// The key of one channel.
struct ChannelKey(LessSafeKey);

/// The datagram was not sealed with this key, or was altered.
struct DatagramDecryptError;

impl ChannelKey {
    fn new(bytes: &[u8; CHANNEL_KEY_BYTES]) -> ChannelKey {
        match UnboundKey::new(&AES_256_GCM, bytes) {
            Ok(key) => ChannelKey(LessSafeKey::new(key)),
            Err(_) => unreachable!("a key of the cipher's length is a key"),
        }
    }

    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts `bytes` in place and authenticates them with `header`. The header's number must be new under
    /// this key.
    fn seal(&self, header: &DatagramHeader, bytes: &mut [u8]) -> [u8; 16] {
        let nonce = ChannelKey::nonce(header.number);
        match self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(header.encode()), bytes)
        {
            Ok(tag) => {
                let mut out = [0; 16];
                out.copy_from_slice(tag.as_ref());
                out
            }
            Err(_) => unreachable!("a datagram is far below AES-GCM's length limit"),
        }
    }

    /// Decrypts the bytes that follow `header`, in place.
    fn open<'a>(
        &self,
        header: &DatagramHeader,
        sealed: &'a mut [u8],
    ) -> Result<&'a [u8], DatagramDecryptError> {
        let nonce = ChannelKey::nonce(header.number);
        match self.0.open_in_place(nonce, Aad::from(header.encode()), sealed) {
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(DatagramDecryptError),
        }
    }
}

/// Numbers of datagrams of one frame that the kernel accepted or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Datagrams that the kernel accepted.
    pub sent: u64,
    /// Datagrams that the kernel refused because its buffer is full or the network is down. They count as
    /// lost.
    pub lost: u64,
}

/// A client's sender of multicast appends.
pub struct MulticastSender {
    socket: Socket,
    group: MulticastGroup,
    datagram_bytes: usize,
    /// Whether the kernel segments one buffer into datagrams.
    segments: bool,
    /// Datagrams one after the other, each `datagram_bytes` long; only the last may be shorter.
    train: Box<[u8]>,
    /// Number that the journal writer gave the current channel.
    number: u32,
    channel: u64,
    secret: [u8; CHANNEL_KEY_BYTES],
    key: ChannelKey,
    /// Datagrams sealed under the current key, and their bytes.
    sealed: u64,
    sealed_bytes: u64,
}

impl MulticastSender {
    /// Opens a socket that sends to `group`, in datagrams of at most `datagram_bytes`; `None` takes the
    /// largest that the network carries unfragmented.
    ///
    /// # Errors
    /// This machine has no such interface, or the system refuses a socket or an option.
    pub fn open(
        group: &MulticastGroup,
        datagram_bytes: Option<usize>,
        ttl: u8,
    ) -> io::Result<MulticastSender> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        let index = group.index(&socket)?;
        if index != 0 {
            let any = Ipv4Addr::UNSPECIFIED;
            rustix::net::sockopt::set_ip_multicast_if_with_ifindex(&socket, &any, &any, index)?;
        }
        // A lender on this machine receives the datagrams too.
        socket.set_multicast_loop_v4(true)?;
        socket.set_multicast_ttl_v4(ttl.into())?;
        socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        socket.connect(&group.address.into())?;
        // The MTU of the interface; networks behind it are not probed.
        let datagram_bytes = match datagram_bytes {
            Some(bytes) => bytes,
            // For a connected socket the kernel has been seen to report the MTU of another interface.
            None => fitting(match &group.interface {
                Some(name) => sys::interface_mtu(&socket, name)?,
                None => sys::path_mtu(&socket)?,
            }),
        };
        assert!((DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(&datagram_bytes));
        let segments = sys::set_segment(&socket, datagram_bytes).is_ok();
        let datagrams = (TRAIN_BYTES_MAX / datagram_bytes).min(TRAIN_DATAGRAMS_MAX);
        let (channel, secret) = random_channel();
        Ok(MulticastSender {
            socket,
            group: group.clone(),
            datagram_bytes,
            segments,
            train: vec![0; datagrams * datagram_bytes].into_boxed_slice(),
            number: 0,
            channel,
            secret,
            key: ChannelKey::new(&secret),
            sealed: 0,
            sealed_bytes: 0,
        })
    }

    /// The group that datagrams are sent to.
    pub fn group(&self) -> &MulticastGroup {
        &self.group
    }

    /// Maximum bytes of a datagram sent.
    pub fn datagram_bytes(&self) -> usize {
        self.datagram_bytes
    }

    /// The invitation that lets a lender receive channel `number`. A number above the current one begins a
    /// new channel with a new key. A lower number comes from a late request and gets the current channel.
    pub fn invite(&mut self, number: u32) -> ChannelInvite {
        if number > self.number {
            self.secret.zeroize();
            (self.channel, self.secret) = random_channel();
            self.key = ChannelKey::new(&self.secret);
            self.number = number;
            self.sealed = 0;
            self.sealed_bytes = 0;
        }
        ChannelInvite {
            group: self.group.address.ip().octets(),
            port: self.group.address.port(),
            channel: self.channel,
            key: self.secret,
        }
    }

    /// Number of the current channel; zero before the first invitation.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether the key has reached its limit of datagrams or bytes, so that the writer must begin another
    /// channel.
    pub fn is_exhausted(&self) -> bool {
        self.sealed >= CHANNEL_DATAGRAMS_MAX || self.sealed_bytes >= CHANNEL_BYTES_MAX
    }

    /// Sends an append frame: `header`, and `body`, the log's bytes from its LSN on. Sealing costs about 0.3
    /// µs a datagram, and one system call sends up to 64 KiB.
    pub fn send(&mut self, header: &FrameHeader, body: &[u8]) -> SendCounts {
        let mut outcome = SendCounts::default();
        let mut rest = body;
        let mut length = 0;
        for (header, bytes) in fragment_append(*header, body.len(), self.datagram_bytes) {
            let (piece, behind) = rest.split_at(bytes);
            rest = behind;
            // The writer begins another channel between frames, so twice the limit is never reached.
            assert!(self.sealed < 2 * CHANNEL_DATAGRAMS_MAX);
            // Only the last datagram is shorter than its place.
            length = self.seal(&header, piece, length);
            if length == self.train.len() || rest.is_empty() {
                self.send_train(length, &mut outcome);
                length = 0;
            }
        }
        outcome
    }

    /// Seals one datagram into the train at offset `at` and returns the offset of its end.
    fn seal(&mut self, header: &FrameHeader, body: &[u8], at: usize) -> usize {
        let front = DatagramHeader {
            channel: self.channel,
            number: self.sealed,
        };
        let (clear, sealed) = self.train[at..].split_at_mut(DATAGRAM_HEADER_BYTES);
        clear.copy_from_slice(&front.encode());
        let bytes = FRAME_HEADER_BYTES + body.len();
        sealed[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(body.len()));
        sealed[FRAME_HEADER_BYTES..bytes].copy_from_slice(body);
        let tag = self.key.seal(&front, &mut sealed[..bytes]);
        sealed[bytes..bytes + tag.len()].copy_from_slice(&tag);
        self.sealed += 1;
        self.sealed_bytes += bytes as u64;
        at + DATAGRAM_HEADER_BYTES + bytes + tag.len()
    }

    /// Sends the first `length` bytes of the train: in one call if the kernel segments them, otherwise one
    /// datagram a call.
    fn send_train(&mut self, length: usize, outcome: &mut SendCounts) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let train = &self.train[..length];
        let count = length.div_ceil(self.datagram_bytes) as u64;
        if count > 1 && self.segments {
            match send(&self.socket, train, flags) {
                Ok(_) => {
                    outcome.sent += count;
                    return;
                }
                // The route does not support segmentation (a tunnel, a card without checksum offload), and
                // never will.
                Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP) => {
                    self.segments = false;
                    // If this fails no datagram is sent either, and each is counted as lost.
                    let _ = sys::set_segment(&self.socket, 0);
                }
                Err(_) => {
                    outcome.lost += count;
                    return;
                }
            }
        }
        for datagram in train.chunks(self.datagram_bytes) {
            match send(&self.socket, datagram, flags) {
                Ok(_) => outcome.sent += 1,
                Err(_) => outcome.lost += 1,
            }
        }
    }
}

/// Bytes of a datagram for a route with an MTU of `mtu` bytes. An MTU above Ethernet's is used as it is: a
/// network with jumbo frames has them everywhere, and members that receive none are served over their links.
fn fitting(mtu: usize) -> usize {
    let whole = mtu.saturating_sub(PACKET_HEADER_BYTES);
    let most = if mtu <= ETHERNET_BYTES {
        DATAGRAM_BYTES_ETHERNET
    } else {
        DATAGRAM_BYTES_MAX
    };
    whole.min(most).max(DATAGRAM_BYTES_MIN)
}

impl Drop for MulticastSender {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl fmt::Debug for MulticastSender {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MulticastSender")
            .field("group", &self.group)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// Compares keys in constant time.
fn same(one: &[u8; CHANNEL_KEY_BYTES], other: &[u8; CHANNEL_KEY_BYTES]) -> bool {
    let differing = one
        .iter()
        .zip(other)
        .fold(0, |seen, (one, other)| seen | (one ^ other));
    differing == 0
}

/// A random channel id and key.
fn random_channel() -> (u64, [u8; CHANNEL_KEY_BYTES]) {
    let random = SystemRandom::new();
    let (mut channel, mut key) = ([0; 8], [0; CHANNEL_KEY_BYTES]);
    if random.fill(&mut channel).is_err() || random.fill(&mut key).is_err() {
        panic!("the kernel gives no random bytes; no key can be made");
    }
    (u64::from_le_bytes(channel), key)
}

/// Numbers of dropped datagrams, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// Datagrams of a channel without listener, or not of this protocol.
    pub unknown: u64,
    /// Datagrams received before, or too old for the replay window.
    pub duplicate: u64,
    /// Datagrams that failed authentication: forged or altered.
    pub forged: u64,
}

/// A lender's receiver: one socket, and the channels that the lender's sessions listen to.
pub struct MulticastReceiver {
    socket: Socket,
    group: MulticastGroup,
    channels: HashMap<u64, ReceiveChannel>,
    /// Received datagrams, each in a slot of [`SLOT_BYTES`].
    slots: Box<[u8]>,
    lengths: [usize; BATCH],
    /// Indices of slots whose datagram has not been examined yet.
    waiting: std::ops::Range<usize>,
    dropped: DropCounts,
}

struct ReceiveChannel {
    /// The listening session, by the owner's number.
    listener: usize,
    secret: Zeroizing<[u8; CHANNEL_KEY_BYTES]>,
    key: ChannelKey,
    replay: ReplayWindow,
}

/// An authenticated datagram that was not received before.
#[derive(Debug)]
pub struct ReceivedDatagram<'a> {
    /// The session that listens to the datagram's channel, by the owner's number.
    pub listener: usize,
    /// The decrypted packet: one frame, not parsed yet.
    pub packet: &'a [u8],
}

impl MulticastReceiver {
    /// Joins `group`. Every receiver on a machine gets every datagram, whether in one process or in several.
    ///
    /// # Errors
    /// This machine has no such interface, or the system refuses a socket, the port or the group.
    pub fn open(group: &MulticastGroup) -> io::Result<MulticastReceiver> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        let index = group.index(&socket)?;
        socket.set_reuse_address(true)?;
        // Bound to the group's address, the socket does not receive unicast datagrams.
        socket.bind(&group.address.into())?;
        socket.set_multicast_all_v4(false)?;
        socket.join_multicast_v4_n(group.address.ip(), &InterfaceIndexOrAddress::Index(index))?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        Ok(MulticastReceiver {
            socket,
            group: group.clone(),
            channels: HashMap::new(),
            // The kernel backs pages as datagrams touch them.
            slots: vec![0; BATCH * SLOT_BYTES].into_boxed_slice(),
            lengths: [0; BATCH],
            waiting: 0..0,
            dropped: DropCounts::default(),
        })
    }

    /// The group that this receiver has joined.
    pub fn group(&self) -> &MulticastGroup {
        &self.group
    }

    /// Receives the channel of `invite` for `listener` from now on, and no other channel for it. A previous
    /// listener of the channel is an earlier connection of the same client and is removed. Returns `false` if
    /// the channel is known under another key.
    pub fn listen(&mut self, invite: &ChannelInvite, listener: usize) -> bool {
        if let Some(known) = self.channels.get(&invite.channel)
            && !same(&known.secret, &invite.key)
        {
            return false;
        }
        self.channels
            .retain(|name, channel| channel.listener != listener || *name == invite.channel);
        let channel = self
            .channels
            .entry(invite.channel)
            .or_insert_with(|| ReceiveChannel {
                listener,
                secret: Zeroizing::new(invite.key),
                key: ChannelKey::new(&invite.key),
                replay: ReplayWindow::default(),
            });
        channel.listener = listener;
        true
    }

    /// Stops receiving for `listener`.
    pub fn forget(&mut self, listener: usize) {
        self.channels.retain(|_, channel| channel.listener != listener);
    }

    /// Number of channels that have a listener.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Datagrams dropped so far.
    pub fn dropped(&self) -> DropCounts {
        self.dropped
    }

    /// Whether datagrams are buffered here. The kernel does not report them as readable again.
    pub fn has_buffered(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next authenticated new datagram. `None`: none has arrived, or the batch held none that is valid
    /// and more may be waiting. One system call reads up to 32 datagrams.
    ///
    /// # Errors
    /// The socket failed.
    pub fn receive(&mut self) -> io::Result<Option<ReceivedDatagram<'_>>> {
        if self.waiting.is_empty() {
            self.waiting =
                match sys::receive_many(&self.socket, &mut self.slots, SLOT_BYTES, &mut self.lengths) {
                    Ok(count) => 0..count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
                    Err(error) => return Err(error),
                };
        }
        // At most one batch a call, so that a flood of forged datagrams does not hold the thread.
        let waiting = mem::take(&mut self.waiting);
        for index in waiting.clone() {
            let start = index * SLOT_BYTES;
            let datagram = start..start + self.lengths[index];
            if let Some((listener, packet)) = self.open_at(datagram) {
                self.waiting = index + 1..waiting.end;
                let packet = &self.slots[packet];
                return Ok(Some(ReceivedDatagram { listener, packet }));
            }
        }
        Ok(None)
    }

    /// Opens the datagram at `place`. Returns its listener and the packet's range.
    fn open_at(&mut self, place: std::ops::Range<usize>) -> Option<(usize, std::ops::Range<usize>)> {
        let datagram = &mut self.slots[place.clone()];
        let known = DatagramHeader::parse(datagram)
            .and_then(|header| Some((header, self.channels.get_mut(&header.channel)?)));
        let Some((header, channel)) = known else {
            self.dropped.unknown += 1;
            return None;
        };
        if !channel.replay.is_new(header.number) {
            self.dropped.duplicate += 1;
            return None;
        }
        let Ok(packet) = channel.key.open(&header, &mut datagram[DATAGRAM_HEADER_BYTES..]) else {
            self.dropped.forged += 1;
            return None;
        };
        let start = place.start + DATAGRAM_HEADER_BYTES;
        let packet = start..start + packet.len();
        channel.replay.take(header.number);
        Some((channel.listener, packet))
    }
}

impl AsFd for MulticastReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for MulticastReceiver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MulticastReceiver")
            .field("group", &self.group)
            .field("channels", &self.channels.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_leave_room_for_a_tunnel_and_use_jumbo_frames() {
        for (mtu, bytes) in [
            (1500, 1400),
            (1420, 1392),
            (1280, 1252),
            (68, DATAGRAM_BYTES_MIN),
            (0, DATAGRAM_BYTES_MIN),
            (9000, 8972),
            (65_535, DATAGRAM_BYTES_MAX),
        ] {
            assert_eq!(fitting(mtu), bytes, "{mtu}");
        }
    }
}
