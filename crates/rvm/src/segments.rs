//! The segments that the log knows: their entries in the table, and the files opened so far.
//!
//! A file is opened when it is first needed, so that a segment that no record names may be away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{File, IoError};

use crate::error::{ForgetError, MapError, SegmentError, TableError};
use crate::limit::{PATH_BYTES_MAX, SEGMENTS_MAX};
use crate::storage::{Identity, Storage};
use crate::table::{Entry, Table};

/// What commits need of a segment.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) index: u32,
    /// Where the last record that names the segment ends.
    end: AtomicU64,
}

impl Mark {
    pub(crate) fn note(&self, end: Lsn) {
        self.end.fetch_max(end.0, Ordering::Release);
    }

    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.end.load(Ordering::Acquire))
    }
}

/// A segment ready for mapping.
pub(crate) struct Opened<F> {
    pub(crate) file: Arc<F>,
    pub(crate) mark: Arc<Mark>,
    pub(crate) size: u64,
}

pub(crate) struct Segments<F> {
    journal: JournalId,
    adopt: bool,
    table: Table,
    /// The table differs from what its file holds.
    unwritten: bool,
    /// One for each entry of the table, in the same order.
    states: Vec<State<F>>,
}

struct State<F> {
    file: Option<Arc<F>>,
    mark: Arc<Mark>,
}

impl<F: File> State<F> {
    fn new(index: u32) -> State<F> {
        State {
            file: None,
            mark: Arc::new(Mark {
                index,
                end: AtomicU64::new(0),
            }),
        }
    }
}

