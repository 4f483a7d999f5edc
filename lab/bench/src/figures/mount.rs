//! Files on a mount beside files on the same disk: a small write and its sync.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use netram_transport::WaitPolicy;

use super::{RatioBound, ScoreboardRow, volume};
use crate::bench_mount::{self, BenchMount};
use crate::commit::{self, CommitEffort, CommitSpec};
use crate::empty_file::EmptyFileServer;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::testbed::Testbed;

/// Size of a write in bytes: a record of a database's log.
const BYTES: usize = 512;
/// Size in bytes of the file that is overwritten repeatedly. It exists before, like a recycled log file.
const FILE_BYTES: u64 = 16 << 20;
const ROUNDS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(300);
/// A synced write may take this much longer than an empty server and one member together.
const OVER_EMPTY_MAX: f64 = 1.3;
/// Time that a slower disk adds to each sync, in µs.
const SLOW_SYNC_US: f64 = 1000.0;

/// Ways to sync a write.
#[derive(Clone, Copy)]
enum SyncMethod {
    Call,
    Open,
}

impl SyncMethod {
    /// Flags with which the file is opened.
    fn flags(self) -> OFlags {
        match self {
            SyncMethod::Call => OFlags::empty(),
            SyncMethod::Open => OFlags::DSYNC,
        }
    }
}

fn open(dir: &Path, way: SyncMethod) -> Result<File, BenchError> {
    let path = dir.join("log");
    let made = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .context("make a file")?;
    let there = made.metadata().context("look at a file")?.len();
    // The part that is not there yet.
    for at in (there..FILE_BYTES).step_by(1 << 20) {
        made.write_all_at(&vec![0; 1 << 20], at).context("fill a file")?;
    }
    made.sync_all().context("sync a file")?;
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(way.flags().bits().cast_signed());
    options.open(&path).context("open a file")
}

/// Median time of a synced write, in µs.
fn round(file: &File, way: SyncMethod, time: Duration) -> Result<f64, BenchError> {
    let (mut took, until) = (Vec::new(), Instant::now() + time);
    let mut at = 0;
    while Instant::now() < until {
        let began = Instant::now();
        file.write_all_at(&[7; BYTES], at).context("write")?;
        if let SyncMethod::Call = way {
            file.sync_data().context("sync")?;
        }
        took.push(began.elapsed().as_nanos() as f64 / 1e3);
        at = (at + BYTES as u64) % FILE_BYTES;
    }
    Ok(median(took))
}

/// `skipped` gets the reason where this process may not mount.
pub(super) fn files(
    site: &Testbed,
    quick: bool,
    skipped: &mut Vec<String>,
) -> Result<Vec<ScoreboardRow>, BenchError> {
    if let Err(missing) = bench_mount::possible() {
        skipped.push(format!("files on a mount: {missing}"));
        return Ok(Vec::new());
    }
    let time = Duration::from_millis(if quick { 200 } else { 600 });
    let lender = volume::lender(site, None)?;
    let plain = site.directory().join("plain");
    std::fs::create_dir(&plain).context("make a directory")?;
    let mounted = BenchMount::begin(site, lender.address(), 0)?;
    let mut figures = Vec::new();
    for (id, slow, way, what) in [
        (
            "mount-sync",
            Some("mount-sync-1ms"),
            SyncMethod::Call,
            "write and fdatasync",
        ),
        (
            "mount-dsync",
            None,
            SyncMethod::Open,
            "write to a file opened O_DSYNC",
        ),
    ] {
        round(&open(mounted.dir(), way)?, way, WARM_UP)?;
        let (mut on_mount, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            on_mount.push(round(&open(mounted.dir(), way)?, way, time)?);
            beside.push(round(&open(&plain, way)?, way, time)?);
        }
        let (on_mount, beside) = (median(on_mount), median(beside));
        let whole = format!("{what}, {BYTES} B, on a mount; floor: beside it, on the same disk");
        figures.push(ScoreboardRow::faster(id, whole, "us p50", on_mount, beside, 2.0));
        if let Some(id) = slow {
            let whole = "the same on a MODELLED disk, 1 ms added to each sync beside it".to_owned();
            figures.push(ScoreboardRow::faster(
                id,
                whole,
                "us p50",
                on_mount,
                beside + SLOW_SYNC_US,
                10.0,
            ));
        }
    }
    figures.push(over_empty(site, &mounted, time, quick)?);
    match BenchMount::begin_by_io_uring(site, lender.address())? {
        Ok(ring) => {
            figures.extend(by_io_uring(&mounted, &ring, time)?);
            ring.end()?;
        }
        Err(missing) => skipped.push(format!("files on a mount by io_uring: {missing}")),
    }
    mounted.end()?;
    Ok(figures)
}

