//! One machine's disk: files behind a page cache, and all faults that can happen between the two.
//!
//! A write reaches the cache; a sync carries it to the platter. At a power cut each 512-byte sector that was
//! not synced survives or does not, at random. A sync may fail once: its sectors are then marked clean, are
//! readable from the cache and gone at the next power cut, and later syncs succeed, as Linux file systems
//! behave. A sector may be unreadable, and the machine may die between any two operations. The system may
//! refuse calls for a while, for want of room, descriptors, memory or rights. A refused write may have been
//! done in part.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use netram_proto::port::{IoError, StorageFile};

use crate::rng::Rng;

/// Unit in bytes in which unsynced data survives a power cut or does not.
pub const SECTOR_BYTES: usize = 512;

/// Result of every operation on a dead machine. The driver checks [`SimDisk::is_dead`] first and ignores it.
const DEAD: IoError = IoError { errno: 108 };

/// Faults of the disk. With all fields zero there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// Number of further syncs that fail.
    pub syncs_fail: u32,
    /// Number of further writes that fail with ENOSPC.
    pub writes_fail: u32,
    /// Number of further calls of any kind that are refused. Of syncs only those are that a signal may
    /// interrupt.
    pub refusals: u32,
    /// The error of those refusals.
    pub refusal: Option<IoError>,
    /// At a power cut, chance in a thousand that a sector not synced survives.
    pub survives_permille: u64,
}

#[derive(Clone, Debug, Default)]
struct FileState {
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors written since a sync last carried them (or pretended to).
    dirty: BTreeSet<u32>,
    unreadable: BTreeSet<u32>,
}

/// The disk of one machine.
#[derive(Clone, Debug)]
pub struct SimDisk {
    files: Vec<FileState>,
    rng: Rng,
    /// Faults that are active now.
    pub faults: DiskFaults,
    /// Number of operations until the process or machine dies in the middle of its work.
    operations_left: Option<u32>,
    dead: bool,
    /// Counts for the coverage report.
    pub counts: DiskCounts,
}

/// Counts of the faults that happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskCounts {
    /// Failed syncs.
    pub sync_failures: u64,
    /// Writes refused for want of space.
    pub full: u64,
    /// Calls refused for another want.
    pub refused: u64,
    /// Reads that met an unreadable sector.
    pub unreadable: u64,
    /// Power cuts that lost at least one sector.
    pub cuts_with_loss: u64,
    /// Deaths between two operations of one step.
    pub crashes_midway: u64,
}

/// A disk that files share.
pub type SimDiskHandle = Rc<RefCell<SimDisk>>;

impl SimDisk {
    /// A disk without files.
    pub fn new(rng: Rng) -> SimDisk {
        SimDisk {
            files: Vec::new(),
            rng,
            faults: DiskFaults::default(),
            operations_left: None,
            dead: false,
            counts: DiskCounts::default(),
        }
    }

    /// Adds a file of `bytes` zeros, durable at once, and returns its number.
    pub fn add(&mut self, bytes: u64) -> usize {
        let zeros = vec![0; bytes as usize];
        self.files.push(FileState {
            cache: zeros.clone(),
            durable: zeros,
            ..FileState::default()
        });
        self.files.len() - 1
    }

    /// Lets the process die in the middle of its work, after `operations` more.
    pub fn crash_after(&mut self, operations: u32) {
        self.operations_left = Some(operations);
    }

    /// Whether the process died between two disk operations. Results of later operations mean nothing.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Starts a new process on the machine.
    pub fn revive(&mut self) {
        self.dead = false;
        self.operations_left = None;
    }

    /// Cuts the power: every sector that was not synced survives or is lost at random.
    pub fn power_cut(&mut self) {
        let mut lost = false;
        for file in &mut self.files {
            for sector in core::mem::take(&mut file.dirty) {
                if self.rng.chance(self.faults.survives_permille) {
                    write_back(file, sector);
                } else {
                    lost = true;
                }
            }
            let FileState { cache, durable, .. } = file;
            cache.copy_from_slice(durable);
        }
        self.counts.cuts_with_loss += u64::from(lost);
    }

    /// Bytes of a file that would survive a power cut for certain.
    pub fn durable(&self, file: usize) -> &[u8] {
        &self.files[file].durable
    }

    /// Whether there is a file of this number.
    pub fn has(&self, file: usize) -> bool {
        file < self.files.len()
    }

    /// Bytes of a file as the running system sees them.
    pub fn cached(&self, file: usize) -> &[u8] {
        &self.files[file].cache
    }

    /// Damages the sector at `offset` with noise, on the platter and in the cache, since the cache is small.
    pub fn rot(&mut self, file: usize, offset: usize) {
        let start = offset / SECTOR_BYTES * SECTOR_BYTES;
        let state = &mut self.files[file];
        let end = (start + SECTOR_BYTES).min(state.cache.len());
        self.rng.fill(&mut state.cache[start..end]);
        state.durable[start..end].copy_from_slice(&state.cache[start..end]);
    }

