//! Segment files on a modelled slow disk: real files with a sleep in every sync. The log's own delay is the
//! journal's (`JournalConfig::modelled_sync_delay`). With fast syncs, truncation would outrun the log.

use std::sync::Arc;
use std::time::Duration;

use netram_proto::port::{IoError, StorageFile};
use netram_proto::time::Time;
use netram_rvm::{
    Placement, RealFile, RealStorage, RegionMemory, SegmentAllocation, SegmentIdentity, SegmentStamp,
    SegmentStorage, StampId,
};

/// Real segments whose syncs take longer by a delay, which may be zero.
#[derive(Debug)]
pub struct ModelledStorage {
    real: Arc<RealStorage>,
    table: ModelledFile,
    delay: Duration,
}

/// A file whose syncs take longer.
#[derive(Debug)]
pub struct ModelledFile {
    file: ModelledTarget,
    delay: Duration,
}

#[derive(Debug)]
enum ModelledTarget {
    Segment(RealFile),
    /// The real storage that owns the segment table.
    Table(Arc<RealStorage>),
}

impl ModelledStorage {
    /// Adds `delay` to every sync of `real`.
    pub fn new(real: RealStorage, delay: Duration) -> ModelledStorage {
        let real = Arc::new(real);
        ModelledStorage {
            table: ModelledFile {
                file: ModelledTarget::Table(Arc::clone(&real)),
                delay,
            },
            real,
            delay,
        }
    }
}

impl ModelledFile {
    fn real(&self) -> &RealFile {
        match &self.file {
            ModelledTarget::Segment(file) => file,
            ModelledTarget::Table(storage) => storage.table(),
        }
    }
}

impl StorageFile for ModelledFile {
    fn size(&self) -> Result<u64, IoError> {
        self.real().size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.real().read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.real().write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), IoError> {
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        self.real().sync()
    }
}

impl SegmentStorage for ModelledStorage {
    type File = ModelledFile;

    fn name(&self, path: &str) -> Result<String, IoError> {
        self.real.name(path)
    }

    fn create_segment(&self, path: &str, length: u64, allocation: SegmentAllocation) -> Result<(), IoError> {
        self.real.create_segment(path, length, allocation)
    }

    fn open_segment(&self, path: &str) -> Result<ModelledFile, IoError> {
        let file = ModelledTarget::Segment(self.real.open_segment(path)?);
        Ok(ModelledFile {
            file,
            delay: self.delay,
        })
    }

    fn map(
        &self,
        file: &ModelledFile,
        offset: u64,
        length: usize,
        placement: Placement,
    ) -> Result<RegionMemory, IoError> {
        self.real.map(file.real(), offset, length, placement)
    }

    fn identity(&self, file: &ModelledFile) -> Result<SegmentIdentity, IoError> {
        self.real.identity(file.real())
    }

    fn assign_identity(&self, file: &ModelledFile) -> Result<SegmentIdentity, IoError> {
        self.real.assign_identity(file.real())
    }

    fn stamp(&self, file: &ModelledFile, path: &str) -> Result<Option<SegmentStamp>, IoError> {
        self.real.stamp(file.real(), path)
    }

    fn leave_stamp(&self, file: &ModelledFile, path: &str, stamp: &SegmentStamp) -> Result<bool, IoError> {
        self.real.leave_stamp(file.real(), path, stamp)
    }

    fn draw_stamp(&self) -> Result<StampId, IoError> {
        self.real.draw_stamp()
    }

    fn number(&self, file: &ModelledFile) -> Result<u64, IoError> {
        self.real.number(file.real())
    }

    fn table(&self) -> &ModelledFile {
        &self.table
    }

    fn now(&self) -> Time {
        self.real.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn every_sync_of_table_and_segments_waits_and_the_bytes_are_the_real_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let delay = Duration::from_millis(3);
        let storage = ModelledStorage::new(RealStorage::create(&path("table")).unwrap(), delay);
        storage
            .create_segment(&path("segment"), 4096, SegmentAllocation::Preallocated)
            .unwrap();
        let segment = storage.open_segment(&path("segment")).unwrap();
        segment.write_at(8, b"there").unwrap();
        for file in [&segment, storage.table()] {
            let began = Instant::now();
            file.sync().unwrap();
            // A sleep never ends early, so this holds on any machine.
            assert!(began.elapsed() >= delay);
        }
        assert_eq!(&std::fs::read(path("segment")).unwrap()[8..13], b"there");
        assert_eq!(segment.size(), Ok(4096));
    }
}
