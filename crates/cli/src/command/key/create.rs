//! `netram key create`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_transport::ClusterKey;

use super::fingerprint;
use crate::output;

/// Make a cluster key
///
/// The new file is readable by its owner only; an existing file is never overwritten. Make one
/// key for a cluster, and copy it to all its machines in a way that keeps it secret:
///
///   netram key create cluster.key
///   scp -p cluster.key root@10.0.0.2:/etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateKey {
    /// The new file
    file: PathBuf,
}

impl CreateKey {
    pub(super) fn run(self) -> Result<ExitCode> {
        let key = ClusterKey::generate();
        key.save_new(&self.file).context("making a cluster key")?;
        output::line(format_args!("{} ({})", self.file.display(), fingerprint(&key)))?;
        Ok(ExitCode::SUCCESS)
    }
}
