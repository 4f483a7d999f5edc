//! Bounds of shared memory.

use std::time::Duration;

use netram_oo7::{DatabaseSize, Oo7Parameters, Operation};
use netram_shared::limit::LEASE_DEFAULT;

use super::{RatioBound, ScoreboardRow};
use crate::commit::CommitEffort;
use crate::error::BenchError;
use crate::shared::failover::{self, NodeDeath};
use crate::shared::testbed::{PeerDelivery, RegionSetup};
use crate::shared::{fanout, local, oo7, visibility};
use crate::testbed::Testbed;
use crate::zeo::ZeoEnvironment;

/// Number of deaths of each kind.
const DEATHS: usize = 5;
/// Longer than the default: a quick run has one death of each kind, on any test machine, and the bound is
/// relative to the lease.
const QUICK_LEASE: Duration = Duration::from_secs(5);
/// Maximum time, beyond its lease, for which a dead node's lock is unavailable.
const RETIRE_TIME_MAX: Duration = Duration::from_millis(10);

pub(super) fn regions(
    site: &Testbed,
    effort: CommitEffort,
    quick: bool,
    tell: &mut dyn FnMut(&str),
    skipped: &mut Vec<String>,
) -> Result<Vec<ScoreboardRow>, BenchError> {
    let plan = RegionSetup::default();
    tell("an update of eight bytes at another node");
    let mut figures = visibility(site, plan, effort, Duration::ZERO)?.to_vec();
    tell("updates with a rest between them");
    figures.extend(visibility(site, plan, effort, visibility::REST)?);
    tell("locks that are kept");
    let ns = local::acquire_again(site, plan, effort)?;
    let what = "acquiring a lock that the node has kept: a transaction with it, less one without";
    figures.push(ScoreboardRow::new(
        "shared-reacquire",
        what.to_owned(),
        "ns",
        ns,
        None,
        RatioBound::AtMost(200.0),
    ));
    let beside = local::commits(site, plan, effort)?;
    let what = "begin, acquire a kept lock, set 8 B, commit, one member; floor: recoverable memory alone, without acquire";
    let (value, floor) = (beside.shared.p50_us, Some(beside.alone.p50_us));
    let commit = ScoreboardRow::new(
        "shared-commit",
        what.to_owned(),
        "us p50",
        value,
        floor,
        RatioBound::AtMost(1.3),
    );
    figures.push(commit.with_ratio(beside.ratio));
    tell("the writer's cost by the number of nodes that follow");
    match followers(site, plan, effort) {
        Ok(figure) => figures.push(figure),
        Err(BenchError::InvalidRequest(why)) => {
            skipped.push(format!("the writer's cost by multicast: {why}"))
        }
        Err(error) => return Err(error),
    }
    tell("OO7 between two nodes");
    figures.extend(traversals(site, plan, quick, skipped)?);
    tell("nodes that die with a lock");
    figures.extend(deaths(site, plan, quick)?);
    Ok(figures)
}

/// Time of an update's delivery beside both floors, with a rest after each unless that is zero.
fn visibility(
    site: &Testbed,
    plan: RegionSetup,
    effort: CommitEffort,
    rest: Duration,
) -> Result<[ScoreboardRow; 2], BenchError> {
    let seen = visibility::measure(site, plan, effort, rest)?;
    let (ids, when) = match rest.is_zero() {
        true => (["shared-visible", "shared-visible-cores"], String::new()),
        false => (
            ["shared-visible-rested", "shared-visible-rested-cores"],
            format!(", {} ms after the one before, floor alike", rest.as_millis()),
        ),
    };
    let what = format!(
        "8 B from begin at one node to another's memory, half of there and back, the commit being {:.1} us of it{when}; floor: 1.5 \
         bare exchanges of {:.1} us",
        seen.commit.p50_us, seen.exchange.p50_us
    );
    let figure = |id, what, floor, ratio| {
        let (value, hold) = (seen.one_way.p50_us, RatioBound::AtMost(1.5));
        ScoreboardRow::new(id, what, "us p50", value, Some(floor), hold).with_ratio(ratio)
    };
    let beside =
        "the same; floor: the same way between three processes that do nothing, and yield, on the same cores";
    Ok([
        figure(ids[0], what, seen.floor_us, seen.ratio),
        figure(ids[1], beside.to_owned(), seen.idle_us, seen.idle_ratio),
    ])
}

