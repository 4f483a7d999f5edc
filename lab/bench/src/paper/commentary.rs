//! Commentary on each figure: its setup, and the reasons for differences from the paper. The reasons are
//! known and written by hand; every number is computed from the measurements.

use super::system::{FloorKind, MemberLink, Tr190Disk, Tr190Series, Tr190System};
use super::{Tr190Figure, Tr190Report};
use crate::plot::thousands;

const TCP: Tr190System = Tr190System {
    link: MemberLink::Tcp,
    disk: Tr190Disk::Local,
};

/// Setup of every figure.
pub const SETUP: &str = "Each client maps a data file that was written in full and synced, and stores to each of its pages once before the \
     clock runs: every page is then the client's own copy, as after the original's map, which copies everything. A transaction declares one range, \
     stores it and commits, able to abort (the original's restore mode). RVM commits wait for the local disk's \
     fdatasync; RRVM commits wait for one member, another process on this machine, with links encrypted and records \
     sealed, and the disk follows in the background. Both sides poll for 50 microseconds, then sleep (the default; with a \
     longer wire ADDED the member polls for 2 ms, as its next request comes later). A client with a member stays on one core, \
     the member on another; several clients run where they like if there are too few cores. \
     Truncation runs in a thread of its own from half a log on. MODELLED: 8 ms are slept in every sync of log and data \
     file, in place of the seek and rotation of the paper's disks. Systems take turns within a round; shown are medians of \
     rounds, and the longest commit is the median of the rounds' longest. After each cell the log was applied and \
     the data file compared with memory, or the bank's books audited.";

/// Differences of a figure from the paper, with reasons.
pub fn differs(report: &Tr190Report, figure: &Tr190Figure) -> Vec<String> {
    match figure.number {
        1 => blocks(report, figure),
        2 | 3 => log_sizes(figure),
        4 => random(report, figure),
        5 | 6 => pairs(report, figure),
        7 | 8 => clients(report, figure),
        _ => accounts(figure),
    }
}

fn blocks(report: &Tr190Report, figure: &Tr190Figure) -> Vec<String> {
    let mut said = vec![
        "The paper's disk answered a commit after a seek and a rotation, its networks after some hundred microseconds; \
         this disk and this loopback answer as the floors show. How many times RRVM is faster depends on which of the two \
         improved more. The modelled disk stands where the paper's stood."
            .to_owned(),
    ];
    if let Some(first) = figure.x_values().first() {
        let us = |floor| Some(figure.at(Tr190Series::Floor(floor), *first)?.p50_us);
        if let (Some(sync), Some(exchange)) = (us(FloorKind::Sync), us(FloorKind::Exchange)) {
            said.push(format!(
                "At {first} bytes: bare fdatasync {sync:.1} us, bare TCP exchange {exchange:.1} us, {:.1} times apart.",
                sync / exchange
            ));
        }
    }
    said.extend(faster(figure));
    said.push(
        "Large blocks: every byte is sealed, sent and later written twice (log and data file), so the block's size counts \
         where nothing waits for a disk."
            .to_owned(),
    );
    said.extend(longest(report, figure));
    said
}

/// RRVM over RVM, on both disks, at the first and last place.
fn faster(figure: &Tr190Figure) -> Vec<String> {
    let places = figure.x_values();
    let (Some(first), Some(last)) = (places.first(), places.last()) else {
        return Vec::new();
    };
    let mut said = Vec::new();
    for (disk, name) in [(Tr190Disk::Local, "local"), (Tr190Disk::Modelled, "MODELLED")] {
        let over = |x| Some(tps(figure, TCP.on(disk), x)? / tps(figure, Tr190System::RVM.on(disk), x)?);
        if let (Some(low), Some(high)) = (over(*first), over(*last)) {
            said.push(format!(
                "RRVM over TCP has {low:.1} times the throughput of RVM on the {name} disk at the first place, {high:.1} \
                 times at the last."
            ));
        }
    }
    said
}

