//! Measures the cost of opening a large segment with real files:
//! `cargo run --release -p netram-rvm --example opening -- [directory]`.

mod common;

use std::io::Write;
use std::time::Instant;

use netram_proto::id::JournalId;
use netram_rvm::RvmOptions;
use netram_rvm::{RealStorage, Rvm, SegmentAllocation};

const RUNS: usize = 11;

/// Runs `what`; returns the milliseconds and its result.
fn timed<T>(what: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let done = what();
    (began.elapsed().as_secs_f64() * 1000.0, done)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, Into::into);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:<10}{:>14}{:>14}{:>14}{:>14}",
        "segment", "ms to create", "to open", "to map", "to touch all"
    )?;
    for gib in [1u64, 4, 16] {
        let directory = tempfile::tempdir_in(&directory)?;
        let name = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        let (table, path) = (name("table"), name("segment"));
        let storage = RealStorage::create(&table)?;
        let rvm = Rvm::open(common::log(), storage, RvmOptions::new(JournalId(1)))?;
        let (creating, created) = timed(|| rvm.create_segment(&path, gib << 30, SegmentAllocation::Sparse));
        created?;
        drop(rvm.map(&path, 0, 0)?);
        drop(rvm);
        let (mut opening, mut mapping) = (Vec::new(), Vec::new());
        let mut reading = 0.0;
        for _ in 0..RUNS {
            let storage = RealStorage::open(&table)?;
            let (opened, rvm) = timed(|| Rvm::open(common::log(), storage, RvmOptions::new(JournalId(1))));
            let rvm = rvm?;
            let (mapped, region) = timed(|| rvm.map(&path, 0, 0));
            let region = region?;
            opening.push(opened);
            mapping.push(mapped);
            if gib == 1 {
                // For comparison with the original, which read every page at this point.
                (reading, _) = timed(|| {
                    region
                        .read()
                        .iter()
                        .step_by(4096)
                        .filter(|byte| **byte != 0)
                        .count()
                });
            }
        }
        let read = match gib {
            1 => format!("{reading:.0}"),
            _ => String::from("-"),
        };
        let [opening, mapping] = [opening, mapping].map(|mut values| common::median(&mut values));
        let segment = format!("{gib} GiB");
        writeln!(
            out,
            "{segment:<10}{creating:>14.2}{opening:>14.3}{mapping:>14.3}{read:>14}"
        )?;
    }
    Ok(())
}
