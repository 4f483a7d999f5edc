//! `netram disk delete`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_volume::Volume;
use serde_json::json;

use super::{absolute, refuse_attached};
use crate::options::Usage;
use crate::output;

/// Delete a volume and everything on it
///
/// Refused while it is attached or served. There is no way back.
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
        Volume::delete(&path).with_context(|| format!("deleting {}", self.volume.display()))?;
        match self.json {
            true => output::json(&json!({ "deleted": path }))?,
            false => output::line(format_args!("{} is deleted", path.display()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
