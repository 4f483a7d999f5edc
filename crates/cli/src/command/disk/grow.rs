//! `netram disk grow`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_volume::{Device, Volume};
use serde_json::json;

use super::{absolute, refuse_attached};
use crate::options::Size;
use crate::output;

/// Make a volume larger
///
/// It must not be attached or served. New space reads as zeros and takes none
/// until it is written. A volume does not become smaller. Enlarge the file system
/// afterwards (resize2fs, xfs_growfs).
///
///   netram disk grow /var/lib/netram/db --size 40GiB
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Grow {
    /// The volume's directory
    volume: PathBuf,
    /// Bytes of the device from now on, a multiple of 4096
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Grow {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        refuse_attached(&path)?;
        let what = || format!("growing {}", self.volume.display());
        let (volume, _) = Volume::open(&path).with_context(what)?;
        let before = volume.geometry().bytes;
        // Closed in either case: an error of growing is told after that.
        let grown = volume.grow(self.size.0).with_context(what);
        volume.close().with_context(what)?;
        grown?;
        match self.json {
            true => output::json(&json!({ "before": before, "after": self.size.0 }))?,
            false => output::line(format_args!(
                "the volume has {} now; it had {}",
                output::bytes(self.size.0),
                output::bytes(before)
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
