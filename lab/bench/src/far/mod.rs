//! Far memory beside a machine's other ways to extend its memory: swap to a file, to a slow disk and to
//! compressed memory, and a mapped file. The same programs run each way, in their own process, with the same
//! cap. Each must compute the result that it computes with all memory local.
//!
//! | module | does |
//! |---|---|
//! | [`programs`] | the programs |
//! | [`job`] | one run in its process |
//! | `testbed` | lenders, swap, limits |
//! | `cgroup`, `swap` | memory limits and swap, removed afterwards |
//! | [`output`] | files for programs and people |

pub(crate) mod cgroup;
pub mod job;
pub mod output;
pub mod programs;
pub(crate) mod swap;
mod testbed;

use std::time::Duration;

use serde::Serialize;

use crate::error::BenchError;
use crate::histogram::median;
use crate::machine::MachineInfo;
use crate::progress::ProgressEvent;
use crate::testbed::Testbed;
use job::FarResult;
use programs::FarProgram;
use testbed::FarTestbed;

/// A run that takes longer than this is not repeated.
const LONG: Duration = Duration::from_secs(20);
/// Time that the slow disk adds to each request, in microseconds.
pub const SLOW_DISK_US: u32 = 1000;
/// Minimum memory of a program in bytes; less would give no useful comparison.
pub const BYTES_MIN: u64 = 2 << 20;
/// Minimum local memory in bytes.
pub const LOCAL_BYTES_MIN: u64 = 256 << 10;
/// Memory in bytes that a limited group gets beside its share of the program's memory, for page tables and
/// stack.
pub const SLACK_BYTES: u64 = 1 << 20;

/// Location of the part of a program's memory that is not local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FarMethod {
    /// All memory is local.
    Local,
    /// A swap file.
    Swap,
    /// Swap on a modelled disk, whose requests take 1 ms more.
    SlowSwap,
    /// Swap to compressed memory, which does not count against the cap.
    Zram,
    /// The file that the memory is mapped from.
    File,
    /// Lenders: the unchanged program, under `netram run`.
    Run,
    /// Lenders: the program's memory is a `FarVec`, used as a slice.
    Vec,
    /// Lenders: the same by words, with gather, scatter and get.
    Words,
}

impl FarMethod {
    /// All methods, in the order of the tables.
    pub const ALL: [FarMethod; 8] = [
        FarMethod::Local,
        FarMethod::Swap,
        FarMethod::SlowSwap,
        FarMethod::Zram,
        FarMethod::File,
        FarMethod::Run,
        FarMethod::Vec,
        FarMethod::Words,
    ];

    /// Name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FarMethod::Local => "local",
            FarMethod::Swap => "swap",
            FarMethod::SlowSwap => "slow-swap",
            FarMethod::Zram => "zram",
            FarMethod::File => "file",
            FarMethod::Run => "run",
            FarMethod::Vec => "vec",
            FarMethod::Words => "words",
        }
    }

    /// Whether a program can be run with this method.
    fn can(self, program: FarProgram) -> bool {
        match self {
            // Arrays of Python's allocator cannot be put into this program's arena.
            FarMethod::Vec => program != FarProgram::Numpy,
            FarMethod::Words => program.has_words(),
            _ => true,
        }
    }
}

/// Parameters of a comparison.
#[derive(Clone, Debug)]
pub struct FarSpec {
    /// Size of each program's memory in bytes, at least [`BYTES_MIN`].
    pub bytes: u64,
    /// Shares of it that may be local, in percent: 1 to 99.
    pub locals: Vec<u8>,
    /// The programs.
    pub programs: Vec<FarProgram>,
    /// The methods; [`FarMethod::Local`] is always included.
    pub ways: Vec<FarMethod>,
    /// Number of runs of each cell.
    pub rounds: usize,
    /// Time limit of a run.
    pub patience: Duration,
    /// Number of lenders, each of which gets every page: 1 or 2.
    pub copies: usize,
}

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FarOutcome {
    /// The run ended with a result.
    Done(FarResult),
    /// The run exceeded the time limit and was stopped.
    Late,
    /// The kernel killed the process because it exceeded its memory limit.
    Killed,
    /// The program ended without a result, which is a defect; the text has its last output.
    Died(String),
}

