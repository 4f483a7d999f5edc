//! An open volume: its journal, its files, and the thread that applies stages to the image.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_block::{
    ApplierTask, ApplyProgress, DeviceError, Disk, DiskGrowError, DiskOptions, DiskStatus, ScrubStep,
    VolumeId, VolumeSuperblock,
};
use netram_block_machine::ReplicaIdentity;
use netram_block_machine::message::FollowRequest;
use netram_journal::forget::{UnfreedWindow, WindowRelease};
use netram_journal::owner::JournalOwner;
use netram_journal::seal::DataKey;
use netram_journal::{Journal, JournalStatus};
use netram_proto::journal::View;
use netram_proto::port::RecordLog;
use netram_proto::time::Time;
use netram_transport::{NetAddress, Security};

use crate::check::{self, VolumeCheck};
use crate::copier::RestoreCopier;
use crate::error::{
    VolumeCloseError, VolumeCreateError, VolumeDeleteError, VolumeInspectError, VolumeOpenError,
};
use crate::file::VolumeFile;
use crate::metrics::DeviceTimes;
use crate::paths::{VolumeInspection, VolumePaths};
use crate::recovery_key::wrapped_for;
use crate::replica::restore::DataLenderEndpoint;
use crate::replica::{
    CopySource, DataLenderStatus, FeederParts, ReplicaFeeder, VolumeDisk, announce_first_view,
};
use crate::settings::VolumeSettings;
use crate::takeover;

/// Interval of the applier thread's clock; the accuracy of a stage's age.
const TICK: Duration = Duration::from_millis(100);
/// Delay after a failure; each attempt writes a stage from its beginning.
const RETRY: Duration = Duration::from_secs(1);

/// An open volume. Closed when dropped.
#[derive(Debug)]
pub struct Volume {
    paths: VolumePaths,
    /// `None` only while closing.
    disk: Option<Arc<VolumeDisk>>,
    thread: Option<JoinHandle<()>>,
    opened: Instant,
    recovered: VolumeRecovery,
    /// Sends the journal and blocks to the data lender's copy, if there is one.
    feeder: Option<ReplicaFeeder>,
    /// Fetches the blocks of a restored volume.
    copier: Option<RestoreCopier>,
    times: Arc<DeviceTimes>,
}

/// Result of recovery at the opening.
#[derive(Clone, Debug)]
pub struct VolumeRecovery {
    /// Result of the journal's recovery.
    pub journal: netram_journal::JournalRecovery,
    /// Result of applying the journal to the image.
    pub disk: netram_block::DiskRecovery,
}

/// Status of a volume.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Size, stages, memory, counters, and the image's failure.
    pub disk: DiskStatus,
    /// Members, positions, and the log's failure.
    pub journal: JournalStatus,
    /// Status of the data lender, if there is one.
    pub data_lender: Option<DataLenderStatus>,
    /// Progress of a restore: number of blocks examined, and of all blocks. `None`: no block is missing.
    pub restoring: Option<(u64, u64)>,
}

impl Volume {
    /// Creates a volume of `bytes` zeros at `path`, with a journal of `journal_bytes`.
    ///
    /// # Errors
    ///
    /// [`VolumeCreateError`] if the path exists, the size is invalid, or a file cannot be written.
    pub fn create(path: &Path, bytes: u64, journal_bytes: u64) -> Result<VolumeId, VolumeCreateError> {
        VolumePaths::at(path).create(bytes, journal_bytes)
    }

    /// Opens the volume at `path` with its settings file and the environment.
    ///
    /// # Errors
    ///
    /// [`VolumeOpenError`], as [`Volume::open_with`], or for invalid settings.
    pub fn open(path: &Path) -> Result<(Volume, VolumeRecovery), VolumeOpenError> {
        let settings = VolumePaths::at(path).settings()?;
        Volume::open_with(path, &settings)
    }

