//! Table 2: cost of copying, comparing and sending a page, and of catching a store to it.

use std::hint::black_box;
use std::time::Instant;

use netram_rvm::{CaptureMode, DetectMethod, differences};
use serde::Serialize;

use super::testbed::{MessagePeer, OsdiMemory, PAGE, store};
use super::{OsdiPlan, median, shuffled};
use crate::error::BenchError;
use crate::progress::ProgressEvent;
use crate::testbed::Testbed;

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct OsdiCost {
    /// Name in files.
    pub id: &'static str,
    /// The operation in words.
    pub what: &'static str,
    /// Microseconds for a page of 4 KiB and of 8 KiB; a cost without a size has one.
    pub us: [Option<f64>; 2],
}

const SIZES: [usize; 2] = [PAGE, 2 * PAGE];

/// Measures the table; `skipped` gets what this machine does not offer.
pub(super) fn measure(
    site: &Testbed,
    plan: &OsdiPlan,
    skipped: &mut Vec<String>,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<Vec<OsdiCost>, BenchError> {
    let mut costs = Vec::new();
    tell(ProgressEvent::Next("table 2: copies and comparisons"));
    memory(plan, &mut costs);
    tell(ProgressEvent::Next("table 2: sending"));
    let tcp = MessagePeer::tcp()?;
    let unix = MessagePeer::unix(site)?;
    let pinned = tcp.pin_sender()?;
    for (id, what, peer) in [
        ("send-tcp", "page send (TCP, loopback)", &tcp),
        ("send-unix", "page send (Unix socket)", &unix),
    ] {
        costs.push(OsdiCost {
            id,
            what,
            us: send(plan, peer)?,
        });
    }
    for (id, what, peer) in [
        ("exchange-tcp", "one byte there and back (TCP): a floor", &tcp),
        (
            "exchange-unix",
            "one byte there and back (Unix socket): a floor",
            &unix,
        ),
    ] {
        let us = repeated(plan, 200, || peer.send(&[1]))?;
        costs.push(OsdiCost {
            id,
            what,
            us: [Some(us), None],
        });
    }
    drop(pinned);
    let us = repeated(plan, 2000, || {
        black_box(rustix::process::getppid());
        Ok(())
    })?;
    costs.push(OsdiCost {
        id: "system-call",
        what: "a system call (getppid): a floor",
        us: [Some(us), None],
    });
    tell(ProgressEvent::Next("table 2: faults"));
    faults(site, plan, skipped, &mut costs)?;
    Ok(costs)
}

/// Median microseconds of one of `times` calls, over the plan's rounds.
fn repeated(
    plan: &OsdiPlan,
    times: usize,
    mut call: impl FnMut() -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        let began = Instant::now();
        for _ in 0..times {
            call()?;
        }
        rounds.push(began.elapsed().as_secs_f64() * 1e6 / times as f64);
    }
    Ok(median(&mut rounds))
}

/// Copies and comparisons. Cold means each page once, at random, in far more memory than the caches hold.
fn memory(plan: &OsdiPlan, costs: &mut Vec<OsdiCost>) {
    let bytes: usize = if plan.quick { 32 << 20 } else { 256 << 20 };
    let mut pair = (vec![1u8; bytes], vec![1u8; bytes]);
    let mut copy = |old: &mut [u8], new: &mut [u8]| {
        black_box(old).copy_from_slice(black_box(new));
    };
    let mut compare = |old: &mut [u8], new: &mut [u8]| {
        differences(black_box(old), black_box(new), |at, _| {
            black_box(at);
        });
    };
    let mut row = |id, what, cold, pair: &mut (Vec<u8>, Vec<u8>), work: Work<'_>| {
        let us = SIZES.map(|size| Some(paired(plan, pair, size, cold, work)));
        costs.push(OsdiCost { id, what, us });
    };
    row("copy-cold", "page copy (cold cache)", true, &mut pair, &mut copy);
    row("copy-warm", "page copy (warm cache)", false, &mut pair, &mut copy);
    row(
        "compare-cold",
        "page compare (cold cache)",
        true,
        &mut pair,
        &mut compare,
    );
    row(
        "compare-warm",
        "page compare (warm cache)",
        false,
        &mut pair,
        &mut compare,
    );
    for page in 0..bytes / PAGE {
        (0..16).for_each(|update| pair.1[page * PAGE + update * 256..][..8].fill(2));
    }
    let (cold, warm) = (
        "page compare, 16 updates per 4 KiB (cold cache)",
        "page compare, 16 updates per 4 KiB (warm cache)",
    );
    row("extract-cold", cold, true, &mut pair, &mut compare);
    row("extract-warm", warm, false, &mut pair, &mut compare);
}

