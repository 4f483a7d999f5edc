//! `netram shared merge`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_shared::server::{OrphanMerge, RegionStore, merge_orphans};
use serde_json::{Value, json};

use crate::output;

/// Merge nodes' directories into a region that is not being served
///
/// For a power cut of all machines, or for a node whose lenders are lost and whose disk is not.
/// Lenders named in the nodes' settings are asked too. If a record depends on one that is
/// missing, nothing is changed, and the lock, version and node of the missing one are shown. An
/// interrupted command can be run again. Afterwards the nodes are gone, and their programs may
/// join anew.
///
///   netram shared merge /var/lib/netram/plan /mnt/desk1/node /mnt/desk2/node
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct MergeRegion {
    /// The region's directory
    region: PathBuf,
    /// Directories of nodes
    #[arg(required = true)]
    nodes: Vec<PathBuf>,
    /// Go on even if acknowledged records may be missing because lenders do not answer
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl MergeRegion {
    pub(super) fn run(self) -> Result<ExitCode> {
        let what = || format!("merging into {}", self.region.display());
        let (mut store, _) = RegionStore::open(&self.region, || ()).with_context(what)?;
        let done = merge_orphans(&mut store, &self.nodes, self.accept_loss);
        let position = store.table().counters.position;
        store.close().with_context(what)?;
        let done = done.with_context(what)?;
        match self.json {
            true => output::json(&json!({
                "region": self.region,
                "position": position.0,
                "nodes": done.iter().map(one_as_json).collect::<Vec<_>>(),
            }))?,
            false => {
                for one in &done {
                    output::line(format_args!(
                        "{}: node {}, {} merged, up to number {}",
                        one.root.display(),
                        one.node,
                        output::count(one.merged, "record"),
                        one.last
                    ))?;
                }
                output::line(format_args!("the region is at position {position}"))?;
            }
        }
        for one in &done {
            if let Some(loss) = &one.loss_accepted {
                output::remark(format_args!("netram: {}: accepted: {loss}", one.root.display()));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn one_as_json(one: &OrphanMerge) -> Value {
    json!({
        "directory": one.root,
        "node": one.node.0,
        "merged": one.merged,
        "last": one.last.0,
        "loss_accepted": one.loss_accepted,
    })
}
