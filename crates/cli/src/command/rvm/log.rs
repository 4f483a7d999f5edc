//! `netram rvm log`: the transactions in a log, and the history of single bytes.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_rvm::{SegmentFile, SegmentView, TableView};
use serde_json::{Value, json};

use super::inspection::{ByteRange, LogInspection, LoggedTransaction, hex};
use super::overlay::LogOverlay;
use super::verdict::LogVerdict;
use crate::output;

/// Number of transactions shown by default.
const LIMIT: usize = 100;
/// Bytes of a value shown by default.
const VALUE_BYTES: usize = 16;

/// Show the transactions in a log, oldest first
///
/// The log has the newest transactions: those that have not been applied to the segments' files
/// yet. With --range it shows the history of those bytes: each change with old and new values,
/// and the transaction that wrote each byte last. The value before the first change comes from
/// the segment's file, where an interrupted truncation may have put newer bytes already.
///
/// The exit code is 1 if the log is damaged: what lies behind the damage is not shown.
///
///   netram rvm log bank.log
///   netram rvm log bank.log --segment bank.data --range 4096+64
///   netram rvm log bank.log --values --limit 0 --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowTransactions {
    /// The log's file, or the directory that holds all of it
    log: PathBuf,
    /// Show only changes of this segment: its path or its number
    #[arg(long)]
    segment: Option<String>,
    /// Show only changes of these bytes of the segment, with their history
    #[arg(long, value_name = "OFFSET+LENGTH", requires = "segment")]
    range: Option<ByteRange>,
    /// Show all bytes of new values [default: the first 16]
    #[arg(long)]
    values: bool,
    /// Show only the newest of them, this many; 0: all
    #[arg(long, value_name = "COUNT", default_value_t = LIMIT)]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The selected ranges of one transaction.
struct ShownTransaction {
    lsn: u64,
    epoch: u32,
    ranges: Vec<ShownRange>,
}

struct ShownRange {
    segment: u32,
    offset: u64,
    length: u64,
    /// The earlier value of these bytes, with --range.
    old: Option<OldValue>,
    new: Vec<u8>,
}

/// The value of bytes before a change.
enum OldValue {
    /// All bytes are in the log.
    Logged(Vec<u8>),
    /// Some bytes are only in the segment's file, where an interrupted truncation may have put later ones.
    FromFile(Vec<u8>),
    /// The segment's file cannot be read.
    Unknown,
}

/// The newest of the selected transactions, and the number of all.
struct TransactionSelection {
    shown: VecDeque<ShownTransaction>,
    matching: u64,
    all: u64,
}

impl ShowTransactions {
    pub(super) fn run(self) -> Result<ExitCode> {
        let look = LogInspection::at(&self.log)?;
        let table = look.table()?;
        let segment = self
            .segment
            .as_deref()
            .map(|name| look.segment(name))
            .transpose()?;
        let mut history = match (&segment, self.range) {
            (Some(segment), Some(stretch)) => Some(RangeHistory::new(segment, stretch)),
            _ => None,
        };
        let (selection, verdict) = self.select(&look, segment.as_ref(), history.as_mut())?;
        match self.json {
            true => output::json(&self.json(&look, &table, &selection, history.as_ref(), &verdict))?,
            false => {
                self.print(&table, &selection, history.as_ref())?;
                verdict.print()?;
                look.caution();
            }
        }
        Ok(verdict.exit_code())
    }

    fn select(
        &self,
        look: &LogInspection,
        segment: Option<&SegmentView>,
        mut history: Option<&mut RangeHistory>,
    ) -> Result<(TransactionSelection, LogVerdict)> {
        let mut selection = TransactionSelection {
            shown: VecDeque::new(),
            matching: 0,
            all: 0,
        };
        let verdict = look.transactions(&mut |transaction| {
            selection.all += 1;
            let shown = self.pick(&transaction, segment, history.as_deref_mut());
            if !shown.ranges.is_empty() || segment.is_none() {
                selection.matching += 1;
                selection.shown.push_back(shown);
                if self.limit > 0 && selection.shown.len() > self.limit {
                    selection.shown.pop_front();
                }
            }
            Ok(true)
        })?;
        Ok((selection, verdict))
    }

