//! `netram mount detach`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use super::volume;
use crate::options::DurationArg;

/// Unmount a directory that `netram mount attach` has mounted
///
/// Fails while a program has a file open there, and names it. Returns when everything is on the
/// disk, and the directory has its files as before.
///
///   netram mount detach /var/lib/postgresql/15/main/pg_wal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DetachDirectory {
    /// The directory
    dir: PathBuf,
    /// How long to wait until the files are back, as 500ms, 30s or 2m
    #[arg(long, value_name = "TIME", default_value = "60s")]
    patience: DurationArg,
}

impl DetachDirectory {
    pub(super) fn run(self) -> Result<ExitCode> {
        if volume::unmount(&self.dir, self.patience.0)? {
            return Ok(ExitCode::SUCCESS);
        }
        let served = netram_mount::unmount(&self.dir)?;
        if !served {
            bail!(
                "the process that had {0} mounted is gone; it is unmounted now, and empty until `netram mount recover {0}` or \
                 `netram mount attach`",
                self.dir.display()
            );
        }
        match netram_mount::is_given_back_within(&self.dir, self.patience.0) {
            true => Ok(ExitCode::SUCCESS),
            false => bail!(
                "{0} is unmounted, but its files are not back yet: if no `netram mount attach` is running for it, run \
                 `netram mount recover {0}`",
                self.dir.display()
            ),
        }
    }
}
