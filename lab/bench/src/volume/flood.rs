//! A flood of writes on a volume in its own process, so that its memory can be told from others'.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_block::BlockDevice;
use serde::{Deserialize, Serialize};

use crate::child::{ChildJob, ChildProcess};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tpca::{AccessPattern, AccountChooser};
use crate::volume::serve::{SyncDelays, open_volume};

const REPORT_LINE: &str = "flooded ";
/// Number of writes that are logged before they are waited for.
const DEPTH: usize = 32;
/// Number of writes between two readings of the process's memory.
const POLL_WRITES: u64 = 512;
const SIZES: [usize; 4] = [4 << 10, 512, 64 << 10, 20 << 10];
/// Number of writes before the first reading, in which threads get their stacks and the journal its ring.
const WARM_UP: u64 = 64;

/// Job of a flooding process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FloodJob {
    /// Directory of the volume.
    pub volume: PathBuf,
    /// Duration in milliseconds.
    pub milliseconds: u64,
}

/// Result of a flood.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FloodReport {
    /// Bytes written.
    pub written: u64,
    /// Maximum bytes that the volume counted in its stages and kept for the next.
    pub memory_bytes_max: u64,
    /// Growth of the process in bytes, as the system counts.
    pub grown_bytes: u64,
    /// Number of times that writers waited for the image.
    pub stalls: u64,
}

impl FloodJob {
    /// Floods the volume at `path` for `time`.
    ///
    /// # Errors
    ///
    /// Fails if the process does.
    pub fn measure(site: &Testbed, path: &Path, time: Duration) -> Result<FloodReport, BenchError> {
        let flood = FloodJob {
            volume: path.to_path_buf(),
            milliseconds: time.as_millis() as u64,
        };
        let mut child = ChildProcess::play(site.program(), &flood, "flood", site.directory())?;
        let lines = child.ready(REPORT_LINE)?;
        let said = lines.iter().find_map(|line| line.strip_prefix(REPORT_LINE));
        serde_json::from_str(said.unwrap_or_default()).context("read what a flood did")
    }
}

impl ChildJob for FloodJob {
    const ROLE: &'static str = "Flood";

    fn run(&self) -> Result<(), BenchError> {
        let volume = open_volume(&self.volume, SyncDelays::default())?;
        let blocks = volume.geometry().bytes / 512 - 128;
        let mut places = AccountChooser::new(AccessPattern::Random, blocks, 1);
        let data = vec![0x5a; SIZES[2]];
        let (mut written, mut count, mut first, mut most) = (0_u64, 0_u64, None, 0);
        let end = Instant::now() + Duration::from_millis(self.milliseconds);
        while Instant::now() < end {
            let mut last = None;
            for _ in 0..DEPTH {
                let bytes = SIZES[count as usize % SIZES.len()];
                let logged = volume.write(places.account() * 512, &data[..bytes]);
                last = Some(logged.context("write to a volume")?);
                written += bytes as u64;
                count += 1;
            }
            if let Some(last) = last {
                volume.wait(last).context("wait for a volume")?;
            }
            if count >= WARM_UP && (first.is_none() || count.is_multiple_of(POLL_WRITES)) {
                let resident = resident_bytes()?;
                most = most.max(resident);
                first.get_or_insert(resident);
            }
        }
        let status = volume.status().disk;
        let flooded = FloodReport {
            written,
            memory_bytes_max: status.stages.memory_bytes_max,
            grown_bytes: most.saturating_sub(first.unwrap_or(most)),
            stalls: status.statistics.stalls,
        };
        volume.close().context("close a volume")?;
        crate::say(&format!(
            "{REPORT_LINE}{}",
            serde_json::to_string(&flooded).context("say what was done")?
        ))
    }
}

/// Resident bytes of this process.
fn resident_bytes() -> Result<u64, BenchError> {
    let text = std::fs::read_to_string("/proc/self/status").context("look at this process's memory")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    match kib {
        Some(kib) => Ok(kib * 1024),
        None => Err(BenchError::InvalidRequest(
            "the system does not report the size of this process".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_size() {
        let before = resident_bytes().unwrap();
        let touched = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(resident_bytes().unwrap() > before + (32 << 20));
        drop(touched);
    }
}
