//! The name of a UPS, as NUT's programs take it: `NAME@HOST:PORT`.

use std::fmt;
use std::str::FromStr;

use crate::limit::{PORT_DEFAULT, WORD_BYTES_MAX};

/// A UPS, and where its `upsd` listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpsName {
    /// The name of the UPS at `upsd`.
    pub ups: String,
    /// The host's name or address.
    pub host: String,
    /// The port of `upsd`.
    pub port: u16,
}

/// Why a text names no UPS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpsNameError {
    /// The UPS's name is missing, too long, or has characters that NUT does not allow.
    #[error("`{0}` is no name of a UPS: write NAME@HOST or NAME@HOST:PORT, as `upsc -l` lists it")]
    Ups(String),
    /// The host is missing, too long, or has characters that no host's name has.
    #[error("`{0}` is no host: write NAME@HOST or NAME@HOST:PORT, and an IPv6 address in brackets")]
    Host(String),
    /// The port is no number from 1 to 65535.
    #[error("`{0}` is no port")]
    Port(String),
}

impl FromStr for UpsName {
    type Err = UpsNameError;

    fn from_str(text: &str) -> Result<UpsName, UpsNameError> {
        let (ups, place) = text.split_once('@').unwrap_or((text, "localhost"));
        let fits = |word: &str| !word.is_empty() && word.len() <= WORD_BYTES_MAX;
        let is_plain = |char: char| char.is_ascii_graphic() && !"\"\\#=@".contains(char);
        if !fits(ups) || !ups.chars().all(is_plain) {
            return Err(UpsNameError::Ups(ups.to_owned()));
        }
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, "")) => (host, None),
                Some((host, port)) if port.starts_with(':') => (host, Some(&port[1..])),
                _ => return Err(UpsNameError::Host(place.to_owned())),
            },
            None => match place.split_once(':') {
                // More than one colon is an address without its brackets.
                Some((_, port)) if port.contains(':') => return Err(UpsNameError::Host(place.to_owned())),
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        if !fits(host) || !host.chars().all(|char| is_plain(char) && char != '/') {
            return Err(UpsNameError::Host(host.to_owned()));
        }
        let port = match port {
            None => PORT_DEFAULT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| UpsNameError::Port(port.to_owned()))?,
        };
        Ok(UpsName {
            ups: ups.to_owned(),
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for UpsName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UpsName { ups, host, port } = self;
        match (host.contains(':'), *port) {
            (true, PORT_DEFAULT) => write!(out, "{ups}@[{host}]"),
            (true, port) => write!(out, "{ups}@[{host}]:{port}"),
            (false, PORT_DEFAULT) => write!(out, "{ups}@{host}"),
            (false, port) => write!(out, "{ups}@{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(String, String, u16), UpsNameError> {
        text.parse().map(|name: UpsName| (name.ups, name.host, name.port))
    }

    #[test]
    fn a_ups_is_named_as_nut_names_it() {
        let named = |ups: &str, host: &str, port| Ok((ups.to_owned(), host.to_owned(), port));
        assert_eq!(parsed("rack"), named("rack", "localhost", 3493));
        assert_eq!(parsed("rack-1@10.0.0.2"), named("rack-1", "10.0.0.2", 3493));
        assert_eq!(parsed("rack@ups.lan:4000"), named("rack", "ups.lan", 4000));
        assert_eq!(parsed("rack@[::1]"), named("rack", "::1", 3493));
        assert_eq!(parsed("rack@[fe80::1%eth0]:1"), named("rack", "fe80::1%eth0", 1));
        for text in [
            "rack@localhost",
            "rack@ups.lan:4000",
            "rack@[::1]",
            "rack@[::1]:9",
        ] {
            assert_eq!(text.parse::<UpsName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_could_carry_another_command_is_no_name() {
        for ups in ["", "a b@h", "a\nFSD rack@h", "a\"@h", "a\\@h", "#@h", "ü@h", "@h"] {
            assert!(matches!(parsed(ups), Err(UpsNameError::Ups(_))), "{ups:?}");
        }
        for host in [
            "a@", "a@h h", "a@b@c", "a@::1", "a@[::1", "a@[::1]x", "a@/h", "a@[]", "a@:1",
        ] {
            assert!(matches!(parsed(host), Err(UpsNameError::Host(_))), "{host:?}");
        }
        for port in ["a@h:", "a@h:0", "a@h:65536", "a@h:x", "a@[::1]:"] {
            assert!(matches!(parsed(port), Err(UpsNameError::Port(_))), "{port:?}");
        }
        let long = "n".repeat(WORD_BYTES_MAX + 1);
        assert!(matches!(parsed(&long), Err(UpsNameError::Ups(_))));
        assert!(matches!(parsed(&format!("a@{long}")), Err(UpsNameError::Host(_))));
    }
}
