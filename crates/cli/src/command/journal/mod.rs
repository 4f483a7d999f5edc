//! `netram journal`: making journals, looking at them, recovering and deleting them.

#[cfg(feature = "products")]
mod delete;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use netram_journal::{JournalConfig, JournalInspector, JournalRecovery, NewestClaim};
use netram_proto::journal::{PeerAnswer, View};
use netram_transport::Security;
use serde_json::json;

use super::check;
use crate::options::{DurationArg, SecurityArgs, SizeArg};
use crate::output;

/// Make, inspect, recover and delete journals
///
/// A journal is a directory: a log of fixed size, the durable view (which lenders
/// hold the newest bytes), and the key that seals what lenders hold.
///
///   netram journal create /var/lib/bank/journal --size 64MiB
///   netram journal show /var/lib/bank/journal
///   netram journal verify /var/lib/bank/journal
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum JournalCommand {
    Create(CreateJournal),
    Show(ShowJournal),
    Verify(VerifyJournal),
    Check(CheckJournal),
    Recover(RecoverJournal),
    #[cfg(feature = "products")]
    Delete(delete::DeleteJournal),
}

/// Make a new journal
///
/// The log is allocated in full, so that a full disk cannot stop a commit later.
/// An existing directory is never touched.
///
///   netram journal create /var/lib/bank/journal --size 64MiB
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateJournal {
    /// The new directory
    dir: PathBuf,
    /// Bytes of the log: how much can be committed before the log has to be truncated
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    size: SizeArg,
}

/// Show a journal's positions and durable view
///
/// Nothing is changed and no lender is asked.
///
///   netram journal show /var/lib/bank/journal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowJournal {
    /// The journal's directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Check every record of a journal's local log
///
/// Nothing is changed and no lender is asked. Exit code 1 when a record is
/// damaged that had been on the disk; bytes that only lenders hold are no damage.
///
///   netram journal verify /var/lib/bank/journal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct VerifyJournal {
    /// The journal's directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Ask whether a journal would open, and which lenders are needed
///
/// Nothing is changed, here or at any lender, and nobody is fenced. Exit code 0 if
/// the journal would open, 3 if that would be refused, 1 if it could not be asked.
///
///   netram journal check /var/lib/bank/journal --key-file /etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CheckJournal {
    /// The journal's directory
    dir: PathBuf,
    #[command(flatten)]
    security: SecurityArgs,
    /// How long to wait for lenders that must answer, as 500ms, 30s or 2m
    #[arg(long, value_name = "TIME")]
    patience: Option<DurationArg>,
    /// Say what would come of --newest
    #[arg(long)]
    newest: bool,
    /// Say what would come of --accept-loss
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Recover a journal, as opening it would, and close it again
///
/// The members of the durable view are asked for what the local disk lacks;
/// afterwards the local log is complete and no lender is needed any more. If too
/// few members answer to prove that nothing acknowledged is missing, it stops and
/// says who is missing, and nothing has changed. --accept-loss goes on all the same.
///
/// --newest is your word that no other copy of this directory has been written to
/// since somebody fenced it. It is refused where lenders show that somebody did.
///
///   netram journal recover /var/lib/bank/journal --key-file /etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RecoverJournal {
    /// The journal's directory
    dir: PathBuf,
    #[command(flatten)]
    security: SecurityArgs,
    /// Give up acknowledged records that only the missing members may hold
    #[arg(long)]
    accept_loss: bool,
    /// No other directory of this journal is newer, although somebody has fenced it
    #[arg(long)]
    newest: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl JournalCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            JournalCommand::Create(create) => create.run(),
            JournalCommand::Show(show) => show.run(),
            JournalCommand::Verify(verify) => verify.run(),
            JournalCommand::Check(check) => check.run(),
            JournalCommand::Recover(recover) => recover.run(),
            #[cfg(feature = "products")]
            JournalCommand::Delete(delete) => delete.run(),
        }
    }
}

