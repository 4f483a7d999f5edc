//! Runs of the paper's programs with all policies at once.

use std::path::Path;
use std::process::{Command, Stdio};

use netram_far_machine::paging::{FirstTouch, PolicyConfig, PolicyKind, PolicyTally, Replacement};
use netram_pagesim::mascots96::{INITIAL, PAGE_BYTES, PaperProgram, SOFTWARE_WORD, config};
use netram_pagesim::{MachineCosts, Study, StudyOutcome, StudySettings, process};
use serde::Serialize;

use super::MascotsPolicy;
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;

/// Initial counters of figure 3.
const INITIALS: [u32; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 16_384];
const INITIALS_QUICK: [u32; 5] = [1, 16, 64, 512, 2048];
/// Page size of today's machines in bytes, and local memory for as many of them as the paper's machine had.
const PAGE_TODAY: u64 = 4096;
const LOCAL_TODAY: u64 = LOCAL_BYTES * PAGE_TODAY / PAGE_BYTES;
/// Local and remote memory, 8 and 80 Mbytes.
const LOCAL_BYTES: u64 = 8 << 20;
const REMOTE_BYTES: u64 = 80 << 20;

/// The project's model of a switch.
const SWITCH: &str = include_str!("../../../pagesim/verilog/switch.v");
/// Number of simulated cycles: about the paper's hundred million references.
const SWITCH_CYCLES: u32 = 500;

/// A program of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MascotsWorkload {
    /// Transposes a matrix in place.
    Trans,
    /// Multiplies a matrix by a vector.
    Mvec,
    /// Eliminates by Gauss's algorithm.
    Gauss,
    /// Sorts records.
    Sort,
    /// Simulates a switch.
    Verilog,
}

impl MascotsWorkload {
    /// All programs, in the order of figure 1.
    pub const ALL: [MascotsWorkload; 5] = [
        MascotsWorkload::Trans,
        MascotsWorkload::Mvec,
        MascotsWorkload::Gauss,
        MascotsWorkload::Sort,
        MascotsWorkload::Verilog,
    ];

    fn built_in(self) -> Option<PaperProgram> {
        match self {
            MascotsWorkload::Trans => Some(PaperProgram::Trans),
            MascotsWorkload::Mvec => Some(PaperProgram::Mvec),
            MascotsWorkload::Gauss => Some(PaperProgram::Gauss),
            MascotsWorkload::Sort => Some(PaperProgram::Sort),
            MascotsWorkload::Verilog => None,
        }
    }

    /// Name in the paper.
    pub fn name(self) -> &'static str {
        self.built_in().map_or("VERILOG", PaperProgram::name)
    }

    /// Its x value on an axis of programs, from 1.
    pub fn x(self) -> u64 {
        (1..)
            .zip(MascotsWorkload::ALL)
            .find(|(_, one)| *one == self)
            .map_or(0, |(place, _)| place)
    }
}

/// Events of a program under all policies.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadResult {
    /// The program.
    pub workload: MascotsWorkload,
    /// Number of references: the paper's number for a built-in program, the counted one elsewhere.
    pub references: u64,
    /// Mbytes that it referenced, in pages of 8 KiB.
    pub megabytes: f64,
    /// Tallies with the paper's page size.
    #[serde(skip)]
    then: Vec<(PolicyKind, PolicyTally)>,
    /// Tallies with today's page size.
    #[serde(skip)]
    today: Vec<(PolicyKind, PolicyTally)>,
    /// Tallies with the paper's page size and random replacement.
    #[serde(skip)]
    random: Vec<(PolicyKind, PolicyTally)>,
}

impl WorkloadResult {
    /// Cycles of an average reference on the paper's machine, or one of its kind.
    pub fn cycles(&self, policy: MascotsPolicy, costs: &MachineCosts) -> f64 {
        let software = costs.with_remote_word(SOFTWARE_WORD);
        let costs = if policy == MascotsPolicy::SoftwareCounters {
            &software
        } else {
            costs
        };
        self.cycles_of(policy.kind(INITIAL), costs)
    }

    /// The same for any simulated policy.
    pub fn cycles_of(&self, kind: PolicyKind, costs: &MachineCosts) -> f64 {
        self.average(&self.then, kind, costs)
    }

    /// The same with random replacement.
    pub fn random(&self, policy: MascotsPolicy, costs: &MachineCosts) -> f64 {
        self.average(&self.random, policy.kind(INITIAL), costs)
    }

    /// The same with today's page size.
    pub fn today(&self, kind: PolicyKind, costs: &MachineCosts) -> f64 {
        self.average(&self.today, kind, costs)
    }

    fn average(&self, tallies: &[(PolicyKind, PolicyTally)], kind: PolicyKind, costs: &MachineCosts) -> f64 {
        let (_, tally) = tallies
            .iter()
            .find(|(known, _)| *known == kind)
            .expect("every program runs before the same policies");
        let others = self.references.saturating_sub(tally.references());
        let references = self.references.max(tally.references()).max(1);
        (costs.cycles(tally) + others as f64 * costs.local_word) / references as f64
    }

    /// The initial counters that were tried.
    pub fn initials(&self) -> Vec<u32> {
        let initial = |(kind, _): &(PolicyKind, PolicyTally)| match kind {
            PolicyKind::Counters { initial } => Some(*initial),
            _ => None,
        };
        self.then.iter().filter_map(initial).collect()
    }
}

