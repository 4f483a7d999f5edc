//! Slots in an unnamed file.
//!
//! Reads and writes bypass the page cache where the file system allows it, because the cache is the very
//! memory that is scarce.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use netram_far_machine::deposit::{NoSlotsError, SlotFile, SlotRequest, StoredPage};
use netram_far_machine::limit::{FRAME_PAGES_MAX, PAGE_BYTES};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, fcntl_getfl, fcntl_setfl, unlinkat};
use rustix::io::{Errno, retry_on_intr};

/// Pages of one frame, aligned for direct writes.
#[derive(Debug)]
#[repr(C, align(4096))]
struct Batch([u8; FRAME_PAGES_MAX * PAGE_BYTES]);

/// The spill file. It disappears with its last descriptor, also after a crash.
#[derive(Debug)]
pub(crate) struct SpillFile {
    file: File,
    slots: u32,
    batch: Box<Batch>,
}

impl SpillFile {
    /// Creates an empty spill file on the file system of a directory.
    #[allow(
        clippy::large_stack_arrays,
        reason = "56 KiB, once per open: a vector cannot be aligned"
    )]
    pub(crate) fn create(dir: &Path) -> io::Result<SpillFile> {
        let file = match open(dir, OFlags::DIRECT) {
            // This file system does not support direct I/O.
            Err(Errno::INVAL) => open(dir, OFlags::empty()),
            opened => opened,
        }?;
        let spill = SpillFile {
            file,
            slots: 0,
            batch: Box::new(Batch([0; FRAME_PAGES_MAX * PAGE_BYTES])),
        };
        spill.try_alignment()?;
        Ok(spill)
    }

    /// Some file systems refuse an unsuitable alignment only at the first write.
    fn try_alignment(&self) -> io::Result<()> {
        let written = self.file.write_at(&self.batch.0[..PAGE_BYTES], 0);
        if written.is_err_and(|error| error.raw_os_error() == Some(Errno::INVAL.raw_os_error())) {
            let flags = fcntl_getfl(&self.file)?;
            fcntl_setfl(&self.file, flags.difference(OFlags::DIRECT))?;
        }
        self.file.set_len(0)
    }

    fn reserve(&self, slots: u32) -> io::Result<()> {
        let (old, new) = (start(self.slots), start(slots));
        if new <= old {
            return self.file.set_len(new);
        }
        match retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), old, new - old)) {
            // Without preallocation, a full disk shows when pages are written.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.file.set_len(new),
            reserved => Ok(reserved?),
        }
    }

    /// Reads the pages of consecutive slots into the batch, from `place` on.
    fn fill(&mut self, place: usize, slot: u32, count: usize) -> io::Result<()> {
        let part = &mut self.batch.0[place * PAGE_BYTES..][..count * PAGE_BYTES];
        self.file.read_exact_at(part, start(slot))
    }
}

impl SlotFile for SpillFile {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        let Err(error) = self.reserve(slots) else {
            self.slots = slots;
            return Ok(());
        };
        tracing::warn!(%error, slots, "the spill file could not be extended");
        // Release what was allocated in part.
        if let Err(error) = self.file.set_len(start(self.slots)) {
            tracing::warn!(%error, "the spill file could not be shortened again");
        }
        // The client then asks for this number.
        let possible = self.slots + (slots - self.slots) / 2;
        Err(NoSlotsError { possible })
    }

    fn write(&mut self, pages: &[StoredPage<'_>]) -> bool {
        let mut order: Vec<&StoredPage<'_>> = pages.iter().collect();
        order.sort_unstable_by_key(|page| page.slot);
        for run in order.chunk_by(|one, next| one.slot + 1 == next.slot) {
            for (page, place) in run.iter().zip(self.batch.0.chunks_exact_mut(PAGE_BYTES)) {
                place[..page.bytes.len()].copy_from_slice(page.bytes);
                place[page.bytes.len()..].fill(0);
            }
            let whole = &self.batch.0[..run.len() * PAGE_BYTES];
            if let Err(error) = self.file.write_all_at(whole, start(run[0].slot)) {
                tracing::error!(%error, "a write to the spill file failed");
                return false;
            }
        }
        true
    }

    fn read(&mut self, pages: &[SlotRequest], each: &mut dyn FnMut(&[u8])) {
        let mut order: Vec<usize> = (0..pages.len()).filter(|index| pages[*index].bytes > 0).collect();
        order.sort_unstable_by_key(|index| pages[*index].slot);
        let mut places = [None; FRAME_PAGES_MAX];
        let mut place = 0;
        for run in order.chunk_by(|one, next| pages[*one].slot + 1 == pages[*next].slot) {
            let whole = self.fill(place, pages[run[0]].slot, run.len()).is_ok();
            for (at, index) in { place.. }.zip(run) {
                // Read page by page, so that one bad sector costs one page.
                let read = match whole {
                    true => Ok(()),
                    false => self.fill(at, pages[*index].slot, 1),
                };
                match read {
                    Ok(()) => places[*index] = Some(at),
                    Err(error) => tracing::error!(%error, "a page of the spill file could not be read"),
                }
            }
            place += run.len();
        }
        for (page, place) in pages.iter().zip(places) {
            let bytes = place.map_or(&[][..], |place| &self.batch.0[place * PAGE_BYTES..]);
            each(&bytes[..usize::from(page.bytes).min(bytes.len())]);
        }
    }
}

