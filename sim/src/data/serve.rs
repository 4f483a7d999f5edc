//! What becomes of a frame at the data lender: the machine says what to do, this does it. The process may die between any
//! two operations of its disk; then nothing more is said.

use netram_block::{FetchError, Progress};
use netram_block_machine::message::Follow;
use netram_block_machine::{Deed, Description, Message, Replica, Standing, message};
use netram_proto::failure::CallError;
use netram_proto::port::IoError;
use netram_proto::wire::{Frame, FrameKind};

use super::{DataLender, Process};
use crate::disk::SimFile;

/// The disk does not do what it is told: it is dead, for this disk has no other faults.
pub(super) struct Died;

impl From<IoError> for Died {
    fn from(_: IoError) -> Died {
        Died
    }
}

impl From<CallError> for Died {
    fn from(_: CallError) -> Died {
        Died
    }
}

/// What came of a frame.
pub(super) struct Served {
    /// What to send.
    pub(super) answers: Vec<Message>,
    /// The connection ends then.
    pub(super) ends: bool,
    /// A sync is to end some time from now.
    pub(super) flush: bool,
    /// The replica has just called itself whole.
    pub(super) settled: bool,
}

impl DataLender {
    /// A frame arrived from `client` over connection `session`.
    pub(super) fn take(&mut self, client: usize, session: u64, packet: &[u8]) -> Served {
        let nothing = Served {
            answers: Vec::new(),
            ends: true,
            flush: false,
            settled: false,
        };
        let (Ok(frame), Some(mut process)) = (Frame::parse(packet), self.process.take()) else {
            return nothing;
        };
        let served = self.serve(&mut process, session, &frame);
        if process.session == Some(session) {
            process.client = client;
        }
        self.keep(process, served).unwrap_or(nothing)
    }

    /// A sync ends: what there is to say, to which client, over which connection. It need not be the one for which it was begun.
    pub(super) fn flush(&mut self) -> Option<(usize, u64, Served)> {
        let mut process = self.process.take()?;
        process.flushing = false;
        let (client, session) = (process.client, process.session);
        let served = self.end_flush(&mut process);
        let served = self.keep(process, served);
        Some((client, session?, served?))
    }

    /// The connection is gone.
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

    /// Puts the process back, if it lives.
    fn keep(&mut self, process: Process, served: Result<Served, Died>) -> Option<Served> {
        let dead = self.disk.borrow().is_dead();
        match served {
            Ok(served) if !dead => {
                self.process = Some(process);
                Some(served)
            }
            _ => None,
        }
    }

    fn serve(&self, process: &mut Process, session: u64, frame: &Frame<'_>) -> Result<Served, Died> {
        let known = process.session == Some(session);
        let question = !known && frame.header.kind == FrameKind::Inquire;
        let deed = match known {
            true => process.replica.handle(frame),
            false if question => Deed::Describe,
            false => process.replica.follow(frame),
        };
        let refused = matches!(deed, Deed::Refuse(_));
        if !known && !refused && !question {
            process.session = Some(session);
        }
        let mut answers: Vec<Message> = self.perform(process, deed)?.into_iter().collect();
        answer_fetches(process, &mut answers);
        let settled = self.settle(process)?;
        let whole = settled.is_some();
        answers.extend(settled);
        answers.extend(process.replica.news());
        let flush = process.replica.unflushed().is_some() && !process.flushing;
        process.flushing |= flush;
        Ok(Served {
            answers,
            ends: refused || question,
            flush,
            settled: whole,
        })
    }

