//! Flags shared by several subcommands.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Args;
use netram_clients::ClientRegistry;
use netram_discover::ClusterFile;
use netram_journal::JournalSettings;
use netram_journal::settings::{self, LenderName};
use netram_transport::security::{KEY_VARIABLE, default_key_file};
use netram_transport::{NetAddress, NetHost, Security, SecurityError};
use serde::{Deserialize, Deserializer};

/// A command line that cannot be carried out as given: the program ends with exit code 2.
#[derive(Debug)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Protection of the links to lenders.
#[derive(Debug, Args)]
pub struct SecurityArgs {
    /// File with the cluster key, the one that the lenders were started with
    /// [default: ~/.config/netram/key if there is one and you are not root, /etc/netram/key]
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Use no key and no encryption; only for addresses on this machine
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl SecurityArgs {
    /// Returns the protection that was asked for.
    ///
    /// # Errors
    ///
    /// As [`security`].
    pub fn security(&self) -> Result<Security> {
        security(self.key_file.as_ref(), self.insecure)
    }

    /// Returns the file of the key, as [`key_file`] does.
    pub(crate) fn key_file(&self, has_lenders: bool) -> Option<PathBuf> {
        key_file(self.key_file.as_ref(), self.insecure, has_lenders)
    }
}

/// Returns the protection of a server's listeners that was asked for: a key for all clients or none, or the
/// file of named clients.
///
/// # Errors
///
/// As [`security`]; or the file of clients cannot be read, or is given beside a key.
pub(crate) fn protection(
    key_file: Option<&PathBuf>,
    insecure: bool,
    clients: Option<&PathBuf>,
) -> Result<(Security, Option<Arc<ClientRegistry>>)> {
    let Some(clients) = clients else {
        return Ok((security(key_file, insecure)?, None));
    };
    if key_file.is_some() || insecure {
        let sentence =
            "--clients has the keys of all clients: leave --key-file, NETRAM_KEY_FILE and --insecure out";
        return Err(UsageError(sentence.to_owned()).into());
    }
    let registry = ClientRegistry::read(clients)?;
    Ok((Security::Insecure, Some(Arc::new(registry))))
}

/// Port of a lender that was not told another one.
pub(crate) const LENDER_PORT: u16 = 7420;

/// Returns where a server listens that was not told: without a key only this machine may connect.
pub(crate) fn default_address(security: &Security, has_clients: bool, port: u16) -> NetAddress {
    let ip = match security {
        Security::Insecure if !has_clients => Ipv4Addr::LOCALHOST,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    NetAddress::Tcp {
        host: NetHost::Ip(ip.into()),
        port,
    }
}

/// Variable that names lenders, separated by commas.
pub(crate) const LENDERS_VARIABLE: &str = "NETRAM_LENDERS";

/// Lenders to ask: as flags, as plain arguments, or from the environment.
#[derive(Debug, Args)]
pub(crate) struct LenderAddresses {
    /// Lender to ask: tcp://HOST:PORT or unix:/PATH; repeat it for several
    /// [default: the lenders in NETRAM_LENDERS; with `auto` those that are found]
    #[arg(long = "lender", value_name = "ADDRESS")]
    flags: Vec<NetAddress>,
    /// Lenders to ask, without the flag
    #[arg(value_name = "ADDRESS")]
    plain: Vec<NetAddress>,
}

impl LenderAddresses {
    /// Returns the lenders given on the command line; if there are none, those that the environment names or
    /// that are found as it says.
    fn named(&self, security: &SecurityArgs) -> Result<Vec<NetAddress>> {
        let given = self.given();
        match given.is_empty() {
            true => found(&lenders_in_environment()?, security),
            false => Ok(given),
        }
    }

    /// Returns the lenders given on the command line.
    pub(crate) fn given(&self) -> Vec<NetAddress> {
        [&self.flags[..], &self.plain].concat()
    }

    /// Returns the lenders that are named; if there are none, the lender of this machine.
    pub(crate) fn all_or_local(&self, security: &SecurityArgs) -> Result<Vec<NetAddress>> {
        let named = self.named(security)?;
        Ok(match named.is_empty() {
            true => vec![default_address(&Security::Insecure, false, LENDER_PORT)],
            false => named,
        })
    }
}

/// Returns whether the names are `auto`, and the addresses among them.
///
/// # Errors
///
/// `auto` stands beside addresses.
pub(crate) fn named_addresses(names: &[LenderName]) -> Result<(bool, Vec<NetAddress>)> {
    let together = settings::together("--lender", names.to_vec());
    Ok(together.map_err(|error| UsageError(error.to_string()))?)
}

/// Returns the lenders of these names: the addresses, or for `auto` those that are found.
///
/// # Errors
///
/// `auto` stands beside addresses; the cluster file or the key cannot be used; or no lender was found.
pub(crate) fn found(names: &[LenderName], security: &SecurityArgs) -> Result<Vec<NetAddress>> {
    let (auto, lenders) = named_addresses(names)?;
    if !auto {
        return Ok(lenders);
    }
    let environment = JournalSettings::from_environment()?;
    let settings = JournalSettings {
        lenders,
        auto,
        key_file: security.key_file.clone(),
        insecure: security.insecure,
        ..environment
    };
    let found = settings.find_lenders()?;
    if found.is_empty() {
        let ways = ClusterFile::load()?.ways();
        bail!(
            "no lender was found by {ways}: `netram status` says more; a lender announces itself with --announce"
        );
    }
    Ok(found)
}

/// Returns the lenders that the environment names; none if the variable is unset or empty.
pub(crate) fn lenders_in_environment() -> Result<Vec<LenderName>> {
    let text = std::env::var(LENDERS_VARIABLE).unwrap_or_default();
    let addresses = text.split(',').map(str::trim).filter(|one| !one.is_empty());
    let parsed = addresses.map(|one| {
        let wrong = |error| UsageError(format!("{LENDERS_VARIABLE}: `{one}`: {error}"));
        Ok(one.parse().map_err(wrong)?)
    });
    parsed.collect()
}

/// Returns the file of the cluster key for lenders, if there are any: the one that was given, or else a
/// default one that exists. `None` with `insecure`, without such a file, and without lenders: nobody needs a
/// key then, and the default one may be another user's.
pub(crate) fn key_file(given: Option<&PathBuf>, insecure: bool, has_lenders: bool) -> Option<PathBuf> {
    given.cloned().or_else(|| match insecure || !has_lenders {
        true => None,
        false => default_key_file(),
    })
}

/// Returns the protection that one of key and `--insecure` asks for. Without either it is the key in the
/// default file.
///
/// # Errors
///
/// Both were given; or neither, and there is no default key file; or the key cannot be loaded.
pub fn security(given: Option<&PathBuf>, insecure: bool) -> Result<Security> {
    Security::choose(given.cloned(), insecure).map_err(|error| match error {
        SecurityError::NoKey(file) => {
            let sentence = format!(
                "no cluster key is given, and there is no {}: name the key that the lenders were started with by --key-file \
                 FILE, or copy it there (`netram key create` makes the key of a new cluster), or say --insecure for addresses \
                 on this machine only",
                file.display()
            );
            UsageError(sentence).into()
        }
        SecurityError::KeyAndInsecure(path) => {
            let path = path.display();
            let sentence = format!(
                "--insecure contradicts the key file {path}: leave out one of them ({KEY_VARIABLE} may be set)"
            );
            UsageError(sentence).into()
        }
        SecurityError::Key { path, source } => {
            anyhow::Error::from(source).context(format!("loading {}", path.display()))
        }
    })
}

/// Number of bytes, written as `64MiB`, `1.5GB` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeArg(pub u64);

impl FromStr for SizeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeArg, String> {
        let parsed = text.parse::<ByteSize>().map(|size| SizeArg(size.as_u64()));
        parsed.map_err(|_| format!("`{text}` is not a size; write it as 64MiB, 1.5GiB or 4096"))
    }
}

impl fmt::Display for SizeArg {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        ByteSize(self.0).display().iec().fmt(out)
    }
}