fn longest(report: &Tr190Report, figure: &Tr190Figure) -> Option<String> {
    let systems = || {
        figure
            .points
            .iter()
            .filter(|point| matches!(point.series, Tr190Series::System(_)))
    };
    let stalls: u64 = systems().map(|point| point.full_stalls).sum();
    let all: u64 = systems().map(|point| point.transactions).sum();
    let worst = figure
        .points
        .iter()
        .filter(
            |point| matches!(point.series, Tr190Series::System(system) if system.disk == Tr190Disk::Local),
        )
        .map(|point| point.max_us)
        .reduce(f64::max)?;
    let load = report.machine.load;
    Some(format!(
        "The original truncated within a commit; here it happens beside commits: {} waits for a full log in {} commits of this \
         figure. The longest commit on the local disk, median of the rounds' longest, took {:.1} ms; that includes everything else this machine did (load \
         {load:.2} at the start).",
        thousands(stalls as f64),
        thousands(all as f64),
        worst / 1e3
    ))
}

fn log_sizes(figure: &Tr190Figure) -> Vec<String> {
    let mut said = vec![
        "The paper begins at a few KB; a log here holds 16 KB at least. Where commits outrun truncation they wait for it, and it \
         syncs log and data file: the disk is back on the commit's way, whatever the network does."
            .to_owned(),
    ];
    let places = figure.x_values();
    let ends = places.first().zip(places.last());
    for (system, name) in [
        (Tr190System::RVM, "RVM"),
        (TCP, "RRVM over TCP"),
        (TCP.on(Tr190Disk::Modelled), "RRVM over TCP, MODELLED disk"),
    ] {
        let Some((&small, &large)) = ends else { continue };
        let (Some(low), Some(high)) = (
            figure.at(Tr190Series::System(system), small),
            figure.at(Tr190Series::System(system), large),
        ) else {
            continue;
        };
        said.push(format!(
            "{name}: {} a second with {small} KB ({:.0} waits for a full log in a hundred commits), {} with {} KB ({:.0}).",
            thousands(low.tps),
            percent(low.full_stalls, low.transactions),
            thousands(high.tps),
            thousands(large as f64),
            percent(high.full_stalls, high.transactions),
        ));
    }
    said.push(
        "Above 32 KB the paper's curves are flat, because 32 KB lasted for a while at its rates. Faster commits fill a log \
         sooner, so the log must be larger for truncation to keep up."
            .to_owned(),
    );
    said
}

fn percent(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / all.max(1) as f64
}

fn random(report: &Tr190Report, figure: &Tr190Figure) -> Vec<String> {
    let mut said = vec![
        "In the paper random access cost page faults, and writes scattered over the data file while commits waited. Here the \
         file is in the page cache and its pages are the client's own, and the scattered writes happen beside the commits. They \
         still take the disk's and the processors' time."
            .to_owned(),
    ];
    if let Some(first) = report.figures.iter().find(|known| known.number == 1) {
        for (system, name) in [
            (Tr190System::RVM, "RVM"),
            (TCP, "RRVM over TCP"),
            (TCP.on(Tr190Disk::Modelled), "RRVM over TCP, MODELLED disk"),
        ] {
            let ratios: Vec<String> = figure
                .x_values()
                .into_iter()
                .filter_map(|x| {
                    let ratio = tps(figure, system, x)? / tps(first, system, x)?;
                    Some(format!("{ratio:.2} at {} B", thousands(x as f64)))
                })
                .collect();
            if !ratios.is_empty() {
                said.push(format!(
                    "Random over sequential throughput, {name}, local disk: {}.",
                    ratios.join(", ")
                ));
            }
        }
    }
    said.extend(longest(report, figure));
    said
}

fn pairs(report: &Tr190Report, figure: &Tr190Figure) -> Vec<String> {
    let cores = report.machine.cores;
    let mut said = vec![format!(
        "In the paper every client and every server had a machine of its own and only the network was shared. Here all of them \
         share {cores} cores and one disk: what is added with each pair is contention for processors, and for RVM \
         contention for the disk, which the paper did not have; a modelled disk, being a sleep, each client has for itself, as \
         in the paper. Clients are threads of one process, each with its own log, \
         data file and sockets."
    )];
    said.extend(retained_throughput(figure, "each of the pairs keeps"));
    said
}

