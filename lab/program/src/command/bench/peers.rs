//! `netram-lab peers`: netram beside other programs that store or replicate a small write.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_bench::peers::output::{self as files, microseconds, rows};
use netram_bench::peers::{PeerKind, PeerReport, PeerSpec, PeerWork, compare};

use super::{CommonArgs, chosen};
use netram_cli::options::{DurationArg, UsageError};
use netram_cli::output;

const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 2;
const TIME: Duration = Duration::from_millis(500);
const TIME_QUICK: Duration = Duration::from_millis(100);

/// Compare a small write by netram with the same by other programs
///
/// Measures a commit of 128 B by netram beside Redis with WAIT 1, etcd, Berkeley DB's
/// replication, MariaDB's semisync, PostgreSQL's remote_write, libpmemobj, SQLite and LMDB;
/// and a write of 4 KiB to netram's volume beside nbdkit and qemu-nbd. Each is started here,
/// on loopback or Unix sockets, and its files are removed at the end. Rounds go from one to
/// the next; results are their medians. Each row says what a failure may lose, and programs
/// that are not installed are skipped, with the package that has them.
///
///   netram-lab peers --quick
///   netram-lab peers --only netram,redis,etcd --rounds 9
///   netram-lab peers --out results --png
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchPeers {
    #[command(flatten)]
    common: CommonArgs,
    /// The programs [default: all]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    only: Vec<PeerName>,
    /// Number of rounds, in turns [default: 5; quick: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Duration of each program's round [default: 500ms; quick: 100ms]
    #[arg(long, value_name = "TIME")]
    time: Option<DurationArg>,
    /// Directory for tables, numbers and plot; replaces files of an earlier run [default: none
    /// are written]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the plot as PNG too: on white, and on black as peers-dark.png
    #[arg(long, requires = "out")]
    png: bool,
}

/// A program.
#[derive(Clone, Copy, Debug)]
struct PeerName(PeerKind);

impl ValueEnum for PeerName {
    fn value_variants<'a>() -> &'a [PeerName] {
        static ALL: [PeerName; PeerKind::ALL.len()] = {
            let mut all = [PeerName(PeerKind::ALL[0]); PeerKind::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = PeerName(PeerKind::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.0.id().into())
    }
}

impl BenchPeers {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let spec = self.spec()?;
        if let Some(out) = &self.out {
            super::make_directory(out)?;
        }
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let run = super::run_info(super::place(&site).display().to_string());
        let report = compare(&site, &spec, &mut super::remark)?;
        if let Some(out) = &self.out {
            for file in files::write(&report, &run, out, self.png)? {
                output::remark(format_args!("wrote {}", file.display()));
            }
        }
        match self.common.json {
            true => output::json(&report)?,
            false => show(&report)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn spec(&self) -> Result<PeerSpec> {
        let quick = self.common.quick;
        let time = self
            .time
            .map_or(if quick { TIME_QUICK } else { TIME }, |time| time.0);
        if !(Duration::from_millis(50)..=Duration::from_secs(60)).contains(&time) {
            return Err(UsageError("--time must be from 50ms to 1m".to_owned()).into());
        }
        let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
        Ok(PeerSpec {
            peers: chosen(&self.only, |name| name.0, &PeerKind::ALL),
            rounds: self.rounds.map_or(rounds, usize::from),
            time,
        })
    }
}

fn show(report: &PeerReport) -> Result<()> {
    for work in PeerWork::ALL {
        if rows(report, work).next().is_none() {
            continue;
        }
        let header = [
            work.title(),
            "p50 us",
            "p99 us",
            "/s",
            "a killed process loses",
            "a crashed machine",
            "power of two machines",
        ];
        let mut table = output::table(&header, 1);
        for row in rows(report, work) {
            table.add_row([
                row.peer.label().to_owned(),
                microseconds(row.latency.p50_us),
                microseconds(row.latency.p99_us),
                format!("{:.0}", row.latency.per_second),
                row.losses.process.to_owned(),
                row.losses.machine.to_owned(),
                row.losses.both.to_owned(),
            ]);
        }
        output::line(table)?;
    }
    report
        .skipped
        .iter()
        .try_for_each(|why| output::line(format_args!("SKIPPED: {why}")))
}
