//! Image and checksums of a volume.
//!
//! Both files begin with a header block that names the volume. Block `n` of the volume lies at block `n + 1`
//! of the image, and its checksum at byte `4096 + 4 n` of the sums.
//!
//! ```text
//!  0  magic (8)                        "NETRAMVI" the image, "NETRAMVS" the sums
//!  8  format u32 | crc32c u32          crc over the other fields
//! 16  volume (16)
//! 32  zeros
//! ```
//!
//! A checksum is the CRC32C of the block, xor that of its number, so that a block written to the wrong place
//! does not match. Zero stands for a hole. The block must then be all zeros, which is checked too, so that
//! lost checksums do not pass for holes. One stands for a *missing* block, which only the data lender has. A
//! computed checksum of zero or one is stored as two.

use netram_proto::port::{IoError, StorageFile};
use netram_proto::wire::{Crc, crc32c};

use crate::device::BLOCK_BYTES;
use crate::error::{DiskOpenError, FileKind};
use crate::stage::BLOCK;
use crate::superblock::{FORMAT, VolumeId};

/// Bytes of one checksum.
pub(crate) const SUM_BYTES: usize = 4;
/// Offset of the contents in both files.
const CONTENTS_OFFSET: u64 = BLOCK_BYTES;

/// Checksum that stands for a hole.
pub(crate) const SUM_HOLE: u32 = 0;
/// Checksum that stands for a missing block, which only the data lender has.
pub(crate) const SUM_MISSING: u32 = 1;
/// Smallest checksum of any other block.
const SUM_MIN: u32 = 2;
/// Number of checksums written at once when many blocks are marked missing.
const MISSING_SUMS: usize = 16 * 1024;

/// A file that can have holes, as image and sums do.
pub trait SparseFile: StorageFile {
    /// Makes a range inside the file read as zeros, and frees its space where the file system supports that.
    /// Not durable before a sync.
    fn punch(&self, offset: u64, length: u64) -> Result<(), IoError>;

    /// Makes the file at least `bytes` long; the new bytes read as zeros. Durable after the next sync.
    fn extend(&self, bytes: u64) -> Result<(), IoError>;

    /// Writes `pieces` one behind the other, starting at `offset`. Override it if the file can write without
    /// joining them.
    fn write_pieces_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), IoError> {
        self.write_at(offset, &pieces.concat())
    }

    /// Offset of the first bytes from `offset` that may be other than zeros; `end` if there are none before
    /// it. A file that does not know its holes returns `offset`.
    fn next_data(&self, offset: u64, end: u64) -> Result<u64, IoError> {
        Ok(offset.min(end))
    }
}

/// The two files. The caller ensures that only one thread writes them at a time.
#[derive(Debug)]
pub(crate) struct VolumeImage<F> {
    blocks: F,
    sums: F,
}

impl<F: SparseFile> VolumeImage<F> {
    /// Turns two empty files into a volume of zeros. Durable on return.
    pub(crate) fn create(
        blocks: F,
        sums: F,
        volume: VolumeId,
        bytes: u64,
    ) -> Result<VolumeImage<F>, IoError> {
        let image = VolumeImage { blocks, sums };
        image.extend(bytes)?;
        image.blocks.write_at(0, &header(FileKind::Image, volume))?;
        image.sums.write_at(0, &header(FileKind::Sums, volume))?;
        image.sync_blocks()?;
        image.sync_sums()?;
        Ok(image)
    }

    /// Opens the files of `volume`, which has `bytes`.
    pub(crate) fn open(
        blocks: F,
        sums: F,
        volume: VolumeId,
        bytes: u64,
    ) -> Result<VolumeImage<F>, DiskOpenError> {
        let image = VolumeImage { blocks, sums };
        for (kind, file, contents) in [
            (FileKind::Image, &image.blocks, bytes),
            (FileKind::Sums, &image.sums, sums_bytes(bytes)),
        ] {
            let failed = |cause| DiskOpenError::File { file: kind, cause };
            let expected = CONTENTS_OFFSET + contents;
            let found = file.size().map_err(failed)?;
            if found < expected {
                return Err(DiskOpenError::Short {
                    file: kind,
                    expected,
                    found,
                });
            }
            let mut front = [0; BLOCK];
            file.read_at(0, &mut front).map_err(failed)?;
            check_header(kind, &front, volume)?;
        }
        Ok(image)
    }

