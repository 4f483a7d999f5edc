//! TCP sockets: connecting to a name with a deadline, and listening.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::address::{NetHost, is_loopback};
use crate::happy_eyeballs::{ConnectRace, ConnectedSocket};
use crate::lookup::{self, NameQuery};

/// Maximum addresses tried for one name; a name with more is misconfigured, and each may cost the whole
/// timeout.
const RESOLVED_MAX: usize = 8;
/// Length of the kernel's queue of connections that a lender has not accepted yet; the system may allow less.
pub(crate) const BACKLOG: i32 = 1024;

/// Delay of a lookup after which the name's cached addresses are tried.
const CACHED_ADDRESS_DELAY: Duration = Duration::from_millis(150);
/// Idle time after which keepalive probes begin. Journals detect failures earlier by heartbeats; probes are
/// for links that are silent for long, such as those between nodes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which unacknowledged data ends a connection (`TCP_USER_TIMEOUT`). The system's default is a
/// quarter of an hour.
const UNACKED_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which a running lookup is polled while connection attempts are under way.
const LOOKUP_POLL: Duration = Duration::from_millis(5);
/// Time to wait for the other family's addresses once all addresses of one family have failed.
const OTHER_FAMILY_DELAY: Duration = Duration::from_millis(250);

/// The addresses of `host`, for listening. Blocks as long as the system's resolver does.
pub(crate) fn resolve(host: &NetHost, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = match host {
        NetHost::Ip(ip) => vec![SocketAddr::new(*ip, port)],
        // Interfaces are renumbered at every boot; the system's resolver knows their current numbers.
        NetHost::Zoned(ip, zone) => (format!("{ip}%{zone}").as_str(), port)
            .to_socket_addrs()?
            .collect(),
        NetHost::Name(name) => (name.as_str(), port)
            .to_socket_addrs()?
            .take(RESOLVED_MAX)
            .collect(),
    };
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

/// Whether all addresses are loopback addresses.
pub(crate) fn all_loopback(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| is_loopback(address.ip()))
}

/// Why no connection was made.
pub(crate) enum TcpConnectError {
    /// An address is not local, and only local ones are allowed.
    Refused,
    NameNotFound(io::Error),
    NameUnanswered,
    Failed(io::Error),
}

impl From<io::Error> for TcpConnectError {
    fn from(error: io::Error) -> TcpConnectError {
        TcpConnectError::Failed(error)
    }
}

/// A search for a connection: a lookup and a race of attempts.
struct ConnectSearch<'a> {
    port: u16,
    local_only: bool,
    question: Option<NameQuery>,
    race: ConnectRace,
    /// The resolver's error for the family without addresses.
    missing: Option<io::Error>,
    deadline: Instant,
    known_from: Instant,
    /// When the last attempt failed, while no other is waiting or under way.
    failed: Option<Instant>,
    host: &'a NetHost,
}

/// Connects to the first address of `host` that answers before `deadline`. The socket returned is
/// non-blocking. A silent name server delays the cached addresses by [`CACHED_ADDRESS_DELAY`] only.
pub(crate) fn connect(
    host: &NetHost,
    port: u16,
    local_only: bool,
    deadline: Instant,
) -> Result<(OwnedFd, SocketAddr), TcpConnectError> {
    let mut search = ConnectSearch {
        port,
        local_only,
        question: None,
        race: ConnectRace::default(),
        missing: None,
        deadline,
        known_from: Instant::now() + CACHED_ADDRESS_DELAY,
        failed: None,
        host,
    };
    match host {
        NetHost::Name(name) => search.question = Some(NameQuery::ask(name)?),
        // Literal addresses need no name server.
        literal => {
            let found = resolve(literal, port).map_err(TcpConnectError::NameNotFound)?;
            found.into_iter().try_for_each(|address| search.add(address))?;
        }
    }
    search.run()
}

/// Caches the address at which a connection succeeded, for a later lookup that gets no answer.
pub(crate) fn remember(host: &NetHost, address: SocketAddr) {
    if let NetHost::Name(name) = host {
        lookup::remember(name, address.ip());
    }
}

