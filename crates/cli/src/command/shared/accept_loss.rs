//! `netram shared accept-loss`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use netram_shared::server::serve::control;
use netram_shared::server::serve::report::{NodeReport, StuckReport};
use netram_shared_machine::NodeId;
use serde_json::json;

use super::status::is_address;
use crate::options::UsageError;
use crate::output;

/// Give up what cannot be proven of a dead node, so that its locks go on
///
/// A dead node's locks stay taken until its journal has been read to its proven
/// end. Where its lenders are lost for good, or it has a record that depends on
/// what nobody can bring, that would be for ever. This command shows what is in
/// doubt, and then has the server go on without it: commits that the node was told
/// were safe may be missing afterwards. That is written down with the node's id.
///
/// Before it, bring the lenders back that `netram shared status` names, or start
/// the node again at its directory; or merge the directory, with the server
/// stopped (`netram shared merge`), which lessens the loss.
///
///   netram shared accept-loss /var/lib/netram/plan --node 7 --show
///   netram shared accept-loss /var/lib/netram/plan --node 7
///   netram shared accept-loss /var/lib/netram/plan --node 7 --show --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AcceptRegionLoss {
    /// The region's directory; it is being served
    region: PathBuf,
    /// The node's id, as `netram shared status` shows it
    #[arg(long, value_name = "ID")]
    node: u64,
    /// Only show what may be lost
    #[arg(long)]
    show: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl AcceptRegionLoss {
    pub(super) fn run(self) -> Result<ExitCode> {
        let region = self.region.display();
        if is_address(&region.to_string()) {
            let sentence = format!(
                "{region} is an address; a loss is accepted on the server's machine only: name the region's directory there"
            );
            return Err(UsageError(sentence).into());
        }
        let unserved =
            || anyhow!("nobody serves {region}: start `netram shared serve`, which reads what there is");
        let report = control::ask(&self.region)?.ok_or_else(unserved)?;
        let node = report.nodes.iter().find(|node| node.node == self.node);
        let node = node.ok_or_else(|| {
            anyhow!(
                "there is no node {}, or it is gone; `netram shared status {region}` lists the nodes",
                self.node
            )
        })?;
        let stuck = node.stuck.as_ref().ok_or_else(|| {
            anyhow!(
                "node {} ({}) is {}: nothing of it has to be given up",
                node.node,
                output::plain(&node.name),
                node.standing
            )
        })?;
        if !self.json {
            show(node, stuck)?;
        }
        if !self.show {
            control::accept_loss(&self.region, NodeId(self.node))?.ok_or_else(unserved)?;
        }
        if self.json {
            output::json(&json!({
                "node": node.node,
                "name": node.name,
                "standing": node.standing,
                "records": node.merged,
                "reason": stuck.reason,
                "lenders": stuck.lenders,
                "attempts": stuck.attempts,
                "seconds": stuck.seconds,
                "accepted": !self.show,
            }))?;
        } else if !self.show {
            output::line(format_args!(
                "accepted: the server goes on without it, and `netram shared status {region}` says when node {} is gone",
                self.node
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What may be lost.
fn show(node: &NodeReport, stuck: &StuckReport) -> Result<()> {
    output::line(format_args!(
        "node {} ({}) is {}: {}",
        node.node,
        output::plain(&node.name),
        node.standing,
        output::plain(&stuck.reason)
    ))?;
    for lender in &stuck.lenders {
        output::line(format_args!("needed, and missing: {}", output::plain(lender)))?;
    }
    output::line(format_args!(
        "its records up to number {} are in the region; what it had committed after that may be lost",
        node.merged
    ))
}
