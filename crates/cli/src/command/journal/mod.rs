//! `netram journal`: journals, the logs under everything that netram keeps. A file for each subcommand.

mod check;
mod create;
#[cfg(feature = "products")]
mod delete;
mod lenders;
mod membership;
mod membership_file;
mod recover;
mod reload;
mod status;
mod terms;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use netram_journal::{JournalInspector, JournalRecovery};
use netram_proto::journal::{PeerAnswer, View};
use serde_json::json;

pub(super) use self::membership::MembershipTarget;
use crate::output;

/// Create, inspect, recover and delete journals
///
/// A journal is a directory with a log of fixed size, the list of lenders that hold its newest
/// bytes, and the key that encrypts what they hold. Volumes, mounted directories and databases
/// have journals of their own, which their own commands look after; but `lenders`, `add-lender`,
/// `remove-lender`, `set` and `reload` take these, too.
///
///   netram journal create /var/lib/bank/journal --size 64MiB
///   netram journal status /var/lib/bank/journal
///   netram journal check /var/lib/bank/journal
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum JournalCommand {
    Create(create::CreateJournal),
    Status(status::ShowJournal),
    Check(check::CheckJournal),
    Lenders(lenders::ListLenders),
    AddLender(lenders::AddLender),
    RemoveLender(lenders::RemoveLender),
    Set(terms::SetTerms),
    Reload(reload::ReloadMembership),
    Recover(recover::RecoverJournal),
    #[cfg(feature = "products")]
    Delete(delete::DeleteJournal),
}

impl JournalCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            JournalCommand::Create(create) => create.run(),
            JournalCommand::Status(status) => status.run(),
            JournalCommand::Check(check) => check.run(),
            JournalCommand::Lenders(lenders) => lenders.run(),
            JournalCommand::AddLender(add) => add.run(),
            JournalCommand::RemoveLender(remove) => remove.run(),
            JournalCommand::Set(terms) => terms.run(),
            JournalCommand::Reload(reload) => reload.run(),
            JournalCommand::Recover(recover) => recover.run(),
            #[cfg(feature = "products")]
            JournalCommand::Delete(delete) => delete.run(),
        }
    }
}

fn inspect(dir: &Path) -> Result<JournalInspector> {
    refuse_missing(dir)?;
    JournalInspector::open(dir).with_context(|| format!("looking at the journal {}", dir.display()))
}

/// Refuses a path where there is nothing, with the commands that make a journal.
fn refuse_missing(dir: &Path) -> Result<()> {
    match dir.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "there is no journal or log {}; `netram journal create` makes a journal, `netram rvm create` a log for recoverable \
             memory",
            dir.display()
        ),
        _ => Ok(()),
    }
}

/// Returns a view as JSON.
pub(crate) fn view_as_json(view: &View) -> serde_json::Value {
    let members: Vec<_> = view
        .members
        .iter()
        .map(|member| {
            json!({
                "address": member.address,
                "domain": member.domain,
                "incarnation": member.incarnation.to_string(),
            })
        })
        .collect();
    json!({
        "version": view.version,
        "epoch": view.epoch.0,
        "writer": view.writer.to_string(),
        "rule": view.rule.to_string(),
        "counting": view.counting,
        "base": view.base.0,
        "clean": view.clean.map(|clean| clean.0),
        "members": members,
    })
}

/// Returns what each member of the view holds, as a part of a sentence; `what` waits for the disk otherwise.
pub(crate) fn members_hold(view: &View, what: &str) -> String {
    match (view.counting, view.clean) {
        (true, _) => format!("holds what came after LSN {}", view.base),
        (false, Some(_)) => "idle: this disk has everything".to_owned(),
        (false, None) => format!("does not count yet: {what} wait for this disk"),
    }
}

/// Returns what recovery did, in sentences.
pub fn recovery_sentences(recovered: &JournalRecovery) -> Vec<String> {
    let mut said = vec![format!(
        "recovered LSN {} to {} in {}; this is epoch {}",
        recovered.head,
        recovered.end,
        output::age(recovered.took),
        recovered.epoch
    )];
    said.push(match recovered.records_from_members {
        0 => "the local disk had everything".to_owned(),
        records => format!(
            "the local disk ended at LSN {}; lenders gave {} ({}) beyond it",
            recovered.local_end,
            output::count(records, "record"),
            output::bytes(recovered.bytes_from_members)
        ),
    });
    if recovered.repaired > 0 {
        said.push(format!(
            "{} of damaged log were repaired from lenders",
            output::bytes(recovered.repaired)
        ));
    }
    for (address, answer) in &recovered.members {
        said.push(format!("lender {address}: {}", answer_name(*answer)));
    }
    if let Some(loss) = &recovered.loss_accepted {
        said.push(format!("LOSS ACCEPTED: {loss}"));
    }
    said
}

/// Returns a lender's answer to a recovery, in words.
pub(crate) fn answer_name(answer: PeerAnswer) -> &'static str {
    match answer {
        PeerAnswer::Unreachable => "unreachable",
        PeerAnswer::Connected => "did not answer",
        PeerAnswer::Reading => "answered in part",
        PeerAnswer::Complete => "gave all it held",
        PeerAnswer::Amnesiac => "restarted without its memory",
        PeerAnswer::AheadOfReplica => "holds nothing that continues the copy",
        PeerAnswer::Overclaims => "claims more than its window can hold",
    }
}
