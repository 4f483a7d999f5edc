//! Where the page of metrics is served.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// An address of a page of metrics: `IP:PORT`, or `unix:/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A port of an address of this machine; zero lets the system choose one.
    Tcp(SocketAddr),
    /// A socket in the file system, for its owner only.
    Unix(PathBuf),
}

/// The text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address for metrics: write IP:PORT, such as 127.0.0.1:9464, or unix:/PATH")]
pub struct MetricsAddressError(pub String);

impl FromStr for MetricsAddress {
    type Err = MetricsAddressError;

    fn from_str(text: &str) -> Result<MetricsAddress, MetricsAddressError> {
        let wrong = || MetricsAddressError(text.to_owned());
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(MetricsAddress::Unix(path.into())),
            Some(_) => Err(wrong()),
            None => text.parse().map(MetricsAddress::Tcp).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Tcp(address) => write!(out, "{address}"),
            MetricsAddress::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_was_written_and_a_wrong_one_is_named() {
        for text in ["127.0.0.1:9464", "[::1]:0", "unix:/run/netram/metrics"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        for text in [
            "9464",
            "localhost",
            "tcp://127.0.0.1:1",
            "unix:relative",
            "127.0.0.1",
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("IP:PORT"), "{error}");
        }
    }
}
