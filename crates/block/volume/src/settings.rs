//! Settings of a volume: those of its journal, and the table `[volume]` of the same file.
//!
//! | key in `[volume]` | variable | means | default |
//! |---|---|---|---|
//! | `flush` | `NETRAM_FLUSH` | what FLUSH and FUA wait for: `remote` (the commit rule) or `disk` | `remote` |
//! | `stage` | `NETRAM_STAGE` | bytes of journal, or of memory, after which a stage ends: 64 KiB to 1 GiB | 10000 KiB |
//! | `data-lender` | `NETRAM_DATA_LENDER` | the address of the lender that keeps a copy on its disk | none |
//! | `data-lender-key-file` | `NETRAM_DATA_LENDER_KEY_FILE` | the key of its data sessions; in the file, relative to it | the lenders' key |

use std::path::{Path, PathBuf};
use std::time::Duration;

use netram_block::{FlushPolicy, StagePolicy};
use netram_block_machine::SourceTiming;
use netram_journal::JournalConfig;
use netram_journal::settings::{JournalSettings, SettingsError, SettingsFile, plain, size};
use netram_transport::{NetAddress, NetAddressError, Security};
use serde::Deserialize;

/// Minimum bytes of a stage; smaller ones would sync the image for only a few writes.
const STAGE_BYTES_MIN: u64 = 64 * 1024;

/// Maximum bytes of a stage; up to five times as much memory may be in use (docs/design/volumes.md).
const STAGE_BYTES_MAX: u64 = 1 << 30;

/// Settings for opening a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeSettings {
    /// Lenders, commit rule and other settings of the journal.
    pub journal: JournalSettings,
    /// Durability that FLUSH waits for.
    pub flush: FlushPolicy,
    /// When stages end.
    pub policy: StagePolicy,
    /// Lender that keeps a copy of the volume on its own disk.
    pub data_lender: Option<NetAddress>,
    /// Key file of the data lender's sessions (`netram lender serve --data-key-file`); `None`: the lenders'
    /// key.
    pub data_lender_key_file: Option<PathBuf>,
    /// When the data lender is out of service, and when its connection is given up. No file or variable sets
    /// it.
    pub data_lender_timing: SourceTiming,
    /// Take over a data lender's copy as a volume of its own. For one opening; no file sets it.
    pub take_over: bool,
    /// Open although another writer has fenced the volume: the operator declares this directory the newest.
    /// For one opening.
    pub newest: bool,
    /// Take over although the copy's client sent a message recently: the operator declares that it is off.
    /// For one opening.
    pub client_is_off: bool,
    /// Modelled slower disk, for benchmarks; no file or variable sets it.
    pub modelled: ModelledDisk,
}

/// Time added to each sync to model a slower disk. Results must be labelled so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelledDisk {
    /// Delay of the journal's log, which has a vote on writes.
    pub journal: Duration,
    /// Delay of image, sums, superblock and dirty map.
    pub files: Duration,
}

impl From<JournalSettings> for VolumeSettings {
    fn from(journal: JournalSettings) -> VolumeSettings {
        VolumeSettings {
            journal,
            ..VolumeSettings::default()
        }
    }
}

/// The table's values before they are checked.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct RawVolumeSettings {
    flush: Option<String>,
    stage: Option<toml::Value>,
    data_lender: Option<String>,
    data_lender_key_file: Option<String>,
}