impl CreateJournal {
    fn run(self) -> Result<ExitCode> {
        let id = netram_journal::Journal::create(&self.dir, self.size.0).context("creating a journal")?;
        output::line(format_args!(
            "journal {id} in {}, {}",
            self.dir.display(),
            output::bytes(self.size.0)
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn inspect(dir: &Path) -> Result<JournalInspector> {
    JournalInspector::open(dir).with_context(|| format!("looking at the journal {}", dir.display()))
}

impl ShowJournal {
    fn run(self) -> Result<ExitCode> {
        let inspect = inspect(&self.dir)?;
        let (superblock, view) = (inspect.superblock(), inspect.view());
        if self.json {
            output::json(&json!({
                "journal": superblock.journal.to_string(),
                "in_use": inspect.in_use(),
                "capacity": inspect.capacity(),
                "head": superblock.head.lsn.0,
                "stable": superblock.stable.0,
                "view": view_as_json(view),
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        output::line(format_args!("journal   {}", superblock.journal))?;
        output::line(format_args!("log       {}", output::bytes(inspect.capacity())))?;
        output::line(format_args!(
            "head      {} (the oldest record kept)",
            superblock.head.lsn
        ))?;
        output::line(format_args!(
            "stable    {} or more (on the local disk)",
            superblock.stable
        ))?;
        output::line(format_args!("epoch     {} (writer {})", view.epoch, view.writer))?;
        output::line(format_args!(
            "view      {} (commit rule {})",
            view.version, view.rule
        ))?;
        if let Some(clean) = view.clean {
            output::line(format_args!(
                "clean     at LSN {clean}: all of it is on the local disk, and recovery needs nobody"
            ))?;
        }
        match (view.members.is_empty(), view.counting) {
            (true, _) => output::line("members   none: the local log is complete")?,
            (false, false) => output::line("members   do not count now: the local log is complete")?,
            (false, true) => {
                output::line(format_args!("members   hold what came after LSN {}", view.base))?;
            }
        }
        for member in &view.members {
            output::line(format_args!(
                "          {} (power domain `{}`, memory {})",
                member.address, member.domain, member.incarnation
            ))?;
        }
        if inspect.in_use() {
            output::line("in use    a process has the journal open: this is a moment of a moving thing")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

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

impl VerifyJournal {
    fn run(self) -> Result<ExitCode> {
        let inspect = inspect(&self.dir)?;
        let (mut bytes, mut kinds) = (0_u64, BTreeMap::<u8, u64>::new());
        let verified = inspect.verify(&mut |record| {
            bytes += record.payload.len() as u64;
            *kinds.entry(record.kind.0).or_default() += 1;
            true
        });
        let damage = verified.damage();
        let head = inspect.superblock().head.lsn;
        let healthy = damage.is_none() && verified.forged.is_none() && verified.scan.unreadable.is_none();
        if self.json {
            output::json(&json!({
                "records": verified.scan.records,
                "payload_bytes": bytes,
                "kinds": kinds,
                "head": head.0,
                "end": verified.scan.end.lsn.0,
                "proof": verified.proof.0,
                "damage": damage.map(|(from, to)| json!({"from": from.0, "to": to.0})),
                "forged": verified.forged.map(|lsn| lsn.0),
                "unreadable": verified.scan.unreadable.map(|error| error.to_string()),
                "in_use": inspect.in_use(),
                "healthy": healthy,
            }))?;
        } else {
            let records = output::thousands(verified.scan.records as i64);
            let end = verified.scan.end.lsn;
            output::line(format_args!(
                "{records} records ({}), LSN {head} to {end}",
                output::bytes(bytes)
            ))?;
            if let Some(error) = verified.scan.unreadable {
                output::line(format_args!("UNREADABLE from LSN {end}: {error}"))?;
            }
            if let Some(lsn) = verified.forged {
                output::line(format_args!(
                    "FORGED at LSN {lsn}: it was not sealed by this journal's writer"
                ))?;
            }
            match damage {
                Some((from, to)) => output::line(format_args!(
                    "DAMAGED from LSN {from}: everything below LSN {to} had been on the disk; members may still hold \
                     it: try `netram journal recover`"
                ))?,
                None if healthy => output::line("every record is whole")?,
                None => (),
            }
            if inspect.in_use() {
                output::line("a process has the journal open: what it writes now may look like an end")?;
            }
        }
        Ok(if healthy {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// A journal whose view has no members needs nobody, and so no key either.
fn security_of(arguments: &SecurityArgs) -> Result<Security> {
    match arguments.key_file.is_some() || arguments.insecure {
        true => arguments.security(),
        false => Ok(Security::Insecure),
    }
}

impl CheckJournal {
    fn run(self) -> Result<ExitCode> {
        let defaults = JournalConfig::default();
        let config = JournalConfig {
            security: security_of(&self.security)?,
            patience: self.patience.map_or(defaults.patience, |time| time.0),
            accept_loss: self.accept_loss,
            newest: self.newest.then(NewestClaim::default),
            ..defaults
        };
        let what = || format!("looking at the journal {}", self.dir.display());
        let found = netram_journal::Journal::check(&self.dir, &config).with_context(what)?;
        let refusal = found
            .refusal
            .as_ref()
            .map(|refusal| refusal as &dyn std::error::Error);
        match self.json {
            true => output::json(&json!({
                "would_succeed": refusal.is_none(),
                "refusal": refusal.map(ToString::to_string),
                "journal": check::as_json(&found),
            }))?,
            false => check::print_check(&found)?,
        }
        check::end_check(refusal, self.json)
    }
}

impl RecoverJournal {
    fn run(self) -> Result<ExitCode> {
        let config = JournalConfig {
            security: security_of(&self.security)?,
            accept_loss: self.accept_loss,
            newest: self.newest.then(NewestClaim::default),
            ..JournalConfig::default()
        };
        let (journal, recovered) = netram_journal::Journal::open(&self.dir, config).context("recovering")?;
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
}

/// What recovery did, in sentences.
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
            "the local disk ended at LSN {}; members gave {} records ({}) beyond it",
            recovered.local_end,
            output::thousands(records as i64),
            output::bytes(recovered.bytes_from_members)
        ),
    });
    if recovered.repaired > 0 {
        said.push(format!(
            "{} of damaged log were repaired from members",
            output::bytes(recovered.repaired)
        ));
    }
    for (address, answer) in &recovered.members {
        said.push(format!("member {address}: {}", answer_name(*answer)));
    }
    if let Some(loss) = &recovered.loss_accepted {
        said.push(format!("LOSS ACCEPTED: {loss}"));
    }
    said
}

pub(crate) fn answer_name(answer: PeerAnswer) -> &'static str {
    match answer {
        PeerAnswer::Unreachable => "unreachable",
        PeerAnswer::Connected => "did not answer",
        PeerAnswer::Reading => "answered in part",
        PeerAnswer::Complete => "gave all it held",
        PeerAnswer::Amnesiac => "restarted without its memory",
        PeerAnswer::AheadOfReplica => "has nothing that continues the replica",
        PeerAnswer::Overclaims => "claims more than its window can hold",
    }
}
