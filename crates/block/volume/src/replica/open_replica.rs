//! An open copy of a volume at its data lender: its thread, its sessions, its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netram_block::{Disk, DiskOptions, StagePolicy, VolumeId};
use netram_block_machine::message::FollowRequest;
use netram_block_machine::{Replica, ReplicaCondition, ReplicaHeader};
use netram_clients::ClientAccount;
use netram_journal::seal::{DataKey, KEY_BYTES};
use netram_journal::{JournalFollower, JournalInit, LogBlocks};
use netram_lender::{DataSession, ReplicaReport};
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::port::RecordLog;
use netram_proto::wire::{ChainPoint as Chain, Frame, FrameKind, RefusalReason};

use super::failure::{ReplicaError, refusal};
use super::header_file::ReplicaHeaderFile;
use super::quota::{Quota, note_payer, usage};
use super::replica_host::{ReplicaHostInner, ReplicaMailbox, lock, refuse, report_of};
use super::scrub::{ReplicaScrub, ScrubSchedule};
use super::session::{ReplicaSession, ReplicaSessionEnd};
use super::stage_thread::StageThread;
use crate::error::VolumeCreateError;
use crate::file::VolumeFile;
use crate::paths::VolumePaths;

/// Interval at which a thread looks for work without being woken.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How long a copy stays open after its last session.
const IDLE_CLOSE_DELAY: Duration = Duration::from_secs(3);
/// Interval at which the time of the last contact is made durable.
const CONTACT_INTERVAL: Duration = Duration::from_secs(30);
/// How long applying stages may fail before the client is told and continues without the copy; the log
/// bridges shorter failures.
const FAILING_MAX: Duration = Duration::from_secs(2);

/// Number of stages that fit in a copy's log.
const STAGES_IN_LOG: u64 = 8;

pub(super) type ReplicaDisk = Disk<JournalFollower, VolumeFile>;

/// An open copy.
pub(super) struct OpenReplica {
    pub(super) root: PathBuf,
    pub(super) disk: Arc<ReplicaDisk>,
    pub(super) header: ReplicaHeaderFile,
    pub(super) replica: Replica,
    pub(super) scrub: ReplicaScrub,
    /// The client that the copy is kept for: the last that it followed.
    client: Option<Arc<ClientAccount>>,
    quota: Arc<Quota>,
    schedule: Arc<ScrubSchedule>,
    stages: StageThread,
    /// When applying stages began to fail.
    failing: Option<Instant>,
    contact_stored: Instant,
    /// When the client's last message arrived, if it was since the copy was opened. A session that only
    /// claims the copy does not count.
    heard_at: Option<Instant>,
}

/// A copy's thread, from the first session to some time after the last.
pub(super) fn run(shared: &ReplicaHostInner, post: &ReplicaMailbox) {
    let mut first = post.arrivals.recv().ok();
    while let Some(session) = first {
        // A panic ends the session. The copy is closed as by a crash, which it survives, and reopened for the
        // next session. If the thread ended here, the copy would stay unavailable until the lender is
        // restarted.
        let served = catch_unwind(AssertUnwindSafe(|| serve(shared, post, session)));
        if served.is_err() {
            let root = shared.root(post.volume);
            tracing::error!(replica = %root.display(), "a copy's thread panicked because of a bug; the copy is reopened for the next session");
            *lock(&post.report) = ReplicaReport {
                error: Some("its thread panicked because of a bug; see the lender's log".to_owned()),
                ..report_of(&root)
            };
        }
        first = match shared.stopping() {
            true => None,
            false => shared.leave(post),
        };
    }
}

