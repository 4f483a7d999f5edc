//! A small durable value, stored in two slots of a file: one is written and synced, then the other.
//!
//! A torn write leaves the other slot intact. Damage at rest to one slot leaves the same value in the other,
//! not an older one: an older view would name the wrong members, and recovery would not notice what it
//! misses. The file has its full size from the start, so a full disk cannot stop a view change.
//!
//! ```text
//!  0  magic (8)
//!  8  sequence u64                     the higher of two valid slots counts
//! 16  length u32 | crc32c u32          crc over bytes 0..20 and the payload
//! 24  payload (length), zeros
//! ```

use alloc::vec;
use alloc::vec::Vec;

use crate::failure::{CallError, SystemCall};
use crate::port::{IoError, StorageFile};
use crate::wire::{ByteReader, Crc};

const HEADER_BYTES: usize = 24;

/// The state of a two-slot file: which slot is newer, and its sequence number.
#[derive(Clone, Debug)]
pub struct SlotPair {
    magic: [u8; 8],
    slot_bytes: usize,
    sequence: u64,
    /// Index of the slot to write first: one without a valid value, or the older one.
    first: u64,
    /// Whether both slots hold a valid value.
    sound: bool,
    /// Set after a failed sync. The contents of the disk are then unknown, and a later good sync would not
    /// tell (rule 9).
    failed: Option<CallError>,
}

/// Why no value could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// The file failed.
    Io(IoError),
    /// Neither slot starts with this kind of file's magic.
    Foreign,
    /// Both slots are damaged.
    Damaged,
}

impl From<IoError> for SlotError {
    fn from(error: IoError) -> SlotError {
        match error {
            IoError::EOF => SlotError::Damaged,
            other => SlotError::Io(other),
        }
    }
}

impl SlotPair {
    /// Size of both slots, in bytes.
    pub const fn bytes(slot_bytes: usize) -> u64 {
        2 * slot_bytes as u64
    }

    /// Writes `payload` as the first value.
    ///
    /// # Errors
    ///
    /// A write or the sync failed.
    pub fn create<F: StorageFile>(
        file: &F,
        magic: [u8; 8],
        slot_bytes: usize,
        payload: &[u8],
    ) -> Result<SlotPair, IoError> {
        let mut slots = SlotPair {
            magic,
            slot_bytes,
            sequence: 0,
            first: 0,
            sound: false,
            failed: None,
        };
        slots.write_both(file, payload).map_err(|failure| failure.error)?;
        Ok(slots)
    }

