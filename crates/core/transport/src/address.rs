//! The address of a lender: `tcp://host:port` or `unix:/path`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use netram_proto::limit::ADDRESS_BYTES_MAX;

/// Maximum bytes of a Unix socket's path: `sun_path` holds 108 with the closing zero.
pub const UNIX_PATH_BYTES_MAX: usize = 107;
/// Maximum bytes of a host name (RFC 1035).
pub const HOST_BYTES_MAX: usize = 253;

/// Maximum bytes of an interface's name (`IFNAMSIZ` without the closing zero).
const INTERFACE_BYTES_MAX: usize = 15;

/// An address where a lender listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetAddress {
    /// `tcp://host:port`; IPv6 addresses are written in brackets.
    Tcp {
        /// The host.
        host: NetHost,
        /// The port; when binding, zero lets the system choose one.
        port: u16,
    },
    /// `unix:/path`, always absolute.
    Unix(PathBuf),
}

/// A machine in an [`NetAddress`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetHost {
    /// A literal IPv4 or IPv6 address.
    Ip(IpAddr),
    /// A link-local IPv6 address and the name of its interface: `fe80::1%eth0`.
    Zoned(Ipv6Addr, String),
    /// A host name, resolved anew at every connect.
    Name(String),
}

/// The text is not a [`NetAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address: {problem}; write tcp://host:port or unix:/path")]
pub struct NetAddressError {
    /// The rejected text, cut to a printable length.
    pub text: String,
    /// The first problem found.
    pub problem: &'static str,
}

impl NetAddress {
    /// Whether only this machine can reach the address: a Unix socket, a loopback IP, or the name
    /// `localhost`. Its resolution is checked again when connecting or binding without a key.
    pub fn is_local(&self) -> bool {
        match self {
            NetAddress::Unix(_) => true,
            NetAddress::Tcp {
                host: NetHost::Ip(ip),
                ..
            } => is_loopback(*ip),
            // A link-local address can reach other machines.
            NetAddress::Tcp {
                host: NetHost::Zoned(..),
                ..
            } => false,
            NetAddress::Tcp {
                host: NetHost::Name(name),
                ..
            } => name.eq_ignore_ascii_case("localhost"),
        }
    }
}

/// Whether `ip` is a loopback address, also one written as IPv4 inside IPv6.
pub(crate) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

impl FromStr for NetAddress {
    type Err = NetAddressError;

    fn from_str(text: &str) -> Result<NetAddress, NetAddressError> {
        let parsed = if text.len() > ADDRESS_BYTES_MAX {
            Err("it is longer than 256 bytes")
        } else if let Some(rest) = text.strip_prefix("tcp://") {
            parse_tcp(rest)
        } else if let Some(path) = text.strip_prefix("unix:") {
            parse_unix(path)
        } else {
            Err("it begins with neither tcp:// nor unix:")
        };
        parsed.map_err(|problem| NetAddressError {
            text: text.chars().take(64).collect(),
            problem,
        })
    }
}

fn parse_tcp(rest: &str) -> Result<NetAddress, &'static str> {
    let (host, port) = if let Some(bracketed) = rest.strip_prefix('[') {
        let (ip, port) = bracketed.split_once(']').ok_or("the bracket is not closed")?;
        (
            parse_bracketed(ip)?,
            port.strip_prefix(':').ok_or("the port is missing")?,
        )
    } else {
        let (host, port) = rest.rsplit_once(':').ok_or("the port is missing")?;
        (parse_host(host)?, port)
    };
    // `u16::from_str` would accept a plus sign.
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("the port is not a number");
    }
    let port = port.parse().map_err(|_| "the port exceeds 65535")?;
    Ok(NetAddress::Tcp { host, port })
}

fn parse_bracketed(text: &str) -> Result<NetHost, &'static str> {
    let (ip, zone) = match text.split_once('%') {
        Some((ip, zone)) => (ip, Some(zone)),
        None => (text, None),
    };
    let ip: Ipv6Addr = ip
        .parse()
        .map_err(|_| "the brackets do not hold an IPv6 address")?;
    let Some(zone) = zone else {
        return Ok(NetHost::Ip(IpAddr::V6(ip)));
    };
    if !ip.is_unicast_link_local() {
        return Err("only a link-local IPv6 address (fe80::...) may be followed by %interface");
    }
    let named = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'/' | b'[' | b']');
    if zone.is_empty() || zone.len() > INTERFACE_BYTES_MAX || !zone.bytes().all(named) {
        return Err("an interface such as eth0 must follow the %");
    }
    Ok(NetHost::Zoned(ip, zone.to_owned()))
}

