//! `netram disk replicas`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use netram_lender::ReplicaReport;
use netram_transport::Address;
use netram_volume::replica::restore::replicas;

use crate::options::SecurityArgs;
use crate::output;

/// List the copies of volumes that a data lender keeps
///
/// The key is that of its data sessions, if it has one (`netram lend --data-key-file`),
/// otherwise the cluster key.
///
///   netram disk replicas tcp://10.0.0.4:7420 --key-file /etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Replicas {
    /// The data lender: tcp://host:port or unix:/path
    #[arg(value_name = "ADDRESS")]
    lender: Address,
    #[command(flatten)]
    security: SecurityArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Replicas {
    pub(super) fn run(self) -> Result<ExitCode> {
        let kept = replicas(&self.lender, &self.security.security()?)?;
        match self.json {
            true => output::json(&kept)?,
            false if kept.is_empty() => output::remark("no copies of volumes"),
            false => {
                let mut table =
                    output::table(&["volume", "state", "client", "size", "flushed", "applied"], 3);
                for replica in &kept {
                    table.add_row(cells(replica));
                }
                output::line(table)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn cells(replica: &ReplicaReport) -> [String; 6] {
    let state = match &replica.error {
        Some(error) => format!("{}: {error}", replica.state),
        None => replica.state.clone(),
    };
    let client = match replica.last_contact_age_ms {
        Some(ms) => format!("heard {} ago", output::age(Duration::from_millis(ms))),
        None => "away".to_owned(),
    };
    // Positions are known of those that are open.
    let position = |at: u64| match replica.connected {
        true => at.to_string(),
        false => String::new(),
    };
    [
        replica.volume.clone(),
        state,
        client,
        output::bytes(replica.bytes),
        position(replica.flushed),
        position(replica.applied),
    ]
}
