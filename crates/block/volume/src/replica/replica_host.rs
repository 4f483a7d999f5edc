//! The data lender: keeps copies of other machines' volumes in a directory, each in a directory of its own.
//!
//! Each copy with a session has a thread, which opens it. The thread closes it a while after its client has
//! gone, so that other programs of this machine can open it, for example for a takeover.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netram_block::{VolumeId, VolumeSuperblock};
use netram_block_machine::ReplicaHeader;
use netram_block_machine::message::FollowRequest;
use netram_lender::{CopiesReport, DataService, DataSession, ReplicaReport};
use netram_process::files::{self, PRIVATE};
use netram_proto::id::Lsn;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::wire::{ByteReader, Flag, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::Waker;
use rustix::fs::{FlockOperation, flock};

use super::failure::refusal;
use super::header_file::{ReplicaHeaderFile, ReplicaHeaderFileError};
use super::quota::{Quota, usage};
use super::scrub::ScrubSchedule;
use super::{open_replica, scrub};
use crate::file::VolumeFile;
use crate::paths::{VolumePaths, unfinished_in};

/// Maximum number of open copies. Each has a thread or two, and the memory of its stages.
pub(super) const REPLICAS_OPEN_MAX: usize = 64;
/// Maximum number of sessions that wait for one copy's thread: its client's, which may have reconnected, and
/// inquiries.
const ARRIVALS_MAX: usize = 4;
/// Maximum number of sessions that wait for a list of all copies. Each holds one of the lender's connections.
const INQUIRIES_MAX: usize = 16;
/// Default interval between scrubs of a copy; a second loss of the same block within a week is unlikely.
const SCRUB_INTERVAL: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a client may be silent before it counts as stopped, cut off or dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Failure to keep copies in a directory.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaHostError {
    /// The directory cannot be used.
    #[error("cannot keep copies of volumes in {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// Another lender uses the directory.
    #[error("{0} is in use by another lender; give each its own --data directory")]
    InUse(PathBuf),
}

/// Limits of a [`ReplicaHost`].
#[derive(Clone, Copy, Debug)]
pub struct ReplicaHostLimits {
    /// Maximum bytes of all copies at full size; `None`: no limit.
    pub quota: Option<u64>,
    /// Interval between scrubs of a copy; `None`: never.
    pub scrub_interval: Option<Duration>,
    /// Silence after which a client is disconnected; a live one sends several messages a second.
    pub silence_max: Duration,
}

impl Default for ReplicaHostLimits {
    fn default() -> ReplicaHostLimits {
        ReplicaHostLimits {
            quota: None,
            scrub_interval: Some(SCRUB_INTERVAL),
            silence_max: SILENCE_MAX,
        }
    }
}

/// Keeps copies of volumes in a directory.
pub struct ReplicaHost {
    pub(super) shared: Arc<ReplicaHostInner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Sessions that ask for a list of all copies, to the thread that answers them; `None` once it stops.
    inquiries: Mutex<Option<SyncSender<DataSession>>>,
}

/// State shared by the host and its threads.
pub(super) struct ReplicaHostInner {
    pub(super) quota: Arc<Quota>,
    pub(super) schedule: Arc<ScrubSchedule>,
    open: Mutex<BTreeMap<u128, Open>>,
    pub(super) silence_max: Duration,
    stopping: AtomicBool,
    /// Makes the next turn of a copy's thread panic; for tests.
    #[cfg(test)]
    pub(super) planted: AtomicBool,
    /// Lock that gives the directory to this process.
    _lock: File,
}

/// A copy that has a thread.
struct Open {
    arrivals: SyncSender<DataSession>,
    waker: Arc<Waker>,
    report: Arc<Mutex<ReplicaReport>>,
}

/// State of a copy's thread.
pub(super) struct ReplicaMailbox {
    pub(super) volume: u128,
    pub(super) arrivals: Receiver<DataSession>,
    pub(super) waker: Arc<Waker>,
    pub(super) report: Arc<Mutex<ReplicaReport>>,
}

impl ReplicaHost {
    /// Keeps copies in `directory`, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// As [`ReplicaHost::start_with`].
    pub fn start(directory: &Path) -> Result<ReplicaHost, ReplicaHostError> {
        ReplicaHost::start_with(directory, ReplicaHostLimits::default())
    }

    /// Keeps copies in `directory`, within `limits`.
    ///
    /// # Errors
    ///
    /// [`ReplicaHostError`] if the directory cannot be used, or another lender uses it.
    pub fn start_with(directory: &Path, limits: ReplicaHostLimits) -> Result<ReplicaHost, ReplicaHostError> {
        let failed = |source| ReplicaHostError::Directory {
            path: directory.to_path_buf(),
            source,
        };
        fs::create_dir_all(directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(failed)?;
        let lock = files::open_or_create(&directory.join(".lock"), PRIVATE)
            .map_err(|refusal| failed(refusal.into()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ReplicaHostError::InUse(directory));
        }
        // No other process creates copies here, so leftovers of interrupted creations only take room.
        for (path, _) in unfinished_in(&directory) {
            tracing::info!(path = %path.display(), "removing the remains of an interrupted creation of a copy");
            fs::remove_dir_all(&path).map_err(|source| ReplicaHostError::Directory { path, source })?;
        }
        let shared = ReplicaHostInner {
            quota: Arc::new(Quota::new(directory, limits.quota)),
            schedule: Arc::new(ScrubSchedule::new(limits.scrub_interval)),
            open: Mutex::default(),
            silence_max: limits.silence_max,
            stopping: AtomicBool::new(false),
            #[cfg(test)]
            planted: AtomicBool::new(false),
            _lock: lock,
        };
        let shared = Arc::new(shared);
        let (inquiries, lister) = start_lister(&shared).map_err(failed)?;
        let keeper = ReplicaHost {
            shared,
            threads: Mutex::new(vec![lister]),
            inquiries: Mutex::new(Some(inquiries)),
        };
        let quota = &keeper.shared.quota;
        let (kept, directory) = (quota.copies().len(), quota.directory.display());
        tracing::info!(%directory, replicas = kept, "ready to keep copies of volumes");
        Ok(keeper)
    }

    /// Ends all sessions and closes the copies. Their clients continue without them.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        for open in self.shared.open().values() {
            open.wake();
        }
        drop(lock(&self.inquiries).take());
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // The panic message was printed by the thread; the copy is recovered when it is next opened.
            let _ = thread.join();
        }
    }

    /// Passes a session that asks for all copies to the thread that lists them.
    fn list_for(&self, session: DataSession) {
        let inquiries = lock(&self.inquiries);
        let Some(inquiries) = inquiries.as_ref() else {
            return;
        };
        if let Err(TrySendError::Full(session)) = inquiries.try_send(session) {
            tracing::warn!(
                peer = session.link.peer(),
                "client refused: others already wait for a list of all copies"
            );
        }
    }

    /// Passes a session to its volume's thread, which is started if there is none.
    fn hand_over(&self, volume: u128, session: DataSession) -> io::Result<()> {
        let mut open = self.shared.open();
        if let Some(there) = open.get(&volume) {
            // The thread removes itself from the table before it stops receiving.
            match there.arrivals.try_send(session) {
                Ok(()) => there.wake(),
                // Each waiting session holds one of the lender's connections, and a client whose copy is on a
                // hanging disk reconnects again and again: members would get no connection.
                Err(TrySendError::Full(session)) => {
                    tracing::warn!(
                        peer = session.link.peer(),
                        "client refused: other sessions already wait for this copy's disk"
                    );
                }
                Err(TrySendError::Disconnected(_)) => (),
            }
            return Ok(());
        }
        if open.len() >= REPLICAS_OPEN_MAX {
            tracing::warn!(
                peer = session.link.peer(),
                "client refused: {REPLICAS_OPEN_MAX} copies are open already"
            );
            refuse(session, refusal(RefusalReason::TooManyJournals, 0));
            return Ok(());
        }
        let (sender, arrivals) = sync_channel(ARRIVALS_MAX);
        let (waker, report) = (Arc::new(Waker::new()?), Arc::new(Mutex::default()));
        let there = Open {
            arrivals: sender,
            waker: Arc::clone(&waker),
            report: Arc::clone(&report),
        };
        let post = ReplicaMailbox {
            volume,
            arrivals,
            waker,
            report,
        };
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("netram-data".to_owned())
            .spawn(move || open_replica::run(&shared, &post))?;
        // The send cannot fail: the thread has the receiver.
        let _ = there.arrivals.try_send(session);
        open.insert(volume, there);
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }
}

