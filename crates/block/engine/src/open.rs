//! Creating a volume in its files, and opening it from them.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{LogState, RecordLog};

use crate::apply::StageApplier;
use crate::dirty::DirtyMap;
use crate::disk::Disk;
use crate::error::{DiskGrowError, DiskOpenError, FileKind};
use crate::fetch::{BlockFetch, NoCopy};
use crate::image::{SparseFile, VolumeImage};
use crate::limit::RECORD_DATA_BYTES_MAX;
use crate::record::WRITE_HEADER_BYTES;
use crate::recover::{self, DiskRecovery};
use crate::stage_queue::{StagePolicy, StageQueue};
use crate::stats::Counters;
use crate::superblock::{VolumeId, VolumeSuperblock, is_volume_size};
use crate::sync::StageSignal;

/// Durability that FLUSH and FUA wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// The commit rule. A completed write has met it already, so the usual flush costs nothing.
    #[default]
    Remote,
    /// The commit rule and the local disk.
    Disk,
}

/// Files of a volume, apart from its journal's.
#[derive(Debug)]
pub struct DiskFiles<F> {
    /// File of the blocks.
    pub image: F,
    /// File of the blocks' checksums.
    pub sums: F,
    /// File of the superblock; [`VolumeSuperblock::FILE_BYTES`] long.
    pub superblock: F,
    /// File of the dirty map, if the volume has a data lender; empty at first.
    pub dirty: Option<F>,
}

/// Options for opening a volume.
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Id of the journal that is passed to [`Disk::open`].
    pub journal: JournalId,
    /// When stages end.
    pub policy: StagePolicy,
    /// Durability that FLUSH waits for.
    pub flush: FlushPolicy,
    /// Whether the journal may have been begun anew since the image last followed it, as a resync does at a
    /// data lender. If so, an image ahead of the journal is no error.
    pub restarted: bool,
}

impl DiskOptions {
    /// Default options for the journal `journal`.
    pub fn new(journal: JournalId) -> DiskOptions {
        DiskOptions {
            journal,
            policy: StagePolicy::default(),
            flush: FlushPolicy::default(),
            restarted: false,
        }
    }
}

/// Creates a volume of zeros from three empty files. Durable on return, except for the files' names.
///
/// # Errors
///
/// [`DiskGrowError::Size`] for an invalid size, [`DiskGrowError::File`] if a file cannot be written.
pub fn create<F: SparseFile>(
    files: DiskFiles<F>,
    volume: VolumeId,
    journal: JournalId,
    bytes: u64,
) -> Result<(), DiskGrowError> {
    if !is_volume_size(bytes) {
        return Err(DiskGrowError::Size { asked: bytes });
    }
    let failed = |file| move |cause| DiskGrowError::File { file, cause };
    let DiskFiles {
        image,
        sums,
        superblock,
        dirty: _,
    } = files;
    VolumeImage::create(image, sums, volume, bytes).map_err(failed(FileKind::Image))?;
    // The superblock comes last: without it the files are no volume.
    let failed = failed(FileKind::Superblock);
    superblock.extend(VolumeSuperblock::FILE_BYTES).map_err(failed)?;
    let value = VolumeSuperblock {
        volume,
        journal,
        bytes,
        applied: Lsn::default(),
        applying: Lsn::default(),
        missing: None,
    };
    value.create(&superblock).map_err(failed)
}

/// Maximum bytes of data in one record of this journal: whole sectors, or zero if it cannot hold one.
fn record_data_max(log: &LogState) -> usize {
    let sectors = log.payload_max.saturating_sub(WRITE_HEADER_BYTES) / 512 * 512;
    sectors.min(RECORD_DATA_BYTES_MAX)
}

