//! Handling of a frame at the data lender: the machine decides, this code performs. The process may die
//! between any two disk operations and then sends nothing.

use netram_block::{ApplyProgress, FetchError};
use netram_block_machine::message::FollowRequest;
use netram_block_machine::{
    Replica, ReplicaAction, ReplicaCondition, ReplicaDescription, ReplicaHeader, ReplicaMessage, message,
};
use netram_proto::failure::CallError;
use netram_proto::id::{JournalId, Lsn};
use netram_proto::owner::is_owned;
use netram_proto::port::IoError;
use netram_proto::session::{LenderSession, SessionAction};
use netram_proto::wire::{Frame, FrameKind};

use super::machine::{ReplicaProcess, SimDataLender};
use crate::disk::SimFile;

/// The disk has stopped with its process. It has no other faults here.
pub(super) struct DeadDiskError;

impl From<IoError> for DeadDiskError {
    fn from(_: IoError) -> DeadDiskError {
        DeadDiskError
    }
}

impl From<CallError> for DeadDiskError {
    fn from(_: CallError) -> DeadDiskError {
        DeadDiskError
    }
}

/// Result of handling one frame.
pub(super) struct ServeOutcome {
    /// Messages to send to the client.
    pub(super) answers: Vec<ReplicaMessage>,
    /// Whether the connection ends after the answers.
    pub(super) ends: bool,
    /// Whether a sync is to end later.
    pub(super) flush: bool,
    /// Whether the replica has just become whole.
    pub(super) became_whole: bool,
}

impl SimDataLender {
    /// Handles a frame that arrived from `client`, which owns the journal, over connection `session`.
    pub(super) fn handle_packet(&mut self, client: usize, session: u64, packet: &[u8]) -> ServeOutcome {
        let owned = Some(self.journal);
        self.handle_packet_of(owned, client, session, packet)
    }

    /// Handles a frame of a client that has proven to own a journal, or nothing.
    pub(super) fn handle_packet_of(
        &mut self,
        owned: Option<JournalId>,
        client: usize,
        session: u64,
        packet: &[u8],
    ) -> ServeOutcome {
        let nothing = ServeOutcome {
            answers: Vec::new(),
            ends: true,
            flush: false,
            became_whole: false,
        };
        let (Ok(frame), Some(mut process)) = (Frame::parse(packet), self.process.take()) else {
            return nothing;
        };
        let known = process.session == Some(session);
        let mut gate = LenderSession::default();
        gate.plant(self.planted);
        if let Some(owned) = owned {
            gate.prove(owned.0);
        }
        if !known && gate.handle(&frame) != Ok(SessionAction::Data) {
            self.process = Some(process);
            return nothing;
        }
        let is_stranger = is_owned(self.journal.0) && owned != Some(self.journal);
        let served = self.serve(&mut process, session, is_stranger, &frame);
        if process.session == Some(session) {
            process.client = client;
        }
        self.put_back(process, served).unwrap_or(nothing)
    }

    /// Ends a sync. Returns the messages with their client and connection, which need not be those for which
    /// the sync was begun.
    pub(super) fn flush(&mut self) -> Option<(usize, u64, ServeOutcome)> {
        let mut process = self.process.take()?;
        process.flushing = false;
        let (client, session) = (process.client, process.session);
        let served = self.end_flush(&mut process);
        let served = self.put_back(process, served);
        Some((client, session?, served?))
    }

    /// Handles the end of a connection.
    pub(super) fn hang_up(&mut self, session: u64) {
        if let Some(process) = self
            .process
            .as_mut()
            .filter(|process| process.session == Some(session))
        {
            process.replica.on_session_ended();
            process.session = None;
        }
    }

