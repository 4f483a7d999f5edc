//! One session of a copy's client: its frames, and the work for them.
//!
//! A turn takes all frames that have arrived, writes and syncs the log once for them, and answers.

use std::time::{Duration, Instant};

use netram_block::{ApplyError, BLOCK_BYTES, DeviceError, DiskGrowError, FetchError};
use netram_block_machine::message::{self, BlockDigest, FollowRequest};
use netram_block_machine::{Replica, ReplicaAction, ReplicaDescription, ReplicaMessage};
use netram_journal::durable;
use netram_lender::{DataPermit, DataSession, ReplicaReport};
use netram_proto::limit::FRAME_HEADER_BYTES;
use netram_proto::owner::is_owned;
use netram_proto::port::{IoError, RecordLog};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::Waker;

use super::failure::{ReplicaError, refusal};
use super::link::{ReplicaLink, ReplicaLinkError};
use super::open_replica::OpenReplica;
use crate::paths::VolumePaths;

/// Maximum bytes of a turn before the log is synced.
const TURN_BYTES: usize = 1 << 20;
/// How long a fetch waits for the stages to have the records before it.
const FETCH_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of damaged blocks reported in one message.
const BAD_MAX: usize = 1024;

/// Reason why a session, or the whole copy, cannot continue.
pub(super) enum ReplicaSessionEnd {
    /// The client disconnected or was refused.
    Session,
    /// The copy failed.
    Replica(ReplicaError),
}

impl From<ReplicaLinkError> for ReplicaSessionEnd {
    fn from(error: ReplicaLinkError) -> ReplicaSessionEnd {
        tracing::info!(%error, "a copy's client disconnected");
        ReplicaSessionEnd::Session
    }
}

impl From<ReplicaError> for ReplicaSessionEnd {
    fn from(error: ReplicaError) -> ReplicaSessionEnd {
        ReplicaSessionEnd::Replica(error)
    }
}

impl From<IoError> for ReplicaSessionEnd {
    fn from(error: IoError) -> ReplicaSessionEnd {
        ReplicaSessionEnd::Replica(error.into())
    }
}

impl From<ApplyError> for ReplicaSessionEnd {
    fn from(error: ApplyError) -> ReplicaSessionEnd {
        ReplicaSessionEnd::Replica(error.into())
    }
}

/// A session with the copy's client.
pub(super) struct ReplicaSession {
    wire: ReplicaLink,
    heard_at: Instant,
    permit: DataPermit,
}

impl ReplicaSession {
    /// Handles a session's first frame. `None`: it was refused, or was only an inquiry.
    pub(super) fn greet(
        session: DataSession,
        host: &mut OpenReplica,
        waker: &Waker,
        publish: impl FnOnce(ReplicaReport),
    ) -> Result<Option<ReplicaSession>, ReplicaSessionEnd> {
        let mut greeted = ReplicaSession {
            wire: ReplicaLink::new(session.link)?,
            heard_at: Instant::now(),
            permit: session.permit,
        };
        let frame = Frame::parse(&session.first).map_err(ReplicaLinkError::Frame)?;
        let (kind, peer) = (frame.header.kind, greeted.wire.peer().to_owned());
        let journal = host.replica.replica_header().identity.journal;
        let is_stranger = is_owned(journal.0) && session.owned != Some(journal);
        match kind {
            FrameKind::Follow => {
                let deed = host.replica.follow(&frame);
                if !matches!(deed, ReplicaAction::Refuse(_)) {
                    host.follow_for(greeted.permit.account());
                    keep_wrapped_key(host, &frame)?;
                }
                greeted.act(host, deed)?;
            }
            _ if is_stranger => {
                let told = describe(host)?.for_strangers();
                greeted.wire.queue(&ReplicaMessage::replica(&told))?;
            }
            _ => greeted.act(host, ReplicaAction::Describe)?,
        }
        // An inquiry is no sign of the client.
        if kind == FrameKind::Follow {
            publish(host.report(Some(greeted.heard_at)));
        }
        greeted.wire.flush()?;
        if kind != FrameKind::Follow {
            return Ok(None);
        }
        greeted.wire.wake_on(waker)?;
        tracing::info!(replica = %host.root.display(), peer, "a copy follows its client");
        Ok(Some(greeted))
    }

