//! Scrubbing: every block is read and compared with its checksum.

use std::sync::atomic::{AtomicBool, Ordering};

use netram_disk::{BLOCK_BYTES, Device, DeviceError};
use serde::{Deserialize, Serialize};

/// Bytes read at once: what a scrub takes from the disk before others' reads have their turn. A bad block costs its part
/// being read again in single blocks.
const PART_BYTES: u64 = 1 << 20;
/// Bad blocks that are named; more are counted.
const NAMED_MAX: usize = 20;

/// How far something long has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes done.
    pub done: u64,
    /// Of so many.
    pub total: u64,
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// Bytes that were read; holes are not.
    pub read_bytes: u64,
    /// Blocks that do not match their checksum.
    pub bad_blocks: u64,
    /// The first of them.
    pub named: Vec<u64>,
}

impl Findings {
    fn bad(&mut self, block: u64) {
        self.bad_blocks += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(block);
        }
    }
}

/// Reads all of `device`, beside whoever else uses it. `None`: `cancel` was set meanwhile.
pub fn scrub<D: Device + ?Sized>(
    device: &D,
    cancel: &AtomicBool,
    each: &mut dyn FnMut(Progress),
) -> Result<Option<Findings>, DeviceError> {
    let total = device.geometry().bytes;
    let mut findings = Findings::default();
    let mut buffer = vec![0; PART_BYTES as usize];
    let mut done = 0;
    while done < total {
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let part = PART_BYTES.min(total - done);
        let mut taken = false;
        device.extents(done, part, &mut |_, hole| {
            taken |= !hole;
            !taken
        })?;
        if taken {
            read_part(device, done, &mut buffer[..part as usize], &mut findings)?;
        }
        done += part;
        each(Progress { done, total });
    }
    Ok(Some(findings))
}

fn read_part<D: Device + ?Sized>(
    device: &D,
    at: u64,
    buffer: &mut [u8],
    findings: &mut Findings,
) -> Result<(), DeviceError> {
    findings.read_bytes += buffer.len() as u64;
    match device.read(at, buffer) {
        Err(DeviceError::Corrupt { .. }) => (),
        other => return other,
    }
    for (index, block) in buffer.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        match device.read(at + index as u64 * BLOCK_BYTES, block) {
            Err(DeviceError::Corrupt { block }) => findings.bad(block),
            other => other?,
        }
    }
    Ok(())
}
