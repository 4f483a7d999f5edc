//! The name of a multicast group.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use netram_proto::multicast::ChannelInvite;
use rustix::io::Errno;
use rustix::net::netdevice;
use socket2::Socket;

/// Maximum bytes of an interface's name (Linux: 16 with the closing zero).
const INTERFACE_BYTES_MAX: usize = 15;

/// The group that appends are multicast to: `239.1.2.3:7421`, or `239.1.2.3:7421%eth1` on a machine with
/// several networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// The group's address and port.
    pub address: SocketAddrV4,
    /// The interface's name; `None` leaves the choice to the system.
    pub interface: Option<String>,
}

/// The text is not a [`MulticastGroup`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a multicast group: {problem}; write 239.1.2.3:7421 or 239.1.2.3:7421%eth1")]
pub struct MulticastGroupError {
    /// The rejected text, cut to a printable length.
    pub text: String,
    /// The first problem found.
    pub problem: &'static str,
}

impl FromStr for MulticastGroup {
    type Err = MulticastGroupError;

    fn from_str(text: &str) -> Result<MulticastGroup, MulticastGroupError> {
        parse(text).map_err(|problem| MulticastGroupError {
            text: text.chars().take(64).collect(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<MulticastGroup, &'static str> {
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
    Ok(MulticastGroup {
        address,
        interface: interface.map(str::to_owned),
    })
}

impl fmt::Display for MulticastGroup {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(out)?;
        match &self.interface {
            Some(name) => write!(out, "%{name}"),
            None => Ok(()),
        }
    }
}

impl MulticastGroup {
    /// Whether `invite` is for this group. Interfaces are not compared, since each machine has its own.
    pub fn is_named_by(&self, invite: &ChannelInvite) -> bool {
        self.address == SocketAddrV4::new(Ipv4Addr::from(invite.group), invite.port)
    }

    /// The interface's number; zero leaves the choice to the system.
    pub(crate) fn index(&self, socket: &Socket) -> io::Result<u32> {
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
