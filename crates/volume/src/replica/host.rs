//! One copy of a volume at its data lender, open: its thread, its sessions, its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netram_client::seal::{DataKey, KEY_BYTES};
use netram_client::{Follower, Parts};
use netram_disk::{
    ApplyError, DeviceError, Disk, FollowError, GrowError, Options, Progress, StagePolicy, VolumeId, Work,
};
use netram_lender::{DataSession, ReplicaReport};
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::port::{IoError, Log};
use netram_proto::replica::message::Follow;
use netram_proto::replica::{Condition, Replica, Standing};
use netram_proto::time::Time;
use netram_proto::wire::{Frame, FrameKind, Link as Chain, Refusal};

use super::keeper::{Post, Shared, lock, refuse, report_of};
use super::session::{Ended, Session};
use super::standing::{StandingFile, StandingFileError};
use crate::error::CreateError;
use crate::file::VolumeFile;
use crate::place::Place;

/// How often a thread looks up by itself.
const TICK: Duration = Duration::from_millis(100);
/// How long a copy stays open after its last session.
const LINGER: Duration = Duration::from_secs(3);
/// How often the time of the last contact is made durable.
const CONTACT_EVERY: Duration = Duration::from_secs(30);
/// How long the stage thread waits after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Stages that fit a copy's log.
const STAGES_IN_LOG: u64 = 8;

pub(super) type ReplicaDisk = Disk<Follower, VolumeFile>;

