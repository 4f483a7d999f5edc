//! Settings of a store: which lenders hold the newest bytes, and how. They come from a file beside the log,
//! overridden by the environment.
//!
//! | key in the file | variable | meaning | default |
//! |---|---|---|---|
//! | `lenders` | `NETRAM_LENDERS` (commas) | addresses, in order of preference | none: only the local disk |
//! | `key-file` | `NETRAM_KEY_FILE` | the cluster key; in the file, relative to it | |
//! | `insecure` | `NETRAM_INSECURE` | no key and no encryption, for lenders on this machine only | false |
//! | `members` | `NETRAM_MEMBERS` | number of lenders that hold a copy; the others are spares | 2, or all if fewer |
//! | `members-min` | `NETRAM_MEMBERS_MIN` | with fewer members, commits wait for the disk | as the rule needs |
//! | `rule` | `NETRAM_RULE` | `all`, `any`, or a number of copies | `all` |
//! | `domain` | `NETRAM_DOMAIN` | this machine's power domain | `default` |
//! | `one-domain` | `NETRAM_ONE_DOMAIN` | all members may be in this machine's domain | false |
//! | `wait` | `NETRAM_WAIT` | how a commit waits: `spin`, `yield:50`, `block` | `yield:50` |
//! | `multicast` | `NETRAM_MULTICAST` | group that appends are multicast to: `239.1.2.3:7421%eth1` | none: each link |
//! | `datagram` | `NETRAM_DATAGRAM` | bytes of a datagram | 1400 on Ethernet, else the interface's maximum |
//! | `ttl` | `NETRAM_TTL` | networks that datagrams may pass through | 1: only the local one |
//! | `window` | `NETRAM_WINDOW` | bytes that may be only in lenders' memory | 8 MiB |
//! | `patience` | `NETRAM_PATIENCE` | how long an opening waits for lenders that must answer; `0s` means 0.5 s | 30 s |
//! | `truncation-threshold` | `NETRAM_TRUNCATION_THRESHOLD` | percent of the log at which truncation begins | 50 |
//! | `spool` | `NETRAM_SPOOL` | bytes of lazy commits that are kept back and merged | 0: none |
//! | | `NETRAM_ACCEPT_LOSS` | open even if acknowledged records may be missing | |
//! | | `NETRAM_ADOPT_SEGMENTS` | accept segments that were restored from copies | |
//!
//! The last two apply to one opening, so the file cannot contain them.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use netram_journal::{JournalConfig, MulticastOptions};
use netram_proto::id::JournalId;
use netram_proto::journal::CommitRule;
use netram_rvm::RvmOptions;
use netram_transport::multicast::TTL_DEFAULT;
use netram_transport::{ClusterKey, MulticastGroup, NetAddress, Security, WaitPolicy};
use serde::Deserialize;

/// Default number of members: one may be lost.
const MEMBERS_DEFAULT: usize = 2;

