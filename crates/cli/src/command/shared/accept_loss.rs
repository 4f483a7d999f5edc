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

/// Give up commits of a dead node that cannot be recovered, so that its locks are free again
///
/// A dead node keeps its locks until its journal has been read to its end. If its lenders are
/// lost for good, that would be forever. This command shows what is in doubt, and then has the
/// server go on without it: commits that were acknowledged to the node may be missing. The loss
/// is recorded with the node's id.
///
/// Before using it, bring back the lenders that `netram shared status` names, or start the node
/// again with its directory; or stop the server and merge that directory (`netram shared merge`).
///
///   netram shared accept-loss /var/lib/netram/plan --node 7 --show
///   netram shared accept-loss /var/lib/netram/plan --node 7
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AcceptRegionLoss {
    /// The region's directory, on the machine that serves it
    region: PathBuf,
    /// The node's id, as `netram shared status` shows it
    #[arg(long, value_name = "ID")]
    node: u64,
    /// Only show what may be lost; change nothing
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
                "{region} is an address; a loss can be accepted on the server's machine only: name the region's directory there"
            );
            return Err(UsageError(sentence).into());
        }
        let unserved = || {
            anyhow!(
                "{region} is not being served: start `netram shared serve`, which reads the nodes' journals"
            )
        };
        let report = control::ask(&self.region)?.ok_or_else(unserved)?;
        let node = report.nodes.iter().find(|node| node.node == self.node);
        let node = node.ok_or_else(|| {
            anyhow!(
                "there is no node {}, or it has left; `netram shared status {region}` lists the nodes",
                self.node
            )
        })?;
        let stuck = node.stuck.as_ref().ok_or_else(|| {
            anyhow!(
                "node {} ({}) is {}: there is nothing to give up",
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
                "accepted: the server goes on without it; `netram shared status {region}` shows when node {} is gone",
                self.node
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints what may be lost.
fn show(node: &NodeReport, stuck: &StuckReport) -> Result<()> {
    output::line(format_args!(
        "node {} ({}) is {}: {}",
        node.node,
        output::plain(&node.name),
        node.standing,
        output::plain(&stuck.reason)
    ))?;
    for lender in &stuck.lenders {
        output::line(format_args!(
            "this lender must answer, and does not: {}",
            output::plain(lender)
        ))?;
    }
    output::line(format_args!(
        "its records up to number {} are in the region; what it had committed after that may be lost",
        node.merged
    ))
}