fn kinds(quick: bool) -> Vec<PolicyKind> {
    let initials = if quick { &INITIALS_QUICK[..] } else { &INITIALS };
    let counters = initials.iter().map(|&initial| PolicyKind::Counters { initial });
    [PolicyKind::Disk, PolicyKind::RamDisk, PolicyKind::RemoteMain]
        .into_iter()
        .chain(counters)
        .collect()
}

fn with_kinds(kinds: &[PolicyKind], tallies: Vec<PolicyTally>) -> Vec<(PolicyKind, PolicyTally)> {
    assert_eq!(kinds.len(), tallies.len());
    kinds.iter().copied().zip(tallies).collect()
}

/// Runs a program with all policies. The inner error is the reason why it cannot be run here.
///
/// # Errors
///
/// Fails if the program or the emulator fails.
pub fn run(
    site: &Testbed,
    workload: MascotsWorkload,
    quick: bool,
) -> Result<Result<WorkloadResult, String>, BenchError> {
    let kinds = kinds(quick);
    match workload.built_in() {
        Some(program) => Ok(Ok(built_in(workload, program, &kinds))),
        None if quick => Ok(Err("VERILOG: not in a quick run".to_owned())),
        None => switch(site, &kinds),
    }
}

fn built_in(workload: MascotsWorkload, program: PaperProgram, kinds: &[PolicyKind]) -> WorkloadResult {
    let with = |page_bytes: u64, local_bytes: u64, replacement| {
        let pages = |bytes: u64| (bytes / page_bytes) as u32;
        let config = |kind: &PolicyKind| PolicyConfig {
            local_pages: pages(local_bytes),
            remote_pages: pages(REMOTE_BYTES),
            replacement,
            ..config(*kind)
        };
        let configs: Vec<PolicyConfig> = kinds.iter().map(config).collect();
        let mut study = Study::new(page_bytes, &configs);
        program.reference(&mut study);
        let pages = study.pages();
        (with_kinds(kinds, study.tallies().0), pages)
    };
    let (then, pages) = with(PAGE_BYTES, LOCAL_BYTES, Replacement::Lru);
    WorkloadResult {
        workload,
        references: program.references(),
        megabytes: f64::from(pages) * PAGE_BYTES as f64 / 1e6,
        then,
        today: with(PAGE_TODAY, LOCAL_TODAY, Replacement::Lru).0,
        random: with(PAGE_BYTES, LOCAL_BYTES, Replacement::Random).0,
    }
}

fn switch(site: &Testbed, kinds: &[PolicyKind]) -> Result<Result<WorkloadResult, String>, BenchError> {
    let directory = site.directory();
    let (source, compiled) = (directory.join("switch.v"), directory.join("switch.vvp"));
    std::fs::write(&source, SWITCH).context("write the switch")?;
    let made = Command::new("iverilog")
        .args(["-g2012", "-o"])
        .args([&compiled, &source])
        .output();
    let removed = std::fs::remove_file(&source);
    match made {
        Err(why) => return Ok(Err(format!("VERILOG: no iverilog ({why})"))),
        Ok(made) if !made.status.success() => {
            let said = String::from_utf8_lossy(&made.stderr).into_owned();
            return Err(BenchError::InvalidRequest(format!(
                "iverilog refused the model of the switch: {said}"
            )));
        }
        Ok(_) => removed.context("remove the switch")?,
    }
    let run = |page_bytes, local_bytes, replacement| {
        let settings = StudySettings {
            page_bytes,
            locals: vec![local_bytes],
            remote_bytes: REMOTE_BYTES,
            replacement,
            first_touch: FirstTouch::Disk,
            keep_copies: false,
            seed: 1,
            policies: kinds.to_vec(),
        };
        simulate(&compiled, &settings, &directory.join("outcome"))
    };
    let all = run(PAGE_BYTES, LOCAL_BYTES, Replacement::Lru).and_then(|then| {
        let today = run(PAGE_TODAY, LOCAL_TODAY, Replacement::Lru)?;
        Ok((then, today, run(PAGE_BYTES, LOCAL_BYTES, Replacement::Random)?))
    });
    std::fs::remove_file(&compiled).context("remove the compiled switch")?;
    Ok(all.map(|(then, today, random)| WorkloadResult {
        workload: MascotsWorkload::Verilog,
        references: then.references(),
        megabytes: then.pages as f64 * PAGE_BYTES as f64 / 1e6,
        then: with_kinds(kinds, then.tallies),
        today: with_kinds(kinds, today.tallies),
        random: with_kinds(kinds, random.tallies),
    }))
}

fn simulate(compiled: &Path, settings: &StudySettings, outcome: &Path) -> Result<StudyOutcome, String> {
    let simulator = Path::new("vvp");
    let told = process::command(simulator, settings, outcome).and_then(|mut command| {
        command.arg(compiled).arg(format!("+cycles={SWITCH_CYCLES}"));
        process::run(command.stdout(Stdio::null()), simulator, outcome)
    });
    // Without any output the file may not exist.
    let _ = std::fs::remove_file(outcome);
    told.map(|(_, outcome)| outcome)
        .map_err(|error| format!("VERILOG: {error}"))
}
