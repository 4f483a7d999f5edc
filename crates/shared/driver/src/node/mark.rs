//! File that names a journal's owner, and the numbers of its first records. The node's next process needs
//! both to offer the journal.
//!
//! It is a text file beside the log, replaced as a whole. The log's head moves after the mark was written, so
//! the mark names two places, one of which is the head.
//!
//! ```text
//! node 17
//! region 83d0...
//! journal 4f2c...
//! from 0 0
//! from 512 81920        records up to 512 end at LSN 81920
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use netram_journal::file::io_error;
use netram_process::files::{self, PRIVATE};
use netram_proto::failure::{CallError, SystemCall};
use netram_proto::id::{JournalId, Lsn};
use netram_shared_machine::message::OrphanJournalId;
use netram_shared_machine::{NodeId, RecordNumber, RegionId};

const NAME: &str = "node";
const NEW: &str = "node.new";

/// The mark of one journal.
pub(super) struct JournalMark {
    root: PathBuf,
    owner: OrphanJournalId,
    region: RegionId,
}

/// Contents of a mark.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MarkContents {
    pub(super) owner: OrphanJournalId,
    /// Region of the node; `None` in marks of earlier releases.
    pub(super) region: Option<RegionId>,
    /// Places where the log may begin, each with the number of the last record before it.
    pub(super) from: Vec<(RecordNumber, Lsn)>,
}

impl JournalMark {
    /// Marks a journal that has no record yet.
    pub(super) fn create(
        root: &Path,
        whose: OrphanJournalId,
        region: RegionId,
        begins: Lsn,
    ) -> io::Result<JournalMark> {
        let mark = JournalMark {
            root: root.to_owned(),
            owner: whose,
            region,
        };
        let written = mark.write(&[(RecordNumber(0), begins)]);
        written.map_err(|failure| io::Error::from_raw_os_error(failure.error.errno))?;
        Ok(mark)
    }

    /// Replaces the mark: the log begins at one of these places. Durable on return. After an error the mark
    /// has its old or its new contents; the failed call decides whether to try again.
    pub(super) fn write(&self, from: &[(RecordNumber, Lsn)]) -> Result<(), CallError> {
        let (node, journal) = (self.owner.node, self.owner.journal);
        let mut text = format!(
            "node {node}\nregion {:032x}\njournal {:032x}\n",
            self.region.0, journal.0
        );
        for (number, lsn) in from {
            text.push_str(&format!("from {number} {}\n", lsn.0));
        }
        let of = |call| move |error: io::Error| io_error(&error).of(call);
        let new = self.root.join(NEW);
        // The remains of a process that was killed.
        let _ = fs::remove_file(&new);
        let mut file = files::create_new(&new, PRIVATE).map_err(of(SystemCall::Open))?;
        file.write_all(text.as_bytes()).map_err(of(SystemCall::Write))?;
        file.sync_all().map_err(of(SystemCall::Sync))?;
        // Opened before the rename: if the directory cannot be opened, nothing has changed.
        let directory = File::open(&self.root).map_err(of(SystemCall::Open))?;
        fs::rename(&new, self.root.join(NAME)).map_err(of(SystemCall::Name))?;
        directory.sync_all().map_err(of(SystemCall::Sync))
    }

    /// Reads the mark in a journal's directory; `None`: there is none, so the journal never belonged to a
    /// node.
    pub(super) fn read(root: &Path) -> io::Result<Option<MarkContents>> {
        match fs::read_to_string(root.join(NAME)) {
            Ok(text) => parse(&text).map(Some).ok_or_else(|| {
                let path = root.join(NAME);
                io::Error::other(format!(
                    "{} is damaged: it does not name the node of this journal",
                    path.display()
                ))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn parse(text: &str) -> Option<MarkContents> {
    let (mut node, mut journal, mut region, mut from) = (None, None, None, Vec::new());
    for line in text.lines() {
        match *line.split(' ').collect::<Vec<_>>() {
            ["node", id] => node = Some(NodeId(id.parse().ok()?)),
            ["region", id] => region = Some(RegionId(u128::from_str_radix(id, 16).ok()?)),
            ["journal", id] => journal = Some(JournalId(u128::from_str_radix(id, 16).ok()?)),
            ["from", number, lsn] => from.push((RecordNumber(number.parse().ok()?), Lsn(lsn.parse().ok()?))),
            _ => return None,
        }
    }
    let whose = OrphanJournalId {
        node: node?,
        journal: journal?,
    };
    (!from.is_empty()).then_some(MarkContents {
        owner: whose,
        region,
        from,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_what_was_written_last() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(JournalMark::read(directory.path()).unwrap(), None);
        let whose = OrphanJournalId {
            node: NodeId(17),
            journal: JournalId(u128::MAX / 3),
        };
        let region = RegionId(5);
        let mark = JournalMark::create(directory.path(), whose, region, Lsn(8)).unwrap();
        let from = vec![(RecordNumber(2), Lsn(160)), (RecordNumber(512), Lsn(81_920))];
        mark.write(&from).unwrap();
        let marked = JournalMark::read(directory.path()).unwrap();
        assert_eq!(
            marked,
            Some(MarkContents {
                owner: whose,
                region: Some(region),
                from,
            })
        );
    }

    #[test]
    fn other_text_is_no_mark() {
        for text in [
            "",
            "node 3\n",
            "node 3\njournal zz\nfrom 0 0\n",
            "node 3\njournal 1\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