/// Synced writes whose requests come by io_uring, beside those by /dev/fuse.
fn by_io_uring(
    mounted: &BenchMount,
    ring: &BenchMount,
    time: Duration,
) -> Result<Vec<ScoreboardRow>, BenchError> {
    let mut rows = Vec::new();
    for (id, writers, least) in [("mount-uring", 1, 0.9), ("mount-uring-4", 4, 1.2)] {
        several(ring.dir(), writers, WARM_UP)?;
        let (mut by_ring, mut by_device) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            by_ring.push(several(ring.dir(), writers, time)?);
            by_device.push(several(mounted.dir(), writers, time)?);
        }
        let what = format!(
            "write and fdatasync, {BYTES} B, {writers} writers on a mount by io_uring, time over count; floor: by \
             /dev/fuse"
        );
        let (by_ring, by_device) = (median(by_ring), median(by_device));
        rows.push(ScoreboardRow::faster(id, what, "us", by_ring, by_device, least));
    }
    Ok(rows)
}

/// Time over the number of synced writes of several threads, each with a file of its own, in µs.
fn several(dir: &Path, writers: usize, time: Duration) -> Result<f64, BenchError> {
    let files = (0..writers).map(|writer| {
        let path = dir.join(format!("log-{writer}"));
        let file = File::create(&path).context("make a file")?;
        file.write_all_at(&[0; 4096], 0).context("fill a file")?;
        Ok(file)
    });
    let files: Vec<File> = files.collect::<Result<_, BenchError>>()?;
    let began = Instant::now();
    let write = |file: File| {
        let mut count = 0_u64;
        while began.elapsed() < time {
            let at = count * BYTES as u64 % 4096;
            file.write_all_at(&[7; BYTES], at).context("write")?;
            file.sync_data().context("sync")?;
            count += 1;
        }
        Ok(count)
    };
    let counts = std::thread::scope(|threads| {
        let writing: Vec<_> = files
            .into_iter()
            .map(|file| threads.spawn(|| write(file)))
            .collect();
        let ended = writing
            .into_iter()
            .map(|writer| writer.join().expect("a writer does not panic"));
        ended.collect::<Result<Vec<u64>, BenchError>>()
    })?;
    Ok(began.elapsed().as_secs_f64() * 1e6 / counts.iter().sum::<u64>() as f64)
}

/// A synced write beside an empty server's, plus a commit to one member.
fn over_empty(
    site: &Testbed,
    mounted: &BenchMount,
    time: Duration,
    quick: bool,
) -> Result<ScoreboardRow, BenchError> {
    let way = SyncMethod::Call;
    let member = CommitSpec {
        record_bytes: BYTES,
        wait: WaitPolicy::default(),
        ..CommitSpec::default()
    };
    let effort = CommitEffort {
        round: time,
        ..if quick {
            CommitEffort::QUICK
        } else {
            CommitEffort::FULL
        }
    };
    let commit = commit::measure(site, &member, effort)?.commit.p50_us;
    let empty = EmptyFileServer::begin(site, FILE_BYTES)?;
    let (file, nowhere) = (open(mounted.dir(), way)?, empty.open(way.flags())?);
    round(&nowhere, way, WARM_UP)?;
    let (mut on_mount, mut floor, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let took = round(&file, way, time)?;
        let least = round(&nowhere, way, time)? + commit;
        on_mount.push(took);
        floor.push(least);
        ratios.push(took / least);
    }
    let what = format!(
        "write and fdatasync, {BYTES} B, on a mount; floor: an empty FUSE server, plus a commit to one member"
    );
    let (value, floor, bound) = (
        median(on_mount),
        median(floor),
        RatioBound::AtMost(OVER_EMPTY_MAX),
    );
    let row = ScoreboardRow::new("mount-over-empty", what, "us p50", value, Some(floor), bound);
    Ok(row.with_ratio(median(ratios)))
}
