//! `netram journal lenders`, `add-lender` and `remove-lender`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_journal::orders::JournalOrder;
use netram_transport::NetAddress;
use serde_json::json;

use super::membership::{ChangeArgs, MembershipTarget, OpenJournal, sentence, to_come};
use super::membership_file::{MembershipEdit, MembershipFile};
use super::terms::TermsArgs;
use crate::output;

/// List the lenders of a journal, with the part of each
///
/// PATH is a journal, a log, a volume, a database or a mounted directory. If a process has it
/// open, that process is asked; otherwise its settings file is shown.
///
///   netram journal lenders /srv/vm1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ListLenders {
    /// Journal, log, volume, database or mounted directory
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Add a lender to a journal, open or not
///
/// The settings file is changed, and a process that has the journal open takes the lender up
/// at once, without interruption. The lender becomes a member if one is missing, and a spare
/// otherwise; with --members more hold a copy. Until a new member is filled, the old settings
/// count. A lender in this machine's own power domain may be of no use: --wait tells.
///
/// Exit code: 0 changed, 1 refused or, with --wait, not complete in time, 2 wrong usage.
///
///   netram journal add-lender /srv/vm1 tcp://10.0.0.4:7420
///   netram journal add-lender /srv/vm1 tcp://10.0.0.4:7420 --members 3 --wait
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AddLender {
    /// Journal, log, volume, database or mounted directory
    path: PathBuf,
    /// Addresses of the lenders
    #[arg(required = true, value_name = "ADDRESS")]
    lenders: Vec<NetAddress>,
    #[command(flatten)]
    terms: TermsArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Remove a lender from a journal, open or not
///
/// The settings file is changed. In an open journal, a member stays until another lender has
/// taken its place, so that there are never fewer copies than asked for; then it frees its
/// window. If too few lenders are left, ask for fewer copies with --members. A lender that is
/// away is told when it is back, as long as the journal is open.
///
/// Exit code: 0 changed, 1 refused or, with --wait, not complete in time, 2 wrong usage.
///
///   netram journal remove-lender /srv/vm1 tcp://10.0.0.2:7420 --wait
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RemoveLender {
    /// Journal, log, volume, database or mounted directory
    path: PathBuf,
    /// Addresses of the lenders
    #[arg(required = true, value_name = "ADDRESS")]
    lenders: Vec<NetAddress>,
    #[command(flatten)]
    terms: TermsArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

impl AddLender {
    pub(super) fn run(self) -> Result<ExitCode> {
        let edit = MembershipEdit {
            add: self.lenders,
            ..self.terms.edit()
        };
        MembershipTarget::of(&self.path)?.change(&edit, &self.change)
    }
}

impl RemoveLender {
    pub(super) fn run(self) -> Result<ExitCode> {
        let edit = MembershipEdit {
            remove: self.lenders,
            ..self.terms.edit()
        };
        MembershipTarget::of(&self.path)?.change(&edit, &self.change)
    }
}

impl ListLenders {
    pub(super) fn run(self) -> Result<ExitCode> {
        let target = MembershipTarget::of(&self.path)?;
        let open = target.order(&JournalOrder::Status)?;
        let file = MembershipFile::read(&target.settings)?;
        if self.json {
            let journals = open
                .iter()
                .map(|one| json!({"journal": one.journal, "state": one.report}));
            output::json(&json!({
                "settings": file.path(),
                "open": journals.collect::<Vec<_>>(),
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let asked = file.membership()?;
        for one in &open {
            show(one)?;
        }
        if open.is_empty() || open.iter().any(|one| !one.report.membership().is_same(&asked)) {
            output::line(format_args!(
                "settings  {}: {}",
                file.path().display(),
                sentence(&asked)
            ))?;
        }
        if open.is_empty() {
            output::line("no process has it open")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(one: &OpenJournal) -> Result<()> {
    let report = &one.report;
    output::line(format_args!(
        "journal   {} (open in process {})",
        one.journal.display(),
        report.pid
    ))?;
    output::line(format_args!(
        "rule      {}; {} asked for, at least {}",
        report.rule_in_force,
        output::count(report.members as u64, "member"),
        report.members_min
    ))?;
    output::line(format_args!("copies    {}", report.copies))?;
    if let Some(why) = &report.blocked {
        output::line(format_args!("          commits wait for the disk: {why}"))?;
    }
    for (place, lender) in report.lenders.iter().enumerate() {
        let label = if place == 0 { "lenders  " } else { "         " };
        let part = match (lender.member, &lender.why_not) {
            (true, None) => "member".to_owned(),
            (true, Some(why)) => format!("member; {why}"),
            (false, why) => why.clone().unwrap_or_default(),
        };
        let domain = match lender.domain.is_empty() {
            true => String::new(),
            false => format!(" (power domain `{}`)", lender.domain),
        };
        output::line(format_args!("{label} {}{domain}: {part}", lender.address))?;
    }
    for line in to_come(report) {
        output::line(line)?;
    }
    Ok(())
}
