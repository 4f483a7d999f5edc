//! A volume restored from a data lender's copy: its blocks are first marked as missing, and are fetched when
//! needed or one after another.

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{RecordLog, StorageFile};

use crate::device::BLOCK_BYTES;
use crate::dirty::DirtyMap;
use crate::disk::Disk;
use crate::error::{DiskGrowError, FileKind};
use crate::fetch::{BlockFetch, FetchError};
use crate::image::{SparseFile, VolumeImage};
use crate::open::DiskFiles;
use crate::superblock::{VolumeId, VolumeSuperblock, is_volume_size};

/// A volume being restored. The files are no volume until [`VolumeRestore::finish`].
#[derive(Debug)]
pub struct VolumeRestore<F> {
    image: VolumeImage<F>,
    superblock: F,
    dirty: Option<F>,
    value: VolumeSuperblock,
}

impl<F: SparseFile + StorageFile> VolumeRestore<F> {
    /// Begins with empty files. The copy has every record below `from`, and so will the image. The volume's
    /// journal must begin at or before `from`.
    ///
    /// # Errors
    ///
    /// [`DiskGrowError::Size`] for an invalid size, [`DiskGrowError::File`] if a file cannot be written.
    pub fn begin(
        files: DiskFiles<F>,
        volume: VolumeId,
        journal: JournalId,
        bytes: u64,
        from: Lsn,
    ) -> Result<VolumeRestore<F>, DiskGrowError> {
        if !is_volume_size(bytes) {
            return Err(DiskGrowError::Size { asked: bytes });
        }
        let failed = failed(FileKind::Image);
        let image = VolumeImage::create(files.image, files.sums, volume, bytes).map_err(failed)?;
        Ok(VolumeRestore {
            image,
            superblock: files.superblock,
            dirty: files.dirty,
            value: VolumeSuperblock {
                volume,
                journal,
                bytes,
                applied: from,
                applying: from,
                missing: Some(from),
            },
        })
    }

    /// Marks the blocks from `first` up to `behind` as missing: the copy has data there. All others are
    /// holes.
    ///
    /// # Errors
    ///
    /// [`DiskGrowError::File`] if the checksums cannot be written.
    pub fn missing(&self, first: u64, behind: u64) -> Result<(), DiskGrowError> {
        let blocks = self.value.bytes / BLOCK_BYTES;
        self.image
            .mark_missing(first, behind.min(blocks))
            .map_err(failed(FileKind::Sums))
    }

    /// Completes the volume. Durable on return, except for the files' names.
    ///
    /// # Errors
    ///
    /// [`DiskGrowError::File`] if a file cannot be written or synced.
    pub fn finish(self) -> Result<(), DiskGrowError> {
        self.image.sync_sums().map_err(failed(FileKind::Sums))?;
        if let Some(file) = self.dirty {
            // The copy has everything, so no block is dirty.
            let (volume, head) = (self.value.volume, self.value.applied);
            DirtyMap::create(file, volume, false, head).map_err(failed(FileKind::Dirty))?;
        }
        let failed = failed(FileKind::Superblock);
        self.superblock
            .extend(VolumeSuperblock::FILE_BYTES)
            .map_err(failed)?;
        self.value.create(&self.superblock).map_err(failed)
    }
}

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// Answer to a client that restores the volume from this copy: which of `count` blocks from `first` are
    /// data, one bit each, lowest first, as of a journal that has everything below `at_least`. Blocks beyond
    /// the volume's end count as holes.
    ///
    /// A hole costs no reading. A damaged block counts as data: fetching it will show the damage.
    ///
    /// # Errors
    ///
    /// [`FetchError::Unreachable`] if the stages cannot show that state yet, or a file failed.
    pub fn data_map(&self, first: u64, at_least: Lsn, count: usize) -> Result<Vec<u8>, FetchError> {
        // As in `Disk::answer`: records on the journal's disk need not be in the stages yet.
        let followed = self.follow().map_err(|_| FetchError::Unreachable)?;
        if followed < at_least {
            return Err(FetchError::Unreachable);
        }
        let mut map = vec![0; count.div_ceil(8)];
        let behind = first.saturating_add(count as u64).min(self.block_count());
        if first >= behind {
            return Ok(map);
        }
        let mut index = 0;
        let mut each = |bytes: u64, hole: bool| {
            let end = index + (bytes / BLOCK_BYTES) as usize;
            if !hole {
                (index..end).for_each(|at| map[at / 8] |= 1 << (at % 8));
            }
            index = end;
            true
        };
        let (offset, length) = (first * BLOCK_BYTES, (behind - first) * BLOCK_BYTES);
        match self.extents(offset, length, &mut each) {
            Ok(()) => Ok(map),
            Err(_) => Err(FetchError::Unreachable),
        }
    }
}

fn failed(file: FileKind) -> impl Fn(netram_proto::port::IoError) -> DiskGrowError + Copy {
    move |cause| DiskGrowError::File { file, cause }
}