    /// End of the log and contents of the volume, if a whole replica is served. Everything in its log is
    /// applied to the image first.
    pub(crate) fn contents(&mut self) -> Option<(Lsn, Vec<u8>)> {
        let process = self.process.as_mut()?;
        drain(process).ok()?;
        let whole = process.replica.replica_header().condition == ReplicaCondition::Following;
        let bytes = process.volume.geometry().bytes;
        let mut into = vec![0; bytes as usize];
        let read = process.volume.read(0, &mut into);
        (whole && read.is_ok()).then(|| (process.replica.flushed().lsn, into))
    }

    /// Puts the process back if it still lives.
    fn put_back(
        &mut self,
        process: ReplicaProcess,
        served: Result<ServeOutcome, DeadDiskError>,
    ) -> Option<ServeOutcome> {
        let dead = self.disk.borrow().is_dead();
        match served {
            Ok(served) if !dead => {
                self.process = Some(process);
                Some(served)
            }
            _ => None,
        }
    }

    fn serve(
        &self,
        process: &mut ReplicaProcess,
        session: u64,
        is_stranger: bool,
        frame: &Frame<'_>,
    ) -> Result<ServeOutcome, DeadDiskError> {
        let known = process.session == Some(session);
        let question = !known && frame.header.kind == FrameKind::Inquire;
        let action = match known {
            false if question && is_stranger => {
                let told = describe(process).for_strangers();
                ReplicaAction::Answer(ReplicaMessage::replica(&told))
            }
            true => process.replica.handle(frame),
            false if question => ReplicaAction::Describe,
            false => process.replica.follow(frame),
        };
        let refused = matches!(action, ReplicaAction::Refuse(_));
        if !known && !refused && !question {
            process.session = Some(session);
        }
        let mut answers: Vec<ReplicaMessage> = self.perform(process, action)?.into_iter().collect();
        answer_fetches(process, &mut answers);
        let settled = self.announce_whole(process)?;
        let whole = settled.is_some();
        answers.extend(settled);
        answers.extend(process.replica.progress_report());
        let flush = process.replica.unflushed().is_some() && !process.flushing;
        process.flushing |= flush;
        Ok(ServeOutcome {
            answers,
            ends: refused || question,
            flush,
            became_whole: whole,
        })
    }

    fn perform(
        &self,
        process: &mut ReplicaProcess,
        action: ReplicaAction<'_>,
    ) -> Result<Option<ReplicaMessage>, DeadDiskError> {
        Ok(match action {
            ReplicaAction::Nothing => None,
            ReplicaAction::Describe => {
                if let Some(unflushed) = process.replica.unflushed() {
                    process.log.flush(unflushed.end)?;
                    process.replica.on_flushed(unflushed.end);
                }
                Some(ReplicaMessage::replica(&describe(process)))
            }
            ReplicaAction::Answer(message) | ReplicaAction::Refuse(message) => Some(message),
            ReplicaAction::Store(standing) => {
                self.store(process, &standing)?;
                Some(process.replica.on_stored(standing))
            }
            ReplicaAction::Write { at, bytes } => {
                process.log.write(at, &bytes)?;
                None
            }
            ReplicaAction::KeepView { view, standing, .. } => {
                if let Some(standing) = standing {
                    self.store(process, &standing)?;
                }
                let file = SimFile::new(&self.disk, self.view_file);
                process.view_slots.store(&file, &view.encode())?;
                process.replica.on_view_stored()
            }
            ReplicaAction::Restart { start, standing } => {
                self.store(process, &standing)?;
                drain(process)?;
                process.log.restart(start)?;
                process.volume.restart().map_err(|_| DeadDiskError)?;
                process.replica.on_restarted()
            }
            ReplicaAction::Compare {
                asked,
                first,
                digests,
            } => {
                let differing = process
                    .volume
                    .differing(first, &digests)
                    .map_err(|_| DeadDiskError)?;
                Some(Replica::differ(&asked, differing.into_iter()))
            }
            ReplicaAction::Put { asked, blocks } => {
                for (number, bytes) in message::blocks(blocks).into_iter().flatten() {
                    process
                        .volume
                        .put_blocks(number, bytes)
                        .map_err(|_| DeadDiskError)?;
                }
                Some(Replica::stored(&asked))
            }
            ReplicaAction::PutHoles { asked, numbers } => {
                for number in numbers {
                    process
                        .volume
                        .put_hole(number, number + 1)
                        .map_err(|_| DeadDiskError)?;
                }
                Some(Replica::stored(&asked))
            }
            ReplicaAction::ReadLog { .. } => unreachable!("in this world the log is taken with its disk"),
        })
    }

