//! Cost of a node's transactions when no other node wants its locks.

use std::hint::black_box;
use std::time::Instant;

use netram_proto::port::Durability;
use netram_rvm::{RealStorage, RestoreMode, Rvm, RvmOptions, SegmentAllocation};
use netram_shared::Node;
use netram_shared_machine::LockMode;
use serde::Serialize;

use super::node_process::REQUEST_LOCK;
use super::testbed::{RegionSetup, RegionTestbed, update};
use crate::commit::CommitEffort;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencyRecorder, LatencySummary, median};
use crate::testbed::{LenderSpec, SocketKind, Testbed};

/// Number of transactions in a round of [`acquire_again`].
const TIMES: u32 = 10_000;
/// Size in bytes of the log of recoverable memory alone: a node's default.
const LOG_BYTES: u64 = netram_shared::limit::NODE_LOG_BYTES_DEFAULT;

/// Additional nanoseconds of a transaction that acquires a lock which its node has kept. Nothing is written.
///
/// # Errors
///
/// Fails if the region cannot be set up, or a transaction fails.
pub fn acquire_again(site: &Testbed, plan: RegionSetup, effort: CommitEffort) -> Result<f64, BenchError> {
    let place = RegionTestbed::start(site, plan)?;
    let node = place.join()?;
    update(&node, REQUEST_LOCK, 1)?;
    let mut rounds = Vec::new();
    for round in 0..=effort.rounds {
        let without = transactions(&node, false)?;
        let with = transactions(&node, true)?;
        if round > 0 {
            rounds.push(with - without);
        }
    }
    Ok(median(rounds))
}

fn transactions(node: &Node, acquire: bool) -> Result<f64, BenchError> {
    let began = Instant::now();
    for _ in 0..TIMES {
        let mut txn = node.begin(RestoreMode::Restore).context("begin a transaction")?;
        if acquire {
            txn.acquire(REQUEST_LOCK, LockMode::Exclusive)
                .context("acquire a lock")?;
        }
        black_box(&txn);
    }
    Ok(began.elapsed().as_nanos() as f64 / f64::from(TIMES))
}

/// Commits of eight bytes, medians over rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CommitComparison {
    /// Commits in a shared region, under a kept lock.
    pub shared: LatencySummary,
    /// Commits in recoverable memory of one process, with as many members.
    pub alone: LatencySummary,
    /// Median ratio of the rounds' medians.
    pub ratio: f64,
}

/// Measures begin, acquire, set and commit, beside begin, set and commit without a region's server.
///
/// # Errors
///
/// Fails if either memory cannot be set up, or a commit fails.
pub fn commits(
    site: &Testbed,
    plan: RegionSetup,
    effort: CommitEffort,
) -> Result<CommitComparison, BenchError> {
    let place = RegionTestbed::start(site, plan)?;
    let node = place.join()?;
    let spec = LenderSpec {
        wire: SocketKind::Tcp,
        secure: true,
        wait: plan.wait,
        core: None,
    };
    let lenders: Result<Vec<_>, _> = (0..plan.members).map(|_| site.lender(spec)).collect();
    let lenders = lenders?;
    let addresses = lenders.iter().map(|lender| lender.address().clone()).collect();
    let opened = site.journal(LOG_BYTES, site.config(addresses, true, plan.wait))?;
    let path = |name: &str| opened.directory.join(name).to_string_lossy().into_owned();
    let storage = RealStorage::create(&path("segments")).context("create the segment table")?;
    let rvm =
        Rvm::open(opened.journal, storage, RvmOptions::new(opened.id)).context("open recoverable memory")?;
    rvm.start_truncation().context("start truncation")?;
    rvm.create_segment(&path("segment"), plan.span_bytes, SegmentAllocation::Preallocated)
        .context("create a segment")?;
    let region = rvm.map(&path("segment"), 0, 0).context("map a segment")?;
    let (mut shareds, mut alones, mut ratios) = (vec![], vec![], vec![]);
    for round in 0..=effort.rounds {
        let alone = during(effort, |value| {
            let mut transaction = rvm.begin(RestoreMode::Restore);
            transaction.set(&region, 0, &value).context("store eight bytes")?;
            transaction.commit(Durability::Remote).context("commit")?;
            Ok(())
        })?;
        let shared = during(effort, |value| update(&node, REQUEST_LOCK, value))?;
        if round > 0 {
            ratios.push(shared.p50_us / alone.p50_us);
            shareds.push(shared);
            alones.push(alone);
        }
    }
    Ok(CommitComparison {
        shared: LatencySummary::median(&shareds),
        alone: LatencySummary::median(&alones),
        ratio: median(ratios),
    })
}

/// Repeats an operation for a round.
pub(super) fn during(
    effort: CommitEffort,
    mut commit: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<LatencySummary, BenchError> {
    let mut recorder = LatencyRecorder::start(&[]);
    let end = Instant::now() + effort.round;
    for value in 1.. {
        let began = Instant::now();
        if began >= end {
            break;
        }
        commit(value)?;
        recorder.record(began.elapsed());
    }
    Ok(recorder.finish())
}
