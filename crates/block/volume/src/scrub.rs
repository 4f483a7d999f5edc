//! Scrubbing: reading every block and comparing it with its checksum.

use std::sync::atomic::{AtomicBool, Ordering};

use netram_block::{BLOCK_BYTES, BlockDevice, DeviceError, ScrubStep};
use serde::{Deserialize, Serialize};

use crate::volume::Volume;

/// Bytes read at once; between two parts, other readers get the disk.
const PART_BYTES: u64 = 1 << 20;
/// Maximum number of bad blocks that are listed; all are counted.
const NAMED_MAX: usize = 20;

/// Progress of a long task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFindings {
    /// Bytes read; holes are not read.
    pub read_bytes: u64,
    /// Number of blocks that do not match their checksum.
    pub bad_blocks: u64,
    /// Numbers of the first bad blocks.
    pub named: Vec<u64>,
    /// Number of blocks that did not match and were replaced from the data lender's copy.
    #[serde(default)]
    pub mended_blocks: u64,
    /// Number of blocks that only the data lender has and that it did not send: the volume is being restored.
    #[serde(default)]
    pub missing_blocks: u64,
}

impl ScrubFindings {
    fn take(&mut self, part: &ScrubStep) {
        self.read_bytes += part.blocks * BLOCK_BYTES;
        self.mended_blocks += part.repaired;
        self.missing_blocks += part.missing;
        self.bad_blocks += part.bad.len() as u64;
        let room = NAMED_MAX - self.named.len();
        self.named.extend(part.bad.iter().take(room));
    }
}

/// Reads the whole image while the volume is in use, and repairs blocks that the data lender has. `None`:
/// `cancel` was set.
///
/// # Errors
///
/// [`DeviceError`] if a file failed. Bad blocks are no error.
pub fn scrub(
    volume: &Volume,
    cancel: &AtomicBool,
    each: &mut dyn FnMut(TaskProgress),
) -> Result<Option<ScrubFindings>, DeviceError> {
    let total = volume.geometry().bytes;
    let mut findings = ScrubFindings::default();
    let mut done = 0;
    while done < total {
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let part = PART_BYTES.min(total - done);
        findings.take(&volume.scrub_part(done / BLOCK_BYTES, part / BLOCK_BYTES)?);
        done += part;
        each(TaskProgress { done, total });
    }
    Ok(Some(findings))
}
