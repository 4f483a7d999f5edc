//! The lent memory: one file in memory, fully reserved at the start, that outlives the lender's process.
//!
//! ```text
//! superblock (a page) | slots, one a journal | chunks, of which windows are made
//! ```
//!
//! Chunks in no window and no deposit are released to the machine while it is short of memory
//! (`unbacked.rs`). No more is lent than what is offered then.
//!
//! A valid store of the same boot and shape keeps its incarnation and its journals. Any other starts empty
//! under a new random incarnation, so that it is not taken for a member that holds data. The lender does not
//! start if that would lose windows of this boot that hold bytes (rule 23), unless told to discard them.

mod restore;
mod silent;
mod spilling;
mod unbacked;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_proto::id::{Epoch, Incarnation, JournalId};
use netram_proto::limit::WINDOW_BYTES_MAX;
use netram_proto::member::Member;

use crate::error::WindowStoreError;
use crate::file::{Reservation, failed, has_hole, huge_bytes, is_memory, is_whole, open_locked, reserve};
use crate::limit::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, CHUNKS_MAX, JOURNALS_MAX};
use crate::memory::{Chunk, JournalMemory};
use crate::silent::SilentWindows;
use crate::slot::{Slot, SlotContents, SlotState, slot_bytes};
use crate::slots::SlotPool;
use crate::spill::SpillDirectory;
use crate::superblock::{self, SUPERBLOCK_BYTES, StoreGeometry, StoreSuperblock, boot_id, fresh_incarnation};
use crate::sys::StoreSlice;

pub use self::restore::RestoredMember;
use self::restore::{OccupiedSlot, restore, restore_all};
use self::silent::take_up_windows;
use self::spilling::{keep_windows, open_spill, take_up_spill};

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The file, on tmpfs or hugetlbfs.
    pub path: PathBuf,
    /// Bytes to lend; rounded down to whole chunks.
    pub memory: u64,
    /// Bytes to set aside for them when the store is new; the machine keeps the rest for now.
    pub set_aside: u64,
    /// Bytes of a chunk, a power of two.
    pub chunk_bytes: u64,
    /// Maximum bytes of one journal's window.
    pub quota: u64,
    /// Maximum number of journals that are remembered.
    pub journals_max: u32,
    /// Whether the memory is locked, so that it is never swapped out.
    pub mlock: bool,
    /// Whether huge pages are requested.
    pub huge_pages: bool,
    /// Whether windows that clients may still need are discarded.
    pub discard_windows: bool,
    /// Whether a file on a disk is accepted. Only for tests: such a store never keeps its incarnation.
    pub allow_disk: bool,
    /// Directory in which the windows are kept while the machine is off, and the lender's name there.
    pub spill: Option<(PathBuf, String)>,
}

/// Whether a store was restored from an earlier process, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOrigin {
    /// The store was restored: same boot, same shape, and every slot is valid.
    Restored,
    /// No store existed.
    New,
    /// The store was left by another boot of the kernel.
    OtherBoot,
    /// The store had another shape: other memory, chunk or journal numbers.
    OtherShape,
    /// The store was damaged.
    Damaged,
    /// The store lies on a disk.
    OnDisk,
    /// The store was filled from a spill.
    Loaded,
    /// The store was closed for a spill, and serves again.
    Reopened,
}

impl StoreOrigin {
    /// Whether windows of an earlier process are in the store.
    pub fn keeps_windows(self) -> bool {
        matches!(
            self,
            StoreOrigin::Restored | StoreOrigin::Loaded | StoreOrigin::Reopened
        )
    }
}

/// The lent memory. Chunks and slots are handed out under a lock, never while an append is handled.
pub struct WindowStore {
    path: PathBuf,
    /// Kept open for its lock.
    file: File,
    incarnation: Incarnation,
    origin: StoreOrigin,
    geometry: StoreGeometry,
    quota: u64,
    chunk_shift: u32,
    spill: Option<SpillDirectory>,
    /// Number of windows that a spill has too, and no file of their own.
    spilled: AtomicUsize,
    silent: SilentWindows,
    pools: Mutex<Pools>,
    chunks_free: AtomicU64,
    chunks_unbacked: AtomicU64,
    /// Maximum number of chunks that may be lent now.
    chunks_offered: AtomicU64,
    /// Bytes in huge pages when the store was opened.
    huge_bytes: Option<u64>,
}

