//! `netram key rotate`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::clients::{ClientsPath, key_path, with_new_key};

/// Give a client a second key, to replace the first
///
/// Both are valid, so nothing stops while the client's machines change to the new one:
///
///   netram key rotate db1              # writes db1.key; then reload the lenders
///   (put db1.key in place on the client's machines, and restart its programs)
///   netram key revoke db1 --old        # then reload the lenders
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RotateKey {
    /// The client's name
    name: String,
    #[command(flatten)]
    clients: ClientsPath,
    /// File for the client's new key [default: NAME.key]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl RotateKey {
    pub(super) fn run(self) -> Result<ExitCode> {
        let out = key_path(self.out, &self.name);
        with_new_key(&out, &self.clients, |file, key| file.add_key(&self.name, key))?;
        Ok(ExitCode::SUCCESS)
    }
}
