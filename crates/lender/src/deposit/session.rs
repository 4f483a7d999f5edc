//! One session of a deposit: frames in, answers out, one send a turn. A peer that does not read its answers is not read from either.

use std::time::{Duration, Instant};

use netram_proto::deposit::{Asked, Holder, Lent, page_head};
use netram_proto::id::{DepositId, Epoch};
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, FRAME_PAGES_MAX, PAGE_HEADER_BYTES};
use netram_proto::wire::{Frame, FrameKind, Header, Refusal};
use netram_transport::link::SEND_BUFFER_BYTES;
use netram_transport::{Interest, Link, LinkError, Poller};

use super::memory::DepositMemory;
use crate::shared::{Permit, Shared};

/// The most that one answer adds to the link's buffer.
const ANSWER_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX + FRAME_HEADER_BYTES + 2 + 16;

const _: () = assert!(
    ANSWER_BYTES_MAX <= SEND_BUFFER_BYTES,
    "an empty link takes any answer"
);

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The owner went, or the link broke.
    Link(LinkError),
    /// A later session of the same deposit has begun.
    Replaced,
    /// It was refused, and told: it makes no sense, or is fenced.
    Refused(Refusal),
    /// Nothing was heard for too long.
    Idle,
    /// The owner did not read its answers.
    SlowReader,
    /// The lender is stopping.
    Stopping,
}

impl From<LinkError> for Ending {
    fn from(error: LinkError) -> Ending {
        Ending::Link(error)
    }
}

pub(super) struct Session {
    link: Link,
    pub(super) id: DepositId,
    pub(super) epoch: Epoch,
    /// Bytes given to the link since it was last empty; an upper bound of what waits there.
    queued: usize,
    /// Since when the link has held bytes that the owner does not take.
    stuck_since: Option<Instant>,
    /// Whether the poller was told to wait for room to write.
    waits_to_write: bool,
    heard: Instant,
    _permit: Permit,
}

impl Session {
    pub(super) fn new(link: Link, id: DepositId, epoch: Epoch, permit: Permit, now: Instant) -> Session {
        Session {
            link,
            id,
            epoch,
            queued: 0,
            stuck_since: None,
            waits_to_write: false,
            heard: now,
            _permit: permit,
        }
    }

    pub(super) fn peer(&self) -> &str {
        self.link.peer()
    }

    pub(super) fn stuck(&self) -> bool {
        self.stuck_since.is_some()
    }

    pub(super) fn has_buffered(&self) -> bool {
        self.link.has_buffered()
    }

    pub(super) fn overdue(&self, now: Instant, idle: Duration, slow: Duration) -> Option<Ending> {
        match self.stuck_since {
            Some(since) => (now.duration_since(since) > slow).then_some(Ending::SlowReader),
            None => (now.duration_since(self.heard) > idle).then_some(Ending::Idle),
        }
    }

    /// Waits for room to write while answers wait, and only then.
    pub(super) fn watch(&mut self, poller: &Poller, index: usize) -> std::io::Result<()> {
        if self.stuck() == self.waits_to_write {
            return Ok(());
        }
        self.waits_to_write = self.stuck();
        let interest = match self.stuck() {
            true => Interest::ReadWrite,
            false => Interest::Read,
        };
        poller.modify(&self.link, index as u64, interest)
    }

    /// Sends a frame, with everything that waits.
    pub(super) fn say(&mut self, header: &Header, body: &[u8], now: Instant) -> Result<(), Ending> {
        self.queue(header, body)?;
        self.flush(now)
    }

    /// Takes what has arrived and answers it. `true`: something had. Nothing is allocated but by a resize.
    pub(super) fn turn(
        &mut self,
        holder: &mut Holder,
        memory: &mut DepositMemory,
        shared: &Shared,
        now: Instant,
    ) -> Result<bool, Ending> {
        if self.stuck() {
            self.flush(now)?;
            if self.stuck() {
                return Ok(false);
            }
        }
        let (mut frames, mut ended) = (0, Ok(()));
        while ended.is_ok() && self.queued + ANSWER_BYTES_MAX <= SEND_BUFFER_BYTES {
            let lent = match self.link.receive() {
                Ok(Some(packet)) => match Frame::parse(packet) {
                    Ok(frame) => {
                        shared.deposits.count(frame.header.kind);
                        holder.handle(&frame, memory)
                    }
                    Err(_) => Lent::Frame(shared.refusal(Refusal::Malformed)),
                },
                Ok(None) => break,
                Err(error) => {
                    ended = Err(Ending::Link(error));
                    break;
                }
            };
            frames += 1;
            ended = self.answer(&lent, memory, shared);
            if !self.link.has_buffered() {
                break;
            }
        }
        if frames > 0 {
            self.heard = now;
            // What was answered before the session went wrong is still true.
            let sent = self.flush(now);
            ended.and(sent)?;
        } else {
            ended?;
        }
        Ok(frames > 0)
    }

    fn answer(&mut self, lent: &Lent, memory: &DepositMemory, shared: &Shared) -> Result<(), Ending> {
        match lent {
            Lent::Frame(header) => {
                self.queue(header, &[])?;
                if header.kind != FrameKind::Refuse {
                    return Ok(());
                }
                shared.deposits.refused(header.flags);
                match Refusal::from_byte(header.flags) {
                    Some(Refusal::NoRoom) | None => Ok(()),
                    Some(refusal) => Err(Ending::Refused(refusal)),
                }
            }
            Lent::Pong(header, number) => self.queue(header, &number.to_le_bytes()),
            Lent::Pages(header, asked, count) => self.queue_pages(header, &asked[..*count], memory),
        }
    }

    /// Queues pages without gathering them first.
    fn queue_pages(
        &mut self,
        header: &Header,
        asked: &[Asked],
        memory: &DepositMemory,
    ) -> Result<(), Ending> {
        let mut heads = [[0; PAGE_HEADER_BYTES]; FRAME_PAGES_MAX];
        for (head, page) in heads.iter_mut().zip(asked) {
            *head = page_head(page.slot, page.version, page.bytes.into());
        }
        let bytes: usize = asked
            .iter()
            .map(|page| PAGE_HEADER_BYTES + usize::from(page.bytes))
            .sum();
        let frame = header.encode(bytes);
        let mut parts: [&[u8]; 1 + 2 * FRAME_PAGES_MAX] = [&[]; 1 + 2 * FRAME_PAGES_MAX];
        parts[0] = &frame;
        for (index, (head, page)) in heads.iter().zip(asked).enumerate() {
            parts[1 + 2 * index] = head;
            parts[2 + 2 * index] = memory.piece(page.slot, page.bytes.into());
        }
        self.queued += ANSWER_BYTES_MAX.min(frame.len() + bytes + 18);
        Ok(self.link.queue(&parts[..1 + 2 * asked.len()])?)
    }

    fn queue(&mut self, header: &Header, body: &[u8]) -> Result<(), Ending> {
        self.queued += FRAME_HEADER_BYTES + body.len() + 18;
        Ok(self.link.queue(&[&header.encode(body.len()), body])?)
    }

    fn flush(&mut self, now: Instant) -> Result<(), Ending> {
        if self.link.flush()? {
            self.queued = 0;
            self.stuck_since = None;
        } else {
            self.stuck_since.get_or_insert(now);
        }
        Ok(())
    }
}
