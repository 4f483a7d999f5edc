//! `netram bench`: measurements, each beside its floor.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use netram_bench::commit::{self, Effort};
use netram_bench::figures::{self, Scoreboard};
use netram_bench::machine::Machine;
use netram_bench::share;
use netram_bench::site::{Site, Wire};
use netram_bench::tpca::{self, Pattern};
use netram_proto::port::Durability;
use netram_transport::WaitPolicy;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output;

/// Measure netram beside its floors
///
/// Every number stands beside what the same machine does without netram: a bare
/// exchange of the same bytes over the same kind of socket and cores, and
/// fdatasync on the same disk. Rounds alternate and medians of rounds are shown.
/// Lenders run as processes on this machine and end with the measurement.
///
///   netram bench figures --quick        # the scoreboard, under two minutes
///   netram bench commit --members 2     # one row of your own
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub(crate) enum Bench {
    Figures(Figures),
    Commit(Commit),
    Tpca(Tpca),
    Lender(Share),
}

/// What every measurement knows.
#[derive(Debug, Args)]
struct Common {
    /// Shorter rounds and fewer of them
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where journals are kept while measuring; choose the disk that is of interest [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Print the scoreboard: every figure that netram holds itself to
///
///   netram bench figures --quick
///   netram bench figures --json > figures.json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Figures {
    #[command(flatten)]
    common: Common,
}

/// Measure one commit: latency and throughput
///
/// Without a flag that chooses, a table that varies one thing at a time. With
/// one, that row alone, the rest at its default (128 B, one member, remote, one
/// thread, spinning, encrypted, TCP).
///
///   netram bench commit
///   netram bench commit --threads 8 --wait yield:50
///   netram bench commit --added-rtt-us 25,50,100   # a longer wire
///   netram bench commit --slow-disk-ms 1,8         # a modelled disk
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Commit {
    #[command(flatten)]
    common: Common,
    /// Payload bytes of a record
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    record: Option<u32>,
    /// Members, each a lender process; 0: the local disk alone
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=8))]
    members: Option<u8>,
    /// When a commit counts as done
    #[arg(long, value_enum)]
    durability: Option<DurabilityArg>,
    /// Threads that commit to the journal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// How the client waits: spin, yield:MICROSECONDS or block
    #[arg(long, value_name = "POLICY")]
    wait: Option<WaitPolicy>,
    /// Neither encryption nor sealing
    #[arg(long)]
    insecure: bool,
    /// A Unix socket instead of TCP
    #[arg(long)]
    unix: bool,
    /// Add this to each round trip, through a delaying process (microseconds; several rows)
    #[arg(long, value_name = "US", value_delimiter = ',')]
    added_rtt_us: Vec<u32>,
    /// Model a slower disk: add this to each sync (milliseconds; several rows)
    #[arg(long, value_name = "MS", value_delimiter = ',')]
    slow_disk_ms: Vec<u32>,
}

/// Run TPC-A on recoverable memory: local disk beside remote memory, the same
/// code
///
/// One branch, ten tellers, N x 1,024 accounts of 128 bytes, an audit trail of
/// 64-byte records. The books are audited after each row.
///
///   netram bench tpca
///   netram bench tpca --accounts 32,1024 --pattern localised --slow-disk-ms 8
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Tpca {
    #[command(flatten)]
    common: Common,
    /// Accounts, in units of 1,024 (several rows)
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "32", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    accounts: Vec<u64>,
    /// Which accounts are touched: sequential, random, localised [default: all three]
    #[arg(long, value_delimiter = ',')]
    pattern: Vec<Pattern>,
    /// Members of the remote rows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    members: u8,
    /// How client and lenders wait
    #[arg(long, value_name = "POLICY", default_value = "yield:50")]
    wait: WaitPolicy,
    /// Neither encryption nor sealing
    #[arg(long)]
    insecure: bool,
    /// Model a slower disk: add this to each sync (milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 0)]
    slow_disk_ms: u32,
}

/// Measure one lender under one to eight clients
///
///   netram bench lender
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Share {
    #[command(flatten)]
    common: Common,
    /// Clients, each with its own journal (several rows)
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: Vec<u8>,
    /// Payload bytes of a record
    #[arg(long, value_name = "BYTES", default_value_t = 128)]
    record: usize,
}

/// When a commit counts as done.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DurabilityArg {
    /// Members satisfy the rule, or the disk has it
    Remote,
    /// The disk has it
    Disk,
    /// Both
    Both,
    /// At once
    Lazy,
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Durability {
        match arg {
            DurabilityArg::Remote => Durability::Remote,
            DurabilityArg::Disk => Durability::Disk,
            DurabilityArg::Both => Durability::Both,
            DurabilityArg::Lazy => Durability::Lazy,
        }
    }
}

impl Bench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Bench::Figures(figures) => figures.run(),
            Bench::Commit(commit) => commit.run(),
            Bench::Tpca(tpca) => tpca.run(),
            Bench::Lender(share) => share.run(),
        }
    }
}

impl Common {
    fn site(&self) -> Result<Site> {
        site(self.dir.as_deref())
    }