fn start(slot: u32) -> u64 {
    u64::from(slot) * PAGE_BYTES as u64
}

fn open(dir: &Path, direct: OFlags) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL | direct;
    match rustix::fs::open(dir, flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => open_and_unlink(dir, flags | OFlags::CREATE),
        opened => Ok(opened?.into()),
    }
}

/// For file systems without unnamed files. A crash before the unlink leaves an empty file.
fn open_and_unlink(dir: &Path, flags: OFlags) -> Result<File, Errno> {
    let mut random = [0; 8];
    SystemRandom::new().fill(&mut random).map_err(|_| Errno::IO)?;
    let path = dir.join(format!(".netram-spill-{:x}", u64::from_le_bytes(random)));
    let opened = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
    unlinkat(CWD, &path, AtFlags::empty())?;
    Ok(opened.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(slot: u32, bytes: &[u8]) -> StoredPage<'_> {
        StoredPage {
            slot,
            version: 1,
            bytes,
        }
    }

    fn read(file: &mut SpillFile, asked: &[(u32, u16)]) -> Vec<Vec<u8>> {
        let asked: Vec<SlotRequest> = { asked.iter() }
            .map(|(slot, bytes)| SlotRequest {
                slot: *slot,
                version: 1,
                bytes: *bytes,
            })
            .collect();
        let mut came = Vec::new();
        file.read(&asked, &mut |bytes| came.push(bytes.to_vec()));
        came
    }

    #[test]
    fn pages_are_read_in_the_requested_order() {
        // A memory file system and the one of temporary files: they differ in alignment.
        for dir in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            let mut file = SpillFile::create(dir).unwrap();
            file.resize(100).unwrap();
            let contents: Vec<(u32, Vec<u8>)> = [7, 8, 3, 99, 9, 0]
                .map(|slot| (slot, vec![slot as u8 + 1; PAGE_BYTES - 13 * slot as usize]))
                .to_vec();
            let pages: Vec<StoredPage<'_>> = contents
                .iter()
                .map(|(slot, bytes)| stored(*slot, bytes))
                .collect();
            assert!(file.write(&pages));
            assert!(file.write(&[stored(8, &[200; PAGE_BYTES])]));
            let asked: Vec<(u32, u16)> = { contents.iter().rev() }
                .map(|(slot, bytes)| (*slot, if *slot == 8 { 4096 } else { bytes.len() as u16 }))
                .chain([(1, 0)])
                .collect();
            let came = read(&mut file, &asked);
            for ((slot, bytes), came) in contents.iter().rev().zip(&came) {
                let expected = if *slot == 8 { &vec![200; PAGE_BYTES] } else { bytes };
                assert!(came == expected, "slot {slot}");
            }
            assert_eq!(came.last(), Some(&Vec::new()));
        }
    }

    #[test]
    fn a_page_beyond_the_end_fails_alone() {
        let mut file = SpillFile::create(Path::new("/dev/shm")).unwrap();
        file.resize(4).unwrap();
        assert!(file.write(&[stored(3, &[3; PAGE_BYTES])]));
        let came = read(&mut file, &[(4, 4096), (3, 4096)]);
        assert_eq!(came, [vec![], vec![3; PAGE_BYTES]]);
    }

    #[test]
    fn the_spill_file_leaves_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = SpillFile::create(dir.path()).unwrap();
        file.resize(4).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL | OFlags::CREATE;
        open_and_unlink(dir.path(), flags).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
