//! What the paper's text states, judged on what came out. A statement that does not hold here is printed like one that does.

use netram_pagesim::Costs;
use serde::Serialize;

use super::Policy::{self, Counters, Disk, RamDisk, RemoteMain, SoftwareCounters};
use super::programs::{Ran, Workload};

const COSTS: Costs = Costs::MASCOTS96;

/// A statement.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// Of which figure.
    pub figure: u8,
    /// What is stated.
    pub what: String,
    /// The paper's number, where it gives one.
    pub paper: Option<f64>,
    /// Ours.
    pub ours: f64,
    /// Whether it holds here.
    pub holds: bool,
}

struct Judge<'r> {
    ran: &'r [Ran],
    claims: Vec<Claim>,
}

impl Judge<'_> {
    fn of(&self, workload: Workload) -> Option<&Ran> {
        self.ran.iter().find(|one| one.workload == workload)
    }

    /// How many times more a policy costs than another.
    fn times(&self, workload: Workload, policy: Policy, other: Policy) -> Option<f64> {
        let one = self.of(workload)?;
        Some(one.cycles(policy, &COSTS) / one.cycles(other, &COSTS))
    }

    fn add(
        &mut self,
        figure: u8,
        what: String,
        paper: Option<f64>,
        ours: Option<f64>,
        holds: impl Fn(f64) -> bool,
    ) {
        // Of what was not run nothing is said.
        if let Some(ours) = ours {
            self.claims.push(Claim {
                figure,
                what,
                paper,
                ours,
                holds: holds(ours),
            });
        }
    }

    fn worse(&mut self, figure: u8, workload: Workload, policy: Policy, other: Policy) {
        let what = format!(
            "{}: {} is worse than {}",
            workload.name(),
            policy.label(),
            other.label()
        );
        let times = self.times(workload, policy, other);
        self.add(figure, format!("{what}: times"), None, times, |times| times > 1.0);
    }
}

/// All statements about the programs that were run.
pub fn judge(ran: &[Ran]) -> Vec<Claim> {
    let mut judge = Judge {
        ran,
        claims: Vec::new(),
    };
    first(&mut judge);
    second(&mut judge);
    third(&mut judge);
    fourth(&mut judge);
    judge.claims
}

fn near(paper: f64, part: f64) -> impl Fn(f64) -> bool {
    move |ours| (ours / paper - 1.0).abs() <= part
}

fn first(judge: &mut Judge<'_>) {
    let trans = |judge: &Judge<'_>, policy| judge.of(Workload::Trans).map(|one| one.cycles(policy, &COSTS));
    let (disk, counters) = (trans(judge, Disk), trans(judge, Counters));
    judge.add(
        1,
        "TRANS: cycles under DISK".to_owned(),
        Some(24_349.0),
        disk,
        near(24_349.0, 0.03),
    );
    judge.add(
        1,
        "TRANS: cycles under COUNTERS".to_owned(),
        Some(65.65),
        counters,
        near(65.65, 0.03),
    );
    let times = judge.times(Workload::Trans, Disk, Counters);
    judge.add(
        1,
        "TRANS: DISK over COUNTERS".to_owned(),
        Some(371.0),
        times,
        near(371.0, 0.05),
    );
    let mvec = judge.times(Workload::Mvec, Counters, Disk);
    judge.add(
        1,
        "MVEC: COUNTERS over DISK, about".to_owned(),
        Some(1.1),
        mvec,
        near(1.1, 0.05),
    );
    for workload in [Workload::Trans, Workload::Gauss, Workload::Sort] {
        for other in [RamDisk, RemoteMain, Counters] {
            judge.worse(1, workload, Disk, other);
        }
    }
    judge.worse(1, Workload::Trans, RamDisk, RemoteMain);
    for workload in [Workload::Mvec, Workload::Gauss, Workload::Sort, Workload::Verilog] {
        judge.worse(1, workload, RemoteMain, RamDisk);
    }
    for workload in Workload::ALL {
        let best = judge.of(workload).map(|one| {
            let all = Policy::HARDWARE.map(|policy| one.cycles(policy, &COSTS));
            one.cycles(Counters, &COSTS) / all.into_iter().fold(f64::INFINITY, f64::min)
        });
        let what = format!(
            "{}: COUNTERS is the best or close to it (15 %): times the best",
            workload.name()
        );
        judge.add(1, what, None, best, |times| times <= 1.15);
    }
    for workload in [Workload::Trans, Workload::Gauss, Workload::Sort] {
        let random = judge
            .of(workload)
            .map(|one| one.random(Disk, &COSTS) / one.random(Counters, &COSTS));
        let what = format!(
            "{}: with random replacement as well DISK is worse than COUNTERS: times",
            workload.name()
        );
        judge.add(1, what, None, random, |times| times > 1.0);
    }
}

fn second(judge: &mut Judge<'_>) {
    let at = |judge: &Judge<'_>, rate: f64, policy| {
        let costs = COSTS.with_network_rate(rate * 1e6);
        let one = judge.of(Workload::Gauss)?;
        Some(one.cycles(Disk, &costs) / one.cycles(policy, &costs))
    };
    for policy in [RamDisk, RemoteMain, Counters] {
        let what = format!("GAUSS at 1 MB/s: DISK is better than {}: times", policy.label());
        let times = at(judge, 1.0, policy);
        judge.add(2, what, None, times, |times| times < 1.0);
    }
    for (rate, policies) in [
        (5.0, &[RamDisk, Counters][..]),
        (100.0, &[RamDisk, RemoteMain, Counters]),
    ] {
        for policy in policies {
            let what = format!(
                "GAUSS at {rate} MB/s: DISK is worse than {}: times",
                policy.label()
            );
            let times = at(judge, rate, *policy);
            judge.add(2, what, None, times, |times| times > 1.0);
        }
    }
}

fn third(judge: &mut Judge<'_>) {
    for workload in Workload::ALL {
        let spread = judge.of(workload).map(|one| {
            let cost = |initial: &u32| one.cycles_of(Counters.kind(*initial), &COSTS);
            let initials = one.initials();
            let best = initials.iter().map(cost).fold(f64::INFINITY, f64::min);
            let chosen = initials.iter().filter(|initial| (64..=512).contains(*initial));
            chosen.map(cost).fold(0.0, f64::max) / best
        });
        let what = format!(
            "{}: from 64 to 512 close to the best (20 %): the worst over it",
            workload.name()
        );
        judge.add(3, what, None, spread, |times| times <= 1.2);
    }
    let ends = |judge: &Judge<'_>, workload| {
        let one = judge.of(workload)?;
        let initials = one.initials();
        let cost = |initial: &u32| one.cycles_of(Counters.kind(*initial), &COSTS);
        Some(cost(initials.last()?) / cost(initials.first()?))
    };
    let (trans, sort) = (ends(judge, Workload::Trans), ends(judge, Workload::Sort));
    judge.add(
        3,
        "TRANS improves with the counter: the largest over 1".to_owned(),
        None,
        trans,
        |times| times < 1.0,
    );
    judge.add(
        3,
        "SORT gets worse with the counter: the largest over 1".to_owned(),
        None,
        sort,
        |times| times > 1.0,
    );
}

fn fourth(judge: &mut Judge<'_>) {
    for workload in Workload::ALL {
        let times = judge.times(workload, SoftwareCounters, Counters);
        let what = format!(
            "{}: SOFTWARE_COUNTERS only slightly worse (25 %) than COUNTERS: times",
            workload.name()
        );
        judge.add(4, what, None, times, |times| times <= 1.25);
    }
    judge.worse(4, Workload::Trans, RamDisk, SoftwareCounters);
}
