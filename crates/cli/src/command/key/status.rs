//! `netram key status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_transport::ClusterKey;
use netram_transport::security::{default_key_file, new_key_file};
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
    /// File with the key [default: the one that commands use without --key-file]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ShowKey {
    pub(super) fn run(self) -> Result<ExitCode> {
        let file = { self.file }
            .or_else(default_key_file)
            .unwrap_or_else(new_key_file);
        let what = || format!("loading {}", file.display());
        let id = fingerprint(&ClusterKey::load(&file).with_context(what)?);
        match self.json {
            true => output::json(&json!({ "file": file, "fingerprint": id.trim_start_matches("key id ") }))?,
            false => output::line(format_args!("{} ({id})", file.display()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