    /// Opens and recovers the volume at `path`: first its journal, then the image from it.
    ///
    /// # Errors
    ///
    /// [`VolumeOpenError`] if a file is missing or damaged, the journal cannot be recovered, the directory
    /// may be out of date, or a data lender must be reached and is not.
    pub fn open_with(
        path: &Path,
        settings: &VolumeSettings,
    ) -> Result<(Volume, VolumeRecovery), VolumeOpenError> {
        let place = VolumePaths::at(path);
        std::fs::metadata(place.superblock()).map_err(|source| VolumeOpenError::File {
            path: place.superblock(),
            source,
        })?;
        let mut config = settings.journal_config()?;
        let (window_bytes, security) = (config.window_bytes, settings.data_security(&config.security)?);
        // The journal's lock is also the volume's: from here on no other process has the files.
        let (journal, recovered) = match takeover::admit(&place, settings)? {
            Some(standing) => takeover::recover(&place, standing, config)?,
            None => {
                config.newest = check::before_opening(&place, settings, &security)?;
                Journal::open(&place.journal(), config)?
            }
        };
        announce(&place, &journal, settings.data_lender.as_ref(), &security)?;
        let files = place.open_modelled_files(settings.data_lender.is_some(), settings.modelled.files)?;
        let options = DiskOptions {
            policy: settings.policy,
            flush: settings.flush,
            ..DiskOptions::new(journal.id())
        };
        let wrong = |cause| VolumeOpenError::Volume {
            path: place.root().to_path_buf(),
            cause,
        };
        let feeding = feeder_parts(
            &place,
            &journal,
            &files.superblock,
            settings,
            security,
            window_bytes,
        )?;
        let copy = feeding
            .as_ref()
            .map_or_else(CopySource::none, |parts| parts.copy.clone());
        let disk = Disk::open_beside(journal, files, options, copy).map_err(wrong)?;
        let recovered = VolumeRecovery {
            journal: recovered,
            disk: disk.recovered(),
        };
        log_unverified(&place, recovered.disk.unverified);
        let disk = Arc::new(disk);
        let (thread, times) = start(&disk).map_err(VolumeOpenError::Thread)?;
        let mut volume = Volume {
            paths: place,
            disk: Some(disk),
            thread: Some(thread),
            opened: Instant::now(),
            recovered: recovered.clone(),
            feeder: None,
            copier: None,
            times,
        };
        let disk = volume.disk.as_ref().expect("the disk is taken only when closing");
        let feeder = feeding.map(|parts| ReplicaFeeder::start(disk, parts)).transpose();
        let copier = disk
            .is_restoring()
            .then(|| RestoreCopier::start(disk))
            .transpose();
        // From here on an error drops the volume, which closes it.
        volume.feeder = feeder.map_err(VolumeOpenError::Thread)?;
        volume.copier = copier.map_err(VolumeOpenError::Thread)?;
        Ok((volume, recovered))
    }

    /// Checks whether the volume at `path` would open, or could be taken over. Changes nothing, here or
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// [`VolumeOpenError`] if the settings are invalid or the check itself fails.
    pub fn check(path: &Path, settings: &VolumeSettings) -> Result<VolumeCheck, VolumeOpenError> {
        check::check(path, settings)
    }

    /// Inspects the volume at `path` without opening it.
    ///
    /// # Errors
    ///
    /// [`VolumeInspectError`] if a file cannot be read.
    pub fn inspect(path: &Path) -> Result<VolumeInspection, VolumeInspectError> {
        VolumePaths::at(path).inspect()
    }

    /// Deletes the volume at `path`. Returns the lenders that have not freed its `windows`: they are away and
    /// will be told later, or hold records that the volume's log lacks.
    ///
    /// # Errors
    ///
    /// [`VolumeDeleteError`] if there is no volume, it is open or not closed, or a file cannot be removed.
    pub fn delete(path: &Path, windows: WindowRelease) -> Result<Vec<UnfreedWindow>, VolumeDeleteError> {
        VolumePaths::at(path).delete(windows)
    }

    /// Paths of the volume's files.
    pub fn paths(&self) -> &VolumePaths {
        &self.paths
    }