    fn effort(&self) -> Effort {
        if self.quick { Effort::QUICK } else { Effort::FULL }
    }

    /// Where and under what load: a number without it is not to be believed.
    fn introduce(&self, site: &Site) -> Result<()> {
        if !self.json {
            output::line(introduction(&Machine::look(), site.folder()))?;
        }
        Ok(())
    }
}

/// A site on a disk: /tmp may be memory, whose syncs cost nothing.
pub(crate) fn site(dir: Option<&Path>) -> Result<Site> {
    let fallback = if Path::new("/var/tmp").is_dir() {
        "/var/tmp".into()
    } else {
        std::env::temp_dir()
    };
    let parent = dir.map_or(fallback, Path::to_path_buf);
    clean_up_on_signal()?;
    Ok(Site::new(netram_bench::child::this_program()?, &parent)?)
}

/// Whoever interrupts a measurement finds neither its files nor its lenders' memory afterwards.
fn clean_up_on_signal() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            netram_bench::site::abandon();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn introduction(machine: &Machine, folder: &Path) -> String {
    let Machine {
        processor,
        cores,
        kernel,
        load,
    } = machine;
    let disk = file_system(folder);
    format!("{processor}, {cores} cores, Linux {kernel}, load {load:.2}; files on {disk}")
}

/// The kind of file system below `folder`, and a warning if its syncs mean nothing.
fn file_system(folder: &Path) -> String {
    const TMPFS: u64 = 0x0102_1994;
    let kind = rustix::fs::statfs(folder).map(|stat| stat.f_type as u64);
    match kind {
        Ok(TMPFS) => format!(
            "{} (MEMORY: fdatasync is free here; choose a disk with --dir)",
            folder.display()
        ),
        _ => folder.display().to_string(),
    }
}