    /// When the client's last message arrived.
    pub(super) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Tells the client that the copy failed; it continues without the copy.
    pub(super) fn fail(&mut self, error: &ReplicaError) {
        // A client that does not receive this notices the end of the session.
        let _ = self.wire.send(&ReplicaMessage::bare(error.refusal()));
    }

    /// Handles the frames that have arrived, answers, and waits for more, at most `longest`. A client silent
    /// for `silence` counts as gone. `publish` is told the copy's new state before the client can know it:
    /// nobody who has heard from the client then finds an older one here.
    pub(super) fn turn(
        &mut self,
        host: &mut OpenReplica,
        silence: Duration,
        longest: Duration,
        publish: impl FnOnce(ReplicaReport),
    ) -> Result<(), ReplicaSessionEnd> {
        if self.wire.is_revoked() {
            tracing::warn!(replica = %host.root.display(), peer = self.wire.peer(), "client dropped: its key is no longer in the file of clients");
            return Err(ReplicaSessionEnd::Session);
        }
        let mut taken = 0;
        while taken < TURN_BYTES {
            let Some(message) = self.wire.next()? else { break };
            taken += FRAME_HEADER_BYTES + message.body.len();
            let deed = host.replica.handle(&message.frame());
            self.act(host, deed)?;
        }
        if taken > 0 {
            self.heard_at = Instant::now();
        } else if self.heard_at.elapsed() > silence {
            return Err(ReplicaSessionEnd::Session);
        }
        self.settle(host)?;
        publish(host.report(Some(self.heard_at)));
        self.wire.flush()?;
        if taken < TURN_BYTES {
            self.wire.sleep(longest)?;
        }
        Ok(())
    }

    /// Makes received records durable, and acknowledges them.
    fn settle(&mut self, host: &mut OpenReplica) -> Result<(), ReplicaSessionEnd> {
        flush(host)?;
        if let Some(standing) = host.replica.pending_header() {
            host.disk.sync().map_err(ReplicaError::from)?;
            host.header.store(standing)?;
            let answer = host.replica.on_stored(standing);
            self.wire.queue(&answer)?;
            tracing::info!(replica = %host.root.display(), "a copy is whole");
            self.tell_bad(host)?;
            let others = host.scrub.look_again(&host.disk).map_err(ReplicaError::from)?;
            self.say_bad(&others)?;
        }
        while let Some((asked, first, count)) = host.replica.next_fetch() {
            let answer = match asked.flags & Flag::HOLES {
                0 => answer_fetch(host, &asked, first, count),
                _ => answer_map(host, &asked, first, count),
            };
            self.wire.queue(&answer)?;
        }
        host.replica
            .on_applied(host.disk.log().head().lsn, host.disk.applied());
        if let Some(news) = host.replica.progress_report() {
            self.wire.queue(&news)?;
        }
        match host.replica.has_client() {
            true => self.tell_bad(host),
            false => Ok(()),
        }
    }

    /// Reports blocks found damaged here.
    fn tell_bad(&mut self, host: &OpenReplica) -> Result<(), ReplicaSessionEnd> {
        self.say_bad(&host.disk.take_bad_blocks())
    }

    fn say_bad(&mut self, numbers: &[u64]) -> Result<(), ReplicaSessionEnd> {
        for numbers in numbers.chunks(BAD_MAX) {
            self.wire.queue(&ReplicaMessage::bad(numbers))?;
        }
        Ok(())
    }