    /// Result of recovery at the opening.
    pub fn recovered(&self) -> &VolumeRecovery {
        &self.recovered
    }

    /// Time since the volume was opened.
    pub fn uptime(&self) -> Duration {
        self.opened.elapsed()
    }

    pub(crate) fn disk(&self) -> &VolumeDisk {
        self.disk.as_deref().expect("the disk is taken only when closing")
    }

    pub(crate) fn times(&self) -> &DeviceTimes {
        &self.times
    }

    /// The journal, for its members and waits.
    pub fn journal(&self) -> &Journal {
        self.disk().log()
    }

    /// Current status. Allocates, so not for the write path.
    pub fn status(&self) -> VolumeStatus {
        VolumeStatus {
            disk: self.disk().status(),
            journal: self.journal().status(),
            data_lender: self.data_lender(),
            restoring: self
                .copier
                .as_ref()
                .and_then(|copier| copier.progress(self.disk())),
        }
    }

    /// Makes the open volume larger.
    ///
    /// # Errors
    ///
    /// [`DiskGrowError`] if the size is invalid or smaller, or a file failed.
    pub fn grow(&self, bytes: u64) -> Result<(), DiskGrowError> {
        self.disk().grow(bytes)
    }

    /// Status of the data lender; `None` without one, or before it is known.
    pub fn data_lender(&self) -> Option<DataLenderStatus> {
        self.feeder.as_ref().and_then(ReplicaFeeder::status)
    }

    /// Waits until the data lender's copy has everything, so that blocks can be fetched from it. Waits as
    /// long as there is progress, and `longest` without any. `false`: it does not have everything, or there
    /// is no data lender.
    pub fn wait_for_data_lender(&self, longest: Duration) -> bool {
        let (mut since, mut left) = (Instant::now(), u64::MAX);
        while self.feeder.is_some() && since.elapsed() < longest {
            let status = self.data_lender().unwrap_or_default();
            let resync = (status.resync.as_ref())
                .map_or(0, |resync| resync.total_blocks.saturating_sub(resync.done_blocks));
            let now = status
                .lag_bytes
                .saturating_add(resync)
                .saturating_add(status.dirty_blocks);
            if status.connected && status.in_service && now == 0 {
                return true;
            }
            if status.connected && now < left {
                (since, left) = (Instant::now(), now);
            }
            std::thread::sleep(TICK / 10);
        }
        false
    }

    /// Starts a resync of the data lender's copy; with `whole` even of one that has more than this volume, or
    /// another history. `false`: there is no data lender.
    pub fn resync(&self, whole: bool) -> bool {
        if let Some(feeder) = &self.feeder {
            feeder.resync(whole);
        }
        self.feeder.is_some()
    }

    /// Lets the data lender have the key that [`VolumePaths::rekey`] has wrapped. `false`: there is no data
    /// lender.
    pub fn rekeyed(&self) -> bool {
        if let Some(feeder) = &self.feeder {
            feeder.rekeyed();
        }
        self.feeder.is_some()
    }

    /// Compares `count` blocks of the image from `first` with their checksums, and repairs those that the
    /// data lender has.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if a file failed. Bad blocks are no error.
    pub fn scrub_part(&self, first: u64, count: u64) -> Result<ScrubStep, DeviceError> {
        self.disk().scrub(first, count)
    }

    /// Applies every record written before the call to the image.
    ///
    /// # Errors
    ///
    /// [`netram_block::ApplyError`] if a file or the journal failed.
    pub fn drain(&self) -> Result<(), netram_block::ApplyError> {
        self.disk().drain()
    }

