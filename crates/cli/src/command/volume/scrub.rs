//! `netram disk scrub`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use netram_block::BLOCK_BYTES;
use netram_volume::control::{VolumeReply, VolumeRequest};
use netram_volume::{ScrubFindings, Volume, scrub};
use serde_json::json;

use super::absolute;
use super::opener::{VolumeProgress, ask_opener, unexpected_reply};
use crate::output;

/// How long the data lender may get no further before the scrub begins without it.
const COPY_PATIENCE: Duration = Duration::from_secs(5);

/// Read every block of a volume and compare it with its checksum
///
/// It may be attached or served meanwhile: whoever has it open reads it then,
/// beside its users. Otherwise it is opened, which recovers it if it was not
/// closed. Bad blocks are mended from the data lender's copy, where there is one.
/// What remains is to be written anew. Exit code 1 when anything does.
///
///   netram disk scrub /var/lib/netram/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ScrubVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ScrubVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let what = || format!("scrubbing {}", self.volume.display());
        let findings = match ask_opener(&path, &VolumeRequest::Scrub).with_context(what)? {
            Some(VolumeReply::Scrubbed(findings)) => findings,
            Some(told) => return Err(unexpected_reply(&told)),
            None => scrub_here(&path).with_context(what)?,
        };
        match self.json {
            true => output::json(&json!({
                "read_bytes": findings.read_bytes,
                "bad_blocks": findings.bad_blocks,
                "named": findings.named,
                "mended_blocks": findings.mended_blocks,
                "missing_blocks": findings.missing_blocks,
            }))?,
            false => tell(&findings)?,
        }
        Ok(match findings.bad_blocks {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

fn scrub_here(path: &Path) -> Result<ScrubFindings> {
    let (volume, _) = Volume::open(path)?;
    if volume.paths().settings()?.data_lender.is_some() && !volume.wait_for_data_lender(COPY_PATIENCE) {
        output::remark("the data lender does not have everything now: bad blocks may stay bad");
    }
    let bar = VolumeProgress::default();
    let found = scrub(&volume, &AtomicBool::new(false), &mut |progress| {
        bar.show(progress)
    });
    bar.end();
    volume.close()?;
    found?.context("nobody cancels this scrub")
}

fn tell(findings: &ScrubFindings) -> Result<()> {
    for block in &findings.named {
        let from = block * BLOCK_BYTES;
        output::line(format_args!(
            "block {block} (bytes {from} to {}) is bad",
            from + BLOCK_BYTES
        ))?;
    }
    let mut text = format!("{} read", output::bytes(findings.read_bytes));
    for (count, what) in [
        (findings.mended_blocks, "block"),
        (findings.missing_blocks, "missing block"),
    ] {
        if count > 0 {
            let mended = if what == "block" {
                " mended from the data lender"
            } else {
                ""
            };
            text = format!("{text}, {}{mended}", output::count(count, what));
        }
    }
    let bad = output::count(findings.bad_blocks, "bad block");
    output::line(format_args!("{text}, {bad}"))
}