    fn act(&mut self, host: &mut OpenReplica, deed: ReplicaAction<'_>) -> Result<(), ReplicaSessionEnd> {
        match deed {
            ReplicaAction::Nothing => Ok(()),
            ReplicaAction::Answer(message) => Ok(self.wire.queue(&message)?),
            ReplicaAction::Refuse(message) => {
                let refusal = RefusalReason::from_byte(message.header.flags);
                tracing::warn!(
                    replica = %host.root.display(), peer = self.wire.peer(), ?refusal,
                    at = %message.header.lsn, "refused a copy's client"
                );
                self.wire.send(&message)?;
                Err(ReplicaSessionEnd::Session)
            }
            ReplicaAction::Store(standing) => {
                host.header.store(standing)?;
                let answer = host.replica.on_stored(standing);
                Ok(self.wire.queue(&answer)?)
            }
            ReplicaAction::Write { at, bytes } => Ok(host.disk.log().write(at, &bytes)?),
            ReplicaAction::KeepView {
                view,
                bytes,
                standing,
            } => {
                if bytes > host.disk.geometry().bytes {
                    self.grow(host, bytes)?;
                }
                if let Some(standing) = standing {
                    host.header.store(standing)?;
                }
                host.disk.log().store_view(view)?;
                self.answer(host.replica.on_view_stored())
            }
            ReplicaAction::Restart { start, standing } => {
                host.header.store(standing)?;
                host.disk.bring_up().map_err(ReplicaError::from)?;
                host.disk.log().restart(start)?;
                host.disk.restart()?;
                self.answer(host.replica.on_restarted())
            }
            ReplicaAction::Compare {
                asked,
                first,
                digests,
            } => self.compare(host, &asked, first, &digests),
            ReplicaAction::Put { asked, blocks } => {
                for (number, block) in message::blocks(blocks).into_iter().flatten() {
                    self.put(put_block(host, number, block))?;
                }
                Ok(self.wire.queue(&Replica::stored(&asked))?)
            }
            ReplicaAction::PutHoles { asked, numbers } => {
                for run in runs(&numbers) {
                    self.put(host.disk.put_hole(run.start, run.end))?;
                }
                Ok(self.wire.queue(&Replica::stored(&asked))?)
            }
            ReplicaAction::ReadLog { answer, from, bytes } => {
                let mut body = vec![0; bytes];
                let read = host.disk.log().read_raw(from, &mut body);
                body.truncate(read.map_err(ApplyError::Log)?);
                Ok(self.wire.queue(&ReplicaMessage { header: answer, body })?)
            }
            ReplicaAction::Describe => {
                // An interrupted session may have left some of its records unsynced.
                flush(host)?;
                Ok(self.wire.queue(&ReplicaMessage::replica(&describe(host)?))?)
            }
        }
    }

    /// Enlarges the copy. An invalid size or a lack of quota ends only the session; any other failure is the
    /// disk's.
    fn grow(&mut self, host: &OpenReplica, bytes: u64) -> Result<(), ReplicaSessionEnd> {
        let error = match host.grow(bytes) {
            Ok(()) => return Ok(()),
            Err(error @ (ReplicaError::Quota(_) | ReplicaError::Grow(DiskGrowError::Size { .. }))) => error,
            Err(error) => return Err(error.into()),
        };
        tracing::warn!(replica = %host.root.display(), peer = self.wire.peer(), %error, "refused a copy's client");
        let header = match &error {
            ReplicaError::Quota(_) => error.refusal(),
            _ => refusal(RefusalReason::Malformed, 0),
        };
        self.wire.send(&ReplicaMessage::bare(header))?;
        Err(ReplicaSessionEnd::Session)
    }

    fn answer(&mut self, answer: Option<ReplicaMessage>) -> Result<(), ReplicaSessionEnd> {
        match answer {
            Some(message) => Ok(self.wire.queue(&message)?),
            None => Ok(()),
        }
    }

    fn compare(
        &mut self,
        host: &OpenReplica,
        asked: &FrameHeader,
        first: u64,
        digests: &[BlockDigest],
    ) -> Result<(), ReplicaSessionEnd> {
        let different = self.put(host.disk.differing(first, digests))?;
        let answer = Replica::differ(asked, different.into_iter());
        Ok(self.wire.queue(&answer)?)
    }

    /// Checks the result of a request. One for blocks that the volume does not have is the client's error;
    /// any other failure is the disk's.
    fn put<T>(&mut self, done: Result<T, DeviceError>) -> Result<T, ReplicaSessionEnd> {
        match done {
            Ok(done) => Ok(done),
            Err(DeviceError::Io(error)) => Err(error.into()),
            Err(error) => {
                tracing::warn!(peer = self.wire.peer(), %error, "protocol error of a copy's client; closing the session");
                self.wire
                    .send(&ReplicaMessage::bare(refusal(RefusalReason::Malformed, 0)))?;
                Err(ReplicaSessionEnd::Session)
            }
        }
    }
}

