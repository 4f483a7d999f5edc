//! Datagrams to a multicast group: the sockets, and the sealing of datagrams.
//!
//! A client's [`Caster`] cuts appends into datagrams, seals them under its channel's key and sends each once; every
//! lender's [`Ear`] that was given the key opens them. What a datagram means is `netram_proto::cast`'s; that one is lost,
//! doubled or late is expected, and nothing here waits or repeats.
//!
//! Every datagram is encrypted and authenticated, also where links are not (`--insecure`): the key travels over a link that
//! does not leave the machine there. A key is one sender's: its datagrams are numbered, the number is the nonce, and a
//! process makes its keys anew, so that no number is ever used twice under one. Whoever was given the key could send
//! under it; what that means is in `docs/protocol.md`.
//!
//! What does not open is dropped without an answer and counted, and answers never go to where a datagram came from.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;

use netram_proto::cast::{CHANNEL_KEY_BYTES, DatagramHeader, Replay, Tune, cut};
use netram_proto::limit::{
    CHANNEL_DATAGRAMS_MAX, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, DATAGRAM_HEADER_BYTES, FRAME_HEADER_BYTES,
};
use netram_proto::wire::Header;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, netdevice, recv, send};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a datagram by default: what an Ethernet of 1,500 bytes carries whole, with room for a tunnel's header.
pub const DATAGRAM_BYTES_DEFAULT: usize = 1400;
/// What a receiving socket asks the kernel to keep for it, and a sending one. The kernel gives less where it is told to.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Datagrams that one call looks at and drops before it returns: a flood of strangers' must not hold its thread.
const DROPPED_MAX: usize = 32;
/// Bytes of an interface's name (Linux: 16 with the closing zero).
const INTERFACE_BYTES_MAX: usize = 15;
/// Datagrams do not leave the network segment: a router that forwards them would be a leak.
const TTL: u32 = 1;

/// Where appends are multicast: `239.1.2.3:7421`, or `239.1.2.3:7421%eth1` for a machine with several networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's address and port.
    pub address: SocketAddrV4,
    /// The interface's name; `None`: the system's choice.
    pub interface: Option<String>,
}

/// Why a text is not a [`Group`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a multicast group: {problem}; write 239.1.2.3:7421 or 239.1.2.3:7421%eth1")]
pub struct GroupError {
    /// What was given, cut to a printable length.
    pub text: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl FromStr for Group {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Group, GroupError> {
        parse(text).map_err(|problem| GroupError {
            text: text.chars().take(64).collect(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Group, &'static str> {
    let (address, interface) = match text.split_once('%') {
        Some((address, name)) => (address, Some(name)),
        None => (text, None),
    };
    let address: SocketAddrV4 = address
        .parse()
        .map_err(|_| "it does not begin with an IPv4 address and a port")?;
    if !address.ip().is_multicast() {
        return Err("multicast addresses begin with 224 to 239");
    }
    if address.ip().octets()[..3] == [224, 0, 0] {
        return Err("224.0.0.x belongs to the network's own protocols");
    }
    if address.port() == 0 {
        return Err("the port is zero");
    }
    let named = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if interface
        .is_some_and(|name| name.is_empty() || name.len() > INTERFACE_BYTES_MAX || !name.bytes().all(named))
    {
        return Err("an interface's name has 1 to 15 letters and digits");
    }
    Ok(Group {
        address,
        interface: interface.map(str::to_owned),
    })
}

impl fmt::Display for Group {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(out)?;
        match &self.interface {
            Some(name) => write!(out, "%{name}"),
            None => Ok(()),
        }
    }
}

impl Group {
    /// Whether an invitation means this group. The interface is each machine's own affair.
    pub fn is_named_by(&self, tune: &Tune) -> bool {
        self.address == SocketAddrV4::new(Ipv4Addr::from(tune.group), tune.port)
    }

    /// The interface's number; zero: the system's choice.
    fn index(&self, socket: &Socket) -> io::Result<u32> {
        let Some(name) = &self.interface else { return Ok(0) };
        netdevice::name_to_index(socket, name).map_err(|errno| match errno {
            Errno::NODEV => io::Error::new(
                io::ErrorKind::NotFound,
                format!("this machine has no interface {name}"),
            ),
            other => other.into(),
        })
    }
}

/// A channel's key.
struct ChannelKey(LessSafeKey);

/// The datagram was not sealed with this key, or was changed.
struct DoesNotOpen;

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
    fn open<'a>(&self, header: &DatagramHeader, sealed: &'a mut [u8]) -> Result<&'a [u8], DoesNotOpen> {
        let nonce = ChannelKey::nonce(header.number);
        match self.0.open_in_place(nonce, Aad::from(header.encode()), sealed) {
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(DoesNotOpen),
        }
    }
}

/// What became of the datagrams of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that it did not: its buffer is full, or the network is down. They count as lost on the way.
    pub lost: u64,
}

