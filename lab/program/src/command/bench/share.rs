//! `netram-lab bench lender`: one lender with a growing number of clients.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use netram_bench::share;

use super::CommonArgs;
use netram_cli::output;

/// Measure one lender with one to eight clients
///
///   netram-lab bench lender
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchLender {
    #[command(flatten)]
    common: CommonArgs,
    /// Clients, each with its own journal (several rows)
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: Vec<u8>,
    /// Payload bytes of a record
    #[arg(long, value_name = "BYTES", default_value_t = 128)]
    record: usize,
}

impl BenchLender {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let time = Duration::from_millis(if self.common.quick { 500 } else { 2_000 });
        let mut rows = Vec::new();
        for &clients in &self.clients {
            output::remark(format_args!("measuring {clients} clients ..."));
            rows.push(share::measure(&site, clients.into(), self.record, time)?);
        }
        if self.common.json {
            self.common.json(&rows)?;
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
