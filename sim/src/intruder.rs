//! A client with the cluster's key that means harm. It speaks to lenders of another client's journal, in its
//! own name or in the writer's. Every member names its writer to any client that asks.
//!
//! It can take members from the writer and lie about the records they hold, because journals have no owners.
//! The rules of members still hold, and recovery refuses to open a journal that lacks acknowledged records;
//! it never opens one silently.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::limit::WINDOW_BYTES_MIN;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind, RecordHeader, finish_record};

use crate::lender::{PacketOutcome, packet_of};
use crate::world::World;

/// Number of the intruder's connection.
const CONN: usize = usize::MAX;
const NAME: u64 = 0xBAD;

impl World {
    /// Sends a few harmful frames to a lender.
    pub(crate) fn run_intruder(&mut self, lender: usize) {
        self.kernel.hit("intruder: visits");
        for _ in 0..self.kernel.rng.between(1, 6) {
            let packet = self.draw_harmful_frame(lender);
            if !self.send_as_intruder(lender, &packet) {
                break;
            }
        }
        if self.lenders[lender].up {
            self.lenders[lender].forget(CONN);
        }
    }

    /// Sends a packet. `false` if no process listens.
    fn send_as_intruder(&mut self, lender: usize, packet: &[u8]) -> bool {
        if !self.lenders[lender].up {
            return false;
        }
        let (journal, planted) = (self.kernel.journal(), self.kernel.planted());
        let bind = packet_of(&FrameHeader::new(FrameKind::Bind), &journal.0.to_le_bytes());
        let before = self.lenders[lender].state();
        // A second bind ends the session; the next frame begins another.
        if let PacketOutcome::Ended = self.lenders[lender].on_packet(CONN, &bind, journal, planted) {
            self.lenders[lender].forget(CONN);
            self.lenders[lender].on_packet(CONN, &bind, journal, planted);
        }
        let kind = Frame::parse(packet).map_or(0, |frame| frame.header.kind as u64);
        self.kernel.mark(12, kind);
        self.kernel
            .tell(|| format!("an intruder says a frame of kind {kind} to lender {lender}"));
        let outcome = self.lenders[lender].on_packet(CONN, packet, journal, planted);
        let after = self.lenders[lender].state();
        if before != after {
            self.kernel.hit("intruder: members changed");
            self.tampered[lender] = true;
        }
        if before.epoch != after.epoch {
            self.kernel.hit("intruder: fences");
        }
        if let PacketOutcome::Died = outcome {
            self.lender_died(lender);
            return false;
        }
        true
    }

    /// Draws a harmful frame, mostly in the writer's name.
    fn draw_harmful_frame(&mut self, lender: usize) -> Vec<u8> {
        let state = self.lenders[lender].state();
        let mut header = FrameHeader {
            epoch: state.epoch,
            sender: state.writer.0,
            lsn: state.received,
            ..FrameHeader::new(FrameKind::Append)
        };
        let mut body = Vec::new();
        match self.kernel.rng.below(20) {
            0 => {
                header.kind = FrameKind::Fence;
                header.epoch = Epoch(state.epoch.0 + self.kernel.rng.pick(&[0, 1, 1, 2, 1000]));
                header.sender = NAME;
            }
            1 | 2 => {
                header.kind = FrameKind::Join;
                header.lsn = self.draw_position(state.held);
                header.mark = self.kernel.rng.pick(&[state.chain, 0]);
                header.stable = Lsn(u64::from(state.generation) + self.kernel.rng.below(3));
                let bytes = self
                    .kernel
                    .rng
                    .pick(&[self.kernel.profile.window, WINDOW_BYTES_MIN, 1 << 40]);
                body.extend_from_slice(&bytes.to_le_bytes());
            }
            3..7 => body = self.forged(state.held, state.chain, state.epoch),
            7 | 8 => {
                header.lsn = Lsn(state.received.0 + 8 * self.kernel.rng.between(1, 1000));
                (header.stable, header.flags) = (header.lsn, Flag::FRESH);
            }
            9..12 => {
                header.kind = FrameKind::Ping;
                header.stable = state.held;
            }
            12 => {
                header.kind = FrameKind::Leave;
                (header.lsn, header.mark) = (Lsn(state.window_epoch.0.into()), state.generation);
            }
            13 => header.kind = FrameKind::Status,
            14 | 15 => {
                header.kind = FrameKind::Read;
                header.lsn = self.draw_position(state.held);
                body.extend_from_slice(&u32::MAX.to_le_bytes());
            }
            _ => {
                header.kind = self
                    .kernel
                    .rng
                    .pick(&[FrameKind::Append, FrameKind::Join, FrameKind::Ack]);
                header.lsn = self.draw_position(state.held);
                header.sender = NAME;
                body.resize(self.kernel.rng.index(300), 0x5A);
            }
        }
        packet_of(&header, &body)
    }

    fn draw_position(&mut self, held: Lsn) -> Lsn {
        match self.kernel.rng.below(4) {
            0 => held,
            1 => Lsn(self.kernel.rng.draw()),
            2 => Lsn(held.0.saturating_sub(8 * self.kernel.rng.below(100))),
            _ => Lsn(held.0 + 8 * self.kernel.rng.below(100)),
        }
    }

    /// A record that chains and has a valid CRC but no valid seal: the intruder lacks the journal's key.
    fn forged(&mut self, lsn: Lsn, chain: u32, epoch: Epoch) -> Vec<u8> {
        let payload = self.kernel.rng.index(200);
        let link = ChainPoint { lsn, chain };
        let header = RecordHeader::new(link, epoch, Lsn(0), RecordKind(16), false, payload);
        let mut record = vec![0xBA; header.length];
        header.write(&mut record);
        finish_record(&mut record, self.kernel.journal().into());
        record
    }

    /// Whether a lender's answers mean nothing: it lies, or an intruder has changed the journal's member
    /// there.
    pub(crate) fn is_untrusted(&self, lender: usize) -> bool {
        self.kernel.profile.hostile == Some(lender) || self.tampered[lender]
    }

    /// Whether the world has a lying lender or an intruder.
    pub(crate) fn has_liars(&self) -> bool {
        self.kernel.profile.hostile.is_some() || self.kernel.profile.intruded
    }

    /// Whether a member's record opens under the journal's key, which proves that a holder of the key wrote
    /// it.
    pub(crate) fn opens(&self, host: usize, lsn: Lsn, record: &[u8]) -> bool {
        let history = &self.hosts[host].history;
        let end = lsn.0.saturating_add(record.len() as u64);
        !self.kernel.profile.intruded || end <= history.tail().0 && history.bytes(lsn, Lsn(end)) == record
    }
}
