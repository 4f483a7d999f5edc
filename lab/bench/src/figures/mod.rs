//! The scoreboard: every figure with a bound, measured on this machine beside its floor.
//!
//! `docs/design/testing.md` explains each bound. A figure that misses its bound is printed like one that
//! meets it.

mod busy;
mod crash;
mod far;
mod memory;
mod mount;
mod pages;
mod paper;
mod shared;
mod sqlite;
mod throughput;
mod volume;
mod words;

use netram_transport::WaitPolicy;
use serde::Serialize;

pub use crate::bound::RatioBound;

use crate::commit::{self, CommitEffort, CommitSpec};
use crate::error::BenchError;
use crate::histogram::{LatencySummary, median};
use crate::machine::MachineInfo;
use crate::share;
use crate::testbed::Testbed;

/// Number of rounds with one client and with eight.
const CLIENT_ROUNDS: usize = 3;

/// One row of the scoreboard.
#[derive(Clone, Debug, Serialize)]
pub struct ScoreboardRow {
    /// A stable short name.
    pub id: &'static str,
    /// The measured quantity and its floor, in words.
    pub what: String,
    /// The measured value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The floor, in the same unit, measured in the same run.
    pub floor: Option<f64>,
    /// Value over floor, or floor over value, as the bound demands; without a floor the value itself.
    pub ratio: f64,
    /// Bound of the ratio.
    pub hold: RatioBound,
    /// Whether the bound is met.
    pub met: bool,
}

impl ScoreboardRow {
    fn new(
        id: &'static str,
        what: String,
        unit: &'static str,
        value: f64,
        floor: Option<f64>,
        hold: RatioBound,
    ) -> ScoreboardRow {
        let ratio = match (floor, hold) {
            (None, _) => value,
            (Some(floor), _) => value / floor,
        };
        ScoreboardRow {
            id,
            what,
            value,
            unit,
            floor,
            ratio,
            hold,
            met: hold.met(ratio),
        }
    }

    /// Uses a ratio taken round by round. It is better than one of medians, because a disturbance hits both
    /// sides of it.
    fn with_ratio(self, ratio: f64) -> ScoreboardRow {
        ScoreboardRow {
            ratio,
            met: self.hold.met(ratio),
            ..self
        }
    }

    /// A row for `floor` over `value`.
    fn faster(
        id: &'static str,
        what: String,
        unit: &'static str,
        value: f64,
        floor: f64,
        least: f64,
    ) -> ScoreboardRow {
        let (ratio, hold) = (floor / value, RatioBound::AtLeast(least));
        ScoreboardRow {
            id,
            what,
            value,
            unit,
            floor: Some(floor),
            ratio,
            hold,
            met: hold.met(ratio),
        }
    }
}

/// The scoreboard.
#[derive(Clone, Debug, Serialize)]
pub struct Scoreboard {
    /// The measuring machine.
    pub machine: MachineInfo,
    /// The rows.
    pub figures: Vec<ScoreboardRow>,
    /// Rows that cannot be measured here, each with the reason.
    pub skipped: Vec<String>,
}

/// Parts of the scoreboard that can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreboardPart {
    /// Commits and their floors.
    Commits,
    /// Recoverable memory.
    Memory,
    /// Crashes and recovery.
    Crashes,
    /// Volumes.
    Volumes,
    /// Files on a mount, and SQLite.
    Mounts,
    /// Shared memory.
    Shared,
    /// Far memory.
    Far,
}

impl ScoreboardPart {
    /// All parts.
    pub const ALL: [ScoreboardPart; 7] = [
        ScoreboardPart::Commits,
        ScoreboardPart::Memory,
        ScoreboardPart::Crashes,
        ScoreboardPart::Volumes,
        ScoreboardPart::Mounts,
        ScoreboardPart::Shared,
        ScoreboardPart::Far,
    ];
}

