//! A growing log is crashed at every operation. Whatever the disk kept, the log is empty and intact at its
//! old or its new size, and later appends are found again.

use std::cell::{Cell, RefCell};

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::{LogFile, LogFileError, LogGrowError, LogSuperblock, SlotPair};
use netram_proto::limit::LOG_BYTES_MIN;
use netram_proto::port::{IoError, RecordKind, StorageFile};
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record};

const JOURNAL: JournalId = JournalId(7);
/// Where the data area begins.
const DATA: u64 = 8192;
const SECTOR: usize = 512;
const SEEDS: u64 = 40;

/// A file that loses, keeps or tears unsynced writes. The `operations_left`-th write, extension or sync and
/// all later ones fail.
struct TornDisk {
    durable: RefCell<Vec<u8>>,
    current: RefCell<Vec<u8>>,
    unsynced: RefCell<Vec<(usize, Vec<u8>)>>,
    operations_left: Cell<usize>,
}

impl TornDisk {
    fn new(bytes: Vec<u8>) -> TornDisk {
        TornDisk {
            durable: RefCell::new(bytes.clone()),
            current: RefCell::new(bytes),
            unsynced: RefCell::default(),
            operations_left: Cell::new(usize::MAX),
        }
    }

    fn count_operation(&self) -> Result<(), IoError> {
        let left = self.operations_left.get().checked_sub(1).ok_or(IoError::EIO)?;
        self.operations_left.set(left);
        Ok(())
    }

    /// Does what a driver does before a log grows: extends the file with zeros and syncs it.
    fn lengthen(&self, bytes: u64) -> Result<(), IoError> {
        self.count_operation()?;
        self.current.borrow_mut().resize(bytes as usize, 0);
        self.sync()
    }

    /// The disk after a crash. `random` decides whether each unsynced write is whole, torn or missing.
    fn crash(&self, random: &mut TestRng) -> TornDisk {
        let mut bytes = self.durable.borrow().clone();
        if random.below(2) == 1 && bytes.len() < self.current.borrow().len() {
            bytes.resize(self.current.borrow().len(), 0);
        }
        for (at, written) in &*self.unsynced.borrow() {
            let kept = match random.below(3) {
                0 => 0,
                1 => written.len(),
                _ => random.below(written.len() as u64) as usize / SECTOR * SECTOR,
            };
            if at + kept <= bytes.len() {
                bytes[*at..at + kept].copy_from_slice(&written[..kept]);
            }
        }
        TornDisk::new(bytes)
    }
}