/// One program with one share of local memory and one method.
#[derive(Clone, Debug, Serialize)]
pub struct FarCell {
    /// The program.
    pub program: FarProgram,
    /// Share of its memory that may be local, in percent.
    pub local: u8,
    /// Method for the rest.
    pub way: FarMethod,
    /// Outcome of every round.
    pub rounds: Vec<FarOutcome>,
}

/// Results of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct FarReport {
    /// The machine.
    pub machine: MachineInfo,
    /// Size of each program's memory in bytes.
    pub bytes: u64,
    /// Number of copies at lenders.
    pub copies: usize,
    /// The cells.
    pub cells: Vec<FarCell>,
    /// Skipped methods, each with its reason.
    pub skipped: Vec<String>,
}

impl FarCell {
    /// The cell in words.
    fn name(&self) -> String {
        let FarCell {
            program, local, way, ..
        } = self;
        format!("{} with {local} % local, {}", program.name(), way.name())
    }

    /// Median seconds. `None` if a round did not end.
    pub fn seconds(&self) -> Option<f64> {
        self.median(|done| done.seconds)
    }

    /// Median number of faults that waited for remote data.
    pub fn faults(&self) -> Option<f64> {
        // The kernel counts a fault that another thread serves as a minor one.
        let served = matches!(self.way, FarMethod::Run | FarMethod::Vec | FarMethod::Words);
        self.median(|done| match served {
            true => (done.major_faults + done.minor_faults) as f64,
            false => done.major_faults as f64,
        })
    }

    /// Median of the maximum resident bytes.
    pub fn resident_bytes(&self) -> Option<f64> {
        self.median(|done| done.resident_bytes as f64)
    }

    /// Table entry: seconds, or the outcome.
    pub fn shown(&self) -> String {
        match self.seconds() {
            Some(seconds) if seconds < 0.1 => format!("{seconds:.4}"),
            Some(seconds) if seconds < 10.0 => format!("{seconds:.2}"),
            Some(seconds) => format!("{seconds:.1}"),
            None if self.deaths().next().is_some() => "died".to_owned(),
            None if self.rounds.contains(&FarOutcome::Killed) => "killed".to_owned(),
            None => "late".to_owned(),
        }
    }

    /// Messages of the rounds that ended without a result.
    pub fn deaths(&self) -> impl Iterator<Item = &str> {
        self.rounds.iter().filter_map(|round| match round {
            FarOutcome::Died(why) => Some(why.as_str()),
            _ => None,
        })
    }

    fn median(&self, of: impl Fn(&FarResult) -> f64) -> Option<f64> {
        let ended = self.rounds.iter().map(|round| match round {
            FarOutcome::Done(done) => Some(of(done)),
            FarOutcome::Late | FarOutcome::Killed | FarOutcome::Died(_) => None,
        });
        ended.collect::<Option<Vec<f64>>>().map(median)
    }

    /// Whether another round would take too long.
    fn is_long(&self) -> bool {
        let took = |round: &FarOutcome| match round {
            FarOutcome::Done(done) => done.seconds > LONG.as_secs_f64(),
            FarOutcome::Late | FarOutcome::Killed => true,
            FarOutcome::Died(_) => false,
        };
        self.rounds.iter().any(took)
    }
}

impl FarReport {
    /// The cell with these parameters, if it was run.
    pub fn cell(&self, program: FarProgram, local: u8, way: FarMethod) -> Option<&FarCell> {
        self.cells
            .iter()
            .find(|cell| (cell.program, cell.local, cell.way) == (program, local, way))
    }
}

