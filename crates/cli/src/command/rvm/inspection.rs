//! Reading a store from outside: its log, its segments, and the committed bytes. Nothing is changed, locks
//! are held only while something is read, and no lender is asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use netram_journal::JournalInspector;
use netram_proto::port::{Record, RecordKind};
use netram_rvm::record::{decode, is_transaction};
use netram_rvm::{RangeView, SegmentView, TableView};
use netram_store::Store;

use super::overlay::LogOverlay;
use super::verdict::LogVerdict;
use crate::options::SizeArg;
use crate::output;

/// Record kinds below this one belong to the journal itself.
const KIND_USER_MIN: RecordKind = RecordKind(16);

/// A store, read from outside.
pub struct LogInspection {
    pub home: Store,
    pub inspect: JournalInspector,
}

/// Offset and length of some bytes, written as `4096+64` or `0x1000+1KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    pub offset: u64,
    pub length: u64,
}

/// A transaction of the log, with its ranges in order.
pub struct LoggedTransaction<'r> {
    pub record: Record<'r>,
    pub ranges: Vec<RangeView<'r>>,
}

/// Returns the store at `path`.
///
/// # Errors
///
/// There is none.
pub fn existing(path: &Path) -> Result<Store> {
    let home = Store::at(path);
    match home.exists() {
        true => Ok(home),
        false => Err(anyhow!(
            "there is no log {}; `netram rvm create` makes one",
            home.log().display()
        )),
    }
}

impl LogInspection {
    pub fn at(path: &Path) -> Result<LogInspection> {
        let home = existing(path)?;
        let inspect =
            JournalInspector::open(home.path()).with_context(|| format!("looking at {}", path.display()))?;
        Ok(LogInspection { home, inspect })
    }

    /// Returns the segments that the log knows.
    ///
    /// # Errors
    ///
    /// The segment table cannot be read.
    pub fn table(&self) -> Result<TableView> {
        let path = self.home.segments();
        let read = TableView::read(&path, self.inspect.superblock().journal);
        read.with_context(|| format!("reading the segment table {}", path.display()))
    }

    /// Returns the segment with this path or number.
    ///
    /// # Errors
    ///
    /// The log knows no such segment, or the segment table cannot be read.
    pub fn segment(&self, name: &str) -> Result<SegmentView> {
        let table = self.table()?;
        let canonical = std::fs::canonicalize(name).ok();
        let named = |segment: &&SegmentView| {
            segment.path == name
                || canonical
                    .as_deref()
                    .is_some_and(|path| path == Path::new(&segment.path))
        };
        let numbered = || name.parse().ok().and_then(|number| table.numbered(number));
        let found = table.segments.iter().find(named).or_else(numbered);
        found.cloned().ok_or_else(|| {
            let known: Vec<String> = table
                .segments
                .iter()
                .map(|segment| format!("{} {}", segment.number, segment.path))
                .collect();
            let known = match known.is_empty() {
                true => "it knows none".to_owned(),
                false => format!("it knows {}", known.join(", ")),
            };
            anyhow!("the log knows no segment `{name}`; {known}")
        })
    }

