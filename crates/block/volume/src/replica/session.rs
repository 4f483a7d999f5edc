//! One session of a copy's client: its frames, and what is done for them here.
//!
//! A turn takes what has arrived, writes and syncs the log once for all of it, and answers.

use std::time::{Duration, Instant};

use netram_block::{ApplyError, BLOCK_BYTES, DeviceError, FetchError, GrowError};
use netram_block_machine::message::{self, Digest, Follow};
use netram_block_machine::{Deed, Description, Message, Replica};
use netram_journal::seal::DataKey;
use netram_lender::{DataPermit, DataSession};
use netram_proto::port::{IoError, Log};
use netram_proto::wire::{Flag, Frame, FrameKind, Header, Refusal};
use netram_transport::Waker;

use super::failure::{HostError, refusal};
use super::host::Host;
use super::wire::{Wire, WireError};

/// Bytes of a turn, after which the log is synced.
const TURN_BYTES: usize = 1 << 20;
/// How long a block that was asked for may wait for the stages to take in what is before it.
const FETCH_WAIT: Duration = Duration::from_secs(1);
/// Numbers of damaged blocks that are told at once.
const BAD_MAX: usize = 1024;

/// Why a session, or the whole copy, cannot go on.
pub(super) enum Ended {
    /// The client went, or was sent away.
    Session,
    /// The copy failed.
    Host(HostError),
}

impl From<WireError> for Ended {
    fn from(error: WireError) -> Ended {
        tracing::info!(%error, "a client of a copy went");
        Ended::Session
    }
}

impl From<HostError> for Ended {
    fn from(error: HostError) -> Ended {
        Ended::Host(error)
    }
}

impl From<IoError> for Ended {
    fn from(error: IoError) -> Ended {
        Ended::Host(error.into())
    }
}

impl From<ApplyError> for Ended {
    fn from(error: ApplyError) -> Ended {
        Ended::Host(error.into())
    }
}

/// A client that speaks for the copy.
pub(super) struct Session {
    wire: Wire,
    heard: Instant,
    _permit: DataPermit,
}

impl Session {
    /// Takes a session's first frame. `None`: it was refused, or had only a question.
    pub(super) fn greet(
        session: DataSession,
        host: &mut Host,
        waker: &Waker,
    ) -> Result<Option<Session>, Ended> {
        let mut greeted = Session {
            wire: Wire::new(session.link)?,
            heard: Instant::now(),
            _permit: session.permit,
        };
        let frame = Frame::parse(&session.first).map_err(WireError::Frame)?;
        let (kind, peer) = (frame.header.kind, greeted.wire.peer().to_owned());
        let deed = match kind {
            FrameKind::Follow => host.replica.follow(&frame),
            _ => Deed::Describe,
        };
        greeted.act(host, deed)?;
        greeted.wire.flush()?;
        if kind != FrameKind::Follow {
            return Ok(None);
        }
        greeted.wire.heed(waker)?;
        tracing::info!(replica = %host.root.display(), peer, "following a client");
        Ok(Some(greeted))
    }

    /// When the client was last heard.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// The copy failed: the client is told, and goes on without.
    pub(super) fn fail(&mut self, error: &HostError) {
        // Whoever does not hear it notices the end of the session.
        let _ = self.wire.say(&Message::bare(error.refusal()));
    }

    /// Takes what has arrived, does it, answers, and waits for more, `longest` at most. A client that has said
    /// nothing for `silence` is gone.
    pub(super) fn turn(
        &mut self,
        host: &mut Host,
        silence: Duration,
        longest: Duration,
    ) -> Result<(), Ended> {
        let mut taken = 0;
        while taken < TURN_BYTES {
            let Some(message) = self.wire.next()? else { break };
            taken += message.body.len().max(1);
            let deed = host.replica.handle(&message.frame());
            self.act(host, deed)?;
        }
        if taken > 0 {
            self.heard = Instant::now();
        } else if self.heard.elapsed() > silence {
            return Err(Ended::Session);
        }
        self.settle(host)?;
        self.wire.flush()?;
        if taken < TURN_BYTES {
            self.wire.sleep(longest)?;
        }
        Ok(())
    }