    fn perform(&self, process: &mut Process, deed: Deed<'_>) -> Result<Option<Message>, Died> {
        Ok(match deed {
            Deed::Nothing => None,
            Deed::Describe => {
                if let Some(unflushed) = process.replica.unflushed() {
                    process.log.flush(unflushed.end)?;
                    process.replica.on_flushed(unflushed.end);
                }
                Some(describe(process))
            }
            Deed::Answer(message) | Deed::Refuse(message) => Some(message),
            Deed::Store(standing) => {
                self.store(process, &standing)?;
                Some(process.replica.on_stored(standing))
            }
            Deed::Write { at, bytes } => {
                process.log.write(at, &bytes)?;
                None
            }
            Deed::KeepView { view, standing, .. } => {
                if let Some(standing) = standing {
                    self.store(process, &standing)?;
                }
                let file = SimFile::new(&self.disk, self.view_file);
                process.view_slots.store(&file, &view.encode())?;
                process.replica.on_view_kept()
            }
            Deed::Restart { start, standing } => {
                self.store(process, &standing)?;
                drain(process)?;
                process.log.restart(start)?;
                process.volume.restart().map_err(|_| Died)?;
                process.replica.on_restarted()
            }
            Deed::Compare {
                asked,
                first,
                digests,
            } => {
                let differing = process.volume.differing(first, &digests).map_err(|_| Died)?;
                Some(Replica::differ(&asked, differing.into_iter()))
            }
            Deed::Put { asked, blocks } => {
                for (number, bytes) in message::blocks(blocks).into_iter().flatten() {
                    process.volume.put_blocks(number, bytes).map_err(|_| Died)?;
                }
                Some(Replica::stored(&asked))
            }
            Deed::PutHoles { asked, numbers } => {
                for number in numbers {
                    process.volume.put_hole(number, number + 1).map_err(|_| Died)?;
                }
                Some(Replica::stored(&asked))
            }
            Deed::ReadLog { .. } => unreachable!("in this world the log is taken with its disk"),
        })
    }

    fn store(&self, process: &mut Process, standing: &Standing) -> Result<(), Died> {
        let file = SimFile::new(&self.disk, self.standing_file);
        Ok(process.standing_slots.store(&file, &standing.encode())?)
    }

    /// Says that the replica is whole, once it is.
    fn settle(&self, process: &mut Process) -> Result<Option<Message>, Died> {
        let Some(standing) = process.replica.unsettled() else {
            return Ok(None);
        };
        process.volume.sync().map_err(|_| Died)?;
        self.store(process, &standing)?;
        Ok(Some(process.replica.on_stored(standing)))
    }

    fn end_flush(&self, process: &mut Process) -> Result<Served, Died> {
        if let Some(unflushed) = process.replica.unflushed() {
            process.log.flush(unflushed.end)?;
            process.replica.on_flushed(unflushed.end);
        }
        // It keeps its image near its log, or the log has no room.
        for _ in 0..4 {
            process.volume.follow().map_err(|_| Died)?;
            process.volume.apply_step().map_err(|_| Died)?;
        }
        let state = process.log.end().lsn.since(process.log.head().lsn);
        if state > process.log.capacity() / 2 {
            drain(process)?;
        }
        process
            .replica
            .on_applied(process.log.head().lsn, process.volume.applied());
        let mut answers: Vec<Message> = self.settle(process)?.into_iter().collect();
        let settled = !answers.is_empty();
        answer_fetches(process, &mut answers);
        answers.extend(process.replica.news());
        Ok(Served {
            answers,
            ends: false,
            flush: false,
            settled,
        })
    }
}

/// Blocks as the volume is here now, by the code that ships.
fn answer_fetches(process: &mut Process, answers: &mut Vec<Message>) {
    while let Some((asked, first, count)) = process.replica.next_fetch() {
        let mut blocks = vec![0; count * netram_block_machine::BLOCK_BYTES];
        answers.push(match process.volume.answer(first, asked.stable, &mut blocks) {
            Ok(()) => Message::fetched(&asked, Some(blocks)),
            Err(FetchError::Damaged) => Message::fetched(&asked, None),
            Err(FetchError::Away) => Message::fetch_later(&asked),
        });
    }
}

fn describe(process: &Process) -> Message {
    let standing = *process.replica.standing();
    Message::replica(&Description {
        follow: Follow {
            identity: standing.identity,
            bytes: process.volume.geometry().bytes,
            capacity: process.log.capacity(),
            key: Vec::new(),
        },
        condition: standing.condition,
        closed: standing.closed,
        contact: 0,
        heard_ms: Some(0),
        head: process.log.head(),
        end: process.log.end(),
        view: process.replica.view().clone(),
    })
}

/// Brings everything in the log into the image.
pub(super) fn drain(process: &mut Process) -> Result<(), Died> {
    loop {
        let at = process.volume.follow().map_err(|_| Died)?;
        process.volume.drain().map_err(|_| Died)?;
        while process.volume.apply_step().map_err(|_| Died)? != Progress::Idle {}
        if at == process.log.end().lsn {
            return Ok(());
        }
    }
}
