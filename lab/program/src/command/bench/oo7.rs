//! `netram-lab bench oo7`: OO7 on recoverable memory and in databases, disk beside remote.

pub(super) mod on;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use netram_bench::oo7::{self, Oo7Report, Oo7Spec};
use netram_bench::shared::mix;
use netram_bench::shared::oo7 as shared;
use netram_bench::sql_stores::SqlStoreEngine;
use netram_bench::testbed::Testbed;
use netram_bench::zeo::{self, ZeoEnvironment};
use netram_oo7::user::LockAcquisition;
use netram_oo7::{Oo7Parameters, Operation};
use netram_transport::WaitPolicy;

use super::CommonArgs;
use netram_cli::output;

/// Run OO7, the benchmark of object databases, on recoverable memory
///
/// A library of designs in a persistent heap: trees of assemblies over graphs of parts.
/// Traversals (t1 to t12c), queries (q1 to q8), insertion and deletion (i, d) run several
/// times each, the first one cold. Log bytes of one run stand beside the times. The
/// database is audited at the end. docs/results/oo7.md describes each operation.
///
/// With --shared, one node of a shared region runs the operations that change parts, and
/// another, in its own process, receives the changes. With --nodes as well, one, two ... up
/// to that many users work at the same time, each at its own node and in its own module,
/// and visit the others' modules as often as a row says. Every node's database is audited.
///
/// With --zeo, two clients of a ZEO server (ZODB, Python's object database) are measured:
/// one changes parts in a transaction, the other loads the changes. pip installs both once,
/// into ~/.cache/netram.
///
/// With --on, today's databases are measured: SQLite with a write-ahead log (sqlite) or a
/// rollback journal (sqlite-rollback), and Berkeley DB (berkeley-db), which needs cc and
/// libdb5.3-dev. Each runs by itself on the local disk and on a MODELLED one with 8 ms
/// added to each sync; on `netram mount`, which needs root; and SQLite with netram's VFS,
/// over a Unix socket and over TCP. Times are of an operation with its commit, medians of
/// rounds. "t6 logged" is t6 in a transaction that also writes a row, because t6 itself
/// commits nothing.
///
///   netram-lab bench oo7
///   netram-lab bench oo7 --shared --operations t12a,t2b
///   netram-lab bench oo7 --shared --nodes 4
///   netram-lab bench oo7 --database medium-9 --operations t1,t2b,q8 --members 2
///   netram-lab bench oo7 --on sqlite,berkeley-db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchOo7 {
    #[command(flatten)]
    common: CommonArgs,
    /// The database: tiny, small, medium or large, and 3, 6 or 9 connections of each part
    #[arg(long, value_name = "NAME", default_value = "small-3")]
    database: Oo7Parameters,
    /// Operations, in this order [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    operations: Vec<Operation>,
    /// Number of repetitions of each [default: 7, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(oo7::REPETITIONS_MIN as i64..=10_000))]
    repetitions: Option<u16>,
    /// All repetitions of an operation in one transaction
    #[arg(long)]
    one_transaction: bool,
    /// Members of the remote rows; 0 leaves these rows out
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=8))]
    members: u8,
    /// Measure between two nodes of a shared region instead
    #[arg(long, conflicts_with_all = ["zeo", "one_transaction"])]
    shared: bool,
    /// With --shared: measure the mix of one to this many users
    #[arg(long, value_name = "N", requires = "shared", conflicts_with_all = ["operations", "repetitions"],
        value_parser = clap::value_parser!(u32).range(1..=mix::NODES_MAX as i64))]
    nodes: Option<u32>,
    /// With --nodes: users acquire a lock when they need it, and retry if they die of one,
    /// instead of acquiring all at once
    #[arg(long, requires = "nodes")]
    as_met: bool,
    /// Measure ZODB with ZEO instead
    #[arg(long, conflicts_with_all = ["operations", "one_transaction", "members"])]
    zeo: bool,
    /// Measure in these databases instead: sqlite, sqlite-rollback, berkeley-db
    #[arg(long, value_name = "STORES", value_delimiter = ',',
        conflicts_with_all = ["shared", "zeo", "one_transaction", "members", "wait"])]
    on: Vec<SqlStoreEngine>,
    /// Wait policy of client and lenders
    #[arg(long, value_name = "POLICY", default_value = "yield:50")]
    wait: WaitPolicy,
}

