//! `netram rvm check`: whether the log, the segment table and the segments are whole and belong together.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_rvm::{SegmentError, SegmentView, TableView};
use serde_json::json;

use super::heaps::{HeapState, SegmentHeap, account, heap_in, too_large};
use super::inspection::{LogInspection, LoggedTransaction};
use super::overlay::LogOverlay;
use crate::output;

/// Most findings of one kind that are shown; more are counted.
const FINDINGS_SHOWN_MAX: usize = 20;

/// Check a log, its segment table and its segments
///
/// Every record must be whole, encrypted with this log's key, a transaction, and within segments
/// that the log knows; every segment must be the file that the log was written for; and a
/// persistent heap in it must be sound. Nothing is changed and no lender is asked. The exit code
/// is 1 if anything is damaged; bytes that only lenders hold are not damage.
///
///   netram rvm check bank.log
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CheckLog {
    /// The log's file, or the directory that holds all of it
    log: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Everything that a check found.
#[derive(Default)]
struct LogFindings {
    /// Sentences, each a damage.
    damage: Vec<String>,
    /// Sentences that are worth knowing and not damage.
    notes: Vec<String>,
    damage_omitted: u64,
    notes_omitted: u64,
    transactions: u64,
    ranges: u64,
    bytes: u64,
}

impl CheckLog {
    pub(super) fn run(self) -> Result<ExitCode> {
        let findings = LogFindings::of(&LogInspection::at(&self.log)?);
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

/// Returns the damage in a log and its segments, a sentence each.
pub fn damage_of(look: &LogInspection) -> Vec<String> {
    LogFindings::of(look).damage
}

impl LogFindings {
    fn of(look: &LogInspection) -> LogFindings {
        let mut findings = LogFindings::default();
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
        match self.damage.len() < FINDINGS_SHOWN_MAX {
            true => self.damage.push(sentence),
            false => self.damage_omitted += 1,
        }
    }

    /// Records damage, or a note if a program has the log open: it may have changed the table since that was
    /// read.
    fn suspected(&mut self, look: &LogInspection, sentence: String) {
        match look.inspect.in_use() {
            false => self.damaged(sentence),
            true if self.notes.len() < FINDINGS_SHOWN_MAX => self.notes.push(format!(
                "{sentence} (check again: a program has the log open and may have been changing it)"
            )),
            true => self.notes_omitted += 1,
        }
    }

    /// Checks every record, and notes in `named` the segments that records name.
    fn check_log(&mut self, look: &LogInspection, table: Option<&TableView>, named: &mut Vec<u32>) {
        let verdict = look.transactions(&mut |transaction| {
            self.check_transaction(look, &transaction, table, named);
            Ok(true)
        });
        match verdict {
            Ok(verdict) => {
                self.notes.extend(verdict.notes);
                verdict
                    .damage
                    .into_iter()
                    .for_each(|sentence| self.damaged(sentence));
            }
            Err(error) => self.damaged(output::sentence(&error)),
        }
    }

    fn check_transaction(
        &mut self,
        look: &LogInspection,
        transaction: &LoggedTransaction<'_>,
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
            let sentence = match table.numbered(range.segment) {
                None => format!(
                    "the transaction at LSN {lsn} names segment {}, which the segment table does not know; restore the \
                     table that belongs to this log",
                    range.segment
                ),
                Some(segment) if !segment.holds(range) => format!(
                    "the transaction at LSN {lsn} writes {place}, which is not in {} of {} bytes",
                    segment.path, segment.length
                ),
                Some(_) => continue,
            };
            self.suspected(look, sentence);
        }
    }

    fn check_segments(&mut self, look: &LogInspection, table: &TableView, named: &[u32]) {
        // Damage of the log itself is recorded already; without all of the log, the state of a heap is
        // unknown.
        let overlays = match look.overlays(&mut |_| true) {
            Ok((overlays, verdict)) => verdict.damage.is_empty().then_some(overlays),
            Err(_) => None,
        };
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

    /// Checks the heap in a segment, if there is one. Changes by a running program may look like damage.
    fn check_heap(&mut self, look: &LogInspection, segment: &SegmentView, overlay: Option<&LogOverlay>) {
        let path = &segment.path;
        let SegmentHeap { offset, state } = match heap_in(segment, overlay) {
            Ok(Some(heap)) => heap,
            Ok(None) => return,
            Err(error) => return self.damaged(format!("{path}: {}", output::sentence(&error))),
        };
        match state {
            HeapState::Whole(report) => {
                self.notes.push(format!("{path} has a {}", account(&report)));
                for root in &report.loose_roots {
                    self.notes
                        .push(format!("root {root} of the heap in {path} names no block"));
                }
            }
            HeapState::TooLarge(bytes) => {
                self.notes.push(format!("{path} has a {}", too_large(bytes)));
            }
            HeapState::Unusable(why) if look.inspect.in_use() => {
                self.notes
                    .push(format!("the heap in {path} could not be checked: {why}"));
            }
            HeapState::Unusable(why) => {
                self.damaged(format!("the heap at {offset} in {path}: {why}"));
            }
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
        if self.damage_omitted > 0 {
            output::line(format_args!("and {} more like these", self.damage_omitted))?;
        }
        for sentence in &self.notes {
            output::line(format_args!("note: {sentence}"))?;
        }
        if self.notes_omitted > 0 {
            output::line(format_args!("note: and {} more", self.notes_omitted))?;
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
            "more_damage": self.damage_omitted,
            "notes": self.notes,
            "more_notes": self.notes_omitted,
            "transactions": self.transactions,
            "ranges": self.ranges,
            "bytes": self.bytes,
        }))
    }
}
