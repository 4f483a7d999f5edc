//! Scrubbing: every block is read and compared with its checksum.

use std::sync::atomic::{AtomicBool, Ordering};

use netram_block::{BLOCK_BYTES, BlockDevice, DeviceError, ScrubStep};
use serde::{Deserialize, Serialize};

use crate::volume::Volume;

/// Bytes read at once: what a scrub takes from the disk before others' reads have their turn.
const PART_BYTES: u64 = 1 << 20;
/// Bad blocks that are named; more are counted.
const NAMED_MAX: usize = 20;

/// How far something long has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// Bytes done.
    pub done: u64,
    /// Of so many.
    pub total: u64,
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFindings {
    /// Bytes that were read; holes are not.
    pub read_bytes: u64,
    /// Blocks that do not match their checksum.
    pub bad_blocks: u64,
    /// The first of them.
    pub named: Vec<u64>,
    /// Blocks that did not match and were taken from the data lender's copy.
    #[serde(default)]
    pub mended_blocks: u64,
    /// Blocks that only the data lender has, and that could not be had now: the volume is being restored.
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

/// Reads all of the image, beside whoever else uses the volume, and mends what the data lender has. `None`:
/// `cancel` was set meanwhile.
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