    /// Applies every record to the image and releases the members, so that the next opening needs no lender.
    /// Dropping the volume does the same but only logs an error.
    ///
    /// # Errors
    ///
    /// [`VolumeCloseError`] if the image could not be brought up to date. No write is lost.
    pub fn close(mut self) -> Result<(), VolumeCloseError> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<(), VolumeCloseError> {
        let Some(disk) = self.disk.take() else {
            return Ok(());
        };
        if let Some(copier) = self.copier.take() {
            copier.stop();
        }
        disk.stop();
        let panicked = self.thread.take().is_some_and(|thread| thread.join().is_err());
        // Applying would panic here again, maybe during unwinding. The next opening applies the records from
        // the journal.
        let drained = match panicked {
            true => Err(VolumeCloseError::Panicked),
            false => disk.drain().map_err(VolumeCloseError::Apply),
        };
        if let Some(feeder) = self.feeder.take() {
            match drained {
                Ok(()) => feeder.close(last_view(disk.log())),
                Err(_) => drop(feeder),
            }
        }
        let disk = Arc::try_unwrap(disk).expect("all other references belonged to threads that have ended");
        let closed = disk.into_log().close().map_err(VolumeCloseError::Journal);
        drained.and(closed)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!(%error, "volume not closed cleanly; the next opening will recover it");
        }
    }
}

/// A restored volume serves only after its data lender has accepted its first view.
fn announce(
    place: &VolumePaths,
    journal: &Journal,
    data_lender: Option<&NetAddress>,
    security: &Security,
) -> Result<(), VolumeOpenError> {
    let path = place.unannounced();
    let Some(restored_from) = (place.unannounced_to()).map_err(|source| VolumeOpenError::File {
        path: path.clone(),
        source,
    })?
    else {
        return Ok(());
    };
    let superblock = VolumeSuperblock::read(&place.open_files(false)?.superblock);
    let superblock = superblock.map_err(|cause| VolumeOpenError::Volume {
        path: place.root().to_path_buf(),
        cause,
    })?;
    let (follow, owner) = follow_request(place, journal, &superblock, security)?;
    let lender = DataLenderEndpoint {
        // The data lender may have another address by now.
        address: data_lender.unwrap_or(&restored_from).clone(),
        security: security.clone(),
    };
    announce_first_view(&lender, (&follow, &owner), &journal.newest_view()).map_err(|why| {
        VolumeOpenError::Unannounced {
            path: place.root().to_path_buf(),
            why: Box::new(why),
        }
    })?;
    place
        .mark_announced()
        .map_err(|source| VolumeOpenError::File { path, source })
}

fn log_unverified(place: &VolumePaths, blocks: u64) {
    if blocks > 0 {
        tracing::warn!(
            path = %place.root().display(), blocks,
            "the journal has only a part of some blocks, and the rest of them does not match its checksum: \
             torn by the crash, which is normal, or damaged before it; they were accepted as found (docs/design/volumes.md, Stages)"
        );
    }
}

/// Parts of the feeder, if the settings name a data lender.
fn feeder_parts(
    place: &VolumePaths,
    journal: &Journal,
    superblock: &VolumeFile,
    settings: &VolumeSettings,
    security: Security,
    window_bytes: u64,
) -> Result<Option<FeederParts>, VolumeOpenError> {
    let Some(address) = settings.data_lender.clone() else {
        return Ok(None);
    };
    let superblock = VolumeSuperblock::read(superblock).map_err(|cause| VolumeOpenError::Volume {
        path: place.root().to_path_buf(),
        cause,
    })?;
    let follow = follow_request(place, journal, &superblock, &security)?;
    if follow.0.wrapped_key.is_empty() {
        tracing::warn!(
            path = %place.root().display(), lender = %address,
            "the volume has no recovery key, so the data lender's copy cannot be restored on another machine; run `netram volume rekey`"
        );
    }
    let parts = FeederParts::new(address, security, follow, window_bytes, &journal.newest_view());
    Ok(Some(FeederParts {
        timing: settings.data_lender_timing,
        place: Some(place.clone()),
        ..parts
    }))
}

