//! Figures 5 and 6: cost of recording an update, `set_range` and commit together, by the number of updates.

use std::time::Instant;

use netram_proto::port::Durability;
use netram_rvm::CaptureMode;

use super::testbed::{OsdiMemory, PAGE};
use super::{OsdiCurve, OsdiFigure, OsdiPlan, OsdiPoint, Random, median};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;

const FEW: [usize; 6] = [100, 250, 500, 1000, 1500, 2000];
const MANY: [usize; 6] = [2000, 10_000, 43_740, 100_000, 200_000, 300_000];
const QUICK: [usize; 2] = [100, 2000];
/// Number of pages of the region: those of the paper's database, at 4 KiB.
const PAGES: usize = 1240;
const PAGES_QUICK: usize = 128;
const UPDATE: usize = 8;
/// Minimum number of updates that each figure is measured with.
const UPDATES: usize = 600_000;

/// Figure 5 or 6.
pub(super) fn by_count(site: &Testbed, plan: &OsdiPlan, number: u8) -> Result<OsdiFigure, BenchError> {
    let pages = if plan.quick { PAGES_QUICK } else { PAGES };
    let memory = OsdiMemory::new(site, pages, CaptureMode::Declared)?.map_err(BenchError::InvalidRequest)?;
    let counts = match (plan.quick, number) {
        (true, _) => &QUICK[..],
        (false, 5) => &FEW,
        (false, _) => &MANY,
    };
    let mut points = Vec::new();
    for &count in counts {
        let mut random = Random(5);
        let granules = pages * PAGE / UPDATE;
        let unordered: Vec<usize> = (0..count).map(|_| random.below(granules) * UPDATE).collect();
        let mut ordered = unordered.clone();
        ordered.sort_unstable();
        // Each redundant update is the second of its range.
        let twice = [&unordered[..], &unordered[..]].concat();
        for (curve, offsets, first) in [
            (OsdiCurve::Unordered, &unordered, 0),
            (OsdiCurve::Ordered, &ordered, 0),
            (OsdiCurve::Redundant, &twice, count),
        ] {
            let mut rounds = Vec::new();
            for _ in 0..(UPDATES / count).clamp(plan.rounds, 200) {
                rounds.push(once(&memory, offsets, first)? / count as f64);
            }
            points.push(OsdiPoint {
                curve,
                x: count as u64,
                value: median(&mut rounds),
            });
        }
    }
    Ok(OsdiFigure {
        number,
        title: "Overhead of one update: set_range and commit",
        axis: "updates in a transaction",
        unit: "ns an update",
        points,
    })
}

/// Nanoseconds of a transaction that declares `offsets`. The first `first` are left out, together with the
/// commit that they would have needed alone.
fn once(memory: &OsdiMemory, offsets: &[usize], first: usize) -> Result<f64, BenchError> {
    let mut open = memory.begin()?;
    let (before, measured) = offsets.split_at(first);
    for offset in before {
        open.set_range(&memory.region, *offset, UPDATE)
            .context("declare an update")?;
    }
    let began = Instant::now();
    for offset in measured {
        open.set_range(&memory.region, *offset, UPDATE)
            .context("declare an update")?;
    }
    let declared = began.elapsed();
    open.commit(Durability::Lazy).context("commit")?;
    let took = if first == 0 { began.elapsed() } else { declared };
    Ok(took.as_secs_f64() * 1e9)
}