impl VolumeSettings {
    /// Loads settings from a file.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the file cannot be read or a value is invalid.
    pub fn load(path: &Path) -> Result<VolumeSettings, SettingsError> {
        let mut file = SettingsFile::read(path)?;
        let mut settings = VolumeSettings::from(JournalSettings::take(&mut file)?);
        let own: RawVolumeSettings = file.take("volume")?;
        file.finish()?;
        let values = [
            ("flush", own.flush),
            ("stage", own.stage.as_ref().map(plain)),
            ("data-lender", own.data_lender),
            ("data-lender-key-file", own.data_lender_key_file),
        ];
        for (key, value) in values {
            if let Some(text) = value {
                settings.set(key, &text)?;
            }
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        settings.data_lender_key_file = settings.data_lender_key_file.map(|file| directory.join(file));
        Ok(settings)
    }

    /// Overrides these settings with those of the environment.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if a value is invalid.
    pub fn with_environment(
        mut self,
        look_up: &dyn Fn(&str) -> Option<String>,
    ) -> Result<VolumeSettings, SettingsError> {
        for name in [
            "NETRAM_FLUSH",
            "NETRAM_STAGE",
            "NETRAM_DATA_LENDER",
            "NETRAM_DATA_LENDER_KEY_FILE",
        ] {
            if let Some(text) = look_up(name).filter(|text| !text.is_empty()) {
                self.set(name, &text)?;
            }
        }
        self.journal = self.journal.with_environment(look_up)?;
        Ok(self)
    }

    /// Options for opening the journal.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the settings contradict each other or a key is missing or unreadable.
    pub fn journal_config(&self) -> Result<JournalConfig, SettingsError> {
        let mut config = self.journal.journal_config()?;
        config.modelled_sync_delay = self.modelled.journal;
        let is_open = matches!(config.security, Security::Insecure) && !self.journal.insecure;
        if self.data_lender.is_some() && self.data_lender_key_file.is_none() && is_open {
            config.security = Security::choose(None, false)?;
        }
        Ok(config)
    }

    /// Security of the connection to the data lender: the key of its data sessions, or `lenders`.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Security`] if the key file cannot be read.
    pub fn data_security(&self, lenders: &Security) -> Result<Security, SettingsError> {
        match &self.data_lender_key_file {
            Some(path) => Ok(Security::choose(Some(path.clone()), false)?),
            None => Ok(lenders.clone()),
        }
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), SettingsError> {
        let refused = |reason: &str| SettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            reason: reason.to_owned(),
        };
        match name {
            "flush" | "NETRAM_FLUSH" => {
                self.flush = match text {
                    "remote" => FlushPolicy::Remote,
                    "disk" => FlushPolicy::Disk,
                    _ => return Err(refused("use `remote` or `disk`")),
                }
            }
            "data-lender" | "NETRAM_DATA_LENDER" => {
                let address: NetAddress = text
                    .parse()
                    .map_err(|error: NetAddressError| refused(&error.to_string()))?;
                self.data_lender = Some(address);
            }
            "data-lender-key-file" | "NETRAM_DATA_LENDER_KEY_FILE" => {
                self.data_lender_key_file = Some(text.into());
            }
            _ => {
                let bytes = size(name, text)?;
                if !(STAGE_BYTES_MIN..=STAGE_BYTES_MAX).contains(&bytes) {
                    return Err(refused("a stage must have 64KiB to 1GiB"));
                }
                self.policy.bytes = bytes;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<VolumeSettings, SettingsError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("netram.toml");
        std::fs::write(&path, text).unwrap();
        VolumeSettings::load(&path)
    }

    #[test]
    fn volume_and_journal_settings_share_one_file() {
        let settings =
            load("[journal]\nlenders = [\"tcp://a:1\"]\ninsecure = true\n[volume]\nflush = \"disk\"\nstage = \"1MiB\"\ndata-lender = \"tcp://b:2\"").unwrap();
        assert_eq!(settings.data_lender, Some("tcp://b:2".parse().unwrap()));
        assert_eq!(settings.journal.lenders.len(), 1);
        assert_eq!(
            (settings.flush, settings.policy.bytes),
            (FlushPolicy::Disk, 1 << 20)
        );
        let over = settings.with_environment(&|name| match name {
            "NETRAM_FLUSH" => Some("remote".to_owned()),
            "NETRAM_STAGE" => Some("131072".to_owned()),
            "NETRAM_MEMBERS" => Some("1".to_owned()),
            _ => None,
        });
        let over = over.unwrap();
        assert_eq!((over.flush, over.policy.bytes), (FlushPolicy::Remote, 131_072));
        assert_eq!(over.journal.members, Some(1));
    }

    #[test]
    fn an_invalid_value_is_refused_with_its_name() {
        for (text, named) in [
            ("flush = \"never\"", "flush"),
            ("stage = 100", "stage"),
            ("stage = \"big\"", "stage"),
            ("stage = 1073741825", "1GiB"),
            ("stage = \"2GiB\"", "stage"),
            ("stages = 2", "stages"),
            ("data-lender = \"b:2\"", "data-lender"),
            ("[journal]\nrule = \"most\"", "rule"),
            ("[journal]\nflush = \"disk\"", "flush"),
        ] {
            let error = load(&format!("[volume]\n{text}")).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
