//! `netram volume rekey`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_volume::control::{VolumeReply, VolumeRequest};
use netram_volume::{VolumePaths, ask};
use serde_json::json;

use super::absolute;
use super::opener::unexpected_reply;
use super::recovery_key::{check_absent, give};
use crate::output;

/// Give a volume a new recovery key
///
/// A data lender's copy is restored only with the volume's recovery key, which `netram volume
/// create` shows once. This makes another one, for a volume that has none, or whose key was lost
/// or seen. The former key opens nothing more once the volume has reached its data lender. The
/// volume may be attached or served meanwhile.
///
/// THE RECORDS KEEP THEIR OWN KEY. Whoever has restored the volume before, or has read its
/// directory, has that key and can go on reading what lenders hold.
///
/// If the volume is lost with its recovery key, run this on the copy, on the data lender's
/// machine, and restore it with the new key.
///
///   netram volume rekey /var/lib/netram/db --recovery-key-file /root/db.recovery
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RekeyVolume {
    /// The volume's directory
    volume: PathBuf,
    /// New file for the recovery key; keep it elsewhere than the volume [default: print the key]
    #[arg(long, value_name = "FILE")]
    recovery_key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RekeyVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        let what = || format!("giving {} a recovery key", self.volume.display());
        check_absent(self.recovery_key_file.as_deref())?;
        let place = VolumePaths::at(&path);
        let key = place.rekey().with_context(what)?;
        // From here on the former key is of no more use, so the new one must be shown whatever happens.
        let shown = give(&key, self.recovery_key_file.as_deref());
        let told = ask(&place, &VolumeRequest::Rekeyed, &mut |_| ());
        let shown = shown?;
        let is_told = match told.with_context(what)? {
            Some(VolumeReply::Rekeyed { data_lender }) => data_lender,
            Some(told) => return Err(unexpected_reply(&told)),
            None => false,
        };
        if self.json {
            output::json(&json!({ "volume": self.volume, "recovery_key": shown, "told": is_told }))?;
            return Ok(ExitCode::SUCCESS);
        }
        super::recovery_key::print(shown.as_deref(), self.recovery_key_file.as_deref())?;
        output::line(match is_told {
            true => "the data lender gets it now; until then the former key opens the copy",
            false => {
                "a data lender gets it when the volume is opened; until then the former key opens the copy"
            }
        })?;
        output::line(
            "the records keep their own key: whoever has restored the volume before can go on reading what lenders hold",
        )?;
        Ok(ExitCode::SUCCESS)
    }
}
