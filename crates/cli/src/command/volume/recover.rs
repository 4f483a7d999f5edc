//! `netram volume recover`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_volume::{Volume, VolumePaths};
use serde_json::json;

use super::{absolute, refuse_attached};
use crate::command::journal::recovery_sentences;
use crate::options::DurationArg;
use crate::output;

/// Recover a volume, as opening it would, and close it again
///
/// All lenders are asked first whether it can succeed; only then earlier writers are fenced.
/// --check stops after the question and changes nothing: the exit code is 0 if it would succeed,
/// 3 if it would be refused.
///
/// --newest states that no other directory of this volume has been written to since another
/// process fenced this one. It is for a volume that a restore or takeover has fenced and that
/// was never used itself. It is refused where lenders show that it was.
///
///   netram volume recover /var/lib/netram/db --check
///   netram volume recover /var/lib/netram/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RecoverVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Only ask whether it would succeed; change nothing
    #[arg(long)]
    check: bool,
    /// State that no other directory of this volume is newer, although it was fenced
    #[arg(long)]
    newest: bool,
    /// How long to wait for lenders that must answer, as 500ms, 30s or 2m [default: as in the
    /// settings, or 30s]
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
    /// Give up acknowledged writes that only the missing lenders may hold
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RecoverVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let what = || format!("recovering {}", self.volume.display());
        let mut settings = VolumePaths::at(&path).settings().with_context(what)?;
        settings.newest = self.newest;
        settings.journal.accept_loss |= self.accept_loss;
        settings.journal.patience = self.patience.map(|time| time.0).or(settings.journal.patience);
        if self.check {
            let found = Volume::check(&path, &settings).with_context(what)?;
            return super::end_check(&path, &found, self.json);
        }
        refuse_attached(&path)?;
        let (volume, recovered) = Volume::open_with(&path, &settings).with_context(what)?;
        volume.close().with_context(what)?;
        let journal = &recovered.journal;
        match self.json {
            true => output::json(&json!({
                "volume": path,
                "epoch": journal.epoch.0,
                "records_from_members": journal.records_from_members,
                "loss_accepted": journal.loss_accepted,
            }))?,
            false => {
                for sentence in recovery_sentences(journal) {
                    output::line(sentence)?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
