//! A commit of SQLite through netram's VFS beside a commit of recoverable memory with the same bytes.

use std::time::{Duration, Instant};

use netram_journal::Journal;
use netram_proto::port::Durability;
use netram_rvm::{RealStorage, Region, RestoreMode, Rvm, RvmOptions, SegmentAllocation};
use netram_transport::WaitPolicy;
use rusqlite::{Connection, params};

use super::{RatioBound, ScoreboardRow, volume};
use crate::databases::sqlite::{adopt, open};
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::testbed::{LenderProcess, Testbed};

/// Bytes of SQLite's log that a small commit writes: a page and its frame header.
const FRAME_BYTES: usize = 4096 + 24;
const REGION_BYTES: u64 = 4 << 20;
const LOG_BYTES: u64 = 64 << 20;
const ROUNDS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(200);

/// Recoverable memory with one member.
struct MemberMemory {
    rvm: Rvm<Journal, RealStorage>,
    region: Region,
    at: usize,
}

impl MemberMemory {
    fn open(site: &Testbed, lender: &LenderProcess) -> Result<MemberMemory, BenchError> {
        let config = site.config(vec![lender.address().clone()], true, WaitPolicy::default());
        let opened = site.journal(LOG_BYTES, config)?;
        let name = |file: &str| opened.directory.join(file).to_string_lossy().into_owned();
        let storage = RealStorage::create(&name("segments")).context("create the segment table")?;
        let rvm = Rvm::open(opened.journal, storage, RvmOptions::new(opened.id))
            .context("open recoverable memory")?;
        rvm.start_truncation().context("start truncation")?;
        rvm.create_segment(&name("segment"), REGION_BYTES, SegmentAllocation::Preallocated)
            .context("create a segment")?;
        let region = rvm.map(&name("segment"), 0, 0).context("map a segment")?;
        Ok(MemberMemory { rvm, region, at: 0 })
    }

    fn commit(&mut self) -> Result<(), BenchError> {
        let mut transaction = self.rvm.begin(RestoreMode::Restore);
        let written = transaction.write(&self.region, self.at, &[7; FRAME_BYTES]);
        written.context("write a range")?;
        transaction
            .commit(Durability::Remote)
            .context("commit a transaction")?;
        self.at = (self.at + FRAME_BYTES) % (REGION_BYTES as usize - FRAME_BYTES);
        Ok(())
    }
}

/// Median time of a commit, in µs.
fn round(time: Duration, mut commit: impl FnMut() -> Result<(), BenchError>) -> Result<f64, BenchError> {
    let (mut took, until) = (Vec::new(), Instant::now() + time);
    while Instant::now() < until {
        let began = Instant::now();
        commit()?;
        took.push(began.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok(median(took))
}

fn insert(database: &Connection) -> Result<(), BenchError> {
    let mut statement = database
        .prepare_cached("insert into t (filler) values (?)")
        .context("prepare a statement")?;
    statement
        .execute(params!["a row of a hundred bytes, more or less"])
        .map(drop)
        .context("insert a row")
}

pub(super) fn commits(site: &Testbed, quick: bool) -> Result<Vec<ScoreboardRow>, BenchError> {
    let time = Duration::from_millis(if quick { 200 } else { 600 });
    let lender = volume::lender(site, None)?;
    let path = site.directory().join("app.db");
    adopt(site, &path, &lender.address().to_string())?;
    let database = open(&path, true, "FULL")?;
    let mut memory = MemberMemory::open(site, &lender)?;
    round(WARM_UP, || insert(&database))?;
    round(WARM_UP, || memory.commit())?;
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(round(time, || insert(&database))?);
        floors.push(round(time, || memory.commit())?);
    }
    let ratios = ours.iter().zip(&floors).map(|(one, floor)| one / floor);
    let ratio = median(ratios.collect());
    let what = format!(
        "a row inserted by SQLite through the VFS; floor: an rvm commit of the page's {FRAME_BYTES} B, same lender"
    );
    let (ours, floor) = (median(ours), median(floors));
    let figure = ScoreboardRow::new(
        "sqlite-commit",
        what,
        "us p50",
        ours,
        Some(floor),
        RatioBound::AtMost(2.0),
    );
    Ok(vec![figure.with_ratio(ratio)])
}