impl ConnectSearch<'_> {
    fn run(mut self) -> Result<ConnectedSocket, TcpConnectError> {
        while Instant::now() < self.deadline {
            self.take_answers()?;
            let asking = self.question.as_ref().filter(|question| question.is_open());
            if !self.race.is_idle() {
                self.failed = None;
                let until = match asking {
                    Some(_) => self.deadline.min(Instant::now() + LOOKUP_POLL),
                    None => self.deadline,
                };
                if let Some(won) = self.race.run(until)? {
                    return Ok(won);
                }
                continue;
            }
            let Some(question) = asking else { break };
            let now = Instant::now();
            let mut until = self.deadline;
            if now < self.known_from {
                until = until.min(self.known_from);
            }
            if self.race.has_failed() && question.is_answered() {
                let since = *self.failed.get_or_insert(now);
                if since + OTHER_FAMILY_DELAY <= now {
                    break;
                }
                until = until.min(since + OTHER_FAMILY_DELAY);
            }
            question.wait(until);
        }
        Err(self.verdict())
    }

    fn take_answers(&mut self) -> Result<(), TcpConnectError> {
        let Some(question) = &mut self.question else {
            return Ok(());
        };
        let mut found = Vec::new();
        while let Some(answer) = question.take() {
            match answer {
                Ok(answer) => found.extend(answer.into_iter().take(RESOLVED_MAX)),
                Err(nothing) => self.missing = Some(io::Error::other(nothing.0)),
            }
        }
        if question.is_open() && Instant::now() >= self.known_from {
            found.extend(question.known());
        }
        let port = self.port;
        found
            .into_iter()
            .try_for_each(|ip| self.add(SocketAddr::new(ip, port)))
    }

    fn add(&mut self, address: SocketAddr) -> Result<(), TcpConnectError> {
        if self.local_only && !is_loopback(address.ip()) {
            return Err(TcpConnectError::Refused);
        }
        self.race.add(address);
        Ok(())
    }

    fn verdict(mut self) -> TcpConnectError {
        let idle = self.race.is_idle();
        match (self.race.failure().filter(|_| idle), &self.question) {
            (Some(failure), _) => TcpConnectError::Failed(failure),
            (None, Some(question)) if idle && question.is_open() => TcpConnectError::NameUnanswered,
            (None, Some(_)) if idle => {
                TcpConnectError::NameNotFound(self.missing.take().unwrap_or_else(|| {
                    io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", self.host))
                }))
            }
            _ => TcpConnectError::Failed(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Listens at `address`. Returns the bound address, with the port that the system chose if it was zero.
pub(crate) fn listen(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    // A lender that restarts must not wait for connections of its previous process to time out.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // IPv6 only, so that an operator who binds [::] does not open IPv4 unknowingly.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket.into(), bound))
}

/// Disables Nagle's algorithm, and enables the detection of an unreachable peer, both with and without
/// traffic.
pub(crate) fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let asked = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&asked)?;
    socket.set_tcp_user_timeout(Some(UNACKED_TIMEOUT))
}

/// Prepares an accepted connection and returns the peer's address.
pub(crate) fn prepare_accepted(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let socket = SockRef::from(socket);
    prepare(&socket)?;
    socket
        .peer_addr()?
        .as_socket()
        .ok_or_else(|| io::ErrorKind::NotConnected.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither end would notice otherwise that the other machine is gone while no data is sent.
    #[test]
    fn both_ends_of_a_connection_have_keepalive() {
        let (listener, at) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let host = NetHost::Ip(at.ip());
        let deadline = Instant::now() + Duration::from_secs(10);
        let Ok((near, to)) = connect(&host, at.port(), true, deadline) else {
            panic!("it listens")
        };
        assert_eq!(to, at);
        let (far, _) = Socket::from(listener).accept().unwrap();
        let far = OwnedFd::from(far);
        prepare_accepted(&far).unwrap();
        for end in [near, far] {
            let end = Socket::from(end);
            assert!(end.keepalive().unwrap());
            assert_eq!(end.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
            assert_eq!(end.tcp_user_timeout().unwrap(), Some(UNACKED_TIMEOUT));
        }
    }

    /// The kernel needs the interface's number to know which link a link-local address belongs to.
    #[test]
    fn a_link_local_address_has_its_interface() {
        let found = resolve(&NetHost::Zoned("fe80::1".parse().unwrap(), "lo".to_owned()), 7420).unwrap();
        let [SocketAddr::V6(one)] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (one.scope_id(), one.port()),
            (1, 7420),
            "lo is the first interface"
        );
        let nowhere = NetHost::Zoned("fe80::1".parse().unwrap(), "none".to_owned());
        assert!(resolve(&nowhere, 7420).is_err());
    }
}