    /// Writes `bytes` at `offset` to cache and platter without any machine's knowledge.
    pub fn plant(&mut self, file: usize, offset: usize, bytes: &[u8]) {
        let state = &mut self.files[file];
        state.cache[offset..offset + bytes.len()].copy_from_slice(bytes);
        state.durable[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Makes the sector at `offset` unreadable until it is written again.
    pub fn make_unreadable(&mut self, file: usize, offset: usize) {
        self.files[file].unreadable.insert((offset / SECTOR_BYTES) as u32);
    }

    /// Drops the cached sectors believed to be on the platter (`POSIX_FADV_DONTNEED`): the next read sees the
    /// platter.
    pub fn drop_cache(&mut self, file: usize) {
        let FileState {
            cache,
            durable,
            dirty,
            ..
        } = &mut self.files[file];
        for sector in (0..cache.len().div_ceil(SECTOR_BYTES) as u32).filter(|sector| !dirty.contains(sector))
        {
            let start = sector as usize * SECTOR_BYTES;
            let end = (start + SECTOR_BYTES).min(cache.len());
            cache[start..end].copy_from_slice(&durable[start..end]);
        }
    }

    /// Whether every sector of `range` can be read.
    pub fn is_readable(&self, file: usize, range: core::ops::Range<usize>) -> bool {
        let sectors = (range.start / SECTOR_BYTES) as u32..range.end.div_ceil(SECTOR_BYTES) as u32;
        self.files[file].unreadable.range(sectors).next().is_none()
    }

    /// Makes the next sync fail that has any sectors to carry.
    pub fn fail_next_sync(&mut self) {
        self.faults.syncs_fail = 1;
    }

    /// Makes the next write fail for want of space.
    pub fn fail_next_write(&mut self) {
        self.faults.writes_fail = 1;
    }

    /// Refuses the next `calls` with `error`.
    pub fn refuse(&mut self, calls: u32, error: IoError) {
        self.faults.refusals = calls;
        self.faults.refusal = Some(error);
    }

    /// Ends all faults, and cancels a planned death.
    pub fn heal(&mut self) {
        self.faults.syncs_fail = 0;
        self.faults.writes_fail = 0;
        self.faults.refusals = 0;
        self.operations_left = None;
    }

    /// Makes every sector readable again; the bytes were never wrong.
    pub fn make_readable(&mut self) {
        for file in &mut self.files {
            file.unreadable.clear();
        }
    }

    fn count_operation(&mut self) -> Result<(), IoError> {
        if let Some(left) = &mut self.operations_left {
            if *left == 0 {
                self.dead = true;
                self.operations_left = None;
                self.counts.crashes_midway += 1;
            } else {
                *left -= 1;
            }
        }
        if self.dead { Err(DEAD) } else { Ok(()) }
    }

    /// Refuses the call if the system refuses calls now.
    fn admit(&mut self, sync: bool) -> Result<(), IoError> {
        self.count_operation()?;
        let Some(error) = self.faults.refusal.filter(|_| self.faults.refusals > 0) else {
            return Ok(());
        };
        if sync && error != IoError::EINTR {
            return Ok(());
        }
        self.faults.refusals -= 1;
        self.counts.refused += 1;
        Err(error)
    }

    fn size(&mut self, file: usize) -> Result<u64, IoError> {
        self.admit(false)?;
        Ok(self.files[file].cache.len() as u64)
    }

    fn read(&mut self, file: usize, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.admit(false)?;
        let state = &self.files[file];
        let start = usize::try_from(offset).map_err(|_| IoError::EOF)?;
        let end = start.checked_add(into.len()).ok_or(IoError::EOF)?;
        let bytes = state.cache.get(start..end).ok_or(IoError::EOF)?;
        let sectors = (start / SECTOR_BYTES) as u32..end.div_ceil(SECTOR_BYTES) as u32;
        if !state.unreadable.is_empty() && state.unreadable.range(sectors).next().is_some() {
            self.counts.unreadable += 1;
            return Err(IoError::EIO);
        }
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self, file: usize, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        if let Err(error) = self.admit(false) {
            if !self.dead {
                self.write_in_part(file, offset, bytes);
            }
            return Err(error);
        }
        if self.faults.writes_fail > 0 {
            self.faults.writes_fail -= 1;
            self.counts.full += 1;
            self.write_in_part(file, offset, bytes);
            return Err(IoError::ENOSPC);
        }
        self.put(file, offset, bytes);
        Ok(())
    }

    /// Does a part of a refused write: some of its first bytes are in the cache.
    fn write_in_part(&mut self, file: usize, offset: u64, bytes: &[u8]) {
        let written = self.rng.below(bytes.len() as u64 + 1) as usize;
        self.put(file, offset, &bytes[..written]);
    }

    fn put(&mut self, file: usize, offset: u64, bytes: &[u8]) {
        let state = &mut self.files[file];
        let start = offset as usize;
        let end = start + bytes.len();
        assert!(end <= state.cache.len(), "files are of full size from the start");
        state.cache[start..end].copy_from_slice(bytes);
        for sector in (start / SECTOR_BYTES) as u32..end.div_ceil(SECTOR_BYTES) as u32 {
            state.dirty.insert(sector);
            state.unreadable.remove(&sector);
        }
    }

    fn sync(&mut self, file: usize) -> Result<(), IoError> {
        self.admit(true)?;
        let dirty = core::mem::take(&mut self.files[file].dirty);
        if self.faults.syncs_fail > 0 && !dirty.is_empty() {
            self.faults.syncs_fail -= 1;
            self.counts.sync_failures += 1;
            return Err(IoError::EIO);
        }
        for sector in dirty {
            write_back(&mut self.files[file], sector);
        }
        Ok(())
    }
}

fn write_back(file: &mut FileState, sector: u32) {
    let start = sector as usize * SECTOR_BYTES;
    let end = (start + SECTOR_BYTES).min(file.cache.len());
    file.durable[start..end].copy_from_slice(&file.cache[start..end]);
}

/// One file of a [`SimDisk`].
#[derive(Clone, Debug)]
pub struct SimFile {
    disk: SimDiskHandle,
    /// Its number on the disk.
    pub number: usize,
}

impl SimFile {
    /// File `number` of `disk`.
    pub fn new(disk: &SimDiskHandle, number: usize) -> SimFile {
        SimFile {
            disk: Rc::clone(disk),
            number,
        }
    }
}

impl StorageFile for SimFile {
    fn size(&self) -> Result<u64, IoError> {
        self.disk.borrow_mut().size(self.number)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.disk.borrow_mut().read(self.number, offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.disk.borrow_mut().write(self.number, offset, bytes)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.disk.borrow_mut().sync(self.number)
    }
}

/// The platter's bytes as a file, to inspect them from outside without a change.
pub struct PlatterFile<'a>(pub &'a [u8]);

impl StorageFile for PlatterFile<'_> {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        let start = usize::try_from(offset).map_err(|_| IoError::EOF)?;
        let bytes = self.0.get(start..start + into.len()).ok_or(IoError::EOF)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<(), IoError> {
        unreachable!("the platter is only looked at")
    }

    fn sync(&self) -> Result<(), IoError> {
        unreachable!("the platter is only looked at")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(faults: DiskFaults) -> (SimDiskHandle, SimFile) {
        let mut disk = SimDisk::new(Rng::new(1));
        disk.faults = faults;
        let number = disk.add(4096);
        let disk = Rc::new(RefCell::new(disk));
        let file = SimFile::new(&disk, number);
        (disk, file)
    }

    fn first(file: &SimFile) -> u8 {
        let mut byte = [0];
        file.read_at(0, &mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn synced_sectors_survive_a_power_cut_and_others_do_not() {
        let (disk, file) = disk(DiskFaults::default());
        file.write_at(0, &[1]).unwrap();
        file.sync().unwrap();
        file.write_at(0, &[2]).unwrap();
        assert_eq!(first(&file), 2);
        disk.borrow_mut().power_cut();
        assert_eq!(first(&file), 1);
    }

    #[test]
    fn after_a_failed_sync_the_cache_shows_what_the_platter_never_got() {
        let (disk, file) = disk(DiskFaults {
            syncs_fail: 1,
            ..DiskFaults::default()
        });
        file.write_at(0, &[1]).unwrap();
        assert_eq!(file.sync(), Err(IoError::EIO));
        file.sync().unwrap();
        assert_eq!(first(&file), 1);
        disk.borrow_mut().power_cut();
        assert_eq!(first(&file), 0);
    }

    #[test]
    fn a_refused_call_loses_nothing_and_a_refused_write_may_be_done_in_part() {
        let (disk, file) = disk(DiskFaults::default());
        file.write_at(0, &[1; 8]).unwrap();
        disk.borrow_mut().refuse(3, IoError::EMFILE);
        assert_eq!(file.write_at(0, &[2; 8]), Err(IoError::EMFILE));
        assert_eq!(file.size(), Err(IoError::EMFILE));
        file.sync().unwrap();
        assert_eq!(file.read_at(0, &mut [0; 8]), Err(IoError::EMFILE));
        let mut found = [0; 8];
        file.read_at(0, &mut found).unwrap();
        let twos = found.iter().take_while(|byte| **byte == 2).count();
        assert!(found[twos..].iter().all(|byte| *byte == 1), "{found:?}");
        disk.borrow_mut().refuse(1, IoError::EINTR);
        assert_eq!(file.sync(), Err(IoError::EINTR));
        file.sync().unwrap();
    }

    #[test]
    fn a_crash_midway_stops_every_later_operation() {
        let (disk, file) = disk(DiskFaults::default());
        disk.borrow_mut().crash_after(1);
        file.write_at(0, &[1]).unwrap();
        assert!(file.sync().is_err());
        assert!(disk.borrow().is_dead());
        disk.borrow_mut().revive();
        assert_eq!(first(&file), 1);
    }
}
