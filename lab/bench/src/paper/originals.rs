//! Results of the original library, rebuilt and run on a machine of this kind, compared with the measured
//! ones.

use super::Tr190Axis;
use super::claims::{ClaimSource, FigureLookup, Tr190Claim, claim};
use super::experiment::BlockOrder;
use super::facts::{OriginalResults, Tr190Facts};
use super::lazy::NoFlushRow;
use super::system::{FloorKind, Tr190Series, Tr190System};
use crate::bound::RatioBound;

/// Commits that wait for the local disk, and no-flush commits, over the original's.
pub(super) fn originals(
    facts: &Tr190Facts,
    found: &FigureLookup<'_>,
    no_flush: &[NoFlushRow],
) -> Vec<Tr190Claim> {
    let mut claims = Vec::new();
    let original = &facts.original;
    for (number, random) in [(1, false), (4, true)] {
        let Some(figure) = found
            .figure(number)
            .filter(|figure| figure.axis == Tr190Axis::BlockBytes)
        else {
            continue;
        };
        let order = if random {
            BlockOrder::Random
        } else {
            BlockOrder::Sequential
        }
        .name();
        let mut ratios = Vec::new();
        for bytes in figure.x_values() {
            let floor = figure
                .at(Tr190Series::Floor(FloorKind::Sync), bytes)
                .map(|point| point.tps);
            let ours = found
                .tps(number, Tr190System::RVM, bytes)
                .zip(floor)
                .map(|(tps, floor)| tps / floor);
            if let Some(theirs) = original.over_sync(bytes, random) {
                ratios.extend(ours.map(|ours| (ours, theirs)));
                claims.extend(claim(
                    format!("original-{order}-{bytes}"),
                    ClaimSource::Original,
                    format!("commits of {bytes} bytes to the local disk, {order}, over bare fdatasync"),
                    format!("{theirs}"),
                    ours,
                    None,
                ));
            }
            if let Some(theirs) = original.worst_ms(bytes, random) {
                let worst = figure
                    .at(Tr190Series::System(Tr190System::RVM), bytes)
                    .map(|point| point.max_us / 1e3);
                let row = claim(
                    format!("original-worst-{order}-{bytes}"),
                    ClaimSource::Original,
                    format!("the longest commit of {bytes} bytes to the local disk, {order}"),
                    format!("{theirs} ms"),
                    worst,
                    Some(RatioBound::AtMost(theirs)),
                );
                claims.extend(row.map(|row| Tr190Claim { unit: "ms", ..row }));
            }
        }
        claims.extend(over_all_sizes(order, &ratios));
    }
    claims.extend(lazy(original, no_flush));
    claims
}

fn lazy(original: &OriginalResults, no_flush: &[NoFlushRow]) -> Vec<Tr190Claim> {
    let mut claims = Vec::new();
    for row in no_flush.iter().filter(|row| !row.member) {
        let at = usize::from(row.spool_bytes > 0);
        let theirs = match row.order {
            BlockOrder::Sequential => original.no_flush_sequential_per_second[at],
            BlockOrder::Random => original.no_flush_random_per_second[at],
        };
        let name = if at == 1 { "-spool" } else { "" };
        let how = if at == 1 { "merged" } else { "not merged" };
        let row = claim(
            format!("original-no-flush-{}{name}", row.order.name()),
            ClaimSource::Original,
            format!(
                "128-byte transactions that do not wait, {}, {how}",
                row.order.name()
            ),
            format!("{theirs} a second"),
            Some(1e9 / row.transaction_ns),
            Some(RatioBound::AtLeast(theirs)),
        );
        claims.extend(row.map(|row| Tr190Claim {
            unit: "a second",
            ..row
        }));
    }
    claims
}

/// The mean over the block sizes, since one size's ratio varies with the disk by a fifth. Bare `fdatasync` is
/// the limit, so an original's mean above it is such a variation too.
fn over_all_sizes(order: &str, ratios: &[(f64, f64)]) -> Option<Tr190Claim> {
    let (mut ours, mut theirs) = (1.0_f64, 1.0_f64);
    for (our, their) in ratios {
        ours *= our;
        theirs *= their;
    }
    let root = 1.0 / ratios.len() as f64;
    let theirs = theirs.powf(root);
    let measured = (!ratios.is_empty()).then(|| ours.powf(root));
    claim(
        format!("original-{order}"),
        ClaimSource::Original,
        format!("commits to the local disk, {order}, over bare fdatasync: geometric mean of the sizes"),
        format!("{theirs:.2}"),
        measured,
        Some(RatioBound::AtLeast(theirs.min(1.0))),
    )
}
