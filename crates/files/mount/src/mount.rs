//! Taking, mounting, unmounting and recovering a directory.

mod opening;
mod take_over;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netram_files::{ChangeError, CheckpointError, DirectoryRecovery, DirectoryStatus, JournaledDirectory};
use netram_fuse::{AgreedSession, FUSERMOUNT, FuseSession};
use netram_journal::{Journal, JournalLayout, JournalPaths, JournalStatus};
use netram_process::rights::{PathOwner, is_roots};
use netram_proto::port::Durability;
use netram_telemetry::MetricsRegistration;
use rustix::process::{getegid, geteuid};

use self::opening::take_directory;
use crate::backing_directory::BackingDirectory;
use crate::backing_fs::BackingFs;
use crate::backing_handles::take_off_dead;
use crate::catalog_file::CatalogFile;
use crate::error::MountError;
use crate::fuse::{self, FuseFilesystem};
use crate::maintenance::MaintenanceThreads;
use crate::metrics::MountMetrics;
use crate::mount_point::{SOURCE, detach, is_mounted, is_unresponsive, resolve};
use crate::place::{AnsweringWay, mount_as_user, mount_over};
use crate::stamp::StampFile;

/// Interval at which it is checked whether a directory has been given back.
const LOOK: Duration = Duration::from_millis(50);

/// Options of a mount.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions {
    /// Condition that a sync waits for.
    pub durability: Durability,
    /// Checkpoint interval; a checkpoint also runs when the journal is half full.
    pub checkpoint: Duration,
    /// Number of threads that answer the kernel.
    pub threads: usize,
    /// Whether the kernel reads a file itself while all users only read. A program that writes to it
    /// meanwhile cannot map it.
    pub passthrough: bool,
    /// Mounts although acknowledged writes may be missing.
    pub accept_loss: bool,
    /// Delay added to every sync of the disk, by which a benchmark models a slower one; otherwise zero.
    pub modelled_sync_delay: Duration,
    /// Whether another server can continue the mount when this one is killed (Linux 6.9): a supervisor, whose
    /// child this process is, keeps [`Mount::control`] and [`BackingHandles`](crate::BackingHandles), and the
    /// other server calls [`Mount::take_over`].
    pub survive: bool,
    /// Called by the thread that saw a sync of the disk fail for good, before anything is answered after it.
    /// The supervisor must start no server from then on.
    pub on_failed_sync: Option<fn()>,
    /// Number of servers that the mount had before this one.
    pub restarts: u32,
    /// Whether requests come by io_uring, with `threads` threads on each core (Linux 6.14, if enabled there).
    /// Excludes `survive`: the kernel cannot send such requests again.
    pub io_uring: bool,
}

impl MountOptions {
    /// Number of all threads that answer the kernel.
    pub(crate) fn all_threads(&self) -> usize {
        match self.io_uring {
            true => self.threads * netram_fuse::cores(),
            false => self.threads,
        }
    }
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            durability: Durability::Remote,
            checkpoint: Duration::from_secs(5),
            threads: 4,
            passthrough: false,
            accept_loss: false,
            modelled_sync_delay: Duration::ZERO,
            survive: false,
            on_failed_sync: None,
            restarts: 0,
            io_uring: false,
        }
    }
}

/// Result of mounting.
#[derive(Clone, Debug)]
pub struct MountReport {
    /// Changes that recovery replayed.
    pub recovered: DirectoryRecovery,
    /// Number of files, directories and symbolic links.
    pub nodes: usize,
}

/// The files of a mounted directory, with their journal and catalog.
pub(crate) type JournaledFiles = JournaledDirectory<Journal, BackingFs, CatalogFile>;

/// A mounted directory with its journal and disk.
pub(crate) struct MountState {
    pub(crate) journaled: JournaledFiles,
    dir: PathBuf,
    backing: BackingDirectory,
    stamp: StampFile,
    pub(crate) metrics: MetricsRegistration<MountMetrics>,
}

