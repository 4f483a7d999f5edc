//! `netram-lab bench tpca`: TPC-A on recoverable memory, disk beside remote.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use netram_bench::tpca::{self, AccessPattern};
use netram_transport::WaitPolicy;

use super::CommonArgs;
use netram_cli::output;

/// Run TPC-A on recoverable memory: local disk beside remote memory, the same
/// code
///
/// One branch, ten tellers, N x 1,024 accounts of 128 bytes, an audit trail of
/// 64-byte records. The books are audited after each row.
///
///   netram-lab bench tpca
///   netram-lab bench tpca --accounts 32,1024 --pattern localised --slow-disk-ms 8
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchTpca {
    #[command(flatten)]
    common: CommonArgs,
    /// Accounts, in units of 1,024 (several rows)
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "32", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    accounts: Vec<u64>,
    /// Access patterns: sequential, random, localised [default: all three]
    #[arg(long, value_delimiter = ',')]
    pattern: Vec<AccessPattern>,
    /// Members of the remote rows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    members: u8,
    /// Wait policy of client and lenders
    #[arg(long, value_name = "POLICY", default_value = "yield:50")]
    wait: WaitPolicy,
    /// Neither encrypt links nor seal records
    #[arg(long)]
    insecure: bool,
    /// Milliseconds to add to each sync, to model a slower disk
    #[arg(long, value_name = "MS", default_value_t = 0)]
    slow_disk_ms: u32,
}

impl BenchTpca {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let time = Duration::from_millis(if self.common.quick { 500 } else { 3_000 });
        let patterns = if self.pattern.is_empty() {
            AccessPattern::ALL.to_vec()
        } else {
            self.pattern.clone()
        };
        let mut rows = Vec::new();
        for &accounts_k in &self.accounts {
            for &pattern in &patterns {
                for members in [0, usize::from(self.members)] {
                    let spec = tpca::TpcaSpec {
                        accounts_k,
                        pattern,
                        wait: self.wait,
                        secure: !self.insecure,
                        modelled_sync_ms: self.slow_disk_ms,
                        ..tpca::TpcaSpec::with(members, time)
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
            self.common.json(&rows)?;
        } else {
            show_tpca(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Rows come in pairs: the disk's, then the remote one's with the ratio of the two.
fn show_tpca(rows: &[tpca::TpcaRow]) -> Result<()> {
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
