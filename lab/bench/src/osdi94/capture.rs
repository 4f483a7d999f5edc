//! Figures 4 and 7: cost of a page by the modified bytes in it, and by its number of updates.

use std::time::{Duration, Instant};

use netram_proto::port::Durability;
use netram_rvm::{CaptureMode, DetectMethod};

use super::testbed::{MessagePeer, OsdiMemory, PAGE, store};
use super::{OsdiCurve, OsdiFigure, OsdiPlan, OsdiPoint, Random, median, shuffled};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;

/// Size of an update in bytes.
const UPDATE: usize = 8;
const BYTES: [usize; 9] = [8, 32, 128, 256, 512, 1024, 2048, 3072, 4096];
const BYTES_QUICK: [usize; 2] = [128, 4096];
const UPDATES: [usize; 10] = [1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096];
const UPDATES_QUICK: [usize; 2] = [4, 256];
/// Transactions before a measurement, in which twins are made, modes are adapted and buffers grow.
const WARM_UP_TRANSACTIONS: usize = 4;

pub(super) const BY_PAGE: [(OsdiCurve, CaptureMode); 5] = [
    (OsdiCurve::CompareTrap, CaptureMode::Twins(DetectMethod::Trap)),
    (OsdiCurve::CompareWatch, CaptureMode::Twins(DetectMethod::Watch)),
    (OsdiCurve::PageTrap, CaptureMode::Pages(DetectMethod::Trap)),
    (OsdiCurve::PageWatch, CaptureMode::Pages(DetectMethod::Watch)),
    (OsdiCurve::Adaptive, CaptureMode::Adaptive),
];

fn pages(plan: &OsdiPlan) -> usize {
    if plan.quick { 64 } else { 500 }
}

/// Figure 4: from the stores to the peer's answer. Log's cost for each update is left out, as in the paper.
pub(super) fn by_bytes(
    site: &Testbed,
    plan: &OsdiPlan,
    skipped: &mut Vec<String>,
) -> Result<OsdiFigure, BenchError> {
    let places = if plan.quick { &BYTES_QUICK[..] } else { &BYTES };
    let peer = MessagePeer::tcp()?;
    let _pinned = peer.pin_sender()?;
    let mut points = Vec::new();
    for (curve, capture) in std::iter::once((OsdiCurve::Log, CaptureMode::Declared)).chain(BY_PAGE) {
        if curve == OsdiCurve::Adaptive {
            continue;
        }
        let Some(memory) = memory(site, plan, capture, "figure 4", curve, skipped)? else {
            continue;
        };
        for &bytes in places {
            let stores = spread(memory.pages, bytes / UPDATE);
            let mut plain = vec![0; memory.pages * PAGE];
            let mut rounds = Vec::new();
            for round in 0..plan.rounds + WARM_UP_TRANSACTIONS {
                let value = u64::MAX / (round as u64 + 1);
                let mut open = memory.begin()?;
                let mut took = Duration::ZERO;
                if curve == OsdiCurve::Log {
                    for place in &stores {
                        open.set(&memory.region, *place, &value)
                            .context("declare an update")?;
                    }
                } else {
                    let stored = memory.store(&mut open, &stores, value)?;
                    took = stored.saturating_sub(store(&mut plain, &stores, value));
                }
                let began = Instant::now();
                open.commit(Durability::Lazy).context("commit")?;
                memory.send_last_record(&peer)?;
                took += began.elapsed();
                if round >= WARM_UP_TRANSACTIONS {
                    rounds.push(took.as_secs_f64() * 1e6 / memory.pages as f64);
                }
            }
            points.push(OsdiPoint {
                curve,
                x: bytes as u64,
                value: median(&mut rounds),
            });
        }
    }
    Ok(OsdiFigure {
        number: 4,
        title: "Overhead by modified bytes of a page, sent over TCP",
        axis: "modified bytes of each page",
        unit: "us a page",
        points,
    })
}

