//! What the experiments of TR-190 hold netram to, without the rest of them: `netram-lab bench paper` measures it all.

use std::time::Duration;

use super::{Figure, Hold};
use crate::error::BenchError;
use crate::histogram::median;
use crate::paper::cell;
use crate::paper::experiment::{Effort, TR190};
use crate::paper::lazy;
use crate::paper::stage::Stage;
use crate::paper::system::{Disk, Link, System};
use crate::site::Site;
use crate::tpca::Pattern;

/// Accounts of the banks compared, in units of 1,024: the least and the most of the paper.
const ACCOUNTS_K: [u64; 2] = [32, 1024];
/// Bytes of the transaction that is compared with a slow disk's.
const SMALL_BYTES: u64 = 128;

pub(super) fn experiments(site: &Site, quick: bool) -> Result<Vec<Figure>, BenchError> {
    let effort = Effort {
        rounds: if quick { 1 } else { 3 },
        cap: Duration::from_millis(if quick { 300 } else { 1_000 }),
        quick,
        ..Effort::FULL
    };
    let mut figures = no_flush(site, effort)?;
    let mut stage = Stage::new(site, None);
    figures.push(small(&mut stage, effort)?);
    for (experiment, pattern) in TR190[8..].iter().zip(Pattern::ALL) {
        let tps = |stage: &mut Stage<'_>, link, accounts_k| {
            let load = experiment.load(accounts_k);
            cell::measure(stage, System::RVM.over(link), load, effort).map(|cell| cell.tps)
        };
        let (mut disks, mut remotes, mut ratios, mut kept) = (vec![], vec![], vec![], vec![]);
        for _ in 0..effort.rounds {
            let [few, many] = ACCOUNTS_K;
            let disk = tps(&mut stage, Link::Disk, many)?;
            let remote = tps(&mut stage, Link::Tcp, many)?;
            kept.push(remote / tps(&mut stage, Link::Tcp, few)?);
            ratios.push(remote / disk);
            disks.push(disk);
            remotes.push(remote);
        }
        let [id, flat] = match pattern {
            Pattern::Sequential => ["tpca-sequential", "tpca-sequential-flat"],
            Pattern::Random => ["tpca-random", "tpca-random-flat"],
            Pattern::Localised => ["tpca-localised", "tpca-localised-flat"],
        };
        let name = pattern.name();
        let what = format!("TPC-A, {name}, 1,024 K accounts, one member; floor: the local disk");
        let remote = Figure::new(
            id,
            what,
            "tps",
            median(remotes),
            Some(median(disks)),
            Hold::AtLeast(5.0),
        );
        figures.push(remote.with_ratio(median(ratios)));
        let what = format!("TPC-A, {name}: throughput with 1,024 K accounts over that with 32 K");
        figures.push(Figure::new(
            flat,
            what,
            "x",
            median(kept),
            None,
            Hold::AtLeast(0.9),
        ));
    }
    Ok(figures)
}

fn no_flush(site: &Site, effort: Effort) -> Result<Vec<Figure>, BenchError> {
    let rows = lazy::measure(Stage::new(site, None), effort, &mut |_| ())?;
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
        Figure::new(id, what, "us", us, None, Hold::AtMost(1.0))
    });
    Ok(figures.collect())
}

/// A small transaction beside one that waits for a disk of the paper's kind.
fn small(stage: &mut Stage<'_>, effort: Effort) -> Result<Figure, BenchError> {
    let load = TR190[0].load(SMALL_BYTES);
    let (mut disks, mut remotes, mut ratios) = (vec![], vec![], vec![]);
    for _ in 0..effort.rounds {
        let disk = System::RVM.on(Disk::Modelled);
        let waits = cell::measure(stage, disk, load, effort)?.tps;
        let remote = cell::measure(stage, disk.over(Link::Tcp), load, effort)?.tps;
        ratios.push(remote / waits);
        disks.push(waits);
        remotes.push(remote);
    }
    let what =
        "transactions of 128 B, one member; floor: waiting for a MODELLED disk with 8 ms syncs".to_owned();
    let (value, floor) = (median(remotes), Some(median(disks)));
    Ok(
        Figure::new("rvm-small-8ms", what, "tps", value, floor, Hold::AtLeast(100.0))
            .with_ratio(median(ratios)),
    )
}