/// Longest `patience`: a lender that has not returned after a week is not expected to.
const PATIENCE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Settings with which a store is opened. `None` means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreSettings {
    /// Addresses of lenders that may become members, in order of preference. If empty, only the local disk is
    /// used.
    pub lenders: Vec<NetAddress>,
    /// Path of the cluster key's file.
    pub key_file: Option<PathBuf>,
    /// No key and no encryption; for lenders on this machine only.
    pub insecure: bool,
    /// Number of members.
    pub members: Option<usize>,
    /// Number of members below which commits wait for the disk.
    pub members_min: Option<usize>,
    /// Number of members that must hold a commit.
    pub rule: Option<CommitRule>,
    /// This machine's power domain.
    pub domain: Option<String>,
    /// All members may be in this machine's power domain.
    pub one_domain: bool,
    /// How a commit waits for acknowledgements.
    pub wait: Option<WaitPolicy>,
    /// Multicast group to which appends are sent once for all members.
    pub multicast: Option<MulticastGroup>,
    /// Length of a datagram, in bytes.
    pub datagram_bytes: Option<usize>,
    /// Number of networks that datagrams may pass through.
    pub ttl: Option<u8>,
    /// Length of the window, in bytes.
    pub window_bytes: Option<u64>,
    /// How long recovery waits for members that must answer; never shorter than the grace for the others.
    pub patience: Option<Duration>,
    /// Fill of the log at which truncation begins, in percent.
    pub truncation_threshold_percent: Option<u8>,
    /// Bytes of lazy commits that are kept back and merged.
    pub spool_bytes: Option<usize>,
    /// The store is opened even if acknowledged records may be missing.
    pub accept_loss: bool,
    /// Segment files are accepted even if they are not the recorded ones.
    pub adopt_segments: bool,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreSettingsError {
    /// The settings file cannot be read.
    #[error("the settings file {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML, or has an unknown key.
    #[error("the settings file {path} is invalid: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// Position and description of the error.
        reason: String,
    },
    /// A value has the wrong type or is out of range.
    #[error("{name} = `{value}`: {reason}")]
    Value {
        /// The key or variable.
        name: String,
        /// The value given.
        value: String,
        /// Description of valid values.
        reason: String,
    },
    /// Lenders are configured, but neither a cluster key nor `insecure`.
    #[error(
        "lenders are configured, but no cluster key: set its file (`key-file`, NETRAM_KEY_FILE), or set \
         `insecure` for lenders on this machine only"
    )]
    NoKey,
    /// Both a cluster key and `insecure` are configured.
    #[error("`insecure` contradicts the key file {0}; remove one of them")]
    KeyAndInsecure(PathBuf),
    /// The cluster key cannot be loaded.
    #[error("the cluster key {path} cannot be loaded: {reason}")]
    Key {
        /// The key's file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// The file's values before they are checked.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct RawSettings {
    lenders: Vec<String>,
    key_file: Option<PathBuf>,
    insecure: bool,
    members: Option<usize>,
    members_min: Option<usize>,
    rule: Option<toml::Value>,
    domain: Option<String>,
    one_domain: bool,
    wait: Option<String>,
    multicast: Option<String>,
    datagram: Option<usize>,
    ttl: Option<u8>,
    window: Option<toml::Value>,
    patience: Option<toml::Value>,
    truncation_threshold: Option<u8>,
    spool: Option<toml::Value>,
}

impl StoreSettings {
    /// Loads settings from a file.
    ///
    /// # Errors
    ///
    /// [`StoreSettingsError`] if the file cannot be read, is not TOML, or has an unknown key or an invalid
    /// value.
    pub fn load(path: &Path) -> Result<StoreSettings, StoreSettingsError> {
        let text = std::fs::read_to_string(path).map_err(|source| StoreSettingsError::Unreadable {
            path: path.to_path_buf(),
            source,
        })?;
        StoreSettings::parse(&text, path)
    }

    /// Parses `text`, the content of a settings file that is or will be at `path`.
    ///
    /// # Errors
    ///
    /// As [`StoreSettings::load`], except for reading.
    pub fn parse(text: &str, path: &Path) -> Result<StoreSettings, StoreSettingsError> {
        let raw: RawSettings = toml::from_str(text).map_err(|error| StoreSettingsError::File {
            path: path.to_path_buf(),
            reason: error.to_string(),
        })?;
        let directory = path.parent().unwrap_or(Path::new(""));
        raw.checked(directory)
    }

    /// Loads settings from a file that also has another part of the program's settings: those under `keys`,
    /// which are returned.
    ///
    /// # Errors
    ///
    /// As [`StoreSettings::load`].
    pub fn load_beside(
        path: &Path,
        keys: &[&str],
    ) -> Result<(StoreSettings, toml::Table), StoreSettingsError> {
        let wrong = |error: toml::de::Error| StoreSettingsError::File {
            path: path.to_path_buf(),
            reason: error.to_string(),
        };
        let text = std::fs::read_to_string(path).map_err(|source| StoreSettingsError::Unreadable {
            path: path.to_path_buf(),
            source,
        })?;
        let mut table: toml::Table = toml::from_str(&text).map_err(wrong)?;
        let mut others = toml::Table::new();
        for key in keys {
            others.extend(table.remove_entry(*key));
        }
        let raw: RawSettings = table.try_into().map_err(wrong)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        Ok((raw.checked(directory)?, others))
    }