/// Makes the log durable, and reads its new records into stages.
fn flush(host: &mut OpenReplica) -> Result<(), ReplicaSessionEnd> {
    if let Some(unflushed) = host.replica.unflushed() {
        host.disk.log().flush(unflushed.end)?;
        host.replica.on_flushed(unflushed.end);
        host.follow()?;
    }
    Ok(())
}

fn put_block(host: &OpenReplica, number: u64, block: &[u8]) -> Result<(), DeviceError> {
    let bytes = host.disk.geometry().bytes;
    // The number is from an untrusted peer: any product with it may overflow.
    if number >= bytes / BLOCK_BYTES {
        return Err(DeviceError::OutOfRange {
            offset: number.saturating_mul(BLOCK_BYTES),
            length: block.len() as u64,
            bytes,
        });
    }
    host.disk.put_blocks(number, block)
}

/// Answers with blocks as the volume has them now, if its state is new enough.
fn answer_fetch(host: &OpenReplica, asked: &FrameHeader, first: u64, count: usize) -> ReplicaMessage {
    let deadline = Instant::now() + FETCH_WAIT;
    let mut blocks = vec![0; count * BLOCK_BYTES as usize];
    loop {
        match host.disk.answer(first, asked.stable, &mut blocks) {
            Ok(()) => return ReplicaMessage::fetched(asked, Some(blocks)),
            Err(FetchError::Damaged) => return ReplicaMessage::fetched(asked, None),
            Err(FetchError::Unreachable) if Instant::now() > deadline => {
                return ReplicaMessage::fetch_later(asked);
            }
            Err(FetchError::Unreachable) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Answers which blocks are data, if the volume's state is new enough. The client, which is about to restore
/// the volume, repeats the request otherwise.
fn answer_map(host: &OpenReplica, asked: &FrameHeader, first: u64, count: usize) -> ReplicaMessage {
    match host.disk.data_map(first, asked.stable, count) {
        Ok(map) => ReplicaMessage::fetched_map(asked, map),
        Err(_) => ReplicaMessage::fetch_later(asked),
    }
}

/// Stores the wrapped key that the copy's client gives for a later restore.
fn keep_wrapped_key(host: &OpenReplica, frame: &Frame<'_>) -> Result<(), ReplicaError> {
    let wrapped = FollowRequest::decode(frame).map_or_else(|_| Vec::new(), |follow| follow.wrapped_key);
    let (place, path) = (
        VolumePaths::at(&host.root),
        VolumePaths::at(&host.root).recovery(),
    );
    let failed = |error| ReplicaError::File(path.clone(), error);
    let stored = place.wrapped_key().map_err(failed)?;
    // A client of an earlier release gives none.
    if wrapped.is_empty() || stored.is_some_and(|stored| stored == wrapped) {
        return Ok(());
    }
    durable::replace(&path, &wrapped).map_err(failed)
}

/// Description of the copy for a client that wants to restore the volume. The key of its records is given
/// only as the volume's client wrapped it.
fn describe(host: &OpenReplica) -> Result<ReplicaDescription, ReplicaSessionEnd> {
    let standing = *host.replica.replica_header();
    let log = host.disk.log();
    let place = VolumePaths::at(&host.root);
    let wrapped = place.wrapped_key();
    let wrapped = wrapped.map_err(|error| ReplicaError::File(place.recovery(), error))?;
    Ok(ReplicaDescription {
        follow: FollowRequest {
            identity: standing.identity,
            bytes: host.disk.geometry().bytes,
            capacity: log.state().capacity,
            key: Vec::new(),
            wrapped_key: wrapped.unwrap_or_default(),
        },
        condition: standing.condition,
        closed: standing.closed,
        contact: standing.contact,
        heard_ms: Some(host.heard_ms()),
        head: log.head(),
        end: log.end(),
        view: log.view(),
    })
}

/// Consecutive numbers, as ranges.
fn runs(numbers: &[u64]) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
    numbers
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .filter_map(|run| Some(*run.first()?..run.last()?.saturating_add(1)))
}