/// Runs everything: in each round every method of every cell, so that a disturbance hits all or none.
///
/// # Errors
///
/// Fails if the testbed cannot be set up, or a program computes a wrong result.
pub fn compare(
    site: &Testbed,
    spec: &FarSpec,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<FarReport, BenchError> {
    let machine = MachineInfo::probe();
    let mut skipped = Vec::new();
    let bed = FarTestbed::make(site, spec, &mut skipped)?;
    for skipped in &skipped {
        tell(ProgressEvent::Skipped(skipped));
    }
    let mut cells = cells(spec, &bed);
    for round in 0..spec.rounds {
        for at in 0..cells.len() {
            let cell = &cells[at];
            if round > 0 && cell.is_long() {
                continue;
            }
            tell(ProgressEvent::Next(&format!(
                "{} ({} of {})",
                cell.name(),
                round + 1,
                spec.rounds
            )));
            let outcome = bed.run(cell.program, cell.local, cell.way)?;
            check(&cells, at, &outcome)?;
            if let FarOutcome::Died(why) = &outcome {
                tell(ProgressEvent::Failed(&format!("{}: {why}", cells[at].name())));
            }
            cells[at].rounds.push(outcome);
        }
    }
    Ok(FarReport {
        machine,
        bytes: spec.bytes,
        copies: spec.copies,
        cells,
        skipped,
    })
}

/// The cells. For each program the all-local one comes first, with which the others are compared.
fn cells(spec: &FarSpec, bed: &FarTestbed<'_>) -> Vec<FarCell> {
    let cell = |program, local, way| FarCell {
        program,
        local,
        way,
        rounds: Vec::new(),
    };
    let mut cells = Vec::new();
    for &program in spec.programs.iter().filter(|program| bed.has(**program)) {
        cells.push(cell(program, 100, FarMethod::Local));
        for &local in &spec.locals {
            let ways = spec
                .ways
                .iter()
                .filter(|&&way| way != FarMethod::Local && way.can(program) && bed.can(way));
            cells.extend(ways.map(|&way| cell(program, local, way)));
        }
    }
    cells
}

/// Checks that a program computed the result it computes with all memory local.
fn check(cells: &[FarCell], at: usize, outcome: &FarOutcome) -> Result<(), BenchError> {
    let cell = &cells[at];
    let first = cells[..at]
        .iter()
        .rfind(|other| other.program == cell.program && other.way == FarMethod::Local)
        .and_then(|local| local.rounds.first());
    match (first, outcome) {
        (Some(FarOutcome::Done(local)), FarOutcome::Done(done)) if local.found != done.found => {
            Err(BenchError::InvalidRequest(format!(
                "{}, found {} instead of {}: a page has come back wrong",
                cell.name(),
                done.found,
                local.found
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(seconds: f64, found: &str) -> FarOutcome {
        FarOutcome::Done(FarResult {
            seconds,
            major_faults: 7,
            minor_faults: 90,
            resident_bytes: 1 << 20,
            found: found.to_owned(),
        })
    }

    fn cell(way: FarMethod, rounds: Vec<FarOutcome>) -> FarCell {
        FarCell {
            program: FarProgram::Sort,
            local: 50,
            way,
            rounds,
        }
    }

    #[test]
    fn a_cell_shows_its_median_or_its_outcome() {
        let ended = cell(FarMethod::Swap, vec![done(3.0, ""), done(1.0, ""), done(2.0, "")]);
        assert_eq!((ended.seconds(), ended.shown()), (Some(2.0), "2.00".to_owned()));
        assert!(!ended.is_long());
        assert_eq!(ended.faults(), Some(7.0));
        assert_eq!(cell(FarMethod::Vec, ended.rounds.clone()).faults(), Some(97.0));
        let late = cell(FarMethod::Swap, vec![done(3.0, ""), FarOutcome::Late]);
        assert_eq!((late.seconds(), late.shown()), (None, "late".to_owned()));
        let killed = cell(FarMethod::Swap, vec![FarOutcome::Killed]);
        assert_eq!(killed.shown(), "killed");
        assert!(killed.is_long());
        let died = cell(
            FarMethod::Run,
            vec![done(3.0, ""), FarOutcome::Died("it said so".to_owned())],
        );
        assert_eq!(died.shown(), "died");
        assert_eq!(died.deaths().collect::<Vec<_>>(), ["it said so"]);
        assert!(!died.is_long(), "the next round may tell more");
    }

    #[test]
    fn a_wrong_result_ends_the_comparison() {
        let mut cells = vec![
            cell(FarMethod::Local, vec![done(1.0, "right")]),
            cell(FarMethod::Vec, Vec::new()),
        ];
        check(&cells, 1, &done(1.0, "right")).unwrap();
        check(&cells, 1, &FarOutcome::Killed).unwrap();
        let refused = check(&cells, 1, &done(1.0, "wrong")).unwrap_err().to_string();
        assert!(
            refused.contains("sort with 50 % local, vec, found wrong"),
            "{refused}"
        );
        cells[0].program = FarProgram::Scan;
        check(&cells, 1, &done(1.0, "of another program")).unwrap();
    }
}
