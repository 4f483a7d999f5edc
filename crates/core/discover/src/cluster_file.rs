//! The cluster file: the lenders of a cluster, or where to look for them.
//!
//! ```toml
//! dns = "example.org"    # asks for the SRV records of _netram._tcp.example.org
//! mdns = true            # listens for lenders that announce themselves on the local networks
//!
//! [[lender]]
//! address = "tcp://10.0.0.2:7420"
//! name = "ram-1"         # optional, as `netram lender serve --name`
//! domain = "ups-1"       # optional, as `netram lender serve --domain`
//! ```

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netram_process::files;
use netram_transport::NetAddress;
use serde::Deserialize;
use toml::Spanned;

use crate::dns::service_name;
use crate::limit::{BROWSE_DEFAULT, BROWSE_MAX, CLUSTER_FILE_BYTES_MAX, FOUND_MAX};

/// Environment variable that names the file.
pub const CLUSTER_VARIABLE: &str = "NETRAM_CLUSTER";

/// The file of the whole machine.
const MACHINE_FILE: &str = "/etc/netram/cluster.toml";

/// Where a cluster's lenders are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFile {
    /// The file; `None`: there is none, and lenders are found by mDNS.
    pub path: Option<PathBuf>,
    /// The lenders that it names.
    pub lenders: Vec<NamedLender>,
    /// DNS domain whose SRV records name lenders.
    pub dns: Option<String>,
    /// Whether lenders that announce themselves are looked for.
    pub mdns: bool,
    /// How long such announcements are collected.
    pub mdns_wait: Duration,
}

/// A lender that the file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLender {
    /// Its address.
    pub address: NetAddress,
    /// Its name, if the file says it.
    pub name: Option<String>,
    /// The label of its power supply, if the file says it.
    pub domain: Option<String>,
}

/// Why a cluster file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterFileError {
    /// The file cannot be read.
    #[error("the cluster file {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not TOML, has an unknown key, or a wrong value.
    #[error("the cluster file {path} is invalid, line {line}: {reason}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Description of the error.
        reason: String,
    },
    /// The file names neither a lender nor a way to find one.
    #[error(
        "the cluster file {0} names no lender and no way to find one: add [[lender]] with an address, dns = \"DOMAIN\", \
         or mdns = true"
    )]
    Empty(PathBuf),
}

/// The file's values before they are checked.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawClusterFile {
    #[serde(default)]
    lender: Vec<RawLender>,
    dns: Option<Spanned<String>>,
    #[serde(default)]
    mdns: bool,
    mdns_wait_ms: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLender {
    address: Spanned<String>,
    name: Option<Spanned<String>>,
    domain: Option<String>,
}

impl ClusterFile {
    /// Without a file: lenders are those that announce themselves on the local networks.
    pub fn none() -> ClusterFile {
        ClusterFile {
            path: None,
            lenders: Vec::new(),
            dns: None,
            mdns: true,
            mdns_wait: BROWSE_DEFAULT,
        }
    }

