//! Datagrams to a multicast group: the sockets, and the sealing of datagrams.
//!
//! A client's [`Caster`] cuts appends into datagrams, seals them under its channel's key and sends each once;
//! every lender's [`Ear`] that was given the key opens them. What a datagram means is
//! `netram_proto::multicast`'s; that one is lost, doubled or late is expected, and nothing here waits or
//! repeats.
//!
//! Every datagram is encrypted and authenticated, also where links are not (`--insecure`): the key travels
//! over a link that does not leave the machine there. A key is one sender's: its datagrams are numbered, the
//! number is the nonce, and a process makes its keys anew, so that no number is ever used twice under one.
//! Whoever was given the key could send under it; what that means is in `docs/protocol.md`.
//!
//! What does not open is dropped without an answer and counted, and answers never go to where a datagram came
//! from.

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

/// Bytes of a datagram on an ordinary Ethernet (1,500 bytes), unless it is told: whole, with room for a
/// tunnel's header.
pub const DATAGRAM_BYTES_ETHERNET: usize = 1400;
/// What an ordinary Ethernet's packets hold.
const ETHERNET_BYTES: usize = 1500;
/// Headers of IP and UDP.
const PACKET_HEADER_BYTES: usize = 28;
/// Bytes handed to the kernel with one call: the most that a packet of IP could hold, because the kernel cuts
/// it only on its way out.
const TRAIN_BYTES_MAX: usize = 65_535 - PACKET_HEADER_BYTES;
/// Datagrams in it (the kernel's UDP_MAX_SEGMENTS).
const TRAIN_DATAGRAMS_MAX: usize = 64;
/// A datagram's place in the receiving buffer. One more than the longest: a longer datagram is cut, and then
/// does not open.
const SLOT_BYTES: usize = DATAGRAM_BYTES_MAX + 1;
/// What a receiving socket asks the kernel to keep for it, and a sending one. The kernel gives less where it
/// is told to.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Datagrams do not leave the network segment, unless it is told: a router that forwards them would be a
/// leak.
pub const TTL_DEFAULT: u8 = 1;

/// A channel's key.
struct ChannelKey(LessSafeKey);

/// The datagram was not sealed with this key, or was changed.
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

    /// Seals `bytes` behind `header`, which it vouches for. The number must be new under this key.
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
            Err(_) => unreachable!("a datagram is far shorter than what AES-GCM bears"),
        }
    }

    /// Opens what stands behind `header`, in place.
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

/// What became of the datagrams of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that it did not: its buffer is full, or the network is down. They count as lost on the way.
    pub lost: u64,
}

/// A client's sending end.
pub struct MulticastSender {
    socket: Socket,
    group: MulticastGroup,
    datagram_bytes: usize,
    /// The kernel cuts what it is given into datagrams.
    segments: bool,
    /// Datagrams one behind the other, each in a place of `datagram_bytes`, the last perhaps shorter.
    train: Box<[u8]>,
    /// What the machine calls the present channel.
    number: u32,
    channel: u64,
    secret: [u8; CHANNEL_KEY_BYTES],
    key: ChannelKey,
    /// Datagrams sealed under the present key, and their bytes.
    sealed: u64,
    sealed_bytes: u64,
}

