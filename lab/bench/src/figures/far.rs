//! How fast the study of paging takes references.

use std::hint::black_box;
use std::time::Instant;

use netram_far_machine::paging::{Access, Config, Kind};
use netram_pagesim::mascots96::{INITIAL, PAGE_BYTES, Program, config};
use netram_pagesim::workload::{Memory, Nobody};
use netram_pagesim::{Study, trace};

use super::{Figure, Hold};
use crate::error::{BenchError, Context};
use crate::histogram::median;

const ROUNDS: usize = 5;
/// Pages of local memory that hold all of a program's.
const ROOM: u32 = 1 << 14;
/// References that are written down as text.
const WRITTEN: usize = 2_000_000;

/// The paper's four policies.
fn configs(local_pages: Option<u32>) -> Vec<Config> {
    let counters = Kind::Counters { initial: INITIAL };
    let kinds = [Kind::Disk, Kind::RamDisk, Kind::RemoteMain, counters];
    let config = |kind| Config {
        local_pages: local_pages.unwrap_or(config(kind).local_pages),
        ..config(kind)
    };
    kinds.map(config).to_vec()
}

/// Counts references, and has them taken.
struct Counted<'m, M> {
    memory: &'m mut M,
    count: u64,
}

impl<M: Memory> Memory for Counted<'_, M> {
    #[inline]
    fn reference(&mut self, address: u64, bytes: u32, access: Access) {
        self.count += 1;
        self.memory.reference(address, bytes, access);
    }
}

/// References a second of a program before all policies: the median of some rounds.
fn speed(program: Program, local_pages: Option<u32>) -> f64 {
    let round = |_| {
        let mut study = Study::new(PAGE_BYTES, &configs(local_pages));
        let mut counted = Counted {
            memory: &mut study,
            count: 0,
        };
        let began = Instant::now();
        program.reference(&mut counted);
        let count = counted.count;
        let seconds = began.elapsed().as_secs_f64();
        black_box(study.tallies());
        count as f64 / seconds
    };
    median((0..ROUNDS).map(round).collect())
}

/// The first references of a program, as text.
struct Written {
    text: String,
    left: usize,
}

impl Memory for Written {
    fn reference(&mut self, address: u64, bytes: u32, access: Access) {
        use std::fmt::Write;
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let what = if access == Access::Write { 'W' } else { 'R' };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{what} {address:x} {bytes}");
    }
}

fn text_speed() -> Result<f64, BenchError> {
    let mut written = Written {
        text: String::new(),
        left: WRITTEN,
    };
    Program::Mvec.reference(&mut written);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut study = Study::new(PAGE_BYTES, &configs(Some(ROOM)));
        let began = Instant::now();
        let read = trace::read(written.text.as_bytes(), &mut study).context("read references back")?;
        rounds.push(read as f64 / began.elapsed().as_secs_f64());
        black_box(study.tallies());
    }
    Ok(median(rounds))
}

/// The program by itself, for comparison: what no study can be faster than.
fn bare(program: Program) -> f64 {
    let round = |_| {
        let mut counted = Counted {
            memory: &mut Nobody,
            count: 0,
        };
        let began = Instant::now();
        program.reference(&mut counted);
        counted.count as f64 / began.elapsed().as_secs_f64()
    };
    median((0..ROUNDS).map(round).collect())
}

pub(super) fn study() -> Result<Vec<Figure>, BenchError> {
    let unit = "M refs/s";
    let hits = speed(Program::Mvec, Some(ROOM)) / 1e6;
    let mut figures = Vec::new();
    let mut row = |id, what: &str, value, floor, least| {
        let what = what.to_owned();
        figures.push(Figure::new(id, what, unit, value, floor, Hold::AtLeast(least)));
    };
    row(
        "pagesim-hits",
        "study of four policies at once: hits in the model (MVEC, all local), one core",
        hits,
        None,
        100.0,
    );
    row(
        "pagesim-text",
        "the same; floor: the same references read from text in memory",
        hits,
        Some(text_speed()? / 1e6),
        20.0,
    );
    for (id, program) in [
        ("pagesim-trans", Program::Trans),
        ("pagesim-gauss", Program::Gauss),
        ("pagesim-sort", Program::Sort),
    ] {
        let what = format!(
            "{} with 8 Mbytes of local memory, misses and all; the program alone: {:.0} M refs/s",
            program.name(),
            bare(program) / 1e6
        );
        // TRANS misses with every second column: what is held is what a study of hits is not about.
        let least = if program == Program::Trans { 5.0 } else { 100.0 };
        row(id, &what, speed(program, None) / 1e6, None, least);
    }
    Ok(figures)
}
