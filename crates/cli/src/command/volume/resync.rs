//! `netram volume resync`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use netram_block::BLOCK_BYTES;
use netram_volume::control::{VolumeReply, VolumeRequest};
use netram_volume::{ResyncOutcome, Volume, resync};

use super::absolute;
use super::opener::{VolumeProgress, ask_opener, unexpected_reply};
use crate::output;

/// Make a data lender's copy of a volume equal to it
///
/// This happens by itself when the data lender comes back; then only changed blocks are sent.
/// The command sends them now, or with --whole compares every block. The volume may be attached
/// or served meanwhile; interrupting the command does not stop the work.
///
///   netram volume resync /var/lib/netram/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ResyncVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Compare every block. A copy that has more than this volume, or another history, is
    /// overwritten
    #[arg(long)]
    whole: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ResyncVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let what = || format!("bringing the copy of {} up to date", self.volume.display());
        let asked = VolumeRequest::Resync { whole: self.whole };
        let resynced = match ask_opener(&path, &asked).with_context(what)? {
            Some(VolumeReply::Resynced(resynced)) => resynced,
            Some(told) => return Err(unexpected_reply(&told)),
            None => resync_here(&path, self.whole).with_context(what)?,
        };
        match self.json {
            true => output::json(&resynced)?,
            false => output::line(format_args!(
                "{} sent in {}",
                output::bytes(resynced.sent_blocks * BLOCK_BYTES),
                output::age(Duration::from_millis(resynced.took_ms))
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn resync_here(path: &Path, whole: bool) -> Result<ResyncOutcome> {
    let (volume, _) = Volume::open(path)?;
    let bar = VolumeProgress::default();
    let done = resync(&volume, whole, &AtomicBool::new(false), &mut |progress| {
        bar.show(progress)
    });
    bar.end();
    volume.close()?;
    done?.context("this resync is never cancelled")
}
