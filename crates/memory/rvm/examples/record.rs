//! Measures the cost per range of writing, checking and applying a record, compared with the wide form of
//! older programs: `cargo run --release -p netram-rvm --example record`.

mod common;

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use common::median;
use netram_proto::port::{Durability, RecordKind};
use netram_rvm::record::{KIND_COMPACT, KIND_TRANSACTION, decode, encode};
use netram_rvm::{RangeView, Region, RestoreMode};

const RANGES: usize = 1000;
const RUNS: usize = 2000;

/// The same ranges in the wide form of older programs.
fn wide(ranges: &[RangeView<'_>]) -> Vec<u8> {
    let mut payload = (ranges.len() as u64).to_le_bytes().to_vec();
    for range in ranges {
        payload.extend_from_slice(&u64::from(range.segment).to_le_bytes());
        payload.extend_from_slice(&range.offset.to_le_bytes());
        payload.extend_from_slice(&(range.bytes.len() as u64).to_le_bytes());
        payload.extend_from_slice(range.bytes);
        payload.resize(payload.len().next_multiple_of(8), 0);
    }
    payload
}

/// Nanoseconds per range.
fn measure(mut run: impl FnMut()) -> f64 {
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let began = Instant::now();
        run();
        times.push(began.elapsed().as_nanos() as f64 / RANGES as f64);
    }
    median(&mut times)
}

fn check(kind: RecordKind, payload: &[u8]) -> f64 {
    measure(|| {
        let changes = decode(kind, black_box(payload)).expect("just encoded");
        black_box(changes.bytes());
    })
}

fn apply(region: &Region, kind: RecordKind, payload: &[u8]) -> f64 {
    measure(|| {
        let changes = decode(kind, black_box(payload)).expect("just encoded");
        region.apply(&changes).expect("inside the region");
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rvm = common::open(0)?;
    let region = rvm.map("segment", 0, 0)?;
    let other = rvm.map("other", 0, 0)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "ns a range, {RANGES} ranges a record, median of {RUNS}; bytes a range"
    )?;
    writeln!(
        out,
        "{:<10}{:<10}{:>8}{:>10}{:>10}{:>16}",
        "value", "form", "bytes", "check", "+ apply", "+ take over"
    )?;
    for length in [8usize, 40, 400] {
        let values = vec![7; length];
        let ranges: Vec<RangeView<'_>> = (0..RANGES)
            .map(|at| RangeView {
                segment: 0,
                offset: at as u64 * 4096,
                bytes: &values,
            })
            .collect();
        for (form, kind, payload) in [
            ("wide", KIND_TRANSACTION, wide(&ranges)),
            ("compact", KIND_COMPACT, encode(&[], &ranges)),
        ] {
            let checked = check(kind, &payload);
            let applied = apply(&region, kind, &payload);
            let bytes = payload.len() as f64 / RANGES as f64;
            write!(
                out,
                "{length:<10}{form:<10}{bytes:>8.1}{checked:>10.1}{applied:>10.1}"
            )?;
            if kind == KIND_TRANSACTION {
                writeln!(out, "{:>16}", "never")?;
                continue;
            }
            let taken = measure(|| {
                let changes = decode(kind, black_box(&payload)).expect("just encoded");
                let mut transaction = rvm.begin(RestoreMode::NoRestore);
                transaction.set(&other, 0, &1u64).expect("inside the region");
                let commit = transaction.commit_foreign(&region, changes, Durability::Lazy);
                commit.expect("the log takes everything");
            });
            writeln!(out, "{taken:>16.1}")?;
        }
    }
    Ok(())
}