#[derive(Default)]
struct Pools {
    chunks: Vec<Chunk>,
    /// Free chunks without memory behind them.
    unbacked: Vec<Chunk>,
    slots: SlotPool,
    /// Number of chunks in deposits.
    deposits: u64,
}

impl WindowStore {
    /// Restores the store at `config.path`, or creates one. Returns the members found in it, except those of
    /// journals that may be forgotten.
    ///
    /// # Errors
    /// One [`WindowStoreError`] a reaction; a store that holds needed bytes is left unchanged.
    pub fn open(config: &StoreConfig) -> Result<(Arc<WindowStore>, Vec<RestoredMember>), WindowStoreError> {
        let geometry = geometry(config)?;
        let path = &config.path;
        let file = open_locked(path)?;
        let in_memory = is_memory(&file).map_err(failed(path, "inspect"))?;
        if !in_memory && !config.allow_disk {
            return Err(WindowStoreError::NotMemory { path: path.clone() });
        }
        let boot = boot_id().map_err(failed(path, "read the boot id for"))?;
        let spill = open_spill(config, geometry)?;
        let block = read_superblock(&file).map_err(failed(path, "read"))?;
        let mut origin = match in_memory {
            true => origin_of(&file, block, (geometry, boot), config)?,
            false => StoreOrigin::OnDisk,
        };
        if let Some(taken_up) = take_up_spill(&file, (block, origin), (geometry, boot), &spill, config)? {
            origin = taken_up;
        }
        let mut found = None;
        if origin.keeps_windows() {
            found = take_up(&file, geometry, config)?;
            origin = if found.is_some() {
                origin
            } else {
                StoreOrigin::Damaged
            };
        }
        if matches!(origin, StoreOrigin::OtherShape | StoreOrigin::Damaged) && !config.discard_windows {
            keep_windows(&file, origin, path)?;
        }
        let (incarnation, mut pools, mut slots) = match found {
            Some(found) => found,
            None => start_empty(&file, geometry, boot, config)?,
        };
        take_up_windows(spill.as_ref(), &mut pools, &mut slots, config)?;
        let is_spilled = |found: &&OccupiedSlot| found.state.member.spilled && found.state.member.joined;
        let spilled = slots.iter().filter(is_spilled).filter(|found| !found.has_file);
        let spilled = AtomicUsize::new(spilled.count());
        let store = Arc::new(WindowStore {
            path: path.clone(),
            file,
            incarnation,
            origin,
            geometry,
            quota: config
                .quota
                .min(WINDOW_BYTES_MAX)
                .min(geometry.chunks * geometry.chunk_bytes),
            chunk_shift: geometry.chunk_bytes.trailing_zeros(),
            spill,
            spilled,
            silent: SilentWindows::default(),
            chunks_free: AtomicU64::new(pools.chunks.len() as u64),
            chunks_unbacked: AtomicU64::new(pools.unbacked.len() as u64),
            chunks_offered: AtomicU64::new(geometry.chunks),
            huge_bytes: huge_bytes(path),
            pools: Mutex::new(pools),
        });
        let (mut over, going_on): (Vec<OccupiedSlot>, Vec<OccupiedSlot>) = slots
            .into_iter()
            .partition(|found| found.state.member.may_be_forgotten());
        over.sort_by_key(|found| found.state.last_contact);
        over.into_iter()
            .for_each(|found| store.give_slot(found.slot, found.state));
        let kept = restore_all(&store, going_on);
        Ok((store, kept))
    }