    /// Returns the selected ranges of a transaction.
    fn pick(
        &self,
        transaction: &LoggedTransaction<'_>,
        segment: Option<&SegmentView>,
        mut history: Option<&mut RangeHistory>,
    ) -> ShownTransaction {
        let lsn = transaction.record.lsn.0;
        let mut ranges = Vec::new();
        for range in &transaction.ranges {
            if segment.is_some_and(|segment| segment.number != range.segment) {
                continue;
            }
            match history.as_deref_mut() {
                Some(history) => ranges.extend(history.take(lsn, range.segment, range.offset, range.bytes)),
                None => ranges.push(ShownRange {
                    segment: range.segment,
                    offset: range.offset,
                    length: range.bytes.len() as u64,
                    old: None,
                    new: range.bytes[..range.bytes.len().min(self.value_bytes())].to_vec(),
                }),
            }
        }
        ShownTransaction {
            lsn,
            epoch: transaction.record.epoch.0,
            ranges,
        }
    }

    fn value_bytes(&self) -> usize {
        if self.values { usize::MAX } else { VALUE_BYTES }
    }

    fn print(
        &self,
        table: &TableView,
        selection: &TransactionSelection,
        history: Option<&RangeHistory>,
    ) -> Result<()> {
        let shown = selection.shown.len() as u64;
        if shown < selection.matching {
            let left_out = selection.matching - shown;
            output::line(format_args!(
                "({} {} left out; --limit 0 shows all)",
                output::count(left_out, "older transaction"),
                if left_out == 1 { "is" } else { "are" }
            ))?;
        }
        for transaction in &selection.shown {
            let ShownTransaction { lsn, epoch, ranges } = transaction;
            let count = output::count(ranges.len() as u64, "range");
            output::line(format_args!("LSN {lsn}  epoch {epoch}  {count}"))?;
            for range in ranges {
                output::line(self.describe(range, table))?;
            }
        }
        let all = output::count(selection.all, "transaction");
        output::line(match selection.matching == selection.all {
            true => format!("{all} in the log"),
            false => format!(
                "{} of {all} in the log",
                output::thousands(selection.matching as i64)
            ),
        })?;
        history.map_or(Ok(()), |history| history.print(self.value_bytes()))
    }

    fn describe(&self, range: &ShownRange, table: &TableView) -> String {
        let path = table
            .numbered(range.segment)
            .map_or("UNKNOWN SEGMENT", |segment| &segment.path);
        let place = format!("    {path} {}+{}", range.offset, range.length);
        let most = self.value_bytes();
        let new = match range.new.len() as u64 == range.length {
            true => hex(&range.new, most),
            false => format!("{}...", hex(&range.new, most)),
        };
        match &range.old {
            Some(OldValue::Logged(old)) => format!("{place}  {} -> {new}", hex(old, most)),
            Some(OldValue::FromFile(old)) => {
                format!(
                    "{place}  {} (from the file, may be newer) -> {new}",
                    hex(old, most)
                )
            }
            Some(OldValue::Unknown) => format!("{place}  unknown -> {new}"),
            None => format!("{place}  = {new}"),
        }
    }

