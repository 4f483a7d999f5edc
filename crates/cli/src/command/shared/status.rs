//! `netram shared status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use netram_shared::server::serve::report::{LockReport, NodeReport, RegionReport};
use netram_shared::server::serve::{control, inquiry};
use netram_shared::server::{NodeEntry, NodeEntryState, ServerReport};
use netram_transport::NetAddress;
use serde_json::{Value, json};

use super::inspect::InspectedRegion;
use crate::options::{DurationArg, SecurityArgs, UsageError};
use crate::output;

/// Show a region: its size, locks, position and nodes
///
/// Nothing is changed. Given the region's directory, it is read, and a server of it on this
/// machine is asked for its nodes' connections and for locks that are waited for. Given the
/// server's address, only the server is asked, with the cluster key.
///
/// The exit code is 1 if the log is damaged or the server does not answer.
///
///   netram shared status /var/lib/netram/plan
///   netram shared status tcp://10.0.0.5:7440
///   netram shared status unix:/run/plan.sock --insecure --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowRegion {
    /// The region's directory, or the address of its server: tcp://HOST:PORT or unix:/PATH
    region: String,
    #[command(flatten)]
    security: SecurityArgs,
    /// How long to wait for the server at an address
    #[arg(long, value_name = "TIME", default_value = "5s")]
    timeout: DurationArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A region, as its server or its directory describes it.
struct RegionView<'a> {
    name: &'a str,
    region: RegionReport,
    position: u64,
    nodes: Vec<RegionNodeView>,
}

/// A node, as its server or the directory describes it.
struct RegionNodeView {
    node: u64,
    name: String,
    standing: String,
    journal: String,
    records: u64,
    lsn: u64,
    lenders: Vec<String>,
}

impl ShowRegion {
    pub(super) fn run(self) -> Result<ExitCode> {
        match address(&self.region)? {
            Some(address) => self.of_server(&address),
            None => self.of_directory(),
        }
    }

