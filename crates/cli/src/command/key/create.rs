//! `netram key create`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_transport::ClusterKey;
use netram_transport::security::new_key_file;

use super::fingerprint;
use crate::output;

/// Make a cluster key
///
/// The new file is readable by its owner only; an existing file is never overwritten. Make one
/// key for a cluster, and copy it to all its machines in a way that keeps it secret:
///
///   netram key create
///   scp -p /etc/netram/key root@10.0.0.2:/etc/netram/key
///
/// Lenders and clients find it there without being told.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateKey {
    /// The new file [default for root: /etc/netram/key, else ~/.config/netram/key]
    file: Option<PathBuf>,
}

impl CreateKey {
    pub(super) fn run(self) -> Result<ExitCode> {
        let key = ClusterKey::generate();
        let file = match self.file {
            Some(file) => file,
            None => default_file()?,
        };
        key.save_new(&file).context("making a cluster key")?;
        output::line(format_args!("{} ({})", file.display(), fingerprint(&key)))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the file where this user's programs look for a key first, with its directory made.
fn default_file() -> Result<PathBuf> {
    let file = new_key_file();
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    }
    Ok(file)
}
