//! A copy's own scrub: all of it once in an interval, a little at a time.
//!
//! What it finds its client is told as of any damaged block, and sends again. So it goes on only while the
//! client is there and the copy whole; a copy whose client is away for longer is scrubbed when he is back.
//! How far it is, and what it found, stands in a file of the copy, so that a lender that is started anew goes
//! on where it was.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netram_block::{BLOCK_BYTES, DeviceError};
use netram_lender::ScrubReport;
use serde::{Deserialize, Serialize};

use super::open_replica::ReplicaDisk;
use super::replica_host::lock;

/// Bytes that are read at once, in the thread that answers the client: a slow disk needs some 15 ms for them,
/// and no write waits for that.
const PART_BYTES: u64 = 1 << 20;
/// How long after one part the next may be read, by any copy of this lender: 10 MiB a second are a tenth of
/// what a slow disk gives.
const PART_INTERVAL: Duration = Duration::from_millis(100);
/// Parts after which the file says how far it is: what a killed lender does again.
const PARTS_A_STORE: u64 = 64;
/// Blocks that are remembered until they are mended. The rest are told all the same, and not counted as
/// mended.
const DAMAGED_MAX: usize = 1024;

/// When the copies of one lender are scrubbed.
pub(super) struct ScrubSchedule {
    /// Each once in this time; `None`: never.
    every: Option<Duration>,
    /// No copy is read before this.
    next: Mutex<Instant>,
}

impl ScrubSchedule {
    pub(super) fn new(every: Option<Duration>) -> ScrubSchedule {
        ScrubSchedule {
            every: every.filter(|every| !every.is_zero()),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Whether a part may be read now. Saying yes counts as reading it.
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

/// What the file says. Times are seconds of the wall clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// When the last one began, or the copy was made: from there the interval counts.
    began: u64,
    /// The block to go on with, of one that is under way.
    next: Option<u64>,
    /// When the last whole one ended.
    ended: Option<u64>,
    /// Damaged blocks that the last one found, or the one under way so far.
    found: u64,
    /// Of these, blocks that the client has sent again since.
    mended: u64,
}

/// The file in a copy's directory.
pub(crate) fn scrub_file(root: &Path) -> PathBuf {
    root.join("scrubbed")
}

/// A copy's scrub.
pub(super) struct ReplicaScrub {
    path: PathBuf,
    record: Record,
    /// Blocks that were found and told.
    found: Vec<u64>,
    parts: u64,
}

impl ReplicaScrub {
    /// Goes on where the file says. One that makes no sense counts as none: it decides only when the next
    /// scrub is.
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

    /// Reads the next part, if it is time for one. The copy is whole, and its client there.
    pub(super) fn step(&mut self, disk: &ReplicaDisk, schedule: &ScrubSchedule) -> Result<(), DeviceError> {
        let Some(every) = schedule.every else {
            return Ok(());
        };
        let next = match self.record.next {
            Some(next) => next,
            // A clock that was set back must not put the next one off.
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
            tracing::error!(copy = %self.path.display(), block, "a copy's block is damaged; its client is to send it again");
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
            tracing::info!(copy = %self.path.display(), found, "a copy was scrubbed");
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

    /// The client has sent again what it was told of: looks which of the blocks are right now. What is not
    /// stays to be found by the next scrub, for the client cannot read it either. Returns other blocks that
    /// were found damaged meanwhile, which the client is to be told of.
    pub(super) fn look_again(&mut self, disk: &ReplicaDisk) -> Result<Vec<u64>, DeviceError> {
        if self.found.is_empty() {
            return Ok(Vec::new());
        }
        let mut again = BTreeSet::new();
        // Those behind one that cannot be read now are looked at the next time.
        while let Some(block) = self.found.last().copied() {
            let bad = disk.scrub(block, 1)?.bad;
            self.record.mended += u64::from(bad.is_empty());
            again.extend(bad);
            self.found.pop();
        }
        self.store();
        // Told again they would be sent for ever.
        let mut bad = disk.take_bad_blocks();
        bad.retain(|block| !again.contains(block));
        Ok(bad)
    }

    pub(super) fn report(&self) -> ScrubReport {
        self.record.report()
    }

    /// Whole under its name, or not at all. Not worth a sync, and a disk that is full has worse to tell.
    fn store(&self) {
        let unfinished = self.path.with_extension("new");
        let stored = serde_json::to_vec(&self.record)
            .map_err(std::io::Error::from)
            .and_then(|text| fs::write(&unfinished, text))
            .and_then(|()| fs::rename(&unfinished, &self.path));
        if let Err(error) = stored {
            tracing::debug!(%error, "a copy's scrub could not be noted");
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

/// What the file of a copy says that nobody has open.
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
