//! Measures the cost of declaring ranges and committing, without any log or disk:
//! `cargo run --release -p netram-rvm --example set_range`.
//!
//! Orders: adjacent fields; ascending with gaps; random in 16 MiB; random, each four times. `merge` is the
//! additional time of the commit compared with as many ranges declared in order.

mod common;

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use common::{Forgetful, Nowhere, REGION_BYTES, median};
use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode, Rvm};

/// Updates per transaction.
const COUNTS: [usize; 5] = [100, 1000, 2187, 10_000, 300_000];
/// Updates measured for each figure.
const UPDATES: usize = 4_000_000;

/// Median cost of declaring `offsets` and of committing them, in nanoseconds per update.
fn measure(
    rvm: &Rvm<Forgetful, Nowhere>,
    region: &Region,
    mode: RestoreMode,
    offsets: &[usize],
) -> (f64, f64) {
    let (mut declaring, mut committing) = (Vec::new(), Vec::new());
    for _ in 0..UPDATES / offsets.len() {
        let mut transaction = rvm.begin(mode);
        let began = Instant::now();
        for offset in offsets {
            transaction
                .set_range(black_box(region), *offset, 8)
                .expect("inside the region");
        }
        let declared = Instant::now();
        transaction
            .commit(Durability::Lazy)
            .expect("the log takes everything");
        let updates = offsets.len() as f64;
        declaring.push((declared - began).as_nanos() as f64 / updates);
        committing.push(declared.elapsed().as_nanos() as f64 / updates);
    }
    (median(&mut declaring), median(&mut committing))
}

/// The measured orders of `count` updates.
fn orders(count: usize) -> [(&'static str, Vec<usize>); 4] {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % (REGION_BYTES / 8) * 8
    };
    let step = (REGION_BYTES / count / 8 * 8).min(64);
    let quarter: Vec<usize> = (0..count / 4).map(|_| random()).collect();
    [
        ("ordered", (0..count).map(|at| at * step).collect()),
        ("adjacent", (0..count).map(|at| at * 8).collect()),
        ("random", (0..count).map(|_| random()).collect()),
        ("repeated", quarter.iter().cycle().take(count).copied().collect()),
    ]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rvm = common::open(0)?;
    let region = rvm.map("segment", 0, 0)?;
    // Touches the region's pages before anything is measured.
    let mut first = rvm.begin(RestoreMode::NoRestore);
    for page in (0..REGION_BYTES).step_by(4096) {
        first.set(&region, page, &1u64)?;
    }
    first.commit(Durability::Lazy)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ns an update of 8 bytes, medians")?;
    writeln!(
        out,
        "{:<11}{:>8} {:<10}{:>10}{:>8}{:>8}",
        "mode", "updates", "order", "set_range", "merge", "commit"
    )?;
    for mode in [RestoreMode::NoRestore, RestoreMode::Restore] {
        for count in COUNTS {
            let mut ordered = 0.0;
            for (name, offsets) in orders(count) {
                let (declaring, committing) = measure(&rvm, &region, mode, &offsets);
                if name == "ordered" {
                    ordered = committing;
                }
                let merge = (committing - ordered).max(0.0);
                writeln!(
                    out,
                    "{:<11}{count:>8} {name:<10}{declaring:>10.1}{merge:>8.1}{committing:>8.1}",
                    format!("{mode:?}")
                )?;
            }
        }
    }
    Ok(())
}