    /// Extends both files to hold `bytes` of volume.
    pub(crate) fn extend(&self, bytes: u64) -> Result<(), IoError> {
        self.blocks.extend(CONTENTS_OFFSET + bytes)?;
        self.sums.extend(CONTENTS_OFFSET + sums_bytes(bytes))
    }

    pub(crate) fn sync_blocks(&self) -> Result<(), IoError> {
        self.blocks.sync()
    }

    pub(crate) fn sync_sums(&self) -> Result<(), IoError> {
        self.sums.sync()
    }

    /// Reads whole blocks from number `first`.
    pub(crate) fn read(&self, first: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.blocks.read_at(block_offset(first), into)
    }

    /// Reads whole blocks from number `first`, and their checksums. A block that the disk cannot read gets a
    /// checksum that it does not match, as if damaged; once it has been rewritten it may be readable again.
    pub(crate) fn read_with_sums(
        &self,
        first: u64,
        sums: &mut [u8],
        blocks: &mut [u8],
    ) -> Result<(), IoError> {
        assert_eq!(sums.len() * BLOCK, blocks.len() * SUM_BYTES);
        self.read_sums(first, sums)?;
        let whole = self.read(first, blocks);
        if whole != Err(IoError::EIO) {
            return whole;
        }
        // One bad sector fails the whole read; find out which.
        let numbers = first..;
        let sums = sums.chunks_exact_mut(SUM_BYTES);
        for ((number, stored), block) in numbers.zip(sums).zip(blocks.chunks_exact_mut(BLOCK)) {
            match self.read(number, block) {
                Err(IoError::EIO) => block.fill(0),
                read => {
                    read?;
                    continue;
                }
            }
            if sum_at(stored, 0) != SUM_MISSING {
                stored.copy_from_slice(&damaged_sum(sum(number, block)).to_le_bytes());
            }
        }
        Ok(())
    }

    /// Number of the first block from `first` in which the file may have bytes other than zeros; `behind` if
    /// there is none.
    pub(crate) fn next_data(&self, first: u64, behind: u64) -> Result<u64, IoError> {
        let data = self.blocks.next_data(block_offset(first), block_offset(behind))?;
        let block = data.saturating_sub(CONTENTS_OFFSET) / BLOCK_BYTES;
        Ok(block.clamp(first, behind))
    }

    /// Reads the checksums of blocks from number `first`, four bytes each.
    pub(crate) fn read_sums(&self, first: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.sums.read_at(sum_offset(first), into)
    }

    /// Writes blocks from number `first`, and their checksums.
    ///
    /// The checksums go first. If only the process dies, a block that was written in part matches its
    /// checksum once the journal's sectors are over it, so recovery can tell that it is sound.
    pub(crate) fn write(&self, first: u64, sums: &[u8], blocks: &[u8]) -> Result<(), IoError> {
        assert_eq!(sums.len() * BLOCK, blocks.len() * SUM_BYTES);
        self.sums.write_at(sum_offset(first), sums)?;
        self.blocks.write_at(block_offset(first), blocks)
    }

    /// Writes blocks, and their checksums, from separate buffers.
    pub(crate) fn write_pieces(&self, first: u64, sums: &[u8], blocks: &[&[u8]]) -> Result<(), IoError> {
        assert_eq!(sums.len(), blocks.len() * SUM_BYTES);
        assert!(blocks.iter().all(|block| block.len() == BLOCK));
        self.sums.write_at(sum_offset(first), sums)?;
        self.blocks.write_pieces_at(block_offset(first), blocks)
    }

    /// Writes missing blocks without their checksums, which stay *missing* until the blocks are durable.
    pub(crate) fn write_blocks(&self, first: u64, blocks: &[u8]) -> Result<(), IoError> {
        self.blocks.write_at(block_offset(first), blocks)
    }

    /// Writes one checksum.
    pub(crate) fn write_sum(&self, block: u64, sum: u32) -> Result<(), IoError> {
        self.sums.write_at(sum_offset(block), &sum.to_le_bytes())
    }

