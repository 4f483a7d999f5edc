//! `netram-lab bench databases`: common databases side by side.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_bench::databases::output::{self as files, latency_cell, rate_cells, rows};
use netram_bench::databases::power::PowerCuts;
use netram_bench::databases::{
    DatabaseDisk, DatabaseKind, DatabaseReport, DatabaseSpec, DatabaseStorage, compare,
};
use netram_transport::WaitPolicy;

use super::{CommonArgs, chosen};
use netram_cli::options::{DurationArg, UsageError};
use netram_cli::output;

const ROUNDS: usize = 3;
const CUTS: usize = 5;
const TIME: Duration = Duration::from_secs(2);
const TIME_QUICK: Duration = Duration::from_millis(400);

/// Compare databases on netram with the same databases on the disk
///
/// Measures PostgreSQL under pgbench (its TPC-B-like load, and one-row insertions),
/// MariaDB's insertions and tables created and dropped, and single-record commits of
/// SQLite, RocksDB, Berkeley DB and LMDB, and of Redis, etcd, kine and JetStream from one
/// client and from four. Each runs on the disk as it is; with its log, or
/// all of it, on netram mount; all of it on a volume; SQLite through netram's VFS;
/// PostgreSQL with synchronous_commit=remote_write and a standby; and with each database's
/// own setting that waits for nothing. Disks are the local one and a modelled one whose
/// syncs take 1 ms longer. Each row says what a crash may lose. Redis, etcd, kine and
/// JetStream also have their power cut (--cuts): the disk forgets what was not synced, the
/// server and the mount are killed, and what is missing afterwards is counted.
///
/// It needs root, and prints which databases it skips because they are not installed. At
/// the end every acknowledged row must be there.
///
///   netram-lab bench databases --quick
///   netram-lab bench databases --databases sqlite,rocksdb --disks local
///   netram-lab bench databases --databases redis,etcd,kine,jetstream --cuts 20
///   netram-lab bench databases --lender-wait yield:500 --out results
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchDatabases {
    #[command(flatten)]
    common: CommonArgs,
    /// The databases [default: all]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    databases: Vec<DatabaseName>,
    /// Storage that their commits wait for [default: all]; ratios need plain
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    storages: Vec<StorageName>,
    /// The disks under the storage [default: both]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    disks: Vec<DiskName>,
    /// Number of runs of each, in turns [default: 3; quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Duration of each workload in a round; pgbench counts whole seconds [default: 2s; quick:
    /// 400ms]
    #[arg(long, value_name = "TIME")]
    time: Option<DurationArg>,
    /// Number of power cuts of Redis, etcd, kine and JetStream on each storage [default: 5;
    /// quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=10_000))]
    cuts: Option<u16>,
    /// Wait policy of the lender
    #[arg(long, value_name = "POLICY", default_value = "yield:50")]
    lender_wait: WaitPolicy,
    /// Directory for table, numbers and plot; replaces files of an earlier run [default: none
    /// are written]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Defines an argument type for the names of a kind.
macro_rules! names {
    ($(#[$doc:meta] $name:ident of $kind:ident),*) => {
        $(
            #[$doc]
            #[derive(Clone, Copy, Debug)]
            struct $name($kind);

            impl ValueEnum for $name {
                fn value_variants<'a>() -> &'a [$name] {
                    static ALL: [$name; $kind::ALL.len()] = {
                        let mut all = [$name($kind::ALL[0]); $kind::ALL.len()];
                        let mut at = 0;
                        while at < all.len() {
                            all[at] = $name($kind::ALL[at]);
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
        )*
    };
}

names!(
    /// A database.
    DatabaseName of DatabaseKind,
    /// A storage.
    StorageName of DatabaseStorage,
    /// A disk.
    DiskName of DatabaseDisk
);

impl BenchDatabases {
    pub(super) fn run(self) -> Result<ExitCode> {
        let spec = self.spec()?;
        if let Some(out) = &self.out {
            super::make_directory(out)?;
        }
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let run = super::run_info(super::place(&site).display().to_string());
        let report = compare(&site, &spec, &mut super::remark)?;
        if let Some(out) = &self.out {
            for file in files::write(&report, &run, out)? {
                output::remark(format_args!("wrote {}", file.display()));
            }
        }
        match self.common.json {
            true => output::json(&report)?,
            false => show(&report)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn spec(&self) -> Result<DatabaseSpec> {
        let quick = self.common.quick;
        let time = self
            .time
            .map_or(if quick { TIME_QUICK } else { TIME }, |time| time.0);
        if !(Duration::from_millis(50)..=Duration::from_secs(600)).contains(&time) {
            return Err(UsageError("--time must be from 50ms to 10m".to_owned()).into());
        }
        let spec = DatabaseSpec {
            databases: chosen(&self.databases, |name| name.0, &DatabaseKind::ALL),
            storages: chosen(&self.storages, |name| name.0, &DatabaseStorage::ALL),
            disks: chosen(&self.disks, |name| name.0, &DatabaseDisk::ALL),
            rounds: self.rounds.map_or(if quick { 1 } else { ROUNDS }, usize::from),
            time,
            cuts: self.cuts.map_or(if quick { 1 } else { CUTS }, usize::from),
            wait: self.lender_wait,
        };
        let has = |database: &DatabaseKind| spec.storages.iter().any(|storage| database.has(*storage));
        match spec.databases.iter().find(|database| !has(database)) {
            None => Ok(spec),
            Some(database) => Err(UsageError(format!(
                "{} supports none of --storages: vfs is for SQLite only, remote_write for PostgreSQL only",
                database.label()
            ))
            .into()),
        }
    }
}

fn show(report: &DatabaseReport) -> Result<()> {
    let header = [
        "database",
        "does",
        "on",
        "/s",
        "x plain",
        "p50, p99 us",
        "/s, +1 ms",
        "x plain",
        "p50, p99 us",
        "a crash loses",
        "lost in power cuts",
        "with lender or standby",
    ];
    let mut table = output::table(&header, 3);
    for row in rows(report) {
        let [local, modelled] = row.rates.map(rate_cells);
        let [local_us, modelled_us] = row.latencies_us.map(latency_cell);
        let names = [
            row.database.label(),
            row.work.label(),
            row.storage.label(row.database),
        ];
        let figures = local
            .into_iter()
            .chain([local_us])
            .chain(modelled)
            .chain([modelled_us]);
        let cuts = row.cuts.as_ref().map(PowerCuts::told).unwrap_or_default();
        let losses = [row.losses.crash.to_owned(), cuts, row.losses.both.to_owned()];
        let cells = names.into_iter().map(str::to_owned).chain(figures);
        table.add_row(cells.chain(losses));
    }
    output::line(table)?;
    for claim in &report.claims {
        output::line(format_args!(
            "{} {}: {:.2}, at least {}",
            if claim.met { "held    " } else { "NOT HELD" },
            claim.what,
            claim.ratio,
            claim.least
        ))?;
    }
    report
        .skipped
        .iter()
        .try_for_each(|why| output::line(format_args!("SKIPPED: {why}")))
}