/// Why a copy cannot be used, now or any more. It is closed, and opened anew for the next session.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    /// Its journal cannot be opened: another process has it, or it is damaged.
    #[error("{0}")]
    Journal(#[from] netram_client::OpenError),
    /// It could not be made.
    #[error("{0}")]
    Create(#[from] CreateError),
    /// A file cannot be opened.
    #[error("{0}")]
    Open(#[from] crate::error::OpenError),
    /// Its volume cannot be opened.
    #[error("{0}")]
    Volume(#[from] netram_disk::OpenError),
    /// Its standing is not known.
    #[error("{0}")]
    Standing(#[from] StandingFileError),
    /// A file is missing.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// The disk failed.
    #[error("{0}")]
    Disk(IoError),
    /// The image failed.
    #[error("{0}")]
    Image(DeviceError),
    /// A stage does not get into the image.
    #[error("{0}")]
    Apply(#[from] ApplyError),
    /// The log could not be read, or has what is none of the volume's.
    #[error("{0}")]
    Follow(#[from] FollowError),
    /// It could not be made larger.
    #[error("{0}")]
    Grow(#[from] GrowError),
    /// The system has no threads left.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
}

impl From<IoError> for HostError {
    fn from(error: IoError) -> HostError {
        HostError::Disk(error)
    }
}

impl From<DeviceError> for HostError {
    fn from(error: DeviceError) -> HostError {
        HostError::Image(error)
    }
}

impl HostError {
    /// What the client is told: the error's number.
    pub(super) fn number(&self) -> u64 {
        let io = |errno: i32| u64::try_from(errno).unwrap_or(5);
        match self {
            HostError::Disk(error) | HostError::Image(DeviceError::Io(error)) => io(error.errno),
            HostError::File(_, error) | HostError::Thread(error) => io(error.raw_os_error().unwrap_or(5)),
            HostError::Create(CreateError::Io { source, .. })
            | HostError::Create(CreateError::Journal(netram_client::CreateError::Io { source, .. })) => {
                io(source.raw_os_error().unwrap_or(28))
            }
            // EBUSY: another process of that machine has it.
            HostError::Journal(netram_client::OpenError::InUse { .. }) => 16,
            _ => 5,
        }
    }
}

/// A copy, open.
pub(super) struct Host {
    pub(super) root: PathBuf,
    pub(super) disk: Arc<ReplicaDisk>,
    pub(super) standing: StandingFile,
    pub(super) replica: Replica,
    stages: Option<JoinHandle<()>>,
    contact_stored: Instant,
}

/// A copy's thread, from the first session to some time after the last.
pub(super) fn run(shared: &Shared, post: &Post) {
    let mut first = post.arrivals.recv().ok();
    while let Some(session) = first {
        serve(shared, post, session);
        first = match shared.stopping() {
            true => None,
            false => shared.leave(post),
        };
    }
}

/// Opens the copy, serves its client, and closes it.
fn serve(shared: &Shared, post: &Post, session: DataSession) {
    let root = shared.root(post.volume);
    let mut host = match Host::open(&root, &session) {
        Ok(Some(host)) => host,
        Ok(None) => return refuse(session, Refusal::NoReplica, 0),
        Err(error) => {
            tracing::error!(replica = %root.display(), %error, "a copy cannot be used");
            *lock(&post.report) = ReplicaReport {
                error: Some(error.to_string()),
                ..report_of(&root)
            };
            return refuse(session, Refusal::DiskFailed, error.number());
        }
    };
    *lock(&post.report) = host.report(None);
    let ended = host.attend(shared, post, session);
    if let Err(error) = &ended {
        tracing::error!(replica = %root.display(), %error, "a copy failed; it is opened anew for the next session");
    }
    host.close();
    *lock(&post.report) = ReplicaReport {
        error: ended.err().map(|error| error.to_string()),
        ..report_of(&root)
    };
}

/// The copy's volume. Where its log is damaged below what had been durable, the standing says so first.
fn open_volume(root: &Path, standing: &mut StandingFile) -> Result<Arc<ReplicaDisk>, HostError> {
    let log = Follower::open(&root.join("journal"))?;
    if let Some(lost) = log.lost() {
        let end = log.end().lsn;
        let what = format!("its log ends at LSN {end}, and was durable up to {lost}");
        spoil(root, standing, &what)?;
    }
    let files = Place::at(root).open_files(false)?;
    // Several stages fit its log, or it would be full before the first one ended.
    let policy = StagePolicy::default();
    let policy = StagePolicy {
        bytes: policy.bytes.min(log.state().capacity / STAGES_IN_LOG),
        ..policy
    };
    let options = Options {
        policy,
        restarted: !matches!(standing.newest().condition, Condition::Following),
        ..Options::new(log.id())
    };
    Ok(Arc::new(Disk::open(log, files, options)?))
}

/// The copy cannot stand in for its volume any more, whatever it said: its client sends all that differs.
fn spoil(root: &Path, standing: &mut StandingFile, why: &dyn std::fmt::Display) -> Result<(), HostError> {
    tracing::error!(replica = %root.display(), %why, "a copy is damaged; its client must send it anew");
    let newest = standing.newest();
    if matches!(
        newest.condition,
        Condition::Following | Condition::Inconsistent { .. }
    ) {
        standing.store(Standing {
            condition: Condition::Inconsistent { since: None },
            closed: None,
            ..newest
        })?;
    }
    Ok(())
}

impl Host {
    /// Opens the copy that a session is about, or makes it if the session may. `None`: there is none.
    fn open(root: &Path, session: &DataSession) -> Result<Option<Host>, HostError> {
        if !StandingFile::path(root).exists() {
            let follow = Frame::parse(&session.first)
                .ok()
                .filter(|frame| frame.header.kind == FrameKind::Follow)
                .and_then(|frame| Follow::decode(frame.body).ok());
            match follow {
                Some(follow) => create(root, &follow)?,
                None => return Ok(None),
            }
        }
        let mut standing = StandingFile::open(root)?;
        let disk = match open_volume(root, &mut standing) {
            Err(HostError::Volume(error @ netram_disk::OpenError::JournalBehind { .. })) => {
                // The log has lost what the image has: no longer a volume, and a resync makes it one again.
                spoil(root, &mut standing, &error)?;
                open_volume(root, &mut standing)?
            }
            opened => opened?,
        };
        let (log, newest) = (disk.log(), standing.newest());
        let (view, capacity, end) = (log.view(), log.state().capacity, log.end());
        let mut replica = Replica::new(newest, view, capacity, log.head().lsn, end);
        replica.on_applied(log.head().lsn, disk.applied());
        let stages = start_stages(&disk).map_err(HostError::Thread)?;
        Ok(Some(Host {
            root: root.to_path_buf(),
            disk,
            standing,
            replica,
            stages: Some(stages),
            contact_stored: Instant::now(),
        }))
    }

    /// Serves sessions until there has been none for a while.
    fn attend(&mut self, shared: &Shared, post: &Post, first: DataSession) -> Result<(), HostError> {
        let mut session: Option<Session> = None;
        let mut arrived = Some(first);
        let mut alone_since = Instant::now();
        loop {
            if let Some(newcomer) = arrived.take() {
                match Session::greet(newcomer, self, &post.waker) {
                    Ok(Some(newcomer)) => session = Some(newcomer),
                    Ok(None) | Err(Ended::Session) => (),
                    Err(Ended::Host(error)) => return Err(error),
                }
            }
            if shared.stopping() {
                return Ok(());
            }
            post.waker.drain().map_err(HostError::Thread)?;
            if let Some(there) = &mut session {
                alone_since = Instant::now();
                match there.turn(self, TICK) {
                    Ok(()) => self.note_contact()?,
                    Err(Ended::Session) => {
                        self.replica.on_session_ended();
                        self.store_contact()?;
                        session = None;
                    }
                    Err(Ended::Host(error)) => {
                        there.fail(&error);
                        return Err(error);
                    }
                }
            } else if alone_since.elapsed() > LINGER {
                return Ok(());
            }
            let heard = session.as_ref().map(Session::heard);
            *lock(&post.report) = self.report(heard);
            arrived = match session {
                Some(_) => post.arrivals.try_recv(),
                None => post.arrivals.recv_timeout(TICK).map_err(|_| TryRecvError::Empty),
            }
            .ok();
        }
    }

    /// Takes in what the log has newly; returns what can be read here.
    pub(super) fn follow(&self) -> Result<Lsn, HostError> {
        Ok(self.disk.follow()?)
    }

    /// Makes the time of the last contact durable now and then, for people.
    fn note_contact(&mut self) -> Result<(), HostError> {
        match self.contact_stored.elapsed() > CONTACT_EVERY {
            true => self.store_contact(),
            false => Ok(()),
        }
    }

    fn store_contact(&mut self) -> Result<(), HostError> {
        self.contact_stored = Instant::now();
        let standing = Standing {
            contact: now_seconds(),
            ..*self.replica.standing()
        };
        self.standing.store(standing)?;
        // The client need not know.
        let _ = self.replica.on_stored(standing);
        Ok(())
    }

    fn report(&self, heard: Option<Instant>) -> ReplicaReport {
        let failure = self.disk.status().failure;
        ReplicaReport {
            volume: VolumeId(self.replica.standing().identity.volume).to_string(),
            path: self.root.display().to_string(),
            state: self.replica.standing().condition.to_string(),
            error: failure.map(|error| error.to_string()),
            bytes: self.disk.geometry().bytes,
            epoch: self.replica.view().epoch.0,
            flushed: self.replica.flushed().lsn.0,
            applied: self.disk.applied().0,
            connected: heard.is_some(),
            last_contact_age_ms: heard.map(|heard| heard.elapsed().as_millis() as u64),
        }
    }

    /// Lets the files go. What is not in the image is in the log.
    fn close(mut self) {
        self.disk.stop();
        if let Some(stages) = self.stages.take() {
            // A panic was printed where it happened.
            let _ = stages.join();
        }
    }
}

/// Makes an empty copy for a client that wants to be followed.
fn create(root: &Path, follow: &Follow) -> Result<(), HostError> {
    let key = match <[u8; KEY_BYTES]>::try_from(&follow.key[..]) {
        Ok(key) => DataKey::from_bytes(key),
        // Records that are not sealed need none.
        Err(_) => DataKey::generate(),
    };
    let parts = Parts {
        journal: follow.identity.journal,
        log_bytes: follow.capacity,
        key,
        view: View::first(follow.identity.journal),
        start: Chain::default(),
    };
    let standing = Standing {
        contact: now_seconds(),
        ..Standing::new(follow.identity)
    };
    let place = Place::at(root);
    let volume = VolumeId(follow.identity.volume);
    place.create_of(volume, follow.bytes, &parts, |place| {
        let made = StandingFile::create(place.root(), &standing);
        made.map_err(|source| CreateError::Io {
            path: StandingFile::path(root),
            source,
        })
    })?;
    tracing::info!(replica = %root.display(), bytes = follow.bytes, "a new copy");
    Ok(())
}

fn now_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The thread that brings stages into the copy's image.
fn start_stages(disk: &Arc<ReplicaDisk>) -> std::io::Result<JoinHandle<()>> {
    let theirs = Arc::clone(disk);
    disk.attend();
    let started = std::thread::Builder::new()
        .name("netram-stage".to_owned())
        .spawn(move || run_stages(&theirs));
    if started.is_err() {
        disk.leave();
    }
    started
}

fn run_stages(disk: &ReplicaDisk) {
    let origin = Instant::now();
    let mut failed = false;
    while disk.wait_for_work(if failed { RETRY } else { TICK }) == Work::Look {
        disk.tick(Time(
            u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX),
        ));
        let ended = apply(disk);
        if let (Err(error), false) = (&ended, failed) {
            tracing::error!(%error, "a stage did not get into a copy's image; trying on");
        }
        failed = ended.is_err();
    }
    disk.leave();
}

fn apply(disk: &ReplicaDisk) -> Result<(), String> {
    loop {
        let progress = disk.apply_step().map_err(|error| error.to_string())?;
        // What had no room before may have now.
        if !matches!(progress, Progress::Working) {
            disk.follow().map_err(|error| error.to_string())?;
        }
        if progress == Progress::Idle {
            return Ok(());
        }
    }
}