    /// Makes durable what has come, and says so.
    fn settle(&mut self, host: &mut Host) -> Result<(), Ended> {
        flush(host)?;
        if let Some(standing) = host.replica.unsettled() {
            host.disk.sync().map_err(HostError::from)?;
            host.standing.store(standing)?;
            let answer = host.replica.on_stored(standing);
            self.wire.queue(&answer)?;
            tracing::info!(replica = %host.root.display(), "the copy is whole");
            self.tell_bad(host)?;
            let others = host.scrub.look_again(&host.disk).map_err(HostError::from)?;
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
        if let Some(news) = host.replica.news() {
            self.wire.queue(&news)?;
        }
        match host.replica.is_heard() {
            true => self.tell_bad(host),
            false => Ok(()),
        }
    }

    /// Tells which blocks were found damaged here.
    fn tell_bad(&mut self, host: &Host) -> Result<(), Ended> {
        self.say_bad(&host.disk.take_bad_blocks())
    }

    fn say_bad(&mut self, numbers: &[u64]) -> Result<(), Ended> {
        for numbers in numbers.chunks(BAD_MAX) {
            self.wire.queue(&Message::bad(numbers))?;
        }
        Ok(())
    }

    fn act(&mut self, host: &mut Host, deed: Deed<'_>) -> Result<(), Ended> {
        match deed {
            Deed::Nothing => Ok(()),
            Deed::Answer(message) => Ok(self.wire.queue(&message)?),
            Deed::Refuse(message) => {
                let refusal = Refusal::from_byte(message.header.flags);
                tracing::warn!(
                    replica = %host.root.display(), peer = self.wire.peer(), ?refusal,
                    at = %message.header.lsn, "a client of a copy is refused"
                );
                self.wire.say(&message)?;
                Err(Ended::Session)
            }
            Deed::Store(standing) => {
                host.standing.store(standing)?;
                let answer = host.replica.on_stored(standing);
                Ok(self.wire.queue(&answer)?)
            }
            Deed::Write { at, bytes } => Ok(host.disk.log().write(at, &bytes)?),
            Deed::KeepView {
                view,
                bytes,
                standing,
            } => {
                if bytes > host.disk.geometry().bytes {
                    self.grow(host, bytes)?;
                }
                if let Some(standing) = standing {
                    host.standing.store(standing)?;
                }
                host.disk.log().store_view(view)?;
                self.answer(host.replica.on_view_kept())
            }
            Deed::Restart { start, standing } => {
                host.standing.store(standing)?;
                host.disk.bring_up().map_err(HostError::from)?;
                host.disk.log().restart(start)?;
                host.disk.restart()?;
                self.answer(host.replica.on_restarted())
            }
            Deed::Compare {
                asked,
                first,
                digests,
            } => self.compare(host, &asked, first, &digests),
            Deed::Put { asked, blocks } => {
                for (number, block) in message::blocks(blocks).into_iter().flatten() {
                    self.put(put_block(host, number, block))?;
                }
                Ok(self.wire.queue(&Replica::stored(&asked))?)
            }
            Deed::PutHoles { asked, numbers } => {
                for run in runs(&numbers) {
                    self.put(host.disk.put_hole(run.start, run.end))?;
                }
                Ok(self.wire.queue(&Replica::stored(&asked))?)
            }
            Deed::ReadLog { answer, from, bytes } => {
                let mut body = vec![0; bytes];
                let read = host.disk.log().read_raw(from, &mut body);
                body.truncate(read.map_err(ApplyError::Log)?);
                Ok(self.wire.queue(&Message { header: answer, body })?)
            }
            Deed::Describe => {
                // A session that broke off can have left some of its records unsynced.
                flush(host)?;
                Ok(self.wire.queue(&describe(host)?)?)
            }
        }
    }

    /// A size that no volume has is the client's mistake, one for which there is no room, its misfortune; the rest is the disk's.
    fn grow(&mut self, host: &Host, bytes: u64) -> Result<(), Ended> {
        let error = match host.grow(bytes) {
            Ok(()) => return Ok(()),
            Err(error @ (HostError::Quota(_) | HostError::Grow(GrowError::Size { .. }))) => error,
            Err(error) => return Err(error.into()),
        };
        tracing::warn!(replica = %host.root.display(), peer = self.wire.peer(), %error, "a client of a copy is refused");
        let header = match &error {
            HostError::Quota(_) => error.refusal(),
            _ => refusal(Refusal::Malformed, 0),
        };
        self.wire.say(&Message::bare(header))?;
        Err(Ended::Session)
    }

    fn answer(&mut self, answer: Option<Message>) -> Result<(), Ended> {
        match answer {
            Some(message) => Ok(self.wire.queue(&message)?),
            None => Ok(()),
        }
    }

    fn compare(&mut self, host: &Host, asked: &Header, first: u64, digests: &[Digest]) -> Result<(), Ended> {
        let different = self.put(host.disk.differing(first, digests))?;
        let answer = Replica::differ(asked, different.into_iter());
        Ok(self.wire.queue(&answer)?)
    }

    /// What a client asks of blocks that the volume does not have is the client's mistake; the rest is the disk's.
    fn put<T>(&mut self, done: Result<T, DeviceError>) -> Result<T, Ended> {
        match done {
            Ok(done) => Ok(done),
            Err(DeviceError::Io(error)) => Err(error.into()),
            Err(error) => {
                tracing::warn!(peer = self.wire.peer(), %error, "a client of a copy asks for what cannot be");
                self.wire.say(&Message::bare(refusal(Refusal::Malformed, 0)))?;
                Err(Ended::Session)
            }
        }
    }
}

/// Makes the log durable, and takes in what it has newly.
fn flush(host: &mut Host) -> Result<(), Ended> {
    if let Some(unflushed) = host.replica.unflushed() {
        host.disk.log().flush(unflushed.end)?;
        host.replica.on_flushed(unflushed.end);
        host.follow()?;
    }
    Ok(())
}

fn put_block(host: &Host, number: u64, block: &[u8]) -> Result<(), DeviceError> {
    let bytes = host.disk.geometry().bytes;
    // The number is a stranger's: any product with it may be too large.
    if number >= bytes / BLOCK_BYTES {
        return Err(DeviceError::OutOfRange {
            offset: number.saturating_mul(BLOCK_BYTES),
            length: block.len() as u64,
            bytes,
        });
    }
    host.disk.put_blocks(number, block)
}

/// The blocks as the volume is here now, if it is far enough to tell.
fn answer_fetch(host: &Host, asked: &Header, first: u64, count: usize) -> Message {
    let deadline = Instant::now() + FETCH_WAIT;
    let mut blocks = vec![0; count * BLOCK_BYTES as usize];
    loop {
        match host.disk.answer(first, asked.stable, &mut blocks) {
            Ok(()) => return Message::fetched(asked, Some(blocks)),
            Err(FetchError::Damaged) => return Message::fetched(asked, None),
            Err(FetchError::Away) if Instant::now() > deadline => return Message::fetch_later(asked),
            Err(FetchError::Away) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Which of the blocks are data, if the volume is far enough to tell. Whoever asks is about to restore it, and asks again.
fn answer_map(host: &Host, asked: &Header, first: u64, count: usize) -> Message {
    match host.disk.data_map(first, asked.stable, count) {
        Ok(map) => Message::fetched_map(asked, map),
        Err(_) => Message::fetch_later(asked),
    }
}

/// What whoever wants to restore the volume must know.
fn describe(host: &Host) -> Result<Message, Ended> {
    let standing = *host.replica.standing();
    let log = host.disk.log();
    let key = host.root.join("journal").join("data.key");
    let key = DataKey::load(&key).map_err(|error| HostError::File(key.clone(), error))?;
    Ok(Message::replica(&Description {
        follow: Follow {
            identity: standing.identity,
            bytes: host.disk.geometry().bytes,
            capacity: log.state().capacity,
            key: key.as_bytes().to_vec(),
        },
        condition: standing.condition,
        closed: standing.closed,
        contact: standing.contact,
        heard_ms: Some(host.heard_ms()),
        head: log.head(),
        end: log.end(),
        view: log.view(),
    }))
}

/// Numbers that follow one another, as ranges.
fn runs(numbers: &[u64]) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
    numbers
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .filter_map(|run| Some(*run.first()?..run.last()?.saturating_add(1)))
}
