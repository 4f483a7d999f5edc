//! One session of a deposit: frames in, answers out, one send a turn.

use std::time::Instant;

use netram_far_machine::deposit::{Asked, Holder, Lent, page_head};
use netram_far_machine::limit::{FRAME_PAGES_MAX, PAGE_HEADER_BYTES};
use netram_proto::id::{DepositId, Epoch};
use netram_proto::wire::{Frame, FrameKind, Header, Refusal};
use netram_transport::{Link, LinkError};

use super::memory::DepositMemory;
use crate::outbox::{Outbox, Overdue};
use crate::shared::{Permit, Shared};

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

impl From<Overdue> for Ending {
    fn from(overdue: Overdue) -> Ending {
        match overdue {
            Overdue::Idle => Ending::Idle,
            Overdue::SlowReader => Ending::SlowReader,
        }
    }
}

pub(super) struct Session {
    pub(super) outbox: Outbox,
    pub(super) id: DepositId,
    pub(super) epoch: Epoch,
    /// The owner knows that the lender is about to stop.
    pub(super) told: bool,
    _permit: Permit,
}

impl Session {
    pub(super) fn new(link: Link, id: DepositId, epoch: Epoch, permit: Permit, now: Instant) -> Session {
        Session {
            outbox: Outbox::new(link, now),
            id,
            epoch,
            told: false,
            _permit: permit,
        }
    }

    /// Sends a frame, with everything that waits.
    pub(super) fn say(&mut self, header: &Header, body: &[u8], now: Instant) -> Result<(), Ending> {
        self.queue(header, body)?;
        Ok(self.outbox.flush(now)?)
    }

    /// Takes what has arrived and answers it. `true`: something had. Nothing is allocated but by a resize, and for blocks.
    pub(super) fn turn(
        &mut self,
        holder: &mut Holder,
        memory: &mut DepositMemory,
        shared: &Shared,
        now: Instant,
    ) -> Result<bool, Ending> {
        if !self.outbox.ready(now)? {
            return Ok(false);
        }
        let (mut frames, mut ended) = (0, Ok(()));
        while ended.is_ok() && self.outbox.has_room() {
            let lent = match self.outbox.link.receive() {
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
            if !self.outbox.link.has_buffered() {
                break;
            }
        }
        if frames > 0 {
            self.outbox.hear(now);
            // What was answered before the session went wrong is still true.
            let sent = self.outbox.flush(now);
            ended?;
            sent?;
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
            Lent::Blocks(header, body) => self.queue(header, body),
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
        Ok(self.outbox.queue(&parts[..1 + 2 * asked.len()])?)
    }

    fn queue(&mut self, header: &Header, body: &[u8]) -> Result<(), Ending> {
        Ok(self.outbox.queue(&[&header.encode(body.len()), body])?)
    }
}
