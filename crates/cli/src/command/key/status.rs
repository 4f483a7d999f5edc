//! `netram key status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_transport::ClusterKey;
use serde_json::json;

use super::fingerprint;
use crate::output;

/// Show a key's fingerprint, never the key
///
/// Two files with the same fingerprint hold the same key.
///
///   netram key status /etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowKey {
    /// File with the key
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ShowKey {
    pub(super) fn run(self) -> Result<ExitCode> {
        let what = || format!("loading {}", self.file.display());
        let id = fingerprint(&ClusterKey::load(&self.file).with_context(what)?);
        match self.json {
            true => {
                output::json(&json!({ "file": self.file, "fingerprint": id.trim_start_matches("key id ") }))?
            }
            false => output::line(id)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