    fn json(
        &self,
        look: &LogInspection,
        table: &TableView,
        selection: &TransactionSelection,
        history: Option<&RangeHistory>,
        verdict: &LogVerdict,
    ) -> Value {
        let range = |range: &ShownRange| {
            let whole = range.new.len() as u64 == range.length;
            let (old, old_from) = match &range.old {
                Some(OldValue::Logged(old)) => (Some(old), Some("log")),
                Some(OldValue::FromFile(old)) => (Some(old), Some("file")),
                Some(OldValue::Unknown) | None => (None, None),
            };
            json!({
                "segment": range.segment,
                "path": table.numbered(range.segment).map(|segment| segment.path.as_str()),
                "offset": range.offset,
                "length": range.length,
                "old": old.map(|old| hex(old, usize::MAX)),
                "old_from": old_from,
                "new": whole.then(|| hex(&range.new, usize::MAX)),
            })
        };
        let transactions: Vec<Value> = selection
            .shown
            .iter()
            .map(|shown| {
                let ranges: Vec<Value> = shown.ranges.iter().map(range).collect();
                json!({ "lsn": shown.lsn, "epoch": shown.epoch, "ranges": ranges })
            })
            .collect();
        json!({
            "transactions": transactions,
            "matching": selection.matching,
            "in_log": selection.all,
            "last_writers": history.map(RangeHistory::json),
            "reservation": look.reservation(),
            "damage": verdict.damage,
            "notes": verdict.notes,
        })
    }
}

/// The history of the bytes of --range.
struct RangeHistory {
    stretch: ByteRange,
    number: u32,
    /// The segment's file; without it, old values are known only where the log has them.
    file: Option<SegmentFile>,
    now: LogOverlay,
}

impl RangeHistory {
    fn new(segment: &SegmentView, stretch: ByteRange) -> RangeHistory {
        let file = match segment.open() {
            Ok(file) => Some(file),
            Err(error) => {
                output::remark(format_args!(
                    "netram: {error}; the values before the log's first change are unknown"
                ));
                None
            }
        };
        RangeHistory {
            stretch,
            number: segment.number,
            file,
            now: LogOverlay::default(),
        }
    }

    /// Records a change, and returns the part of it that touches the bytes of --range.
    fn take(&mut self, lsn: u64, segment: u32, offset: u64, bytes: &[u8]) -> Option<ShownRange> {
        let end = offset + bytes.len() as u64;
        let from = offset.max(self.stretch.offset);
        let to = end.min(self.stretch.end()?);
        if segment != self.number || from >= to {
            return None;
        }
        let old = self.old(from, to - from);
        let new = bytes[(from - offset) as usize..(to - offset) as usize].to_vec();
        self.now.write(lsn, from, &new);
        Some(ShownRange {
            segment,
            offset: from,
            length: to - from,
            old: Some(old),
            new,
        })
    }

    /// Returns the bytes as of the changes recorded so far.
    fn old(&self, offset: u64, length: u64) -> OldValue {
        let mut bytes = vec![0; length as usize];
        let pieces = self.now.within(offset, length);
        let logged: u64 = pieces.map(|(_, piece)| piece.bytes.len() as u64).sum();
        if logged < length {
            match self.file.as_ref().map(|file| file.read_at(offset, &mut bytes)) {
                Some(Ok(())) => (),
                Some(Err(_)) | None => return OldValue::Unknown,
            }
        }
        self.now.apply(offset, &mut bytes);
        match logged < length {
            true => OldValue::FromFile(bytes),
            false => OldValue::Logged(bytes),
        }
    }

    fn print(&self, most: usize) -> Result<()> {
        let ByteRange { offset, length } = self.stretch;
        output::line(format_args!("last writers of {offset}+{length}:"))?;
        let mut at = offset;
        let end = offset + length;
        let unwritten = |from: u64, to: u64| match from < to {
            true => output::line(format_args!("    {from}+{}  none in the log", to - from)),
            false => Ok(()),
        };
        for (from, piece) in self.now.within(offset, length) {
            unwritten(at, from)?;
            at = from + piece.bytes.len() as u64;
            output::line(format_args!(
                "    {from}+{}  LSN {}  = {}",
                piece.bytes.len(),
                piece.lsn,
                hex(&piece.bytes, most)
            ))?;
        }
        unwritten(at, end)
    }

    fn json(&self) -> Value {
        let ByteRange { offset, length } = self.stretch;
        let pieces = self.now.within(offset, length).map(|(at, piece)| {
            json!({
                "offset": at,
                "length": piece.bytes.len(),
                "lsn": piece.lsn,
                "value": hex(&piece.bytes, usize::MAX),
            })
        });
        pieces.collect()
    }
}
