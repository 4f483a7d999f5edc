//! Settings of a journal: which lenders hold the newest bytes, and how. The table `[journal]` of a settings
//! file ([`SettingsFile`]), overridden by the environment.
//!
//! | key in the file | variable | meaning | default |
//! |---|---|---|---|
//! | `lenders` | `NETRAM_LENDERS` (commas) | addresses, in order of preference; or `auto`: those that are found | none: only the local disk |
//! | | `NETRAM_CLUSTER` | the cluster file, which says where `auto` finds lenders | [a default file](ClusterFile::load) |
//! | `key-file` | `NETRAM_KEY_FILE` | the cluster key; in the file, relative to it | [a default file](netram_transport::security::default_key_file) |
//! | `insecure` | `NETRAM_INSECURE` | no key and no encryption, for lenders on this machine only | false |
//! | `members` | `NETRAM_MEMBERS` | number of lenders that hold a copy; the others are spares | 2, or all if fewer are named |
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
//! | `metrics` | `NETRAM_METRICS` | where the process serves its metrics: `127.0.0.1:9464`, or `unix:/PATH` | none |
//! | `ups` | `NETRAM_UPS` | the UPS that feeds this machine, `NAME@HOST`: on battery, commits wait for the disk, too | none |
//! | `ups-user`, `ups-password-file` | `NETRAM_UPS_USER`, `NETRAM_UPS_PASSWORD_FILE` | login at its upsd, which then waits for this machine | none |
//! | | `NETRAM_ACCEPT_LOSS` | open even if acknowledged records may be missing | |
//!
//! The last one is a decision for one opening, so a file cannot make it.

mod file;
mod lenders;
mod ups;

pub use file::SettingsFile;
pub use lenders::{AUTO, LenderName, together};
pub use ups::UpsSettings;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use netram_discover::{ClusterFile, ClusterFileError};
use netram_proto::journal::CommitRule;
use netram_telemetry::MetricsAddress;
use netram_transport::multicast::TTL_DEFAULT;
use netram_transport::{MulticastGroup, NetAddress, Security, SecurityError, WaitPolicy};
use netram_ups::UpsSourceError;
use serde::Deserialize;

use crate::config::{JournalConfig, MulticastOptions};
use crate::membership::Membership;
use crate::paths::JournalPaths;

/// Default number of members: one may be lost.
const MEMBERS_DEFAULT: usize = 2;