impl MountState {
    /// Records pending writes and updates the stamp.
    pub(crate) fn record_written(&self) -> Result<(), ChangeError> {
        let recorded = self.journaled.record_written();
        self.stamp.update(self.journaled.log());
        recorded
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A mounted directory, seen by another thread than the one that waits for its end.
pub struct MountWatch {
    state: Arc<Mutex<Option<Arc<MountState>>>>,
}

impl MountWatch {
    /// The error that stopped all changes, and the state of the journal; `None` once it is unmounted. Takes
    /// the journal's lock, as every commit does, and none that may be held while the disk is waited for.
    pub fn look(&self) -> Option<(Option<CheckpointError>, JournalStatus)> {
        // Held while it looks: the directory's end waits for that.
        let held = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = held.as_ref()?;
        Some((state.journaled.failure(), state.journaled.log().status()))
    }
}

/// A mounted directory.
pub struct Mount {
    state: Arc<MountState>,
    watched: Arc<Mutex<Option<Arc<MountState>>>>,
    session: FuseSession,
    maintenance: MaintenanceThreads,
}

/// Checks whether a directory can be mounted with a journal, which need not exist yet. Nothing is changed.
///
/// # Errors
///
/// [`MountError::NoDirectory`] if the directory cannot be read, [`MountError::Nested`] if one contains the
/// other, [`MountError::Foreign`] if this user cannot make a directory of the same owner and group,
/// [`MountError::Fuse`] if the user cannot mount.
pub fn check(dir: &Path, journal: &Path) -> Result<(), MountError> {
    let dir = resolve(dir)?;
    let journal = match journal.canonicalize() {
        Ok(journal) => journal,
        Err(_) => std::path::absolute(journal).unwrap_or_else(|_| journal.to_path_buf()),
    };
    are_apart(&dir, &journal)?;
    if !is_mounted(&dir) {
        let taken = BackingDirectory::open(&dir)?;
        if !taken.is_taken() {
            is_of_user(&dir, &taken)?;
        }
    }
    can_mount().map_err(|source| MountError::Fuse { dir, source })
}

/// Whether this user can make a directory with the owner and group of `dir`: its files move into one.
fn is_of_user(dir: &Path, taken: &BackingDirectory) -> Result<(), MountError> {
    let found = taken.attributes()?;
    if geteuid().is_root() {
        return Ok(());
    }
    let (user, group) = (found.st_uid, found.st_gid);
    let groups = rustix::process::getgroups().unwrap_or_default();
    let is_member = group == getegid().as_raw() || groups.iter().any(|one| one.as_raw() == group);
    match user == geteuid().as_raw() && is_member {
        true => Ok(()),
        false => Err(MountError::Foreign {
            dir: dir.to_path_buf(),
            user,
            group,
        }),
    }
}

/// Whether the kernel has FUSE and this user may mount: root by `/dev/fuse`, others by `fusermount3`.
fn can_mount() -> io::Result<()> {
    if geteuid().is_root() {
        return File::options().read(true).write(true).open("/dev/fuse").map(drop);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path);
    match places.any(|place| place.join(FUSERMOUNT).is_file()) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no `{FUSERMOUNT}` in PATH"),
        )),
    }
}

fn are_apart(dir: &Path, journal: &Path) -> Result<(), MountError> {
    match journal.starts_with(dir) || dir.starts_with(journal) {
        true => Err(MountError::Nested {
            dir: dir.to_path_buf(),
            journal: journal.to_path_buf(),
        }),
        false => Ok(()),
    }
}

/// Creates a directory's journal unless it exists. Returns whether it was created.
///
/// # Errors
///
/// [`MountError::Create`] if the journal cannot be created.
pub fn create_journal(journal: &Path, log_bytes: u64) -> Result<bool, MountError> {
    if JournalPaths::at(journal).log().exists() {
        return Ok(false);
    }
    JournalPaths::of(journal, JournalLayout::Directory).create(log_bytes)?;
    Ok(true)
}

impl Mount {
    /// Takes a directory, replays the journal into it and mounts it.
    ///
    /// # Errors
    ///
    /// See [`MountError`]. If recovery refuses, the directory is given back unchanged.
    pub fn begin(
        dir: &Path,
        journal: &Path,
        options: MountOptions,
    ) -> Result<(Mount, MountReport), MountError> {
        let dir = resolve(dir)?;
        take_off_dead(&dir)?;
        let journal = journal.canonicalize().map_err(|source| MountError::NoDirectory {
            dir: journal.to_path_buf(),
            source,
        })?;
        let (held, recovered) = take_directory(&dir, &journal, options)?;
        let held = Arc::new(held);
        let report = MountReport {
            recovered,
            nodes: held.journaled.names().len() - 1,
        };
        let session = start(&held, options).map_err(|source| MountError::Fuse {
            dir: held.dir.clone(),
            source,
        });
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                give_back(held)?;
                return Err(error);
            }
        };
        let keeper = match MaintenanceThreads::start(&held, options.checkpoint) {
            Ok(keeper) => keeper,
            Err(source) => {
                detach(&held.dir)?;
                session.join();
                give_back(held)?;
                return Err(MountError::Fuse { dir, source });
            }
        };
        let mount = Mount {
            watched: Arc::new(Mutex::new(Some(Arc::clone(&held)))),
            state: held,
            session,
            maintenance: keeper,
        };
        Ok((mount, report))
    }

    /// Path of the directory.
    pub fn dir(&self) -> &Path {
        &self.state.dir
    }

    /// The kernel's end of the session, of which a supervisor keeps a copy. `None`: no other server can
    /// continue this mount, because that was not asked for or the kernel cannot send requests again.
    pub fn control(&self) -> Option<BorrowedFd<'_>> {
        let device = self.session.can_be_taken_over().then(|| self.session.device());
        device.map(|device| device.as_fd())
    }

    /// A view of the directory for another thread, which outlives it.
    pub fn watched(&self) -> MountWatch {
        MountWatch {
            state: Arc::clone(&self.watched),
        }
    }

    /// Figures of the directory, for monitoring.
    pub fn status(&self) -> DirectoryStatus {
        self.state.journaled.status()
    }

    /// Journal of the directory.
    pub fn journal(&self) -> &Journal {
        self.state.journaled.log()
    }

    /// Waits until the directory is unmounted, writes everything to the disk and gives the directory back.
    ///
    /// # Errors
    ///
    /// [`MountError::Close`] if the last checkpoint fails, [`MountError::Backing`] if the files cannot be
    /// moved back.
    pub fn wait(self) -> Result<(), MountError> {
        let Mount {
            state: held,
            watched,
            session,
            maintenance: keeper,
        } = self;
        session.join();
        keeper.stop();
        drop(watched.lock().unwrap_or_else(PoisonError::into_inner).take());
        give_back(held)
    }
}

