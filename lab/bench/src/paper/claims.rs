//! What the paper claims, what the original library did, and what netram holds itself to, each judged on what was just
//! measured. A claim about a figure that was not measured is left out, and a claim that does not hold is shown like one
//! that does.

use serde::Serialize;

use super::Figure;
use super::facts::Facts;
use super::lazy::NoFlush;
use super::originals::originals;
use super::system::{Disk, Link, Series, System};
use crate::figures::Hold;
use crate::tpca::Pattern;

/// A statement with a number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// A short name that does not change.
    pub id: String,
    /// Whose statement.
    pub by: By,
    /// What is stated, of what.
    pub what: String,
    /// What the paper or the original has there, in words.
    pub theirs: String,
    /// What was measured.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The bound, if it is one that a machine can meet or miss.
    pub hold: Option<Hold>,
    /// Whether it is met.
    pub met: Option<bool>,
}

/// Whose statement a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// netram's own aim.
    Netram,
    /// TR-190's.
    Paper,
    /// What the original RVM did when built anew.
    Original,
}

/// The transaction that "small" stands for.
const SMALL_BYTES: u64 = 128;
/// Of a throughput that stays: what is called flat.
const FLAT: f64 = 0.9;
const TIMES: &str = "x";

/// Every claim that the measured figures allow to judge.
pub fn judge(facts: &Facts, figures: &[Figure], no_flush: &[NoFlush]) -> Vec<Claim> {
    let found = Found { figures };
    let mut claims = aims(&found, no_flush);
    claims.extend(papers(&found));
    claims.extend(originals(facts, &found, no_flush));
    claims
}

/// Throughputs by figure, series and place.
pub(super) struct Found<'f> {
    figures: &'f [Figure],
}

impl Found<'_> {
    pub(super) fn figure(&self, number: u8) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.number == number)
    }

    pub(super) fn tps(&self, number: u8, system: System, x: u64) -> Option<f64> {
        Some(self.figure(number)?.at(Series::System(system), x)?.tps)
    }

    /// Throughput of one system over another's.
    fn over(&self, number: u8, above: System, below: System, x: u64) -> Option<f64> {
        Some(self.tps(number, above, x)? / self.tps(number, below, x)?)
    }

    /// Throughput at the last place over the first, of those at or above `from`.
    fn kept(&self, number: u8, system: System, from: u64) -> Option<f64> {
        let places = self.figure(number)?.places();
        let mut places = places.into_iter().filter(|place| *place >= from);
        let first = places.next()?;
        Some(self.tps(number, system, places.next_back()?)? / self.tps(number, system, first)?)
    }
}

const TCP: System = System {
    link: Link::Tcp,
    disk: Disk::Local,
};

pub(super) fn claim(
    id: impl Into<String>,
    by: By,
    what: impl Into<String>,
    theirs: impl Into<String>,
    value: Option<f64>,
    hold: Option<Hold>,
) -> Option<Claim> {
    let value = value?;
    Some(Claim {
        id: id.into(),
        by,
        what: what.into(),
        theirs: theirs.into(),
        value,
        unit: TIMES,
        hold,
        met: hold.map(|hold| hold.met(value)),
    })
}

fn aims(found: &Found<'_>, no_flush: &[NoFlush]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (link, name) in [
        (Link::Unix, "a Unix socket"),
        (Link::Tcp, "TCP"),
        (Link::Namespaces, "TCP between namespaces"),
    ] {
        for (disk, least, on) in [
            (Disk::Modelled, 100.0, "the MODELLED disk (8 ms a sync)"),
            (Disk::Local, 5.0, "the local disk"),
        ] {
            let system = TCP.over(link).on(disk);
            claims.extend(claim(
                format!("small-{}", Series::System(system).id()),
                By::Netram,
                format!("128-byte transactions over {name}, beside commits that wait for {on}"),
                "",
                found.over(1, system, System::RVM.on(disk), SMALL_BYTES),
                Some(Hold::AtLeast(least)),
            ));
        }
    }
    for (number, pattern) in (9..).zip(Pattern::ALL) {
        claims.extend(tpca_aims(found, number, pattern));
    }
    for row in no_flush {
        claims.push(Claim {
            unit: "us",
            ..claim(
                format!(
                    "no-flush-{}{}{}",
                    row.order.name(),
                    if row.member { "-member" } else { "" },
                    if row.spool_bytes > 0 { "-spool" } else { "" }
                ),
                By::Netram,
                format!(
                    "a 128-byte transaction that does not wait, {}, {}, {}",
                    row.order.name(),
                    if row.member { "one member" } else { "no member" },
                    if row.spool_bytes > 0 { "spool" } else { "no spool" }
                ),
                "",
                Some(row.transaction_ns / 1e3),
                Some(Hold::AtMost(1.0)),
            )
            .expect("a value is given")
        });
    }
    claims
}