impl BenchOo7 {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        if self.zeo {
            return self.beside(&site);
        }
        if !self.on.is_empty() {
            return self.in_databases(&site);
        }
        if let Some(nodes) = self.nodes {
            return self.users(&site, nodes);
        }
        if self.shared {
            return self.between(&site);
        }
        let operations = match self.operations.is_empty() {
            true => Operation::ALL.to_vec(),
            false => self.operations,
        };
        let usual = if self.common.quick { 3 } else { 7 };
        let mut reports = Vec::new();
        let mut members = vec![0, usize::from(self.members)];
        members.dedup();
        for members in members {
            let spec = Oo7Spec {
                database: self.database,
                operations: operations.clone(),
                repetitions: self.repetitions.unwrap_or(usual).into(),
                single: self.one_transaction,
                members,
                wait: self.wait,
            };
            output::remark(format_args!("building {}, {members} members ...", self.database));
            reports.push(oo7::measure(&site, &spec, &mut |operation| {
                output::remark(format_args!("measuring {operation} ..."));
            })?);
        }
        match self.common.json {
            true => self.common.json(&reports)?,
            false => reports.iter().try_for_each(show)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl BenchOo7 {
    fn between(&self, site: &Testbed) -> Result<ExitCode> {
        let usual = if self.common.quick { 3 } else { 21 };
        let all = shared::OPERATIONS.map(|(operation, _)| operation);
        let spec = shared::SharedOo7Spec {
            database: self.database,
            operations: match self.operations.is_empty() {
                true => all.to_vec(),
                false => self.operations.clone(),
            },
            rounds: self.repetitions.unwrap_or(usual).into(),
            members: self.members.into(),
            wait: self.wait,
        };
        let rows = shared::measure(site, &spec, &mut |operation| {
            output::remark(format_args!("measuring {operation} ..."));
        })?;
        if self.common.json {
            self.common.json(&rows)?;
            return Ok(ExitCode::SUCCESS);
        }
        let members = output::count(spec.members as u64, "member");
        output::line(format_args!("\n{}, two nodes, {members} of each:", spec.database))?;
        let header = [
            "operation",
            "count",
            "walk us",
            "and change us",
            "commit us",
            "all us",
            "overhead us",
        ];
        let mut table = output::table(&header, 1);
        for row in &rows {
            let times = [
                row.walk_us,
                row.change_us,
                row.commit_us,
                row.total_us,
                row.overhead_us,
            ];
            let words = [
                row.operation.to_string(),
                output::thousands(i64::try_from(row.count)?),
            ];
            table.add_row(words.into_iter().chain(times.map(output::number)));
        }
        output::line(table)?;
        Ok(ExitCode::SUCCESS)
    }

    fn users(&self, site: &Testbed, nodes: u32) -> Result<ExitCode> {
        let spec = mix::UserMixSpec {
            database: self.database,
            nodes,
            manner: if self.as_met {
                LockAcquisition::AsMet
            } else {
                LockAcquisition::Together
            },
            time: Duration::from_secs(if self.common.quick { 1 } else { 5 }),
            members: self.members.into(),
            wait: self.wait,
        };
        output::remark(format_args!("building {}, {nodes} modules ...", spec.database));
        let rows = mix::measure(site, &spec, &mut |mix, nodes| {
            let users = output::count(nodes.into(), "user");
            output::remark(format_args!("measuring {users}, {mix} ..."));
        })?;
        if self.common.json {
            self.common.json(&rows)?;
            return Ok(ExitCode::SUCCESS);
        }
        let members = output::count(spec.members as u64, "member");
        output::line(format_args!(
            "\n{}, {nodes} modules, {members} of each node; a transaction has four operations of three composites:",
            spec.database
        ))?;
        let header = [
            "composites",
            "users",
            "transactions/s",
            "% waiting for locks",
            "died of 1,000",
            "late",
        ];
        let mut table = output::table(&header, 1);
        for row in &rows {
            let words = [row.mix.to_owned(), row.nodes.to_string()];
            let numbers = [row.transactions_s, row.waited_percent, row.died_permille].map(output::number);
            table.add_row(words.into_iter().chain(numbers).chain([row.lost.to_string()]));
        }
        output::line(table)?;
        Ok(ExitCode::SUCCESS)
    }

    fn beside(&self, site: &Testbed) -> Result<ExitCode> {
        let usual = if self.common.quick { 3 } else { 7 };
        let rounds = self.repetitions.unwrap_or(usual).into();
        let zeo = match ZeoEnvironment::make() {
            Ok(zeo) => zeo,
            Err(reason) => {
                output::line(format_args!("SKIPPED: ZODB with ZEO: {reason}"))?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        output::remark("measuring ZODB with ZEO ...");
        let report = zeo.measure(site, rounds)?;
        match self.common.json {
            true => self.common.json(&report)?,
            false => show_zeo(&report)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show_zeo(report: &zeo::ZeoReport) -> Result<()> {
    let zeo::ZeoVersions {
        zodb,
        zeo,
        persistent,
    } = &report.versions;
    output::line(format_args!(
        "\nsmall-3, ZODB {zodb}, ZEO {zeo}, persistent {persistent}, Python {}: two clients, until one has what the other changed",
        report.python
    ))?;
    let header = [
        "operation",
        "objects in",
        "updates",
        "parts",
        "walk us",
        "and change us",
        "commit us",
        "load us",
        "all us",
        "overhead us",
    ];
    let mut table = output::table(&header, 2);
    for (place, rows) in [("memory", &report.stores.memory), ("a file", &report.stores.file)] {
        for (operation, row) in [("t12a", rows.t12a), ("t2b", rows.t2b)] {
            let times = [
                row.walk_us,
                row.change_us,
                row.commit_us,
                row.load_us,
                row.total_us,
                row.overhead_us(),
            ];
            let counts = [row.updates, row.parts].map(|count| output::thousands(count as i64));
            let words = [operation.to_owned(), place.to_owned()];
            table.add_row(words.into_iter().chain(counts).chain(times.map(output::number)));
        }
    }
    output::line(table)
}

fn show(report: &Oo7Report) -> Result<()> {
    output::line("")?;
    output::line(format_args!(
        "{}, {}, {}: built in {:.1} s, {} of blocks",
        report.database,
        report.durability,
        output::count(report.members as u64, "member"),
        report.build_s,
        output::bytes(report.taken_bytes)
    ))?;
    let header = [
        "operation",
        "count",
        "cold us",
        "hot us",
        "commit us",
        "updates",
        "ranges",
        "bytes",
        "record B",
        "4K pages",
    ];
    let mut table = output::table(&header, 1);
    let whole = |number: u64| output::thousands(i64::try_from(number).unwrap_or(i64::MAX));
    for row in &report.rows {
        table.add_row([
            row.operation.name().to_owned(),
            whole(row.count),
            output::number(row.cold_us),
            output::number(row.hot_us),
            output::number(row.commit_us),
            whole(row.updates),
            whole(row.logged.ranges),
            whole(row.logged.bytes),
            whole(row.logged.payload_bytes),
            whole(row.logged.pages_4k),
        ]);
    }
    output::line(table)
}
