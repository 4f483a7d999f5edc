//! `netram disk show`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_volume::{Flush, Place};
use serde_json::json;

use super::{absolute, registry};
use crate::output;

/// Show a volume without opening it
///
/// Nothing is changed, no lender is asked. Beside a process that has it open, a
/// moment of a moving thing is shown.
///
///   netram disk show /var/lib/netram/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Show {
    /// The volume's directory
    volume: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let place = Place::at(&path);
        let seen = place.inspect()?;
        let settings = place.settings()?;
        let attached = registry().find(&path)?;
        let lenders: Vec<String> = settings.journal.lenders.iter().map(ToString::to_string).collect();
        let flush = match settings.flush {
            Flush::Remote => "remote",
            Flush::Disk => "disk",
        };
        let id = seen.superblock.volume.to_string();
        if self.json {
            output::json(&json!({
                "volume": path,
                "id": id,
                "bytes": seen.superblock.bytes,
                "taken_bytes": seen.image_taken_bytes,
                "journal_bytes": seen.journal_bytes,
                "in_use": seen.in_use,
                "members": seen.members,
                "lenders": lenders,
                "flush": flush,
                "attached": attached,
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let list = |names: &[String], none: &str| match names.is_empty() {
            true => none.to_owned(),
            false => names.join(", "),
        };
        let device = match &attached {
            Some(entry) if entry.alive => format!(
                "{} ({})",
                entry.record.link.display(),
                entry.record.device.display()
            ),
            Some(_) => "none: the process that served it was killed".to_owned(),
            None => "none".to_owned(),
        };
        let image = format!("{} on the disk", output::bytes(seen.image_taken_bytes));
        for (what, value) in [
            ("volume", id),
            ("size", output::bytes(seen.superblock.bytes)),
            ("image", image),
            ("journal", output::bytes(seen.journal_bytes)),
            ("in use", if seen.in_use { "yes" } else { "no" }.to_owned()),
            ("device", device),
            ("lenders", list(&lenders, "none: the local disk alone")),
            ("newest writes at", list(&seen.members, "this disk")),
            ("flush", flush.to_owned()),
        ] {
            output::line(format_args!("{what:<17} {value}"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
