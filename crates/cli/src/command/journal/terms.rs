//! `netram journal set`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use netram_proto::journal::CommitRule;

use super::membership::{ChangeArgs, MembershipTarget};
use super::membership_file::MembershipEdit;

/// The terms of a journal's commits.
#[derive(Debug, Args)]
pub(super) struct TermsArgs {
    /// Number of lenders that hold a copy; the others are spares
    #[arg(long, value_name = "NUMBER")]
    members: Option<usize>,
    /// With fewer members, commits wait for the disk
    #[arg(long, value_name = "NUMBER")]
    members_min: Option<usize>,
    /// Members that must hold a commit: `all`, `any`, or a number
    #[arg(long, value_name = "RULE")]
    rule: Option<CommitRule>,
}

impl TermsArgs {
    pub(super) fn edit(&self) -> MembershipEdit {
        MembershipEdit {
            rule: self.rule,
            members: self.members,
            members_min: self.members_min,
            ..MembershipEdit::default()
        }
    }
}

/// Change a journal's commit rule and number of members, open or not
///
/// The settings file is changed, and a process that has the journal open follows at once,
/// without interruption. Until a view with the new settings is stored, a commit needs what
/// both the old and the new ones demand; more members or a stricter rule wait until the new
/// members are filled.
///
/// Exit code: 0 changed, 1 refused or, with --wait, not complete in time, 2 wrong usage.
///
///   netram journal set /srv/vm1 --members 3 --rule 2 --wait
///   netram journal set /srv/vm1 --rule all
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SetTerms {
    /// Journal, log, volume, database or mounted directory
    path: PathBuf,
    #[command(flatten)]
    terms: TermsArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

impl SetTerms {
    pub(super) fn run(self) -> Result<ExitCode> {
        let edit = self.terms.edit();
        if edit == MembershipEdit::default() {
            bail!("nothing is to be set: give --members, --members-min or --rule");
        }
        MembershipTarget::of(&self.path)?.change(&edit, &self.change)
    }
}
