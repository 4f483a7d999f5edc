//! Measures what declaring ranges and committing cost without any log or disk:
//! `cargo run --release -p netram-rvm --example set_range`.

mod common;

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use common::{Forgetful, Nowhere, REGION_BYTES, median};
use netram_proto::port::Durability;
use netram_rvm::{Mode, Region, Rvm};

const RANGES: usize = 1000;
const RUNS: usize = 2000;

/// The median cost, in nanoseconds a range, of declaring `offsets` and of committing them.
fn measure(rvm: &Rvm<Forgetful, Nowhere>, region: &Region, mode: Mode, offsets: &[usize]) -> (f64, f64) {
    let (mut declaring, mut committing) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
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
        declaring.push((declared - began).as_nanos() as f64 / RANGES as f64);
        committing.push(declared.elapsed().as_nanos() as f64 / RANGES as f64);
    }
    (median(&mut declaring), median(&mut committing))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rvm = common::open(0)?;
    let region = rvm.map("segment", 0, 0)?;
    let mut seed = 1u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % (REGION_BYTES - 8)
    };
    let patterns: [(&str, Vec<usize>); 4] = [
        ("adjacent", (0..RANGES).map(|at| at * 8).collect()),
        ("ordered", (0..RANGES).map(|at| at * 64).collect()),
        ("random", (0..RANGES).map(|_| random()).collect()),
        ("repeated", (0..RANGES).map(|at| at % 10 * 64).collect()),
    ];
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "ns a range, {RANGES} ranges of 8 bytes a transaction, median of {RUNS}"
    )?;
    writeln!(
        out,
        "{:<12}{:<12}{:>10}{:>10}",
        "mode", "order", "set_range", "commit"
    )?;
    for mode in [Mode::NoRestore, Mode::Restore] {
        for (name, offsets) in &patterns {
            let (declaring, committing) = measure(&rvm, &region, mode, offsets);
            writeln!(
                out,
                "{:<12}{name:<12}{declaring:>10.1}{committing:>10.1}",
                format!("{mode:?}")
            )?;
        }
    }
    Ok(())
}
