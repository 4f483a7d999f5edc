//! Measures a lazy commit of one 128-byte range, with and without a spool, without any log or disk:
//! `cargo run --release -p netram-rvm --example lazy`.

mod common;

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use common::{Forgetful, Nowhere, REGION_BYTES, median};
use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode, Rvm};

const BYTES: usize = 128;
/// Commits between two readings of the clock; compactions of the spool are part of their mean.
const BATCH: usize = 20_000;
const BATCHES: usize = 51;
const SPOOL_BYTES: usize = 1 << 20;

/// Median over the batches of the mean nanoseconds per commit; and the longest of as many single commits.
fn measure(
    rvm: &Rvm<Forgetful, Nowhere>,
    region: &Region,
    mode: RestoreMode,
    place: impl Fn(usize) -> usize,
) -> [f64; 2] {
    let commit = |number: usize| {
        let mut transaction = rvm.begin(mode);
        let range = transaction.set_range(black_box(region), place(number), BYTES);
        range.expect("inside the region");
        transaction
            .commit(Durability::Lazy)
            .expect("the log takes everything");
    };
    let mut means = Vec::new();
    for batch in 0..BATCHES {
        let began = Instant::now();
        (0..BATCH).for_each(|number| commit(batch * BATCH + number));
        means.push(began.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    let longest = (0..BATCH).map(|number| {
        let began = Instant::now();
        commit(number);
        began.elapsed().as_nanos()
    });
    let longest = longest.max().unwrap_or_default();
    [median(&mut means), longest as f64]
}

/// Lower bound: only the copy of the bytes from the region to a buffer.
fn floor(place: impl Fn(usize) -> usize) -> f64 {
    let memory = vec![1u8; REGION_BYTES];
    let mut kept = vec![0u8; SPOOL_BYTES];
    let mut means = Vec::new();
    for batch in 0..BATCHES {
        let began = Instant::now();
        for number in 0..BATCH {
            let (from, to) = (
                place(batch * BATCH + number),
                number * BYTES % (SPOOL_BYTES - BYTES),
            );
            kept[to..to + BYTES].copy_from_slice(black_box(&memory[from..from + BYTES]));
        }
        black_box(&kept);
        means.push(began.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    median(&mut means)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    type Place = fn(usize) -> usize;
    let patterns: [(&str, Place); 4] = [
        ("one place", |_| 0),
        ("1,000 places", |number| number.wrapping_mul(7919) % 1000 * 4096),
        ("in sequence", |number| number % (REGION_BYTES / BYTES) * BYTES),
        ("at random", |number| {
            let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            mixed as usize % (REGION_BYTES / BYTES) * BYTES
        }),
    ];
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "ns a lazy commit of {BYTES} bytes, mean of {BATCH}, median of {BATCHES}; longest of {BATCH}"
    )?;
    writeln!(
        out,
        "{:<14}{:<12}{:>8}{:>10}{:>10}{:>10}{:>12}",
        "where", "mode", "floor", "no spool", "spool", "longest", "bytes saved"
    )?;
    for (name, place) in patterns {
        let floor = floor(place);
        for mode in [RestoreMode::NoRestore, RestoreMode::Restore] {
            let plain = common::open(0)?;
            let region = plain.map("segment", 0, 0)?;
            let [without, _] = measure(&plain, &region, mode, place);
            let spooling = common::open(SPOOL_BYTES)?;
            let region = spooling.map("segment", 0, 0)?;
            let [with, longest] = measure(&spooling, &region, mode, place);
            spooling.flush(Durability::Lazy)?;
            let statistics = spooling.statistics();
            let saved = statistics.bytes_saved_between;
            let saved = 100.0 * saved as f64 / (saved + statistics.bytes_logged).max(1) as f64;
            writeln!(
                out,
                "{name:<14}{:<12}{floor:>8.1}{without:>10.0}{with:>10.0}{longest:>10.0}{saved:>11.0}%",
                format!("{mode:?}")
            )?;
        }
    }
    Ok(())
}
