//! Merges the records of several journals by number. They are read piece by piece, so that recovery's memory
//! does not depend on the journals' lengths.

use std::collections::VecDeque;

use netram_proto::id::Lsn;
use netram_proto::port::{RecordKind, RecordLog};

use crate::change::DatabaseChange;
use crate::limit::READ_AHEAD_BYTES;
use crate::recover::DatabaseRecoverError;

/// A record in merged order.
pub(crate) struct MergedRecord {
    pub(crate) number: u64,
    kind: RecordKind,
    payload: Vec<u8>,
}

impl MergedRecord {
    /// Decodes the record.
    pub(crate) fn change(&self) -> Result<DatabaseChange<'_>, DatabaseRecoverError> {
        let change = DatabaseChange::decode(self.kind, &self.payload)?;
        Ok(change.expect("the record was decoded when it was read"))
    }
}

/// A journal and the position up to which it has been read.
struct JournalCursor<'a, L> {
    log: &'a L,
    at: Lsn,
    ended: bool,
    read_ahead: VecDeque<MergedRecord>,
    /// Number of the last record read.
    last: Option<u64>,
}

/// Merge of several journals.
pub(crate) struct JournalMerge<'a, L> {
    sources: Vec<JournalCursor<'a, L>>,
    last: Option<u64>,
}

impl<'a, L: RecordLog> JournalMerge<'a, L> {
    /// Starts at the journals' heads.
    pub(crate) fn of(logs: &'a [L]) -> JournalMerge<'a, L> {
        let source = |log: &'a L| JournalCursor {
            log,
            at: log.state().head,
            ended: false,
            read_ahead: VecDeque::new(),
            last: None,
        };
        JournalMerge {
            sources: logs.iter().map(source).collect(),
            last: None,
        }
    }

    /// The record with the next higher number; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<MergedRecord>, DatabaseRecoverError> {
        for source in &mut self.sources {
            source.fill()?;
        }
        let number = |source: &JournalCursor<'_, L>| source.read_ahead.front().map(|entry| entry.number);
        let nearest = (0..self.sources.len())
            .filter(|index| number(&self.sources[*index]).is_some())
            .min_by_key(|index| number(&self.sources[*index]));
        let Some(entry) = nearest.and_then(|index| self.sources[index].read_ahead.pop_front()) else {
            return Ok(None);
        };
        let number = entry.number;
        if self.last == Some(number) {
            return Err(DatabaseRecoverError::Duplicate { number });
        }
        self.last = Some(number);
        Ok(Some(entry))
    }
}

impl<L: RecordLog> JournalCursor<'_, L> {
    /// Reads further records if none is buffered.
    fn fill(&mut self) -> Result<(), DatabaseRecoverError> {
        if self.ended || !self.read_ahead.is_empty() {
            return Ok(());
        }
        let (mut failed, mut bytes) = (None, 0);
        let JournalCursor {
            at,
            read_ahead: ahead,
            last,
            ..
        } = self;
        let ended = &mut self.ended;
        *ended = true;
        let read = self.log.read(*at, &mut |record| {
            if bytes >= READ_AHEAD_BYTES {
                *ended = false;
                return false;
            }
            match DatabaseChange::decode(record.kind, record.payload) {
                // A process takes a number and appends under one lock, so numbers rise within a journal.
                Ok(Some(change)) if last.is_some_and(|last| change.number <= last) => {
                    failed = Some(DatabaseRecoverError::Order {
                        number: change.number,
                    });
                    return false;
                }
                Ok(Some(change)) => {
                    bytes += record.payload.len();
                    *last = Some(change.number);
                    ahead.push_back(MergedRecord {
                        number: change.number,
                        kind: record.kind,
                        payload: record.payload.to_vec(),
                    });
                }
                Ok(None) => (),
                Err(error) => {
                    failed = Some(error.into());
                    return false;
                }
            }
            true
        });
        self.at = read.map_err(DatabaseRecoverError::Log)?;
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use netram_proto::id::Epoch;
    use netram_proto::port::{
        AppendError, CommitTicket, CommitVotes, Durability, LogError, LogState, Record, WaitError,
    };

    use super::*;
    use crate::change::{FileOp, FileRole};

    const PAYLOAD: usize = 64 * 1024;

    /// A journal with every `step`th record from `first` on, generated while it is read.
    struct Long {
        first: u64,
        step: u64,
        records: u64,
    }

    impl RecordLog for Long {
        fn append(
            &self,
            _: RecordKind,
            _: usize,
            _: &mut dyn FnMut(&mut [u8]),
        ) -> Result<CommitTicket, AppendError> {
            Err(AppendError::Closed)
        }

        fn wait(&self, _: CommitTicket, _: Durability) -> Result<CommitVotes, WaitError> {
            Err(WaitError::Closed)
        }

        fn state(&self) -> LogState {
            LogState {
                head: Lsn(0),
                stable: Lsn(self.records),
                acked: Lsn(self.records),
                tail: Lsn(self.records),
                capacity: self.records,
                payload_max: PAYLOAD,
            }
        }

        fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
            for at in from.0..self.records {
                let bytes = vec![7; PAYLOAD - 17];
                let deed = FileOp::Write {
                    offset: at,
                    bytes: &bytes,
                };
                let change = DatabaseChange {
                    number: self.first + at * self.step,
                    role: FileRole::Main,
                    op: deed,
                };
                let mut payload = vec![0; change.payload_bytes()];
                change.encode(&mut payload);
                let record = Record {
                    lsn: Lsn(at),
                    next: Lsn(at + 1),
                    epoch: Epoch(1),
                    kind: change.kind(),
                    payload: &payload,
                };
                if !each(record) {
                    return Ok(Lsn(at));
                }
            }
            Ok(Lsn(self.records))
        }

        fn trim(&self, _: Lsn) -> Result<(), LogError> {
            Ok(())
        }
    }

    #[test]
    fn merging_long_journals_takes_bounded_memory() {
        let logs = [0, 1, 2].map(|first| Long {
            first,
            step: 3,
            records: 500,
        });
        let mut merge = JournalMerge::of(&logs);
        for number in 0..1500 {
            assert_eq!(merge.next().unwrap().unwrap().number, number);
            for source in &merge.sources {
                let ahead: usize = source.read_ahead.iter().map(|entry| entry.payload.len()).sum();
                assert!(ahead < READ_AHEAD_BYTES + PAYLOAD, "{ahead} bytes");
            }
        }
        assert!(merge.next().unwrap().is_none());
    }

    #[test]
    fn journals_of_different_databases_are_refused() {
        let log = |first, step| Long {
            first,
            step,
            records: 20,
        };
        let all = |logs: &[Long]| {
            let mut merge = JournalMerge::of(logs);
            loop {
                match merge.next() {
                    Ok(Some(_)) => (),
                    Ok(None) => return None,
                    Err(error) => return Some(error),
                }
            }
        };
        assert!(all(&[log(0, 2), log(1, 2)]).is_none());
        let twice = all(&[log(0, 2), log(7, 3)]);
        assert!(
            matches!(twice, Some(DatabaseRecoverError::Duplicate { number: 10 })),
            "{twice:?}"
        );
        let back = all(&[log(5, 0)]);
        assert!(
            matches!(back, Some(DatabaseRecoverError::Order { number: 5 })),
            "{back:?}"
        );
    }
}
