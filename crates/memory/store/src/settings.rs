//! Settings of a store: those of its journal, and the table `[rvm]` of the same file.
//!
//! | key in `[rvm]` | variable | means | default |
//! |---|---|---|---|
//! | `truncation-threshold` | `NETRAM_TRUNCATION_THRESHOLD` | percent of the log at which truncation begins | 50 |
//! | `spool` | `NETRAM_SPOOL` | bytes of lazy commits kept back to be merged | 0: none |
//! | | `NETRAM_ADOPT_SEGMENTS` | take segments that were restored from copies | |
//!
//! The last one is a decision for one opening, so a file cannot make it.

use std::ops::{Deref, DerefMut};
use std::path::Path;

use netram_journal::settings::{JournalSettings, SettingsError, SettingsFile, plain, set, size, truth};
use netram_proto::id::JournalId;
use netram_rvm::RvmOptions;
use serde::Deserialize;

/// Settings with which a store is opened. `None` means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreSettings {
    /// Lenders, commit rule and the journal's other settings.
    pub journal: JournalSettings,
    /// Fill of the log at which truncation begins, in percent.
    pub truncation_threshold_percent: Option<u8>,
    /// Bytes of lazy commits that are kept back and merged.
    pub spool_bytes: Option<usize>,
    /// Segment files are accepted even if they are not the recorded ones.
    pub adopt_segments: bool,
}

/// The table's values before they are checked.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct RawRvmSettings {
    truncation_threshold: Option<u8>,
    spool: Option<toml::Value>,
}

impl StoreSettings {
    /// Loads settings from a file with the tables `[journal]` and `[rvm]`.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the file cannot be read, has an unknown key or table, or an invalid value.
    pub fn load(path: &Path) -> Result<StoreSettings, SettingsError> {
        StoreSettings::of(SettingsFile::read(path)?)
    }

    /// Parses `text`, the content of such a file that is or will be at `path`.
    ///
    /// # Errors
    ///
    /// As [`StoreSettings::load`], except for reading.
    pub fn parse(text: &str, path: &Path) -> Result<StoreSettings, SettingsError> {
        StoreSettings::of(SettingsFile::parse(text, path)?)
    }

    fn of(mut file: SettingsFile) -> Result<StoreSettings, SettingsError> {
        let journal = JournalSettings::take(&mut file)?;
        let raw: RawRvmSettings = file.take("rvm")?;
        file.finish()?;
        let spool = raw.spool.map(|spool| memory_size("spool", &plain(&spool)));
        Ok(StoreSettings {
            journal,
            truncation_threshold_percent: raw.truncation_threshold,
            spool_bytes: spool.transpose()?,
            adopt_segments: false,
        })
    }

    /// These settings, overridden by the environment.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Value`] if a variable's value is invalid.
    pub fn with_environment(
        mut self,
        look_up: &dyn Fn(&str) -> Option<String>,
    ) -> Result<StoreSettings, SettingsError> {
        let variable = |name: &str| look_up(name).filter(|value| !value.is_empty());
        set(
            &mut self.truncation_threshold_percent,
            &variable,
            "NETRAM_TRUNCATION_THRESHOLD",
        )?;
        if let Some(spool) = variable("NETRAM_SPOOL") {
            self.spool_bytes = Some(memory_size("NETRAM_SPOOL", &spool)?);
        }
        if let Some(text) = variable("NETRAM_ADOPT_SEGMENTS") {
            self.adopt_segments = truth("NETRAM_ADOPT_SEGMENTS", &text)?;
        }
        self.journal = self.journal.with_environment(look_up)?;
        Ok(self)
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
}

impl Deref for StoreSettings {
    type Target = JournalSettings;

    fn deref(&self) -> &JournalSettings {
        &self.journal
    }
}

impl DerefMut for StoreSettings {
    fn deref_mut(&mut self) -> &mut JournalSettings {
        &mut self.journal
    }
}

fn memory_size(name: &str, text: &str) -> Result<usize, SettingsError> {
    let bytes = size(name, text)?;
    usize::try_from(bytes).map_err(|_| SettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        reason: "more than this machine can address".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<StoreSettings, SettingsError> {
        StoreSettings::parse(text, Path::new("bank.log.toml"))
    }

    #[test]
    fn both_tables_become_fields() {
        let text = "[journal]\nmembers = 1\nlenders = [\"tcp://a:1\"]\n[rvm]\nspool = 4096\ntruncation-threshold = 60\n";
        let settings = parse(text).unwrap();
        assert_eq!(settings.members, Some(1));
        assert_eq!(settings.options(JournalId(1)).spool_bytes, 4096);
        assert_eq!(settings.truncation_threshold_percent, Some(60));
    }

    #[test]
    fn an_unknown_key_or_table_is_named() {
        for (text, named) in [
            ("[rvm]\nspol = 1", "spol"),
            ("[journal]\nspool = 1", "spool"),
            ("[volume]\nflush = \"disk\"", "[volume]"),
            ("lenders = []", "`lenders`"),
            ("[rvm]\nspool = \"big\"", "spool"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn the_environment_overrides_both_tables() {
        let settings = parse("[rvm]\nspool = 1").unwrap();
        let settings = settings.with_environment(&|name| match name {
            "NETRAM_SPOOL" => Some("2KiB".to_owned()),
            "NETRAM_MEMBERS" => Some("3".to_owned()),
            _ => None,
        });
        let settings = settings.unwrap();
        assert_eq!((settings.spool_bytes, settings.members), (Some(2048), Some(3)));
    }
}
