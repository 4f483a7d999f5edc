//! What `netram run` tells the library that it has a program load (crates/far/preload): a text in a variable
//! of the environment, a line a setting.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use netram_transport::{ClusterKey, KeyError, NetAddress, Security};

use crate::arena::ArenaConfig;
use crate::config::RemotePagesConfig;

/// The variable of the environment that has the settings.
pub const SETTINGS: &str = "NETRAM_RUN_SETTINGS";
/// The library's file.
pub const LIBRARY: &str = "libnetram_preload.so";
/// The variable of the environment that names it, for who has not installed it.
pub const LIBRARY_VARIABLE: &str = "NETRAM_FARRUN";
/// The subcommand that gives back what a program has left at lenders.
pub const GIVE_BACK: &str = "give-back";
/// The variable of the dynamic loader that names libraries to be loaded before all others.
pub const PRELOAD: &str = "LD_PRELOAD";

/// The least that an allocation must have to lie in the arena, by default.
pub const THRESHOLD_DEFAULT: u64 = 128 << 10;
/// Bytes of addresses, by default. They cost nothing until they are used.
pub const SIZE_DEFAULT: u64 = 256 << 30;
/// How long an allocation waits while no lender has room.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pages for which room is asked at once. Many programs are short, and need little.
const GROW: u32 = 1024;

/// How a program's heap is to lie in far memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSettings {
    /// The file of `netram` itself, which gives back what the program leaves at lenders.
    pub netram: PathBuf,
    /// The cap of local memory, in bytes.
    pub local_bytes: u64,
    /// The most bytes that the program may have there.
    pub size_bytes: u64,
    /// The least bytes of an allocation that lies there.
    pub threshold_bytes: u64,
    /// The lenders.
    pub lenders: Vec<NetAddress>,
    /// The cluster key's file. `None`: no key.
    pub key_file: Option<PathBuf>,
    /// In how many places a page is to be.
    pub copies: usize,
    /// A directory for the spill file. `None`: there is none.
    pub spill: Option<PathBuf>,
    /// The most bytes of that file.
    pub spill_bytes: u64,
    /// Bytes of the cap for pages that stay here compressed. `None`: as many as every arena has.
    pub packed_bytes: Option<u64>,
    /// Pages come before the program waits for them.
    pub look_ahead: bool,
    /// Programs that the program starts have an arena each, too.
    pub children: bool,
    /// What was moved is told at the end.
    pub report: RunReport,
}

/// Where it is told what was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunReport {
    /// Nowhere.
    None,
    /// In a line on standard error.
    Line,
    /// As JSON in this file.
    File(PathBuf),
}

/// Why a text is no settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunSettingsError {
    /// No setting is written so.
    #[error("`{0}` is no setting of a run")]
    Line(String),
    /// Without it there is no run.
    #[error("settings of a run without `{0}`")]
    Missing(&'static str),
}

impl RunSettings {
    /// The arena that it takes. Reads the key.
    pub fn arena(&self) -> Result<ArenaConfig, KeyError> {
        let security = match &self.key_file {
            Some(path) => Security::Key(ClusterKey::load(path)?),
            None => Security::Insecure,
        };
        Ok(ArenaConfig {
            bytes: self.size_bytes,
            local_bytes: self.local_bytes,
            packed_bytes: self.packed_bytes,
            look_ahead: self.look_ahead,
            patience: PATIENCE,
            remote_pages: RemotePagesConfig {
                lenders: self.lenders.clone(),
                security,
                copies: self.copies,
                grow: GROW,
                spill: self.spill.clone(),
                spill_bytes: self.spill_bytes,
                ..RemotePagesConfig::default()
            },
            ..ArenaConfig::default()
        })
    }
}

impl fmt::Display for RunSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "netram {}", self.netram.display())?;
        writeln!(out, "local {}", self.local_bytes)?;
        writeln!(out, "size {}", self.size_bytes)?;
        writeln!(out, "threshold {}", self.threshold_bytes)?;
        writeln!(out, "copies {}", self.copies)?;
        for lender in &self.lenders {
            writeln!(out, "lender {lender}")?;
        }
        if let Some(path) = &self.key_file {
            writeln!(out, "key {}", path.display())?;
        }
        if let Some(path) = &self.spill {
            writeln!(out, "spill {}", path.display())?;
        }
        writeln!(out, "spill-bytes {}", self.spill_bytes)?;
        if let Some(bytes) = self.packed_bytes {
            writeln!(out, "packed {bytes}")?;
        }
        if !self.look_ahead {
            writeln!(out, "look-ahead no")?;
        }
        if self.children {
            writeln!(out, "children yes")?;
        }
        match &self.report {
            RunReport::None => Ok(()),
            RunReport::Line => writeln!(out, "report line"),
            RunReport::File(path) => writeln!(out, "report-file {}", path.display()),
        }
    }
}

