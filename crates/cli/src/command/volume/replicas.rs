//! `netram volume replicas`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use netram_lender::{ReplicaReport, ScrubReport};
use netram_transport::NetAddress;
use netram_volume::replica::restore::{CopyList, replicas};

use crate::options::SecurityArgs;
use crate::output;

/// List the copies of volumes that a data lender keeps on its disk
///
/// If the lender was started with --data-listen, name that address, and the key of its
/// --data-key-file instead of the cluster key.
///
///   netram volume replicas tcp://10.0.0.4:7420
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ListReplicas {
    /// The data lender: tcp://HOST:PORT or unix:/PATH
    #[arg(value_name = "ADDRESS")]
    lender: NetAddress,
    #[command(flatten)]
    security: SecurityArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListReplicas {
    pub(super) fn run(self) -> Result<ExitCode> {
        let CopyList {
            copies: kept,
            left_out,
        } = replicas(&self.lender, &self.security.security()?)?;
        match self.json {
            true => output::json(&kept)?,
            false if kept.is_empty() => output::remark("no copies of volumes"),
            false => {
                let columns = [
                    "volume", "state", "client", "size", "takes", "flushed", "applied", "scrubbed",
                ];
                let mut table = output::table(&columns, 3);
                for replica in &kept {
                    table.add_row(cells(replica));
                }
                output::line(table)?;
                output::remark(total(&kept));
            }
        }
        if left_out > 0 {
            let more = output::counted(left_out, "more copy", "more copies");
            output::remark(format_args!(
                "{more} did not fit the answer: `netram lender status` counts all"
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns what all copies take on the disk.
fn total(kept: &[ReplicaReport]) -> String {
    let sum = |bytes: fn(&ReplicaReport) -> u64| kept.iter().map(bytes).fold(0, u64::saturating_add);
    format!(
        "{} {}, and {} once all blocks are written, which --data-quota limits",
        output::counted(kept.len() as u64, "copy takes", "copies take"),
        output::bytes(sum(|replica| replica.taken_bytes)),
        output::bytes(sum(|replica| replica.promised_bytes)),
    )
}

/// Returns when a copy was last compared with its checksums, and what that found.
fn scrub_text(scrub: &ScrubReport) -> String {
    let when = match (scrub.done_bytes, scrub.ended_age_s) {
        (Some(done), _) => format!("{} so far", output::bytes(done)),
        (None, Some(age)) => format!("{} ago", output::age(Duration::from_secs(age))),
        (None, None) => return "not yet".to_owned(),
    };
    match scrub.found_blocks {
        0 => when,
        found => format!("{when}: {found} bad, {} repaired", scrub.mended_blocks),
    }
}

fn cells(replica: &ReplicaReport) -> [String; 8] {
    let state = match &replica.error {
        Some(error) => format!("{}: {error}", replica.state),
        None => replica.state.clone(),
    };
    let client = match replica.last_contact_age_ms {
        Some(ms) => format!("heard {} ago", output::age(Duration::from_millis(ms))),
        None => "away".to_owned(),
    };
    let position = |at: Option<u64>| at.map(|at| at.to_string()).unwrap_or_default();
    [
        replica.volume.clone(),
        state,
        client,
        output::bytes(replica.bytes),
        output::bytes(replica.taken_bytes),
        position(replica.flushed),
        position(replica.applied),
        scrub_text(&replica.scrub),
    ]
}
