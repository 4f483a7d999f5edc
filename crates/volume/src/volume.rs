//! An open volume: its journal, its files, and the thread that brings stages into the image.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_client::{Journal, JournalStatus};
use netram_disk::{
    Device, DeviceError, Disk, DiskStatus, Files, Geometry, GrowError, Options, Pending, Progress, VolumeId,
    Work,
};
use netram_proto::time::Time;

use crate::error::{CloseError, CreateError, DeleteError, InspectError, OpenError};
use crate::file::VolumeFile;
use crate::place::{Inspected, Place};
use crate::settings::VolumeSettings;

/// How often the thread looks at the time: a stage's age is right to within that much.
const TICK: Duration = Duration::from_millis(100);
/// How long it waits after a failure: every attempt writes a stage from its beginning.
const RETRY: Duration = Duration::from_secs(1);

type VolumeDisk = Disk<Journal, VolumeFile>;

/// An open volume. Closed when dropped.
#[derive(Debug)]
pub struct Volume {
    place: Place,
    /// `None` only while closing.
    disk: Option<Arc<VolumeDisk>>,
    thread: Option<JoinHandle<()>>,
    opened: Instant,
    recovered: Recovered,
}

/// What opening found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// What the journal's recovery found.
    pub journal: netram_client::Recovered,
    /// What of it was applied to the image.
    pub disk: netram_disk::Recovered,
}

/// How a volume stands.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Size, stages, memory, counters, the image's failure.
    pub disk: DiskStatus,
    /// Members, positions, the log's failure.
    pub journal: JournalStatus,
}

impl Volume {
    /// Makes a volume of `bytes` zeros at `path`, with a journal of `journal_bytes`.
    pub fn create(path: &Path, bytes: u64, journal_bytes: u64) -> Result<VolumeId, CreateError> {
        Place::at(path).create(bytes, journal_bytes)
    }

    /// Opens the volume at `path` with the settings found there and in the environment.
    pub fn open(path: &Path) -> Result<(Volume, Recovered), OpenError> {
        let settings = Place::at(path).settings()?;
        Volume::open_with(path, &settings)
    }

    /// Recovers the volume at `path`: its journal first, then the image from it.
    pub fn open_with(path: &Path, settings: &VolumeSettings) -> Result<(Volume, Recovered), OpenError> {
        let place = Place::at(path);
        if let Err(source) = std::fs::metadata(place.superblock()) {
            let path = place.superblock();
            return Err(OpenError::File { path, source });
        }
        // The journal's lock is the volume's: from here on no other process has the files.
        let (journal, recovered) = Journal::open(&place.journal(), settings.journal.journal_config()?)?;
        let open = |path: std::path::PathBuf| {
            VolumeFile::open(&path, true).map_err(|source| OpenError::File { path, source })
        };
        let files = Files {
            image: open(place.image())?,
            sums: open(place.sums())?,
            superblock: open(place.superblock())?,
            dirty: None,
        };
        let options = Options {
            policy: settings.policy,
            flush: settings.flush,
            ..Options::new(journal.id())
        };
        let disk = Disk::open(journal, files, options).map_err(|cause| OpenError::Volume {
            path: place.root().to_path_buf(),
            cause,
        })?;
        let recovered = Recovered {
            journal: recovered,
            disk: disk.recovered(),
        };
        if recovered.disk.unverified > 0 {
            let blocks = recovered.disk.unverified;
            tracing::warn!(
                path = %place.root().display(), blocks,
                "the crash left blocks of which only a part is in the journal and the rest does not match its checksum: \
                 torn by the crash, as is usual, or damaged before it; they were taken as they are (docs/disk.md, Stages)"
            );
        }
        let disk = Arc::new(disk);
        let thread = start(&disk).map_err(OpenError::Thread)?;
        let volume = Volume {
            place,
            disk: Some(disk),
            thread: Some(thread),
            opened: Instant::now(),
            recovered: recovered.clone(),
        };
        Ok((volume, recovered))
    }

    /// Looks at the volume at `path` without opening it.
    pub fn inspect(path: &Path) -> Result<Inspected, InspectError> {
        Place::at(path).inspect()
    }