    /// The random number of this life of the memory.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether the store of an earlier process was restored, or why not.
    pub fn origin(&self) -> StoreOrigin {
        self.origin
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that can be lent in total.
    pub fn memory(&self) -> u64 {
        self.geometry.chunks * self.geometry.chunk_bytes
    }

    /// Maximum bytes of one journal's window.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Maximum number of journals that are remembered.
    pub fn journals_max(&self) -> u32 {
        self.geometry.slots
    }

    /// Bytes in huge pages when the store was opened; `None`: unknown.
    pub(crate) fn huge_bytes(&self) -> Option<u64> {
        self.huge_bytes
    }

    /// Number of remembered journals that may not be forgotten.
    pub fn journals(&self) -> u32 {
        self.geometry.slots - self.pools().slots.free() as u32
    }

    /// The member and memory of a journal that has no session; `None` if all slots belong to journals
    /// that may not be forgotten.
    pub fn journal(self: &Arc<WindowStore>, journal: JournalId) -> Option<(Member, JournalMemory)> {
        let (slot, state) = self.pools().slots.take(journal)?;
        let Some(state) = state else {
            let memory = JournalMemory::new(Arc::clone(self), slot, journal);
            return Some((Member::new(journal, self.incarnation), memory));
        };
        let found = OccupiedSlot {
            slot,
            state,
            chunks: Vec::new(),
            has_file: false,
        };
        let kept = restore(self, found);
        Some((kept.member, kept.memory))
    }

    /// Removes the store's file; the memory is freed with the process. Only for the owner, which holds the
    /// lock.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)?;
        self.file.set_len(0)
    }

    pub(crate) fn chunk_shift(&self) -> u32 {
        self.chunk_shift
    }

    /// Takes `count` chunks; the error is the number of free bytes.
    pub(crate) fn take_chunks(&self, count: usize) -> Result<Vec<Chunk>, u64> {
        let mut pools = self.pools();
        let possible = pools
            .chunks
            .len()
            .min(self.room(pools.chunks.len() as u64) as usize);
        if count > possible {
            self.silent.want(count - possible);
            return Err(possible as u64 * self.geometry.chunk_bytes);
        }
        let keep = pools.chunks.len() - count;
        let taken = pools.chunks.split_off(keep);
        self.chunks_free.store(keep as u64, Ordering::Relaxed);
        Ok(taken)
    }

    pub(crate) fn give_chunks(&self, chunks: &mut Vec<Chunk>) {
        let mut pools = self.pools();
        pools.chunks.append(chunks);
        self.chunks_free
            .store(pools.chunks.len() as u64, Ordering::Relaxed);
    }

    /// Bytes in deposits.
    pub fn deposits(&self) -> u64 {
        self.pools().deposits * self.geometry.chunk_bytes
    }

