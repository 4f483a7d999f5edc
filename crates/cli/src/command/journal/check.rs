//! `netram journal check`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::inspect;
use crate::output;

/// Check every record of a journal's local log
///
/// Nothing is changed and no lender is asked. The exit code is 1 if a record is damaged that
/// had been written to the disk; bytes that only lenders hold are not damage. To ask whether
/// the journal can be opened, use `netram journal recover --check`.
///
///   netram journal check /var/lib/bank/journal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CheckJournal {
    /// The journal's directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CheckJournal {
    pub(super) fn run(self) -> Result<ExitCode> {
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
            let records = output::count(verified.scan.records, "record");
            let end = verified.scan.end.lsn;
            output::line(format_args!(
                "{records} ({}), LSN {head} to {end}",
                output::bytes(bytes)
            ))?;
            if let Some(error) = verified.scan.unreadable {
                output::line(format_args!("UNREADABLE from LSN {end}: {error}"))?;
            }
            if let Some(lsn) = verified.forged {
                output::line(format_args!(
                    "FORGED at LSN {lsn}: the record was not encrypted with this journal's key"
                ))?;
            }
            match damage {
                Some((from, to)) => output::line(format_args!(
                    "DAMAGED from LSN {from}: everything below LSN {to} had been on the disk; lenders may still hold \
                     it: try `netram journal recover`"
                ))?,
                None if healthy => output::line("every record is whole")?,
                None => (),
            }
            if inspect.in_use() {
                output::line(
                    "a process has the journal open: a record that it is writing may look like the end of the log",
                )?;
            }
        }
        Ok(if healthy {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