/// Figure 7: from the first store until the record is made, without sending. Beyond the x value where Log's
/// line crosses another, that other is cheaper.
pub(super) fn by_updates(
    site: &Testbed,
    plan: &OsdiPlan,
    skipped: &mut Vec<String>,
) -> Result<OsdiFigure, BenchError> {
    let places = if plan.quick { &UPDATES_QUICK[..] } else { &UPDATES };
    let mut points = Vec::new();
    for (curve, capture) in std::iter::once((OsdiCurve::Log, CaptureMode::Declared)).chain(BY_PAGE) {
        if matches!(curve, OsdiCurve::PageTrap | OsdiCurve::PageWatch) {
            continue;
        }
        let Some(memory) = memory(site, plan, capture, "figure 7", curve, skipped)? else {
            continue;
        };
        for &updates in places {
            let stores = swarms(memory.pages, updates);
            let mut plain = vec![0; memory.pages * PAGE];
            let mut rounds = Vec::new();
            for round in 0..plan.rounds + WARM_UP_TRANSACTIONS {
                let value = u64::MAX / (round as u64 + 1);
                let mut open = memory.begin()?;
                let began = Instant::now();
                if matches!(curve, OsdiCurve::Log | OsdiCurve::Adaptive) {
                    for place in &stores {
                        open.set_range(&memory.region, *place, UPDATE)
                            .context("declare an update")?;
                    }
                }
                let declared = began.elapsed();
                let stored = memory.stored(&mut open, curve, &stores, value)?;
                let floor = store(&mut plain, &stores, value);
                let began = Instant::now();
                open.commit(Durability::Lazy).context("commit")?;
                let took = declared + stored.saturating_sub(floor) + began.elapsed();
                if round >= WARM_UP_TRANSACTIONS {
                    rounds.push(took.as_secs_f64() * 1e6 / memory.pages as f64);
                }
            }
            points.push(OsdiPoint {
                curve,
                x: updates as u64,
                value: median(&mut rounds),
            });
        }
    }
    Ok(OsdiFigure {
        number: 7,
        title: "Finding and collecting a page's changes, by its updates",
        axis: "updates of each page in a transaction",
        unit: "us a page",
        points,
    })
}

impl OsdiMemory {
    /// Stores with or without declaring them. Declared stores are the program's own, and are not timed here.
    fn stored(
        &self,
        open: &mut super::testbed::OsdiTransaction,
        curve: OsdiCurve,
        stores: &[usize],
        value: u64,
    ) -> Result<Duration, BenchError> {
        if !matches!(curve, OsdiCurve::Log | OsdiCurve::Adaptive) {
            return self.store(open, stores, value);
        }
        for place in stores {
            self.region
                .put_back(*place, &value.to_le_bytes())
                .context("store")?;
        }
        Ok(Duration::ZERO)
    }
}

fn memory(
    site: &Testbed,
    plan: &OsdiPlan,
    capture: CaptureMode,
    what: &str,
    curve: OsdiCurve,
    skipped: &mut Vec<String>,
) -> Result<Option<OsdiMemory>, BenchError> {
    match OsdiMemory::new(site, pages(plan), capture)? {
        Ok(memory) => Ok(Some(memory)),
        Err(refused) => {
            skipped.push(format!("{what}, {}: {refused}", curve.label()));
            Ok(None)
        }
    }
}

/// Offsets of `updates` updates in each page, evenly spaced, with the pages shuffled.
fn spread(pages: usize, updates: usize) -> Vec<usize> {
    let apart = PAGE / UPDATE / updates * UPDATE;
    let page = |page: usize| (0..updates).map(move |update| page * PAGE + update * apart);
    shuffled(pages).into_iter().flat_map(page).collect()
}

/// Offsets of `updates` updates in each page at random, some more than once, with the updates of all pages
/// shuffled.
fn swarms(pages: usize, updates: usize) -> Vec<usize> {
    let mut random = Random(7);
    let order = shuffled(pages * updates);
    let place = |at: usize| at % pages * PAGE + random.below(PAGE / UPDATE) * UPDATE;
    order.into_iter().map(place).collect()
}