impl<F: File> Segments<F> {
    pub(crate) fn new(table: Table, journal: JournalId, adopt: bool) -> Segments<F> {
        let states = table
            .entries
            .iter()
            .map(|entry| State::new(entry.index))
            .collect();
        Segments {
            journal,
            adopt,
            table,
            unwritten: false,
            states,
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.table.entries
    }

    pub(crate) fn knows(&self, index: u32) -> bool {
        self.table.entries.iter().any(|entry| entry.index == index)
    }

    /// The mark of the segment called `name`, if the table has it.
    pub(crate) fn mark(&self, name: &str) -> Option<Arc<Mark>> {
        let at = self.table.entries.iter().position(|entry| entry.path == name)?;
        Some(self.states[at].mark.clone())
    }

    /// The file of segment `index`, which the table must know, and its path.
    pub(crate) fn file<S: Storage<File = F>>(
        &mut self,
        storage: &S,
        index: u32,
    ) -> Result<(Arc<F>, &str), SegmentError> {
        let at = self.table.entries.iter().position(|entry| entry.index == index);
        let at = at.expect("records of unknown segments are refused when read");
        let file = self.open(storage, at)?;
        Ok((file, &self.table.entries[at].path))
    }

    /// Opens the segment called `name` for mapping, and enters it in the table if it is new.
    pub(crate) fn enter<S: Storage<File = F>>(
        &mut self,
        storage: &S,
        name: &str,
    ) -> Result<Opened<F>, MapError> {
        let known = self.table.entries.iter().position(|entry| entry.path == name);
        let at = match known {
            Some(at) => at,
            None => self.add(storage, name)?,
        };
        let file = self.open(storage, at)?;
        let size = file.size().map_err(|cause| segment_io(name, cause))?;
        let entry = &mut self.table.entries[at];
        if size > entry.length || self.unwritten {
            // Records may now name the longer part: from here on, a shorter file is an error.
            entry.length = size;
            self.unwritten = true;
            self.table.write(storage.table(), self.journal)?;
            self.unwritten = false;
        }
        Ok(Opened {
            file,
            mark: self.states[at].mark.clone(),
            size,
        })
    }

    /// Takes a segment out of the table. Its records must have been trimmed.
    pub(crate) fn forget<S: Storage<File = F>>(
        &mut self,
        storage: &S,
        name: &str,
    ) -> Result<(), ForgetError> {
        let known = self.table.entries.iter().position(|entry| entry.path == name);
        let at = known.ok_or_else(|| ForgetError::Unknown {
            path: name.to_owned(),
        })?;
        let entry = self.table.entries.remove(at);
        if let Err(error) = self.table.write(storage.table(), self.journal) {
            self.table.entries.insert(at, entry);
            // The file may hold the table without it by now: written again before a record names it.
            self.unwritten = true;
            return Err(error.into());
        }
        self.states.remove(at);
        Ok(())
    }

    fn add<S: Storage<File = F>>(&mut self, storage: &S, name: &str) -> Result<usize, MapError> {
        if self.table.entries.len() == SEGMENTS_MAX {
            return Err(TableError::Full { max: SEGMENTS_MAX }.into());
        }
        if name.len() > PATH_BYTES_MAX {
            let (path, bytes) = (name.to_owned(), name.len());
            return Err(TableError::PathTooLong {
                path,
                bytes,
                max: PATH_BYTES_MAX,
            }
            .into());
        }
        let file = open_file(storage, name)?;
        let length = file.size().map_err(|cause| segment_io(name, cause))?;
        let mut identity = storage.identity(&file).map_err(|cause| segment_io(name, cause))?;
        if identity == Identity::default() {
            identity = storage
                .assign_identity(&file)
                .map_err(|cause| segment_io(name, cause))?;
        }
        let index = (0..SEGMENTS_MAX as u32)
            .find(|index| !self.knows(*index))
            .expect("the table has room");
        self.table.entries.push(Entry {
            index,
            path: name.to_owned(),
            length,
            identity,
        });
        if let Err(error) = self.table.write(storage.table(), self.journal) {
            self.table.entries.pop();
            return Err(error.into());
        }
        self.states.push(State {
            file: Some(Arc::new(file)),
            ..State::new(index)
        });
        Ok(self.states.len() - 1)
    }

    /// The file of the entry at `at`, opened and checked on first use. Later it must still be the one at its
    /// path: what is written to a file that was replaced is lost when that is closed.
    fn open<S: Storage<File = F>>(&mut self, storage: &S, at: usize) -> Result<Arc<F>, SegmentError> {
        let entry = &mut self.table.entries[at];
        if let Some(file) = &self.states[at].file {
            let path = &entry.path;
            return match storage.is_same(file, path) {
                Ok(true) => Ok(file.clone()),
                Ok(false) => Err(SegmentError::Foreign { path: path.clone() }),
                Err(cause) => Err(segment_io(path, cause)),
            };
        }
        let file = open_file(storage, &entry.path)?;
        let identity = storage
            .identity(&file)
            .map_err(|cause| segment_io(&entry.path, cause))?;
        // Zeros in the table: the file system could not keep an identity then, so there is none to compare.
        if entry.identity != Identity::default() && entry.identity != identity {
            if !self.adopt {
                return Err(SegmentError::Foreign {
                    path: entry.path.clone(),
                });
            }
            // Reaches the disk when the segment is mapped; until then each opening has to adopt again.
            entry.identity = match identity == Identity::default() {
                true => storage
                    .assign_identity(&file)
                    .map_err(|cause| segment_io(&entry.path, cause))?,
                false => identity,
            };
            self.unwritten = true;
        }
        let found = file.size().map_err(|cause| segment_io(&entry.path, cause))?;
        if found < entry.length {
            return Err(SegmentError::Short {
                path: entry.path.clone(),
                found,
                needed: entry.length,
            });
        }
        let file = Arc::new(file);
        self.states[at].file = Some(file.clone());
        Ok(file)
    }
}

fn open_file<S: Storage>(storage: &S, name: &str) -> Result<S::File, SegmentError> {
    storage
        .open_segment(name)
        .map_err(|cause| segment_io(name, cause))
}

/// Sorts an I/O error by what a person must do.
pub(crate) fn segment_io(name: &str, cause: IoError) -> SegmentError {
    let path = name.to_owned();
    match cause.errno {
        2 => SegmentError::Missing { path },
        17 => SegmentError::Exists { path },
        26 => SegmentError::InUse { path },
        _ => SegmentError::Io { path, cause },
    }
}
