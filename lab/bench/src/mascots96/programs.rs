//! The paper's programs before all policies at once.

use std::path::Path;
use std::process::{Command, Stdio};

use netram_far_machine::paging::{Config, FirstTouch, Kind, Replacement, Tally};
use netram_pagesim::mascots96::{INITIAL, PAGE_BYTES, Program, SOFTWARE_WORD, config};
use netram_pagesim::{Costs, Outcome, Settings, Study, process};
use serde::Serialize;

use super::Policy;
use crate::error::{BenchError, Context};
use crate::site::Site;

/// Counters that are tried, in figure 3.
const INITIALS: [u32; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 16_384];
const INITIALS_QUICK: [u32; 5] = [1, 16, 64, 512, 2048];
/// A page of today's machines; and local memory for as many of them as the paper's machine had.
const PAGE_TODAY: u64 = 4096;
const LOCAL_TODAY: u64 = LOCAL_BYTES * PAGE_TODAY / PAGE_BYTES;
/// Local and remote memory, 8 and 80 Mbytes.
const LOCAL_BYTES: u64 = 8 << 20;
const REMOTE_BYTES: u64 = 80 << 20;

/// Our model of a switch.
const SWITCH: &str = include_str!("../../../pagesim/verilog/switch.v");
/// Cycles that it simulates: about the paper's hundred million references.
const SWITCH_CYCLES: u32 = 500;

/// A program of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Workload {
    /// A matrix is transposed in place.
    Trans,
    /// A matrix times a vector.
    Mvec,
    /// Elimination.
    Gauss,
    /// Records are sorted.
    Sort,
    /// A switch is simulated.
    Verilog,
}

impl Workload {
    /// All of them, in the order of figure 1.
    pub const ALL: [Workload; 5] = [
        Workload::Trans,
        Workload::Mvec,
        Workload::Gauss,
        Workload::Sort,
        Workload::Verilog,
    ];

    fn built_in(self) -> Option<Program> {
        match self {
            Workload::Trans => Some(Program::Trans),
            Workload::Mvec => Some(Program::Mvec),
            Workload::Gauss => Some(Program::Gauss),
            Workload::Sort => Some(Program::Sort),
            Workload::Verilog => None,
        }
    }

    /// Its name in the paper.
    pub fn name(self) -> &'static str {
        self.built_in().map_or("VERILOG", Program::name)
    }

    /// Its place on an axis of programs, from 1.
    pub fn place(self) -> u64 {
        (1..)
            .zip(Workload::ALL)
            .find(|(_, one)| *one == self)
            .map_or(0, |(place, _)| place)
    }
}

/// What a program made of the policies.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    /// Which.
    pub workload: Workload,
    /// References: as many as the paper printed, where it is built in, and as many as there were elsewhere.
    pub references: u64,
    /// Mbytes that it referenced, in pages of 8 KiB.
    pub megabytes: f64,
    /// With the paper's pages.
    #[serde(skip)]
    then: Vec<(Kind, Tally)>,
    /// With today's.
    #[serde(skip)]
    today: Vec<(Kind, Tally)>,
    /// With the paper's, where any page may leave.
    #[serde(skip)]
    random: Vec<(Kind, Tally)>,
}

impl Ran {
    /// Cycles of an average reference on the paper's machine, or one of its kind.
    pub fn cycles(&self, policy: Policy, costs: &Costs) -> f64 {
        let software = costs.with_remote_word(SOFTWARE_WORD);
        let costs = if policy == Policy::SoftwareCounters {
            &software
        } else {
            costs
        };
        self.cycles_of(policy.kind(INITIAL), costs)
    }

    /// The same of any kind of policy that was run.
    pub fn cycles_of(&self, kind: Kind, costs: &Costs) -> f64 {
        self.average(&self.then, kind, costs)
    }

    /// The same, where any page may leave.
    pub fn random(&self, policy: Policy, costs: &Costs) -> f64 {
        self.average(&self.random, policy.kind(INITIAL), costs)
    }

    /// The same with pages of today.
    pub fn today(&self, kind: Kind, costs: &Costs) -> f64 {
        self.average(&self.today, kind, costs)
    }

    fn average(&self, tallies: &[(Kind, Tally)], kind: Kind, costs: &Costs) -> f64 {
        let (_, tally) = tallies
            .iter()
            .find(|(known, _)| *known == kind)
            .expect("every program runs before the same policies");
        let others = self.references.saturating_sub(tally.references());
        let references = self.references.max(tally.references()).max(1);
        (costs.cycles(tally) + others as f64 * costs.local_word) / references as f64
    }

