//! What a pass over the log says of the log itself, in sentences.

use std::process::ExitCode;

use anyhow::Result;
use netram_journal::{JournalInspector, inspect::VerifyReport};

use crate::output;

/// Whether what was read of a log is all that it should have.
#[derive(Debug, Default)]
pub struct LogVerdict {
    /// Sentences, each a damage: what stands behind it in the log was not seen.
    pub damage: Vec<String>,
    /// What looks like damage and may be the work of the program that has the log open.
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
                "the record at LSN {lsn} was not sealed by this log's own writer: put the right key back, or report it"
            ));
        }
        match verified.damage() {
            None => (),
            // What a running program writes at this moment may look like an end.
            Some((from, to)) if inspect.in_use() => verdict.notes.push(format!(
                "from LSN {from} to LSN {to} the log could not be read while the program worked on it; look again"
            )),
            Some((from, to)) => verdict.damage.push(format!(
                "the log is damaged from LSN {from} on: everything below LSN {to} had been on the disk; members may still \
                 hold it: try `netram journal recover`"
            )),
        }
        verdict
    }

    /// For a subcommand that shows what there is, damaged or not.
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
