//! `netram shared status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_shared::server::serve::control;
use netram_shared::server::serve::report::{LockReport, NodeReport};
use netram_shared::server::{Gone, Node, Report, Standing, Table};
use serde_json::{Value, json};

use super::look::Seen;
use crate::output;

/// Show a region: its size, locks, position and nodes
///
/// Nothing is changed. Of a region that is served meanwhile the server is asked
/// too: who is linked, how far each node is, who waits for locks. Of a node that
/// is being fenced, the lenders named must answer before its locks are given on.
///
///   netram shared status /var/lib/netram/plan
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Status {
    /// The region's directory
    region: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(self) -> Result<ExitCode> {
        let seen = Seen::at(&self.region)?;
        let served = match seen.is_served() {
            true => control::ask(&self.region)?,
            false => None,
        };
        match self.json {
            true => output::json(&seen_as_json(&self, &seen, served.as_ref()))?,
            false => {
                print(&self, &seen)?;
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

fn standing(node: &Node) -> &'static str {
    match node.standing {
        Standing::Live => "live",
        Standing::Fencing => "being fenced",
        Standing::Buried => "gone",
    }
}

fn lenders(node: &Node) -> Vec<&str> {
    let members = node.view.members.iter();
    members.map(|member| member.address.as_str()).collect()
}

fn seen_as_json(status: &Status, seen: &Seen, served: Option<&Report>) -> Value {
    let table = &seen.table;
    let nodes = table.nodes.iter().map(|node| {
        json!({
            "node": node.id.0,
            "name": node.name,
            "standing": standing(node),
            "journal": node.view.journal.to_string(),
            "records": node.merged.0,
            "lsn": node.end.lsn.0,
            "lenders": lenders(node),
        })
    });
    let nodes: Vec<Value> = nodes.collect();
    json!({
        "region": status.region,
        "id": table.region.to_string(),
        "bytes": table.bytes,
        "address": table.address,
        "locks": table.spans.len(),
        "locks_written": table.versions().count(),
        "position": table.counters.position.0,
        "nodes": nodes,
        "nodes_gone": table.counters.gone,
        "losses_accepted": lossy(table).map(|gone| gone.id.0).collect::<Vec<_>>(),
        "served": seen.is_served(),
        "server": served,
        "damage": seen.verdict.damage,
        "notes": seen.verdict.notes,
    })
}

fn print(status: &Status, seen: &Seen) -> Result<()> {
    let table = &seen.table;
    output::line(format_args!("region {}", status.region.display()))?;
    output::line(format_args!("id {}", table.region))?;
    if table.address > 0 {
        output::line(format_args!("mapped at {:#x}", table.address))?;
    }
    output::line(format_args!(
        "{}, {}, {} of them written under",
        output::bytes(table.bytes),
        output::count(table.spans.len() as u64, "lock"),
        table.versions().count()
    ))?;
    output::line(format_args!(
        "position {}, {} live or being fenced, {} gone",
        table.counters.position,
        output::count(table.nodes.len() as u64, "node"),
        table.counters.gone
    ))?;
    if !table.nodes.is_empty() {
        let mut nodes = output::table(&["node", "name", "standing", "lenders", "records"], 4);
        for node in &table.nodes {
            nodes.add_row([
                node.id.to_string(),
                // It is what the node says: no control characters.
                node.name.escape_debug().to_string(),
                standing(node).to_owned(),
                lenders(node).join(" "),
                node.merged.to_string(),
            ]);
        }
        output::line(nodes)?;
    }
    for gone in lossy(table) {
        output::line(format_args!(
            "node {} is gone with record {}: that acknowledged ones behind it may be missing was accepted",
            gone.id, gone.last
        ))?;
    }
    Ok(())
}

fn lossy(table: &Table) -> impl Iterator<Item = &Gone> {
    table.gone.iter().filter(|gone| gone.loss_accepted)
}

/// What the server says.
fn print_served(report: &Report) -> Result<()> {
    let addresses = report.addresses.join(" ");
    output::line(format_args!(
        "served at {addresses} for {} s, lease {} ms, {} of {} records kept",
        report.uptime_s, report.lease_ms, report.kept, report.position
    ))?;
    for node in &report.nodes {
        output::line(node_line(node))?;
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
        output::line(missing)?;
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
            ". What cannot be had any more is given up with `netram shared accept-loss --node {}`",
            node.node
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
        true => "held by nobody".to_owned(),
        false => format!("held by {}", holders.join(", ")),
    };
    let waiting = output::count(lock.waiting as u64, "node");
    format!("lock {} is waited for by {waiting}, {held}", lock.lock)
}