    /// The counters that were tried.
    pub fn initials(&self) -> Vec<u32> {
        let initial = |(kind, _): &(Kind, Tally)| match kind {
            Kind::Counters { initial } => Some(*initial),
            _ => None,
        };
        self.then.iter().filter_map(initial).collect()
    }
}

fn kinds(quick: bool) -> Vec<Kind> {
    let initials = if quick { &INITIALS_QUICK[..] } else { &INITIALS };
    let counters = initials.iter().map(|&initial| Kind::Counters { initial });
    [Kind::Disk, Kind::RamDisk, Kind::RemoteMain]
        .into_iter()
        .chain(counters)
        .collect()
}

fn with_kinds(kinds: &[Kind], tallies: Vec<Tally>) -> Vec<(Kind, Tally)> {
    assert_eq!(kinds.len(), tallies.len());
    kinds.iter().copied().zip(tallies).collect()
}

/// Runs a program before all policies. A reason, where it cannot be run here.
pub fn run(site: &Site, workload: Workload, quick: bool) -> Result<Result<Ran, String>, BenchError> {
    let kinds = kinds(quick);
    match workload.built_in() {
        Some(program) => Ok(Ok(built_in(workload, program, &kinds))),
        None if quick => Ok(Err("VERILOG: not in a quick run".to_owned())),
        None => switch(site, &kinds),
    }
}

fn built_in(workload: Workload, program: Program, kinds: &[Kind]) -> Ran {
    let with = |page_bytes: u64, local_bytes: u64, replacement| {
        let pages = |bytes: u64| (bytes / page_bytes) as u32;
        let config = |kind: &Kind| Config {
            local_pages: pages(local_bytes),
            remote_pages: pages(REMOTE_BYTES),
            replacement,
            ..config(*kind)
        };
        let configs: Vec<Config> = kinds.iter().map(config).collect();
        let mut study = Study::new(page_bytes, &configs);
        program.reference(&mut study);
        let pages = study.pages();
        (with_kinds(kinds, study.tallies().0), pages)
    };
    let (then, pages) = with(PAGE_BYTES, LOCAL_BYTES, Replacement::Lru);
    Ran {
        workload,
        references: program.references(),
        megabytes: f64::from(pages) * PAGE_BYTES as f64 / 1e6,
        then,
        today: with(PAGE_TODAY, LOCAL_TODAY, Replacement::Lru).0,
        random: with(PAGE_BYTES, LOCAL_BYTES, Replacement::Random).0,
    }
}

fn switch(site: &Site, kinds: &[Kind]) -> Result<Result<Ran, String>, BenchError> {
    let folder = site.folder();
    let (source, compiled) = (folder.join("switch.v"), folder.join("switch.vvp"));
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
            return Err(BenchError::Asked(format!("iverilog refuses the switch: {said}")));
        }
        Ok(_) => removed.context("remove the switch")?,
    }
    let run = |page_bytes, local_bytes, replacement| {
        let settings = Settings {
            page_bytes,
            locals: vec![local_bytes],
            remote_bytes: REMOTE_BYTES,
            replacement,
            first_touch: FirstTouch::Disk,
            keep_copies: false,
            seed: 1,
            policies: kinds.to_vec(),
        };
        simulate(&compiled, &settings, &folder.join("outcome"))
    };
    let all = run(PAGE_BYTES, LOCAL_BYTES, Replacement::Lru).and_then(|then| {
        let today = run(PAGE_TODAY, LOCAL_TODAY, Replacement::Lru)?;
        Ok((then, today, run(PAGE_BYTES, LOCAL_BYTES, Replacement::Random)?))
    });
    std::fs::remove_file(&compiled).context("remove the compiled switch")?;
    Ok(all.map(|(then, today, random)| Ran {
        workload: Workload::Verilog,
        references: then.references(),
        megabytes: then.pages as f64 * PAGE_BYTES as f64 / 1e6,
        then: with_kinds(kinds, then.tallies),
        today: with_kinds(kinds, today.tallies),
        random: with_kinds(kinds, random.tallies),
    }))
}

fn simulate(compiled: &Path, settings: &Settings, outcome: &Path) -> Result<Outcome, String> {
    let simulator = Path::new("vvp");
    let told = process::command(simulator, settings, outcome).and_then(|mut command| {
        command.arg(compiled).arg(format!("+cycles={SWITCH_CYCLES}"));
        process::run(command.stdout(Stdio::null()), simulator, outcome)
    });
    // Where nothing was told there may be none.
    let _ = std::fs::remove_file(outcome);
    told.map(|(_, outcome)| outcome)
        .map_err(|error| format!("VERILOG: {error}"))
}
