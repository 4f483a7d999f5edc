//! `netram disk delete`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_volume::Volume;
use serde_json::json;

use super::super::lender;
use super::{absolute, refuse_attached};
use crate::options::Usage;
use crate::output;

/// Delete a volume and everything on it
///
/// Refused while it is attached or served. There is no way back. Its lenders are told
/// that they may free its memory; those that are away are told later.
///
/// Not for a copy of a volume's directory whose original may still be opened: lenders
/// cannot tell the two apart, and may free what only they have of the original. Remove
/// a copy with `rm -r`.
///
///   netram disk delete /var/lib/netram/db --yes
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Delete {
    /// The volume's directory
    volume: PathBuf,
    /// This is meant
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Delete {
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
            return Err(Usage(sentence).into());
        }
        let untold = Volume::delete(&path).with_context(|| format!("deleting {}", self.volume.display()))?;
        match self.json {
            true => {
                let lenders: Vec<_> = untold.iter().map(|one| &one.lender).collect();
                output::json(&json!({ "deleted": path, "lenders_to_be_told": lenders }))?;
            }
            false => output::line(format_args!("{} is deleted", path.display()))?,
        }
        if !self.json {
            lender::say_untold(&untold)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
