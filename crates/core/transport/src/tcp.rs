//! TCP sockets: connecting with a deadline, wherever a name leads; listening.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::address::{NetHost, is_loopback};
use crate::happy_eyeballs::{ConnectRace, ConnectedSocket};
use crate::lookup::{self, NameQuery};

/// Addresses tried for one name: a name with more is misconfigured, and each may cost the whole timeout.
const RESOLVED_MAX: usize = 8;
/// Connections that the kernel holds for a lender that is busy; the system may allow fewer.
pub(crate) const BACKLOG: i32 = 1024;

/// A name that was found before is tried there when its look-up takes longer.
const CACHED_ADDRESS_DELAY: Duration = Duration::from_millis(150);
/// A connection on which nothing moves is asked after so long whether the other machine is there. Whoever
/// needs to know earlier has heartbeats of his own; this is for links that say nothing for long, as those
/// between nodes do.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// What was sent and is not acknowledged for so long ends a connection. The system's own patience is a
/// quarter of an hour.
const UNACKED_TIMEOUT: Duration = Duration::from_secs(20);
/// While a look-up is under way its answer is looked for this often, beside attempts.
const LOOKUP_POLL: Duration = Duration::from_millis(5);
/// When all addresses of one family have failed, those of the other are waited for so long.
const OTHER_FAMILY_DELAY: Duration = Duration::from_millis(250);

/// The addresses behind `host`, to listen at. Blocks as long as the system's resolver does.
pub(crate) fn resolve(host: &NetHost, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = match host {
        NetHost::Ip(ip) => vec![SocketAddr::new(*ip, port)],
        // Interfaces are numbered anew at every start of a machine: the system's resolver knows their
        // numbers.
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

/// Whether nothing leaves this machine on the way to any of them.
pub(crate) fn all_loopback(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| is_loopback(address.ip()))
}

/// Why there is no connection.
pub(crate) enum TcpConnectError {
    /// Something of it would leave this machine, and must not.
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

/// A connection that is being sought.
struct ConnectSearch<'a> {
    port: u16,
    local_only: bool,
    question: Option<NameQuery>,
    race: ConnectRace,
    /// What the resolver said of the family without addresses.
    missing: Option<io::Error>,
    deadline: Instant,
    known_from: Instant,
    /// All that was found has failed, since then.
    failed: Option<Instant>,
    host: &'a NetHost,
}

/// Connects to the first address of `host` that answers before `deadline`. The socket returned is
/// non-blocking. A name server that keeps silent costs what is known of the name nothing but a moment.
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
        // No name server knows of these.
        literal => {
            let found = resolve(literal, port).map_err(TcpConnectError::NameNotFound)?;
            found.into_iter().try_for_each(|address| search.add(address))?;
        }
    }
    search.run()
}

/// A link came about there: should the name not be found next time, this is tried.
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

/// Sends small packets at once instead of waiting for more, and notices when the other machine is gone,
/// whatever is said meanwhile.
pub(crate) fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let asked = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&asked)?;
    socket.set_tcp_user_timeout(Some(UNACKED_TIMEOUT))
}

/// Prepares a connection that was accepted. Returns who connected.
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

    /// Both ends of a connection notice that the other machine is gone though nobody says anything.
    #[test]
    fn both_ends_of_a_connection_are_watched() {
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

    /// Only with the interface's number the kernel knows which link an address of a link is at.
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
