//! Creates a region.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use netram_process::files::{self, FileAccess, PRIVATE};
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

/// Default bytes of the server's log: room for nodes' writes until the segments have them.
pub const LOG_BYTES_DEFAULT: u64 = 256 << 20;
/// Number of spans that one transaction writes, small enough for a small log.
const SPANS_AT_ONCE: usize = 128;

/// Parameters of a new region.
#[derive(Clone, Debug)]
pub struct RegionPlan {
    /// Size of the region in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Address at which all nodes map the region; 0: each node chooses.
    pub address: u64,
    /// The bytes that each lock covers.
    pub spans: Spans,
    /// Size of the server's log in bytes.
    pub log_bytes: u64,
    /// Settings of the nodes' lenders, in the settings' format.
    pub nodes_settings: String,
}

/// Failure to create a region. Files that were created on the way have been removed.
#[derive(Debug, thiserror::Error)]
pub enum RegionCreateError {
    /// The size is not valid for a region.
    #[error("{0} bytes is not a valid region size; choose a positive multiple of {PAGE_BYTES} bytes")]
    Size(u64),
    /// The address is not valid for a mapping.
    #[error("{0:#x} is not a valid address for the region; choose a multiple of {PAGE_BYTES} bytes")]
    Address(u64),
    /// The nodes' settings are too long.
    #[error("the nodes' settings have {0} bytes, but at most {SETTINGS_BYTES_MAX} are allowed: shorten them")]
    Settings(usize),
    /// The directory exists already.
    #[error("{0} exists already; name a new directory")]
    Exists(PathBuf),
    /// The server's journal or its settings cannot be created.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A segment cannot be created.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// A segment cannot be mapped.
    #[error("{0}")]
    Map(#[from] MapError),
    /// The log did not take the table.
    #[error("{0}")]
    Commit(#[from] RvmCommitError),
    /// The path is not UTF-8.
    #[error("{0:?} is not UTF-8; choose another name")]
    Name(PathBuf),
    /// A system call on the file failed.
    #[error("{path}: {cause}")]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
}

impl super::RegionStore {
    /// Creates a new region of zeros in a new directory. Only its owner can read the directory, since it will
    /// contain the keys of nodes' journals.
    ///
    /// The region is created as `root.unfinished` and renamed at the end. An interrupted creation leaves no
    /// region, and the next attempt starts anew.
    ///
    /// # Errors
    ///
    /// [`RegionCreateError`] if the plan is invalid, `root` exists, or a file cannot be created.
    pub fn create(root: &Path, plan: &RegionPlan) -> Result<RegionId, RegionCreateError> {
        Self::create_filled(root, plan, &mut |_| Ok(()))
    }

    /// Creates a region like [`RegionStore::create`](super::RegionStore::create), with bytes that `fill`
    /// writes to the region's file and syncs.
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
        // A path that cannot be checked may be an existing region, and the error path below removes files.
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

/// Path of a region during its creation, so that a killed creation does not block the next one.
fn unfinished(root: &Path) -> PathBuf {
    let mut name = root.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

/// Creates an empty directory, replacing that of a killed creation. No other process creates a region there
/// while the returned lock lives.
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

/// Gives the region its final name, durably.
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
    files::create_new(&path, PRIVATE)
        .and_then(|mut file| {
            file.write_all(plan.nodes_settings.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::File::open(root)?.sync_all())
        .map_err(system(&path))?;
    let id = region_id().map_err(system(root))?;
    let table = RegionTable::new(id, plan.bytes, plan.address, plan.spans.clone());
    let memory = home.open(&server_settings(&home)?)?.memory;
    // The region is the first segment: its number in records is the lowest, as at every node.
    let path = root.join(REGION);
    segment(&memory, &path, plan.bytes)?;
    // The region is not mapped yet, and the log has no record of it.
    files::open(&path, FileAccess::Write)
        .map_err(std::io::Error::from)
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

/// Writes the spans first, in pieces that any log takes; then, in one transaction, the rest that makes it a
/// table.
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
    written.expect("the table's entries are inside its segment");
}
