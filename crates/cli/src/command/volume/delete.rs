//! `netram disk delete`.

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
/// Refused while it is attached or served. There is no way back. Its lenders are told
/// that they may free its memory; those that are away are told later.
///
/// Refused, too, if it was not closed, as after a crash: its lenders may alone have its
/// newest writes. `--force` gives these up. A copy of a volume that is still wanted is
/// removed with `rm -r`: lenders cannot tell the two apart.
///
///   netram disk delete /var/lib/netram/db --yes
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DeleteVolume {
    /// The volume's directory
    volume: PathBuf,
    /// This is meant
    #[arg(long)]
    yes: bool,
    /// Lenders free also what the log lacks: this is no copy, and nobody wants its newest writes
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
                "this would destroy {what} in {}; say --yes if it is meant",
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