impl Drop for ReplicaHost {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Open {
    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake a copy's thread; it will look by itself");
        }
    }
}

impl ReplicaHostInner {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u128, Open>> {
        lock(&self.open)
    }

    pub(super) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Ends a thread that has closed its copy, unless a session has arrived in the meantime.
    pub(super) fn leave(&self, post: &ReplicaMailbox) -> Option<DataSession> {
        let mut open = self.open();
        let arrived = post.arrivals.try_recv().ok();
        if arrived.is_none() {
            open.remove(&post.volume);
        }
        arrived
    }

    /// Directory of a volume's copy.
    pub(super) fn root(&self, volume: u128) -> PathBuf {
        self.quota.directory.join(VolumeId(volume).to_string())
    }

    #[cfg(test)]
    pub(super) fn panic_if_planted(&self) {
        assert!(!self.planted.swap(false, Ordering::AcqRel), "planted by a test");
    }

    /// Reports on all copies. Reads their directories and files, without the lock that new sessions need.
    fn reports(&self) -> Vec<ReplicaReport> {
        let open: BTreeMap<u128, Arc<Mutex<ReplicaReport>>> = self
            .open()
            .iter()
            .map(|(volume, open)| (*volume, Arc::clone(&open.report)))
            .collect();
        let mut reports: Vec<ReplicaReport> = Vec::new();
        for root in self.quota.copies() {
            let mut report = report_of(&root);
            let volume = u128::from_str_radix(&report.volume, 16);
            if let Some(there) = volume.ok().and_then(|volume| open.get(&volume)) {
                let known = lock(there);
                if !known.volume.is_empty() {
                    report = known.clone();
                }
            }
            reports.push(report);
        }
        reports
    }
}

