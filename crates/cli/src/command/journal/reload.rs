//! `netram journal reload`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::membership::{MembershipTarget, WaitArgs};

/// Let an open journal follow its settings file
///
/// Lenders, commit rule and number of members become those of the file, without interruption,
/// as after `netram journal add-lender`, `remove-lender` and `set`. Other settings of the file
/// take effect at the next opening. Settings that a program or its environment overrides
/// follow the file until then, too.
///
///   netram journal reload /srv/vm1 --wait
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ReloadMembership {
    /// Journal, log, volume, database or mounted directory
    path: PathBuf,
    #[command(flatten)]
    wait: WaitArgs,
}

impl ReloadMembership {
    pub(super) fn run(self) -> Result<ExitCode> {
        MembershipTarget::of(&self.path)?.reload(&self.wait)
    }
}