/// Opens the copy, serves its client, and closes it.
fn serve(shared: &ReplicaHostInner, post: &ReplicaMailbox, session: DataSession) {
    let root = shared.root(post.volume);
    let mut host = match OpenReplica::open(shared, &root, &session) {
        Ok(Some(host)) => host,
        Ok(None) => return refuse(session, refusal(RefusalReason::NoReplica, 0)),
        Err(error) => {
            tracing::error!(replica = %root.display(), %error, "cannot open a copy");
            *lock(&post.report) = ReplicaReport {
                error: Some(error.to_string()),
                ..report_of(&root)
            };
            return refuse(session, error.refusal());
        }
    };
    *lock(&post.report) = host.report(None);
    let ended = host.attend(shared, post, session);
    if let Err(error) = &ended {
        tracing::error!(replica = %root.display(), %error, "a copy failed; it is reopened for the next session");
    }
    // Records that are not in the image are in the log.
    drop(host);
    *lock(&post.report) = ReplicaReport {
        error: ended.err().map(|error| error.to_string()),
        ..report_of(&root)
    };
}

/// Opens the copy's volume. If its log is damaged below what was durable, the header is updated first.
fn open_volume(root: &Path, standing: &mut ReplicaHeaderFile) -> Result<Arc<ReplicaDisk>, ReplicaError> {
    let log = JournalFollower::open(&root.join("journal"))?;
    if let Some(lost) = log.damaged_below() {
        let end = log.end().lsn;
        let what = format!("its log ends at LSN {end}, but was durable up to {lost}");
        mark_inconsistent(root, standing, &what)?;
    }
    let files = VolumePaths::at(root).open_files(false)?;
    // Several stages fit its log, or it would be full before the first one ended.
    let policy = StagePolicy::default();
    let policy = StagePolicy {
        bytes: policy.bytes.min(log.state().capacity / STAGES_IN_LOG),
        ..policy
    };
    let options = DiskOptions {
        policy,
        restarted: !matches!(standing.newest().condition, ReplicaCondition::Following),
        ..DiskOptions::new(log.id())
    };
    Ok(Arc::new(Disk::open(log, files, options)?))
}

/// Marks the copy as unable to replace its volume: its client must send all blocks that differ.
fn mark_inconsistent(
    root: &Path,
    standing: &mut ReplicaHeaderFile,
    why: &dyn std::fmt::Display,
) -> Result<(), ReplicaError> {
    tracing::error!(replica = %root.display(), %why, "a copy is damaged; its client must send it again");
    let newest = standing.newest();
    if matches!(
        newest.condition,
        ReplicaCondition::Following | ReplicaCondition::Inconsistent { .. }
    ) {
        standing.store(ReplicaHeader {
            condition: ReplicaCondition::Inconsistent { since: None },
            closed: None,
            ..newest
        })?;
    }
    Ok(())
}

impl OpenReplica {
    /// Opens the session's copy, or creates it if the session may. `None`: there is no copy.
    fn open(
        shared: &ReplicaHostInner,
        root: &Path,
        session: &DataSession,
    ) -> Result<Option<OpenReplica>, ReplicaError> {
        // If the lookup fails, the file may exist: opening it reports why it cannot be read (rule 17).
        if !ReplicaHeaderFile::path(root).try_exists().unwrap_or(true) {
            let follow = Frame::parse(&session.first)
                .ok()
                .filter(|frame| frame.header.kind == FrameKind::Follow)
                .and_then(|frame| FollowRequest::decode(&frame).ok());
            match follow {
                Some(follow) => {
                    let room = (follow.bytes, follow.capacity);
                    let client = session.permit.account();
                    let make = || create(root, &follow);
                    shared
                        .quota
                        .admit(root, room, client.map(AsRef::as_ref), make)??;
                }
                None => return Ok(None),
            }
        }
        let mut standing = ReplicaHeaderFile::open(root)?;
        let disk = match open_volume(root, &mut standing) {
            Err(ReplicaError::Volume(error @ netram_block::DiskOpenError::JournalBehind { .. })) => {
                // The log has lost records that the image has: the copy is no consistent volume until a
                // resync.
                mark_inconsistent(root, &mut standing, &error)?;
                open_volume(root, &mut standing)?
            }
            opened => opened?,
        };
        let (log, newest) = (disk.log(), standing.newest());
        let (view, capacity, end) = (log.view(), log.state().capacity, log.end());
        let mut replica = Replica::new(newest, view, capacity, log.head().lsn, end);
        replica.on_applied(log.head().lsn, disk.applied());
        let stages = StageThread::start(&disk).map_err(ReplicaError::Thread)?;
        Ok(Some(OpenReplica {
            root: root.to_path_buf(),
            disk,
            header: standing,
            replica,
            scrub: ReplicaScrub::open(root),
            client: None,
            quota: Arc::clone(&shared.quota),
            schedule: Arc::clone(&shared.schedule),
            stages,
            failing: None,
            contact_stored: Instant::now(),
            heard_at: None,
        }))
    }

