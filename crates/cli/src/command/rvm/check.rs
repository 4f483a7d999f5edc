//! `netram rvm check`: whether the log, the segment table and the segments are whole and belong together.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_client::inspect::Verified;
use netram_rvm::{SegmentError, SegmentView, TableView};
use serde_json::json;

use super::heaps::{SegmentHeap, account, heap_in};
use super::look::{Look, Transaction};
use super::overlay::Overlay;
use crate::output;

/// Findings of one kind that are told; more are counted.
const TOLD_MAX: usize = 20;

/// Check a log, its segment table and its segments
///
/// Every record must be whole, sealed by this log's own writer, a transaction,
/// and within segments that the log knows; every segment must be the file that
/// the log was written for; and a persistent heap in it must be sound. Nothing is
/// changed, no lender is asked. Exit code 1 when anything is damaged; what only
/// lenders hold is no damage.
///
///   netram rvm check bank.log
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Check {
    /// The log
    log: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Default)]
struct Findings {
    /// Sentences, each a damage.
    damage: Vec<String>,
    /// Sentences worth knowing that are none.
    notes: Vec<String>,
    untold: u64,
    transactions: u64,
    ranges: u64,
    bytes: u64,
}

impl Check {
    pub(super) fn run(self) -> Result<ExitCode> {
        let findings = Findings::of(&Look::at(&self.log)?);
        match self.json {
            true => findings.print_json()?,
            false => findings.print()?,
        }
        Ok(match findings.damage.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

/// What is damaged, a sentence for each.
pub(super) fn damage_of(look: &Look) -> Vec<String> {
    Findings::of(look).damage
}

impl Findings {
    fn of(look: &Look) -> Findings {
        let mut findings = Findings::default();
        let table = match look.table() {
            Ok(table) => Some(table),
            Err(error) => {
                findings.damaged(output::sentence(&error));
                None
            }
        };
        let mut named = Vec::new();
        findings.check_log(look, table.as_ref(), &mut named);
        if let Some(table) = &table {
            findings.check_segments(look, table, &named);
        }
        findings.notes.extend(look.reservation());
        findings
    }

    fn damaged(&mut self, sentence: String) {
        match self.damage.len() < TOLD_MAX {
            true => self.damage.push(sentence),
            false => self.untold += 1,
        }
    }

    /// Checks every record, and notes in `named` the segments that records name.
    fn check_log(&mut self, look: &Look, table: Option<&TableView>, named: &mut Vec<u32>) {
        let verified = look.transactions(&mut |transaction| {
            self.check_transaction(&transaction, table, named);
            Ok(true)
        });
        match verified {
            Ok(verified) => self.judge(look, &verified),
            Err(error) => self.damaged(output::sentence(&error)),
        }
    }

    fn check_transaction(
        &mut self,
        transaction: &Transaction<'_>,
        table: Option<&TableView>,
        named: &mut Vec<u32>,
    ) {
        let lsn = transaction.record.lsn;
        self.transactions += 1;
        for range in &transaction.ranges {
            self.ranges += 1;
            self.bytes += range.bytes.len() as u64;
            if !named.contains(&range.segment) {
                named.push(range.segment);
            }
            let Some(table) = table else { continue };
            let place = format!("{}+{}", range.offset, range.bytes.len());
            match table.numbered(range.segment) {
                None => self.damaged(format!(
                    "the transaction at LSN {lsn} names segment {}, which the segment table does not know; restore the \
                     table that belongs to this log",
                    range.segment
                )),
                Some(segment) if !segment.holds(range) => self.damaged(format!(
                    "the transaction at LSN {lsn} writes {place}, which is not in {} of {} bytes",
                    segment.path, segment.length
                )),
                Some(_) => (),
            }
        }
    }

    fn judge(&mut self, look: &Look, verified: &Verified) {
        let end = verified.scan.end.lsn;
        if let Some(error) = verified.scan.unreadable {
            self.damaged(format!("the log cannot be read from LSN {end} on: {error}"));
        }
        if let Some(lsn) = verified.forged {
            self.damaged(format!(
                "the record at LSN {lsn} was not sealed by this log's own writer: put the right key back, or report it"
            ));
        }
        // What a running program writes at this moment may look like an end.
        match verified.damage() {
            Some((from, to)) if !look.inspect.in_use() => self.damaged(format!(
                "the log is damaged from LSN {from} on: everything below LSN {to} had been on the disk; members may still \
                 hold it: try `netram journal recover`"
            )),
            _ => (),
        }
    }

    fn check_segments(&mut self, look: &Look, table: &TableView, named: &[u32]) {
        // Damage of the log itself has been told; without it nobody can say what a heap looks like.
        let overlays = look.overlays(&mut |_| true).ok();
        for segment in &table.segments {
            match segment.open() {
                Ok(_) => {
                    if let Some(overlays) = &overlays {
                        self.check_heap(look, segment, overlays.get(&segment.number));
                    }
                }
                Err(error @ SegmentError::Missing { .. }) if !named.contains(&segment.number) => {
                    self.notes
                        .push(format!("{error} (no record in the log needs it)"));
                }
                Err(error) => self.damaged(error.to_string()),
            }
        }
    }

    /// Checks the heap in a segment, if there is one. What a program changes meanwhile may look like damage.
    fn check_heap(&mut self, look: &Look, segment: &SegmentView, overlay: Option<&Overlay>) {
        let path = &segment.path;
        match heap_in(segment, overlay) {
            Ok(None) => (),
            Ok(Some(SegmentHeap {
                state: Ok(report), ..
            })) => {
                self.notes.push(format!("{path} has a {}", account(&report)));
                for root in &report.loose_roots {
                    self.notes
                        .push(format!("root {root} of the heap in {path} names no block"));
                }
            }
            Ok(Some(SegmentHeap { state: Err(why), .. })) if look.inspect.in_use() => {
                self.notes
                    .push(format!("the heap in {path} could not be checked: {why}"));
            }
            Ok(Some(SegmentHeap {
                offset,
                state: Err(why),
            })) => {
                self.damaged(format!("the heap at {offset} in {path}: {why}"));
            }
            Err(error) => self.damaged(format!("{path}: {}", output::sentence(&error))),
        }
    }

    fn print(&self) -> Result<()> {
        output::line(format_args!(
            "{} in the log, {}, {}",
            output::count(self.transactions, "transaction"),
            output::count(self.ranges, "range"),
            output::bytes(self.bytes)
        ))?;
        for sentence in &self.damage {
            output::line(format_args!("DAMAGED: {sentence}"))?;
        }
        if self.untold > 0 {
            output::line(format_args!("and {} more like these", self.untold))?;
        }
        for sentence in &self.notes {
            output::line(format_args!("note: {sentence}"))?;
        }
        match self.damage.is_empty() {
            true => output::line("log, segment table and segments are whole"),
            false => Ok(()),
        }
    }

    fn print_json(&self) -> Result<()> {
        output::json(&json!({
            "healthy": self.damage.is_empty(),
            "damage": self.damage,
            "more_damage": self.untold,
            "notes": self.notes,
            "transactions": self.transactions,
            "ranges": self.ranges,
            "bytes": self.bytes,
        }))
    }
}