    /// Removes the volume at `path`. Refuses while it is open.
    pub fn delete(path: &Path) -> Result<(), DeleteError> {
        Place::at(path).delete()
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What opening found.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// How long it has been open.
    pub fn uptime(&self) -> Duration {
        self.opened.elapsed()
    }

    fn disk(&self) -> &VolumeDisk {
        self.disk.as_deref().expect("only closing takes it")
    }

    /// The journal: its members, and waiting for them.
    pub fn journal(&self) -> &Journal {
        self.disk().log()
    }

    /// How the volume stands. Allocates; not for the way of a write.
    pub fn status(&self) -> VolumeStatus {
        VolumeStatus {
            disk: self.disk().status(),
            journal: self.journal().status(),
        }
    }

    /// Makes the volume larger while it is open.
    pub fn grow(&self, bytes: u64) -> Result<(), GrowError> {
        self.disk().grow(bytes)
    }

    /// Brings everything written before into the image.
    pub fn drain(&self) -> Result<(), netram_disk::ApplyError> {
        self.disk().drain()
    }

    /// Brings everything into the image, and releases the members: the next opening needs nobody. Dropping the volume
    /// does the same and tells nobody of an error.
    pub fn close(mut self) -> Result<(), CloseError> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<(), CloseError> {
        let Some(disk) = self.disk.take() else {
            return Ok(());
        };
        disk.stop();
        let panicked = self.thread.take().is_some_and(|thread| thread.join().is_err());
        // What panicked there would panic here again, maybe while unwinding. The next opening applies it from the journal.
        let drained = match panicked {
            true => Err(CloseError::Panicked),
            false => disk.drain().map_err(CloseError::Apply),
        };
        let disk = Arc::try_unwrap(disk).expect("the thread had the only other one");
        let closed = disk.into_log().close().map_err(CloseError::Journal);
        drained.and(closed)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!(%error, "the volume was not closed cleanly; the next opening will recover it");
        }
    }
}

/// Says that the thread is gone however it goes, so that no writer waits for it.
struct Leave<'a>(&'a VolumeDisk);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn start(disk: &Arc<VolumeDisk>) -> std::io::Result<JoinHandle<()>> {
    let theirs = Arc::clone(disk);
    disk.attend();
    let started = std::thread::Builder::new()
        .name("netram-stage".to_owned())
        .spawn(move || run(&theirs));
    if started.is_err() {
        disk.leave();
    }
    started
}

/// Applies stages as they close, and tells the time. After a failure it tries again, when another closes or unasked.
fn run(disk: &VolumeDisk) {
    let _leave = Leave(disk);
    let origin = Instant::now();
    let mut failed = false;
    while disk.wait_for_work(if failed { RETRY } else { TICK }) == Work::Look {
        disk.tick(Time(
            u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX),
        ));
        let ended = loop {
            match disk.apply_step() {
                Ok(Progress::Idle) => break Ok(()),
                Ok(_) => (),
                Err(error) => break Err(error),
            }
        };
        match ended {
            // Once, not with every attempt: the status has it all the while.
            Err(error) if !failed => tracing::error!(%error, "a stage did not get into the image; trying on"),
            Ok(()) if failed => tracing::info!("the image takes stages again"),
            _ => (),
        }
        failed = ended.is_err();
    }
}

impl Device for Volume {
    fn geometry(&self) -> Geometry {
        self.disk().geometry()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.disk().read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<Pending, DeviceError> {
        self.disk().write(offset, bytes)
    }

    fn zero(&self, offset: u64, length: u64) -> Result<Pending, DeviceError> {
        self.disk().zero(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<Pending, DeviceError> {
        self.disk().zero(offset, length)
    }

    fn wait(&self, pending: Pending) -> Result<(), DeviceError> {
        self.disk().wait(pending)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.disk().flush()
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        self.disk().extents(offset, length, each)
    }
}

#[cfg(test)]
mod tests {
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

    /// Closing panicked too, and did so in a drop: a program that was unwinding was aborted.
    #[test]
    fn a_thread_that_panicked_is_an_error_of_closing_and_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        Volume::create(&path, 1 << 20, 1 << 20).unwrap();
        let refused = panicked(&path).close().unwrap_err();
        assert!(matches!(refused, CloseError::Panicked), "{refused}");
        drop(panicked(&path));
        let (volume, recovered) = Volume::open_with(&path, &VolumeSettings::default()).unwrap();
        assert_eq!(recovered.disk.records, 1);
        let mut bytes = [0; 4096];
        volume.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
        volume.close().unwrap();
    }
}
