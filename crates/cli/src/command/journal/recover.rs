//! `netram journal recover`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::{Journal, JournalConfig, NewestClaim};
use netram_transport::Security;
use serde_json::json;

use super::{answer_name, recovery_sentences, refuse_missing};
use crate::command::open_check;
use crate::options::{DurationArg, SecurityArgs};
use crate::output;

/// Recover a journal, as opening it would, and close it again
///
/// The lenders that hold the journal's newest bytes are asked for what the local disk lacks.
/// Afterwards the local log is complete and no lender is needed any more.
///
/// If too few lenders answer to prove that nothing acknowledged is missing, the command says
/// which are missing, and changes nothing. --accept-loss goes on without them.
///
/// --check only asks: the exit code is 0 if the journal would open, 3 if that would be refused,
/// 1 if it could not be asked. Nothing is changed, here or at any lender.
///
/// --newest states that no other copy of this directory has been written to since another
/// process fenced it. It is refused where lenders show the contrary.
///
///   netram journal recover /var/lib/bank/journal
///   netram journal recover /var/lib/bank/journal --check
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RecoverJournal {
    /// The journal's directory
    dir: PathBuf,
    #[command(flatten)]
    security: SecurityArgs,
    /// Only ask whether it would open and which lenders are needed; change nothing
    #[arg(long)]
    check: bool,
    /// How long to wait for lenders that must answer, as 500ms, 30s or 2m [default: 30s]
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
    /// Give up acknowledged records that only the missing lenders may hold
    #[arg(long)]
    accept_loss: bool,
    /// State that no other directory of this journal is newer, although it was fenced
    #[arg(long)]
    newest: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns the protection of links. A journal that no lender holds bytes of needs no key.
fn security_of(arguments: &SecurityArgs) -> Result<Security> {
    match arguments.key_file.is_some() || arguments.insecure {
        true => arguments.security(),
        false => Ok(Security::Insecure),
    }
}

impl RecoverJournal {
    pub(super) fn run(self) -> Result<ExitCode> {
        refuse_missing(&self.dir)?;
        let defaults = JournalConfig::default();
        let config = JournalConfig {
            security: security_of(&self.security)?,
            patience: self.patience.map_or(defaults.patience, |time| time.0),
            accept_loss: self.accept_loss,
            newest: self.newest.then(NewestClaim::default),
            ..defaults
        };
        if self.check {
            return self.ask(&config);
        }
        let (journal, recovered) = Journal::open(&self.dir, config).context("recovering")?;
        journal.close().context("closing the recovered journal")?;
        if self.json {
            let members: Vec<_> = recovered
                .members
                .iter()
                .map(|(address, answer)| json!({"address": address, "answer": answer_name(*answer)}))
                .collect();
            output::json(&json!({
                "epoch": recovered.epoch.0,
                "head": recovered.head.0,
                "local_end": recovered.local_end.0,
                "end": recovered.end.0,
                "records_from_members": recovered.records_from_members,
                "bytes_from_members": recovered.bytes_from_members,
                "repaired_bytes": recovered.repaired,
                "members": members,
                "members_needed": recovered.needed,
                "loss_accepted": recovered.loss_accepted,
                "took_ms": recovered.took.as_secs_f64() * 1e3,
            }))?;
        } else {
            for sentence in recovery_sentences(&recovered) {
                output::line(sentence)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Asks whether the journal would open, and changes nothing.
    fn ask(&self, config: &JournalConfig) -> Result<ExitCode> {
        let what = || format!("looking at the journal {}", self.dir.display());
        let found = Journal::check(&self.dir, config).with_context(what)?;
        let refusal = found
            .refusal
            .as_ref()
            .map(|refusal| refusal as &dyn std::error::Error);
        match self.json {
            true => output::json(&json!({
                "would_succeed": refusal.is_none(),
                "refusal": refusal.map(ToString::to_string),
                "journal": open_check::as_json(&found),
            }))?,
            false => open_check::print_check(&found)?,
        }
        open_check::end_check(refusal, self.json)
    }
}