    /// Serves sessions until there has been none for a while.
    fn attend(
        &mut self,
        shared: &ReplicaHostInner,
        post: &ReplicaMailbox,
        first: DataSession,
    ) -> Result<(), ReplicaError> {
        let publish = |report| *lock(&post.report) = report;
        let mut session: Option<ReplicaSession> = None;
        let mut arrived = Some(first);
        let mut alone_since = Instant::now();
        loop {
            if let Some(newcomer) = arrived.take() {
                match ReplicaSession::greet(newcomer, self, &post.waker, publish) {
                    Ok(Some(newcomer)) => session = Some(newcomer),
                    Ok(None) | Err(ReplicaSessionEnd::Session) => (),
                    Err(ReplicaSessionEnd::Replica(error)) => return Err(error),
                }
            }
            if shared.stopping() {
                return Ok(());
            }
            #[cfg(test)]
            shared.panic_if_planted();
            post.waker.drain().map_err(ReplicaError::Thread)?;
            self.check_stages()?;
            if let Some(there) = &mut session {
                alone_since = Instant::now();
                let turned = there.turn(self, shared.silence_max, TICK, publish);
                if self.replica.has_client() && self.replica.view().has_served() {
                    self.heard_at = Some(there.heard_at());
                }
                match turned {
                    Ok(()) => {
                        if let Err(error) = self.note_contact().and_then(|()| self.scrub_on()) {
                            there.fail(&error);
                            return Err(error);
                        }
                    }
                    Err(ReplicaSessionEnd::Session) => {
                        self.replica.on_session_ended();
                        self.store_contact()?;
                        session = None;
                    }
                    Err(ReplicaSessionEnd::Replica(error)) => {
                        there.fail(&error);
                        return Err(error);
                    }
                }
            } else if alone_since.elapsed() > IDLE_CLOSE_DELAY {
                return Ok(());
            }
            arrived = match session {
                Some(_) => post.arrivals.try_recv(),
                None => {
                    publish(self.report(None));
                    post.arrivals.recv_timeout(TICK).map_err(|_| TryRecvError::Empty)
                }
            }
            .ok();
        }
    }

    /// Notes whose client the copy follows from now on.
    pub(super) fn follow_for(&mut self, client: Option<&Arc<ClientAccount>>) {
        self.client = client.cloned();
        self.client
            .iter()
            .for_each(|client| note_payer(&self.root, client));
    }

    /// Reads new records of the log into stages. Returns the LSN below which they can be read here.
    pub(super) fn follow(&self) -> Result<Lsn, ReplicaError> {
        Ok(self.disk.follow()?)
    }

    /// Makes the volume larger, if the quota has room.
    pub(super) fn grow(&self, bytes: u64) -> Result<(), ReplicaError> {
        let room = (bytes, self.disk.log().state().capacity);
        let client = self.client.as_deref();
        let grown = self
            .quota
            .admit(&self.root, room, client, || self.disk.grow(bytes))?;
        Ok(grown?)
    }

