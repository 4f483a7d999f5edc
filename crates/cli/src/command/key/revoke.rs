//! `netram key revoke`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::clients::ClientsPath;
use crate::output;

/// Take a client's keys away
///
/// Once the lenders have read the file again, the client's connections end. What it keeps there
/// stays: its windows are there for a client of another name that proves to own the journals.
///
///   netram key revoke db1
///   netram key revoke db1 --old        # only the older of two keys
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RevokeKey {
    /// The client's name
    name: String,
    /// Take only the older of two keys
    #[arg(long)]
    old: bool,
    #[command(flatten)]
    clients: ClientsPath,
}

impl RevokeKey {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.clients.change(|file| match self.old {
            true => file.remove_old_key(&self.name),
            false => file.remove(&self.name),
        })?;
        match self.old {
            true => output::line(format_args!("client `{}` has one key now, the newer", self.name))?,
            false => output::line(format_args!("client `{}` has no key any more", self.name))?,
        }
        self.clients.tell()?;
        Ok(ExitCode::SUCCESS)
    }
}