fn parse_host(host: &str) -> Result<NetHost, &'static str> {
    if host.is_empty() {
        return Err("the host is missing");
    }
    if host.contains(':') {
        return Err("an IPv6 address must be in brackets");
    }
    if let Ok(ip) = host.parse() {
        return Ok(NetHost::Ip(ip));
    }
    if host.len() > HOST_BYTES_MAX {
        return Err("the host is longer than 253 bytes");
    }
    if host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err("the host is neither an IPv4 address nor a name");
    }
    let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !host.bytes().all(named) {
        return Err("a host name may contain only letters, digits, '-', '_' and '.'");
    }
    Ok(NetHost::Name(host.to_owned()))
}

fn parse_unix(path: &str) -> Result<NetAddress, &'static str> {
    if !path.starts_with('/') {
        return Err("the path of a Unix socket must be absolute");
    }
    if path.len() > UNIX_PATH_BYTES_MAX {
        return Err("the path of a Unix socket is longer than 107 bytes");
    }
    if path.contains('\0') {
        return Err("the path contains a zero byte");
    }
    Ok(NetAddress::Unix(PathBuf::from(path)))
}

impl fmt::Display for NetAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetAddress::Tcp { host, port } => write!(out, "tcp://{host}:{port}"),
            NetAddress::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for NetHost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetHost::Ip(IpAddr::V6(ip)) => write!(out, "[{ip}]"),
            NetHost::Ip(ip) => ip.fmt(out),
            NetHost::Zoned(ip, zone) => write!(out, "[{ip}%{zone}]"),
            NetHost::Name(name) => out.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_prints_as_it_was_parsed() {
        for text in [
            "tcp://127.0.0.1:7070",
            "tcp://[::1]:7070",
            "tcp://[fe80::1%eth0]:7070",
            "tcp://lender-3.rack_2.example:1",
            "unix:/run/netram/lender",
        ] {
            let address: NetAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn only_this_machine_is_local() {
        let local = |text: &str| text.parse::<NetAddress>().unwrap().is_local();
        assert!(local("unix:/a"));
        assert!(local("tcp://127.8.9.1:1"));
        assert!(local("tcp://[::1]:1"));
        assert!(local("tcp://[::ffff:127.0.0.1]:1"));
        assert!(local("tcp://localhost:1"));
        assert!(!local("tcp://0.0.0.0:1"));
        assert!(!local("tcp://[::]:1"));
        assert!(!local("tcp://10.0.0.1:1"));
        assert!(!local("tcp://localhost.example:1"));
    }

    #[test]
    fn refusals_name_the_problem() {
        for (text, problem) in [
            ("127.0.0.1:1", "it begins with neither tcp:// nor unix:"),
            ("tcp://host", "the port is missing"),
            ("tcp://[::1]", "the port is missing"),
            ("tcp://[::1:7", "the bracket is not closed"),
            ("tcp://[host]:7", "the brackets do not hold an IPv6 address"),
            ("tcp://::1:7", "an IPv6 address must be in brackets"),
            ("tcp://:7", "the host is missing"),
            ("tcp://host:", "the port is not a number"),
            ("tcp://host:+7", "the port is not a number"),
            ("tcp://host:65536", "the port exceeds 65535"),
            ("tcp://1.2.3:7", "the host is neither an IPv4 address nor a name"),
            (
                "tcp://ho st:7",
                "a host name may contain only letters, digits, '-', '_' and '.'",
            ),
            ("unix:run", "the path of a Unix socket must be absolute"),
        ] {
            assert_eq!(text.parse::<NetAddress>().unwrap_err().problem, problem, "{text}");
        }
        assert!(
            format!("unix:/{}", "a".repeat(107))
                .parse::<NetAddress>()
                .is_err()
        );
        assert!(
            format!("tcp://{}:1", "a".repeat(300))
                .parse::<NetAddress>()
                .is_err()
        );
    }
}
