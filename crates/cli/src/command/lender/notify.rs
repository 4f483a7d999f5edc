//! `netram lender notify`: telling lenders of deleted journals.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_journal::forget::{ForgetList, UnfreedWindow, WindowRelease};

use crate::options::DurationArg;
use crate::output;

/// Notify lenders of journals that were deleted while the lenders could not be reached
///
/// Lenders then free the memory of those journals. Every command that opens a journal does
/// this too, so it is seldom needed. Lenders that still cannot be reached are listed, and the
/// exit code is 1.
///
///   netram lender notify
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct NotifyLenders {
    /// How long to wait for all of them together
    #[arg(long, value_name = "TIME", default_value = "10s")]
    timeout: DurationArg,
}

impl NotifyLenders {
    pub(super) fn run(self) -> Result<ExitCode> {
        let untold = ForgetList::usual().map_or_else(Vec::new, |list| list.tell(self.timeout.0));
        report_pending_forgets(&untold)?;
        match untold.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Ok(ExitCode::FAILURE),
        }
    }
}

/// Returns which windows of a deleted journal lenders may free.
pub(crate) fn windows(force: bool) -> WindowRelease {
    match force {
        true => WindowRelease::All,
        false => WindowRelease::Logged,
    }
}

/// Prints the lenders that have not freed everything, and why.
pub(crate) fn report_pending_forgets(untold: &[UnfreedWindow]) -> Result<()> {
    for UnfreedWindow {
        journal,
        lender,
        bytes_held: holds,
    } in untold
    {
        match holds {
            None => output::line(format_args!(
                "lender {lender} cannot be reached; it will be notified later that journal {journal} was deleted"
            ))?,
            Some(holds) => output::line(format_args!(
                "lender {lender} keeps {} of journal {journal} that the deleted directory lacked: if that was a copy, its \
                 original needs them. If nobody will recover them: netram lender forget {journal} {lender} --force",
                output::bytes(*holds)
            ))?,
        }
    }
    Ok(())
}

/// Returns the same for JSON: the lenders that will be notified later, and those that keep bytes.
pub(crate) fn pending_forgets_json(untold: &[UnfreedWindow]) -> (Vec<&str>, Vec<serde_json::Value>) {
    let away = untold.iter().filter(|one| one.bytes_held.is_none());
    let keeps = untold.iter().filter_map(|one| {
        let bytes = one.bytes_held?;
        Some(serde_json::json!({ "lender": one.lender, "bytes": bytes }))
    });
    (away.map(|one| one.lender.as_str()).collect(), keeps.collect())
}