fn tpca_aims(found: &Found<'_>, number: u8, pattern: Pattern) -> Vec<Claim> {
    let (name, mut claims) = (pattern.name(), Vec::new());
    for (disk, on) in [
        (Disk::Local, "the local disk"),
        (Disk::Modelled, "the MODELLED disk (8 ms a sync)"),
    ] {
        let least = found.figure(number).and_then(|figure| {
            let ratios = figure
                .places()
                .into_iter()
                .map(|x| found.over(number, TCP.on(disk), System::RVM.on(disk), x));
            ratios.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
        });
        claims.extend(claim(
            format!(
                "tpca-{name}{}",
                if disk == Disk::Modelled { "-modelled" } else { "" }
            ),
            By::Netram,
            format!("TPC-A, {name}: TCP beside {on}, the least over all numbers of accounts"),
            match pattern {
                Pattern::Sequential => "the paper's table: 4.4 to 8.0",
                _ => "the paper: 2.6 to 6",
            },
            least,
            Some(Hold::AtLeast(5.0)),
        ));
    }
    claims.extend(claim(
        format!("tpca-{name}-flat"),
        By::Netram,
        format!("TPC-A, {name}, TCP: throughput with 1,024 K accounts over that with 32 K"),
        match pattern {
            Pattern::Sequential => "the paper: 0.95 (FDDI); its RVM 0.70",
            Pattern::Random => "the paper: 0.29 (FDDI); its RVM 0.50",
            Pattern::Localised => "the paper: 0.39 (FDDI); its RVM 0.66",
        },
        found.kept(number, TCP, 32),
        Some(Hold::AtLeast(FLAT)),
    ));
    claims
}

