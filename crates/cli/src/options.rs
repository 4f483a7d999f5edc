//! Flags that several subcommands share, each described here once.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use clap::Args;
use netram_transport::{ClusterKey, Security};
use serde::{Deserialize, Deserializer};

/// The command line asks for something that makes no sense. Exit code 2.
#[derive(Debug)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// How links to lenders are protected.
#[derive(Debug, Args)]
pub struct SecurityArgs {
    /// The cluster key's file, made with `netram key new`
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// No key and no encryption; only for addresses on this machine
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl SecurityArgs {
    /// The protection asked for; it must be one or the other.
    pub fn security(&self) -> Result<Security> {
        security(self.key_file.as_ref(), self.insecure)
    }
}

/// Exactly one of key and `--insecure`.
pub fn security(key_file: Option<&PathBuf>, insecure: bool) -> Result<Security> {
    match (key_file, insecure) {
        (Some(path), false) => {
            let key = ClusterKey::load(path).with_context(|| format!("loading {}", path.display()))?;
            Ok(Security::Key(key))
        }
        (None, true) => Ok(Security::Insecure),
        (None, false) => {
            let sentence = "no cluster key is given: make one with `netram key new FILE` and give it with \
                            --key-file FILE, or say --insecure for addresses on this machine only";
            Err(UsageError(sentence.to_owned()).into())
        }
        (Some(path), true) => {
            let path = path.display();
            let sentence = format!(
                "--insecure contradicts the key file {path}: drop one of them (NETRAM_KEY_FILE may be set)"
            );
            Err(UsageError(sentence).into())
        }
    }
}

/// A number of bytes, as `64MiB`, `1.5GB` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeArg(pub u64);

impl FromStr for SizeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeArg, String> {
        let parsed = text.parse::<ByteSize>().map(|size| SizeArg(size.as_u64()));
        parsed.map_err(|_| format!("`{text}` is no size; write it as 64MiB, 1.5GiB or 4096"))
    }
}

impl fmt::Display for SizeArg {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        ByteSize(self.0).display().iec().fmt(out)
    }
}

/// A length of time, as `2s`, `500ms` or `1m 30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationArg(pub Duration);

impl FromStr for DurationArg {
    type Err = String;

    fn from_str(text: &str) -> Result<DurationArg, String> {
        let parsed = humantime::parse_duration(text).map(DurationArg);
        parsed
            .map_err(|error| format!("`{text}` is no length of time ({error}); write it as 500ms, 2s or 1m"))
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

/// A value of another crate that a configuration file gives as text.
pub fn from_text<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = Option::<String>::deserialize(input)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom))
        .transpose()
}

/// A list of such values.
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
    fn spans_are_read_as_people_write_them() {
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
}