    /// These settings, overridden by the environment.
    ///
    /// # Errors
    ///
    /// [`StoreSettingsError::Value`] if a variable's value is invalid.
    pub fn with_environment(
        mut self,
        look_up: &dyn Fn(&str) -> Option<String>,
    ) -> Result<StoreSettings, StoreSettingsError> {
        // An empty variable counts as unset, because shells cannot unset one for a single command.
        let variable = |name: &str| look_up(name).filter(|value| !value.is_empty());
        if let Some(lenders) = variable("NETRAM_LENDERS") {
            let addresses = lenders.split(',').map(str::trim).filter(|one| !one.is_empty());
            self.lenders = addresses
                .map(|one| value("NETRAM_LENDERS", one))
                .collect::<Result<_, _>>()?;
        }
        if let Some(file) = variable("NETRAM_KEY_FILE") {
            self.key_file = Some(file.into());
        }
        set(&mut self.members, &variable, "NETRAM_MEMBERS")?;
        set(&mut self.members_min, &variable, "NETRAM_MEMBERS_MIN")?;
        set(&mut self.rule, &variable, "NETRAM_RULE")?;
        set(&mut self.domain, &variable, "NETRAM_DOMAIN")?;
        set(&mut self.wait, &variable, "NETRAM_WAIT")?;
        set(
            &mut self.truncation_threshold_percent,
            &variable,
            "NETRAM_TRUNCATION_THRESHOLD",
        )?;
        set(&mut self.multicast, &variable, "NETRAM_MULTICAST")?;
        set(&mut self.datagram_bytes, &variable, "NETRAM_DATAGRAM")?;
        set(&mut self.ttl, &variable, "NETRAM_TTL")?;
        if let Some(window) = variable("NETRAM_WINDOW") {
            self.window_bytes = Some(size("NETRAM_WINDOW", &window)?);
        }
        if let Some(patience) = variable("NETRAM_PATIENCE") {
            self.patience = Some(time("NETRAM_PATIENCE", &patience)?);
        }
        if let Some(spool) = variable("NETRAM_SPOOL") {
            self.spool_bytes = Some(memory_size("NETRAM_SPOOL", &spool)?);
        }
        for (flag, name) in [
            (&mut self.insecure, "NETRAM_INSECURE"),
            (&mut self.one_domain, "NETRAM_ONE_DOMAIN"),
            (&mut self.accept_loss, "NETRAM_ACCEPT_LOSS"),
            (&mut self.adopt_segments, "NETRAM_ADOPT_SEGMENTS"),
        ] {
            if let Some(text) = variable(name) {
                *flag = truth(name, &text)?;
            }
        }
        Ok(self)
    }

    /// Configuration with which the journal is opened.
    ///
    /// # Errors
    ///
    /// [`StoreSettingsError`] if the key is missing, contradicts `insecure`, or cannot be loaded.
    pub fn journal_config(&self) -> Result<JournalConfig, StoreSettingsError> {
        let members = self.members.unwrap_or(MEMBERS_DEFAULT.min(self.lenders.len()));
        let usual = JournalConfig::with_lenders(self.lenders.clone(), self.security()?, members);
        Ok(JournalConfig {
            rule: self.rule.unwrap_or(usual.rule),
            members_min: self.members_min,
            domain: self.domain.clone().unwrap_or_else(|| usual.domain.clone()),
            one_domain: self.one_domain,
            window_bytes: self.window_bytes.unwrap_or(usual.window_bytes),
            wait: self.wait.unwrap_or(usual.wait),
            // Even without patience, lenders that are reachable get time to answer.
            patience: self.patience.unwrap_or(usual.patience).max(usual.grace),
            multicast: self.multicast.clone().map(|group| MulticastOptions {
                group,
                datagram_bytes: self.datagram_bytes,
                ttl: self.ttl.unwrap_or(TTL_DEFAULT),
            }),
            accept_loss: self.accept_loss,
            ..usual
        })
    }