    /// Marks the blocks from `first` up to `behind` as missing: only the data lender has them.
    pub(crate) fn mark_missing(&self, first: u64, behind: u64) -> Result<(), IoError> {
        let sums = SUM_MISSING.to_le_bytes().repeat(MISSING_SUMS);
        let mut block = first;
        while block < behind {
            let count = (behind - block).min(MISSING_SUMS as u64);
            let bytes = count as usize * SUM_BYTES;
            self.sums.write_at(sum_offset(block), &sums[..bytes])?;
            block += count;
        }
        Ok(())
    }

    /// Turns the blocks from `first` up to `behind` into holes.
    pub(crate) fn punch(&self, first: u64, behind: u64) -> Result<(), IoError> {
        let count = behind - first;
        self.sums.punch(sum_offset(first), count * SUM_BYTES as u64)?;
        self.blocks.punch(block_offset(first), count * BLOCK_BYTES)
    }
}

/// Whether the file begins like the image or the sums of some volume.
pub fn is_of_a_volume<F: StorageFile>(file: &F) -> bool {
    let mut front = [0; BLOCK];
    let read = file.read_at(0, &mut front).is_ok();
    let named = [FileKind::Image, FileKind::Sums]
        .iter()
        .any(|kind| front[..8] == *magic(*kind));
    read && named && front[12..16] == header_crc(&front).to_le_bytes()
}

/// Bytes of the checksums of a volume of `bytes`.
fn sums_bytes(bytes: u64) -> u64 {
    bytes / BLOCK_BYTES * SUM_BYTES as u64
}

fn block_offset(block: u64) -> u64 {
    CONTENTS_OFFSET + block * BLOCK_BYTES
}

fn sum_offset(block: u64) -> u64 {
    CONTENTS_OFFSET + block * SUM_BYTES as u64
}

/// Checksum of a block that is no hole. About 110 ns.
pub(crate) fn sum(block: u64, bytes: &[u8]) -> u32 {
    (crc32c(bytes) ^ crc32c(&block.to_le_bytes())).max(SUM_MIN)
}

/// A checksum that bytes with checksum `sum` never match; marks the block as damaged.
pub(crate) fn damaged_sum(sum: u32) -> u32 {
    (!sum).max(SUM_MIN)
}

/// Whether `bytes` match the stored checksum.
pub(crate) fn matches(block: u64, bytes: &[u8], stored: u32) -> bool {
    match stored {
        SUM_HOLE => bytes == [0; BLOCK],
        SUM_MISSING => false,
        stored => sum(block, bytes) == stored,
    }
}

/// Checksum number `index` in `sums`.
pub(crate) fn sum_at(sums: &[u8], index: usize) -> u32 {
    let at = index * SUM_BYTES;
    let bytes = sums[at..]
        .first_chunk()
        .expect("a checksum was read for every block");
    u32::from_le_bytes(*bytes)
}

pub(crate) fn magic(kind: FileKind) -> &'static [u8; 8] {
    match kind {
        FileKind::Image => b"NETRAMVI",
        FileKind::Sums => b"NETRAMVS",
        FileKind::Superblock => b"NETRAMVL",
        FileKind::Dirty => b"NETRAMVD",
    }
}

fn header(kind: FileKind, volume: VolumeId) -> [u8; BLOCK] {
    let mut front = [0; BLOCK];
    front[0..8].copy_from_slice(magic(kind));
    front[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    front[16..32].copy_from_slice(&volume.0.to_le_bytes());
    let crc = header_crc(&front);
    front[12..16].copy_from_slice(&crc.to_le_bytes());
    front
}

fn header_crc(front: &[u8; BLOCK]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&front[..12]);
    crc.update(&front[16..]);
    crc.finish()
}

fn check_header(kind: FileKind, front: &[u8; BLOCK], volume: VolumeId) -> Result<(), DiskOpenError> {
    if front[..8] != *magic(kind) {
        return Err(DiskOpenError::Foreign { file: kind });
    }
    if front[12..16] != header_crc(front).to_le_bytes() {
        return Err(DiskOpenError::Damaged { file: kind });
    }
    let format = u32::from_le_bytes(*front[8..].first_chunk().expect("a block has twelve bytes"));
    if format != FORMAT {
        return Err(DiskOpenError::Format {
            file: kind,
            found: format,
        });
    }
    let id = front[16..].first_chunk().expect("a block has 32 bytes");
    let found = VolumeId(u128::from_le_bytes(*id));
    if found != volume {
        return Err(DiskOpenError::OtherVolume {
            file: kind,
            expected: volume,
            found,
        });
    }
    Ok(())
}
