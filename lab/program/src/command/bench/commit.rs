//! `netram-lab bench commit`: cost of one commit.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_bench::commit;
use netram_bench::testbed::SocketKind;
use netram_proto::port::Durability;
use netram_transport::WaitPolicy;

use super::CommonArgs;
use netram_cli::output;

/// Measure one commit: latency and throughput
///
/// Without a flag that selects a row, prints a table that varies one parameter at a time.
/// With one, measures that row alone, with defaults for the rest (128 B, one member,
/// remote, one thread, spinning, encrypted, TCP).
///
///   netram-lab bench commit
///   netram-lab bench commit --threads 8 --wait yield:50
///   netram-lab bench commit --added-rtt-us 25,50,100   # a longer wire
///   netram-lab bench commit --slow-disk-ms 1,8         # a modelled disk
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchCommit {
    #[command(flatten)]
    common: CommonArgs,
    /// Payload bytes of a record
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    record: Option<u32>,
    /// Members, each a lender process; 0: the local disk alone
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=8))]
    members: Option<u8>,
    /// Durability that a commit waits for
    #[arg(long, value_enum)]
    durability: Option<DurabilityArg>,
    /// Threads that commit to the journal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// How the client waits: spin, yield:MICROSECONDS or block
    #[arg(long, value_name = "POLICY")]
    wait: Option<WaitPolicy>,
    /// Neither encrypt links nor seal records
    #[arg(long)]
    insecure: bool,
    /// A Unix socket instead of TCP
    #[arg(long)]
    unix: bool,
    /// Microseconds to add to each round trip, by a delaying process (several rows)
    #[arg(long, value_name = "US", value_delimiter = ',')]
    added_rtt_us: Vec<u32>,
    /// Milliseconds to add to each sync, to model a slower disk (several rows)
    #[arg(long, value_name = "MS", value_delimiter = ',')]
    slow_disk_ms: Vec<u32>,
}

/// Durability that a commit waits for.
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

impl BenchCommit {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let mut rows = Vec::new();
        let specs = self.specs();
        for (index, spec) in specs.iter().enumerate() {
            output::remark(format_args!("measuring row {} of {} ...", index + 1, specs.len()));
            rows.push(commit::measure(&site, spec, self.common.effort())?);
        }
        if self.common.json {
            self.common.json(&rows)?;
        } else {
            show_commits(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn specs(&self) -> Vec<commit::CommitSpec> {
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
            return commit::CommitSpec::table(self.common.quick);
        }
        let base = commit::CommitSpec::default();
        let members = self.members.map_or(base.members, usize::from);
        let durability = match (self.durability, members) {
            (Some(durability), _) => durability.into(),
            (None, 0) => Durability::Disk,
            (None, _) => base.durability,
        };
        let spec = commit::CommitSpec {
            record_bytes: self.record.map_or(base.record_bytes, |bytes| bytes as usize),
            members,
            durability,
            threads: self.threads.map_or(base.threads, usize::from),
            wait: self.wait.unwrap_or(base.wait),
            secure: !self.insecure,
            wire: if self.unix {
                SocketKind::Unix
            } else {
                SocketKind::Tcp
            },
            ..base
        };
        let or_zero = |list: &[u32]| if list.is_empty() { vec![0] } else { list.to_vec() };
        let mut specs = Vec::new();
        for &added_rtt_us in &or_zero(&self.added_rtt_us) {
            for &modelled_sync_ms in &or_zero(&self.slow_disk_ms) {
                specs.push(commit::CommitSpec {
                    added_rtt_us,
                    modelled_sync_ms,
                    ..spec.clone()
                });
            }
        }
        specs
    }
}

fn show_commits(rows: &[commit::CommitRow]) -> Result<()> {
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
            output::number(row.sync_floor_us),
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

/// Name of a row: its differences from the default.
fn describe(spec: &commit::CommitSpec) -> String {
    let members = match spec.members {
        1 => "1 member".to_owned(),
        several => format!("{several} members"),
    };
    let durability = commit::name_of(spec.durability);
    let mut text = format!("{} B, {members}, {durability}", spec.record_bytes);
    if spec.members > 0 {
        text += if spec.wire == SocketKind::Unix {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_standard_table_have_distinct_names() {
        let table = commit::CommitSpec::table(false);
        let names: std::collections::BTreeSet<String> = table.iter().map(describe).collect();
        assert_eq!(names.len(), table.len());
    }
}
