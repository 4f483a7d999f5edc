//! Cost of a crash: reading the log back, and commits while a lender dies.

use std::path::Path;
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::WaitPolicy;

use super::{RatioBound, ScoreboardRow};
use crate::commit::commit;
use crate::disk;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};

const KIND: RecordKind = RecordKind(127);
/// Payload size of the records that fill a log to be recovered: that of a TPC-A transaction.
const RECORD_BYTES: usize = 512;
/// Bytes left free, so that the log is never full.
const SPARE_BYTES: u64 = 256 << 10;
const RECOVERIES: usize = 3;

pub(super) fn recovery(site: &Testbed, quick: bool) -> Result<Vec<ScoreboardRow>, BenchError> {
    let mut figures = vec![recovery_of(site, "recovery-8m", "8 MB", 8 << 20)?];
    if !quick {
        figures.push(recovery_of(site, "recovery-1g", "1 GB", 1 << 30)?);
    }
    Ok(figures)
}

fn recovery_of(
    site: &Testbed,
    id: &'static str,
    size: &str,
    bytes: u64,
) -> Result<ScoreboardRow, BenchError> {
    let directory = site.directory().join(id);
    Journal::create(&directory, bytes).context("create a journal")?;
    fill(&directory, bytes - SPARE_BYTES)?;
    let log = directory.join("log");
    let (mut opened, mut read) = (Vec::new(), Vec::new());
    for _ in 0..RECOVERIES {
        read.push(disk::read_seconds(&log, true)? * 1e3);
        disk::drop_cache(&log)?;
        let (journal, recovered) = Journal::open(&directory, alone()).context("open a journal")?;
        opened.push(recovered.took.as_secs_f64() * 1e3);
        if recovered.end.since(recovered.head) < bytes - 2 * SPARE_BYTES {
            let why = format!(
                "recovery found {} of {bytes} bytes",
                recovered.end.since(recovered.head)
            );
            return Err(BenchError::WrongData {
                place: directory,
                why,
            });
        }
        journal.close().context("close a journal")?;
    }
    std::fs::remove_dir_all(&directory).context("remove a journal")?;
    let what =
        format!("recovery of a {size} log; floor: sequential read of the file, cache dropped for both");
    Ok(ScoreboardRow::new(
        id,
        what,
        "ms",
        median(opened),
        Some(median(read)),
        RatioBound::AtMost(2.0),
    ))
}

fn alone() -> JournalConfig {
    JournalConfig {
        window_bytes: 64 << 20,
        ..JournalConfig::default()
    }
}

fn fill(directory: &Path, bytes: u64) -> Result<(), BenchError> {
    let (journal, _) = Journal::open(directory, alone()).context("open a journal")?;
    let mut last = None;
    while journal.state().tail.since(journal.state().head) < bytes {
        let ticket = journal
            .append(KIND, RECORD_BYTES, &mut |payload| payload.fill(0x5a))
            .context("append")?;
        last = Some(ticket);
    }
    if let Some(last) = last {
        journal
            .wait(last, Durability::Disk)
            .context("wait for the disk")?;
    }
    journal.close().context("close a journal")
}

/// Duration of commits before the lender is lost, and after.
const BEFORE: Duration = Duration::from_millis(300);
const AFTER: Duration = Duration::from_millis(2_500);
/// Sync time of a modelled disk. With the members silent the local disk acknowledges alone, so the stall is
/// measured on a disk too slow to hide it.
const SLOW_SYNC: Duration = Duration::from_millis(8);
const DETECTIONS_MAX: f64 = 3.0;

/// Two members and a spare. One member stops answering with its connection open, which is the hard case: a
/// killed process is noticed at once.
pub(super) fn loss(site: &Testbed) -> Result<Vec<ScoreboardRow>, BenchError> {
    let mut figures = Vec::new();
    for (id, slow) in [("loss-stall", false), ("loss-stall-slow", true)] {
        let (stall_ms, detect_ms) = stall(site, if slow { SLOW_SYNC } else { Duration::ZERO })?;
        let disk = if slow {
            ", on a MODELLED disk with 8 ms syncs"
        } else {
            ""
        };
        let what = format!("longest commit while a member falls silent{disk}; floor: the detection timeout");
        figures.push(ScoreboardRow::new(
            id,
            what,
            "ms",
            stall_ms,
            Some(detect_ms),
            RatioBound::AtMost(DETECTIONS_MAX),
        ));
    }
    Ok(figures)
}

fn stall(site: &Testbed, sync_delay: Duration) -> Result<(f64, f64), BenchError> {
    let wait = WaitPolicy::default();
    let lenders: Result<Vec<LenderProcess>, BenchError> = (0..3)
        .map(|_| {
            site.lender(LenderSpec {
                wire: SocketKind::Tcp,
                secure: true,
                wait,
                core: None,
            })
        })
        .collect();
    let lenders = lenders?;
    let mut config = site.config(
        lenders.iter().map(|lender| lender.address().clone()).collect(),
        true,
        wait,
    );
    config.members = 2;
    config.modelled_sync_delay = sync_delay;
    let detect_ms = config.timing.detect.ms() as f64;
    let open = site.journal(32 << 20, config)?;
    let (mut longest, began, mut silent) = (Duration::ZERO, Instant::now(), false);
    while began.elapsed() < BEFORE + AFTER {
        if !silent && began.elapsed() > BEFORE {
            lenders[0].child().pause()?;
            silent = true;
        }
        let committing = Instant::now();
        commit(&open.journal, 128, Durability::Remote)?;
        if silent {
            longest = longest.max(committing.elapsed());
        }
    }
    let stall_ms = longest.as_secs_f64() * 1e3;
    // Closing would otherwise wait for the silent lender's answer.
    lenders[0].child().resume()?;
    Ok((stall_ms, detect_ms))
}
