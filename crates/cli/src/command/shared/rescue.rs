//! `netram shared rescue`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_shared::server::{LOG_BYTES_DEFAULT, rescue};
use serde_json::json;

use crate::options::SizeArg;
use crate::output;

/// Make a region again of copies that living nodes saved, when its server is lost for good
///
/// A node that lives has the whole region in its memory; its program saves it with
/// `Node::save_copy` when the server is away. Each span is taken from the copy with
/// the highest version of its lock, so name the copies of all nodes that live: then
/// nothing is lost that one of them had acknowledged or seen. What only a node had
/// that no copy is of is lost, and such nodes are named.
///
/// The result is another region, with an id of its own. Nodes of the old one, and
/// the old server should it come back, are refused. Serve it, and have the programs
/// join it with new directories: what is in the old ones is left alone.
///
///   netram shared rescue /var/lib/netram/plan2 /mnt/desk1/copy /mnt/desk2/copy
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RescueRegion {
    /// The new region's directory, which must not exist
    region: PathBuf,
    /// The directories of saved copies
    #[arg(required = true)]
    copies: Vec<PathBuf>,
    /// Bytes of the new server's log, as of `netram shared create`
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(LOG_BYTES_DEFAULT))]
    log_size: SizeArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RescueRegion {
    pub(super) fn run(self) -> Result<ExitCode> {
        let made = rescue(&self.region, &self.copies, self.log_size.0);
        let made = made.with_context(|| format!("making {}", self.region.display()))?;
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
                "node {node}: no copy; what it committed after record {number} is lost, unless it had left or was merged"
            ))?;
        }
        output::line(format_args!(
            "region {} was made of region {}",
            made.region, made.was
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
