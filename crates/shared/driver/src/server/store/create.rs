//! Making a region.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use netram_proto::port::Durability;
use netram_rvm::{MapError, RvmCommitError, SegmentError};
use netram_shared_machine::RegionId;
use netram_shared_machine::limit::SETTINGS_BYTES_MAX;
use netram_store::{JournalLayout, JournaledRvm, Region, RestoreMode, SegmentAllocation, Store, StoreError};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use super::{NODES, PAGE_BYTES, REGION, TABLE, server_settings};
use crate::server::spans::Spans;
use crate::server::table::{
    COUNTERS_AT, PAGE, RegionTable, SPAN_BYTES, TableLayout, counters, span_bytes, superblock,
};

/// Bytes of the server's log, unless chosen otherwise: room for what nodes write while the segments follow.
pub const LOG_BYTES_DEFAULT: u64 = 256 << 20;
/// Spans that one transaction writes. A small log takes so many.
const SPANS_AT_ONCE: usize = 128;

/// What a region is to be.
#[derive(Clone, Debug)]
pub struct RegionPlan {
    /// Its bytes, whole pages.
    pub bytes: u64,
    /// The address that all nodes map it at; 0: each where it likes.
    pub address: u64,
    /// What each lock covers.
    pub spans: Spans,
    /// Bytes of the server's log.
    pub log_bytes: u64,
    /// The lenders that nodes are told to have, as settings are written.
    pub nodes_settings: String,
}

/// Why there is no region. What was made on the way has been removed.
#[derive(Debug, thiserror::Error)]
pub enum RegionCreateError {
    /// Bytes that no region has.
    #[error("a region of {0} bytes cannot be; choose whole pages of {PAGE_BYTES} bytes, and at least one")]
    Size(u64),
    /// An address that is none.
    #[error("{0:#x} is no address to map at; choose whole pages of {PAGE_BYTES} bytes")]
    Address(u64),
    /// The nodes' settings are too long.
    #[error("the nodes' settings have {0} bytes; at most {SETTINGS_BYTES_MAX} fit")]
    Settings(usize),
    /// Something is there already.
    #[error("{0} is there already; name a new directory")]
    Exists(PathBuf),
    /// The home.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A segment.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// Mapping it.
    #[error("{0}")]
    Map(#[from] MapError),
    /// The log.
    #[error("{0}")]
    Commit(#[from] RvmCommitError),
    /// The path is no UTF-8.
    #[error("{0:?} is not UTF-8; choose another name")]
    Name(PathBuf),
    /// The system refused.
    #[error("{path}: {cause}")]
    System {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
}

impl super::RegionStore {
    /// Makes a new region of zeros in a new directory, which only its owner can read: it will have the keys
    /// of nodes' journals.
    ///
    /// It is made under another name, `root.unfinished`, and gets its own last: cut short before, there is
    /// none, and the next attempt begins anew.
    pub fn create(root: &Path, plan: &RegionPlan) -> Result<RegionId, RegionCreateError> {
        Self::create_filled(root, plan, &mut |_| Ok(()))
    }

    /// The same, with bytes that `fill` writes to the region's file, and syncs.
    pub(crate) fn create_filled(
        root: &Path,
        plan: &RegionPlan,
        fill: &mut dyn FnMut(&fs::File) -> std::io::Result<()>,
    ) -> Result<RegionId, RegionCreateError> {
        if plan.bytes == 0 || !plan.bytes.is_multiple_of(PAGE_BYTES) || usize::try_from(plan.bytes).is_err() {
            return Err(RegionCreateError::Size(plan.bytes));
        }
        if !plan.address.is_multiple_of(PAGE_BYTES) || plan.address.checked_add(plan.bytes).is_none() {
            return Err(RegionCreateError::Address(plan.address));
        }
        if plan.nodes_settings.len() > SETTINGS_BYTES_MAX {
            return Err(RegionCreateError::Settings(plan.nodes_settings.len()));
        }
        // What cannot be looked up may be somebody's region, and what fails below is removed.
        if root.try_exists().unwrap_or(true) {
            return Err(RegionCreateError::Exists(root.to_owned()));
        }
        if root.to_str().is_none() {
            return Err(RegionCreateError::Name(root.to_owned()));
        }
        let unfinished = unfinished(root);
        let _making = begin(&unfinished)?;
        let made = make(&unfinished, plan, fill).and_then(|id| finish(&unfinished, root).map(|()| id));
        if made.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_dir_all(&unfinished);
        }
        made
    }
}

/// Where a region is before it has its name: a creation that is killed leaves nothing in the way of the next.
fn unfinished(root: &Path) -> PathBuf {
    let mut name = root.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

/// An empty directory, in place of what a creation left there that was killed. Nobody else makes a region
/// there while the answer lives.
fn begin(unfinished: &Path) -> Result<fs::File, RegionCreateError> {
    let system = |cause| RegionCreateError::System {
        path: unfinished.to_owned(),
        cause,
    };
    if let Ok(directory) = fs::File::open(unfinished) {
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(RegionCreateError::Exists(unfinished.to_owned()));
        }
        fs::remove_dir_all(unfinished).map_err(system)?;
    }
    fs::create_dir(unfinished).map_err(system)?;
    let directory = fs::File::open(unfinished).map_err(system)?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).map_err(|error| system(error.into()))?;
    Ok(directory)
}

/// Gives the region its name, durably.
fn finish(unfinished: &Path, root: &Path) -> Result<(), RegionCreateError> {
    let system = |cause| RegionCreateError::System {
        path: root.to_owned(),
        cause,
    };
    renameat_with(CWD, unfinished, CWD, root, RenameFlags::NOREPLACE).map_err(|error| match error {
        Errno::EXIST => RegionCreateError::Exists(root.to_owned()),
        error => system(error.into()),
    })?;
    let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = fs::File::open(parent.unwrap_or(Path::new(".")));
    parent.and_then(|parent| parent.sync_all()).map_err(system)
}

fn make(
    root: &Path,
    plan: &RegionPlan,
    fill: &mut dyn FnMut(&fs::File) -> std::io::Result<()>,
) -> Result<RegionId, RegionCreateError> {
    let home = Store::create(root, JournalLayout::Directory, plan.log_bytes)?;
    let system = |path: &Path| {
        let path = path.to_owned();
        move |cause| RegionCreateError::System { path, cause }
    };
    fs::set_permissions(root, fs::Permissions::from_mode(0o700)).map_err(system(root))?;
    let path = root.join(NODES);
    fs::write(&path, &plan.nodes_settings)
        .and_then(|()| fs::File::open(&path)?.sync_all())
        .and_then(|()| fs::File::open(root)?.sync_all())
        .map_err(system(&path))?;
    let id = region_id().map_err(system(root))?;
    let table = RegionTable::new(id, plan.bytes, plan.address, plan.spans.clone());
    let memory = home.open(&server_settings(&home)?)?.memory;
    // The region comes first: its number in records is the lowest, here as at every node.
    let path = root.join(REGION);
    segment(&memory, &path, plan.bytes)?;
    // Nobody has it mapped, and the log has nothing of it.
    fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| fill(&file))
        .map_err(system(&path))?;
    let words = segment(&memory, &root.join(TABLE), table.places().bytes())?;
    write_table(&memory, &words, &table)?;
    Ok(id)
}

