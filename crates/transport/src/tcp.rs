//! TCP sockets: resolving, connecting with a deadline, listening.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::address::{Host, is_loopback};

/// Addresses tried for one name: a name with more is misconfigured, and each may cost the whole timeout.
const RESOLVED_MAX: usize = 8;
/// Connections that the kernel holds for a lender that is busy; the system may allow fewer.
pub(crate) const BACKLOG: i32 = 1024;

/// The addresses behind `host`. Blocks as long as the system's resolver does.
pub(crate) fn resolve(host: &Host, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = match host {
        Host::Ip(ip) => vec![SocketAddr::new(*ip, port)],
        // Interfaces are numbered anew at every start of a machine: the system's resolver knows their numbers.
        Host::Zoned(ip, zone) => (format!("{ip}%{zone}").as_str(), port)
            .to_socket_addrs()?
            .collect(),
        Host::Name(name) => (name.as_str(), port)
            .to_socket_addrs()?
            .take(RESOLVED_MAX)
            .collect(),
    };
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

/// Whether nothing leaves this machine on the way to any of them.
pub(crate) fn all_loopback(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| is_loopback(address.ip()))
}

/// Connects to the first that answers before `deadline`. The socket returned is non-blocking.
pub(crate) fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<(OwnedFd, String)> {
    let mut failure = io::Error::from(io::ErrorKind::TimedOut);
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            break;
        }
        match TcpStream::connect_timeout(address, left) {
            Ok(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                return Ok((stream.into(), format!("tcp://{address}")));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Listens, and returns the address with the port that the system chose if it was zero.
pub(crate) fn listen(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    // A lender that restarts must not wait for the last connections of its former life to time out.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // One socket, one family: an operator who binds [::] does not open the IPv4 side unknowingly.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket.into(), bound))
}

/// Sends small packets at once instead of waiting for more. Returns who connected.
pub(crate) fn prepare_accepted(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket
        .peer_addr()?
        .as_socket()
        .ok_or_else(|| io::ErrorKind::NotConnected.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only with the interface's number the kernel knows which link an address of a link is at.
    #[test]
    fn a_link_local_address_has_its_interface() {
        let found = resolve(&Host::Zoned("fe80::1".parse().unwrap(), "lo".to_owned()), 7420).unwrap();
        let [SocketAddr::V6(one)] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (one.scope_id(), one.port()),
            (1, 7420),
            "lo is the first interface"
        );
        let nowhere = Host::Zoned("fe80::1".parse().unwrap(), "none".to_owned());
        assert!(resolve(&nowhere, 7420).is_err());
    }
}