fn followers(site: &Testbed, plan: RegionSetup, effort: CommitEffort) -> Result<ScoreboardRow, BenchError> {
    let by = |straight| {
        fanout::measure(
            site,
            RegionSetup {
                peer_delivery: straight,
                ..plan
            },
            effort,
        )
    };
    let (group, links) = (by(PeerDelivery::Multicast)?, by(PeerDelivery::Links)?);
    let costs: Vec<String> = group
        .commits
        .iter()
        .map(|commits| format!("{:.1}", commits.cpu_us))
        .collect();
    let what = format!(
        "growth of the writer's processor time a commit with each node after the first that follows, by multicast (with none \
         to four: {} us); over links: {:.0} %",
        costs.join(", "),
        links.percent_a_follower
    );
    let value = group.percent_a_follower;
    Ok(ScoreboardRow::new(
        "shared-fanout",
        what,
        "%",
        value,
        None,
        RatioBound::AtMost(5.0),
    ))
}

/// OO7's small-3 between two nodes, beside ZODB with ZEO if that is installed.
fn traversals(
    site: &Testbed,
    plan: RegionSetup,
    quick: bool,
    skipped: &mut Vec<String>,
) -> Result<Vec<ScoreboardRow>, BenchError> {
    let spec = oo7::SharedOo7Spec {
        database: Oo7Parameters::of(DatabaseSize::Small, 3),
        operations: vec![Operation::T12a, Operation::T2b],
        rounds: if quick { 3 } else { 21 },
        members: plan.members,
        wait: plan.wait,
    };
    let rows = oo7::measure(site, &spec, &mut |_| ())?;
    let held = [("shared-t12a", 60.0), ("shared-t2b", 700.0)];
    let rows_held = rows.iter().zip(held);
    let mut figures: Vec<ScoreboardRow> = rows_held
        .map(|(row, (id, most))| {
            let what = format!(
                "{} of OO7 until another node has it, less the walk of {:.0} us ({:.0} us of the rest being the commit)",
                row.operation, row.walk_us, row.commit_us
            );
            ScoreboardRow::new(id, what, "us", row.overhead_us, None, RatioBound::AtMost(most))
        })
        .collect();
    match (ZeoEnvironment::find(), rows.first()) {
        (Ok(zeo), Some(own)) => {
            let best = zeo
                .measure(site, if quick { 1 } else { 7 })?
                .stores
                .best(|rows| rows.t12a);
            let what = "t12a until another node has it, less the walk; beside ZODB with ZEO, which is Python"
                .to_owned();
            let (value, floor) = (own.overhead_us, best.overhead_us());
            figures.push(ScoreboardRow::faster(
                "shared-zeo",
                what,
                "us",
                value,
                floor,
                100.0,
            ));
        }
        (Err(reason), _) => skipped.push(format!("t12a beside ZODB with ZEO: {reason}")),
        (Ok(_), None) => (),
    }
    Ok(figures)
}

fn deaths(site: &Testbed, plan: RegionSetup, quick: bool) -> Result<Vec<ScoreboardRow>, BenchError> {
    let (lease, rounds) = if quick {
        (QUICK_LEASE, 1)
    } else {
        (LEASE_DEFAULT, DEATHS)
    };
    let kinds = [
        ("shared-failover-killed", NodeDeath::Killed, "is killed"),
        ("shared-failover-silent", NodeDeath::Silent, "falls silent"),
    ];
    let measured = kinds.map(|(id, death, how)| {
        let missed = failover::measure(site, RegionSetup { lease, ..plan }, death, rounds)?;
        let what = format!(
            "longest of {rounds} waits for a lock whose holder {how}; floor: its lease and {RETIRE_TIME_MAX:?}"
        );
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let floor = Some(ms(lease + RETIRE_TIME_MAX));
        Ok(ScoreboardRow::new(id, what, "ms", ms(missed), floor, RatioBound::AtMost(1.0)))
    });
    measured.into_iter().collect()
}