/// The volume's description for its data lender, and the owner that proves itself there.
fn follow_request(
    place: &VolumePaths,
    journal: &Journal,
    superblock: &VolumeSuperblock,
    security: &Security,
) -> Result<(FollowRequest, JournalOwner), VolumeOpenError> {
    let failed = |path| move |source| VolumeOpenError::File { path, source };
    let key = DataKey::load(&place.data_key()).map_err(failed(place.data_key()))?;
    let wrapped = place.wrapped_key().map_err(failed(place.recovery()))?;
    let owner = JournalOwner::of(journal.id(), &key).expect("the journal was opened with its key");
    let follow = FollowRequest {
        identity: ReplicaIdentity {
            volume: superblock.volume.0,
            journal: journal.id(),
        },
        bytes: superblock.bytes,
        capacity: journal.state().capacity,
        wrapped_key: wrapped_for(security, wrapped, &key),
        key: key.as_bytes().to_vec(),
    };
    Ok((follow, owner))
}

/// The view that closing the journal will store.
fn last_view(journal: &Journal) -> View {
    let view = journal.newest_view();
    View {
        version: view.version + 1,
        counting: false,
        clean: None,
        base: journal.state().stable,
        members: Vec::new(),
        ..view
    }
}

/// Announces that the applier thread has ended, even after a panic, so that no writer waits for it.
struct Leave<'a>(&'a VolumeDisk);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.applier_ended();
    }
}

/// Starts the thread that applies stages. Returns it, and the times that it notes.
fn start(disk: &Arc<VolumeDisk>) -> std::io::Result<(JoinHandle<()>, Arc<DeviceTimes>)> {
    let times = Arc::<DeviceTimes>::default();
    let (theirs, noted) = (Arc::clone(disk), Arc::clone(&times));
    disk.applier_started();
    let started = std::thread::Builder::new()
        .name("netram-stage".to_owned())
        .spawn(move || run(&theirs, &noted));
    if started.is_err() {
        disk.applier_ended();
    }
    Ok((started?, times))
}

/// Applies stages as they close, and updates their age. After a failure it retries when another stage closes,
/// or after `RETRY`.
fn run(disk: &VolumeDisk, times: &DeviceTimes) {
    let _leave = Leave(disk);
    let origin = Instant::now();
    let mut failed = false;
    while disk.wait_for_work(if failed { RETRY } else { TICK }) == ApplierTask::Look {
        disk.tick(Time(
            u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX),
        ));
        let ended = loop {
            let begun = Instant::now();
            match disk.apply_step() {
                Ok(ApplyProgress::Idle) => break Ok(()),
                Ok(_) => times.apply.record(begun.elapsed()),
                Err(error) => break Err(error),
            }
        };
        match ended {
            // Logged once, not at every attempt; the status shows it all the time.
            Err(error) if !failed => tracing::error!(%error, "cannot apply writes to the image; retrying"),
            Ok(()) if failed => tracing::info!("applying writes to the image works again"),
            _ => (),
        }
        failed = ended.is_err();
    }
}

#[cfg(test)]
mod tests {
    use netram_block::BlockDevice;

    use super::*;

    /// A volume whose thread has panicked, with a write that is only in the journal.
    fn panicked(path: &Path) -> Volume {
        let (mut volume, _) = Volume::open_with(path, &VolumeSettings::default()).unwrap();
        volume.disk().stop();
        volume.thread.take().unwrap().join().unwrap();
        volume.thread = Some(std::thread::spawn(|| panic!("as a broken invariant would")));
        volume.wait(volume.write(0, &[7; 4096]).unwrap()).unwrap();
        volume
    }

    /// Closing panicked too, inside a drop, which aborted a program that was unwinding.
    #[test]
    fn a_panicked_thread_makes_closing_fail_and_loses_no_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("volume");
        Volume::create(&path, 1 << 20, 1 << 20).unwrap();
        let refused = panicked(&path).close().unwrap_err();
        assert!(matches!(refused, VolumeCloseError::Panicked), "{refused}");
        drop(panicked(&path));
        let (volume, recovered) = Volume::open_with(&path, &VolumeSettings::default()).unwrap();
        assert_eq!(recovered.disk.records, 1);
        let mut bytes = [0; 4096];
        volume.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
        volume.close().unwrap();
    }
}