/// Replays a directory's journal and gives the directory back, as if it had been mounted and unmounted. The
/// journal is found through the directory.
///
/// # Errors
///
/// [`MountError::Mounted`] while it is mounted; else as [`Mount::begin`] and [`Mount::wait`].
pub fn recover(dir: &Path, accept_loss: bool) -> Result<DirectoryRecovery, MountError> {
    let dir = resolve(dir)?;
    take_off_dead(&dir)?;
    let journal = BackingDirectory::open(&dir)?.journal()?;
    let options = MountOptions {
        accept_loss,
        ..MountOptions::default()
    };
    let (held, recovered) = take_directory(&dir, &journal, options)?;
    give_back(Arc::new(held))?;
    Ok(recovered)
}

/// Whether a directory is given back within `patience`.
pub fn is_given_back_within(dir: &Path, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let is_taken = || {
        let dir = resolve(dir).ok();
        let opened = dir.and_then(|dir| BackingDirectory::open(&dir).ok());
        opened.is_some_and(|taken| taken.is_taken())
    };
    while is_taken() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Returns the journal of a directory that netram has taken and that is not mounted now.
///
/// # Errors
///
/// There is no such directory, or netram has not taken it.
pub fn journal_of(dir: &Path) -> Result<PathBuf, MountError> {
    Ok(BackingDirectory::open(&resolve(dir)?)?.journal()?)
}

/// The user with whose rights root must recover a directory: its owner, who mounted it. `None`: root mounted
/// it, or nobody did, or this process is not root. A mount whose server is gone is taken off first, as by
/// [`recover`].
///
/// # Errors
///
/// There is no such directory, or the dead mount cannot be taken off.
pub fn owner_of_mount(dir: &Path) -> Result<Option<PathOwner>, MountError> {
    let dir = resolve(dir)?;
    if !geteuid().is_root() {
        return Ok(None);
    }
    if is_mounted(&dir) {
        match is_unresponsive(&dir) {
            true => detach(&dir)?,
            false => return Ok(None),
        }
    }
    let taken = BackingDirectory::open(&dir)?;
    let directory = taken.attributes()?;
    Ok(match taken.owner_of_private() {
        // Another owner than the directory's is refused when it is opened.
        Some(owner) if !is_roots(owner) && owner == directory.st_uid => Some(PathOwner {
            user: owner,
            group: directory.st_gid,
            path: dir,
        }),
        _ => None,
    })
}

fn start(held: &Arc<MountState>, asked: MountOptions) -> io::Result<FuseSession> {
    let survive = asked.survive && !asked.io_uring;
    let options = fuse::options(asked.passthrough, survive, asked.io_uring);
    let make = |agreed: &AgreedSession| {
        let passes = asked.passthrough && fuse::has_passthrough(agreed.agreement());
        let survives = survive && agreed.agreement().can_be_taken_over();
        FuseFilesystem::new(
            Arc::clone(held),
            Arc::clone(agreed.device()),
            passes,
            survives,
            false,
        )
    };
    let way = match (asked.io_uring, survive) {
        (true, _) => AnsweringWay::Ring,
        (false, true) => AnsweringWay::Shared,
        (false, false) => AnsweringWay::Apart,
    };
    match geteuid().is_root() {
        true => mount_over(held.backing.handle(), SOURCE, &options, asked.threads, way, make),
        false => mount_as_user(&held.dir, SOURCE, &options, asked.threads, way, make),
    }
}

fn give_back(held: Arc<MountState>) -> Result<(), MountError> {
    let Some(held) = Arc::into_inner(held) else {
        unreachable!("all threads with a reference have ended");
    };
    let MountState {
        journaled: directory,
        dir,
        backing: ground,
        ..
    } = held;
    let log = directory
        .close()
        .map_err(|source| MountError::Close { dir, source })?;
    drop(log);
    Ok(ground.give_back()?)
}