/// Measures the figures of `parts`; `tell` receives the name of each before it is measured.
///
/// # Errors
///
/// Fails if a testbed cannot be set up, or a measurement fails.
pub fn measure(
    site: &Testbed,
    parts: &[ScoreboardPart],
    quick: bool,
    tell: &mut dyn FnMut(&str),
) -> Result<Scoreboard, BenchError> {
    let machine = MachineInfo::probe();
    let effort = if quick {
        CommitEffort::QUICK
    } else {
        CommitEffort::FULL
    };
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for part in parts {
        figures.extend(match part {
            ScoreboardPart::Commits => all_commits(site, effort, quick, tell)?,
            ScoreboardPart::Memory => recoverable_memory(site, quick, tell)?,
            ScoreboardPart::Crashes => crashes(site, quick, tell)?,
            ScoreboardPart::Volumes => volume::volumes(site, quick, tell, &mut skipped)?,
            ScoreboardPart::Mounts => mounts(site, quick, tell, &mut skipped)?,
            ScoreboardPart::Shared => shared::regions(site, effort, quick, tell, &mut skipped)?,
            ScoreboardPart::Far => far_memory(site, tell, &mut skipped)?,
        });
    }
    Ok(Scoreboard {
        machine,
        figures,
        skipped,
    })
}

