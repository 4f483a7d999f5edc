//! A volume's settings: a home's, for the lenders, and these beside them.
//!
//! | key in the file | variable | means | default |
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
use netram_store::{StoreSettings, StoreSettingsError, settings::size};
use netram_transport::{ClusterKey, NetAddress, NetAddressError, Security};

/// Bytes of the smallest stage: smaller ones would sync the image for a few writes.
const STAGE_BYTES_MIN: u64 = 64 * 1024;

/// Bytes of the largest stage: five times as much memory may be in use, as docs/disk.md says.
const STAGE_BYTES_MAX: u64 = 1 << 30;

/// How a volume is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeSettings {
    /// Lenders, rule and the rest of the journal's.
    pub journal: StoreSettings,
    /// What FLUSH waits for.
    pub flush: FlushPolicy,
    /// When stages end.
    pub policy: StagePolicy,
    /// The lender that keeps a copy of the volume on its own disk.
    pub data_lender: Option<NetAddress>,
    /// The key of its data sessions (`netram lend --data-key-file`); `None`: it is reached as lenders are.
    pub data_lender_key_file: Option<PathBuf>,
    /// When it is out of service, and when its link is given up: no file and no variable says so.
    pub data_lender_timing: SourceTiming,
    /// Take over a data lender's copy: it is to be a volume of its own. A decision for one opening, so no
    /// file makes it.
    pub take_over: bool,
    /// Open although somebody has fenced the volume: the operator says that this directory is the newest. For
    /// one opening, as above.
    pub newest: bool,
    /// Take over although the copy's client was heard a moment ago: the operator says that it does not run.
    /// For one opening, as above.
    pub client_is_off: bool,
    /// A slower disk than there is, for benchmarks: no file and no variable makes it.
    pub modelled: ModelledDisk,
}

/// What is added to each sync, to model a slower disk. Always label results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelledDisk {
    /// Of the journal's log, which has a vote on writes.
    pub journal: Duration,
    /// Of image, sums, superblock and dirty map.
    pub files: Duration,
}

impl From<StoreSettings> for VolumeSettings {
    fn from(journal: StoreSettings) -> VolumeSettings {
        VolumeSettings {
            journal,
            ..VolumeSettings::default()
        }
    }
}

impl VolumeSettings {
    /// Settings from a file.
    pub fn load(path: &Path) -> Result<VolumeSettings, StoreSettingsError> {
        let keys = ["flush", "stage", "data-lender", "data-lender-key-file"];
        let (journal, own) = StoreSettings::load_beside(path, &keys)?;
        let mut settings = VolumeSettings::from(journal);
        for (key, value) in own {
            let text = match value {
                toml::Value::String(text) => text,
                other => other.to_string(),
            };
            settings.set(&key, &text)?;
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        settings.data_lender_key_file = settings.data_lender_key_file.map(|file| directory.join(file));
        Ok(settings)
    }

    /// These settings, with what the environment says over them.
    pub fn with_environment(
        mut self,
        look_up: &dyn Fn(&str) -> Option<String>,
    ) -> Result<VolumeSettings, StoreSettingsError> {
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

    /// What the journal is opened with.
    pub fn journal_config(&self) -> Result<JournalConfig, StoreSettingsError> {
        let mut config = self.journal.journal_config()?;
        config.modelled_sync_delay = self.modelled.journal;
        let open = matches!(config.security, Security::Insecure) && !self.journal.insecure;
        match self.data_lender.is_some() && self.data_lender_key_file.is_none() && open {
            true => Err(StoreSettingsError::NoKey),
            false => Ok(config),
        }
    }

    /// How the data lender is reached: with the key of its data sessions, or as `lenders` are.
    pub fn data_security(&self, lenders: &Security) -> Result<Security, StoreSettingsError> {
        let Some(path) = &self.data_lender_key_file else {
            return Ok(lenders.clone());
        };
        let key = ClusterKey::load(path).map_err(|error| StoreSettingsError::Key {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        Ok(Security::Key(key))
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), StoreSettingsError> {
        let refused = |reason: &str| StoreSettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            reason: reason.to_owned(),
        };
        match name {
            "flush" | "NETRAM_FLUSH" => {
                self.flush = match text {
                    "remote" => FlushPolicy::Remote,
                    "disk" => FlushPolicy::Disk,
                    _ => return Err(refused("say `remote` or `disk`")),
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
                    return Err(refused("a stage has 64KiB to 1GiB, of memory too"));
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

    fn load(text: &str) -> Result<VolumeSettings, StoreSettingsError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("netram.toml");
        std::fs::write(&path, text).unwrap();
        VolumeSettings::load(&path)
    }

    #[test]
    fn a_volumes_settings_stand_beside_its_journals() {
        let settings =
            load("lenders = [\"tcp://a:1\"]\ninsecure = true\nflush = \"disk\"\nstage = \"1MiB\"\ndata-lender = \"tcp://b:2\"").unwrap();
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
    fn what_cannot_be_meant_is_refused_by_name() {
        for (text, named) in [
            ("flush = \"never\"", "flush"),
            ("stage = 100", "stage"),
            ("stage = \"big\"", "stage"),
            ("stage = 1073741825", "1GiB"),
            ("stage = \"2GiB\"", "stage"),
            ("stages = 2", "stages"),
            ("data-lender = \"b:2\"", "data-lender"),
            ("rule = \"most\"", "rule"),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
