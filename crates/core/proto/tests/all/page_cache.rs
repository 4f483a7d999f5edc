//! Assembling a log on a disk whose page cache shows bytes that never reached the platter.

use std::cell::{Cell, RefCell};

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::{AssembleError, AssembleOptions, AssembledLog, LogFile, assemble};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::{IoError, RecordKind, StorageFile};
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record};

const JOURNAL: JournalId = JournalId(7);
const CAPACITY: u64 = 16 * 1024;
const LIMIT: Lsn = Lsn(CAPACITY);
/// Where the data area begins.
const DATA: usize = 8192;

/// A file behind a page cache. A failed sync marks unwritten pages clean, as Linux does.
struct CachedFile {
    cache: RefCell<Vec<u8>>,
    platter: RefCell<Vec<u8>>,
    written: RefCell<Vec<(usize, usize)>>,
    sync_fails: Cell<bool>,
    unreadable: Cell<Option<usize>>,
}

impl StorageFile for &CachedFile {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.cache.borrow().len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        let start = offset as usize;
        let end = start + into.len();
        if self.unreadable.get().is_some_and(|at| (start..end).contains(&at)) {
            return Err(IoError::EIO);
        }
        into.copy_from_slice(&self.cache.borrow()[start..end]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let start = offset as usize;
        self.cache.borrow_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        self.written.borrow_mut().push((start, bytes.len()));
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        let written = self.written.take();
        if self.sync_fails.take() {
            return Err(IoError::EIO);
        }
        for (start, length) in written {
            let bytes = self.cache.borrow()[start..start + length].to_vec();
            self.platter.borrow_mut()[start..start + length].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

impl CachedFile {
    fn new() -> CachedFile {
        let file = CachedFile {
            cache: RefCell::new(vec![0; DATA + CAPACITY as usize]),
            platter: RefCell::new(vec![0; DATA + CAPACITY as usize]),
            written: RefCell::default(),
            sync_fails: Cell::new(false),
            unreadable: Cell::new(None),
        };
        LogFile::create(&file, JOURNAL, CAPACITY).unwrap();
        file
    }

    /// Writes `count` records behind `link`, each of which says that everything below `stable` was on the
    /// disk.
    fn records(&self, mut link: ChainPoint, count: usize, stable: Lsn) -> ChainPoint {
        let (log, ..) = LogFile::open(self).unwrap();
        for _ in 0..count {
            let header = RecordHeader::new(link, Epoch(1), stable, RecordKind(16), false, 60);
            let mut record = vec![b'r'; header.length];
            header.write(&mut record);
            let chain = finish_record(&mut record, log.seed());
            log.write(link.lsn, &record).unwrap();
            link = ChainPoint {
                lsn: header.next(),
                chain,
            };
        }
        link
    }

    fn assemble(&self, accept_loss: bool) -> Result<AssembledLog, AssembleError> {
        self.assemble_of(accept_loss, false)
    }

    fn assemble_of(&self, accept_loss: bool, restored: bool) -> Result<AssembledLog, AssembleError> {
        let (log, _, superblock) = LogFile::open(self).unwrap();
        let scan = log.scan(superblock.head, LIMIT, &mut |_| true);
        let known = AssembleOptions {
            proof: superblock.stable,
            limit: LIMIT,
            accept_loss,
            local_durable: restored.then_some(superblock.stable),
        };
        assemble(&log, &scan, &[], known, FaultSwitch::NONE, &mut |_| true)
    }

    fn platter_has(&self, end: Lsn) -> bool {
        let range = DATA..DATA + end.0 as usize;
        self.platter.borrow()[range.clone()] == self.cache.borrow()[range]
    }
}

/// A failed sync left records readable and marked clean. The next process took them for stored and released
/// the members; a power cut then lost acknowledged records (simulator seed 51).
#[test]
fn records_read_from_the_cache_are_on_the_platter_before_serving() {
    let file = CachedFile::new();
    let end = file.records(ChainPoint::default(), 5, Lsn(0));
    file.sync_fails.set(true);
    assert!((&file).sync().is_err());
    assert!(!file.platter_has(end.lsn));
    assert_eq!(file.assemble(false).unwrap().end, end);
    assert!(file.platter_has(end.lsn));
}

/// An earlier attempt to restore took records from members, and its sync failed. Those records say that they
/// are durable, but on the disk of the lost client (simulator seed 8030341).
#[test]
fn a_lost_clients_records_prove_nothing_about_the_disk_of_a_restored_volume() {
    let file = CachedFile::new();
    let middle = file.records(ChainPoint::default(), 5, Lsn(0));
    let end = file.records(middle, 5, middle.lsn);
    file.sync_fails.set(true);
    assert!((&file).sync().is_err());
    assert_eq!(file.assemble_of(false, true).unwrap().end, end);
    assert!(file.platter_has(end.lsn));
}

/// An unreadable sector at the next record was taken for the end of the log, and everything after it was lost
/// silently (simulator seed 56).
#[test]
fn an_unreadable_sector_is_never_the_end() {
    let file = CachedFile::new();
    let middle = file.records(ChainPoint::default(), 5, Lsn(0));
    file.records(middle, 5, Lsn(0));
    (&file).sync().unwrap();
    file.unreadable.set(Some(DATA + middle.lsn.0 as usize));
    let refused = file.assemble(false).unwrap_err();
    let AssembleError::Corrupt { at, unreadable, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!((at, unreadable), (middle.lsn, Some(IoError::EIO)));
}

/// Records beyond an accepted loss proved that more had been durable, so every later recovery refused
/// (simulator seed 186).
#[test]
fn an_accepted_loss_is_not_refused_again() {
    let file = CachedFile::new();
    let middle = file.records(ChainPoint::default(), 5, Lsn(0));
    let end = file.records(middle, 5, Lsn(0));
    file.records(end, 5, end.lsn);
    (&file).sync().unwrap();
    let rotten = DATA + middle.lsn.0 as usize + 50;
    file.cache.borrow_mut()[rotten] ^= 1;
    assert!(file.assemble(false).is_err());
    assert_eq!(file.assemble(true).unwrap().end, middle);
    assert_eq!(file.assemble(false).unwrap().end, middle);
}