impl MulticastSender {
    /// Opens a socket that sends to `group`, in datagrams of at most `datagram_bytes`; `None`: as long as the
    /// network there carries whole.
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
        // A lender on this machine is a lender too.
        socket.set_multicast_loop_v4(true)?;
        socket.set_multicast_ttl_v4(ttl.into())?;
        socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        socket.connect(&group.address.into())?;
        // Of the interface; what lies behind it is not asked.
        let datagram_bytes = match datagram_bytes {
            Some(bytes) => bytes,
            // Asked for the way of the connected socket, the kernel has been seen to answer for another
            // interface.
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

    /// The group.
    pub fn group(&self) -> &MulticastGroup {
        &self.group
    }

    /// The longest datagram that it sends.
    pub fn datagram_bytes(&self) -> usize {
        self.datagram_bytes
    }

    /// What a lender needs to listen to channel `number`. A higher number than the present one begins another
    /// channel, with a key of its own; a lower one is an invitation that came too late, and gets the present
    /// channel.
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

    /// What the machine calls the present channel; zero: there was none yet.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether the key has sealed as much as it may. The machine is to begin another channel.
    pub fn is_exhausted(&self) -> bool {
        self.sealed >= CHANNEL_DATAGRAMS_MAX || self.sealed_bytes >= CHANNEL_BYTES_MAX
    }

    /// Sends an append: `header`, and `body`, the bytes of the log from its LSN. About 0.3 µs a datagram for
    /// the sealing, and a system call for as many as 64 KiB hold.
    pub fn send(&mut self, header: &FrameHeader, body: &[u8]) -> SendCounts {
        let mut outcome = SendCounts::default();
        let mut rest = body;
        let mut length = 0;
        for (header, bytes) in fragment_append(*header, body.len(), self.datagram_bytes) {
            let (piece, behind) = rest.split_at(bytes);
            rest = behind;
            // Twice the bound is never reached: the machine is asked for another channel at once, in between
            // frames.
            assert!(self.sealed < 2 * CHANNEL_DATAGRAMS_MAX);
            // Only the last is shorter than its place.
            length = self.seal(&header, piece, length);
            if length == self.train.len() || rest.is_empty() {
                self.send_train(length, &mut outcome);
                length = 0;
            }
        }
        outcome
    }

    /// Puts one datagram into the train at `at`; where it ends.
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

    /// Hands the kernel the first `length` bytes of the train: at once if it cuts them, otherwise one by one.
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
                // The way out does not take what is to be cut (a tunnel, a card without checksums): not now,
                // not later.
                Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP) => {
                    self.segments = false;
                    // Where it fails, no datagram passes either, and each is counted.
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

/// Bytes of a datagram where packets of `mtu` bytes pass whole. More than an Ethernet's is believed: a
/// network of jumbo frames has them everywhere, and whoever does not get them is served over its link.
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
        out.debug_struct("Caster")
            .field("group", &self.group)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// Compares keys in a time that does not tell where they differ.
fn same(one: &[u8; CHANNEL_KEY_BYTES], other: &[u8; CHANNEL_KEY_BYTES]) -> bool {
    let differing = one
        .iter()
        .zip(other)
        .fold(0, |seen, (one, other)| seen | (one ^ other));
    differing == 0
}

/// A new channel's name and key.
fn random_channel() -> (u64, [u8; CHANNEL_KEY_BYTES]) {
    let random = SystemRandom::new();
    let (mut channel, mut key) = ([0; 8], [0; CHANNEL_KEY_BYTES]);
    if random.fill(&mut channel).is_err() || random.fill(&mut key).is_err() {
        panic!("the kernel gives no random bytes; no key can be made");
    }
    (u64::from_le_bytes(channel), key)
}

/// Datagrams that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// Of a channel that nobody here listens to, or no datagram of ours at all.
    pub unknown: u64,
    /// Came before, or so late that it cannot be told.
    pub duplicate: u64,
    /// Does not open: forged or changed.
    pub forged: u64,
}

/// A lender's receiving end: one socket, and the channels that somebody here listens to.
pub struct MulticastReceiver {
    socket: Socket,
    group: MulticastGroup,
    channels: HashMap<u64, ReceiveChannel>,
    /// Datagrams as they came, each in a place of its own.
    slots: Box<[u8]>,
    lengths: [usize; BATCH],
    /// Places that hold one which is still to be looked at.
    waiting: std::ops::Range<usize>,
    dropped: DropCounts,
}

struct ReceiveChannel {
    /// Who listens, in the owner's words.
    listener: usize,
    secret: Zeroizing<[u8; CHANNEL_KEY_BYTES]>,
    key: ChannelKey,
    replay: ReplayWindow,
}

/// A datagram that is genuine and new.
#[derive(Debug)]
pub struct ReceivedDatagram<'a> {
    /// Who listens to its channel.
    pub listener: usize,
    /// What it says: one frame, unchecked.
    pub packet: &'a [u8],
}

impl MulticastReceiver {
    /// Joins `group`. Several ears of one machine, in one process or in many, each hear everything.
    pub fn open(group: &MulticastGroup) -> io::Result<MulticastReceiver> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        let index = group.index(&socket)?;
        socket.set_reuse_address(true)?;
        // Bound to the group's own address, the socket hears nothing that is sent to this machine otherwise.
        socket.bind(&group.address.into())?;
        socket.set_multicast_all_v4(false)?;
        socket.join_multicast_v4_n(group.address.ip(), &InterfaceIndexOrAddress::Index(index))?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        Ok(MulticastReceiver {
            socket,
            group: group.clone(),
            channels: HashMap::new(),
            // The kernel gives pages as datagrams need them.
            slots: vec![0; BATCH * SLOT_BYTES].into_boxed_slice(),
            lengths: [0; BATCH],
            waiting: 0..0,
            dropped: DropCounts::default(),
        })
    }

    /// The group.
    pub fn group(&self) -> &MulticastGroup {
        &self.group
    }

    /// Hears the channel of `tune` from now on, for `listener`, and no other channel for it. Who listened to
    /// it before does no longer: it is the same client's earlier connection. `false`: a channel of that name
    /// has another key.
    pub fn listen(&mut self, tune: &ChannelInvite, listener: usize) -> bool {
        if let Some(known) = self.channels.get(&tune.channel)
            && !same(&known.secret, &tune.key)
        {
            return false;
        }
        self.channels
            .retain(|name, channel| channel.listener != listener || *name == tune.channel);
        let channel = self
            .channels
            .entry(tune.channel)
            .or_insert_with(|| ReceiveChannel {
                listener,
                secret: Zeroizing::new(tune.key),
                key: ChannelKey::new(&tune.key),
                replay: ReplayWindow::default(),
            });
        channel.listener = listener;
        true
    }

    /// Hears nothing for `listener` any more.
    pub fn forget(&mut self, listener: usize) {
        self.channels.retain(|_, channel| channel.listener != listener);
    }

    /// How many channels are heard.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// What was dropped so far.
    pub fn dropped(&self) -> DropCounts {
        self.dropped
    }

    /// Whether datagrams have been taken from the kernel, which will not tell of them again.
    pub fn has_buffered(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next datagram that is genuine and new; `None`: none has come, or only such that were dropped, and
    /// there may be more. One system call for as many as have come, up to 32.
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
        // A flood of strangers' must not hold the thread: one batch a call.
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

    /// Opens what came at this place: who listens, and where the packet is.
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
        out.debug_struct("Ear")
            .field("group", &self.group)
            .field("channels", &self.channels.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_leaves_room_for_a_tunnel_and_what_carries_more_is_used() {
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