    /// Reads the file that `NETRAM_CLUSTER` names; without the variable `netram/cluster.toml` in
    /// `$XDG_CONFIG_HOME` or `~/.config`, except for root; or `/etc/netram/cluster.toml`. If there is none,
    /// the result is [`ClusterFile::none`].
    ///
    /// # Errors
    ///
    /// [`ClusterFileError`] if the file cannot be read or is invalid.
    pub fn load() -> Result<ClusterFile, ClusterFileError> {
        match usual_file() {
            Some(path) => ClusterFile::read(&path),
            None => Ok(ClusterFile::none()),
        }
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// As [`ClusterFile::load`].
    pub fn read(path: &Path) -> Result<ClusterFile, ClusterFileError> {
        let unreadable = |source| ClusterFileError::Unreadable {
            path: path.to_path_buf(),
            source,
        };
        // The file says where records go: root takes it from nobody else.
        let bytes =
            files::read(path, CLUSTER_FILE_BYTES_MAX).map_err(|refusal| unreadable(refusal.into()))?;
        let text = String::from_utf8(bytes)
            .map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error())))?;
        ClusterFile::parse(&text, path)
    }

    /// Parses `text`, the content of a file that is or will be at `path`.
    ///
    /// # Errors
    ///
    /// As [`ClusterFile::load`], except for reading.
    pub fn parse(text: &str, path: &Path) -> Result<ClusterFile, ClusterFileError> {
        let invalid = |at: usize, reason: String| ClusterFileError::Invalid {
            path: path.to_path_buf(),
            line: text[..at.min(text.len())].matches('\n').count() + 1,
            reason,
        };
        let raw: RawClusterFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            invalid(at, error.message().to_owned())
        })?;
        if let Some(beyond) = raw.lender.get(FOUND_MAX) {
            let reason = format!("more than {FOUND_MAX} lenders");
            return Err(invalid(beyond.address.span().start, reason));
        }
        let mut lenders: Vec<NamedLender> = Vec::new();
        for one in raw.lender {
            let lender = one.checked(&lenders).map_err(|(at, why)| invalid(at, why))?;
            lenders.push(lender);
        }
        let dns = raw.dns.map(|domain| {
            let at = domain.span().start;
            let domain = domain.into_inner();
            match service_name(&domain) {
                Ok(_) => Ok(domain),
                Err(error) => Err(invalid(at, format!("dns = {domain:?}: {error}"))),
            }
        });
        let wait = raw.mdns_wait_ms.map(|wait| {
            let length = Duration::from_millis(*wait.get_ref());
            let longest = BROWSE_MAX.as_millis();
            match length <= BROWSE_MAX {
                true => Ok(length),
                false => Err(invalid(
                    wait.span().start,
                    format!("mdns-wait-ms is at most {longest}"),
                )),
            }
        });
        let file = ClusterFile {
            path: Some(path.to_path_buf()),
            lenders,
            dns: dns.transpose()?,
            mdns: raw.mdns,
            mdns_wait: wait.transpose()?.unwrap_or(BROWSE_DEFAULT),
        };
        match file.lenders.is_empty() && file.dns.is_none() && !file.mdns {
            true => Err(ClusterFileError::Empty(path.to_path_buf())),
            false => Ok(file),
        }
    }

    /// The ways by which lenders are looked for, for people.
    pub fn ways(&self) -> String {
        let mut ways = Vec::new();
        if let Some(path) = &self.path {
            ways.push(format!("the cluster file {}", path.display()));
        }
        if let Some(domain) = &self.dns {
            ways.push(format!("the SRV records of _netram._tcp.{domain}"));
        }
        if self.mdns {
            ways.push("mDNS on the local networks".to_owned());
        }
        ways.join(", ")
    }
}

impl RawLender {
    /// Returns the lender; or the position of a mistake in the file, and what it is.
    fn checked(self, earlier: &[NamedLender]) -> Result<NamedLender, (usize, String)> {
        let at = self.address.span().start;
        let address: NetAddress = match self.address.get_ref().parse() {
            Ok(address) => address,
            Err(error) => return Err((at, format!("address: {error}"))),
        };
        if earlier.iter().any(|other| other.address == address) {
            return Err((at, format!("{address} is named twice")));
        }
        if let Some(name) = &self.name
            && earlier
                .iter()
                .any(|other| other.name.as_deref() == Some(name.get_ref()))
        {
            let sentence = format!("two lenders have the name `{}`", name.get_ref());
            return Err((name.span().start, sentence));
        }
        Ok(NamedLender {
            address,
            name: self.name.map(Spanned::into_inner),
            domain: self.domain,
        })
    }
}

/// Returns the cluster file to read; `None`: there is none.
fn usual_file() -> Option<PathBuf> {
    // If the lookup fails, the file may exist: reading it says why it cannot be read (rule 17).
    let exists = |file: &PathBuf| file.try_exists().unwrap_or(true);
    let is_named = variable(CLUSTER_VARIABLE).is_some();
    places().into_iter().find(|file| is_named || exists(file))
}

