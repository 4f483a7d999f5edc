//! The answer to `--check` of several commands: whether an opening would succeed, and which lenders it needs.
//! Nothing is changed.

use std::process::ExitCode;

use anyhow::Result;
use netram_journal::OpenCheck;
use netram_proto::journal::{MemberReport, PeerAnswer};
use serde_json::{Value, json};

use super::journal::answer_name;
use crate::output;

/// Exit code of a check if the operation would be refused: neither a failure of the check nor a usage error.
const WOULD_BE_REFUSED: u8 = 3;

/// Ends a check: the operation would succeed, or would be refused for this reason.
pub(crate) fn end_check(refusal: Option<&dyn std::error::Error>, json: bool) -> Result<ExitCode> {
    if !json {
        match refusal {
            None => output::line("it would succeed; nothing was changed")?,
            Some(refusal) => output::line(format_args!(
                "it would be refused: {refusal}; nothing was changed"
            ))?,
        }
    }
    Ok(match refusal {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(WOULD_BE_REFUSED),
    })
}

/// Prints the journal and its lenders, in sentences.
pub(crate) fn print_check(check: &OpenCheck) -> Result<()> {
    let members = check.members.len();
    output::line(format_args!("the local log ends at LSN {}", check.local_end))?;
    match (check.needed, members) {
        (0, _) => output::line("no lender is needed")?,
        (needed, members) => output::line(format_args!(
            "{needed} of {} must answer",
            output::count(members as u64, "lender")
        ))?,
    }
    for (address, answer, told) in &check.members {
        output::line(format_args!(
            "lender {address}: {}",
            answer_text(*answer, told.as_ref())
        ))?;
    }
    if let Some(loss) = &check.loss_accepted {
        output::line(format_args!("LOSS WOULD BE ACCEPTED: {loss}"))?;
    }
    Ok(())
}

fn answer_text(answer: PeerAnswer, told: Option<&MemberReport>) -> String {
    let Some(told) = told else {
        return answer_name(answer).to_owned();
    };
    let fence = match told.fence_epoch.0 {
        0 => "never fenced".to_owned(),
        _ if told.partial => format!("fenced by epoch {}", told.fence_epoch),
        _ => format!("fenced by epoch {} (writer {})", told.fence_epoch, told.writer),
    };
    let holds = match (&told.window, answer) {
        _ if told.partial => "runs an earlier release, which cannot say what it holds".to_owned(),
        (None, _) | (_, PeerAnswer::Amnesiac) => "no longer has the journal's bytes".to_owned(),
        (Some(window), PeerAnswer::AheadOfReplica) => format!(
            "holds LSN {} to {}, and the client went on without its data lender",
            window.trim, window.held
        ),
        (Some(window), _) => format!("holds LSN {} to {}", window.trim, window.held),
    };
    format!("{holds}; {fence}")
}

/// Returns the same as JSON.
pub(crate) fn as_json(check: &OpenCheck) -> Value {
    let member = |(address, answer, told): &(String, PeerAnswer, Option<MemberReport>)| {
        let window = told.as_ref().and_then(|told| told.window);
        json!({
            "address": address,
            "answer": format!("{answer:?}").to_lowercase(),
            "incarnation": told.as_ref().map(|told| told.incarnation.to_string()),
            "fenced_by_epoch": told.as_ref().map(|told| told.fence_epoch.0),
            "fenced_by_writer": told.as_ref().map(|told| told.writer.to_string()),
            "generation": window.map(|window| window.generation),
            "trim": window.map(|window| window.trim.0),
            "held": window.map(|window| window.held.0),
            "earlier_release": told.as_ref().map(|told| told.partial),
        })
    };
    json!({
        "epoch": check.epoch.0,
        "local_end": check.local_end.0,
        "members_needed": check.needed,
        "members": check.members.iter().map(member).collect::<Vec<_>>(),
        "loss_accepted": check.loss_accepted,
    })
}