impl DataService for ReplicaHost {
    fn take(&self, session: DataSession) {
        if self.shared.stopping() {
            return;
        }
        let asked = match Frame::parse(&session.first) {
            Ok(frame) => inquiry_scope(&frame),
            Err(_) => None,
        };
        match asked {
            Some(InquiryScope::All) => self.list_for(session),
            Some(InquiryScope::Volume(volume)) => {
                if let Err(error) = self.hand_over(volume, session) {
                    tracing::error!(%error, "cannot start a copy's thread");
                }
            }
            None => refuse(session, refusal(RefusalReason::Malformed, 0)),
        }
    }

    fn replicas(&self) -> Vec<ReplicaReport> {
        self.shared.reports()
    }

    fn copies(&self) -> CopiesReport {
        self.shared.quota.report()
    }
}

/// Starts the thread that lists all copies for sessions that ask. It may wait for the disk, which the thread
/// that accepts the sessions may not.
fn start_lister(shared: &Arc<ReplicaHostInner>) -> io::Result<(SyncSender<DataSession>, JoinHandle<()>)> {
    let (sender, inquiries) = sync_channel::<DataSession>(INQUIRIES_MAX);
    let shared = Arc::clone(shared);
    let list = move || {
        while let Ok(session) = inquiries.recv() {
            answer_all(session, &shared.reports());
        }
    };
    let thread = std::thread::Builder::new().name("netram-copies".to_owned());
    Ok((sender, thread.spawn(list)?))
}

/// Subject of a session's first frame.
enum InquiryScope {
    All,
    Volume(u128),
}

