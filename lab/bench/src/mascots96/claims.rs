//! Statements of the paper's text, judged by the results. A statement that does not hold here is printed like
//! one that does.

use netram_pagesim::MachineCosts;
use serde::Serialize;

use super::MascotsPolicy::{self, Counters, Disk, RamDisk, RemoteMain, SoftwareCounters};
use super::programs::{MascotsWorkload, WorkloadResult};

const COSTS: MachineCosts = MachineCosts::MASCOTS96;

/// A statement.
#[derive(Clone, Debug, Serialize)]
pub struct MascotsClaim {
    /// Number of the figure.
    pub figure: u8,
    /// The statement.
    pub what: String,
    /// The paper's number, where it gives one.
    pub paper: Option<f64>,
    /// The value found here.
    pub ours: f64,
    /// Whether it holds here.
    pub holds: bool,
}

struct ClaimJudge<'r> {
    results: &'r [WorkloadResult],
    claims: Vec<MascotsClaim>,
}

impl ClaimJudge<'_> {
    fn of(&self, workload: MascotsWorkload) -> Option<&WorkloadResult> {
        self.results.iter().find(|one| one.workload == workload)
    }

    /// Cost of a policy over that of another.
    fn times(&self, workload: MascotsWorkload, policy: MascotsPolicy, other: MascotsPolicy) -> Option<f64> {
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
        // There is no claim about programs that were not run.
        if let Some(ours) = ours {
            self.claims.push(MascotsClaim {
                figure,
                what,
                paper,
                ours,
                holds: holds(ours),
            });
        }
    }

    fn worse(&mut self, figure: u8, workload: MascotsWorkload, policy: MascotsPolicy, other: MascotsPolicy) {
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
pub fn judge(ran: &[WorkloadResult]) -> Vec<MascotsClaim> {
    let mut judge = ClaimJudge {
        results: ran,
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

fn first(judge: &mut ClaimJudge<'_>) {
    let trans = |judge: &ClaimJudge<'_>, policy| {
        judge
            .of(MascotsWorkload::Trans)
            .map(|one| one.cycles(policy, &COSTS))
    };
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
    let times = judge.times(MascotsWorkload::Trans, Disk, Counters);
    judge.add(
        1,
        "TRANS: DISK over COUNTERS".to_owned(),
        Some(371.0),
        times,
        near(371.0, 0.05),
    );
    let mvec = judge.times(MascotsWorkload::Mvec, Counters, Disk);
    judge.add(
        1,
        "MVEC: COUNTERS over DISK, about".to_owned(),
        Some(1.1),
        mvec,
        near(1.1, 0.05),
    );
    for workload in [
        MascotsWorkload::Trans,
        MascotsWorkload::Gauss,
        MascotsWorkload::Sort,
    ] {
        for other in [RamDisk, RemoteMain, Counters] {
            judge.worse(1, workload, Disk, other);
        }
    }
    judge.worse(1, MascotsWorkload::Trans, RamDisk, RemoteMain);
    for workload in [
        MascotsWorkload::Mvec,
        MascotsWorkload::Gauss,
        MascotsWorkload::Sort,
        MascotsWorkload::Verilog,
    ] {
        judge.worse(1, workload, RemoteMain, RamDisk);
    }
    first_compared(judge);
}

/// Statements about figure 1 that compare all policies, or random replacement.
fn first_compared(judge: &mut ClaimJudge<'_>) {
    for workload in MascotsWorkload::ALL {
        let best = judge.of(workload).map(|one| {
            let all = MascotsPolicy::HARDWARE.map(|policy| one.cycles(policy, &COSTS));
            one.cycles(Counters, &COSTS) / all.into_iter().fold(f64::INFINITY, f64::min)
        });
        let what = format!(
            "{}: COUNTERS is the best or close to it (15 %): times the best",
            workload.name()
        );
        judge.add(1, what, None, best, |times| times <= 1.15);
    }
    caption(judge);
    for workload in [
        MascotsWorkload::Trans,
        MascotsWorkload::Gauss,
        MascotsWorkload::Sort,
    ] {
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

/// Figure 1's caption: "In almost all cases COUNTERS has the best performance, followed by RAM_DISK." Almost
/// all is taken as all but one.
fn caption(judge: &mut ClaimJudge<'_>) {
    let count = judge.results.len();
    let ranked = |policy: MascotsPolicy, rank: usize| {
        let better = |one: &&WorkloadResult| {
            let own = one.cycles(policy, &COSTS);
            let all = MascotsPolicy::HARDWARE.iter();
            all.filter(|other| one.cycles(**other, &COSTS) < own).count() == rank
        };
        (count > 1).then(|| judge.results.iter().filter(better).count() as f64)
    };
    let (best, second) = (ranked(Counters, 0), ranked(RamDisk, 1));
    for (what, programs) in [
        ("COUNTERS has the best performance", best),
        ("RAM_DISK is the second", second),
    ] {
        let what = format!("in almost all cases {what}: programs of {count}");
        judge.add(1, what, None, programs, |programs| programs >= count as f64 - 1.0);
    }
}

fn second(judge: &mut ClaimJudge<'_>) {
    let at = |judge: &ClaimJudge<'_>, rate: f64, policy| {
        let costs = COSTS.with_network_rate(rate * 1e6);
        let one = judge.of(MascotsWorkload::Gauss)?;
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

fn third(judge: &mut ClaimJudge<'_>) {
    for workload in MascotsWorkload::ALL {
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
    let ends = |judge: &ClaimJudge<'_>, workload| {
        let one = judge.of(workload)?;
        let initials = one.initials();
        let cost = |initial: &u32| one.cycles_of(Counters.kind(*initial), &COSTS);
        Some(cost(initials.last()?) / cost(initials.first()?))
    };
    let (trans, sort) = (
        ends(judge, MascotsWorkload::Trans),
        ends(judge, MascotsWorkload::Sort),
    );
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
    for workload in [MascotsWorkload::Mvec, MascotsWorkload::Gauss] {
        let spread = judge.of(workload).map(|one| {
            let initials = one.initials();
            let costs = initials
                .iter()
                .map(|initial| one.cycles_of(Counters.kind(*initial), &COSTS));
            let costs: Vec<f64> = costs.collect();
            let best = costs.iter().copied().fold(f64::INFINITY, f64::min);
            costs.into_iter().fold(0.0, f64::max) / best
        });
        let what = format!(
            "{}: the counter makes little difference (10 %): the worst over the best",
            workload.name()
        );
        judge.add(3, what, None, spread, |times| times <= 1.1);
    }
}

fn fourth(judge: &mut ClaimJudge<'_>) {
    for workload in MascotsWorkload::ALL {
        let times = judge.times(workload, SoftwareCounters, Counters);
        let what = format!(
            "{}: SOFTWARE_COUNTERS only slightly worse (25 %) than COUNTERS: times",
            workload.name()
        );
        judge.add(4, what, None, times, |times| times <= 1.25);
    }
    judge.worse(4, MascotsWorkload::Trans, RamDisk, SoftwareCounters);
    for workload in MascotsWorkload::ALL {
        if workload != MascotsWorkload::Trans {
            let times = judge.times(workload, SoftwareCounters, RamDisk);
            let what = format!(
                "{}: SOFTWARE_COUNTERS comparable to RAM_DISK (25 %): times",
                workload.name()
            );
            judge.add(4, what, None, times, |times| times <= 1.25);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::programs;
    use super::*;
    use crate::testbed::Testbed;

    /// Counted events do not depend on the machine, so neither do these verdicts.
    #[test]
    fn captions_are_judged_like_the_text_and_say_what_does_not_hold() {
        let site = Testbed::new("unused".into(), &std::env::temp_dir()).unwrap();
        let ran = [MascotsWorkload::Mvec, MascotsWorkload::Gauss];
        let ran = ran.map(|workload| programs::run(&site, workload, true).unwrap().unwrap());
        let claims = judge(&ran);
        let of = |start: &str| {
            let found = claims.iter().find(|claim| claim.what.starts_with(start));
            found.unwrap_or_else(|| panic!("{start} is judged: {claims:?}"))
        };
        let best = of("in almost all cases COUNTERS");
        assert_eq!((best.figure, best.ours, best.holds), (1, 0.0, false));
        assert!(of("MVEC: the counter makes little difference").holds);
        let gauss = of("GAUSS: the counter makes little difference");
        assert!(gauss.ours > 1.4 && !gauss.holds, "{gauss:?}");
        assert!(of("MVEC: SOFTWARE_COUNTERS comparable").holds);
        assert!(!of("GAUSS: SOFTWARE_COUNTERS comparable").holds);
        assert!(!claims.iter().any(|claim| claim.what.starts_with("SORT")));
    }
}
