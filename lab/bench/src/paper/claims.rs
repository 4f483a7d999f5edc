//! Claims of the paper, results of the original library, and bounds of netram, each judged by the
//! measurements. Claims about figures that were not measured are left out. A claim that does not hold is
//! shown like one that does.

use serde::Serialize;

use super::Tr190Figure;
use super::facts::Tr190Facts;
use super::lazy::NoFlushRow;
use super::originals::originals;
use super::system::{MemberLink, Tr190Disk, Tr190Series, Tr190System};
use crate::bound::RatioBound;
use crate::tpca::AccessPattern;

/// A statement with a number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tr190Claim {
    /// A stable short name.
    pub id: String,
    /// Source of the claim.
    pub by: ClaimSource,
    /// The statement.
    pub what: String,
    /// The value of the paper or the original, in words.
    pub theirs: String,
    /// The measured value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The bound, if it is one that a machine can meet or miss.
    pub hold: Option<RatioBound>,
    /// Whether the bound is met.
    pub met: Option<bool>,
}

/// Source of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimSource {
    /// A bound of netram's own.
    Netram,
    /// A statement of TR-190.
    Paper,
    /// A result of the original RVM, rebuilt for today's machines.
    Original,
}

/// Bytes of the transaction that "small" stands for.
const SMALL_BYTES: u64 = 128;
/// Minimum share of a throughput that counts as flat.
const FLAT: f64 = 0.9;
const TIMES: &str = "x";

/// Every claim that the measured figures allow to judge.
pub fn judge(facts: &Tr190Facts, figures: &[Tr190Figure], no_flush: &[NoFlushRow]) -> Vec<Tr190Claim> {
    let found = FigureLookup { figures };
    let mut claims = aims(&found, no_flush);
    claims.extend(papers(&found));
    claims.extend(originals(facts, &found, no_flush));
    claims
}

/// Throughputs by figure, series and x value.
pub(super) struct FigureLookup<'f> {
    figures: &'f [Tr190Figure],
}

impl FigureLookup<'_> {
    pub(super) fn figure(&self, number: u8) -> Option<&Tr190Figure> {
        self.figures.iter().find(|figure| figure.number == number)
    }

    pub(super) fn tps(&self, number: u8, system: Tr190System, x: u64) -> Option<f64> {
        Some(self.figure(number)?.at(Tr190Series::System(system), x)?.tps)
    }

    /// Throughput of one system over another's.
    fn over(&self, number: u8, above: Tr190System, below: Tr190System, x: u64) -> Option<f64> {
        Some(self.tps(number, above, x)? / self.tps(number, below, x)?)
    }

    /// Throughput at the last x value over the first, of those at or above `from`.
    fn retained_throughput(&self, number: u8, system: Tr190System, from: u64) -> Option<f64> {
        let places = self.figure(number)?.x_values();
        let mut places = places.into_iter().filter(|place| *place >= from);
        let first = places.next()?;
        Some(self.tps(number, system, places.next_back()?)? / self.tps(number, system, first)?)
    }

    /// The highest throughput over the lowest, at the x values at or above `from`.
    fn throughput_spread(&self, number: u8, system: Tr190System, from: u64) -> Option<f64> {
        let places = self.figure(number)?.x_values();
        let places = places.into_iter().filter(|place| *place >= from);
        let all: Vec<f64> = places.filter_map(|x| self.tps(number, system, x)).collect();
        Some(all.iter().copied().reduce(f64::max)? / all.iter().copied().reduce(f64::min)?)
    }
}

const TCP: Tr190System = Tr190System {
    link: MemberLink::Tcp,
    disk: Tr190Disk::Local,
};

