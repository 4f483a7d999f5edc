//! `netram volume check`.

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

/// How long the data lender may make no progress before the check begins without it.
const COPY_PATIENCE: Duration = Duration::from_secs(5);

/// Check every block of a volume against its checksum
///
/// Bad blocks are repaired from the data lender's copy, if there is one; the others are named,
/// and are good again once they are written. The exit code is 1 if any remain. The volume may be
/// attached or served meanwhile. Otherwise it is opened, which recovers it if it was not closed.
///
///   netram volume check /var/lib/netram/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CheckVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CheckVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let what = || format!("checking {}", self.volume.display());
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
                "repaired_blocks": findings.mended_blocks,
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
        output::remark("the data lender does not have everything now: bad blocks may remain bad");
    }
    let bar = VolumeProgress::default();
    let found = scrub(&volume, &AtomicBool::new(false), &mut |progress| {
        bar.show(progress)
    });
    bar.end();
    volume.close()?;
    found?.context("this check is never cancelled")
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
                " repaired from the data lender"
            } else {
                ""
            };
            text = format!("{text}, {}{mended}", output::count(count, what));
        }
    }
    let bad = output::count(findings.bad_blocks, "bad block");
    output::line(format_args!("{text}, {bad}"))
}
