//! `netram shared status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_shared::server::{Node, Standing};
use serde_json::{Value, json};

use super::look::Seen;
use crate::output;

/// Show a region: its size, locks, position and nodes
///
/// Nothing is changed and nobody is asked; the region may be served meanwhile. Of
/// a node that is being fenced, the lenders named must answer before its locks
/// are given on.
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
        match self.json {
            true => output::json(&seen_as_json(&self, &seen))?,
            false => print(&self, &seen)?,
        }
        seen.look.caution();
        Ok(seen.verdict.exit_code())
    }
}

fn standing(node: &Node) -> &'static str {
    match node.standing {
        Standing::Live => "live",
        Standing::Fencing => "being fenced",
    }
}

fn lenders(node: &Node) -> Vec<&str> {
    let members = node.view.members.iter();
    members.map(|member| member.address.as_str()).collect()
}

fn seen_as_json(status: &Status, seen: &Seen) -> Value {
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
        "served": seen.is_served(),
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
    seen.verdict.print()
}