    fn of_server(&self, address: &NetAddress) -> Result<ExitCode> {
        let security = self.security.security()?;
        let asked = inquiry::ask(address, &security, self.timeout.0);
        // The error may quote text of the other side.
        let mut report = asked.map_err(|error| anyhow!(output::plain(&error.to_string())))?;
        let region = report.region.take().unwrap_or_default();
        let shown = RegionView {
            name: &self.region,
            region,
            position: report.position,
            nodes: report.nodes.iter().map(RegionNodeView::from_report).collect(),
        };
        match self.json {
            true => output::json(&shown.to_json(Some(&report)))?,
            false => {
                shown.print()?;
                print_served(&report)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn of_directory(&self) -> Result<ExitCode> {
        let root = PathBuf::from(&self.region);
        let seen = InspectedRegion::at(&root)?;
        let served = match seen.is_served() {
            true => control::ask(&root)?,
            false => None,
        };
        // The region is shown as its directory was read here.
        let served = served.map(|report| ServerReport {
            region: None,
            ..report
        });
        let table = &seen.table;
        let shown = RegionView {
            name: &self.region,
            region: RegionReport::of(table),
            position: table.counters.position.0,
            nodes: table.nodes.iter().map(RegionNodeView::from_table).collect(),
        };
        match self.json {
            true => {
                let mut json = shown.to_json(served.as_ref());
                json["served"] = seen.is_served().into();
                json["damage"] = json!(seen.verdict.damage);
                json["notes"] = json!(seen.verdict.notes);
                output::json(&json)?;
            }
            false => {
                shown.print()?;
                if let Some(report) = &served {
                    print_served(report)?;
                }
                seen.verdict.print()?;
            }
        }
        seen.look.caution();
        Ok(seen.verdict.exit_code())
    }
}

/// Whether the text is an address, and not a directory.
pub(super) fn is_address(region: &str) -> bool {
    region.starts_with("unix:") || region.contains("://")
}

/// Returns the address that the text names; `None` if it names a directory.
fn address(region: &str) -> Result<Option<NetAddress>> {
    match is_address(region) {
        true => match region.parse() {
            Ok(address) => Ok(Some(address)),
            Err(error) => Err(UsageError(format!("{region}: {error}")).into()),
        },
        false => Ok(None),
    }
}

impl RegionNodeView {
    /// Makes it from the region's table.
    fn from_table(node: &NodeEntry) -> RegionNodeView {
        let standing = match node.state {
            NodeEntryState::Live => "live",
            NodeEntryState::Fencing => "being fenced",
            NodeEntryState::Retired => "gone",
        };
        RegionNodeView {
            node: node.id.0,
            name: node.name.clone(),
            standing: standing.to_owned(),
            journal: node.view.journal.to_string(),
            records: node.merged.0,
            lsn: node.end.lsn.0,
            lenders: node.lenders().map(str::to_owned).collect(),
        }
    }

    /// Makes it from the server's report.
    fn from_report(node: &NodeReport) -> RegionNodeView {
        RegionNodeView {
            node: node.node,
            name: node.name.clone(),
            standing: node.standing.clone(),
            journal: node.journal.clone(),
            records: node.merged,
            lsn: node.lsn,
            lenders: node.lenders.clone(),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "node": self.node,
            "name": self.name,
            "standing": self.standing,
            "journal": self.journal,
            "records": self.records,
            "lsn": self.lsn,
            "lenders": self.lenders,
        })
    }
}

impl RegionView<'_> {
    fn to_json(&self, served: Option<&ServerReport>) -> Value {
        let region = &self.region;
        json!({
            "region": self.name,
            "id": region.id,
            "bytes": region.bytes,
            "address": region.address,
            "locks": region.locks,
            "locks_written": region.locks_written,
            "position": self.position,
            "nodes": self.nodes.iter().map(RegionNodeView::to_json).collect::<Vec<_>>(),
            "nodes_gone": region.nodes_gone,
            "losses_accepted": region.losses_accepted.iter().map(|loss| loss.node).collect::<Vec<_>>(),
            "served": served.is_some(),
            "server": served,
        })
    }

    fn print(&self) -> Result<()> {
        let region = &self.region;
        output::line(format_args!("region {}", self.name))?;
        output::line(format_args!("id {}", output::plain(&region.id)))?;
        if region.address > 0 {
            output::line(format_args!("mapped at {:#x}", region.address))?;
        }
        output::line(format_args!(
            "{}, {}, {} of them used for writing",
            output::bytes(region.bytes),
            output::count(region.locks as u64, "lock"),
            region.locks_written
        ))?;
        output::line(format_args!(
            "position {}, {} live or being fenced, {} gone",
            self.position,
            output::count(self.nodes.len() as u64, "node"),
            region.nodes_gone
        ))?;
        if !self.nodes.is_empty() {
            let mut nodes = output::table(&["node", "name", "standing", "lenders", "records"], 4);
            for node in &self.nodes {
                nodes.add_row([
                    node.node.to_string(),
                    output::plain(&node.name),
                    output::plain(&node.standing),
                    output::plain(&node.lenders.join(" ")),
                    node.records.to_string(),
                ]);
            }
            output::line(nodes)?;
        }
        for loss in &region.losses_accepted {
            output::line(format_args!(
                "node {} ended with record {}; it was accepted that acknowledged later ones may be missing",
                loss.node, loss.last
            ))?;
        }
        Ok(())
    }
}

/// Prints the server's report.
fn print_served(report: &ServerReport) -> Result<()> {
    let addresses = output::plain(&report.addresses.join(" "));
    output::line(format_args!(
        "served at {addresses} for {} s, lease {} ms, {} of {} records kept",
        report.uptime_s, report.lease_ms, report.kept, report.position
    ))?;
    if report.shortened {
        output::line("names and addresses are left out: the report would be too long for one answer")?;
    }
    for node in &report.nodes {
        output::line(output::plain(&node_line(node)))?;
    }
    let untold = report.waited_for_count.saturating_sub(report.waited_for.len());
    for lock in &report.waited_for {
        output::line(lock_line(lock))?;
    }
    if untold > 0 {
        let untold = output::count(untold as u64, "more lock");
        output::line(format_args!("{untold} waited for"))?;
    }
    for missing in &report.missing {
        output::line(output::plain(missing))?;
    }
    Ok(())
}

fn node_line(node: &NodeReport) -> String {
    let mut line = format!("node {} is {}", node.node, node.standing);
    match &node.peer {
        Some(peer) => line += &format!(", linked from {peer}"),
        None => line += ", not linked",
    }
    if let Some(behind) = node.behind {
        line += &format!(", {} behind", output::count(behind, "record"));
    }
    if let Some(why) = &node.why {
        line += &format!(", fenced: {why}");
    }
    if let Some(stuck) = &node.stuck {
        let tried = output::count(stuck.attempts.into(), "attempt");
        line += &format!("; {tried} to read its journal: {}", stuck.reason);
        if !stuck.lenders.is_empty() {
            line += &format!("; these must answer: {}", stuck.lenders.join(", "));
        }
        line += &format!(
            ". If they are lost for good, `netram shared accept-loss --node {}` goes on without them: its commits after record {} may \
             be lost then",
            node.node, node.merged
        );
    }
    line
}

fn lock_line(lock: &LockReport) -> String {
    let holders = lock.holders.iter().map(|holder| match holder.exclusive {
        true => format!("node {}", holder.node),
        false => format!("node {} to read", holder.node),
    });
    let holders: Vec<String> = holders.collect();
    let held = match holders.is_empty() {
        true => "held by no node".to_owned(),
        false => format!("held by {}", holders.join(", ")),
    };
    let waiting = output::count(lock.waiting as u64, "node");
    format!("lock {} is waited for by {waiting}, {held}", lock.lock)
}
