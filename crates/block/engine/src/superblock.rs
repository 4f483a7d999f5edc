//! Superblock: the volume's id, journal and size, in a slot pair of its own file.
//!
//! ```text
//!  0  format u32 | block bytes u32
//!  8  volume (16)
//! 24  journal (16)
//! 40  bytes u64
//! 48  applied u64 | applying u64
//! 64  flags u32 | zeros u32           flag 1: blocks may be missing
//! 72  missing from u64                LSN as of which the copy has them
//! ```
//!
//! *Applied* and *applying* are LSNs: the image has every record below the first, flushed, and none from the
//! second on. They are stored before a stage's first byte goes into the image, so that recovery knows which
//! blocks a crash may have torn.

use std::fmt;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::{SlotError, SlotPair};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::{IoError, StorageFile};

use crate::device::BLOCK_BYTES;
use crate::error::{DiskOpenError, FileKind};
use crate::limit::VOLUME_BYTES_MAX;

const MAGIC: [u8; 8] = *b"NETRAMVL";
/// Format version of superblock, image, sums and records.
pub(crate) const FORMAT: u32 = 2;
const PAYLOAD_BYTES: usize = 80;
const FLAG_MISSING: u32 = 1;

/// Random id of a volume, chosen at its creation and never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VolumeId(pub u128);

impl fmt::Display for VolumeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

/// Contents of a volume's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSuperblock {
    /// Id of the volume; image and sums carry it too.
    pub volume: VolumeId,
    /// Id of the journal with the newest writes.
    pub journal: JournalId,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// LSN below which the image has every record, flushed.
    pub applied: Lsn,
    /// LSN from which on the image has no record. Records in between may be there whole, torn, or not at all.
    pub applying: Lsn,
    /// Set while some blocks may be only at the data lender, from which the volume is being restored: the LSN
    /// of the state that it is restored to.
    pub missing: Option<Lsn>,
}

impl VolumeSuperblock {
    /// Size of the superblock's file in bytes.
    pub const FILE_BYTES: u64 = SlotPair::bytes(SLOT_BYTES);

    /// Writes the first superblock into a file of [`VolumeSuperblock::FILE_BYTES`]. Durable on return.
    pub(crate) fn create<F: StorageFile>(&self, file: &F) -> Result<(), IoError> {
        SlotPair::create(file, MAGIC, SLOT_BYTES, &self.encode()).map(drop)
    }

    /// Reads the superblock without locking the file.
    ///
    /// # Errors
    ///
    /// [`DiskOpenError`] if the file cannot be read, is damaged, or is no superblock of this format.
    pub fn read<F: StorageFile>(file: &F) -> Result<VolumeSuperblock, DiskOpenError> {
        VolumeSuperblock::open(file).map(|(_, superblock)| superblock)
    }

    pub(crate) fn open<F: StorageFile>(file: &F) -> Result<(SlotPair, VolumeSuperblock), DiskOpenError> {
        let kind = FileKind::Superblock;
        let (slots, payload) = SlotPair::open(file, MAGIC, SLOT_BYTES).map_err(|error| match error {
            SlotError::Io(cause) => DiskOpenError::File { file: kind, cause },
            SlotError::Foreign => DiskOpenError::Foreign { file: kind },
            SlotError::Damaged => DiskOpenError::Damaged { file: kind },
        })?;
        Ok((slots, VolumeSuperblock::decode(&payload)?))
    }

    pub(crate) fn encode(&self) -> [u8; PAYLOAD_BYTES] {
        let mut payload = [0; PAYLOAD_BYTES];
        payload[0..4].copy_from_slice(&FORMAT.to_le_bytes());
        payload[4..8].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        payload[8..24].copy_from_slice(&self.volume.0.to_le_bytes());
        payload[24..40].copy_from_slice(&self.journal.0.to_le_bytes());
        payload[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        payload[48..56].copy_from_slice(&self.applied.0.to_le_bytes());
        payload[56..64].copy_from_slice(&self.applying.0.to_le_bytes());
        let flags = self.missing.map_or(0, |_| FLAG_MISSING);
        payload[64..68].copy_from_slice(&flags.to_le_bytes());
        payload[72..80].copy_from_slice(&self.missing.unwrap_or_default().0.to_le_bytes());
        payload
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<VolumeSuperblock, DiskOpenError> {
        let file = FileKind::Superblock;
        let format = payload.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        if let Some(found) = format.filter(|format| *format != FORMAT) {
            return Err(DiskOpenError::Format { file, found });
        }
        let payload: &[u8; PAYLOAD_BYTES] =
            payload.try_into().map_err(|_| DiskOpenError::Damaged { file })?;
        let wide =
            |at: usize| u128::from_le_bytes(*payload[at..].first_chunk().expect("the payload is longer"));
        let word =
            |at: usize| u64::from_le_bytes(*payload[at..].first_chunk().expect("the payload is longer"));
        let half =
            |at: usize| u32::from_le_bytes(*payload[at..].first_chunk().expect("the payload is longer"));
        let superblock = VolumeSuperblock {
            volume: VolumeId(wide(8)),
            journal: JournalId(wide(24)),
            bytes: word(40),
            applied: Lsn(word(48)),
            applying: Lsn(word(56)),
            missing: (half(64) & FLAG_MISSING != 0).then(|| Lsn(word(72))),
        };
        let block = half(4);
        if u64::from(block) != BLOCK_BYTES || !is_volume_size(superblock.bytes) {
            return Err(DiskOpenError::Damaged { file });
        }
        Ok(superblock)
    }
}

/// Whether `bytes` is a valid size of a volume.
pub(crate) fn is_volume_size(bytes: u64) -> bool {
    (BLOCK_BYTES..=VOLUME_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_of_another_format_or_size_is_refused() {
        let superblock = VolumeSuperblock {
            volume: VolumeId(1 << 100),
            journal: JournalId(7),
            bytes: 1 << 30,
            applied: Lsn(77),
            applying: Lsn(99),
            missing: Some(Lsn(55)),
        };
        let payload = superblock.encode();
        assert_eq!(VolumeSuperblock::decode(&payload), Ok(superblock));
        assert!(matches!(
            VolumeSuperblock::decode(&payload[..79]),
            Err(DiskOpenError::Damaged { .. })
        ));
        let mut newer = payload;
        newer[0] = 3;
        assert!(matches!(
            VolumeSuperblock::decode(&newer),
            Err(DiskOpenError::Format { found: 3, .. })
        ));
        let mut odd = payload;
        odd[40] = 1;
        assert!(matches!(
            VolumeSuperblock::decode(&odd),
            Err(DiskOpenError::Damaged { .. })
        ));
    }
}
