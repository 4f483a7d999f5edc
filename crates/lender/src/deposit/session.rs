//! A session of a deposit: it reads frames, answers them, and sends once a turn.

use std::time::Instant;

use netram_far_machine::deposit::{DepositReply, DepositServer, SlotRequest, page_header};
use netram_far_machine::limit::{DEPOSIT_FRAMES_MAX, FRAME_PAGES_MAX, PAGE_HEADER_BYTES};
use netram_proto::id::{DepositId, Epoch};
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::Link;

use super::memory::DepositMemory;
use crate::accept::ClientVisit;
use crate::drain::WithdrawNotice;
use crate::limit::FRAMES_PER_TURN;
use crate::outbox::{Outbox, SessionEnd};
use crate::state::{ConnectionPermit, DaemonState};

/// Maximum frames that are handled after a link has ended: those that an owner may have in flight, and those
/// by which it leaves.
const LAST_FRAMES_MAX: usize = DEPOSIT_FRAMES_MAX + 8;

pub(super) struct DepositSession {
    pub(super) outbox: Outbox,
    pub(super) id: DepositId,
    pub(super) epoch: Epoch,
    /// The notice that the owner has been given.
    pub(super) told: Option<WithdrawNotice>,
    /// Whether the thread has it on its list of sessions with frames that the kernel does not report again.
    pub(super) is_due: bool,
    /// The cost of the session for its client and the lender.
    _held: (ClientVisit, ConnectionPermit),
}

impl DepositSession {
    pub(super) fn new(
        link: Link,
        id: DepositId,
        epoch: Epoch,
        held: (ClientVisit, ConnectionPermit),
        now: Instant,
    ) -> DepositSession {
        DepositSession {
            outbox: Outbox::new(link, now),
            id,
            epoch,
            told: None,
            is_due: false,
            _held: held,
        }
    }

    /// Sends a frame together with everything queued.
    pub(super) fn say(&mut self, header: &FrameHeader, body: &[u8], now: Instant) -> Result<(), SessionEnd> {
        self.queue(header, body)?;
        Ok(self.outbox.flush(now)?)
    }

    /// Whether there are frames for another turn, which the kernel does not report again.
    pub(super) fn has_more(&self) -> bool {
        !self.outbox.is_blocked() && self.outbox.link.has_buffered()
    }

    /// Reads and answers some frames that have arrived: at most what one read of the socket brings, and a
    /// bounded number. Returns whether there were any. Allocates only for a resize and for blocks.
    pub(super) fn turn(
        &mut self,
        holder: &mut DepositServer,
        memory: &mut DepositMemory,
        shared: &DaemonState,
        now: Instant,
    ) -> Result<bool, SessionEnd> {
        if !self.outbox.ready(now)? {
            return Ok(false);
        }
        let (mut frames, mut ended) = (0, Ok(()));
        while ended.is_ok() && self.outbox.has_room() && frames < FRAMES_PER_TURN {
            let lent = match self.outbox.link.receive() {
                Ok(Some(packet)) => match Frame::parse(packet) {
                    Ok(frame) => {
                        shared.deposits.count(frame.header.kind);
                        holder.handle(&frame, memory)
                    }
                    Err(_) => DepositReply::Frame(shared.refusal(RefusalReason::Malformed)),
                },
                Ok(None) => break,
                Err(error) => {
                    ended = Err(SessionEnd::Link(error));
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
            self.outbox.note_contact(now);
            // Answers from before the session failed are still valid.
            let sent = self.outbox.flush(now);
            ended?;
            sent?;
        } else {
            ended?;
        }
        Ok(frames > 0)
    }

    /// Handles the frames that arrived before the link ended, without an answer. The last of them may free
    /// the slots: an owner that leaves does not wait for an answer to that, and the answer to a frame before
    /// it may be the one that could not be sent.
    pub(super) fn finish(
        &mut self,
        holder: &mut DepositServer,
        memory: &mut DepositMemory,
        shared: &DaemonState,
    ) {
        for _ in 0..LAST_FRAMES_MAX {
            let Ok(Some(packet)) = self.outbox.link.receive() else {
                return;
            };
            let Ok(frame) = Frame::parse(packet) else {
                return;
            };
            shared.deposits.count(frame.header.kind);
            holder.handle(&frame, memory);
        }
    }

    fn answer(
        &mut self,
        lent: &DepositReply,
        memory: &DepositMemory,
        shared: &DaemonState,
    ) -> Result<(), SessionEnd> {
        match lent {
            DepositReply::Frame(header) => {
                self.queue(header, &[])?;
                if header.kind != FrameKind::Refuse {
                    return Ok(());
                }
                shared.deposits.refused(header.flags);
                match RefusalReason::from_byte(header.flags) {
                    Some(RefusalReason::NoRoom) | None => Ok(()),
                    Some(refusal) => Err(SessionEnd::Refused(refusal)),
                }
            }
            DepositReply::Pong(header, number) => self.queue(header, &number.to_le_bytes()),
            DepositReply::Blocks(header, body) => self.queue(header, body),
            DepositReply::Pages(header, asked, count) => self.queue_pages(header, &asked[..*count], memory),
        }
    }

    /// Queues pages directly from their slots.
    fn queue_pages(
        &mut self,
        header: &FrameHeader,
        asked: &[SlotRequest],
        memory: &DepositMemory,
    ) -> Result<(), SessionEnd> {
        let mut heads = [[0; PAGE_HEADER_BYTES]; FRAME_PAGES_MAX];
        for (head, page) in heads.iter_mut().zip(asked) {
            *head = page_header(page.slot, page.version, page.bytes.into());
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

    fn queue(&mut self, header: &FrameHeader, body: &[u8]) -> Result<(), SessionEnd> {
        Ok(self.outbox.queue(&[&header.encode(body.len()), body])?)
    }
}