/// Checks the journal against the volume. Returns the image's position in it: *applied* and *applying* as in
/// the superblock.
fn check_journal(
    superblock: &VolumeSuperblock,
    options: &DiskOptions,
    log: &LogState,
) -> Result<(Lsn, Lsn), DiskOpenError> {
    if superblock.journal != options.journal {
        return Err(DiskOpenError::OtherJournal {
            expected: superblock.journal,
            found: options.journal,
        });
    }
    if record_data_max(log) == 0 {
        return Err(DiskOpenError::SmallJournal {
            payload_max: log.payload_max,
        });
    }
    match (superblock.applying <= log.stable, options.restarted) {
        (true, _) => Ok((superblock.applied, superblock.applying)),
        (false, true) => Ok((log.head, log.head)),
        (false, false) => Err(DiskOpenError::JournalBehind {
            applying: superblock.applying,
            stable: log.stable,
        }),
    }
}

impl<L: RecordLog, F: SparseFile> Disk<L, F> {
    /// Opens a volume: checks that its files belong together, and applies the journal to the image.
    ///
    /// # Errors
    ///
    /// [`DiskOpenError`] if a file fails, is damaged, or belongs to another volume, or if recovery fails.
    pub fn open(log: L, files: DiskFiles<F>, options: DiskOptions) -> Result<Disk<L, F>, DiskOpenError> {
        Disk::open_beside(log, files, options, NoCopy)
    }
}

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// Opens a volume that has another copy. Blocks that the image lost are fetched from it, during recovery
    /// too.
    ///
    /// # Errors
    ///
    /// As [`Disk::open`].
    pub fn open_beside(
        log: L,
        files: DiskFiles<F>,
        options: DiskOptions,
        copy: C,
    ) -> Result<Disk<L, F, C>, DiskOpenError> {
        let (mut slots, mut superblock) = VolumeSuperblock::open(&files.superblock)?;
        let state = log.state();
        let head = state.head;
        let (applied, applying) = check_journal(&superblock, &options, &state)?;
        let image = VolumeImage::open(files.image, files.sums, superblock.volume, superblock.bytes)?;
        let dirty = (files.dirty)
            .map(|file| DirtyMap::open(file, superblock.volume, head))
            .transpose()
            .map_err(|cause| DiskOpenError::File {
                file: FileKind::Dirty,
                cause,
            })?;
        // Stored even if unchanged: what was read may exist only in the page cache, marked clean there by a
        // failed sync, and recovery relies on it to judge torn blocks.
        (superblock.applied, superblock.applying) = (applied, applying);
        let stored = slots.store(&files.superblock, &superblock.encode());
        stored.map_err(|failure| DiskOpenError::File {
            file: FileKind::Superblock,
            cause: failure.error,
        })?;
        // The image needs no record below `applied`.
        let start = applied.max(head);
        let keeps = dirty.is_some();
        let flushed = if keeps { Lsn(0) } else { Lsn(u64::MAX) };
        let mut applier = StageApplier::new();
        applier.torn_below = applying;
        if head < start {
            applier.retained.applied(start);
        }
        let mut disk = Disk {
            log,
            image,
            copy,
            bytes: AtomicU64::new(superblock.bytes),
            missing: AtomicBool::new(superblock.missing.is_some()),
            missing_from: superblock.missing.unwrap_or_default(),
            superblock: Mutex::new((files.superblock, slots, superblock)),
            flush: options.flush,
            record_data_max: record_data_max(&state),
            order: Mutex::new(()),
            stages: Mutex::new(StageQueue::new(options.policy, start)),
            applier: Mutex::new(applier),
            writing: Mutex::new(()),
            applied: AtomicU64::new(start.0),
            flushed: AtomicU64::new(flushed.0),
            has_replica: keeps,
            dirty: Mutex::new(dirty),
            bad: Mutex::new(BTreeSet::new()),
            signal: StageSignal::default(),
            counters: Counters::default(),
            recovered: DiskRecovery::default(),
        };
        disk.recovered = recover::replay(&disk, start, applying)?;
        Ok(disk)
    }
}
