//! The outcome of reading a log from end to end: damage and doubts, in sentences.

use std::process::ExitCode;

use anyhow::Result;
use netram_journal::{JournalInspector, inspect::VerifyReport};

use crate::output;

/// Whether a log could be read in full.
#[derive(Debug, Default)]
pub struct LogVerdict {
    /// Damage, a sentence each; the log behind it was not read.
    pub damage: Vec<String>,
    /// Doubts: what looks like damage and may be the work of the program that has the log open.
    pub notes: Vec<String>,
}

impl LogVerdict {
    pub fn of(inspect: &JournalInspector, verified: &VerifyReport) -> LogVerdict {
        let mut verdict = LogVerdict::default();
        let end = verified.scan.end.lsn;
        if let Some(error) = verified.scan.unreadable {
            verdict
                .damage
                .push(format!("the log cannot be read from LSN {end} on: {error}"));
        }
        if let Some(lsn) = verified.forged {
            verdict.damage.push(format!(
                "the record at LSN {lsn} was not encrypted with this log's key: put the right key back, or report it"
            ));
        }
        match verified.damage() {
            None => (),
            // A record that a running program is writing may look like the end of the log.
            Some((from, to)) if inspect.in_use() => verdict.notes.push(format!(
                "from LSN {from} to LSN {to} the log could not be read while a program worked on it; check again"
            )),
            Some((from, to)) => verdict.damage.push(format!(
                "the log is damaged from LSN {from} on: everything below LSN {to} had been on the disk; lenders may still \
                 hold it: try `netram journal recover`"
            )),
        }
        verdict
    }

    /// Returns the exit code of a command that shows a log whether it is damaged or not.
    pub fn exit_code(&self) -> ExitCode {
        match self.damage.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }

    pub fn print(&self) -> Result<()> {
        for sentence in &self.damage {
            output::line(format_args!("DAMAGED: {sentence}"))?;
        }
        for sentence in &self.notes {
            output::line(format_args!("note: {sentence}"))?;
        }
        Ok(())
    }
}