/// A client's sending end.
pub struct Caster {
    socket: Socket,
    group: Group,
    datagram_bytes: usize,
    buffer: Box<[u8]>,
    /// What the machine calls the present channel.
    number: u32,
    channel: u64,
    secret: [u8; CHANNEL_KEY_BYTES],
    key: ChannelKey,
    /// Datagrams sealed under the present key.
    sealed: u64,
}

impl Caster {
    /// Opens a socket that sends to `group`, in datagrams of at most `datagram_bytes`.
    pub fn open(group: &Group, datagram_bytes: usize) -> io::Result<Caster> {
        assert!((DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(&datagram_bytes));
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        let index = group.index(&socket)?;
        if index != 0 {
            let any = Ipv4Addr::UNSPECIFIED;
            rustix::net::sockopt::set_ip_multicast_if_with_ifindex(&socket, &any, &any, index)?;
        }
        // A lender on this machine is a lender too.
        socket.set_multicast_loop_v4(true)?;
        socket.set_multicast_ttl_v4(TTL)?;
        socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        socket.connect(&group.address.into())?;
        let (channel, secret) = random_channel();
        Ok(Caster {
            socket,
            group: group.clone(),
            datagram_bytes,
            buffer: vec![0; datagram_bytes].into_boxed_slice(),
            number: 0,
            channel,
            secret,
            key: ChannelKey::new(&secret),
            sealed: 0,
        })
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// What a lender needs to listen to channel `number`. A higher number than the present one begins another channel,
    /// with a key of its own; a lower one is an invitation that came too late, and gets the present channel.
    pub fn tune(&mut self, number: u32) -> Tune {
        if number > self.number {
            self.secret.zeroize();
            (self.channel, self.secret) = random_channel();
            self.key = ChannelKey::new(&self.secret);
            self.number = number;
            self.sealed = 0;
        }
        Tune {
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

    /// Whether the key has sealed as many datagrams as it may. The machine is to begin another channel.
    pub fn is_worn(&self) -> bool {
        self.sealed >= CHANNEL_DATAGRAMS_MAX
    }

    /// Sends an append: `header`, and `body`, the bytes of the log from its LSN. About 0.3 µs a datagram for the sealing, and
    /// a system call.
    pub fn send(&mut self, header: &Header, body: &[u8]) -> Sent {
        let mut outcome = Sent::default();
        let mut rest = body;
        for (header, bytes) in cut(*header, body.len(), self.datagram_bytes) {
            let (piece, behind) = rest.split_at(bytes);
            rest = behind;
            // Twice the bound is never reached: the machine is asked for another channel at once, in between frames.
            assert!(self.sealed < 2 * CHANNEL_DATAGRAMS_MAX);
            let length = self.seal(&header, piece);
            let taken = send(
                &self.socket,
                &self.buffer[..length],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            );
            match taken {
                Ok(_) => outcome.sent += 1,
                Err(_) => outcome.lost += 1,
            }
        }
        outcome
    }

    /// Puts one datagram into the buffer; how long it is.
    fn seal(&mut self, header: &Header, body: &[u8]) -> usize {
        let front = DatagramHeader {
            channel: self.channel,
            number: self.sealed,
        };
        self.sealed += 1;
        let (clear, sealed) = self.buffer.split_at_mut(DATAGRAM_HEADER_BYTES);
        clear.copy_from_slice(&front.encode());
        let bytes = FRAME_HEADER_BYTES + body.len();
        sealed[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(body.len()));
        sealed[FRAME_HEADER_BYTES..bytes].copy_from_slice(body);
        let tag = self.key.seal(&front, &mut sealed[..bytes]);
        sealed[bytes..bytes + tag.len()].copy_from_slice(&tag);
        DATAGRAM_HEADER_BYTES + bytes + tag.len()
    }
}

impl Drop for Caster {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl fmt::Debug for Caster {
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
pub struct Dropped {
    /// Of a channel that nobody here listens to, or no datagram of ours at all.
    pub strange: u64,
    /// Came before, or so late that it cannot be told.
    pub doubled: u64,
    /// Does not open: forged or changed.
    pub forged: u64,
}

/// A lender's receiving end: one socket, and the channels that somebody here listens to.
pub struct Ear {
    socket: Socket,
    group: Group,
    channels: HashMap<u64, Channel>,
    buffer: Box<[u8]>,
    dropped: Dropped,
}

struct Channel {
    /// Who listens, in the owner's words.
    listener: usize,
    secret: Zeroizing<[u8; CHANNEL_KEY_BYTES]>,
    key: ChannelKey,
    replay: Replay,
}

/// A datagram that is genuine and new.
#[derive(Debug)]
pub struct Heard<'a> {
    /// Who listens to its channel.
    pub listener: usize,
    /// What it says: one frame, unchecked.
    pub packet: &'a [u8],
}

impl Ear {
    /// Joins `group`. Several ears of one machine, in one process or in many, each hear everything.
    pub fn open(group: &Group) -> io::Result<Ear> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        let index = group.index(&socket)?;
        socket.set_reuse_address(true)?;
        // Bound to the group's own address, the socket hears nothing that is sent to this machine otherwise.
        socket.bind(&group.address.into())?;
        socket.set_multicast_all_v4(false)?;
        socket.join_multicast_v4_n(group.address.ip(), &InterfaceIndexOrAddress::Index(index))?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        Ok(Ear {
            socket,
            group: group.clone(),
            channels: HashMap::new(),
            // One more than the longest: a longer datagram is cut, and then does not open.
            buffer: vec![0; DATAGRAM_BYTES_MAX + 1].into_boxed_slice(),
            dropped: Dropped::default(),
        })
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Hears the channel of `tune` from now on, for `listener`, and no other channel for it. Who listened to it before does
    /// no longer: it is the same client's earlier connection. `false`: a channel of that name has another key.
    pub fn listen(&mut self, tune: &Tune, listener: usize) -> bool {
        if let Some(known) = self.channels.get(&tune.channel)
            && !same(&known.secret, &tune.key)
        {
            return false;
        }
        self.channels
            .retain(|name, channel| channel.listener != listener || *name == tune.channel);
        let channel = self.channels.entry(tune.channel).or_insert_with(|| Channel {
            listener,
            secret: Zeroizing::new(tune.key),
            key: ChannelKey::new(&tune.key),
            replay: Replay::default(),
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
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The next datagram that is genuine and new; `None`: none has come, or only such that were dropped, and there may be
    /// more. One system call a datagram.
    pub fn receive(&mut self) -> io::Result<Option<Heard<'_>>> {
        for _ in 0..DROPPED_MAX {
            let length = match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, length)) => length,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let Some((header, channel)) = DatagramHeader::parse(&self.buffer[..length])
                .and_then(|header| Some((header, self.channels.get_mut(&header.channel)?)))
            else {
                self.dropped.strange += 1;
                continue;
            };
            if !channel.replay.is_new(header.number) {
                self.dropped.doubled += 1;
                continue;
            }
            let listener = channel.listener;
            let sealed = DATAGRAM_HEADER_BYTES..length;
            let opened = match channel.key.open(&header, &mut self.buffer[sealed.clone()]) {
                Ok(packet) => sealed.start..sealed.start + packet.len(),
                Err(DoesNotOpen) => {
                    self.dropped.forged += 1;
                    continue;
                }
            };
            channel.replay.take(header.number);
            return Ok(Some(Heard {
                listener,
                packet: &self.buffer[opened],
            }));
        }
        Ok(None)
    }
}

impl AsFd for Ear {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for Ear {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ear")
            .field("group", &self.group)
            .field("channels", &self.channels.len())
            .finish_non_exhaustive()
    }
}