/// Length of time, written as `2s`, `500ms` or `1m 30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationArg(pub Duration);

impl FromStr for DurationArg {
    type Err = String;

    fn from_str(text: &str) -> Result<DurationArg, String> {
        let parsed = humantime::parse_duration(text).map(DurationArg);
        parsed.map_err(|error| {
            format!("`{text}` is not a length of time ({error}); write it as 500ms, 2s or 1m")
        })
    }
}

macro_rules! deserialize_as_text {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<$name, D::Error> {
                let text = String::deserialize(input)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

deserialize_as_text!(SizeArg, DurationArg);

/// Reads a value of another crate that a configuration file gives as text.
///
/// # Errors
///
/// The text is not such a value.
pub fn from_text<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = Option::<String>::deserialize(input)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom))
        .transpose()
}

/// Reads a list of such values.
///
/// # Errors
///
/// One of the texts is not such a value.
pub fn list_from_text<'de, D, T>(input: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let texts = Vec::<String>::deserialize(input)?;
    texts
        .iter()
        .map(|text| text.parse().map_err(serde::de::Error::custom))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2 kB", 2000),
        ] {
            assert_eq!(text.parse(), Ok(SizeArg(bytes)));
        }
        for text in ["", "MiB", "-1", "12 parsecs"] {
            assert!(text.parse::<SizeArg>().is_err(), "{text}");
        }
        assert_eq!(SizeArg(64 << 20).to_string(), "64.0 MiB");
    }

    #[test]
    fn lengths_of_time_are_read_as_people_write_them() {
        assert_eq!("500ms".parse(), Ok(DurationArg(Duration::from_millis(500))));
        assert!("soon".parse::<DurationArg>().is_err());
    }

    #[test]
    fn exactly_one_of_key_and_insecure_is_accepted() {
        assert!(matches!(security(None, true), Ok(Security::Insecure)));
        assert!(security(None, false).unwrap_err().is::<UsageError>());
        let path = PathBuf::from("/nowhere");
        assert!(security(Some(&path), true).unwrap_err().is::<UsageError>());
        assert!(!security(Some(&path), false).unwrap_err().is::<UsageError>());
    }

    /// The machine's key may be its lender's alone: a program without lenders must not need it.
    #[test]
    fn without_lenders_no_default_key_is_looked_for() {
        let named = PathBuf::from("/nowhere");
        assert_eq!(key_file(None, false, false), None);
        assert_eq!(key_file(Some(&named), false, false), Some(named));
    }
}
