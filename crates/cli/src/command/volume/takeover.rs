//! `netram volume takeover`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_volume::{BlockDevice, Volume, VolumePaths};
use serde_json::json;

use super::absolute;
use crate::options::DurationArg;
use crate::output;

/// Make a data lender's copy a volume of its own, on the data lender's machine
///
/// For a volume whose own machine is gone for good. BE SURE THAT IT IS OFF. A machine that is
/// only cut off goes on acknowledging writes from its own disk, and these are lost.
///
/// The lenders that held the newest writes must answer. All are asked first; only if they
/// suffice the old machine is fenced. A copy whose machine was heard within the last 10 s is
/// refused, unless --client-is-off says that it is off. --check stops after the question and
/// changes nothing: the exit code is 0 if it would succeed, 3 if it would be refused. The data
/// lender need not be stopped.
///
///   netram volume takeover /var/lib/netram/kept/0123456789abcdef0123456789abcdef --check
///   netram volume takeover /var/lib/netram/kept/0123456789abcdef0123456789abcdef
///   netram volume attach /var/lib/netram/kept/0123456789abcdef0123456789abcdef --name db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct TakeOverVolume {
    /// The copy's directory, in the directory of the data lender's --data
    replica: PathBuf,
    /// File with the cluster key, for the lenders that held the newest writes
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Use no key and no encryption; only for lenders on this machine
    #[arg(long)]
    insecure: bool,
    /// Only ask whether it would succeed; change nothing
    #[arg(long)]
    check: bool,
    /// State that the old machine is off, although it was heard a moment ago
    #[arg(long)]
    client_is_off: bool,
    /// How long to wait for lenders that must answer, as 500ms, 30s or 2m [default: 30s]
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
    /// Go on even if acknowledged writes may be missing
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TakeOverVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.replica)?;
        let what = || format!("taking over {}", self.replica.display());
        let mut settings = VolumePaths::at(&path).settings()?;
        settings.take_over = true;
        settings.client_is_off = self.client_is_off;
        settings.journal.patience = self.patience.map(|time| time.0).or(settings.journal.patience);
        settings.journal.accept_loss |= self.accept_loss;
        settings.journal.insecure |= self.insecure;
        settings.journal.key_file = self.key_file.or(settings.journal.key_file);
        if self.check {
            let found = Volume::check(&path, &settings).with_context(what)?;
            return super::end_check(&path, &found, self.json);
        }
        let (volume, recovered) = Volume::open_with(&path, &settings).with_context(what)?;
        let bytes = volume.geometry().bytes;
        volume.close().with_context(what)?;
        let members = recovered.journal.records_from_members;
        match self.json {
            true => output::json(&json!({
                "volume": path,
                "bytes": bytes,
                "records_from_members": members,
                "loss_accepted": recovered.journal.loss_accepted,
            }))?,
            false => output::line(format_args!(
                "volume {}, {}, {} from lenders beyond the copy; attach or serve it",
                path.display(),
                output::bytes(bytes),
                output::count(members, "write")
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
