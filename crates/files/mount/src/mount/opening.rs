//! Opening a directory with its journal: for a new mount, for recovery, or to continue a mount.

use std::path::Path;
use std::time::{Duration, Instant};

use netram_files::{DirectoryOpenError, DirectoryOptions, DirectoryRecovery, JournaledDirectory};
use netram_journal::settings::JournalSettings;
use netram_journal::{Journal, JournalPaths};
use netram_process::rights::{PathOwner, owner_of};
use netram_proto::planted::FaultSwitch;

use super::{JournaledFiles, LOOK, MountOptions, MountState, are_apart};
use crate::backing_directory::BackingDirectory;
use crate::backing_fs::BackingFs;
use crate::catalog_file::CatalogFile;
use crate::descriptors;
use crate::error::MountError;
use crate::metrics::MountMetrics;
use crate::stamp::{JournalStamp, StampFile};
use crate::users::{MountUser, users};

/// How long an earlier mount's supervisor may take to end.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Whether programs have files of the directory open, through the mount whose server was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryUse {
    Unused,
    Mounted,
}

/// Opens a directory's journal. Nothing is changed in the directory; a journal that may not be replayed into
/// it is refused.
fn open_journal(
    dir: &Path,
    journal: &Path,
    ground: &BackingDirectory,
    asked: MountOptions,
    usage: DirectoryUse,
) -> Result<(Journal, bool), MountError> {
    // Before anything of it is read: its settings name a key, and its records are carried out.
    if let Some(PathOwner { user, .. }) = owner_of([journal])? {
        let journal = journal.to_path_buf();
        return Err(MountError::ForeignJournal { journal, user });
    }
    let mut settings = JournalSettings::of(&JournalPaths::at(journal))?;
    settings.accept_loss |= asked.accept_loss;
    // What programs have seen may not be lost.
    settings.accept_loss &= usage == DirectoryUse::Unused;
    let loss_accepted = settings.accept_loss;
    let mut config = settings.journal_config()?;
    config.modelled_sync_delay = asked.modelled_sync_delay;
    // A file opened before the mount would be written without records.
    if usage == DirectoryUse::Unused
        && let Some(user) = user_of(dir, asked)
    {
        return Err(MountError::InUse {
            dir: dir.to_path_buf(),
            user,
        });
    }
    if let Some(private) = ground.private()? {
        JournalStamp::check(&private, &ground.files_path(), journal).map_err(|older| {
            MountError::StaleJournal {
                dir: dir.to_path_buf(),
                older,
            }
        })?;
    }
    let (log, _) = Journal::open(journal, config)?;
    Ok((log, loss_accepted))
}

/// Returns a process that has files of an unmounted directory open. The supervisor has the directory open for
/// later servers, and that of an earlier mount may do so for a moment.
fn user_of(dir: &Path, asked: MountOptions) -> Option<MountUser> {
    let supervisor = { rustix::process::getppid() }.filter(|_| asked.survive);
    let supervisor = supervisor.map(|id| id.as_raw_nonzero().get().cast_unsigned());
    let find = || users(dir).into_iter().find(|user| Some(user.pid) != supervisor);
    let until = Instant::now() + END_PATIENCE;
    loop {
        match find() {
            Some(user) if user.path == dir && Instant::now() < until => std::thread::sleep(LOOK),
            found => return found,
        }
    }
}