type Work<'w> = &'w mut dyn FnMut(&mut [u8], &mut [u8]);

/// Median microseconds of some work on a page of each of two buffers.
fn paired(plan: &OsdiPlan, pair: &mut (Vec<u8>, Vec<u8>), size: usize, cold: bool, work: Work<'_>) -> f64 {
    let order = match cold {
        true => shuffled(pair.0.len() / size),
        false => vec![0; 2000],
    };
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        let began = Instant::now();
        for page in &order {
            let at = page * size;
            work(&mut pair.0[at..at + size], &mut pair.1[at..at + size]);
        }
        rounds.push(began.elapsed().as_secs_f64() * 1e6 / order.len() as f64);
    }
    median(&mut rounds)
}

/// Many pages in a message.
fn send(plan: &OsdiPlan, peer: &MessagePeer) -> Result<[Option<f64>; 2], BenchError> {
    let mut us = [None, None];
    for (us, size) in us.iter_mut().zip(SIZES) {
        let pages = 500;
        let message = vec![7; pages * size];
        let whole = repeated(plan, 10, || peer.send(&message))?;
        *us = Some(whole / pages as f64);
    }
    Ok(us)
}

/// Capture mode, whether pages are shuffled, and the row's name.
const ROWS: [(CaptureMode, bool, &str, &str); 4] = [
    (
        CaptureMode::Pages(DetectMethod::Trap),
        true,
        "fault-signal",
        "handle signal and change protection (pages at random)",
    ),
    (
        CaptureMode::Pages(DetectMethod::Trap),
        false,
        "fault-signal-ordered",
        "the same, pages in order",
    ),
    (
        CaptureMode::Pages(DetectMethod::Watch),
        true,
        "fault-watch",
        "the kernel notes a store (pages at random)",
    ),
    (
        CaptureMode::Pages(DetectMethod::Watch),
        false,
        "fault-watch-ordered",
        "the same, pages in order",
    ),
];

/// The first store to each page of a region, after protecting the pages again.
fn faults(
    site: &Testbed,
    plan: &OsdiPlan,
    skipped: &mut Vec<String>,
    costs: &mut Vec<OsdiCost>,
) -> Result<(), BenchError> {
    let pages = if plan.quick { 256 } else { 2048 };
    for (capture, random, id, what) in ROWS {
        let memory = match OsdiMemory::new(site, pages, capture)? {
            Ok(memory) => memory,
            Err(refused) => {
                skipped.push(format!("{what}: {refused}"));
                continue;
            }
        };
        let order = if random {
            shuffled(pages)
        } else {
            (0..pages).collect()
        };
        let places: Vec<usize> = order.into_iter().map(|page| page * PAGE).collect();
        let mut plain = vec![1u8; pages * PAGE];
        let (mut rounds, mut again) = (Vec::new(), Vec::new());
        for round in 0..plan.rounds * 4 {
            let mut open = memory.begin()?;
            let took = memory.store(&mut open, &places, round as u64)?;
            let floor = store(&mut plain, &places, round as u64);
            rounds.push(took.saturating_sub(floor).as_secs_f64() * 1e6 / pages as f64);
            // Without restoring: the pages are only reset and protected.
            let began = Instant::now();
            open.abort();
            again.push(began.elapsed().as_secs_f64() * 1e6 / pages as f64);
        }
        costs.push(OsdiCost {
            id,
            what,
            us: [Some(median(&mut rounds)), None],
        });
        if !random {
            let (id, what) = match capture {
                CaptureMode::Pages(DetectMethod::Trap) => {
                    ("protect-trap", "protect a page again (all in a row)")
                }
                _ => (
                    "protect-watch",
                    "collect a page and protect it again, and copy it to the shadow",
                ),
            };
            costs.push(OsdiCost {
                id,
                what,
                us: [Some(median(&mut again)), None],
            });
        }
    }
    Ok(())
}
