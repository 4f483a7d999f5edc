//! One bound session: frames in, answers out, one send a turn.
//!
//! A turn takes every packet that has arrived, lets the member judge them, saves its state, and sends all answers at
//! once. Acknowledgements are cumulative, so of several in a row only the last is sent.

use std::time::Instant;

use netram_proto::cast::{Gather, Tune};
use netram_proto::id::Lsn;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::member::{Reply, Window};
use netram_proto::session::{Admit, Session};
use netram_proto::wire::{Flag, Frame, FrameKind, Header, Refusal};
use netram_transport::{Link, LinkError};

use crate::journal::{Gathered, Journal, Place, Way};
use crate::limit::PARTS_MAX;
use crate::outbox::{Outbox, Overdue};
use crate::shared::{Permit, Shared};
use crate::stats::Counters;

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The peer went, or the link broke.
    Link(LinkError),
    /// A frame that makes no sense; the peer was told.
    Malformed,
    /// Nothing was heard for too long.
    Idle,
    /// The peer did not read its answers.
    SlowReader,
    /// The lender is stopping.
    Stopping,
}

impl From<LinkError> for Ending {
    fn from(error: LinkError) -> Ending {
        Ending::Link(error)
    }
}

impl From<Overdue> for Ending {
    fn from(overdue: Overdue) -> Ending {
        match overdue {
            Overdue::Idle => Ending::Idle,
            Overdue::SlowReader => Ending::SlowReader,
        }
    }
}

/// What a turn needs to know of the world.
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a Counters,
}

/// A session that is bound to a journal.
pub(crate) struct Connection {
    pub(crate) outbox: Outbox,
    session: Session,
    pub(crate) place: Place,
    /// Held back, because the next acknowledgement may say it all.
    ack: Option<Header>,
    /// Order in what is multicast; `None`: this session listens to no channel.
    gather: Option<Box<Gather>>,
    /// The peer asked to listen to a channel: the number it gave, and the channel. The shard answers.
    pub(crate) wish: Option<(Lsn, Tune)>,
    /// One bit for each kind of refusal that has been logged.
    logged: u16,
    _permit: Permit,
}

impl Connection {
    pub(crate) fn new(
        link: Link,
        session: Session,
        place: Place,
        permit: Permit,
        now: Instant,
    ) -> Connection {
        Connection {
            outbox: Outbox::new(link, now),
            session,
            place,
            ack: None,
            gather: None,
            wish: None,
            logged: 0,
            _permit: permit,
        }
    }

    /// Sends a frame of the lender's own, with everything that waits.
    pub(crate) fn say(&mut self, header: Header, body: &[u8], now: Instant) -> Result<(), Ending> {
        self.queue_ack()?;
        self.queue(&header, body)?;
        Ok(self.outbox.flush(now)?)
    }

    /// Takes what has arrived and answers it. `true`: something had. About 250 ns an append beside its CRC, its copy
    /// and the two system calls; nothing is allocated.
    pub(crate) fn turn(&mut self, journal: &mut Journal, turn: &Turn<'_>) -> Result<bool, Ending> {
        if !self.outbox.ready(turn.now)? {
            return Ok(false);
        }
        let taken = self.take(journal, turn);
        journal.settle();
        let (frames, ended) = match taken {
            Ok(frames) => (frames, Ok(())),
            Err(ending) => (1, Err(ending)),
        };
        if frames > 0 {
            self.outbox.hear(turn.now);
            // What was acknowledged before the session went wrong is still true, and worth saying.
            let sent = self.queue_ack().and_then(|()| Ok(self.outbox.flush(turn.now)?));
            ended.and(sent)?;
        } else {
            ended?;
        }
        Ok(frames > 0)
    }

