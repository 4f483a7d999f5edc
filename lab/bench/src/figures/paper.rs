//! The bounds from the experiments of TR-190, measured without the rest of them; `netram-lab bench paper`
//! measures all.

use std::time::Duration;

use super::{RatioBound, ScoreboardRow};
use crate::error::BenchError;
use crate::histogram::median;
use crate::paper::cell;
use crate::paper::experiment::{TR190, Tr190Effort};
use crate::paper::lazy;
use crate::paper::system::{MemberLink, Tr190Disk, Tr190System};
use crate::paper::testbed::Tr190Testbed;
use crate::testbed::Testbed;
use crate::tpca::AccessPattern;

/// Accounts of the compared banks, in units of 1,024: the paper's minimum and maximum.
const ACCOUNTS_K: [u64; 2] = [32, 1024];
/// Size of the transaction that is compared with a slow disk's, in bytes.
const SMALL_BYTES: u64 = 128;

pub(super) fn experiments(site: &Testbed, quick: bool) -> Result<Vec<ScoreboardRow>, BenchError> {
    let effort = Tr190Effort {
        rounds: if quick { 1 } else { 3 },
        cap: Duration::from_millis(if quick { 300 } else { 1_000 }),
        quick,
        ..Tr190Effort::FULL
    };
    let mut figures = no_flush(site, effort)?;
    let mut stage = Tr190Testbed::new(site, None);
    figures.push(small(&mut stage, effort)?);
    for (experiment, pattern) in TR190[8..].iter().zip(AccessPattern::ALL) {
        let tps = |stage: &mut Tr190Testbed<'_>, link, accounts_k| {
            let load = experiment.load(accounts_k);
            cell::measure(stage, Tr190System::RVM.over(link), load, effort).map(|cell| cell.tps)
        };
        let (mut disks, mut remotes, mut ratios, mut kept) = (vec![], vec![], vec![], vec![]);
        for _ in 0..effort.rounds {
            let [few, many] = ACCOUNTS_K;
            let disk = tps(&mut stage, MemberLink::Disk, many)?;
            let remote = tps(&mut stage, MemberLink::Tcp, many)?;
            kept.push(remote / tps(&mut stage, MemberLink::Tcp, few)?);
            ratios.push(remote / disk);
            disks.push(disk);
            remotes.push(remote);
        }
        let [id, flat] = match pattern {
            AccessPattern::Sequential => ["tpca-sequential", "tpca-sequential-flat"],
            AccessPattern::Random => ["tpca-random", "tpca-random-flat"],
            AccessPattern::Localised => ["tpca-localised", "tpca-localised-flat"],
        };
        let name = pattern.name();
        let what = format!("TPC-A, {name}, 1,024 K accounts, one member; floor: the local disk");
        let remote = ScoreboardRow::new(
            id,
            what,
            "tps",
            median(remotes),
            Some(median(disks)),
            RatioBound::AtLeast(5.0),
        );
        figures.push(remote.with_ratio(median(ratios)));
        let what = format!("TPC-A, {name}: throughput with 1,024 K accounts over that with 32 K");
        figures.push(ScoreboardRow::new(
            flat,
            what,
            "x",
            median(kept),
            None,
            RatioBound::AtLeast(0.9),
        ));
    }
    Ok(figures)
}

fn no_flush(site: &Testbed, effort: Tr190Effort) -> Result<Vec<ScoreboardRow>, BenchError> {
    let rows = lazy::measure(Tr190Testbed::new(site, None), effort, &mut |_| ())?;
    let figures = rows.iter().filter(|row| !row.member).map(|row| {
        let id = match (row.order.name(), row.spool_bytes) {
            ("sequential", 0) => "no-flush-sequential",
            ("sequential", _) => "no-flush-sequential-spool",
            (_, 0) => "no-flush-random",
            _ => "no-flush-random-spool",
        };
        let spool = if row.spool_bytes > 0 {
            "spooled"
        } else {
            "not spooled"
        };
        let what = format!(
            "a transaction of one range of 128 B that does not wait, {}, {spool}",
            row.order.name()
        );
        let us = row.transaction_ns / 1e3;
        ScoreboardRow::new(id, what, "us", us, None, RatioBound::AtMost(1.0))
    });
    Ok(figures.collect())
}

/// A small transaction beside one that waits for a disk like the paper's.
fn small(stage: &mut Tr190Testbed<'_>, effort: Tr190Effort) -> Result<ScoreboardRow, BenchError> {
    let load = TR190[0].load(SMALL_BYTES);
    let (mut disks, mut remotes, mut ratios) = (vec![], vec![], vec![]);
    for _ in 0..effort.rounds {
        let disk = Tr190System::RVM.on(Tr190Disk::Modelled);
        let waits = cell::measure(stage, disk, load, effort)?.tps;
        let remote = cell::measure(stage, disk.over(MemberLink::Tcp), load, effort)?.tps;
        ratios.push(remote / waits);
        disks.push(waits);
        remotes.push(remote);
    }
    let what =
        "transactions of 128 B, one member; floor: waiting for a MODELLED disk with 8 ms syncs".to_owned();
    let (value, floor) = (median(remotes), Some(median(disks)));
    Ok(ScoreboardRow::new(
        "rvm-small-8ms",
        what,
        "tps",
        value,
        floor,
        RatioBound::AtLeast(100.0),
    )
    .with_ratio(median(ratios)))
}