    /// Options with which recoverable memory over `journal` is opened.
    pub fn options(&self, journal: JournalId) -> RvmOptions {
        let usual = RvmOptions::new(journal);
        RvmOptions {
            truncation_threshold_percent: self
                .truncation_threshold_percent
                .unwrap_or(usual.truncation_threshold_percent),
            spool_bytes: self.spool_bytes.unwrap_or(usual.spool_bytes),
            adopt_segments: self.adopt_segments,
            ..usual
        }
    }

    fn security(&self) -> Result<Security, StoreSettingsError> {
        match (&self.key_file, self.insecure) {
            (Some(path), true) => Err(StoreSettingsError::KeyAndInsecure(path.clone())),
            (Some(path), false) => match ClusterKey::load(path) {
                Ok(key) => Ok(Security::Key(key)),
                Err(error) => Err(StoreSettingsError::Key {
                    path: path.clone(),
                    reason: error.to_string(),
                }),
            },
            (None, false) if !self.lenders.is_empty() => Err(StoreSettingsError::NoKey),
            (None, _) => Ok(Security::Insecure),
        }
    }
}

impl RawSettings {
    fn checked(self, directory: &Path) -> Result<StoreSettings, StoreSettingsError> {
        let lenders = self.lenders.iter().map(|one| value("lenders", one));
        Ok(StoreSettings {
            lenders: lenders.collect::<Result<_, _>>()?,
            key_file: self.key_file.map(|file| directory.join(file)),
            insecure: self.insecure,
            members: self.members,
            members_min: self.members_min,
            rule: self.rule.map(|rule| value("rule", &plain(&rule))).transpose()?,
            domain: self.domain,
            one_domain: self.one_domain,
            wait: self.wait.map(|wait| value("wait", &wait)).transpose()?,
            multicast: self
                .multicast
                .map(|group| value("multicast", &group))
                .transpose()?,
            datagram_bytes: self.datagram,
            ttl: self.ttl,
            window_bytes: self
                .window
                .map(|window| size("window", &plain(&window)))
                .transpose()?,
            patience: self
                .patience
                .map(|patience| time("patience", &plain(&patience)))
                .transpose()?,
            truncation_threshold_percent: self.truncation_threshold,
            spool_bytes: self
                .spool
                .map(|spool| memory_size("spool", &plain(&spool)))
                .transpose()?,
            accept_loss: false,
            adopt_segments: false,
        })
    }
}

/// A TOML number or string as text: users write both `rule = 2` and `rule = "all"`.
fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn value<T: FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> Result<T, StoreSettingsError> {
    text.trim()
        .parse()
        .map_err(|error: T::Err| StoreSettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            reason: error.to_string(),
        })
}

fn set<T: FromStr<Err: std::fmt::Display>>(
    target: &mut Option<T>,
    variable: &dyn Fn(&str) -> Option<String>,
    name: &str,
) -> Result<(), StoreSettingsError> {
    if let Some(text) = variable(name) {
        *target = Some(value(name, &text)?);
    }
    Ok(())
}

/// Parses a size such as `64MiB`.
///
/// # Errors
///
/// [`StoreSettingsError::Value`] if `text` is not a size.
pub fn size(name: &str, text: &str) -> Result<u64, StoreSettingsError> {
    let parsed = text.parse::<ByteSize>().map(|size| size.as_u64());
    parsed.map_err(|_| StoreSettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        reason: "not a size; write it as 64MiB, 1.5GiB or 4096".to_owned(),
    })
}

/// Parses a duration such as `30s`.
fn time(name: &str, text: &str) -> Result<Duration, StoreSettingsError> {
    let parsed = humantime::parse_duration(text.trim()).ok();
    parsed
        .filter(|time| *time <= PATIENCE_MAX)
        .ok_or_else(|| StoreSettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            reason: "not a duration of at most a week; write it as 500ms, 30s or 2m".to_owned(),
        })
}

fn memory_size(name: &str, text: &str) -> Result<usize, StoreSettingsError> {
    let bytes = size(name, text)?;
    usize::try_from(bytes).map_err(|_| StoreSettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        reason: "more than this machine can address".to_owned(),
    })
}

