//! Asks name servers for SRV records, over UDP and, if an answer is cut, over TCP. Blocks, within a bound.
//!
//! The C library's resolver answers for addresses only, and its other interface is not safe to call from
//! Rust; resolvers in Rust bring a runtime, which programs that link netram must not get.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom, SystemRandom};

use super::message::{DnsAnswer, SrvRecord, answer, question};
use super::order::in_order;
use super::service_name;
use crate::limit::{DNS_ATTEMPT, DNS_BYTES_MAX, DNS_PATIENCE, DNS_ROUNDS};

/// Why a domain's SRV records could not be had.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The domain is not one.
    #[error("{domain:?} is {reason}")]
    Domain {
        /// The text given.
        domain: String,
        /// Description of the mistake.
        reason: String,
    },
    /// No such name exists.
    #[error("DNS has no name {name}: add SRV records for it, or correct the domain (NXDOMAIN from {server})")]
    NoName {
        /// The name asked for.
        name: String,
        /// The server that answered.
        server: SocketAddr,
    },
    /// The name has no SRV record.
    #[error("DNS has no SRV record for {name} ({server} answered)")]
    NoRecords {
        /// The name asked for.
        name: String,
        /// The server that answered.
        server: SocketAddr,
    },
    /// The domain says that it has no lenders.
    #[error("DNS says that {name} is not offered: its SRV record names `.` ({server} answered)")]
    NotOffered {
        /// The name asked for.
        name: String,
        /// The server that answered.
        server: SocketAddr,
    },
    /// No server gave an answer in time.
    #[error(
        "no name server answered for the SRV records of {name} within {patience:?}: asked {servers}{why}"
    )]
    Silent {
        /// The name asked for.
        name: String,
        /// How long answers were awaited.
        patience: Duration,
        /// The servers.
        servers: String,
        /// What the last of them said instead, in brackets; empty if nothing.
        why: String,
    },
}

/// Looks up the SRV records of the lenders of `domain`, in the order in which they are to be used.
///
/// # Errors
///
/// One [`DnsError`] a cause, within [`DNS_PATIENCE`].
pub fn look_up(domain: &str, servers: &[SocketAddr]) -> Result<Vec<SrvRecord>, DnsError> {
    let name = service_name(domain).map_err(|reason| DnsError::Domain {
        domain: domain.to_owned(),
        reason,
    })?;
    let deadline = Instant::now() + DNS_PATIENCE;
    let mut why = String::new();
    for server in servers.iter().cycle().take(servers.len() * DNS_ROUNDS) {
        let until = deadline.min(Instant::now() + DNS_ATTEMPT);
        let (name, server) = (name.clone(), *server);
        match ask(&name, server, until) {
            Ok(DnsAnswer::Records(records)) => return Ok(in_order(records, &mut below)),
            Ok(DnsAnswer::NoRecords) => return Err(DnsError::NoRecords { name, server }),
            Ok(DnsAnswer::NoName) => return Err(DnsError::NoName { name, server }),
            Ok(DnsAnswer::NotOffered) => return Err(DnsError::NotOffered { name, server }),
            Ok(DnsAnswer::Refused(code)) => why = format!(" ({server} said {code})"),
            Ok(DnsAnswer::Cut) => why = format!(" ({server} cut its answer even over TCP)"),
            Err(error) => why = format!(" ({server}: {error})"),
        }
    }
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    Err(DnsError::Silent {
        name,
        patience: DNS_PATIENCE,
        servers: servers.join(", "),
        why,
    })
}

fn below(most: u32) -> u32 {
    let mut bytes = [0; 4];
    // Without random bytes the first record is chosen: the order is a matter of load only.
    let drawn = SystemRandom::new().fill(&mut bytes).is_ok();
    let number = (u64::from(u32::from_le_bytes(bytes)) * (u64::from(most) + 1)) >> 32;
    u32::try_from(number).unwrap_or(0) * u32::from(drawn)
}

/// Asks one server, over TCP too if its answer is cut.
fn ask(name: &str, server: SocketAddr, until: Instant) -> io::Result<DnsAnswer> {
    let mut id = [0; 2];
    let drawn = SystemRandom::new().fill(&mut id);
    drawn.map_err(|_| io::Error::other("the system gave no random number"))?;
    let id = u16::from_le_bytes(id);
    let asked = question(name, id).map_err(|error| io::Error::other(error.to_string()))?;
    match over_udp(name, id, &asked, server, until)? {
        DnsAnswer::Cut => over_tcp(name, id, &asked, server, until),
        answer => Ok(answer),
    }
}

fn over_udp(name: &str, id: u16, asked: &[u8], server: SocketAddr, until: Instant) -> io::Result<DnsAnswer> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    // Connected, so that the system drops what others send.
    socket.connect(server)?;
    socket.send(asked)?;
    let mut bytes = vec![0; DNS_BYTES_MAX];
    loop {
        socket.set_read_timeout(Some(left(until)?))?;
        let length = match socket.recv(&mut bytes) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(or_silent(error)),
        };
        if let Some(answer) = answer(&bytes[..length], name, id) {
            return Ok(answer);
        }
    }
}

fn over_tcp(name: &str, id: u16, asked: &[u8], server: SocketAddr, until: Instant) -> io::Result<DnsAnswer> {
    let mut stream = TcpStream::connect_timeout(&server, left(until)?).map_err(or_silent)?;
    stream.set_write_timeout(Some(left(until)?))?;
    let length = u16::try_from(asked.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], asked].concat())?;
    let mut length = [0; 2];
    read_exact(&mut stream, &mut length, until)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    read_exact(&mut stream, &mut bytes, until)?;
    answer(&bytes, name, id).ok_or_else(|| io::Error::other("it answered another question"))
}

/// Fills `bytes` by a deadline: a server that sends a byte a second must not be waited for without end.
fn read_exact(stream: &mut TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(or_silent(error)),
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")),
        false => Ok(left),
    }
}

fn or_silent(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no answer")
        }
        _ => error,
    }
}