    fn store(&self, process: &mut ReplicaProcess, standing: &ReplicaHeader) -> Result<(), DeadDiskError> {
        let file = SimFile::new(&self.disk, self.header_file);
        Ok(process.header_slots.store(&file, &standing.encode())?)
    }

    /// Announces that the replica is whole, once it is.
    fn announce_whole(&self, process: &mut ReplicaProcess) -> Result<Option<ReplicaMessage>, DeadDiskError> {
        let Some(standing) = process.replica.pending_header() else {
            return Ok(None);
        };
        process.volume.sync().map_err(|_| DeadDiskError)?;
        self.store(process, &standing)?;
        Ok(Some(process.replica.on_stored(standing)))
    }

    fn end_flush(&self, process: &mut ReplicaProcess) -> Result<ServeOutcome, DeadDiskError> {
        if let Some(unflushed) = process.replica.unflushed() {
            process.log.flush(unflushed.end)?;
            process.replica.on_flushed(unflushed.end);
        }
        // The image must stay near the log, or the log runs out of room.
        for _ in 0..4 {
            process.volume.follow().map_err(|_| DeadDiskError)?;
            process.volume.apply_step().map_err(|_| DeadDiskError)?;
        }
        let state = process.log.end().lsn.since(process.log.head().lsn);
        if state > process.log.capacity() / 2 {
            drain(process)?;
        }
        process
            .replica
            .on_applied(process.log.head().lsn, process.volume.applied());
        let mut answers: Vec<ReplicaMessage> = self.announce_whole(process)?.into_iter().collect();
        let settled = !answers.is_empty();
        answer_fetches(process, &mut answers);
        answers.extend(process.replica.progress_report());
        Ok(ServeOutcome {
            answers,
            ends: false,
            flush: false,
            became_whole: settled,
        })
    }
}

/// Answers requests for blocks of the volume as it is now, with the code that ships.
fn answer_fetches(process: &mut ReplicaProcess, answers: &mut Vec<ReplicaMessage>) {
    while let Some((asked, first, count)) = process.replica.next_fetch() {
        let mut blocks = vec![0; count * netram_block_machine::BLOCK_BYTES];
        answers.push(match process.volume.answer(first, asked.stable, &mut blocks) {
            Ok(()) => ReplicaMessage::fetched(&asked, Some(blocks)),
            Err(FetchError::Damaged) => ReplicaMessage::fetched(&asked, None),
            Err(FetchError::Unreachable) => ReplicaMessage::fetch_later(&asked),
        });
    }
}

fn describe(process: &ReplicaProcess) -> ReplicaDescription {
    let standing = *process.replica.replica_header();
    ReplicaDescription {
        follow: FollowRequest {
            identity: standing.identity,
            bytes: process.volume.geometry().bytes,
            capacity: process.log.capacity(),
            key: Vec::new(),
            wrapped_key: Vec::new(),
        },
        condition: standing.condition,
        closed: standing.closed,
        contact: 0,
        heard_ms: Some(0),
        head: process.log.head(),
        end: process.log.end(),
        view: process.replica.view().clone(),
    }
}

/// Applies everything in the log to the image.
fn drain(process: &mut ReplicaProcess) -> Result<(), DeadDiskError> {
    loop {
        let at = process.volume.follow().map_err(|_| DeadDiskError)?;
        process.volume.drain().map_err(|_| DeadDiskError)?;
        while process.volume.apply_step().map_err(|_| DeadDiskError)? != ApplyProgress::Idle {}
        if at == process.log.end().lsn {
            return Ok(());
        }
    }
}