fn truth(name: &str, text: &str) -> Result<bool, StoreSettingsError> {
    match text {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err(StoreSettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            reason: "must be 1 or 0".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<StoreSettings, StoreSettingsError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bank.log.toml");
        std::fs::write(&path, text).unwrap();
        let mut settings = StoreSettings::load(&path)?;
        // The directory's name differs in each run.
        settings.key_file = settings
            .key_file
            .map(|file| file.strip_prefix(directory.path()).unwrap_or(&file).to_path_buf());
        Ok(settings)
    }

    #[test]
    fn the_keys_of_a_file_become_the_fields() {
        let settings = load(
            "lenders = [\"tcp://10.0.0.2:7420\", \"unix:/run/lend.sock\"]\nkey-file = \"cluster.key\"\n\
             members = 1\nrule = 1\nmulticast = \"239.1.2.3:7421%eth1\"\nwait = \"spin\"\npatience = \"2m\"\nwindow = \"1MiB\"\nspool = 4096\none-domain = true\n",
        )
        .unwrap();
        assert_eq!(settings.lenders.len(), 2);
        assert_eq!(settings.key_file.as_deref(), Some(Path::new("cluster.key")));
        assert_eq!(settings.members, Some(1));
        assert_eq!(settings.rule.map(|rule| rule.to_string()).as_deref(), Some("1"));
        assert_eq!(settings.window_bytes, Some(1 << 20));
        assert_eq!(settings.patience, Some(Duration::from_secs(120)));
        assert_eq!(settings.spool_bytes, Some(4096));
        assert_eq!(settings.options(JournalId(1)).spool_bytes, 4096);
        assert!(settings.one_domain);
        let group = settings.multicast.expect("a group");
        assert_eq!(group.to_string(), "239.1.2.3:7421%eth1");
    }

    #[test]
    fn an_error_names_the_invalid_key() {
        for (text, named) in [
            ("lender = []", "lender"),
            ("lenders = [\"10.0.0.2\"]", "lenders"),
            ("window = \"big\"", "window"),
            ("rule = \"most\"", "rule"),
            ("patience = \"soon\"", "patience"),
            ("patience = \"8days\"", "week"),
            ("multicast = \"10.0.0.1:7421\"", "multicast"),
            ("accept-loss = true", "accept-loss"),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let settings = load("lenders = [\"tcp://a:1\"]\nmembers = 1\ninsecure = true").unwrap();
        let settings = settings
            .with_environment(&|name| match name {
                "NETRAM_LENDERS" => Some("tcp://b:1, tcp://c:1".to_owned()),
                "NETRAM_RULE" => Some("any".to_owned()),
                "NETRAM_MEMBERS" => Some(String::new()),
                "NETRAM_PATIENCE" => Some("0s".to_owned()),
                "NETRAM_ACCEPT_LOSS" => Some("1".to_owned()),
                _ => None,
            })
            .unwrap();
        assert_eq!(settings.lenders.len(), 2);
        assert_eq!(settings.members, Some(1), "an empty variable counts as unset");
        let empty = StoreSettings::default().with_environment(&|_| Some(String::new()));
        assert_eq!(empty.unwrap(), StoreSettings::default());
        assert!(settings.accept_loss);
        let config = settings.journal_config().unwrap();
        assert_eq!(config.rule.to_string(), "any");
        assert_eq!(config.patience, config.grace, "members that are there may answer");

        let wrong = StoreSettings::default()
            .with_environment(&|name| (name == "NETRAM_INSECURE").then(|| "maybe".to_owned()));
        assert!(wrong.unwrap_err().to_string().contains("NETRAM_INSECURE"));
    }

    #[test]
    fn lenders_require_a_key_or_insecure() {
        let mut settings = StoreSettings {
            lenders: vec!["tcp://127.0.0.1:1".parse().unwrap()],
            ..StoreSettings::default()
        };
        assert!(matches!(
            settings.journal_config(),
            Err(StoreSettingsError::NoKey)
        ));
        settings.insecure = true;
        assert_eq!(settings.journal_config().unwrap().members, 1);
        settings.key_file = Some("k".into());
        assert!(matches!(
            settings.journal_config(),
            Err(StoreSettingsError::KeyAndInsecure(_))
        ));
        settings.insecure = false;
        assert!(matches!(
            settings.journal_config(),
            Err(StoreSettingsError::Key { .. })
        ));
    }
}
