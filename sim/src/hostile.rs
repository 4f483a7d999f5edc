//! A lender that lies: its answers are changed before they leave.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};

use crate::lender::packet_of;
use crate::world::World;

impl World {
    /// An invented answer of a lying lender that lacks the bytes it claimed, as long as a frame can carry.
    pub(crate) fn perhaps_make_up(&mut self, lender: usize, asked: &[u8]) -> Option<Vec<u8>> {
        if self.kernel.profile.hostile != Some(lender) {
            return None;
        }
        let frame = Frame::parse(asked).ok()?;
        if frame.header.kind != FrameKind::Read || self.kernel.rng.chance(500) {
            return None;
        }
        self.kernel.hit("bytes made up");
        let header = FrameHeader {
            kind: FrameKind::Data,
            ..frame.header
        };
        Some(packet_of(&header, &vec![0x5A; FRAME_BODY_BYTES_MAX]))
    }

    /// The answer as it leaves: a lying lender changes it now and then.
    pub(crate) fn perhaps_lie(&mut self, lender: usize, mut packet: Vec<u8>) -> Vec<u8> {
        if self.kernel.profile.hostile != Some(lender) || self.kernel.rng.chance(600) {
            return packet;
        }
        self.kernel.hit("lies told");
        if self.kernel.rng.chance(100) {
            let at = self.kernel.rng.index(packet.len());
            packet[at] ^= 1 << self.kernel.rng.below(8);
            return packet;
        }
        if self.kernel.rng.chance(100) {
            packet.truncate(self.kernel.rng.index(packet.len() + 1));
            return packet;
        }
        let Ok(frame) = Frame::parse(&packet) else {
            return packet;
        };
        let (mut header, mut body) = (frame.header, frame.body.to_vec());
        match self.kernel.rng.below(8) {
            0 => header.lsn = Lsn(self.kernel.rng.draw()),
            1 => header.lsn = header.lsn.plus(self.kernel.rng.below(10_000)),
            2 => header.stable = Lsn(self.kernel.rng.draw()),
            3 => header.mark = header.mark.wrapping_add(self.kernel.rng.below(5) as u32),
            4 => header.flags = self.kernel.rng.draw() as u8,
            5 => header.sender ^= self.kernel.rng.draw(),
            6 => header.epoch = Epoch(self.kernel.rng.below(10) as u32),
            _ => body.resize(self.kernel.rng.index(200), 7),
        }
        if self.kernel.rng.chance(50) {
            header.kind = self.kernel.rng.pick(&[
                FrameKind::Bound,
                FrameKind::Fenced,
                FrameKind::Ack,
                FrameKind::Pong,
                FrameKind::Data,
                FrameKind::LeaveAck,
                FrameKind::Refuse,
                FrameKind::Withdraw,
            ]);
        }
        packet_of(&header, &body)
    }
}
