//! A volume made anew from a data lender's copy: its blocks are named as missing, and come when they are
//! needed, or one after the other.

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

/// A volume that is being made. It is none until [`VolumeRestore::finish`].
#[derive(Debug)]
pub struct VolumeRestore<F> {
    image: VolumeImage<F>,
    superblock: F,
    dirty: Option<F>,
    value: VolumeSuperblock,
}

impl<F: SparseFile + StorageFile> VolumeRestore<F> {
    /// Takes empty files. The copy has everything below `from`, and so will the image as blocks come: the
    /// volume's journal must begin there, or before.
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

    /// The copy has data in the blocks from `first` up to `behind`. The others are holes.
    pub fn missing(&self, first: u64, behind: u64) -> Result<(), DiskGrowError> {
        let blocks = self.value.bytes / BLOCK_BYTES;
        self.image
            .mark_missing(first, behind.min(blocks))
            .map_err(failed(FileKind::Sums))
    }

    /// Makes a volume of it. Durable on return, but for the files' names.
    pub fn finish(self) -> Result<(), DiskGrowError> {
        self.image.sync_sums().map_err(failed(FileKind::Sums))?;
        if let Some(file) = self.dirty {
            // The copy has everything: nothing is to be sent.
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
    /// The answer to whoever makes the volume anew from this one: which of `count` blocks from `first` on are
    /// data, a bit each, lowest first, as of a journal that has everything below `at_least`. What lies beyond
    /// the volume's end is none.
    ///
    /// A hole costs no reading, and a block that is damaged counts as data: fetching it will tell.
    pub fn data_map(&self, first: u64, at_least: Lsn, count: usize) -> Result<Vec<u8>, FetchError> {
        // As in `Disk::answer`: what is on the journal's disk need not be in the stages yet.
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