fn region_id() -> std::io::Result<RegionId> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| std::io::Error::other("the system has no random numbers"))?;
    Ok(RegionId(u128::from_le_bytes(bytes)))
}

fn segment(memory: &JournaledRvm, path: &Path, bytes: u64) -> Result<Region, RegionCreateError> {
    let name = path
        .to_str()
        .ok_or_else(|| RegionCreateError::Name(path.to_owned()))?;
    memory.create_segment(name, bytes, SegmentAllocation::Sparse)?;
    Ok(memory.map(name, 0, 0)?)
}

/// Spans first, in pieces that any log takes; then, in one, what makes it a table.
fn write_table(memory: &JournaledRvm, words: &Region, table: &RegionTable) -> Result<(), RegionCreateError> {
    const { assert!(COUNTERS_AT < PAGE as usize) };
    let places = TableLayout::of(table.spans.len());
    let all: Vec<u8> = table.spans.iter().flat_map(span_bytes).collect();
    let mut at = places.spans();
    for piece in all.chunks(SPANS_AT_ONCE * SPAN_BYTES as usize) {
        let mut transaction = memory.begin(RestoreMode::NoRestore);
        write(&mut transaction, words, at, piece);
        transaction.commit(Durability::Lazy)?;
        at += piece.len();
    }
    let mut transaction = memory.begin(RestoreMode::NoRestore);
    write(&mut transaction, words, COUNTERS_AT, &counters(&table.counters));
    write(&mut transaction, words, 0, &superblock(table));
    transaction.commit(Durability::Disk)?;
    Ok(())
}

fn write(transaction: &mut netram_store::JournaledTransaction, words: &Region, at: usize, bytes: &[u8]) {
    let written = transaction.write(words, at, bytes);
    written.expect("the table's places are inside its segment");
}
