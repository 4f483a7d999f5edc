//! `netram shared rescue`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_shared::server::{LOG_BYTES_DEFAULT, rescue};
use serde_json::json;

use crate::options::SizeArg;
use crate::output;

/// Make a new region from copies that nodes saved, after the server was lost for good
///
/// A running node has the whole region in its memory; its program saves it with
/// `Node::save_copy` while the server is away. Each span comes from the copy with the newest
/// version, so give the copies of all running nodes: then nothing is lost that one of them had
/// acknowledged or seen. Nodes without a copy are listed.
///
/// The result is another region with its own id. Nodes of the old region, and its server should
/// it come back, are refused. Serve the new one, and have the programs join it with new
/// directories.
///
///   netram shared rescue /var/lib/netram/plan2 /mnt/desk1/copy /mnt/desk2/copy
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RescueRegion {
    /// The new region's directory, which must not exist
    region: PathBuf,
    /// Directories of saved copies
    #[arg(required = true)]
    copies: Vec<PathBuf>,
    /// Bytes of the new server's log, as for `netram shared create`
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(LOG_BYTES_DEFAULT))]
    log_size: SizeArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RescueRegion {
    pub(super) fn run(self) -> Result<ExitCode> {
        let made = rescue(&self.region, &self.copies, self.log_size.0);
        let made = made.with_context(|| format!("creating {}", self.region.display()))?;
        if self.json {
            output::json(&json!({
                "region": made.region.to_string(),
                "was": made.was.to_string(),
                "copies": made.copies.iter().map(|(path, node, locks)| json!({
                    "directory": path, "node": node.0, "locks": locks,
                })).collect::<Vec<_>>(),
                "absent": made.absent.iter().map(|(node, number)| json!({
                    "node": node.0, "last": number.0,
                })).collect::<Vec<_>>(),
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        for (path, node, locks) in &made.copies {
            let locks = output::count(*locks as u64, "lock");
            output::line(format_args!(
                "{}: node {node}, the newest of {locks}",
                path.display()
            ))?;
        }
        for (node, number) in &made.absent {
            output::line(format_args!(
                "node {node}: no copy; its commits after record {number} are lost, unless it had left or was merged"
            ))?;
        }
        output::line(format_args!(
            "region {} was made of region {}",
            made.region, made.was
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
