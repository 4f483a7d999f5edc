//! A MODELLED slow disk for other programs: a preloaded library makes their syncs take longer.
//!
//! Only files on one device are slowed, so that a netram mount or volume keeps its own speed. netram's own
//! processes do not use the C library for system calls, and get the slower disk by their own settings.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{BenchError, ErrorContext};
use crate::tool::tool;

/// The library.
const SOURCE: &str = include_str!("slow_disk.c");
/// Environment variable that tells the library which disk is slow, and by how much.
const VARIABLE: &str = "NETRAM_SLOW_DISK";
const PRELOAD: &str = "LD_PRELOAD";

/// The library, compiled here.
#[derive(Clone, Debug)]
pub struct SlowDisk {
    library: PathBuf,
}

impl SlowDisk {
    /// Compiles it in `directory`.
    ///
    /// # Errors
    ///
    /// Fails if there is no C compiler, or it reports an error.
    pub fn make(directory: &Path) -> Result<SlowDisk, BenchError> {
        let (source, library) = (directory.join("slow_disk.c"), directory.join("slow_disk.so"));
        let mut file = File::create(&source).context("write the slow disk's source")?;
        file.write_all(SOURCE.as_bytes())
            .context("write the slow disk's source")?;
        let (from, to) = (source.to_string_lossy(), library.to_string_lossy());
        tool("cc", &["-O2", "-Wall", "-shared", "-fPIC", "-o", &to, &from])?;
        Ok(SlowDisk { library })
    }

    /// Environment variables with which every sync of a file on `place`'s device takes `microseconds` longer.
    ///
    /// # Errors
    ///
    /// Fails if the device of `place` cannot be determined.
    pub fn environment(
        &self,
        place: &Path,
        microseconds: u32,
    ) -> Result<[(&'static str, String); 2], BenchError> {
        self.environment_with(place, format_args!("{microseconds}"))
    }

    /// The same with a write rate: a sync also takes the time of the bytes written since the one before, at
    /// `mb_per_s`.
    ///
    /// # Errors
    ///
    /// Fails if the device of `place` cannot be determined.
    pub fn environment_of_rate(
        &self,
        place: &Path,
        microseconds: u32,
        mb_per_s: u32,
    ) -> Result<[(&'static str, String); 2], BenchError> {
        self.environment_with(place, format_args!("{microseconds} {mb_per_s}"))
    }

    fn environment_with(
        &self,
        place: &Path,
        slower: fmt::Arguments<'_>,
    ) -> Result<[(&'static str, String); 2], BenchError> {
        let device = place
            .metadata()
            .context(format_args!("look at {}", place.display()))?
            .dev();
        Ok([
            (PRELOAD, self.library.display().to_string()),
            (VARIABLE, format!("{device} {slower}")),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::{Duration, Instant};

    /// Duration of eight synced writes by `dd` in the given environment.
    fn eight_writes(directory: &Path, environment: &[(&str, String)]) -> Duration {
        let mut command = Command::new("dd");
        command
            .arg("if=/dev/zero")
            .arg(format!("of={}", directory.join("file").display()))
            .args(["bs=512", "count=8", "oflag=dsync", "status=none"])
            .envs(environment.iter().map(|(name, value)| (*name, value)));
        let began = Instant::now();
        let status = command.status().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None));
        began.elapsed()
    }

    #[test]
    fn only_syncs_on_the_slow_device_take_longer() {
        let directory = tempfile::tempdir().unwrap();
        let slow = SlowDisk::make(directory.path()).unwrap();
        let environment = slow.environment(directory.path(), 100_000).unwrap();
        assert!(eight_writes(directory.path(), &environment) >= Duration::from_millis(800));
        let rated = slow.environment_of_rate(directory.path(), 1, 1).unwrap();
        let mut large = Command::new("dd");
        large
            .arg("if=/dev/zero")
            .arg(format!("of={}", directory.path().join("large").display()))
            .args(["bs=100k", "count=5", "conv=fsync", "status=none"])
            .envs(rated);
        let began = Instant::now();
        assert!(large.status().unwrap().success());
        assert!(
            began.elapsed() >= Duration::from_millis(512),
            "512,000 bytes at 1 MB a second"
        );
        // The settings name another device.
        let mut other = environment.clone();
        other[1].1 = "1 100000000".to_owned();
        assert!(eight_writes(directory.path(), &other) < Duration::from_secs(100));
        let text = std::fs::read_to_string("/proc/self/environ").unwrap_or_default();
        assert!(!text.contains(VARIABLE), "only those who are told are slowed");
    }
}