pub(super) fn claim(
    id: impl Into<String>,
    by: ClaimSource,
    what: impl Into<String>,
    theirs: impl Into<String>,
    value: Option<f64>,
    hold: Option<RatioBound>,
) -> Option<Tr190Claim> {
    let value = value?;
    Some(Tr190Claim {
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

fn aims(found: &FigureLookup<'_>, no_flush: &[NoFlushRow]) -> Vec<Tr190Claim> {
    let mut claims = Vec::new();
    for (link, name) in [
        (MemberLink::Unix, "a Unix socket"),
        (MemberLink::Tcp, "TCP"),
        (MemberLink::Namespaces, "TCP between namespaces"),
    ] {
        for (disk, least, on) in [
            (Tr190Disk::Modelled, 100.0, "the MODELLED disk (8 ms a sync)"),
            (Tr190Disk::Local, 5.0, "the local disk"),
        ] {
            let system = TCP.over(link).on(disk);
            claims.extend(claim(
                format!("small-{}", Tr190Series::System(system).id()),
                ClaimSource::Netram,
                format!("128-byte transactions over {name}, beside commits that wait for {on}"),
                "",
                found.over(1, system, Tr190System::RVM.on(disk), SMALL_BYTES),
                Some(RatioBound::AtLeast(least)),
            ));
        }
    }
    for (number, pattern) in (9..).zip(AccessPattern::ALL) {
        claims.extend(tpca_aims(found, number, pattern));
    }
    for row in no_flush {
        claims.push(Tr190Claim {
            unit: "us",
            ..claim(
                format!(
                    "no-flush-{}{}{}",
                    row.order.name(),
                    if row.member { "-member" } else { "" },
                    if row.spool_bytes > 0 { "-spool" } else { "" }
                ),
                ClaimSource::Netram,
                format!(
                    "a 128-byte transaction that does not wait, {}, {}, {}",
                    row.order.name(),
                    if row.member { "one member" } else { "no member" },
                    if row.spool_bytes > 0 { "spool" } else { "no spool" }
                ),
                "",
                Some(row.transaction_ns / 1e3),
                Some(RatioBound::AtMost(1.0)),
            )
            .expect("a value is given")
        });
    }
    claims
}

fn tpca_aims(found: &FigureLookup<'_>, number: u8, pattern: AccessPattern) -> Vec<Tr190Claim> {
    let (name, mut claims) = (pattern.name(), Vec::new());
    for (disk, on) in [
        (Tr190Disk::Local, "the local disk"),
        (Tr190Disk::Modelled, "the MODELLED disk (8 ms a sync)"),
    ] {
        let least = found.figure(number).and_then(|figure| {
            let ratios = figure
                .x_values()
                .into_iter()
                .map(|x| found.over(number, TCP.on(disk), Tr190System::RVM.on(disk), x));
            ratios.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
        });
        claims.extend(claim(
            format!(
                "tpca-{name}{}",
                if disk == Tr190Disk::Modelled {
                    "-modelled"
                } else {
                    ""
                }
            ),
            ClaimSource::Netram,
            format!("TPC-A, {name}: TCP beside {on}, the least over all numbers of accounts"),
            match pattern {
                AccessPattern::Sequential => "the paper's table: 4.4 to 8.0",
                _ => "the paper: 2.6 to 6",
            },
            least,
            Some(RatioBound::AtLeast(5.0)),
        ));
    }
    claims.extend(claim(
        format!("tpca-{name}-flat"),
        ClaimSource::Netram,
        format!("TPC-A, {name}, TCP: throughput with 1,024 K accounts over that with 32 K"),
        match pattern {
            AccessPattern::Sequential => "the paper: 0.95 (FDDI); its RVM 0.70",
            AccessPattern::Random => "the paper: 0.29 (FDDI); its RVM 0.50",
            AccessPattern::Localised => "the paper: 0.39 (FDDI); its RVM 0.66",
        },
        found.retained_throughput(number, TCP, 32),
        Some(RatioBound::AtLeast(FLAT)),
    ));
    claims
}

/// The shapes of the paper's curves, looked for in the measured ones. Where the machine decides more than
/// netram there is no bound.
fn papers(found: &FigureLookup<'_>) -> Vec<Tr190Claim> {
    let modelled = Tr190System::RVM.on(Tr190Disk::Modelled);
    let rows = [
        claim(
            "paper-order-of-magnitude",
            ClaimSource::Paper,
            "small transactions over an ordinary network, beside the MODELLED disk",
            "ten times (Ethernet, FDDI), almost a hundred (Memory Channel)",
            found.over(1, TCP.on(Tr190Disk::Modelled), modelled, 32),
            Some(RatioBound::AtLeast(10.0)),
        ),
        claim(
            "paper-disk-flat-by-block",
            ClaimSource::Paper,
            "RVM on the MODELLED disk: the largest block's throughput over the smallest's",
            "practically the same from 0 to 10 KB",
            found.retained_throughput(1, modelled, 0),
            Some(RatioBound::AtLeast(0.8)),
        ),
        claim(
            "paper-local-disk-flat-by-block",
            ClaimSource::Paper,
            "RVM on the local disk: the largest block's throughput over the smallest's",
            "practically the same from 0 to 10 KB",
            found.retained_throughput(1, Tr190System::RVM, 0),
            Some(RatioBound::AtLeast(0.8)),
        ),
        claim(
            "random-over-sequential",
            ClaimSource::Paper,
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
            ClaimSource::Paper,
            "TCP, 32 bytes: each of four pairs over one pair alone (they share this machine's cores)",
            "1 (FDDI), 0.3 (Ethernet)",
            found.retained_throughput(5, TCP, 1),
            None,
        ),
        claim(
            "clients",
            ClaimSource::Paper,
            "TCP, 32 bytes: total of four clients of one server over one client's (they share this machine's cores)",
            "712 to 1,076 a second in all (FDDI)",
            found.retained_throughput(7, TCP, 1),
            None,
        ),
    ];
    let mut claims: Vec<Tr190Claim> = rows.into_iter().flatten().collect();
    claims.extend(constant_by_log_size(found));
    claims
}

/// Figures 2 and 3: "the performance in all systems gets better and almost constant for logs larger than 32
/// Kbytes". So every measured system is judged, on either disk, over all logs from 32 KB on.
fn constant_by_log_size(found: &FigureLookup<'_>) -> Vec<Tr190Claim> {
    let mut claims = Vec::new();
    for (number, bytes) in [(2, 128), (3, 512)] {
        let systems = found.figure(number).map(Tr190Figure::series).unwrap_or_default();
        for series in systems {
            let Tr190Series::System(system) = series else {
                continue;
            };
            claims.extend(claim(
                format!("paper-log-size-{bytes}-{}", series.id()),
                ClaimSource::Paper,
                format!(
                    "{}, blocks of {bytes} bytes: the highest throughput over the lowest, logs of 32 KB and more",
                    series.label()
                ),
                "almost constant above 32 KB",
                found.throughput_spread(number, system, 32),
                Some(RatioBound::AtMost(1.25)),
            ));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::super::experiment::BlockOrder;
    use super::super::system::FloorKind;
    use super::super::tests::synthetic_figure;
    use super::*;

    fn of<'c>(claims: &'c [Tr190Claim], id: &str) -> &'c Tr190Claim {
        claims
            .iter()
            .find(|claim| claim.id == id)
            .unwrap_or_else(|| panic!("{id} is judged"))
    }

    #[test]
    fn a_claim_is_met_or_not_by_the_numbers_alone() {
        let (rvm, tcp) = (Tr190System::RVM, TCP);
        let facts = Tr190Facts::tr190().unwrap();
        let figure = |disk: f64, slow: f64| {
            synthetic_figure(
                1,
                &[
                    (Tr190Series::System(rvm), &[(128, disk)]),
                    (Tr190Series::System(rvm.on(Tr190Disk::Modelled)), &[(128, slow)]),
                    (Tr190Series::System(tcp), &[(128, 50_000.0)]),
                    (
                        Tr190Series::System(tcp.on(Tr190Disk::Modelled)),
                        &[(128, 50_000.0)],
                    ),
                    (Tr190Series::Floor(FloorKind::Sync), &[(128, 8_000.0)]),
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
    fn a_log_size_that_matters_on_one_disk_alone_is_found_there() {
        let modelled = TCP.on(Tr190Disk::Modelled);
        let figure = synthetic_figure(
            2,
            &[
                (
                    Tr190Series::System(TCP),
                    &[(16, 10.0), (32, 100.0), (64, 120.0), (8192, 110.0)],
                ),
                (
                    Tr190Series::System(modelled),
                    &[(16, 1.0), (32, 2.0), (64, 5.0), (8192, 60.0)],
                ),
            ],
        );
        let claims = judge(&Tr190Facts::tr190().unwrap(), &[figure], &[]);
        let local = of(&claims, "paper-log-size-128-rrvm-tcp");
        assert!(
            (local.value - 1.2).abs() < 1e-9,
            "smaller logs are not meant: {local:?}"
        );
        assert_eq!(local.met, Some(true));
        let slow = of(&claims, "paper-log-size-128-rrvm-tcp-modelled");
        assert!((slow.value - 30.0).abs() < 1e-9, "{slow:?}");
        assert_eq!(slow.met, Some(false));
        assert_eq!(claims.len(), 2, "{claims:?}");
    }

    #[test]
    fn unmeasured_claims_are_not_judged() {
        let facts = Tr190Facts::tr190().unwrap();
        assert_eq!(judge(&facts, &[], &[]), []);
        let tpca = synthetic_figure(
            10,
            &[
                (
                    Tr190Series::System(Tr190System::RVM),
                    &[(32, 1000.0), (1024, 900.0)],
                ),
                (Tr190Series::System(TCP), &[(32, 9000.0), (1024, 4400.0)]),
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
        let row = |order, member, spool_bytes| NoFlushRow {
            order,
            member,
            spool_bytes,
            transaction_ns: 700.0,
            first_pass_ns: 900.0,
            flush_ms: 1.0,
            transactions: 1,
        };
        let mut rows = Vec::new();
        for order in [BlockOrder::Sequential, BlockOrder::Random] {
            for member in [false, true] {
                rows.extend([0, 1].map(|spool| row(order, member, spool)));
            }
        }
        let claims = judge(&Tr190Facts::tr190().unwrap(), &[], &rows);
        let names: std::collections::BTreeSet<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
        assert_eq!((names.len(), claims.len()), (12, 12));
        assert!(
            claims
                .iter()
                .filter(|claim| claim.by == ClaimSource::Netram)
                .all(|claim| claim.met == Some(true))
        );
    }
}
