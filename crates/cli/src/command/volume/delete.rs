//! `netram volume delete`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_volume::Volume;
use serde_json::json;

use super::super::lender;
use super::{absolute, refuse_attached};
use crate::options::UsageError;
use crate::output;

/// Delete a volume and everything on it
///
/// It must not be attached or served. The data is lost for good. Its lenders are notified that
/// they may free its memory; those that cannot be reached are notified later.
///
/// A volume that was not closed, as after a crash, is refused: its lenders may have the only copy
/// of the newest writes. --force gives these up. To remove a copy of a volume that is still in
/// use, run `rm -r` instead: lenders cannot tell the two apart.
///
///   netram volume delete /var/lib/netram/db --yes
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DeleteVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Confirm that it is to be deleted
    #[arg(long)]
    yes: bool,
    /// Also give up what only lenders hold: this is not a copy, and its newest writes are not needed
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl DeleteVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        refuse_attached(&path)?;
        let seen = Volume::inspect(&path);
        if !self.yes {
            let what = match seen {
                Ok(seen) => format!("{} of data", output::bytes(seen.image_taken_bytes)),
                Err(error) if !path.is_dir() => return Err(error.into()),
                Err(error) => format!("what is left of a volume ({error})"),
            };
            let sentence = format!(
                "this would destroy {what} in {}; confirm it with --yes",
                path.display()
            );
            return Err(UsageError(sentence).into());
        }
        let deleted = Volume::delete(&path, lender::windows(self.force));
        let untold = deleted.with_context(|| format!("deleting {}", self.volume.display()))?;
        match self.json {
            true => {
                let (away, keep) = lender::pending_forgets_json(&untold);
                output::json(
                    &json!({ "deleted": path, "lenders_to_be_told": away, "lenders_that_keep_bytes": keep }),
                )?;
            }
            false => output::line(format_args!("{} is deleted", path.display()))?,
        }
        if !self.json {
            lender::report_pending_forgets(&untold)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
