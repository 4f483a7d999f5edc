//! `netram volume list`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_attach::AttachEntry;
use netram_volume::{VolumeInspection, VolumePaths, unfinished_in};
use serde_json::json;

use super::{is_root, registry};
use crate::output;

/// List volumes, with their state and device
///
/// Without DIR, lists what is attached on this machine.
///
///   netram volume list
///   netram volume list /var/lib/netram
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ListVolumes {
    /// Volumes, or directories with volumes in them [default: what is attached on this machine]
    dir: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the list.
struct VolumeLine {
    volume: PathBuf,
    seen: Result<VolumeInspection, String>,
    attached: Option<AttachEntry>,
}

impl ListVolumes {
    pub(super) fn run(self) -> Result<ExitCode> {
        // Only root may read what is attached; to list a directory it is not needed.
        let attached = match registry().entries() {
            Err(_) if !self.dir.is_empty() && !is_root() => Vec::new(),
            Err(error) if !is_root() => {
                bail!("only root sees what is attached ({error}); `netram volume list DIR` needs no root")
            }
            read => read?,
        };
        let mut volumes = Vec::new();
        for dir in &self.dir {
            volumes.extend(volumes_in(dir)?);
        }
        if self.dir.is_empty() {
            volumes.extend(attached.iter().map(|entry| entry.record.volume.clone()));
        }
        let lines: Vec<VolumeLine> = volumes
            .into_iter()
            .map(|volume| line(volume, &attached))
            .collect();
        match self.json {
            true => output::json(&lines.iter().map(VolumeLine::json).collect::<Vec<_>>())?,
            false if lines.is_empty() => output::remark("no volumes"),
            false => {
                let mut table = output::table(&["volume", "state", "device", "size", "taken"], 3);
                for line in &lines {
                    table.add_row(line.cells());
                }
                output::line(table)?;
            }
        }
        for dir in &self.dir {
            remark_unfinished(dir);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the remains of killed commands in `dir`, which take space.
fn remark_unfinished(dir: &Path) {
    for (path, name) in unfinished_in(dir) {
        output::remark(format_args!(
            "{} is the rest of a volume that was not created in full: remove it, or create {} again, which removes it",
            path.display(),
            name.display()
        ));
    }
}

/// Returns the volume at `dir`, or the volumes in it.
fn volumes_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let dir = dir
        .canonicalize()
        .with_context(|| format!("looking at {}", dir.display()))?;
    if VolumePaths::at(&dir).exists() {
        return Ok(vec![dir]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if VolumePaths::at(&path).exists() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn line(volume: PathBuf, attached: &[AttachEntry]) -> VolumeLine {
    let mine = |entry: &&AttachEntry| entry.record.volume == volume;
    VolumeLine {
        seen: VolumePaths::at(&volume)
            .inspect()
            .map_err(|error| error.to_string()),
        attached: attached.iter().find(mine).cloned(),
        volume,
    }
}

impl VolumeLine {
    fn state(&self) -> String {
        match (&self.seen, &self.attached) {
            // Root looks at no user's files.
            (_, Some(entry)) if entry.alive => "attached".to_owned(),
            (Err(error), _) => error.clone(),
            (Ok(seen), _) if seen.in_use => "open".to_owned(),
            (Ok(seen), _) if seen.members.is_empty() && !seen.unapplied => "closed".to_owned(),
            (Ok(_), _) => "not closed: opening recovers it".to_owned(),
        }
    }

    fn cells(&self) -> [String; 5] {
        let device = self.attached.as_ref().filter(|entry| entry.alive);
        let size = |of: fn(&VolumeInspection) -> u64| self.seen.as_ref().map(|seen| output::bytes(of(seen)));
        [
            self.volume.display().to_string(),
            self.state(),
            device.map_or(String::new(), |entry| entry.record.link.display().to_string()),
            size(|seen| seen.superblock.bytes).unwrap_or_default(),
            size(|seen| seen.image_taken_bytes).unwrap_or_default(),
        ]
    }

    fn json(&self) -> serde_json::Value {
        let seen = self.seen.as_ref();
        json!({
            "volume": self.volume,
            "state": self.state(),
            "bytes": seen.map(|seen| seen.superblock.bytes).ok(),
            "taken_bytes": seen.map(|seen| seen.image_taken_bytes).ok(),
            "attached": self.attached,
        })
    }
}