    /// Checks that stages are applied to the image. Otherwise the log would fill up without any report.
    fn check_stages(&mut self) -> Result<(), ReplicaError> {
        if self.stages.has_ended() {
            return Err(ReplicaError::Panicked);
        }
        match self.disk.status().failure {
            None => self.failing = None,
            Some(error) => {
                let since = *self.failing.get_or_insert_with(Instant::now);
                if since.elapsed() > FAILING_MAX {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Scrubs a little of the image, while there is a client that can repair it.
    fn scrub_on(&mut self) -> Result<(), ReplicaError> {
        if self.replica.replica_header().condition == ReplicaCondition::Following && self.replica.has_client()
        {
            self.scrub.step(&self.disk, &self.schedule)?;
        }
        Ok(())
    }

    /// Makes the time of the last contact durable at intervals. Shown to people only.
    fn note_contact(&mut self) -> Result<(), ReplicaError> {
        match self.contact_stored.elapsed() > CONTACT_INTERVAL {
            true => self.store_contact(),
            false => Ok(()),
        }
    }

    fn store_contact(&mut self) -> Result<(), ReplicaError> {
        self.contact_stored = Instant::now();
        let Some(heard) = self.heard_at else { return Ok(()) };
        let standing = ReplicaHeader {
            contact: now_seconds().saturating_sub(heard.elapsed().as_secs()),
            ..*self.replica.replica_header()
        };
        self.header.store(standing)?;
        // The client need not be told.
        let _ = self.replica.on_stored(standing);
        Ok(())
    }

    /// Milliseconds since the client's last message, by this machine's clocks.
    pub(super) fn heard_ms(&self) -> u64 {
        match self.heard_at {
            Some(heard) => u64::try_from(heard.elapsed().as_millis()).unwrap_or(u64::MAX),
            None => now_seconds()
                .saturating_sub(self.replica.replica_header().contact)
                .saturating_mul(1000),
        }
    }

    pub(super) fn report(&self, heard: Option<Instant>) -> ReplicaReport {
        let (failure, usage) = (self.disk.status().failure, usage(&self.root));
        ReplicaReport {
            volume: VolumeId(self.replica.replica_header().identity.volume).to_string(),
            path: self.root.display().to_string(),
            state: self.replica.replica_header().condition.to_string(),
            error: failure.map(|error| error.to_string()),
            bytes: self.disk.geometry().bytes,
            epoch: Some(self.replica.view().epoch.0),
            flushed: Some(self.replica.flushed().lsn.0),
            applied: Some(self.disk.applied().0),
            connected: heard.is_some(),
            last_contact_age_ms: heard.map(|heard| heard.elapsed().as_millis() as u64),
            promised_bytes: usage.promised,
            taken_bytes: usage.taken,
            scrub: self.scrub.report(),
        }
    }
}

/// Creates an empty copy for a client that wants it to follow.
fn create(root: &Path, follow: &FollowRequest) -> Result<(), ReplicaError> {
    let key = match <[u8; KEY_BYTES]>::try_from(&follow.key[..]) {
        Ok(key) => DataKey::from_bytes(key),
        // Records that are not encrypted need no key.
        Err(_) => DataKey::generate(),
    };
    let parts = JournalInit {
        journal: follow.identity.journal,
        log_bytes: follow.capacity,
        key,
        view: View::first(follow.identity.journal),
        start: Chain::default(),
        // The client names the capacity, and need not ever write that much.
        blocks: LogBlocks::AsNeeded,
    };
    let standing = ReplicaHeader {
        contact: now_seconds(),
        ..ReplicaHeader::new(follow.identity)
    };
    let place = VolumePaths::at(root);
    let volume = VolumeId(follow.identity.volume);
    place.create_of(volume, follow.bytes, &parts, |place| {
        let made = ReplicaHeaderFile::create(place.root(), &standing);
        made.map_err(|source| VolumeCreateError::Io {
            path: ReplicaHeaderFile::path(root),
            source,
        })
    })?;
    tracing::info!(replica = %root.display(), bytes = follow.bytes, "created a copy");
    Ok(())
}

fn now_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
