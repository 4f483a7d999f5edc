//! Allocations of a commit, and the cost of declaring a range.

use std::hint::black_box;
use std::time::Instant;

use netram_proto::port::Durability;
use netram_rvm::{RealStorage, Region, RestoreMode, Rvm, RvmOptions, SegmentAllocation};
use netram_transport::WaitPolicy;

use super::{RatioBound, ScoreboardRow};
use crate::commit::commit;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::sys::count_allocations;
use crate::testbed::{CoreAssignment, LenderSpec, SocketKind, Testbed};
use crate::tpca::AccessPattern;
use crate::tpca::AccountChooser;

const LOG_BYTES: u64 = 8 << 20;
/// Commits that may allocate, at first uses of buffers.
const WARM_UP: usize = 2_000;
/// Commits that may not allocate. Together with the warm-up they fill less than half of the log, so that none
/// trims it.
const COMMITS: usize = 10_000;
const RANGES: usize = 1_000;
const RANGE_RUNS: usize = 500;
const REGION_BYTES: u64 = 16 << 20;

pub(super) fn allocations(site: &Testbed) -> Result<ScoreboardRow, BenchError> {
    let seats = CoreAssignment::find();
    let wait = WaitPolicy::default();
    let lender = site.lender(LenderSpec {
        wire: SocketKind::Tcp,
        secure: true,
        wait,
        core: seats.lender(0),
    })?;
    let open = site.journal(LOG_BYTES, site.config(vec![lender.address().clone()], true, wait))?;
    let run = |count| (0..count).try_for_each(|_| commit(&open.journal, 128, Durability::Remote));
    run(WARM_UP)?;
    let (result, counted) = count_allocations(|| run(COMMITS));
    result?;
    let (probe, seen) = count_allocations(|| black_box(Box::new(0_u8)));
    drop(probe);
    if seen.own == 0 {
        let why = "this program's allocator does not count; run `netram-lab bench figures`";
        return Err(BenchError::InvalidRequest(why.to_owned()));
    }
    let what = format!(
        "heap allocations on the way of {COMMITS} commits (all threads of the client: {})",
        counted.all
    );
    Ok(ScoreboardRow::new(
        "allocations",
        what,
        "allocations",
        counted.own as f64,
        None,
        RatioBound::AtMost(0.0),
    ))
}

pub(super) fn ranges(site: &Testbed) -> Result<Vec<ScoreboardRow>, BenchError> {
    let open = site.journal(LOG_BYTES, site.config(Vec::new(), true, WaitPolicy::default()))?;
    let name = |file: &str| open.directory.join(file).to_string_lossy().into_owned();
    let storage = RealStorage::create(&name("segments")).context("create the segment table")?;
    let rvm =
        Rvm::open(open.journal, storage, RvmOptions::new(open.id)).context("open recoverable memory")?;
    rvm.create_segment(&name("segment"), REGION_BYTES, SegmentAllocation::Preallocated)
        .context("create a segment")?;
    let region = rvm.map(&name("segment"), 0, 0).context("map a segment")?;
    let mut chooser = AccountChooser::new(AccessPattern::Random, REGION_BYTES - 8, 1);
    let orders: [(&str, Vec<usize>, f64); 2] = [
        ("ordered", (0..RANGES).map(|index| index * 64).collect(), 6.0),
        (
            "random",
            (0..RANGES).map(|_| chooser.account() as usize).collect(),
            20.0,
        ),
    ];
    let mut figures = Vec::new();
    for (order, offsets, most) in orders {
        let id = if order == "ordered" {
            "set-range-ordered"
        } else {
            "set-range-random"
        };
        let what = format!("set_range of 8 B, {order}, {RANGES} a transaction, no-restore");
        let value = declare(&rvm, &region, &offsets)?;
        figures.push(ScoreboardRow::new(
            id,
            what,
            "ns",
            value,
            None,
            RatioBound::AtMost(most),
        ));
    }
    Ok(figures)
}

/// Nanoseconds for a range: the median over transactions, none of which commits.
fn declare(
    rvm: &Rvm<netram_journal::Journal, RealStorage>,
    region: &Region,
    offsets: &[usize],
) -> Result<f64, BenchError> {
    let mut runs = Vec::with_capacity(RANGE_RUNS);
    for _ in 0..RANGE_RUNS {
        let mut transaction = rvm.begin(RestoreMode::NoRestore);
        let began = Instant::now();
        for &offset in offsets {
            transaction
                .set_range(black_box(region), offset, 8)
                .context("declare a range")?;
        }
        runs.push(began.elapsed().as_nanos() as f64 / offsets.len() as f64);
        transaction.abort();
    }
    Ok(median(runs))
}