/// Returns where this user's programs look first for a cluster file: a new one is put there.
pub fn new_cluster_file() -> PathBuf {
    places().swap_remove(0)
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns where the file may be, the first place first.
fn places() -> Vec<PathBuf> {
    if let Some(named) = variable(CLUSTER_VARIABLE) {
        return vec![named.into()];
    }
    let is_root = rustix::process::geteuid().is_root();
    files_of_user(is_root, variable("XDG_CONFIG_HOME"), variable("HOME"))
}

fn files_of_user(is_root: bool, config: Option<OsString>, home: Option<OsString>) -> Vec<PathBuf> {
    netram_transport::security::files_of(is_root, config, home, "netram/cluster.toml", MACHINE_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ClusterFile, ClusterFileError> {
        ClusterFile::parse(text, Path::new("/etc/netram/cluster.toml"))
    }

    #[test]
    fn a_file_names_lenders_and_ways_to_find_more() {
        let file = parse(
            "dns = 'example.org'\nmdns = true\nmdns-wait-ms = 200\n\n[[lender]]\naddress = 'tcp://10.0.0.2:7420'\n\
             name = 'ram-1'\ndomain = 'ups-1'\n[[lender]]\naddress = 'unix:/run/netram.sock'\n",
        )
        .unwrap();
        assert_eq!(file.lenders.len(), 2);
        assert_eq!(file.lenders[0].domain.as_deref(), Some("ups-1"));
        assert_eq!(file.dns.as_deref(), Some("example.org"));
        assert!(file.mdns);
        assert_eq!(file.mdns_wait, Duration::from_millis(200));
        let ways = file.ways();
        assert!(
            ways.contains("_netram._tcp.example.org") && ways.contains("mDNS"),
            "{ways}"
        );
        let alone = parse("[[lender]]\naddress = 'tcp://a:1'\n").unwrap();
        assert!(!alone.mdns, "a file that names lenders asks nobody else");
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, line, word) in [
            ("mdns = true\ndsn = 'x'\n", 2, "dsn"),
            ("mdns = 'yes'\n", 1, "boolean"),
            ("[[lender]]\nname = 'a'\n", 1, "address"),
            ("\n[[lender]]\naddress = '10.0.0.2'\n", 3, "tcp://"),
            (
                "[[lender]]\naddress = 'tcp://a:1'\n[[lender]]\naddress = 'tcp://a:1'\n",
                4,
                "twice",
            ),
            (
                "[[lender]]\naddress = 'tcp://a:1'\nname = 'x'\n[[lender]]\naddress = 'tcp://b:1'\nname = 'x'\n",
                6,
                "two lenders have the name `x`",
            ),
            ("mdns = true\ndns = 'a..b'\n", 2, "a..b"),
            ("mdns-wait-ms = 40000\nmdns = true\n", 1, "30000"),
            ("mdns = true\n[[lender\n", 2, ""),
        ] {
            let error = parse(text).unwrap_err();
            let ClusterFileError::Invalid {
                line: found, reason, ..
            } = &error
            else {
                panic!("{text}: {error}");
            };
            assert_eq!(*found, line, "{text}: {reason}");
            assert!(reason.contains(word), "{text}: {reason}");
            assert!(
                error
                    .to_string()
                    .contains(&format!("cluster.toml is invalid, line {line}"))
            );
        }
        assert!(matches!(parse("mdns = false\n"), Err(ClusterFileError::Empty(_))));
        assert!(matches!(parse(""), Err(ClusterFileError::Empty(_))));
        let absent = ClusterFile::read(Path::new("/nowhere/cluster.toml"));
        assert!(matches!(absent, Err(ClusterFileError::Unreadable { .. })));
    }

    #[test]
    fn a_file_with_more_lenders_than_are_asked_is_refused() {
        let mut text = String::new();
        for port in 1..=FOUND_MAX + 1 {
            text += &format!("[[lender]]\naddress = 'tcp://a:{port}'\n");
        }
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains("more than 64"), "{error}");
    }
}
