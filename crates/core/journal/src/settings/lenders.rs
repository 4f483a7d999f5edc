//! The lenders of a settings file or the environment: addresses, or `auto`.

use std::fmt;
use std::str::FromStr;

use netram_discover::{ChoiceRules, ClusterFile, find};
use netram_transport::{NetAddress, NetAddressError};

use super::{JournalSettings, SettingsError, value};
use crate::config::{DOMAIN_DEFAULT, WINDOW_BYTES_DEFAULT};

/// The word for lenders that are found.
pub const AUTO: &str = "auto";

/// A lender as a person names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LenderName {
    /// The lenders that are found.
    Auto,
    /// The lender at this address.
    At(NetAddress),
}

impl FromStr for LenderName {
    type Err = NetAddressError;

    fn from_str(text: &str) -> Result<LenderName, NetAddressError> {
        match text {
            AUTO => Ok(LenderName::Auto),
            text => Ok(LenderName::At(text.parse()?)),
        }
    }
}

impl fmt::Display for LenderName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LenderName::Auto => out.write_str(AUTO),
            LenderName::At(address) => address.fmt(out),
        }
    }
}

impl JournalSettings {
    /// Whether lenders are named or are to be found. Otherwise only the local disk is used.
    pub fn uses_lenders(&self) -> bool {
        self.auto || !self.lenders.is_empty()
    }

    /// The lenders for people: addresses, or `auto`.
    pub fn lender_names(&self) -> Vec<String> {
        match self.auto {
            true => vec![AUTO.to_owned()],
            false => self.lenders.iter().map(ToString::to_string).collect(),
        }
    }

    pub(super) fn set_lenders(&mut self, (auto, lenders): (bool, Vec<NetAddress>)) {
        (self.auto, self.lenders) = (auto, lenders);
    }

    /// The lenders that a program without a journal uses now: those named, or with `auto` those found, the
    /// best first. Takes as long as finding them.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the cluster file or the key cannot be used.
    pub fn find_lenders(&self) -> Result<Vec<NetAddress>, SettingsError> {
        if !self.auto {
            return Ok(self.lenders.clone());
        }
        let found = find(&ClusterFile::load()?, &[], &self.security()?);
        let rules = ChoiceRules {
            domain: self.domain.clone().unwrap_or_else(|| DOMAIN_DEFAULT.to_owned()),
            one_domain: self.one_domain,
        };
        Ok(found.addresses(&[], &rules, self.window_bytes.unwrap_or(WINDOW_BYTES_DEFAULT)))
    }
}

/// Checks names that stand together at `key`. Returns whether they are `auto`, and the addresses.
///
/// # Errors
///
/// [`SettingsError::Value`] if `auto` stands beside addresses.
pub fn together(key: &str, names: Vec<LenderName>) -> Result<(bool, Vec<NetAddress>), SettingsError> {
    let count = names.len();
    let addresses: Vec<NetAddress> = names
        .into_iter()
        .filter_map(|name| match name {
            LenderName::Auto => None,
            LenderName::At(address) => Some(address),
        })
        .collect();
    match count - addresses.len() {
        0 => Ok((false, addresses)),
        _ if addresses.is_empty() => Ok((true, addresses)),
        _ => Err(SettingsError::Value {
            name: key.to_owned(),
            value: AUTO.to_owned(),
            reason: "`auto` stands alone: put addresses into the cluster file, or leave `auto` out"
                .to_owned(),
        }),
    }
}

/// Reads the value of a variable: `auto`, or addresses with commas between them.
pub(super) fn split(key: &str, text: &str) -> Result<(bool, Vec<NetAddress>), SettingsError> {
    let names = text.split(',').map(str::trim).filter(|one| !one.is_empty());
    let names = names.map(|one| value(key, one)).collect::<Result<_, _>>()?;
    together(key, names)
}

/// Reads the key `lenders` of a file: `"auto"`, or a list of addresses.
pub(super) fn of_file(written: Option<toml::Value>) -> Result<(bool, Vec<NetAddress>), SettingsError> {
    let wrong = |written: &toml::Value| SettingsError::Value {
        name: "lenders".to_owned(),
        value: written.to_string(),
        reason: "must be a list of addresses, or \"auto\"".to_owned(),
    };
    match written {
        None => Ok((false, Vec::new())),
        Some(toml::Value::String(word)) if word == AUTO => Ok((true, Vec::new())),
        Some(toml::Value::Array(items)) => {
            let names = items.iter().map(|item| match item {
                toml::Value::String(text) => value("lenders", text),
                other => Err(wrong(other)),
            });
            together("lenders", names.collect::<Result<_, _>>()?)
        }
        Some(other) => Err(wrong(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lenders_are_addresses_or_auto_and_nothing_means_the_disk_alone() {
        let environment = |text: &str| {
            JournalSettings::default()
                .with_environment(&|name| (name == "NETRAM_LENDERS").then(|| text.to_owned()))
        };
        let auto = environment("auto").unwrap();
        assert!(auto.auto && auto.uses_lenders());
        assert_eq!(auto.lender_names(), ["auto"]);
        let named = auto
            .with_environment(&|name| (name == "NETRAM_LENDERS").then(|| "tcp://a:1".to_owned()))
            .unwrap();
        assert!(!named.auto, "the environment overrides the file");
        assert_eq!(named.find_lenders().unwrap().len(), 1);
        assert!(
            environment("auto,tcp://a:1")
                .unwrap_err()
                .to_string()
                .contains("alone")
        );
        assert!(!environment("").unwrap().uses_lenders());
        let of = |text: &str| of_file(Some(text.parse::<toml::Table>().unwrap()["lenders"].clone()));
        assert_eq!(of("lenders = 'auto'").unwrap(), (true, Vec::new()));
        assert_eq!(of("lenders = []").unwrap(), (false, Vec::new()));
        assert_eq!(of_file(None).unwrap(), (false, Vec::new()));
    }
}