fn all_commits(
    site: &Testbed,
    effort: CommitEffort,
    quick: bool,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<ScoreboardRow>, BenchError> {
    tell("commits beside a bare exchange and fdatasync");
    let mut figures = commits(site, effort)?;
    tell("commits over a longer wire");
    figures.extend(longer_wires(site, effort, quick)?);
    tell("commits from eight threads");
    figures.push(threads(site, effort)?);
    tell("one lender under one to eight clients");
    figures.extend(clients(site, effort)?);
    tell("commits beside threads that compute");
    figures.push(busy::commits(site)?);
    tell("allocations on the way of a commit");
    figures.push(memory::allocations(site)?);
    Ok(figures)
}

fn recoverable_memory(
    site: &Testbed,
    quick: bool,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<ScoreboardRow>, BenchError> {
    tell("set_range");
    let mut figures = memory::ranges(site)?;
    tell("transactions that do not wait, and TPC-A beside the disk");
    figures.extend(paper::experiments(site, quick)?);
    Ok(figures)
}

fn mounts(
    site: &Testbed,
    quick: bool,
    tell: &mut dyn FnMut(&str),
    skipped: &mut Vec<String>,
) -> Result<Vec<ScoreboardRow>, BenchError> {
    tell("files on a mount beside files on its disk");
    let mut figures = mount::files(site, quick, skipped)?;
    tell("SQLite's commits beside those of recoverable memory");
    figures.extend(sqlite::commits(site, quick)?);
    Ok(figures)
}

fn far_memory(
    site: &Testbed,
    tell: &mut dyn FnMut(&str),
    skipped: &mut Vec<String>,
) -> Result<Vec<ScoreboardRow>, BenchError> {
    tell("the study of paging");
    let mut figures = far::study()?;
    tell("a page of far memory beside the barest pager and the bare link");
    figures.extend(pages::pages(site, skipped)?);
    tell("words of far memory beside its pages");
    figures.extend(words::words(site, skipped)?);
    Ok(figures)
}

fn crashes(
    site: &Testbed,
    quick: bool,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<ScoreboardRow>, BenchError> {
    tell("recovery");
    let mut figures = crash::recovery(site, quick)?;
    tell("loss of a lender during commits");
    figures.extend(crash::loss(site)?);
    Ok(figures)
}

fn commits(site: &Testbed, effort: CommitEffort) -> Result<Vec<ScoreboardRow>, BenchError> {
    let mut figures = Vec::new();
    let one = commit::measure(site, &CommitSpec::default(), effort)?;
    let two = commit::measure(
        site,
        &CommitSpec {
            members: 2,
            ..CommitSpec::default()
        },
        effort,
    )?;
    for (id, row, most) in [("commit-1", &one, 1.3), ("commit-2", &two, 1.8)] {
        let members = row.spec.members;
        let what =
            format!("commit of 128 B, members: {members}, spinning, encrypted; floor: bare TCP exchange");
        let floor = row.exchange.map(|exchange| exchange.p50_us);
        let figure = ScoreboardRow::new(
            id,
            what,
            "us p50",
            row.commit.p50_us,
            floor,
            RatioBound::AtMost(most),
        );
        figures.push(figure.with_ratio(row.ratio.unwrap_or_default()));
    }
    let what = "the same two members; floor: bare exchange with two processes on the same cores".to_owned();
    let floor = two.fan_out.map(|fan_out| fan_out.p50_us);
    let figure = ScoreboardRow::new(
        "commit-2-own-floor",
        what,
        "us p50",
        two.commit.p50_us,
        floor,
        RatioBound::AtMost(1.3),
    );
    figures.push(figure.with_ratio(two.fan_out_ratio.unwrap_or_default()));
    let what = "commit of 128 B, one member; floor: fdatasync on the same disk".to_owned();
    figures.push(ScoreboardRow::faster(
        "commit-sync",
        what,
        "us p50",
        one.commit.p50_us,
        one.sync.p50_us,
        5.0,
    ));
    let slow = commit::measure(
        site,
        &CommitSpec {
            modelled_sync_ms: 1,
            ..CommitSpec::default()
        },
        effort,
    )?;
    let what = "the same on a MODELLED disk, 1 ms added to each sync".to_owned();
    let floor = slow.sync_floor_us;
    figures.push(ScoreboardRow::faster(
        "commit-sync-1ms",
        what,
        "us p50",
        slow.commit.p50_us,
        floor,
        50.0,
    ));
    Ok(figures)
}

fn longer_wires(site: &Testbed, effort: CommitEffort, quick: bool) -> Result<Vec<ScoreboardRow>, BenchError> {
    let added: &[u32] = if quick { &[50] } else { &[25, 50, 100] };
    let measured = added.iter().map(|&added_rtt_us| {
        let row = commit::measure(
            site,
            &CommitSpec {
                added_rtt_us,
                ..CommitSpec::default()
            },
            effort,
        )?;
        let id = match added_rtt_us {
            25 => "commit-1-added-25",
            50 => "commit-1-added-50",
            _ => "commit-1-added-100",
        };
        let what = format!("commit-1 with {added_rtt_us} us ADDED to the round trip, the floor's too");
        let floor = row.exchange.map(|exchange| exchange.p50_us);
        let figure = ScoreboardRow::new(
            id,
            what,
            "us p50",
            row.commit.p50_us,
            floor,
            RatioBound::AtMost(1.3),
        );
        Ok(figure.with_ratio(row.ratio.unwrap_or_default()))
    });
    measured.collect()
}

fn threads(site: &Testbed, effort: CommitEffort) -> Result<ScoreboardRow, BenchError> {
    let spec = CommitSpec {
        wait: WaitPolicy::default(),
        ..CommitSpec::default()
    };
    let (one, eight, ratio) = commit::scaling(site, &spec, 8, effort)?;
    let what = "commits from 8 threads (group commit); floor: from one thread".to_owned();
    let (value, floor, hold) = (eight.per_second, Some(one.per_second), RatioBound::AtLeast(3.0));
    Ok(ScoreboardRow::new("threads-8", what, "commits/s", value, floor, hold).with_ratio(ratio))
}

/// One client and eight in alternating rounds, each with a new lender.
fn clients(site: &Testbed, effort: CommitEffort) -> Result<Vec<ScoreboardRow>, BenchError> {
    let (mut ones, mut eights, mut ratios, mut unfair) = (vec![], vec![], vec![], vec![]);
    for _ in 0..CLIENT_ROUNDS {
        let one = share::measure(site, 1, 128, effort.round)?;
        let eight = share::measure(site, 8, 128, effort.round)?;
        ratios.push(eight.total.per_second / one.total.per_second);
        ones.push(one.total);
        eights.push(eight.total);
        unfair.push(eight.unfairness);
    }
    let (one, eight) = (LatencySummary::median(&ones), LatencySummary::median(&eights));
    let what = "one lender, total commits of 8 clients; floor: of one client".to_owned();
    let total = ScoreboardRow::new(
        "lender-total",
        what,
        "commits/s",
        eight.per_second,
        Some(one.per_second),
        RatioBound::AtLeast(1.0),
    );
    let fair = "one lender, 8 clients: the most commits of a client over the least".to_owned();
    let fairness = ScoreboardRow::new(
        "lender-fair",
        fair,
        "x",
        median(unfair),
        None,
        RatioBound::AtMost(2.0),
    );
    Ok(vec![total.with_ratio(median(ratios)), fairness])
}
