//! `netram shared check`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::inspect::InspectedRegion;
use crate::output;

/// Check a region's directory for damage and contradictions
///
/// Checks the log's checksums, the table of locks and nodes, and the region's file against the
/// table. The region's bytes have no checksums. Nothing is changed. The exit code is 1 if
/// something is wrong.
///
///   netram shared check /var/lib/netram/plan
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CheckRegion {
    /// The region's directory
    region: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CheckRegion {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut seen = InspectedRegion::at(&self.region)?;
        let faults = seen.table.faults();
        // While it is served, log and file may be of different moments.
        let faults = faults.iter().map(ToString::to_string);
        match seen.is_served() {
            true => seen.verdict.notes.extend(faults),
            false => seen.verdict.damage.extend(faults),
        }
        match &seen.region_bytes {
            Ok(found) if *found == seen.table.bytes => (),
            Ok(found) => seen.verdict.damage.push(format!(
                "the region's file has {found} bytes, the table says {}",
                seen.table.bytes
            )),
            Err(trouble) => seen.verdict.damage.push(trouble.clone()),
        }
        let position = seen.table.counters.position;
        match self.json {
            true => output::json(&json!({
                "region": self.region,
                "position": position.0,
                "damage": seen.verdict.damage,
                "notes": seen.verdict.notes,
            }))?,
            false => {
                seen.verdict.print()?;
                if seen.verdict.damage.is_empty() {
                    output::line(format_args!("no damage found, at position {position}"))?;
                }
            }
        }
        seen.look.caution();
        Ok(seen.verdict.exit_code())
    }
}