/// Takes a directory and replays its journal into it.
pub(super) fn take_directory(
    dir: &Path,
    journal: &Path,
    asked: MountOptions,
) -> Result<(MountState, DirectoryRecovery), MountError> {
    are_apart(dir, journal)?;
    let ground = BackingDirectory::open(dir)?;
    let (log, loss_accepted) = open_journal(dir, journal, &ground, asked, DirectoryUse::Unused)?;
    let was_taken = ground.is_taken();
    ground.take(journal)?;
    let options = DirectoryOptions {
        loss_accepted,
        reign: (asked.survive).then(|| u64::from(log.newest_view().epoch.0)),
        ..options(&log, asked)
    };
    let catalog = CatalogFile::of(journal);
    let open = |log, beneath| JournaledDirectory::open(log, beneath, catalog, options);
    match open_files(dir, &ground, log, asked, open) {
        Ok((files, stamp, recovered)) => Ok((state_of(dir, ground, files, stamp, asked), recovered)),
        Err(error) => {
            // Recovery that fails has changed nothing. A directory that was not taken before gets its files
            // back.
            if !was_taken
                && matches!(error, MountError::Open { .. })
                && let Err(error) = ground.give_back()
            {
                tracing::warn!(directory = %dir.display(), %error, "the directory could not be given back; run `netram mount recover` on it");
            }
            Err(error)
        }
    }
}

/// Continues with the directory beneath a mount whose server was killed, open since before the mount.
pub(super) fn continue_directory(
    ground: BackingDirectory,
    dir: &Path,
    journal: &Path,
    asked: MountOptions,
) -> Result<(MountState, DirectoryRecovery), MountError> {
    let of_journal = ground.journal()?;
    if of_journal != journal {
        return Err(MountError::TakeOver {
            dir: dir.to_path_buf(),
            reason: format!("it belongs to the journal {}", of_journal.display()),
        });
    }
    let (log, _) = open_journal(dir, journal, &ground, asked, DirectoryUse::Mounted)?;
    let options = options(&log, asked);
    let catalog = CatalogFile::of(journal);
    let open = |log, beneath| JournaledDirectory::take_over(log, beneath, catalog, options);
    let (files, stamp, recovered) = open_files(dir, &ground, log, asked, open)?;
    Ok((state_of(dir, ground, files, stamp, asked), recovered))
}

/// Descriptors of the threads that answer the kernel: one file of the backing directory each, and a ring.
fn descriptors_of(asked: MountOptions) -> usize {
    asked.all_threads() * (1 + usize::from(asked.io_uring))
}

fn options(log: &Journal, asked: MountOptions) -> DirectoryOptions {
    DirectoryOptions {
        journal: log.id(),
        durability: asked.durability,
        loss_accepted: false,
        files_max: descriptors::for_files(descriptors_of(asked)),
        on_failed_sync: asked.on_failed_sync,
        reign: None,
        planted: FaultSwitch::NONE,
    }
}

/// Opens the files of a taken directory, with the journal's progress recorded beside them.
fn open_files(
    dir: &Path,
    ground: &BackingDirectory,
    log: Journal,
    asked: MountOptions,
    open: impl FnOnce(Journal, BackingFs) -> Result<(JournaledFiles, DirectoryRecovery), DirectoryOpenError>,
) -> Result<(JournaledFiles, StampFile, DirectoryRecovery), MountError> {
    let files = ground.files()?;
    let beneath = { ground.handle().handle() }
        .and_then(|disk| BackingFs::of(files, disk, asked.modelled_sync_delay))
        .map_err(|source| MountError::NoDirectory {
            dir: ground.files_path(),
            source,
        })?;
    let stamp = StampFile::begin(ground.known_private()?, &log);
    let (files, recovered) = match open(log, beneath) {
        Ok(opened) => opened,
        Err(source) => {
            stamp.restore();
            return Err(MountError::Open {
                dir: dir.to_path_buf(),
                source,
            });
        }
    };
    let withheld = files.tree().end_replay();
    if withheld > 0 {
        tracing::warn!(
            directory = %dir.display(),
            files = withheld,
            "some files kept the owner who recovered them, or lost set-id bits: the journal gives them rights that the \
             directory's owner lacks; look at them (ls -l)"
        );
    }
    Ok((files, stamp, recovered))
}

fn state_of(
    dir: &Path,
    backing: BackingDirectory,
    journaled: JournaledFiles,
    stamp: StampFile,
    asked: MountOptions,
) -> MountState {
    MountState {
        journaled,
        dir: dir.to_path_buf(),
        backing,
        stamp,
        metrics: MountMetrics::register(dir, asked.all_threads(), asked.restarts),
    }
}
