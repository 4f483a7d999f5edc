//! One copy of a volume at its data lender, open: its thread, its sessions, its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netram_block::{Disk, Options, StagePolicy, VolumeId};
use netram_block_machine::message::Follow;
use netram_block_machine::{Condition, Replica, Standing};
use netram_journal::seal::{DataKey, KEY_BYTES};
use netram_journal::{Follower, Parts};
use netram_lender::{DataSession, ReplicaReport};
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::port::Log;
use netram_proto::wire::{Frame, FrameKind, Link as Chain, Refusal};

use super::failure::{HostError, refusal};
use super::keeper::{Post, Shared, lock, refuse, report_of};
use super::quota::{Quota, usage};
use super::scrub::{Schedule, Scrub};
use super::session::{Ended, Session};
use super::stages::Stages;
use super::standing::StandingFile;
use crate::error::CreateError;
use crate::file::VolumeFile;
use crate::place::Place;

/// How often a thread looks up by itself.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How long a copy stays open after its last session.
const LINGER: Duration = Duration::from_secs(3);
/// How often the time of the last contact is made durable.
const CONTACT_EVERY: Duration = Duration::from_secs(30);
/// How long the image may fail before the client is told, and goes on without: the log bridges shorter failures.
const FAILING_MAX: Duration = Duration::from_secs(2);

/// Stages that fit a copy's log.
const STAGES_IN_LOG: u64 = 8;

pub(super) type ReplicaDisk = Disk<Follower, VolumeFile>;

/// A copy, open.
pub(super) struct Host {
    pub(super) root: PathBuf,
    pub(super) disk: Arc<ReplicaDisk>,
    pub(super) standing: StandingFile,
    pub(super) replica: Replica,
    pub(super) scrub: Scrub,
    quota: Arc<Quota>,
    schedule: Arc<Schedule>,
    stages: Stages,
    /// Since when stages do not get into the image.
    failing: Option<Instant>,
    contact_stored: Instant,
    /// When its client was last heard, if that was since the copy was opened. Whoever only claims it is no client.
    heard: Option<Instant>,
}

/// A copy's thread, from the first session to some time after the last.
pub(super) fn run(shared: &Shared, post: &Post) {
    let mut first = post.arrivals.recv().ok();
    while let Some(session) = first {
        // A broken invariant of ours ends the session. The copy is closed as by a crash, which it survives, and opened anew for
        // the next: a thread that ended here would leave the copy shut until the lender is started anew.
        let served = catch_unwind(AssertUnwindSafe(|| serve(shared, post, session)));
        if served.is_err() {
            let root = shared.root(post.volume);
            tracing::error!(replica = %root.display(), "a copy's thread panicked, a defect; the copy is opened anew for the next session");
            *lock(&post.report) = ReplicaReport {
                error: Some("its thread panicked, a defect, whose message the lender's log has".to_owned()),
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
fn serve(shared: &Shared, post: &Post, session: DataSession) {
    let root = shared.root(post.volume);
    let mut host = match Host::open(shared, &root, &session) {
        Ok(Some(host)) => host,
        Ok(None) => return refuse(session, refusal(Refusal::NoReplica, 0)),
        Err(error) => {
            tracing::error!(replica = %root.display(), %error, "a copy cannot be used");
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
        tracing::error!(replica = %root.display(), %error, "a copy failed; it is opened anew for the next session");
    }
    // What is not in the image is in the log.
    drop(host);
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
    fn open(shared: &Shared, root: &Path, session: &DataSession) -> Result<Option<Host>, HostError> {
        // What cannot be looked up may be there: whoever opens it says why it cannot (rule 17).
        if !StandingFile::path(root).try_exists().unwrap_or(true) {
            let follow = Frame::parse(&session.first)
                .ok()
                .filter(|frame| frame.header.kind == FrameKind::Follow)
                .and_then(|frame| Follow::decode(frame.body).ok());
            match follow {
                Some(follow) => {
                    let room = (follow.bytes, follow.capacity);
                    shared.quota.admit(root, room, || create(root, &follow))??;
                }
                None => return Ok(None),
            }
        }
        let mut standing = StandingFile::open(root)?;
        let disk = match open_volume(root, &mut standing) {
            Err(HostError::Volume(error @ netram_block::OpenError::JournalBehind { .. })) => {
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
        let stages = Stages::start(&disk).map_err(HostError::Thread)?;
        Ok(Some(Host {
            root: root.to_path_buf(),
            disk,
            standing,
            replica,
            scrub: Scrub::open(root),
            quota: Arc::clone(&shared.quota),
            schedule: Arc::clone(&shared.schedule),
            stages,
            failing: None,
            contact_stored: Instant::now(),
            heard: None,
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
            #[cfg(test)]
            shared.panic_if_planted();
            post.waker.drain().map_err(HostError::Thread)?;
            self.check_stages()?;
            if let Some(there) = &mut session {
                alone_since = Instant::now();
                let turned = there.turn(self, shared.silence, TICK);
                if self.replica.is_heard() && self.replica.view().has_served() {
                    self.heard = Some(there.heard());
                }
                match turned {
                    Ok(()) => {
                        if let Err(error) = self.note_contact().and_then(|()| self.scrub_on()) {
                            there.fail(&error);
                            return Err(error);
                        }
                    }
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

    /// Makes the volume larger, if there is room for it.
    pub(super) fn grow(&self, bytes: u64) -> Result<(), HostError> {
        let room = (bytes, self.disk.log().state().capacity);
        let grown = self.quota.admit(&self.root, room, || self.disk.grow(bytes))?;
        Ok(grown?)
    }

    /// Stages must get into the image: a log that only fills up would one day take no more, and nobody would say why.
    fn check_stages(&mut self) -> Result<(), HostError> {
        if self.stages.has_ended() {
            return Err(HostError::Panicked);
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

    /// Looks at a little of the image, while there is somebody to mend what it finds.
    fn scrub_on(&mut self) -> Result<(), HostError> {
        if self.replica.standing().condition == Condition::Following && self.replica.is_heard() {
            self.scrub.step(&self.disk, &self.schedule)?;
        }
        Ok(())
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
        let Some(heard) = self.heard else { return Ok(()) };
        let standing = Standing {
            contact: now_seconds().saturating_sub(heard.elapsed().as_secs()),
            ..*self.replica.standing()
        };
        self.standing.store(standing)?;
        // The client need not know.
        let _ = self.replica.on_stored(standing);
        Ok(())
    }

    /// How long ago the client was heard, by this machine's clocks.
    pub(super) fn heard_ms(&self) -> u64 {
        match self.heard {
            Some(heard) => u64::try_from(heard.elapsed().as_millis()).unwrap_or(u64::MAX),
            None => now_seconds()
                .saturating_sub(self.replica.standing().contact)
                .saturating_mul(1000),
        }
    }

    fn report(&self, heard: Option<Instant>) -> ReplicaReport {
        let (failure, usage) = (self.disk.status().failure, usage(&self.root));
        ReplicaReport {
            volume: VolumeId(self.replica.standing().identity.volume).to_string(),
            path: self.root.display().to_string(),
            state: self.replica.standing().condition.to_string(),
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
