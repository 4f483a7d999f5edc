//! Segments and images on a simulated disk, in place of real files for `rvm` and `disk`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use netram_block::SparseFile;
use netram_proto::port::{IoError, StorageFile};
use netram_proto::time::Time;
use netram_rvm::limit::TABLE_BYTES;
use netram_rvm::{
    Placement, RegionMemory, SegmentAllocation, SegmentIdentity, SegmentStamp, SegmentStorage, StampId,
};

use crate::disk::{SimDiskHandle, SimFile};

const EXISTS: IoError = IoError { errno: 17 };
/// The error of calls that only real files support.
const NOT_SUPPORTED: IoError = IoError { errno: 95 };

/// Names and identities of a machine's segments. They are durable at once: losing them is a fault of the file
/// system, not of rvm.
#[derive(Clone, Default)]
pub struct SegmentDirectory(Rc<RefCell<Entries>>);

#[derive(Default)]
struct Entries {
    table: Option<usize>,
    segments: BTreeMap<String, (usize, SegmentIdentity)>,
    /// Stamps that logs have left on the segments.
    stamps: BTreeMap<usize, SegmentStamp>,
    /// Number of stamps drawn so far by all logs, so that no two are the same.
    stamps_drawn: u64,
}

impl SegmentDirectory {
    /// Contents of each segment, as `disk` shows it, by name.
    pub fn contents(&self, disk: &SimDiskHandle) -> Vec<Vec<u8>> {
        let (entries, disk) = (self.0.borrow(), disk.borrow());
        let segments = entries.segments.values();
        segments
            .map(|(number, _)| disk.cached(*number).to_vec())
            .collect()
    }

    /// The stamps that the segments have.
    pub fn stamps(&self) -> Vec<SegmentStamp> {
        self.0.borrow().stamps.values().cloned().collect()
    }
}

/// A process's view of the segments on its machine's disk.
pub struct SimStorage {
    disk: SimDiskHandle,
    directory: SegmentDirectory,
    table: SimFile,
}

impl SimStorage {
    /// The segments in `directory` on `disk`.
    pub fn new(disk: &SimDiskHandle, directory: &SegmentDirectory) -> SimStorage {
        let table = *directory
            .0
            .borrow_mut()
            .table
            .get_or_insert_with(|| disk.borrow_mut().add(TABLE_BYTES));
        SimStorage {
            disk: Rc::clone(disk),
            directory: directory.clone(),
            table: SimFile::new(disk, table),
        }
    }

    /// The segments in `directory` on `disk` with another log, on the disk `log`: a copy of the one beside
    /// the segments. `None`: the copy was made before there was a segment table.
    pub fn beside(
        log: &SimDiskHandle,
        disk: &SimDiskHandle,
        directory: &SegmentDirectory,
    ) -> Option<SimStorage> {
        let table = directory.0.borrow().table?;
        let there = log.borrow().has(table);
        there.then(|| SimStorage {
            disk: Rc::clone(disk),
            directory: directory.clone(),
            table: SimFile::new(log, table),
        })
    }

    fn number(&self, path: &str) -> Result<usize, IoError> {
        let entries = self.directory.0.borrow();
        entries
            .segments
            .get(path)
            .map(|entry| entry.0)
            .ok_or(IoError::ENOENT)
    }
}

impl SegmentStorage for SimStorage {
    type File = SimFile;

    fn name(&self, path: &str) -> Result<String, IoError> {
        self.number(path).map(|_| path.to_owned())
    }

    fn create_segment(&self, path: &str, length: u64, _: SegmentAllocation) -> Result<(), IoError> {
        if self.number(path).is_ok() {
            return Err(EXISTS);
        }
        let number = self.disk.borrow_mut().add(length);
        let identity = [number as u8 + 1; 16];
        self.directory
            .0
            .borrow_mut()
            .segments
            .insert(path.to_owned(), (number, identity));
        Ok(())
    }

    fn open_segment(&self, path: &str) -> Result<SimFile, IoError> {
        self.number(path).map(|number| SimFile::new(&self.disk, number))
    }

    fn map(
        &self,
        file: &SimFile,
        offset: u64,
        length: usize,
        placement: Placement,
    ) -> Result<RegionMemory, IoError> {
        if placement != Placement::ANYWHERE {
            return Err(NOT_SUPPORTED);
        }
        let mut bytes = vec![0; length].into_boxed_slice();
        file.read_at(offset, &mut bytes)?;
        Ok(RegionMemory::from_bytes(bytes))
    }

    fn identity(&self, file: &SimFile) -> Result<SegmentIdentity, IoError> {
        let entries = self.directory.0.borrow();
        let entry = entries.segments.values().find(|entry| entry.0 == file.number);
        entry.map(|entry| entry.1).ok_or(IoError::ENOENT)
    }

    fn assign_identity(&self, file: &SimFile) -> Result<SegmentIdentity, IoError> {
        self.identity(file)
    }

    fn stamp(&self, file: &SimFile, _: &str) -> Result<Option<SegmentStamp>, IoError> {
        Ok(self.directory.0.borrow().stamps.get(&file.number).cloned())
    }

    fn leave_stamp(&self, file: &SimFile, _: &str, stamp: &SegmentStamp) -> Result<bool, IoError> {
        // Without a sync by the backing disk no stamp is left.
        file.sync()?;
        let entries = &mut *self.directory.0.borrow_mut();
        entries.stamps.insert(file.number, stamp.clone());
        Ok(true)
    }

    fn draw_stamp(&self) -> Result<StampId, IoError> {
        let entries = &mut *self.directory.0.borrow_mut();
        entries.stamps_drawn += 1;
        let mut id = [1; 16];
        id[..8].copy_from_slice(&entries.stamps_drawn.to_le_bytes());
        Ok(id)
    }

    fn number(&self, file: &SimFile) -> Result<u64, IoError> {
        Ok(file.number as u64)
    }

    fn table(&self) -> &SimFile {
        &self.table
    }

    fn now(&self) -> Time {
        Time(0)
    }
}

impl SparseFile for SimFile {
    fn punch(&self, offset: u64, length: u64) -> Result<(), IoError> {
        self.write_at(offset, &vec![0; length as usize])
    }

    /// Files of this disk have their full size from the start.
    fn extend(&self, bytes: u64) -> Result<(), IoError> {
        match self.size()? >= bytes {
            true => Ok(()),
            false => Err(IoError::ENOSPC),
        }
    }
}
