//! Settings that `netram run` passes to the preloaded library (crates/far/preload): a text in an environment
//! variable, one setting per line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use netram_telemetry::MetricsAddress;
use netram_transport::{ClusterKey, KeyError, NetAddress, Security};

use crate::arena::ArenaConfig;
use crate::config::RemotePagesConfig;

/// Environment variable with the settings.
pub const SETTINGS: &str = "NETRAM_RUN_SETTINGS";
/// File name of the library.
pub const LIBRARY: &str = "libnetram_preload.so";
/// Environment variable with the library's path, for use without installation.
pub const LIBRARY_VARIABLE: &str = "NETRAM_FARRUN";
/// Subcommand that frees what a program left at lenders.
pub const GIVE_BACK: &str = "give-back";
/// Environment variable of the dynamic loader that names libraries to preload.
pub const PRELOAD: &str = "LD_PRELOAD";

/// Default minimum bytes of an allocation in the arena.
pub const THRESHOLD_DEFAULT: u64 = 128 << 10;
/// Default bytes of addresses. They cost nothing until they are used.
pub const SIZE_DEFAULT: u64 = 256 << 30;
/// Time for which an allocation waits while no lender has room.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of pages for which room is requested at a time. Small, because many programs are short and need
/// little.
const GROW: u32 = 1024;

/// Settings of a program whose heap is in far memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSettings {
    /// Path of `netram` itself, which frees what the program leaves at lenders.
    pub netram: PathBuf,
    /// The cap of local memory in bytes.
    pub local_bytes: u64,
    /// Maximum bytes of the program's far memory.
    pub size_bytes: u64,
    /// Minimum bytes of an allocation in far memory.
    pub threshold_bytes: u64,
    /// The lenders.
    pub lenders: Vec<NetAddress>,
    /// File with the cluster key. `None`: no key.
    pub key_file: Option<PathBuf>,
    /// Number of copies of each page.
    pub copies: usize,
    /// Directory of the spill file. `None`: no spill file.
    pub spill: Option<PathBuf>,
    /// Maximum bytes of the spill file.
    pub spill_bytes: u64,
    /// Bytes of the cap for packed pages. `None`: the default of an arena.
    pub packed_bytes: Option<u64>,
    /// Whether pages are prefetched.
    pub look_ahead: bool,
    /// Whether programs that the program starts get an arena each, too.
    pub children: bool,
    /// Where the program's process serves its metrics. `None`: nowhere.
    pub metrics: Option<MetricsAddress>,
    /// Destination of the final report.
    pub report: RunReport,
}

/// Destination of a run's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunReport {
    /// No report.
    None,
    /// A line on standard error.
    Line,
    /// JSON in this file.
    File(PathBuf),
}

/// Why a text is not settings of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunSettingsError {
    /// A line is not a setting.
    #[error("`{0}` is not a setting of a run")]
    Line(String),
    /// A required setting is missing.
    #[error("the settings of the run lack `{0}`")]
    Missing(&'static str),
}

impl RunSettings {
    /// Settings of the arena. Reads the key file.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if the key file cannot be read.
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
        if let Some(address) = &self.metrics {
            writeln!(out, "metrics {address}")?;
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
        let (mut look_ahead, mut children, mut metrics, mut report) = (true, false, None, RunReport::None);
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
                ("metrics", value) => metrics = Some(value.parse().map_err(|_| bad())?),
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
            metrics,
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
            metrics: Some("127.0.0.1:9465".parse().unwrap()),
            report: RunReport::File("/tmp/a report".into()),
        }
    }

    #[test]
    fn written_settings_parse_to_themselves() {
        assert_eq!(settings().to_string().parse(), Ok(settings()));
        let plain = RunSettings {
            key_file: None,
            spill: None,
            packed_bytes: None,
            look_ahead: true,
            children: false,
            metrics: None,
            report: RunReport::Line,
            ..settings()
        };
        assert_eq!(plain.to_string().parse(), Ok(plain));
    }

    #[test]
    fn an_unknown_or_missing_setting_is_named() {
        let text = format!("{}colour blue\n", settings());
        let refused = text.parse::<RunSettings>().unwrap_err();
        assert_eq!(refused, RunSettingsError::Line("colour blue".to_owned()));
        let refused = "netram /bin/netram\nlocal 4096\n"
            .parse::<RunSettings>()
            .unwrap_err();
        assert_eq!(refused, RunSettingsError::Missing("size"));
    }
}