fn inquiry_scope(frame: &Frame<'_>) -> Option<InquiryScope> {
    match frame.header.kind {
        FrameKind::Follow => FollowRequest::decode(frame)
            .ok()
            .map(|follow| InquiryScope::Volume(follow.identity.volume)),
        FrameKind::Inquire if frame.body.is_empty() => Some(InquiryScope::All),
        FrameKind::Inquire => ByteReader::new(frame.body).u128().ok().map(InquiryScope::Volume),
        _ => None,
    }
}

/// Lists as many copies as fit in a frame, and sends their number.
fn answer_all(mut session: DataSession, reports: &[ReplicaReport]) {
    let header = FrameHeader {
        lsn: Lsn(reports.len() as u64),
        ..FrameHeader::new(FrameKind::Replica)
    };
    assert_eq!(header.flags & Flag::KNOWN, 0);
    let body = encode_reports(reports);
    // A peer that does not read gets no answer.
    let _ = session.link.send(&[&header.encode(body.len()), &body]);
}

/// The first reports, as many as fit in a frame, as JSON.
fn encode_reports(reports: &[ReplicaReport]) -> Vec<u8> {
    let mut body = vec![b'['];
    for report in reports {
        // Strings and plain numbers always have a JSON form.
        let json = serde_json::to_vec(report).unwrap_or_default();
        let comma = usize::from(body.len() > 1);
        if body.len() + comma + json.len() + 1 > FRAME_BODY_BYTES_MAX {
            break;
        }
        body.extend(std::iter::repeat_n(b',', comma));
        body.extend(json);
    }
    body.push(b']');
    body
}

/// Refuses and ends the session.
pub(super) fn refuse(mut session: DataSession, header: FrameHeader) {
    let _ = session.link.send(&[&header.encode(0)]);
}

/// Report from the files of a copy that is not open here.
pub(super) fn report_of(root: &Path) -> ReplicaReport {
    let name = root.file_name().map(|name| name.to_string_lossy().into_owned());
    let usage = usage(root);
    let mut report = ReplicaReport {
        volume: name.unwrap_or_default(),
        path: root.display().to_string(),
        state: "failed".to_owned(),
        promised_bytes: usage.promised,
        taken_bytes: usage.taken,
        scrub: scrub::report_of(root),
        ..ReplicaReport::default()
    };
    match look(root) {
        Ok((standing, superblock)) => {
            report.state = standing.condition.to_string();
            report.bytes = superblock.bytes;
            report.applied = Some(superblock.applied.0);
        }
        Err(error) => report.error = Some(error),
    }
    report
}

fn look(root: &Path) -> Result<(ReplicaHeader, VolumeSuperblock), String> {
    let standing = match ReplicaHeaderFile::look(root) {
        Ok(Some(standing)) => standing,
        Ok(None) => return Err(ReplicaHeaderFileError::Foreign.to_string()),
        Err(error) => return Err(error.to_string()),
    };
    let file =
        VolumeFile::open(&VolumePaths::at(root).superblock(), false).map_err(|error| error.to_string())?;
    let superblock = VolumeSuperblock::read(&file).map_err(|error| error.to_string())?;
    Ok((standing, superblock))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If one report did not fit, half of them were left out without notice.
    #[test]
    fn as_many_copies_as_fit_in_a_frame_are_listed() {
        let report = |number: usize| ReplicaReport {
            volume: format!("{number:032x}"),
            path: "/".repeat(1000),
            ..ReplicaReport::default()
        };
        let named = |count: usize| {
            let reports: Vec<ReplicaReport> = (0..count).map(report).collect();
            let body = encode_reports(&reports);
            assert!(body.len() <= FRAME_BODY_BYTES_MAX);
            let named: Vec<ReplicaReport> = serde_json::from_slice(&body).unwrap();
            assert_eq!(named, reports[..named.len()]);
            named.len()
        };
        assert_eq!((named(0), named(1), named(20)), (0, 1, 20));
        let fit = named(10_000);
        assert!(fit > 20 && fit < 10_000, "{fit}");
        assert_eq!((named(fit), named(fit + 1)), (fit, fit));
    }
}
