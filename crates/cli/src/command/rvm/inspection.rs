//! Looking at a home from outside: its log, its segments, and the bytes that are committed. Nothing is
//! changed, nothing is locked for longer than a look takes, and no lender is asked.

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

/// Kinds below belong to the journal itself.
const KIND_USER_MIN: RecordKind = RecordKind(16);

/// A home, looked at from outside.
pub struct LogInspection {
    pub home: Store,
    pub inspect: JournalInspector,
}

/// Where a number of bytes begins and how many they are, as `4096+64` or `0x1000+1KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    pub offset: u64,
    pub length: u64,
}

/// One transaction of the log, its ranges in the order in which they stand.
pub struct LoggedTransaction<'r> {
    pub record: Record<'r>,
    pub ranges: Vec<RangeView<'r>>,
}

/// The home at `path`, which must be there.
pub fn existing(path: &Path) -> Result<Store> {
    let home = Store::at(path);
    match home.exists() {
        true => Ok(home),
        false => Err(anyhow!(
            "there is no log {}; name the log that `netram rvm create` made, or its directory",
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

    /// The segments that the log knows.
    pub fn table(&self) -> Result<TableView> {
        let path = self.home.segments();
        let read = TableView::read(&path, self.inspect.superblock().journal);
        read.with_context(|| format!("reading the segment table {}", path.display()))
    }

    /// The segment called `name`: its path, or its number.
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

    /// Passes every transaction of the local log to `each`, oldest first, until it says `false`. A record
    /// that is none ends it with an error. Whether these were all is in the answer.
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

    /// What the log has for `segment`, and whether that is all it should have.
    pub fn overlay(&self, segment: &SegmentView) -> Result<(LogOverlay, LogVerdict)> {
        let (mut overlays, verdict) = self.overlays(&mut |number| number == segment.number)?;
        Ok((overlays.remove(&segment.number).unwrap_or_default(), verdict))
    }

    /// What the log has for each segment that is wanted, by number: one pass over the log for all.
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

    /// Says on standard error why what is seen may not be all there is.
    pub fn caution(&self) {
        if let Some(sentence) = self.reservation() {
            output::remark(format_args!("netram: {sentence}"));
        }
    }

    /// Why what is seen may not be all there is, if it may not.
    pub fn reservation(&self) -> Option<String> {
        if self.inspect.in_use() {
            let sentence = "a process has the log open: what is shown is a moment of a moving thing";
            return Some(sentence.to_owned());
        }
        let view = self.inspect.view();
        (view.counting && !view.members.is_empty()).then(|| {
            let members: Vec<&str> = view.members.iter().map(|member| member.address.as_str()).collect();
            format!(
                "the log was not closed: its members ({}) may hold commits that are not on this disk; opening it, or \
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
        .with_context(|| format!("the record at LSN {lsn} passed its checksum and is no transaction"))?;
    Ok(LoggedTransaction {
        record,
        ranges: changes.ranges().collect(),
    })
}

impl ByteRange {
    /// The end, if the numbers have one.
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }
}

impl FromStr for ByteRange {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteRange, String> {
        let wrong =
            || format!("`{text}` is no range; write it as OFFSET+LENGTH, as in 4096+64 or 0x1000+1KiB");
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

/// A number of bytes: `4096`, `0x1000` or `4KiB`.
pub fn number(text: &str) -> Result<u64, String> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => {
            u64::from_str_radix(digits, 16).map_err(|_| format!("`{text}` is no hexadecimal number"))
        }
        None => text.parse::<SizeArg>().map(|size| size.0),
    }
}

/// Bytes as hexadecimal digits, at most `most` of them.
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

/// The path in the form in which the segment table has it, once the file exists.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{} is no path", path.display()))
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
