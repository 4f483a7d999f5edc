//! Scrub of a copy: all of it once in an interval, a little at a time.
//!
//! A damaged block is reported to the client, which sends it again. So the scrub runs only while the client
//! is connected and the copy whole; otherwise it waits for the client. Its progress and findings are stored
//! in a file of the copy, so that a restarted lender continues.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netram_block::{BLOCK_BYTES, DeviceError};
use netram_lender::ScrubReport;
use netram_process::files::{self, PRIVATE};
use serde::{Deserialize, Serialize};

use super::open_replica::ReplicaDisk;
use super::replica_host::lock;

/// Bytes read at once, by the thread that answers the client. A slow disk needs some 15 ms for them, and no
/// write waits for that.
const PART_BYTES: u64 = 1 << 20;
/// Minimum interval between two parts of any copies of this lender: 10 MiB a second are a tenth of a slow
/// disk's bandwidth.
const PART_INTERVAL: Duration = Duration::from_millis(100);
/// Number of parts after which progress is stored; a killed lender repeats them.
const PARTS_A_STORE: u64 = 64;
/// Maximum number of blocks that are remembered until they are repaired. Others are reported too, but not
/// counted as repaired.
const DAMAGED_MAX: usize = 1024;

/// Schedule of all scrubs of one lender.
pub(super) struct ScrubSchedule {
    /// Interval between two scrubs of a copy; `None`: never.
    every: Option<Duration>,
    /// No copy is read before this time.
    next: Mutex<Instant>,
}

impl ScrubSchedule {
    pub(super) fn new(every: Option<Duration>) -> ScrubSchedule {
        ScrubSchedule {
            every: every.filter(|every| !every.is_zero()),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Whether a part may be read now. Returning `true` counts as reading it.
    fn grants(&self) -> bool {
        let mut next = lock(&self.next);
        let now = Instant::now();
        let granted = *next <= now;
        if granted {
            *next = now + PART_INTERVAL;
        }
        granted
    }
}

/// Contents of the progress file. Times are seconds of the wall clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// When the last scrub began, or the copy was created; the interval counts from here.
    began: u64,
    /// Next block of a scrub under way.
    next: Option<u64>,
    /// When the last complete scrub ended.
    ended: Option<u64>,
    /// Number of damaged blocks found by the last scrub, or by the present one so far.
    found: u64,
    /// Number of these blocks that the client has sent again since.
    mended: u64,
}

/// Path of the progress file in a copy's directory.
pub(crate) fn scrub_file(root: &Path) -> PathBuf {
    root.join("scrubbed")
}

/// Scrub of one copy.
pub(super) struct ReplicaScrub {
    path: PathBuf,
    record: Record,
    /// Numbers of damaged blocks that were found and reported.
    found: Vec<u64>,
    parts: u64,
}

impl ReplicaScrub {
    /// Opens the progress file and continues from it. An invalid file counts as missing, because it only
    /// decides when the next scrub begins.
    pub(super) fn open(root: &Path) -> ReplicaScrub {
        let path = scrub_file(root);
        let record = read(&path);
        let mut scrub = ReplicaScrub {
            path,
            record: record.clone().unwrap_or_default(),
            found: Vec::new(),
            parts: 0,
        };
        if record.is_none() {
            scrub.record.began = now();
            scrub.store();
        }
        scrub
    }

    /// Reads the next part, if it is due. The copy must be whole and its client connected.
    pub(super) fn step(&mut self, disk: &ReplicaDisk, schedule: &ScrubSchedule) -> Result<(), DeviceError> {
        let Some(every) = schedule.every else {
            return Ok(());
        };
        let next = match self.record.next {
            Some(next) => next,
            // A clock that was set back must not postpone the next scrub.
            None if now().abs_diff(self.record.began) >= every.as_secs().max(1) => 0,
            None => return Ok(()),
        };
        if !schedule.grants() {
            return Ok(());
        }
        if next == 0 {
            self.begin();
        }
        let scrubbed = disk.scrub(next, PART_BYTES / BLOCK_BYTES)?;
        for block in &scrubbed.bad {
            tracing::error!(copy = %self.path.display(), block, "a copy's block is damaged; asking its client to send it again");
        }
        self.record.found += scrubbed.bad.len() as u64;
        let room = DAMAGED_MAX - self.found.len();
        self.found.extend(scrubbed.bad.into_iter().take(room));
        let behind = next + PART_BYTES / BLOCK_BYTES;
        let over = behind >= disk.geometry().bytes / BLOCK_BYTES;
        self.record.next = (!over).then_some(behind);
        self.parts += 1;
        if over {
            self.record.ended = Some(now());
            let found = self.record.found;
            tracing::info!(copy = %self.path.display(), found, "scrub of a copy finished");
        }
        if over || self.parts.is_multiple_of(PARTS_A_STORE) {
            self.store();
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.record = Record {
            began: now(),
            next: Some(0),
            ended: self.record.ended,
            ..Record::default()
        };
        self.found.clear();
        self.store();
    }

    /// The client has resent the reported blocks: checks which are sound now. The others are left to the next
    /// scrub, because the client cannot read them either. Returns other blocks found damaged in between,
    /// which the client must be told of.
    pub(super) fn look_again(&mut self, disk: &ReplicaDisk) -> Result<Vec<u64>, DeviceError> {
        if self.found.is_empty() {
            return Ok(Vec::new());
        }
        let mut again = BTreeSet::new();
        // Blocks behind one that cannot be read now are checked next time.
        while let Some(block) = self.found.last().copied() {
            let bad = disk.scrub(block, 1)?.bad;
            self.record.mended += u64::from(bad.is_empty());
            again.extend(bad);
            self.found.pop();
        }
        self.store();
        // Blocks still bad are not reported again, or they would be sent for ever.
        let mut bad = disk.take_bad_blocks();
        bad.retain(|block| !again.contains(block));
        Ok(bad)
    }

    pub(super) fn report(&self) -> ScrubReport {
        self.record.report()
    }

    /// Replaces the file atomically, without a sync. Errors are only logged: a full disk causes worse ones.
    fn store(&self) {
        let unfinished = self.path.with_extension("new");
        let stored = serde_json::to_vec(&self.record)
            .map_err(std::io::Error::from)
            .and_then(|text| {
                // The remains of a process that was killed.
                let _ = fs::remove_file(&unfinished);
                files::create_new(&unfinished, PRIVATE)?.write_all(&text)
            })
            .and_then(|()| fs::rename(&unfinished, &self.path));
        if let Err(error) = stored {
            tracing::debug!(%error, "cannot store the progress of a copy's scrub");
            let _ = fs::remove_file(&unfinished);
        }
    }
}

impl Record {
    fn report(&self) -> ScrubReport {
        ScrubReport {
            ended_age_s: self.ended.map(|ended| now().saturating_sub(ended)),
            done_bytes: self.next.map(|next| next.saturating_mul(BLOCK_BYTES)),
            found_blocks: self.found,
            mended_blocks: self.mended,
        }
    }
}

/// Report from the progress file of a copy that is not open.
pub(super) fn report_of(root: &Path) -> ScrubReport {
    read(&scrub_file(root)).unwrap_or_default().report()
}

fn read(path: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