    /// Reads the newest valid value.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is not of this type, or both slots are damaged.
    pub fn open<F: StorageFile>(
        file: &F,
        magic: [u8; 8],
        slot_bytes: usize,
    ) -> Result<(SlotPair, Vec<u8>), SlotError> {
        let mut newest: Option<(u64, Vec<u8>)> = None;
        let (mut ours, mut unreadable) = (false, None);
        let mut missing = None;
        let mut newer = 0;
        for index in 0..2u64 {
            let mut slot = vec![0; slot_bytes];
            match file.read_at(index * slot_bytes as u64, &mut slot) {
                Ok(()) => (),
                // The other slot may replace one that cannot be read.
                Err(error @ IoError::EIO) => {
                    unreadable = Some(error);
                    missing = Some(index);
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            ours |= slot.starts_with(&magic);
            let Some((sequence, payload)) = parse(&slot, &magic) else {
                missing = Some(index);
                continue;
            };
            if newest.as_ref().is_none_or(|(found, _)| sequence > *found) {
                newer = index;
                newest = Some((sequence, payload.to_vec()));
            }
        }
        match (newest, unreadable) {
            (Some((sequence, payload)), _) => Ok((
                SlotPair {
                    magic,
                    slot_bytes,
                    sequence,
                    first: missing.unwrap_or(1 - newer),
                    sound: missing.is_none(),
                    failed: None,
                },
                payload,
            )),
            // An unreadable disk is an I/O error: restoring the file would be the wrong remedy.
            (None, Some(error)) => Err(SlotError::Io(error)),
            (None, None) if ours => Err(SlotError::Damaged),
            (None, None) => Err(SlotError::Foreign),
        }
    }

    /// Replaces the value. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// A write or a sync failed. After a failed sync every later call returns the same error. After any other
    /// error the file holds the old or the new value, and the next call may succeed.
    pub fn store<F: StorageFile>(&mut self, file: &F, payload: &[u8]) -> Result<(), CallError> {
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        let stored = self.write_both(file, payload);
        self.failed = stored.err().filter(|failure| failure.is_final());
        stored
    }

    /// Replaces the value in one slot only, with half of the syncs of [`SlotPair::store`]. If that slot is
    /// damaged later, the file falls back to the value before.
    ///
    /// # Errors
    ///
    /// As for [`SlotPair::store`].
    pub fn store_loosely<F: StorageFile>(&mut self, file: &F, payload: &[u8]) -> Result<(), CallError> {
        if !self.sound {
            return self.store(file, payload);
        }
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        self.sequence += 1;
        // Writes the newer slot always: the older one keeps the last value that was stored in full.
        let older = self.first;
        let stored = self.write_slot(file, 1 - older, payload);
        self.failed = stored.err().filter(|failure| failure.is_final());
        stored?;
        (self.first, self.sound) = (older, true);
        Ok(())
    }

    fn write_both<F: StorageFile>(&mut self, file: &F, payload: &[u8]) -> Result<(), CallError> {
        self.sequence += 1;
        for index in [self.first, 1 - self.first] {
            self.write_slot(file, index, payload)?;
        }
        self.sound = true;
        Ok(())
    }

    /// Writes one slot and syncs it. A write that fails midway leaves an invalid slot: the next call must
    /// begin with it, while the other one is valid.
    fn write_slot<F: StorageFile>(&mut self, file: &F, index: u64, payload: &[u8]) -> Result<(), CallError> {
        assert!(HEADER_BYTES + payload.len() <= self.slot_bytes);
        (self.first, self.sound) = (index, false);
        file.write_at(index * self.slot_bytes as u64, &self.slot(payload))
            .map_err(|error| error.of(SystemCall::Write))?;
        file.sync().map_err(|error| error.of(SystemCall::Sync))
    }

    fn slot(&self, payload: &[u8]) -> Vec<u8> {
        let mut slot = vec![0; self.slot_bytes];
        slot[0..8].copy_from_slice(&self.magic);
        slot[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        slot[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        slot[HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        let crc = checksum(&slot[..20], payload);
        slot[20..24].copy_from_slice(&crc.to_le_bytes());
        slot
    }
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(header);
    crc.update(payload);
    crc.finish()
}

fn parse<'a>(slot: &'a [u8], magic: &[u8; 8]) -> Option<(u64, &'a [u8])> {
    let mut cursor = ByteReader::new(slot);
    let found = cursor.array::<8>().ok()?;
    let sequence = cursor.u64().ok()?;
    let length = cursor.u32().ok()? as usize;
    let crc = cursor.u32().ok()?;
    let payload = cursor.bytes(length).ok()?;
    (found == *magic && crc == checksum(&slot[..20], payload)).then_some((sequence, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;

    const MAGIC: [u8; 8] = *b"NETRAMXX";
    const BYTES: usize = 512;

    /// A file whose operations fail from the `fuse`-th write or sync on. Earlier writes remain.
    struct Cut {
        bytes: RefCell<Vec<u8>>,
        fuse: RefCell<usize>,
        unreadable: Option<u64>,
        /// Error of a failing write. Unless it is EIO, the write leaves some of its bytes.
        refusal: IoError,
    }

    impl Cut {
        fn new(bytes: Vec<u8>, fuse: usize) -> Cut {
            Cut {
                bytes: RefCell::new(bytes),
                fuse: RefCell::new(fuse),
                unreadable: None,
                refusal: IoError::EIO,
            }
        }

        fn burn(&self) -> Result<(), IoError> {
            let mut fuse = self.fuse.borrow_mut();
            *fuse = fuse.checked_sub(1).ok_or(IoError::EIO)?;
            Ok(())
        }
    }

    impl StorageFile for Cut {
        fn size(&self) -> Result<u64, IoError> {
            Ok(self.bytes.borrow().len() as u64)
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
            if self.unreadable == Some(offset) {
                return Err(IoError::EIO);
            }
            into.copy_from_slice(&self.bytes.borrow()[offset as usize..][..into.len()]);
            Ok(())
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
            let kept = match self.burn() {
                Ok(()) => bytes.len(),
                Err(_) if self.refusal == IoError::EIO => 0,
                Err(_) => HEADER_BYTES + 1,
            };
            self.bytes.borrow_mut()[offset as usize..][..kept].copy_from_slice(&bytes[..kept]);
            match kept == bytes.len() {
                true => Ok(()),
                false => Err(self.refusal),
            }
        }

        fn sync(&self) -> Result<(), IoError> {
            self.burn()
        }
    }

    fn stored(values: &[&[u8]]) -> Vec<u8> {
        let file = Cut::new(vec![0; 2 * BYTES], usize::MAX);
        let mut slots = SlotPair::create(&file, MAGIC, BYTES, values[0]).unwrap();
        for value in &values[1..] {
            slots.store(&file, value).unwrap();
        }
        file.bytes.into_inner()
    }

    fn read(file: &Cut) -> Vec<u8> {
        SlotPair::open(file, MAGIC, BYTES).unwrap().1
    }

    #[test]
    fn a_store_cut_off_anywhere_leaves_the_old_or_the_new_value() {
        for fuse in 0..4 {
            let file = Cut::new(stored(&[b"old"]), usize::MAX);
            let (mut slots, _) = SlotPair::open(&file, MAGIC, BYTES).unwrap();
            *file.fuse.borrow_mut() = fuse;
            assert!(slots.store(&file, b"new").is_err());
            assert_eq!(
                read(&file),
                if fuse == 0 { b"old" } else { b"new" },
                "cut after {fuse}"
            );
            *file.fuse.borrow_mut() = usize::MAX;
            let failed_sync = fuse % 2 == 1;
            assert_eq!(
                slots.store(&file, b"newer").is_err(),
                failed_sync,
                "a failed sync is final, and only that"
            );
            assert_eq!(read(&file) == b"newer", !failed_sync);
        }
    }

    /// A view file that was refused space for a moment made its journal read-only for good.
    #[test]
    fn a_refused_store_leaves_a_valid_slot_at_every_step_of_the_next_one() {
        for refused in [0, 2] {
            for cut in 0..=4 {
                let file = Cut {
                    refusal: IoError::ENOSPC,
                    ..Cut::new(stored(&[b"old"]), usize::MAX)
                };
                let (mut slots, _) = SlotPair::open(&file, MAGIC, BYTES).unwrap();
                *file.fuse.borrow_mut() = refused;
                let refusal = slots.store(&file, b"new").unwrap_err();
                assert_eq!(refusal, IoError::ENOSPC.of(SystemCall::Write));
                let before = read(&file);
                assert_eq!(before, if refused == 0 { b"old" } else { b"new" });
                *file.fuse.borrow_mut() = cut;
                let stored = slots.store(&file, b"newer");
                assert_eq!(stored.is_ok(), cut == 4);
                let found = read(&file);
                assert_eq!(
                    found,
                    if cut == 0 { before } else { b"newer".to_vec() },
                    "cut after {cut}"
                );
            }
        }
    }

    /// The refused write may have damaged the newer slot. A loose store to the older one would then leave no
    /// valid slot.
    #[test]
    fn after_a_refused_loose_store_the_next_one_begins_with_the_refused_slot() {
        for cut in 0..=4 {
            let file = Cut {
                refusal: IoError::ENOSPC,
                ..Cut::new(stored(&[b"full"]), usize::MAX)
            };
            let (mut slots, _) = SlotPair::open(&file, MAGIC, BYTES).unwrap();
            slots.store_loosely(&file, b"rest").unwrap();
            *file.fuse.borrow_mut() = 0;
            let refusal = slots.store_loosely(&file, b"wake").unwrap_err();
            assert_eq!(refusal, IoError::ENOSPC.of(SystemCall::Write));
            assert_eq!(read(&file), b"full", "half of the new value was written");
            *file.fuse.borrow_mut() = cut;
            let stored = slots.store_loosely(&file, b"newer");
            assert_eq!(stored.is_ok(), cut == 4);
            let found = read(&file);
            let whole: &[u8] = if cut == 0 { b"full" } else { b"newer" };
            assert_eq!(found, whole, "cut after {cut}");
        }
    }

    /// One damaged sector brought back the previous view. The newest view's members were never asked, and
    /// records that they had acknowledged were lost silently (simulator seed 50001).
    #[test]
    fn damage_to_one_slot_leaves_the_newest_value() {
        let good = stored(&[b"old", b"new"]);
        for slot in 0..2 {
            let mut rotten = good.clone();
            rotten[slot * BYTES + 25] ^= 1;
            let file = Cut::new(rotten, usize::MAX);
            assert_eq!(read(&file), b"new");
            let unreadable = Cut {
                unreadable: Some((slot * BYTES) as u64),
                ..Cut::new(good.clone(), usize::MAX)
            };
            assert_eq!(read(&unreadable), b"new");
        }
    }

    /// The newer slot was overwritten first: a cut-off then brought back the value before the last.
    #[test]
    fn an_outdated_slot_is_written_first() {
        for behind in 0..2 {
            let file = Cut::new(stored(&[b"old"]), usize::MAX);
            let (mut slots, _) = SlotPair::open(&file, MAGIC, BYTES).unwrap();
            slots.first = 1 - behind;
            *file.fuse.borrow_mut() = 2;
            assert!(slots.store(&file, b"new").is_err());
            let newer = (1 - behind) as usize * BYTES;
            let sound = file.bytes.borrow()[newer..][..BYTES].to_vec();
            *file.fuse.borrow_mut() = usize::MAX;
            let (mut slots, value) = SlotPair::open(&file, MAGIC, BYTES).unwrap();
            assert_eq!(value, b"new");
            *file.fuse.borrow_mut() = 1;
            assert!(slots.store(&file, b"newest").is_err());
            assert_eq!(file.bytes.borrow()[newer..][..BYTES], sound, "the only new one");
        }
    }

    /// Two states of one value alternate in one slot; the other slot keeps the value that may replace both.
    #[test]
    fn a_loose_store_takes_one_sync_and_falls_back_to_the_value_before() {
        let file = Cut::new(stored(&[b"counting"]), usize::MAX);
        let (mut slots, _) = SlotPair::open(&file, MAGIC, BYTES).unwrap();
        for value in [b"clean".as_slice(), b"counting", b"clean"] {
            *file.fuse.borrow_mut() = 2;
            slots.store_loosely(&file, value).expect("a write and a sync");
            *file.fuse.borrow_mut() = usize::MAX;
            assert_eq!(read(&file), value);
            let mut rotten = file.bytes.borrow().clone();
            let at = (1 - slots.first) as usize * BYTES + 25;
            rotten[at] ^= 1;
            assert_eq!(read(&Cut::new(rotten, usize::MAX)), b"counting");
        }
        slots.store(&file, b"other").unwrap();
        for slot in 0..2 {
            let mut rotten = file.bytes.borrow().clone();
            rotten[slot * BYTES + 25] ^= 1;
            assert_eq!(read(&Cut::new(rotten, usize::MAX)), b"other");
        }
    }

    #[test]
    fn a_loose_store_is_full_while_one_slot_is_invalid() {
        let mut rotten = stored(&[b"old"]);
        rotten[25] ^= 1;
        let file = Cut::new(rotten, usize::MAX);
        let (mut slots, _) = SlotPair::open(&file, MAGIC, BYTES).unwrap();
        let sound = file.bytes.borrow()[BYTES..].to_vec();
        *file.fuse.borrow_mut() = 1;
        assert!(slots.store_loosely(&file, b"new").is_err());
        assert_eq!(
            file.bytes.borrow()[BYTES..],
            sound,
            "the only valid slot is left alone"
        );
    }

    #[test]
    fn an_invalid_slot_is_written_first() {
        for slot in 0..2 {
            let mut rotten = stored(&[b"old"]);
            rotten[slot * BYTES + 25] ^= 1;
            let file = Cut::new(rotten, usize::MAX);
            let (mut slots, _) = SlotPair::open(&file, MAGIC, BYTES).unwrap();
            let sound = file.bytes.borrow()[(1 - slot) * BYTES..][..BYTES].to_vec();
            *file.fuse.borrow_mut() = 1;
            assert!(slots.store(&file, b"new").is_err());
            assert_eq!(
                file.bytes.borrow()[(1 - slot) * BYTES..][..BYTES],
                sound,
                "the only valid slot"
            );
        }
    }
}