fn clients(report: &Tr190Report, figure: &Tr190Figure) -> Vec<String> {
    let cores = report.machine.cores;
    let mut said = vec![format!(
        "In the paper the clients had machines of their own and the server was alone on one. Here clients and server share \
         {cores} cores and one disk (a modelled disk, being a sleep, each client has for itself): the total says how well \
         they share, not what a server bears."
    )];
    said.extend(retained_throughput(figure, "the total is"));
    said
}

/// Throughput at the last x value over the first, by system.
fn retained_throughput(figure: &Tr190Figure, verb: &str) -> Option<String> {
    let places = figure.x_values();
    let (first, last) = (places.first()?, places.last()?);
    let ratios: Vec<String> = figure
        .series()
        .into_iter()
        .filter_map(|series| {
            let ratio = figure.at(series, *last)?.tps / figure.at(series, *first)?.tps;
            Some(format!("{} {ratio:.2}", series.label()))
        })
        .collect();
    Some(format!(
        "With {last} instead of {first}, {verb} so many times as much: {}.",
        ratios.join("; ")
    ))
}

fn accounts(figure: &Tr190Figure) -> Vec<String> {
    let mut said = vec![
        "With 1,024 K accounts of 128 bytes and an audit trail of the same size the bank is 256 MB: twice the memory of the \
         paper's machines, a fraction of today's. Paging, and scattered truncation within commits, are what makes a bank of that \
         size slower there; here every page was touched before the clock ran, and truncation is beside. What remains with more accounts are colder \
         processor caches, and more pages for truncation to write."
            .to_owned(),
    ];
    said.extend(faster(figure));
    said.extend(retained_throughput(figure, "the throughput is"));
    said
}

fn tps(figure: &Tr190Figure, system: Tr190System, x: u64) -> Option<f64> {
    Some(figure.at(Tr190Series::System(system), x)?.tps)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::experiment::{TR190, Tr190Effort};
    use super::super::tests::synthetic_figure;
    use super::*;
    use crate::machine::MachineInfo;

    /// A report whose figures all have two systems at the quick x values.
    pub(crate) fn report() -> Tr190Report {
        let figures = TR190.map(|experiment| {
            let places = experiment.x_values(true);
            let ends = [places[0], places[places.len() - 1]];
            let rvm: Vec<(u64, f64)> = ends.iter().map(|x| (*x, 8_000.0)).collect();
            let tcp: Vec<(u64, f64)> = ends.iter().map(|x| (*x, 64_000.0)).collect();
            synthetic_figure(
                experiment.number,
                &[
                    (Tr190Series::System(Tr190System::RVM), &rvm),
                    (Tr190Series::System(TCP), &tcp),
                ],
            )
        });
        Tr190Report {
            machine: MachineInfo::probe(),
            effort: Tr190Effort::QUICK,
            skipped: vec!["one thing & another".to_owned()],
            figures: figures.to_vec(),
            oo7: Some(crate::paper::oo7::tests::report()),
            no_flush: Vec::new(),
            claims: Vec::new(),
        }
    }

    #[test]
    fn every_figure_explains_its_differences_with_computed_numbers() {
        let report = report();
        for figure in &report.figures {
            let said = differs(&report, figure).join(" ");
            assert!(said.len() > 200, "figure {}: {said}", figure.number);
            let number = match figure.number {
                1 | 9..=11 => "8.0 times",
                2 | 3 => "64,000",
                4 => "1.00 at 32 B",
                _ => "RVM 1.00",
            };
            assert!(said.contains(number), "figure {}: {said}", figure.number);
        }
    }

    #[test]
    fn unmeasured_figures_have_no_commentary() {
        let mut report = report();
        for figure in &mut report.figures {
            figure.points.clear();
        }
        for figure in &report.figures {
            let said = differs(&report, figure).join(" ");
            assert!(!said.contains("NaN") && !said.contains("inf"), "{said}");
        }
    }
}