impl StorageFile for &TornDisk {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.current.borrow().len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        into.copy_from_slice(&self.current.borrow()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.count_operation()?;
        self.current.borrow_mut()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        self.unsynced.borrow_mut().push((offset as usize, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        self.count_operation()?;
        self.unsynced.borrow_mut().clear();
        *self.durable.borrow_mut() = self.current.borrow().clone();
        Ok(())
    }
}

struct TestRng(u64);

impl TestRng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// A log in use: its file, its slots, and the position of the next record.
struct GrowRun<'d> {
    disk: &'d TornDisk,
    log: LogFile<&'d TornDisk>,
    slots: SlotPair,
    superblock: LogSuperblock,
    end: ChainPoint,
    epoch: u32,
}

impl<'d> GrowRun<'d> {
    fn create(disk: &'d TornDisk) -> GrowRun<'d> {
        LogFile::create(disk, JOURNAL, (&disk).size().unwrap() - DATA).unwrap();
        GrowRun::open(disk)
    }

    /// Opens the log and finds its end, as recovery does. Nothing may look like damage.
    fn open(disk: &'d TornDisk) -> GrowRun<'d> {
        let (log, slots, superblock) = LogFile::open(disk).unwrap();
        let limit = superblock.head.lsn.plus(log.capacity());
        let scan = log.scan(superblock.head, limit, &mut |_| true);
        let proof = superblock
            .stable
            .max(log.proof_beyond(scan.end.lsn, limit).unwrap());
        assert!(
            proof <= scan.end.lsn,
            "LSN {} is no damage: {proof}",
            scan.end.lsn
        );
        GrowRun {
            disk,
            log,
            slots,
            superblock,
            end: scan.end,
            epoch: 1 + scan.records as u32,
        }
    }

    /// Appends one record which says, correctly, that everything before it was on the disk.
    fn append(&mut self, payload: usize) {
        let header = RecordHeader::new(
            self.end,
            Epoch(self.epoch),
            self.end.lsn,
            RecordKind(16),
            false,
            payload,
        );
        let mut record = vec![b'r'; header.length];
        header.write(&mut record);
        let chain = finish_record(&mut record, self.log.seed());
        self.log.write(self.end.lsn, &record).unwrap();
        self.log.sync().unwrap();
        self.end = ChainPoint {
            lsn: header.next(),
            chain,
        };
    }

    /// Writes an intact record after one that never arrived, as a crash of the previous epoch leaves behind.
    fn leave_behind(&mut self, gap: usize, payload: usize) {
        let absent = RecordHeader::new(
            self.end,
            Epoch(self.epoch),
            self.end.lsn,
            RecordKind(16),
            false,
            gap,
        );
        let (end, before) = (self.end, absent.next());
        let link = ChainPoint {
            lsn: before,
            chain: 99,
        };
        let header = RecordHeader::new(link, Epoch(self.epoch), end.lsn, RecordKind(16), false, payload);
        let mut record = vec![b'x'; header.length];
        header.write(&mut record);
        finish_record(&mut record, self.log.seed());
        self.log.write(before, &record).unwrap();
        self.log.sync().unwrap();
        self.epoch += 1;
    }

    fn trim(&mut self) {
        self.superblock.head = self.end;
        self.superblock.stable = self.end.lsn;
        self.log.store(&mut self.slots, &self.superblock).unwrap();
    }

    /// Extends the file and grows the log, as a driver does.
    fn grow(self, capacity: u64) -> Result<GrowRun<'d>, LogGrowError> {
        let GrowRun {
            disk,
            log,
            mut slots,
            superblock,
            end,
            epoch,
        } = self;
        let growth = log.may_grow(&superblock, Lsn(0), capacity)?;
        disk.lengthen(LogFile::<&TornDisk>::file_bytes(capacity))?;
        let (log, superblock) = log.grow(&mut slots, &growth)?;
        Ok(GrowRun {
            disk,
            log,
            slots,
            superblock,
            end,
            epoch,
        })
    }

    /// Appends until the log has wrapped around completely, trimming on the way and reopening it repeatedly.
    fn go_round(mut self, random: &mut TestRng) {
        let target = self.end.lsn.plus(2 * self.log.capacity() + 4096);
        while self.end.lsn < target {
            for _ in 0..1 + random.below(4) {
                self.append(random.below(1000) as usize);
            }
            let (end, head) = (self.end, self.superblock.head);
            self = GrowRun::open(self.disk);
            assert_eq!(
                (self.end, self.superblock.head),
                (end, head),
                "appended records are found"
            );
            let used = self.end.lsn.since(self.superblock.head.lsn);
            if random.below(2) == 0 || used > self.log.capacity() / 2 {
                self.trim();
            }
        }
    }
}

/// An empty log that has been used for `rounds` times its capacity: its data area is full of old records.
fn used(disk: &TornDisk, random: &mut TestRng, rounds: u64) -> ChainPoint {
    let mut story = GrowRun::create(disk);
    let target = Lsn(rounds * story.log.capacity() + random.below(story.log.capacity()));
    while story.end.lsn < target {
        story.append(random.below(1500) as usize);
        if story.end.lsn.since(story.superblock.head.lsn) > 4096 {
            story.trim();
        }
    }
    story.trim();
    if random.below(2) == 0 {
        story.leave_behind(random.below(200) as usize, random.below(200) as usize);
    }
    story.end
}

fn grown(asked: u64) -> u64 {
    LOG_BYTES_MIN + asked * 4096
}

#[test]
fn a_log_survives_a_crash_at_every_operation_of_its_growth() {
    for seed in 0..SEEDS {
        let mut random = TestRng(seed);
        let (rounds, capacity) = (random.below(4), grown(1 + random.below(8)));
        let disk = TornDisk::new(vec![0; (DATA + LOG_BYTES_MIN) as usize]);
        let end = used(&disk, &mut random, rounds);
        let image = disk.durable.borrow().clone();
        for fuse in 0.. {
            let disk = TornDisk::new(image.clone());
            disk.operations_left.set(fuse);
            let done = GrowRun::open(&disk).grow(capacity).is_ok();
            let after = disk.crash(&mut random);
            let mut story = GrowRun::open(&after);
            let place = format!("seed {seed}, cut at operation {fuse}");
            assert_eq!(story.end, end, "{place}: the empty log is still empty");
            let found = story.log.capacity();
            match done {
                true => assert_eq!(found, capacity, "{place}: a growth that was reported is there"),
                false => assert!([LOG_BYTES_MIN, capacity].contains(&found), "{place}: {found}"),
            }
            if !done && random.below(2) == 0 {
                let again = story.grow(capacity);
                story = again.expect("an attempt that was cut off can be repeated");
            }
            story.go_round(&mut random);
            if done {
                break;
            }
        }
    }
}

#[test]
fn a_log_with_records_or_damage_does_not_grow_and_is_unchanged() {
    let disk = TornDisk::new(vec![0; (DATA + LOG_BYTES_MIN) as usize]);
    let mut story = GrowRun::create(&disk);
    for _ in 0..5 {
        story.append(100);
    }
    let (first, end) = (story.superblock.head.lsn, story.end.lsn);
    let image = disk.durable.borrow().clone();
    let refused = GrowRun::open(&disk).grow(grown(1)).map(drop);
    assert_eq!(refused, Err(LogGrowError::NotEmpty { head: first, end }));

    disk.current.borrow_mut()[DATA as usize + 50] ^= 1;
    let (log, _, superblock) = LogFile::open(&disk).unwrap();
    let damaged = log.may_grow(&superblock, Lsn(0), grown(1));
    assert!(
        matches!(damaged, Err(LogGrowError::Damaged { at: Lsn(0), .. })),
        "{damaged:?}"
    );
    disk.current.borrow_mut()[DATA as usize + 50] ^= 1;
    assert!(image == *disk.current.borrow(), "no byte was changed");
}

#[test]
fn a_smaller_an_invalid_and_an_unallocated_size_are_refused() {
    let disk = TornDisk::new(vec![0; (DATA + grown(2)) as usize]);
    let story = GrowRun::create(&disk);
    let may = |capacity| {
        let leave = story.log.may_grow(&story.superblock, Lsn(0), capacity);
        leave.map(|growth| growth.capacity())
    };
    let smaller = LogGrowError::Smaller {
        capacity: grown(2),
        asked: grown(1),
    };
    assert_eq!(may(grown(1)), Err(smaller));
    assert_eq!(may(grown(2) + 1), Err(LogFileError::Size(grown(2) + 1).into()));
    assert_eq!(may(grown(2)), Ok(grown(2)), "the size that it has");

    let GrowRun {
        log,
        mut slots,
        superblock,
        ..
    } = GrowRun::open(&disk);
    let growth = log.may_grow(&superblock, Lsn(0), grown(3)).unwrap();
    let short = log.grow(&mut slots, &growth).map(drop);
    assert!(
        matches!(short, Err(LogGrowError::File(LogFileError::Truncated { .. }))),
        "{short:?}"
    );
}