/// The shapes of the paper's curves, looked for in ours. Where the machine decides more than netram there is no bound.
fn papers(found: &Found<'_>) -> Vec<Claim> {
    let modelled = System::RVM.on(Disk::Modelled);
    let rows = [
        claim(
            "paper-order-of-magnitude",
            By::Paper,
            "small transactions over an ordinary network, beside the MODELLED disk",
            "ten times (Ethernet, FDDI), almost a hundred (Memory Channel)",
            found.over(1, TCP.on(Disk::Modelled), modelled, 32),
            Some(Hold::AtLeast(10.0)),
        ),
        claim(
            "paper-disk-flat-by-block",
            By::Paper,
            "RVM on the MODELLED disk: the largest block's throughput over the smallest's",
            "practically the same from 0 to 10 KB",
            found.kept(1, modelled, 0),
            Some(Hold::AtLeast(0.8)),
        ),
        claim(
            "paper-log-size-128",
            By::Paper,
            "TCP, blocks of 128 bytes: throughput with the largest log over that with 32 KB",
            "almost constant above 32 KB",
            found.kept(2, TCP, 32),
            Some(Hold::AtMost(1.25)),
        ),
        claim(
            "paper-log-size-512",
            By::Paper,
            "TCP, blocks of 512 bytes: throughput with the largest log over that with 32 KB",
            "almost constant above 32 KB",
            found.kept(3, TCP, 32),
            Some(Hold::AtMost(1.25)),
        ),
        claim(
            "random-over-sequential",
            By::Paper,
            "TCP, 32 bytes: random throughput over sequential",
            "0.4 (Ethernet, FDDI), 0.83 (Memory Channel)",
            found
                .tps(4, TCP, 32)
                .zip(found.tps(1, TCP, 32))
                .map(|(random, sequential)| random / sequential),
            None,
        ),
        claim(
            "pairs",
            By::Paper,
            "TCP, 32 bytes: each of four pairs over one pair alone (they share this machine's cores)",
            "1 (FDDI), 0.3 (Ethernet)",
            found.kept(5, TCP, 1),
            None,
        ),
        claim(
            "clients",
            By::Paper,
            "TCP, 32 bytes: total of four clients of one server over one client's (they share this machine's cores)",
            "712 to 1,076 a second in all (FDDI)",
            found.kept(7, TCP, 1),
            None,
        ),
    ];
    rows.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::experiment::Order;
    use super::super::system::Floor;
    use super::super::tests::made_up;
    use super::*;

    fn of<'c>(claims: &'c [Claim], id: &str) -> &'c Claim {
        claims
            .iter()
            .find(|claim| claim.id == id)
            .unwrap_or_else(|| panic!("{id} is judged"))
    }

    #[test]
    fn a_claim_is_met_or_not_by_the_numbers_alone() {
        let (rvm, tcp) = (System::RVM, TCP);
        let facts = Facts::tr190().unwrap();
        let figure = |disk: f64, slow: f64| {
            made_up(
                1,
                &[
                    (Series::System(rvm), &[(128, disk)]),
                    (Series::System(rvm.on(Disk::Modelled)), &[(128, slow)]),
                    (Series::System(tcp), &[(128, 50_000.0)]),
                    (Series::System(tcp.on(Disk::Modelled)), &[(128, 50_000.0)]),
                    (Series::Floor(Floor::Sync), &[(128, 8_000.0)]),
                ],
            )
        };
        let claims = judge(&facts, &[figure(9_000.0, 110.0)], &[]);
        assert_eq!(of(&claims, "small-rrvm-tcp").met, Some(true));
        assert_eq!(of(&claims, "small-rrvm-tcp-modelled").met, Some(true));
        assert_eq!(of(&claims, "original-sequential-128").met, None);
        assert_eq!(of(&claims, "original-sequential").met, Some(true));
        let slower = judge(&facts, &[figure(7_000.0, 110.0)], &[]);
        assert_eq!(of(&slower, "original-sequential").met, Some(false));
        let claims = judge(&facts, &[figure(11_000.0, 600.0)], &[]);
        assert_eq!(of(&claims, "small-rrvm-tcp").met, Some(false));
        assert_eq!(of(&claims, "small-rrvm-tcp-modelled").met, Some(false));
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let facts = Facts::tr190().unwrap();
        assert_eq!(judge(&facts, &[], &[]), []);
        let tpca = made_up(
            10,
            &[
                (Series::System(System::RVM), &[(32, 1000.0), (1024, 900.0)]),
                (Series::System(TCP), &[(32, 9000.0), (1024, 4400.0)]),
            ],
        );
        let claims = judge(&facts, &[tpca], &[]);
        assert_eq!(claims.len(), 2, "{claims:?}");
        assert!((of(&claims, "tpca-random").value - 4400.0 / 900.0).abs() < 1e-9);
        assert_eq!(of(&claims, "tpca-random").met, Some(false));
        assert_eq!(of(&claims, "tpca-random-flat").met, Some(false));
    }

    #[test]
    fn names_of_claims_differ() {
        let row = |order, member, spool_bytes| NoFlush {
            order,
            member,
            spool_bytes,
            transaction_ns: 700.0,
            first_pass_ns: 900.0,
            flush_ms: 1.0,
            transactions: 1,
        };
        let mut rows = Vec::new();
        for order in [Order::Sequential, Order::Random] {
            for member in [false, true] {
                rows.extend([0, 1].map(|spool| row(order, member, spool)));
            }
        }
        let claims = judge(&Facts::tr190().unwrap(), &[], &rows);
        let names: std::collections::BTreeSet<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
        assert_eq!((names.len(), claims.len()), (12, 12));
        assert!(
            claims
                .iter()
                .filter(|claim| claim.by == By::Netram)
                .all(|claim| claim.met == Some(true))
        );
    }
}
