//! Speed at which the paging study processes references.

use std::hint::black_box;
use std::time::Instant;

use netram_far_machine::paging::{PageAccess, PolicyConfig, PolicyKind};
use netram_pagesim::mascots96::{INITIAL, PAGE_BYTES, PaperProgram, config};
use netram_pagesim::workload::{NullSink, ReferenceSink};
use netram_pagesim::{Study, trace};

use super::{RatioBound, ScoreboardRow};
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;

const ROUNDS: usize = 5;
/// Pages of local memory that hold all of a program's.
const LOCAL_PAGES: u32 = 1 << 14;
/// Number of references that are written down as text.
const TEXT_REFERENCES: usize = 2_000_000;

/// The paper's four policies.
fn configs(local_pages: Option<u32>) -> Vec<PolicyConfig> {
    let counters = PolicyKind::Counters { initial: INITIAL };
    let kinds = [
        PolicyKind::Disk,
        PolicyKind::RamDisk,
        PolicyKind::RemoteMain,
        counters,
    ];
    let config = |kind| PolicyConfig {
        local_pages: local_pages.unwrap_or(config(kind).local_pages),
        ..config(kind)
    };
    kinds.map(config).to_vec()
}

/// Counts references and passes them on.
struct CountingMemory<'m, M> {
    memory: &'m mut M,
    count: u64,
}

impl<M: ReferenceSink> ReferenceSink for CountingMemory<'_, M> {
    #[inline]
    fn reference(&mut self, address: u64, bytes: u32, access: PageAccess) {
        self.count += 1;
        self.memory.reference(address, bytes, access);
    }
}

/// References per second of a program with all policies: the median of several rounds.
fn speed(program: PaperProgram, local_pages: Option<u32>) -> f64 {
    let round = |_| {
        let mut study = Study::new(PAGE_BYTES, &configs(local_pages));
        let mut counted = CountingMemory {
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
struct TextTrace {
    text: String,
    left: usize,
}

impl ReferenceSink for TextTrace {
    fn reference(&mut self, address: u64, bytes: u32, access: PageAccess) {
        use std::fmt::Write;
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let what = if access == PageAccess::Write { 'W' } else { 'R' };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{what} {address:x} {bytes}");
    }
}

fn text_speed() -> Result<f64, BenchError> {
    let mut written = TextTrace {
        text: String::new(),
        left: TEXT_REFERENCES,
    };
    PaperProgram::Mvec.reference(&mut written);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut study = Study::new(PAGE_BYTES, &configs(Some(LOCAL_PAGES)));
        let began = Instant::now();
        let read = trace::read(written.text.as_bytes(), &mut study).context("read references back")?;
        rounds.push(read as f64 / began.elapsed().as_secs_f64());
        black_box(study.tallies());
    }
    Ok(median(rounds))
}

/// The program by itself: the upper bound of any study.
fn bare(program: PaperProgram) -> f64 {
    let round = |_| {
        let mut counted = CountingMemory {
            memory: &mut NullSink,
            count: 0,
        };
        let began = Instant::now();
        program.reference(&mut counted);
        counted.count as f64 / began.elapsed().as_secs_f64()
    };
    median((0..ROUNDS).map(round).collect())
}

pub(super) fn study() -> Result<Vec<ScoreboardRow>, BenchError> {
    let unit = "M refs/s";
    let hits = speed(PaperProgram::Mvec, Some(LOCAL_PAGES)) / 1e6;
    let mut figures = Vec::new();
    let mut row = |id, what: &str, value, floor, least| {
        let what = what.to_owned();
        figures.push(ScoreboardRow::new(
            id,
            what,
            unit,
            value,
            floor,
            RatioBound::AtLeast(least),
        ));
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
        ("pagesim-trans", PaperProgram::Trans),
        ("pagesim-gauss", PaperProgram::Gauss),
        ("pagesim-sort", PaperProgram::Sort),
    ] {
        let what = format!(
            "{} with 8 Mbytes of local memory, misses and all; the program alone: {:.0} M refs/s",
            program.name(),
            bare(program) / 1e6
        );
        // TRANS misses with every second column, and the study's bound is about hits.
        let least = if program == PaperProgram::Trans {
            5.0
        } else {
            100.0
        };
        row(id, &what, speed(program, None) / 1e6, None, least);
    }
    Ok(figures)
}
