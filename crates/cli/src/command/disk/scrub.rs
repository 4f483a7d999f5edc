//! `netram disk scrub`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Args;
use netram_disk::BLOCK_BYTES;
use netram_volume::control::{Ask, Told};
use netram_volume::{Findings, Volume, scrub};
use serde_json::json;

use super::absolute;
use super::opener::{Bar, ask_opener, odd};
use crate::output;

/// Read every block of a volume and compare it with its checksum
///
/// It may be attached or served meanwhile: whoever has it open reads it then,
/// beside its users. Otherwise it is opened, which recovers it if it was not
/// closed. Nothing is repaired yet: restore bad blocks from a copy, or write them
/// anew. Exit code 1 when there are any.
///
///   netram disk scrub /var/lib/netram/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Scrub {
    /// The volume's directory
    volume: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Scrub {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let what = || format!("scrubbing {}", self.volume.display());
        let findings = match ask_opener(&path, &Ask::Scrub).with_context(what)? {
            Some(Told::Scrubbed(findings)) => findings,
            Some(told) => return Err(odd(&told)),
            None => scrub_here(&path).with_context(what)?,
        };
        match self.json {
            true => output::json(&json!({
                "read_bytes": findings.read_bytes,
                "bad_blocks": findings.bad_blocks,
                "named": findings.named,
            }))?,
            false => tell(&findings)?,
        }
        Ok(match findings.bad_blocks {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

fn scrub_here(path: &Path) -> Result<Findings> {
    let (volume, _) = Volume::open(path)?;
    let bar = Bar::default();
    let found = scrub(&volume, &AtomicBool::new(false), &mut |progress| {
        bar.show(progress)
    });
    bar.end();
    volume.close()?;
    found?.context("nobody cancels this scrub")
}

fn tell(findings: &Findings) -> Result<()> {
    for block in &findings.named {
        let from = block * BLOCK_BYTES;
        output::line(format_args!(
            "block {block} (bytes {from} to {}) is bad",
            from + BLOCK_BYTES
        ))?;
    }
    let bad = output::count(findings.bad_blocks, "bad block");
    output::line(format_args!("{} read, {bad}", output::bytes(findings.read_bytes)))
}
