//! A volume's files: how they are made one, and how it is opened from them.

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

/// What FLUSH and FUA wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// The commit rule, which a completed write has met already: the usual flush costs nothing.
    #[default]
    Remote,
    /// The local disk too.
    Disk,
}

/// The files of a volume, beside its journal's.
#[derive(Debug)]
pub struct DiskFiles<F> {
    /// The blocks.
    pub image: F,
    /// Their checksums.
    pub sums: F,
    /// What the volume is; [`Superblock::FILE_BYTES`] long.
    pub superblock: F,
    /// The dirty map, for a volume that has a data lender; empty at first.
    pub dirty: Option<F>,
}

/// How a volume is opened.
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// The journal that is given with it.
    pub journal: JournalId,
    /// When stages end.
    pub policy: StagePolicy,
    /// What FLUSH waits for.
    pub flush: FlushPolicy,
    /// The journal may have been begun anew since the image last followed it, as a data lender's is when a
    /// resync begins: if the image is said to be ahead of it, that is no error.
    pub restarted: bool,
}

impl DiskOptions {
    /// The usual ones.
    pub fn new(journal: JournalId) -> DiskOptions {
        DiskOptions {
            journal,
            policy: StagePolicy::default(),
            flush: FlushPolicy::default(),
            restarted: false,
        }
    }
}

/// Makes a volume of zeros of three empty files. Durable on return, but for their names.
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
    // The superblock comes last: without it there is no volume.
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

impl<L: RecordLog, F: SparseFile> Disk<L, F> {
    /// Checks that the files belong together, and brings the image up to the journal.
    pub fn open(log: L, files: DiskFiles<F>, options: DiskOptions) -> Result<Disk<L, F>, DiskOpenError> {
        Disk::open_beside(log, files, options, NoCopy)
    }
}

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// The same for a volume of which there is another copy: blocks that the image lost are taken from there,
    /// in recovery already.
    pub fn open_beside(
        log: L,
        files: DiskFiles<F>,
        options: DiskOptions,
        copy: C,
    ) -> Result<Disk<L, F, C>, DiskOpenError> {
        let (mut slots, mut superblock) = VolumeSuperblock::open(&files.superblock)?;
        if superblock.journal != options.journal {
            return Err(DiskOpenError::OtherJournal {
                expected: superblock.journal,
                found: options.journal,
            });
        }
        let LogState {
            head,
            stable,
            payload_max,
            ..
        } = log.state();
        let sectors = payload_max.saturating_sub(WRITE_HEADER_BYTES) / 512 * 512;
        if sectors == 0 {
            return Err(DiskOpenError::SmallJournal { payload_max });
        }
        let (applied, applying) = match (superblock.applying <= stable, options.restarted) {
            (true, _) => (superblock.applied, superblock.applying),
            (false, true) => (head, head),
            (false, false) => {
                let applying = superblock.applying;
                return Err(DiskOpenError::JournalBehind { applying, stable });
            }
        };
        let image = VolumeImage::open(files.image, files.sums, superblock.volume, superblock.bytes)?;
        let dirty = (files.dirty)
            .map(|file| DirtyMap::open(file, superblock.volume, head))
            .transpose()
            .map_err(|cause| DiskOpenError::File {
                file: FileKind::Dirty,
                cause,
            })?;
        // Whether it changed or not: what was read may be in the page cache only, marked clean there by a
        // sync that failed, and the recovery tears what it says.
        (superblock.applied, superblock.applying) = (applied, applying);
        let stored = slots.store(&files.superblock, &superblock.encode());
        stored.map_err(|failure| DiskOpenError::File {
            file: FileKind::Superblock,
            cause: failure.error,
        })?;
        // The image needs nothing of what it had before.
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
            record_data_max: sectors.min(RECORD_DATA_BYTES_MAX),
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
