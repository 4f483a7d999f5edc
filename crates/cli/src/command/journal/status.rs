//! `netram journal status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::{inspect, view_as_json};
use crate::output;

/// Show a journal's positions, and the lenders that hold its newest bytes
///
/// Nothing is changed and no lender is asked. Positions are log sequence numbers (LSN): bytes
/// since the journal was created.
///
///   netram journal status /var/lib/bank/journal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowJournal {
    /// The journal's directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ShowJournal {
    pub(super) fn run(self) -> Result<ExitCode> {
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
            "head      {} (the oldest record that is kept)",
            superblock.head.lsn
        ))?;
        output::line(format_args!(
            "stable    {} or more (the local disk has everything below)",
            superblock.stable
        ))?;
        output::line(format_args!("epoch     {} (writer {})", view.epoch, view.writer))?;
        output::line(format_args!(
            "view      {} (commit rule {})",
            view.version, view.rule
        ))?;
        if let Some(clean) = view.clean {
            output::line(format_args!(
                "clean     at LSN {clean}: the local disk has everything, and recovery needs no lender"
            ))?;
        }
        match (view.members.is_empty(), view.counting) {
            (true, _) => output::line("lenders   none: the local log is complete")?,
            (false, false) => output::line("lenders   do not count now: the local log is complete")?,
            (false, true) => {
                output::line(format_args!("lenders   hold what came after LSN {}", view.base))?;
            }
        }
        for member in &view.members {
            output::line(format_args!(
                "          {} (power domain `{}`, memory {})",
                member.address, member.domain, member.incarnation
            ))?;
        }
        if inspect.in_use() {
            output::line("in use    a process has the journal open, and these numbers are changing")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
