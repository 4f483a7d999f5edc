//! Starting a resync of the data lender's copy on request, and waiting for its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netram_block::BLOCK_BYTES;
use serde::{Deserialize, Serialize};

use crate::scrub::TaskProgress;
use crate::volume::Volume;

/// Interval between looks at the status.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the data lender may be unreachable before the wait fails.
const AWAY_MAX: Duration = Duration::from_secs(10);

/// Result of a resync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResyncOutcome {
    /// Number of blocks sent.
    pub sent_blocks: u64,
    /// Duration in milliseconds.
    pub took_ms: u64,
}

/// Failure to resync the copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeResyncError {
    /// The volume has no data lender.
    #[error("the volume has no data lender; set `data-lender` in its netram.toml and open the volume again")]
    NoDataLender,
    /// The data lender cannot be reached or refuses the session.
    #[error("{0}")]
    Trouble(String),
}

/// Compares the copy of an open volume and makes it equal; with `whole` even one that has more than this
/// volume, or another history. `None`: `cancel` was set; the resync continues all the same.
///
/// # Errors
///
/// [`VolumeResyncError`] without a data lender, or if it refuses or stays unreachable.
pub fn resync(
    volume: &Volume,
    whole: bool,
    cancel: &AtomicBool,
    each: &mut dyn FnMut(TaskProgress),
) -> Result<Option<ResyncOutcome>, VolumeResyncError> {
    let before = volume.data_lender().unwrap_or_default();
    if !volume.resync(whole) {
        return Err(VolumeResyncError::NoDataLender);
    }
    let began = Instant::now();
    let mut heard = Instant::now();
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
        let status = volume.data_lender().unwrap_or_default();
        if status.resyncs > before.resyncs {
            return Ok(Some(ResyncOutcome {
                sent_blocks: status.resync_sent_blocks - before.resync_sent_blocks,
                took_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            }));
        }
        if status.undecided && !whole && !status.connected {
            return Err(VolumeResyncError::Trouble(status.trouble.unwrap_or_default()));
        }
        if status.connected {
            heard = Instant::now();
        } else if heard.elapsed() > AWAY_MAX {
            let trouble = status
                .trouble
                .unwrap_or_else(|| "the data lender does not answer".to_owned());
            return Err(VolumeResyncError::Trouble(trouble));
        }
        let (done, total) = status
            .resync
            .map_or((0, 1), |resync| (resync.done_blocks, resync.total_blocks.max(1)));
        each(TaskProgress {
            done: done * BLOCK_BYTES,
            total: total * BLOCK_BYTES,
        });
    }
}