/// Longest `patience`: a lender that has not returned after a week is not expected to.
const PATIENCE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Settings with which a store is opened. `None` means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalSettings {
    /// Addresses of lenders that may become members, in order of preference. If empty, only the local disk is
    /// used.
    pub lenders: Vec<NetAddress>,
    /// Lenders are those that the cluster file names, or tells how to find.
    pub auto: bool,
    /// Path of the cluster key's file; `None`: [a default one](netram_transport::security::default_key_file).
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
    /// Where the process serves its metrics while the journal is open.
    pub metrics: Option<MetricsAddress>,
    /// The UPS that feeds this machine.
    pub ups: UpsSettings,
    /// The store is opened even if acknowledged records may be missing.
    pub accept_loss: bool,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
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
    /// The protection of the links cannot be chosen.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The UPS is named wrongly, or its login cannot be used.
    #[error("the UPS: {0}")]
    Ups(#[from] UpsSourceError),
    /// Lenders are to be found, and the cluster file is invalid.
    #[error(transparent)]
    Cluster(#[from] ClusterFileError),
}

/// The file's values before they are checked.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct RawSettings {
    lenders: Option<toml::Value>,
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
    metrics: Option<String>,
    ups: Option<String>,
    ups_user: Option<String>,
    ups_password_file: Option<PathBuf>,
}

impl JournalSettings {
    /// Loads settings from a file that has nothing but `[journal]`.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the file cannot be read, has an unknown key or table, or an invalid value.
    pub fn load(path: &Path) -> Result<JournalSettings, SettingsError> {
        JournalSettings::alone(SettingsFile::read(path)?)
    }

    /// Parses `text`, the content of such a file that is or will be at `path`.
    ///
    /// # Errors
    ///
    /// As [`JournalSettings::load`], except for reading.
    pub fn parse(text: &str, path: &Path) -> Result<JournalSettings, SettingsError> {
        JournalSettings::alone(SettingsFile::parse(text, path)?)
    }

    fn alone(mut file: SettingsFile) -> Result<JournalSettings, SettingsError> {
        let settings = JournalSettings::take(&mut file)?;
        file.finish()?;
        Ok(settings)
    }

    /// Settings of the journal at `paths`: its settings file, which need not exist, overridden by the
    /// environment.
    ///
    /// # Errors
    ///
    /// As [`JournalSettings::load`] and [`JournalSettings::with_environment`].
    pub fn of(paths: &JournalPaths) -> Result<JournalSettings, SettingsError> {
        let file = paths.settings();
        // If the lookup fails, the file may exist: loading it reports why it cannot be read (rule 17).
        let settings = match file.try_exists().unwrap_or(true) {
            true => JournalSettings::load(&file)?,
            false => JournalSettings::default(),
        };
        settings.with_environment(&|name| std::env::var(name).ok())
    }

    /// Takes the table `[journal]` from a file that other owners share.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the table has an unknown key or an invalid value.
    pub fn take(file: &mut SettingsFile) -> Result<JournalSettings, SettingsError> {
        let raw: RawSettings = file.take("journal")?;
        raw.checked(file.directory())
    }

    /// Settings of the environment alone.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Value`] if a variable's value is invalid.
    pub fn from_environment() -> Result<JournalSettings, SettingsError> {
        JournalSettings::default().with_environment(&|name| std::env::var(name).ok())
    }

    /// These settings, overridden by the environment.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Value`] if a variable's value is invalid.
    pub fn with_environment(
        mut self,
        look_up: &dyn Fn(&str) -> Option<String>,
    ) -> Result<JournalSettings, SettingsError> {
        // An empty variable counts as unset, because shells cannot unset one for a single command.
        let variable = |name: &str| look_up(name).filter(|value| !value.is_empty());
        if let Some(lenders) = variable("NETRAM_LENDERS") {
            self.set_lenders(lenders::split("NETRAM_LENDERS", &lenders)?);
        }
        if let Some(file) = variable("NETRAM_KEY_FILE") {
            self.key_file = Some(file.into());
        }
        set(&mut self.members, &variable, "NETRAM_MEMBERS")?;
        set(&mut self.members_min, &variable, "NETRAM_MEMBERS_MIN")?;
        set(&mut self.rule, &variable, "NETRAM_RULE")?;
        set(&mut self.domain, &variable, "NETRAM_DOMAIN")?;
        set(&mut self.wait, &variable, "NETRAM_WAIT")?;
        set(&mut self.multicast, &variable, "NETRAM_MULTICAST")?;
        set(&mut self.datagram_bytes, &variable, "NETRAM_DATAGRAM")?;
        set(&mut self.ttl, &variable, "NETRAM_TTL")?;
        set(&mut self.metrics, &variable, "NETRAM_METRICS")?;
        self.ups = self.ups.with_environment(&variable);
        if let Some(window) = variable("NETRAM_WINDOW") {
            self.window_bytes = Some(size("NETRAM_WINDOW", &window)?);
        }
        if let Some(patience) = variable("NETRAM_PATIENCE") {
            self.patience = Some(time("NETRAM_PATIENCE", &patience)?);
        }
        for (flag, name) in [
            (&mut self.insecure, "NETRAM_INSECURE"),
            (&mut self.one_domain, "NETRAM_ONE_DOMAIN"),
            (&mut self.accept_loss, "NETRAM_ACCEPT_LOSS"),
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
    /// [`SettingsError`] if the key is missing, contradicts `insecure`, or cannot be loaded.
    pub fn journal_config(&self) -> Result<JournalConfig, SettingsError> {
        let membership = self.membership();
        let usual = JournalConfig::with_lenders(membership.lenders, self.security()?, membership.members);
        Ok(JournalConfig {
            auto: self.auto.then(ClusterFile::load).transpose()?,
            rule: membership.rule,
            members_min: membership.members_min,
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
            metrics: self.metrics.clone(),
            ups: self.ups.source()?,
            accept_loss: self.accept_loss,
            ..usual
        })
    }

    /// The part of the settings that may change while the journal is open.
    pub fn membership(&self) -> Membership {
        // Fewer may be found now than there are: then no copy less is promised.
        let usual = match self.auto {
            true => MEMBERS_DEFAULT,
            false => MEMBERS_DEFAULT.min(self.lenders.len()),
        };
        Membership {
            lenders: self.lenders.clone(),
            rule: self.rule.unwrap_or_default(),
            members: self.members.unwrap_or(usual),
            members_min: self.members_min,
        }
    }

    fn security(&self) -> Result<Security, SettingsError> {
        let is_plain = self.insecure || !self.uses_lenders() && self.key_file.is_none();
        Ok(Security::choose(self.key_file.clone(), is_plain)?)
    }
}

impl RawSettings {
    fn checked(self, directory: &Path) -> Result<JournalSettings, SettingsError> {
        let (auto, lenders) = lenders::of_file(self.lenders)?;
        Ok(JournalSettings {
            lenders,
            auto,
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
            metrics: self
                .metrics
                .map(|metrics| value("metrics", &metrics))
                .transpose()?,
            ups: UpsSettings {
                name: self.ups,
                user: self.ups_user,
                password_file: self.ups_password_file,
            }
            .at(directory),
            accept_loss: false,
        })
    }
}

/// A TOML number or string as text: users write both `rule = 2` and `rule = "all"`.
pub fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Parses the value of the key or variable `name`.
///
/// # Errors
///
/// [`SettingsError::Value`] with the reason of `T`.
pub fn value<T: FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> Result<T, SettingsError> {
    text.trim().parse().map_err(|error: T::Err| SettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        reason: error.to_string(),
    })
}

/// Sets `target` to the value of the environment variable `name`, if it has one.
///
/// # Errors
///
/// [`SettingsError::Value`] if the value is invalid.
pub fn set<T: FromStr<Err: std::fmt::Display>>(
    target: &mut Option<T>,
    variable: &dyn Fn(&str) -> Option<String>,
    name: &str,
) -> Result<(), SettingsError> {
    if let Some(text) = variable(name) {
        *target = Some(value(name, &text)?);
    }
    Ok(())
}

/// The address at which the environment wants the metrics of this process to be served.
///
/// # Errors
///
/// [`SettingsError::Value`] if that is no address.
pub fn metrics_in_environment() -> Result<Option<MetricsAddress>, SettingsError> {
    let mut metrics = None;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    set(&mut metrics, &variable, "NETRAM_METRICS")?;
    Ok(metrics)
}

/// Parses a size such as `64MiB`.
///
/// # Errors
///
/// [`SettingsError::Value`] if `text` is not a size.
pub fn size(name: &str, text: &str) -> Result<u64, SettingsError> {
    let parsed = text.parse::<ByteSize>().map(|size| size.as_u64());
    parsed.map_err(|_| SettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        reason: "not a size; write it as 64MiB, 1.5GiB or 4096".to_owned(),
    })
}

/// Parses a duration such as `30s`.
fn time(name: &str, text: &str) -> Result<Duration, SettingsError> {
    let parsed = humantime::parse_duration(text.trim()).ok();
    parsed
        .filter(|time| *time <= PATIENCE_MAX)
        .ok_or_else(|| SettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            reason: "not a duration of at most a week; write it as 500ms, 30s or 2m".to_owned(),
        })
}

