//! `netram mount list`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::table::{MountBase, MountedDirectory, mounted};
use crate::output;

/// List the directories that netram has mounted on this machine
///
/// They are those in the kernel's table of mounts, each with its journal or volume.
///
///   netram mount list
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ListMounts {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListMounts {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mounts = mounted()?;
        match self.json {
            true => output::json(&mounts.iter().map(as_json).collect::<Vec<_>>())?,
            false if mounts.is_empty() => output::remark("no mounts"),
            false => {
                let mut table = output::table(&["directory", "kind", "on"], 3);
                for mount in &mounts {
                    table.add_row(cells(mount));
                }
                output::line(table)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn cells(mount: &MountedDirectory) -> [String; 3] {
    let (kind, on) = match &mount.on {
        MountBase::Journal(journal) => (
            "journal",
            journal
                .as_ref()
                .map_or_else(|| "unknown".to_owned(), |journal| journal.display().to_string()),
        ),
        MountBase::Volume { volume, device } => {
            ("volume", format!("{} ({})", volume.display(), device.display()))
        }
    };
    [mount.dir.display().to_string(), kind.to_owned(), on]
}

fn as_json(mount: &MountedDirectory) -> Value {
    match &mount.on {
        MountBase::Journal(journal) => json!({ "directory": mount.dir, "journal": journal }),
        MountBase::Volume { volume, device } => {
            json!({ "directory": mount.dir, "volume": volume, "device": device })
        }
    }
}