impl FromStr for RunSettings {
    type Err = RunSettingsError;

    fn from_str(text: &str) -> Result<RunSettings, RunSettingsError> {
        let (mut local, mut size, mut threshold, mut copies) = (None, None, None, None);
        let (mut netram, mut lenders, mut key_file) = (None, Vec::new(), None);
        let (mut spill, mut spill_bytes, mut packed) = (None, None, None);
        let (mut look_ahead, mut children, mut report) = (true, false, RunReport::None);
        for line in text.lines() {
            let bad = || RunSettingsError::Line(line.to_owned());
            let number = |value: &str| value.parse::<u64>().map(Some).map_err(|_| bad());
            match line.split_once(' ').ok_or_else(bad)? {
                ("netram", value) => netram = Some(PathBuf::from(value)),
                ("local", value) => local = number(value)?,
                ("size", value) => size = number(value)?,
                ("threshold", value) => threshold = number(value)?,
                ("copies", value) => copies = number(value)?,
                ("lender", value) => lenders.push(value.parse().map_err(|_| bad())?),
                ("key", value) => key_file = Some(PathBuf::from(value)),
                ("spill", value) => spill = Some(PathBuf::from(value)),
                ("spill-bytes", value) => spill_bytes = number(value)?,
                ("packed", value) => packed = number(value)?,
                ("look-ahead", "no") => look_ahead = false,
                ("children", "yes") => children = true,
                ("report", "line") => report = RunReport::Line,
                ("report-file", value) => report = RunReport::File(PathBuf::from(value)),
                _ => return Err(bad()),
            }
        }
        Ok(RunSettings {
            netram: netram.ok_or(RunSettingsError::Missing("netram"))?,
            local_bytes: local.ok_or(RunSettingsError::Missing("local"))?,
            size_bytes: size.ok_or(RunSettingsError::Missing("size"))?,
            threshold_bytes: threshold.ok_or(RunSettingsError::Missing("threshold"))?,
            copies: copies.ok_or(RunSettingsError::Missing("copies"))? as usize,
            lenders,
            key_file,
            spill,
            spill_bytes: spill_bytes.ok_or(RunSettingsError::Missing("spill-bytes"))?,
            packed_bytes: packed,
            look_ahead,
            children,
            report,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> RunSettings {
        RunSettings {
            netram: "/usr/bin/netram of today".into(),
            local_bytes: 1 << 20,
            size_bytes: SIZE_DEFAULT,
            threshold_bytes: THRESHOLD_DEFAULT,
            lenders: vec![
                "unix:/run/a lender".parse().unwrap(),
                "tcp://127.0.0.1:7420".parse().unwrap(),
            ],
            key_file: Some("/etc/netram/the key".into()),
            copies: 2,
            spill: Some("/var/tmp/a directory".into()),
            spill_bytes: 1 << 30,
            packed_bytes: Some(1 << 18),
            look_ahead: false,
            children: true,
            report: RunReport::File("/tmp/a report".into()),
        }
    }

    #[test]
    fn settings_are_read_as_they_are_written() {
        assert_eq!(settings().to_string().parse(), Ok(settings()));
        let plain = RunSettings {
            key_file: None,
            spill: None,
            packed_bytes: None,
            look_ahead: true,
            children: false,
            report: RunReport::Line,
            ..settings()
        };
        assert_eq!(plain.to_string().parse(), Ok(plain));
    }

    #[test]
    fn what_is_no_setting_is_refused_by_its_line() {
        let text = format!("{}colour blue\n", settings());
        let refused = text.parse::<RunSettings>().unwrap_err();
        assert_eq!(refused, RunSettingsError::Line("colour blue".to_owned()));
        let refused = "netram /bin/netram\nlocal 4096\n"
            .parse::<RunSettings>()
            .unwrap_err();
        assert_eq!(refused, RunSettingsError::Missing("size"));
    }
}