/// Parses a yes or no of an environment variable.
///
/// # Errors
///
/// [`SettingsError::Value`] if it is neither.
pub fn truth(name: &str, text: &str) -> Result<bool, SettingsError> {
    match text {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err(SettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            reason: "must be 1 or 0".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<JournalSettings, SettingsError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("netram.toml");
        std::fs::write(&path, format!("[journal]\n{text}")).unwrap();
        let mut settings = JournalSettings::load(&path)?;
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
             members = 1\nrule = 1\nmulticast = \"239.1.2.3:7421%eth1\"\nwait = \"spin\"\nmetrics = \"127.0.0.1:9464\"\nups = \"rack@h\"\nups-user = \"u\"\nups-password-file = \"p\"\npatience = \"2m\"\nwindow = \"1MiB\"\none-domain = true\n",
        )
        .unwrap();
        assert_eq!(settings.lenders.len(), 2);
        assert_eq!(settings.key_file.as_deref(), Some(Path::new("cluster.key")));
        assert_eq!(settings.members, Some(1));
        assert_eq!(settings.rule.map(|rule| rule.to_string()).as_deref(), Some("1"));
        assert_eq!(settings.window_bytes, Some(1 << 20));
        assert_eq!(settings.patience, Some(Duration::from_secs(120)));
        assert_eq!(
            settings.metrics.map(|metrics| metrics.to_string()).as_deref(),
            Some("127.0.0.1:9464")
        );
        assert!(settings.one_domain);
        let group = settings.multicast.expect("a group");
        assert_eq!(group.to_string(), "239.1.2.3:7421%eth1");
    }

    #[test]
    fn an_error_names_the_invalid_key() {
        for (text, named) in [
            ("lender = []", "lender"),
            ("lenders = [\"10.0.0.2\"]", "lenders"),
            ("lenders = \"some\"", "\"auto\""),
            ("lenders = 3", "\"auto\""),
            ("lenders = [3]", "\"auto\""),
            ("lenders = [\"auto\", \"tcp://a:1\"]", "alone"),
            ("window = \"big\"", "window"),
            ("rule = \"most\"", "rule"),
            ("patience = \"soon\"", "patience"),
            ("patience = \"8days\"", "week"),
            ("multicast = \"10.0.0.1:7421\"", "multicast"),
            ("metrics = \"9464\"", "IP:PORT"),
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
        let empty = JournalSettings::default().with_environment(&|_| Some(String::new()));
        assert_eq!(empty.unwrap(), JournalSettings::default());
        assert!(settings.accept_loss);
        let config = settings.journal_config().unwrap();
        assert_eq!(config.rule.to_string(), "any");
        assert_eq!(config.patience, config.grace, "members that are there may answer");

        let wrong = JournalSettings::default()
            .with_environment(&|name| (name == "NETRAM_INSECURE").then(|| "maybe".to_owned()));
        assert!(wrong.unwrap_err().to_string().contains("NETRAM_INSECURE"));
    }

    #[test]
    fn lenders_need_either_a_key_or_insecure() {
        let mut settings = JournalSettings {
            lenders: vec!["tcp://127.0.0.1:1".parse().unwrap()],
            ..JournalSettings::default()
        };
        settings.insecure = true;
        assert_eq!(settings.journal_config().unwrap().members, 1);
        settings.key_file = Some("k".into());
        assert!(matches!(
            settings.journal_config(),
            Err(SettingsError::Security(SecurityError::KeyAndInsecure(_)))
        ));
        settings.insecure = false;
        assert!(matches!(
            settings.journal_config(),
            Err(SettingsError::Security(SecurityError::Key { .. }))
        ));
    }
}