    /// Gives a deposit chunks or takes some back until it has `count`. All deposits together get at most
    /// `limit` bytes. On refusal nothing changes, and the error is the number of bytes that it could have.
    pub(crate) fn resize_deposit(
        &self,
        chunks: &mut Vec<Chunk>,
        count: usize,
        limit: u64,
    ) -> Result<(), u64> {
        let mut pools = self.pools();
        let had = chunks.len();
        if count <= had {
            pools.chunks.extend(chunks.drain(count..));
            pools.deposits -= (had - count) as u64;
        } else {
            let allowed = (limit / self.geometry.chunk_bytes).saturating_sub(pools.deposits);
            let free = pools.chunks.len() as u64;
            let possible = free.min(allowed).min(self.room(free)) as usize;
            if count - had > possible {
                return Err((had + possible) as u64 * self.geometry.chunk_bytes);
            }
            let keep = pools.chunks.len() - (count - had);
            chunks.extend(pools.chunks.drain(keep..));
            pools.deposits += (count - had) as u64;
        }
        self.chunks_free
            .store(pools.chunks.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Takes back the slot of a journal that may be forgotten, with its saved state.
    pub(crate) fn give_slot(&self, slot: Slot, state: SlotState) {
        let mut pools = self.pools();
        match state.member.epoch {
            Epoch(0) => pools.slots.give_empty(slot),
            _ => pools.slots.give_idle(slot, state),
        }
    }

    fn pools(&self) -> MutexGuard<'_, Pools> {
        // Each operation on the pools is one call on a vector, so a panic elsewhere leaves them consistent.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type StoreLayout = (Incarnation, Pools, Vec<OccupiedSlot>);

fn geometry(config: &StoreConfig) -> Result<StoreGeometry, WindowStoreError> {
    let bad = |what, got, must| Err(WindowStoreError::BadGeometry { what, got, must });
    let chunk = config.chunk_bytes;
    if !chunk.is_power_of_two() || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk) {
        return bad("bytes of a chunk", chunk, "a power of two from 4 KiB to 1 GiB");
    }
    let chunks = config.memory / chunk;
    if chunks == 0 || chunks > CHUNKS_MAX {
        return Err(WindowStoreError::Memory {
            got: config.memory,
            least: chunk,
            most: chunk.saturating_mul(CHUNKS_MAX),
        });
    }
    if config.journals_max == 0 || config.journals_max > JOURNALS_MAX {
        return bad("journals", config.journals_max.into(), "from 1 to 65,536");
    }
    let list = chunks.min(WINDOW_BYTES_MAX.div_ceil(chunk));
    Ok(StoreGeometry {
        slots: config.journals_max,
        slot_bytes: slot_bytes(list),
        chunk_bytes: chunk,
        chunks,
    })
}

/// What a start makes of the store in memory, before it looks at the disk.
fn origin_of(
    file: &File,
    block: Option<StoreSuperblock>,
    (geometry, boot): (StoreGeometry, u128),
    config: &StoreConfig,
) -> Result<StoreOrigin, WindowStoreError> {
    let length = || file.metadata().map(|found| found.len());
    Ok(match block {
        None if length().map_err(failed(&config.path, "inspect"))? == 0 => StoreOrigin::New,
        None => {
            check_format(file, config)?;
            StoreOrigin::Damaged
        }
        Some(found) if found.boot != boot => StoreOrigin::OtherBoot,
        Some(found) if found.geometry != geometry => StoreOrigin::OtherShape,
        Some(_) => StoreOrigin::Restored,
    })
}

fn read_superblock(file: &File) -> io::Result<Option<StoreSuperblock>> {
    let mut bytes = [0; superblock::BYTES];
    match std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0) {
        Ok(()) => (),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let whole = |block: &StoreSuperblock| {
        file.metadata()
            .is_ok_and(|file| file.len() == block.geometry.file_bytes())
    };
    Ok(StoreSuperblock::decode(&bytes).filter(whole))
}

/// Refuses a store of another format, since its contents cannot be determined (rule 23).
fn check_format(file: &File, config: &StoreConfig) -> Result<(), WindowStoreError> {
    let mut bytes = [0; superblock::BYTES];
    let read = std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0);
    match read.ok().and_then(|()| superblock::other_version(&bytes)) {
        Some(version) if !config.discard_windows => Err(WindowStoreError::OtherFormat {
            path: config.path.clone(),
            version,
        }),
        _ => Ok(()),
    }
}

/// Restores the store that a valid superblock describes; `None` if its slots contradict it.
fn take_up(
    file: &File,
    geometry: StoreGeometry,
    config: &StoreConfig,
) -> Result<Option<StoreLayout>, WindowStoreError> {
    let whole = is_whole(file).map_err(failed(&config.path, "inspect"))?;
    let (superblock, slots, chunks) = lay_out(file, geometry, config, whole)?;
    let mut bytes = [0; superblock::BYTES];
    bytes.copy_from_slice(superblock.bytes(0, superblock::BYTES));
    let Some(block) = StoreSuperblock::decode(&bytes) else {
        return Ok(None);
    };
    let mut chunks: Vec<Option<Chunk>> = chunks.into_iter().map(Some).collect();
    let (mut free, mut occupied) = (Vec::new(), Vec::new());
    for mut slot in slots {
        match slot.find() {
            SlotContents::Empty => free.push(slot),
            // Which journal was fenced there is unknown, and no fence may be forgotten.
            SlotContents::Damaged => return Ok(None),
            SlotContents::Journal(state, numbers) => {
                let window = state.window_bytes.div_ceil(geometry.chunk_bytes);
                let taken: Option<Vec<Chunk>> = numbers
                    .iter()
                    .map(|number| chunks.get_mut(*number as usize)?.take())
                    .collect();
                let is_in_file = state.member.spilled && numbers.is_empty();
                let is_in_memory = window == numbers.len() as u64;
                let agrees = !state.member.joined || (window > 0 && (is_in_memory || is_in_file));
                let Some(chunks) = taken.filter(|_| agrees) else {
                    return Ok(None);
                };
                occupied.push(OccupiedSlot {
                    slot,
                    state,
                    chunks,
                    has_file: false,
                });
            }
        }
    }
    let is_hollow = |chunk: &Chunk| {
        let at = chunk_at(geometry, chunk);
        // A chunk that cannot be examined is filled before it is used.
        !whole && has_hole(file, at, geometry.chunk_bytes).unwrap_or(true)
    };
    let (hollow, chunks) = chunks.into_iter().flatten().rev().partition(is_hollow);
    let pools = Pools {
        chunks,
        unbacked: hollow,
        slots: SlotPool::all_empty(free),
        deposits: 0,
    };
    Ok(Some((block.incarnation, pools, occupied)))
}

/// Creates the store. The superblock is written last, so that an interrupted creation is not taken for a
/// store.
fn start_empty(
    file: &File,
    geometry: StoreGeometry,
    boot: u128,
    config: &StoreConfig,
) -> Result<StoreLayout, WindowStoreError> {
    let path = &config.path;
    let backed = config
        .set_aside
        .div_ceil(geometry.chunk_bytes)
        .min(geometry.chunks);
    let now = geometry.chunks_at() + backed * geometry.chunk_bytes;
    let wish = Reservation {
        length: geometry.file_bytes(),
        needed: now,
        now,
        huge: config.huge_pages,
    };
    reserve(file, wish, path)?;
    let whole = backed == geometry.chunks;
    let (mut superblock, slots, mut chunks) = lay_out(file, geometry, config, whole)?;
    let mut unbacked = chunks.split_off(backed as usize);
    if !whole {
        chunks.iter_mut().for_each(|chunk| chunk.region.touch());
    }
    let incarnation = fresh_incarnation().map_err(failed(path, "draw an incarnation for"))?;
    superblock.write(
        0,
        &StoreSuperblock {
            incarnation,
            boot,
            geometry,
            closed: false,
            took_up: None,
        }
        .encode(),
    );
    // Chunks are taken from the end, so low numbers go first, which is easier to read in a dump.
    chunks.reverse();
    unbacked.reverse();
    let pools = Pools {
        chunks,
        unbacked,
        slots: SlotPool::all_empty(slots),
        deposits: 0,
    };
    Ok((incarnation, pools, Vec::new()))
}

/// Offset of a chunk in the file.
fn chunk_at(geometry: StoreGeometry, chunk: &Chunk) -> u64 {
    geometry.chunks_at() + u64::from(chunk.index) * geometry.chunk_bytes
}

/// Maps the file and splits it. `touch` if memory backs all of it and is to be populated.
fn lay_out(
    file: &File,
    geometry: StoreGeometry,
    config: &StoreConfig,
    touch: bool,
) -> Result<(StoreSlice, Vec<Slot>, Vec<Chunk>), WindowStoreError> {
    let path = &config.path;
    let length = usize::try_from(geometry.file_bytes()).map_err(|_| WindowStoreError::NoMemory {
        asked: geometry.file_bytes(),
        free: usize::MAX as u64,
    })?;
    let whole = StoreSlice::map(file, length, touch).map_err(failed(path, "map"))?;
    if config.huge_pages
        && let Err(error) = whole.advise_huge_pages()
    {
        tracing::warn!(%error, "no huge pages for the lent memory; using ordinary pages");
    }
    if config.mlock {
        whole.lock(touch).map_err(|source| WindowStoreError::Lock {
            asked: length as u64,
            source,
        })?;
    }
    let (superblock, mut rest) = whole.split(SUPERBLOCK_BYTES as usize);
    let mut slots = Vec::with_capacity(geometry.slots as usize);
    for _ in 0..geometry.slots {
        let (front, back) = rest.split(geometry.slot_bytes as usize);
        slots.push(Slot::new(front));
        rest = back;
    }
    let mut chunks = Vec::with_capacity(geometry.chunks as usize);
    for index in 0..geometry.chunks as u32 {
        let (region, back) = rest.split(geometry.chunk_bytes as usize);
        chunks.push(Chunk { index, region });
        rest = back;
    }
    assert_eq!(rest.length(), 0);
    Ok((superblock, slots, chunks))
}