impl Figures {
    fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let scoreboard = figures::measure(&site, self.common.quick, &mut |what| {
            output::remark(format_args!("measuring {what} ..."));
        })?;
        if self.common.json {
            output::json(&scoreboard)?;
        } else {
            show_figures(&scoreboard)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show_figures(scoreboard: &Scoreboard) -> Result<()> {
    let mut table = output::table(
        &["figure", "what", "value", "unit", "floor", "ratio", "hold", "met"],
        2,
    );
    for figure in &scoreboard.figures {
        table.add_row([
            figure.id.to_owned(),
            figure.what.clone(),
            output::number(figure.value),
            figure.unit.to_owned(),
            figure.floor.map(output::number).unwrap_or_default(),
            output::number(figure.ratio),
            figure.hold.to_string(),
            if figure.met { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    output::line(table)
}

impl Commit {
    fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let mut rows = Vec::new();
        let specs = self.specs();
        for (index, spec) in specs.iter().enumerate() {
            output::remark(format_args!("measuring row {} of {} ...", index + 1, specs.len()));
            rows.push(commit::measure(&site, spec, self.common.effort())?);
        }
        if self.common.json {
            output::json(&json!({ "machine": Machine::look(), "rows": rows }))?;
        } else {
            show_commits(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn specs(&self) -> Vec<commit::Spec> {
        let flags = self.record.is_some()
            || self.members.is_some()
            || self.durability.is_some()
            || self.threads.is_some()
            || self.wait.is_some()
            || self.insecure
            || self.unix
            || !self.added_rtt_us.is_empty()
            || !self.slow_disk_ms.is_empty();
        if !flags {
            return commit::Spec::table(self.common.quick);
        }
        let base = commit::Spec::default();
        let members = self.members.map_or(base.members, usize::from);
        let durability = match (self.durability, members) {
            (Some(durability), _) => durability.into(),
            (None, 0) => Durability::Disk,
            (None, _) => base.durability,
        };
        let spec = commit::Spec {
            record_bytes: self.record.map_or(base.record_bytes, |bytes| bytes as usize),
            members,
            durability,
            threads: self.threads.map_or(base.threads, usize::from),
            wait: self.wait.unwrap_or(base.wait),
            secure: !self.insecure,
            wire: if self.unix { Wire::Unix } else { Wire::Tcp },
            ..base
        };
        let or_zero = |list: &[u32]| if list.is_empty() { vec![0] } else { list.to_vec() };
        let mut specs = Vec::new();
        for &added_rtt_us in &or_zero(&self.added_rtt_us) {
            for &modelled_sync_ms in &or_zero(&self.slow_disk_ms) {
                specs.push(commit::Spec {
                    added_rtt_us,
                    modelled_sync_ms,
                    ..spec.clone()
                });
            }
        }
        specs
    }
}

fn show_commits(rows: &[commit::Row]) -> Result<()> {
    let header = [
        "commit",
        "p50 us",
        "p99",
        "p99.9",
        "commits/s",
        "cpu us",
        "exchange",
        "ratio",
        "fan-out",
        "ratio",
        "fdatasync",
        "x faster",
    ];
    let mut table = output::table(&header, 1);
    for row in rows {
        table.add_row([
            describe(&row.spec),
            output::number(row.commit.p50_us),
            output::number(row.commit.p99_us),
            output::number(row.commit.p999_us),
            output::number(row.commit.per_second),
            output::number(row.commit.cpu_us),
            row.exchange
                .map(|exchange| output::number(exchange.p50_us))
                .unwrap_or_default(),
            row.ratio.map(output::number).unwrap_or_default(),
            row.fan_out
                .map(|fan_out| output::number(fan_out.p50_us))
                .unwrap_or_default(),
            row.fan_out_ratio.map(output::number).unwrap_or_default(),
            output::number(row.sync.p50_us),
            output::number(row.faster_than_sync),
        ]);
    }
    output::line(table)?;
    output::line(
        "Floors, medians: a bare exchange of the same bytes with one process; fan-out: with as many as members;",
    )?;
    output::line(
        "fdatasync of as many bytes on the same disk. cpu us: processor time a commit, client and lenders together.",
    )
}

/// A row's name: what differs from other rows.
fn describe(spec: &commit::Spec) -> String {
    let members = match spec.members {
        1 => "1 member".to_owned(),
        several => format!("{several} members"),
    };
    let durability = commit::name_of(spec.durability);
    let mut text = format!("{} B, {members}, {durability}", spec.record_bytes);
    if spec.members > 0 {
        text += if spec.wire == Wire::Unix {
            ", unix"
        } else {
            ", tcp"
        };
        text += if spec.secure { "" } else { ", insecure" };
    }
    text += &format!(", {}", spec.wait);
    if spec.threads > 1 {
        text += &format!(", {} threads", spec.threads);
    }
    if spec.added_rtt_us > 0 {
        text += &format!(", +{} us ADDED", spec.added_rtt_us);
    }
    if spec.modelled_sync_ms > 0 {
        text += &format!(", disk MODELLED +{} ms", spec.modelled_sync_ms);
    }
    text
}

impl Tpca {
    fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let time = Duration::from_millis(if self.common.quick { 500 } else { 3_000 });
        let patterns = if self.pattern.is_empty() {
            Pattern::ALL.to_vec()
        } else {
            self.pattern.clone()
        };
        let mut rows = Vec::new();
        for &accounts_k in &self.accounts {
            for &pattern in &patterns {
                for members in [0, usize::from(self.members)] {
                    let spec = tpca::Spec {
                        accounts_k,
                        pattern,
                        wait: self.wait,
                        secure: !self.insecure,
                        modelled_sync_ms: self.slow_disk_ms,
                        ..tpca::Spec::with(members, time)
                    };
                    output::remark(format_args!(
                        "measuring {accounts_k} K accounts, {}, {members} members ...",
                        pattern.name()
                    ));
                    rows.push(tpca::measure(&site, &spec, &mut |_| ())?);
                }
            }
        }
        if self.common.json {
            output::json(&json!({ "machine": Machine::look(), "rows": rows }))?;
        } else {
            show_tpca(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Rows come in pairs: the disk's, then the remote one's with its ratio.
fn show_tpca(rows: &[tpca::Row]) -> Result<()> {
    let header = [
        "accounts",
        "access",
        "durability",
        "members",
        "tps",
        "p50 us",
        "p99",
        "cpu us",
        "x disk",
    ];
    let mut table = output::table(&header, 3);
    for pair in rows.chunks(2) {
        let disk = pair[0].transactions.per_second;
        for row in pair {
            let modelled = if row.modelled_sync_ms > 0 {
                format!(", disk MODELLED +{} ms", row.modelled_sync_ms)
            } else {
                String::new()
            };
            table.add_row([
                format!("{} K", row.accounts_k),
                row.pattern.name().to_owned(),
                format!("{}{modelled}", row.durability),
                row.members.to_string(),
                output::number(row.transactions.per_second),
                output::number(row.transactions.p50_us),
                output::number(row.transactions.p99_us),
                output::number(row.transactions.cpu_us),
                output::number(row.transactions.per_second / disk),
            ]);
        }
    }
    output::line(table)
}

impl Share {
    fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let time = Duration::from_millis(if self.common.quick { 500 } else { 2_000 });
        let mut rows = Vec::new();
        for &clients in &self.clients {
            output::remark(format_args!("measuring {clients} clients ..."));
            rows.push(share::measure(&site, clients.into(), self.record, time)?);
        }
        if self.common.json {
            output::json(&json!({ "machine": Machine::look(), "rows": rows }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = output::table(
            &["clients", "commits/s", "p50 us", "p99", "cpu us", "most / least"],
            0,
        );
        for row in &rows {
            table.add_row([
                row.clients.to_string(),
                output::number(row.total.per_second),
                output::number(row.total.p50_us),
                output::number(row.total.p99_us),
                output::number(row.total.cpu_us),
                output::number(row.unfairness),
            ]);
        }
        output::line(table)?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_benchmark_of_the_standard_table_is_described_apart() {
        let table = commit::Spec::table(false);
        let names: std::collections::BTreeSet<String> = table.iter().map(describe).collect();
        assert_eq!(names.len(), table.len());
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = site(Some(Path::new("/nowhere"))).map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere"));
    }
}