    /// Passes every transaction of the local log to `each`, oldest first, until it returns `false`. The
    /// verdict says whether these were all.
    ///
    /// # Errors
    ///
    /// A record is not a transaction, or `each` failed.
    pub fn transactions(
        &self,
        each: &mut dyn FnMut(LoggedTransaction<'_>) -> Result<bool>,
    ) -> Result<LogVerdict> {
        let mut outcome = Ok(());
        let verified = self.inspect.verify(&mut |record| {
            if record.kind < KIND_USER_MIN {
                return true;
            }
            let said = transaction(record).and_then(&mut *each);
            match said {
                Ok(wanted) => wanted,
                Err(error) => {
                    outcome = Err(error);
                    false
                }
            }
        });
        outcome.map(|()| LogVerdict::of(&self.inspect, &verified))
    }

    /// Returns the log's changes to `segment`, and whether these are all.
    ///
    /// # Errors
    ///
    /// A record of the log is not a transaction.
    pub fn overlay(&self, segment: &SegmentView) -> Result<(LogOverlay, LogVerdict)> {
        let (mut overlays, verdict) = self.overlays(&mut |number| number == segment.number)?;
        Ok((overlays.remove(&segment.number).unwrap_or_default(), verdict))
    }

    /// Returns the log's changes to each wanted segment, by number, in one pass over the log.
    ///
    /// # Errors
    ///
    /// A record of the log is not a transaction.
    pub fn overlays(
        &self,
        wanted: &mut dyn FnMut(u32) -> bool,
    ) -> Result<(BTreeMap<u32, LogOverlay>, LogVerdict)> {
        let mut overlays: BTreeMap<u32, LogOverlay> = BTreeMap::new();
        let verdict = self.transactions(&mut |transaction| {
            for range in &transaction.ranges {
                if wanted(range.segment) {
                    let overlay = overlays.entry(range.segment).or_default();
                    overlay.write(transaction.record.lsn.0, range.offset, range.bytes);
                }
            }
            Ok(true)
        })?;
        Ok((overlays, verdict))
    }

    /// Prints on standard error why what was read may be incomplete.
    pub fn caution(&self) {
        if let Some(sentence) = self.reservation() {
            output::remark(format_args!("netram: {sentence}"));
        }
    }

    /// Returns why what was read may be incomplete; `None` if it is complete.
    pub fn reservation(&self) -> Option<String> {
        if self.inspect.in_use() {
            let sentence = "a process has the log open, and these numbers are changing";
            return Some(sentence.to_owned());
        }
        let view = self.inspect.view();
        (view.counting && !view.members.is_empty()).then(|| {
            let members: Vec<&str> = view.members.iter().map(|member| member.address.as_str()).collect();
            format!(
                "the log was not closed: lenders ({}) may hold commits that are not on this disk; opening it, or \
                 `netram journal recover`, brings them here",
                members.join(", ")
            )
        })
    }
}

fn transaction(record: Record<'_>) -> Result<LoggedTransaction<'_>> {
    let lsn = record.lsn;
    if !is_transaction(record.kind) {
        return Err(anyhow!(
            "the record at LSN {lsn} is of kind {}: this log is used by something other than recoverable memory",
            record.kind.0
        ));
    }
    let changes = decode(record.kind, record.payload);
    let changes = changes
        .with_context(|| format!("the record at LSN {lsn} passed its checksum and is not a transaction"))?;
    Ok(LoggedTransaction {
        record,
        ranges: changes.ranges().collect(),
    })
}

impl ByteRange {
    /// Returns the offset behind the last byte; `None` if it does not fit a number.
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }
}

impl FromStr for ByteRange {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteRange, String> {
        let wrong =
            || format!("`{text}` is not a range; write it as OFFSET+LENGTH, as in 4096+64 or 0x1000+1KiB");
        let (offset, length) = text.split_once('+').ok_or_else(wrong)?;
        let stretch = ByteRange {
            offset: number(offset).map_err(|_| wrong())?,
            length: number(length).map_err(|_| wrong())?,
        };
        match stretch.end() {
            Some(_) if stretch.length > 0 => Ok(stretch),
            _ => Err(wrong()),
        }
    }
}

/// Reads a number of bytes: `4096`, `0x1000` or `4KiB`.
///
/// # Errors
///
/// The text is not such a number; the error says so.
pub fn number(text: &str) -> Result<u64, String> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => {
            u64::from_str_radix(digits, 16).map_err(|_| format!("`{text}` is not a hexadecimal number"))
        }
        None => text.parse::<SizeArg>().map(|size| size.0),
    }
}

/// Returns bytes as hexadecimal digits, at most `most` bytes.
pub fn hex(bytes: &[u8], most: usize) -> String {
    let digits: String = bytes
        .iter()
        .take(most)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    match bytes.len() > most {
        true => format!("{digits}... ({} bytes)", bytes.len()),
        false => digits,
    }
}

/// Returns the absolute path, as the segment table has it.
///
/// # Errors
///
/// The path is empty.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{} is not a path", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_people_write_them() {
        let stretch = |offset, length| Ok(ByteRange { offset, length });
        assert_eq!("4096+64".parse(), stretch(4096, 64));
        assert_eq!("0x1000+1KiB".parse(), stretch(4096, 1024));
        for text in [
            "",
            "4096",
            "4096+",
            "4096+0",
            "1+18446744073709551615",
            "a+1",
            "0xg+1",
        ] {
            assert!(text.parse::<ByteRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn long_values_are_cut() {
        assert_eq!(hex(&[1, 0xab], 4), "01ab");
        assert_eq!(hex(&[0; 9], 2), "0000... (9 bytes)");
    }
}
