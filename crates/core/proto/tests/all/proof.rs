//! The end of a log is told from damage by reading a bounded number of bytes, however long the log is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::LogFile;
use netram_proto::port::{IoError, RecordKind, StorageFile};
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record};

const JOURNAL: JournalId = JournalId(0x5EED);
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const SECTOR: u64 = 4096;

/// A sparse file of any length. Counts the bytes read.
struct ZeroFile {
    length: u64,
    sectors: RefCell<BTreeMap<u64, Vec<u8>>>,
    read: Cell<u64>,
}

impl StorageFile for &ZeroFile {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.length)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.read.set(self.read.get() + into.len() as u64);
        into.fill(0);
        let (from, to) = (offset, offset + into.len() as u64);
        for (at, sector) in self.sectors.borrow().range(from / SECTOR..to.div_ceil(SECTOR)) {
            let at = at * SECTOR;
            let (first, last) = (at.max(from), (at + SECTOR).min(to));
            into[(first - from) as usize..(last - from) as usize]
                .copy_from_slice(&sector[(first - at) as usize..(last - at) as usize]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), IoError> {
        let mut sectors = self.sectors.borrow_mut();
        let (mut at, mut left) = (offset, from);
        while !left.is_empty() {
            let within = (at % SECTOR) as usize;
            let (now, later) = left.split_at(left.len().min(SECTOR as usize - within));
            let sector = sectors
                .entry(at / SECTOR)
                .or_insert_with(|| vec![0; SECTOR as usize]);
            sector[within..within + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            left = later;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }
}

/// A log of `capacity` bytes whose writer has a ring of `window` bytes.
fn log(file: &ZeroFile, capacity: u64, window: u64) -> LogFile<&ZeroFile> {
    LogFile::create(file, JOURNAL, capacity).unwrap();
    let (log, mut slots, superblock) = LogFile::open(file).unwrap();
    let noted = superblock.for_ring(window, superblock.head.lsn);
    log.store(&mut slots, &noted).unwrap();
    let (log, _, found) = LogFile::open(file).unwrap();
    assert_eq!(found, noted);
    log
}

fn sparse(capacity: u64) -> ZeroFile {
    ZeroFile {
        length: LogFile::<&ZeroFile>::file_bytes(capacity),
        sectors: RefCell::default(),
        read: Cell::new(0),
    }
}

/// Writes a record at `at`, whose writer knew everything below `stable` to be on the disk. Returns its end.
fn record(log: &LogFile<&ZeroFile>, at: Lsn, stable: Lsn, payload: usize) -> Lsn {
    let before = ChainPoint { lsn: at, chain: 7 };
    let header = RecordHeader::new(before, Epoch(1), stable, RecordKind(16), false, payload);
    let mut bytes = vec![0; header.length];
    header.write(&mut bytes);
    finish_record(&mut bytes, JOURNAL.into());
    log.write(at, &bytes).unwrap();
    header.next()
}

/// Opening once read the rest of the log: minutes for 100 GiB on a disk, and hours for 1 TiB.
#[test]
fn an_empty_log_of_64_gib_is_told_from_a_damaged_one_by_reading_24_mib() {
    let file = sparse(64 * GIB);
    let log = log(&file, 64 * GIB, MIB);
    file.read.set(0);
    assert_eq!(log.proof_beyond(Lsn(0), Lsn(64 * GIB)), Ok(Lsn(0)));
    assert!(file.read.get() <= 24 * MIB, "{}", file.read.get());
}

#[test]
fn the_last_record_that_a_full_ring_allows_proves_damage() {
    let (file, window) = (sparse(GIB), 256 * 1024);
    let log = log(&file, GIB, window);
    let bad = Lsn(4096);
    // The writer could append the last record only because more than the bad record was on its disk.
    let last = bad.plus(window);
    record(&log, last, bad.plus(8), 100);
    assert_eq!(log.proof_beyond(bad, Lsn(GIB)), Ok(bad.plus(8)));
    assert_eq!(
        log.proof_beyond(last.plus(8), Lsn(GIB)),
        Ok(Lsn(0)),
        "nothing lies behind it"
    );
}

/// A hole wider than any window, as left by a file system that lost an extent.
#[test]
fn damage_wider_than_the_window_is_found_by_the_records_behind_it() {
    let file = sparse(GIB);
    let log = log(&file, GIB, 16 * 1024);
    let (hole, mut at) = (5 * MIB, Lsn(5 * MIB));
    while at < Lsn(2 * hole + MIB) {
        at = record(&log, at, at, 64 * 1024);
    }
    let proof = log.proof_beyond(Lsn(0), Lsn(GIB)).unwrap();
    assert!(proof > Lsn(0));
}

#[test]
fn a_log_with_an_unknown_window_is_searched_as_far_as_the_largest() {
    let file = sparse(16 * MIB);
    let (log, _) = LogFile::create(&file, JOURNAL, 16 * MIB).unwrap();
    record(&log, Lsn(9 * MIB), Lsn(4096), 100);
    assert_eq!(log.proof_beyond(Lsn(0), Lsn(16 * MIB)), Ok(Lsn(4096)));
    let (_, _, superblock) = LogFile::open(&file).unwrap();
    // The window stays unknown while there are records; it is known once the log is empty.
    assert_eq!(superblock.for_ring(MIB, Lsn(64)).window, 0);
    let known = superblock.for_ring(MIB, superblock.head.lsn);
    assert_eq!(known.window, MIB);
    assert_eq!(known.for_ring(2 * MIB, Lsn(64)).window, 2 * MIB);
    assert_eq!(known.for_ring(MIB / 2, Lsn(64)).window, MIB);
}