    fn take(&mut self, journal: &mut Journal, turn: &Turn<'_>) -> Result<usize, Ending> {
        let (mut frames, mut appends, mut bytes) = (0, 0, 0);
        let mut ended = Ok(());
        while self.outbox.has_room() {
            let packet = match self.outbox.link.receive() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(error) => {
                    ended = Err(Ending::Link(error));
                    break;
                }
            };
            frames += 1;
            let reply = match judge(&mut self.session, packet) {
                Ok(Judged::Status) => {
                    self.report(turn)?;
                    continue;
                }
                Ok(Judged::Tune(number, tune)) => {
                    self.wish = Some((number, tune));
                    break;
                }
                Ok(Judged::Member(frame)) => {
                    if frame.header.kind == FrameKind::Append {
                        appends += 1;
                        bytes += frame.body.len() as u64;
                    }
                    if let Some(gather) = &mut self.gather {
                        match frame.header.kind {
                            FrameKind::Append => {
                                let gathered = journal.gather(gather, &frame, Way::Link);
                                ended = self.gathered(gathered, journal, turn);
                                if ended.is_err() || !self.outbox.link.has_buffered() {
                                    break;
                                }
                                continue;
                            }
                            FrameKind::Join | FrameKind::Seal | FrameKind::Leave => gather.clear(),
                            _ => (),
                        }
                    }
                    if frame.header.kind == FrameKind::Join && turn.shared.stopping() {
                        Reply::Frame(turn.shared.refusal(Refusal::Stopping), [0; 16], 0)
                    } else {
                        journal.handle(&frame)
                    }
                }
                Err(Misconduct) => Reply::Frame(turn.shared.refusal(Refusal::Malformed), [0; 16], 0),
            };
            ended = self.answer(reply, journal, turn);
            if ended.is_err() || !self.outbox.link.has_buffered() {
                break;
            }
        }
        turn.counters.frames.add(frames);
        if appends > 0 {
            turn.counters.appends.add(appends);
            turn.counters.bytes.add(bytes);
            journal.appended(turn.shared.started, turn.now);
        }
        ended.map(|()| frames as usize)
    }

    /// The session listens to a channel from now on.
    pub(crate) fn listen(&mut self) {
        self.gather = Some(Box::default());
    }

    /// Takes a packet that was multicast. One that could not be answered counts as lost, and so does what is no append:
    /// whoever holds the channel's key may say nothing else by it. What was taken is answered by
    /// [`answer_heard`](Self::answer_heard).
    pub(crate) fn hear(
        &mut self,
        packet: &[u8],
        journal: &mut Journal,
        turn: &Turn<'_>,
    ) -> Result<(), Ending> {
        if self.outbox.stuck() || !self.outbox.has_room() {
            return Ok(());
        }
        let (Ok(frame), Some(gather)) = (Frame::parse(packet), &mut self.gather) else {
            return Ok(());
        };
        // Where to begin anew is said over the link alone.
        if frame.header.kind != FrameKind::Append || frame.header.flags & Flag::FRESH != 0 {
            return Ok(());
        }
        turn.counters.frames.add(1);
        turn.counters.appends.add(1);
        turn.counters.bytes.add(frame.body.len() as u64);
        turn.counters.datagrams.add(1);
        let gathered = journal.gather(gather, &frame, Way::Group);
        gather.note_heard();
        self.gathered(gathered, journal, turn)
    }

    /// Saves what the member holds and answers what was heard.
    pub(crate) fn answer_heard(&mut self, journal: &mut Journal, turn: &Turn<'_>) -> Result<(), Ending> {
        journal.settle();
        journal.appended(turn.shared.started, turn.now);
        self.outbox.hear(turn.now);
        self.queue_ack()?;
        Ok(self.outbox.flush(turn.now)?)
    }

    fn gathered(&mut self, gathered: Gathered, journal: &Journal, turn: &Turn<'_>) -> Result<(), Ending> {
        match gathered {
            Gathered::Reply(reply) => self.answer(reply, journal, turn),
            Gathered::Missing(header) => {
                turn.counters.missing.add(1);
                self.queue(&header, &[])
            }
            Gathered::Nothing => Ok(()),
        }
    }

    fn answer(&mut self, reply: Reply, journal: &Journal, turn: &Turn<'_>) -> Result<(), Ending> {
        match reply {
            Reply::Frame(header, ..) if header.kind == FrameKind::Ack && header.flags == 0 => {
                let replaces = |held: Header| (held.epoch, held.mark) == (header.epoch, header.mark);
                if !self.ack.is_none_or(replaces) {
                    self.queue_ack()?;
                }
                if self.ack.replace(header).is_none() {
                    turn.counters.acks.add(1);
                }
                Ok(())
            }
            Reply::Frame(header, body, length) => {
                self.queue_ack()?;
                self.queue(&header, &body[..length])?;
                if header.kind == FrameKind::Refuse {
                    return self.refused(&header, journal, turn);
                }
                Ok(())
            }
            Reply::Data(header, bytes) => {
                self.queue_ack()?;
                self.queue_data(&header, bytes, journal)
            }
        }
    }

    /// Counts a refusal and logs the first of its kind in this session.
    #[cold]
    fn refused(&mut self, header: &Header, journal: &Journal, turn: &Turn<'_>) -> Result<(), Ending> {
        turn.counters.refused(header.flags);
        let refusal = Refusal::from_byte(header.flags);
        let bit = 1 << (header.flags & 15);
        if self.logged & bit == 0 {
            self.logged |= bit;
            let kind = refusal.map_or_else(|| header.flags.to_string(), |refusal| format!("{refusal:?}"));
            tracing::warn!(
                journal = %journal.id, peer = self.outbox.link.peer(), kind, epoch = %header.epoch, lsn = %header.lsn,
                limit = %header.stable, "refused; further refusals of this kind are only counted"
            );
        }
        match refusal {
            Some(Refusal::Malformed) => Err(Ending::Malformed),
            _ => Ok(()),
        }
    }

    fn report(&mut self, turn: &Turn<'_>) -> Result<(), Ending> {
        let mut header = Header::new(FrameKind::Report);
        header.who = turn.shared.incarnation().0;
        self.queue_ack()?;
        self.queue(&header, &turn.shared.report().to_frame_body())
    }

    fn queue_ack(&mut self) -> Result<(), Ending> {
        match self.ack.take() {
            Some(header) => self.queue(&header, &[]),
            None => Ok(()),
        }
    }

    fn queue(&mut self, header: &Header, body: &[u8]) -> Result<(), Ending> {
        let mut header = *header;
        if matches!(header.kind, FrameKind::Ack | FrameKind::Pong)
            && let Some(gather) = &mut self.gather
            && gather.take_heard()
        {
            header.flags |= Flag::HEARD;
        }
        Ok(self.outbox.queue(&[&header.encode(body.len()), body])?)
    }

    /// Queues bytes of the window without gathering them first.
    fn queue_data(&mut self, header: &Header, bytes: usize, journal: &Journal) -> Result<(), Ending> {
        assert!(bytes <= FRAME_BODY_BYTES_MAX);
        let head = header.encode(bytes);
        let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        parts[0] = &head;
        let (mut done, mut count) = (0, 1);
        while done < bytes {
            let at = Lsn(header.lsn.0 + done as u64);
            parts[count] = journal.memory.piece(at, bytes - done);
            done += parts[count].len();
            count += 1;
        }
        Ok(self.outbox.queue(&parts[..count])?)
    }
}

/// The peer sent what has no place here.
struct Misconduct;

/// What a packet asks for.
enum Judged<'a> {
    Status,
    Tune(Lsn, Tune),
    Member(Frame<'a>),
}

/// Judges a packet by its place. A session binds before it comes here, once.
fn judge<'a>(session: &mut Session, packet: &'a [u8]) -> Result<Judged<'a>, Misconduct> {
    let frame = Frame::parse(packet).map_err(|_| Misconduct)?;
    match session.handle(&frame) {
        Ok(Admit::Member(_)) => Ok(Judged::Member(frame)),
        Ok(Admit::Status) => Ok(Judged::Status),
        Ok(Admit::Tune(_)) => {
            let tune = Tune::parse(frame.body).ok_or(Misconduct)?;
            Ok(Judged::Tune(frame.header.lsn, tune))
        }
        Ok(Admit::Bind(..) | Admit::Data | Admit::Share | Admit::Deposit) | Err(_) => Err(Misconduct),
    }
}
