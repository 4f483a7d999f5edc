//! `netram volume grow`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_volume::control::{VolumeReply, VolumeRequest};
use netram_volume::{BlockDevice, Volume};
use serde_json::json;

use super::opener::{ask_opener, unexpected_reply};
use super::{absolute, registry};
use crate::options::SizeArg;
use crate::output;

/// Make a volume larger
///
/// It may be attached, mounted or served meanwhile; its device has the new size at once. New
/// space reads as zeros and takes none on the disk until it is written. A volume cannot be made
/// smaller. Enlarge the file system afterwards:
///
///   netram volume grow /var/lib/netram/db --size 40GiB
///   resize2fs /dev/netram/db              # xfs_growfs /srv/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct GrowVolume {
    /// The volume's directory
    volume: PathBuf,
    /// Bytes of the larger device, a multiple of 4096
    #[arg(long, value_name = "SIZE")]
    size: SizeArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl GrowVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let what = || format!("growing {}", self.volume.display());
        let asked = ask_opener(&path, &VolumeRequest::Grow { bytes: self.size.0 }).with_context(what)?;
        let before = match asked {
            Some(VolumeReply::Grown { before, .. }) => before,
            Some(told) => return Err(unexpected_reply(&told)),
            None => self.grow_here(&path).with_context(what)?,
        };
        let attached = registry().find(&path)?.filter(|entry| entry.alive);
        if let Some(entry) = &attached {
            netram_attach::resize(&entry.record, self.size.0)?;
        }
        let device = attached.map(|entry| entry.record.link);
        match self.json {
            true => output::json(&json!({ "before": before, "after": self.size.0, "device": device }))?,
            false => output::line(format_args!(
                "the volume now has {}; it had {}",
                output::bytes(self.size.0),
                output::bytes(before)
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn grow_here(&self, path: &Path) -> Result<u64> {
        let (volume, _) = Volume::open(path)?;
        let before = volume.geometry().bytes;
        // Closed in either case; an error of growing is returned after that.
        let grown = volume.grow(self.size.0);
        volume.close()?;
        grown?;
        Ok(before)
    }
}
