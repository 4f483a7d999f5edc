//! A lender that lies: its answers are changed before they leave.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};

use crate::kernel::SimKernel;
use crate::lender::packet_of;

/// An invented answer of a lying lender that lacks the bytes it claimed, as long as a frame can carry.
pub(crate) fn perhaps_make_up(kernel: &mut SimKernel, lender: usize, asked: &[u8]) -> Option<Vec<u8>> {
    if kernel.profile.hostile != Some(lender) {
        return None;
    }
    let frame = Frame::parse(asked).ok()?;
    if frame.header.kind == FrameKind::Fence && kernel.rng.chance(50) {
        return Some(play_back(kernel, &frame));
    }
    if frame.header.kind != FrameKind::Read || kernel.rng.chance(500) {
        return None;
    }
    kernel.hit("bytes made up");
    let header = FrameHeader {
        kind: FrameKind::Data,
        ..frame.header
    };
    Some(packet_of(&header, &vec![0x5A; FRAME_BODY_BYTES_MAX]))
}

/// A refusal of a fence that shows the fence itself, with its signature, as the newer writer's.
fn play_back(kernel: &mut SimKernel, fence: &Frame<'_>) -> Vec<u8> {
    kernel.hit("fences played back");
    let header = FrameHeader {
        kind: FrameKind::Refuse,
        flags: RefusalReason::Fenced as u8,
        ..fence.header
    };
    let body = [&fence.header.sender.to_le_bytes(), fence.body].concat();
    packet_of(&header, &body)
}

/// The answer as it leaves: a lying lender changes it now and then.
pub(crate) fn perhaps_lie(kernel: &mut SimKernel, lender: usize, mut packet: Vec<u8>) -> Vec<u8> {
    if kernel.profile.hostile != Some(lender) || kernel.rng.chance(600) {
        return packet;
    }
    kernel.hit("lies told");
    if kernel.rng.chance(100) {
        let at = kernel.rng.index(packet.len());
        packet[at] ^= 1 << kernel.rng.below(8);
        return packet;
    }
    if kernel.rng.chance(100) {
        packet.truncate(kernel.rng.index(packet.len() + 1));
        return packet;
    }
    let Ok(frame) = Frame::parse(&packet) else {
        return packet;
    };
    if kernel.rng.chance(30) {
        return claim_fence(kernel, &frame.header);
    }
    let (mut header, mut body) = (frame.header, frame.body.to_vec());
    match kernel.rng.below(8) {
        0 => header.lsn = Lsn(kernel.rng.draw()),
        1 => header.lsn = header.lsn.plus(kernel.rng.below(10_000)),
        2 => header.stable = Lsn(kernel.rng.draw()),
        3 => header.mark = header.mark.wrapping_add(kernel.rng.below(5) as u32),
        4 => header.flags = kernel.rng.draw() as u8,
        5 => header.sender ^= kernel.rng.draw(),
        6 => header.epoch = Epoch(kernel.rng.below(10) as u32),
        _ => body.resize(kernel.rng.index(200), 7),
    }
    if kernel.rng.chance(50) {
        header.kind = kernel.rng.pick(&[
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

/// A lie that a newer writer has fenced the lender.
fn claim_fence(kernel: &mut SimKernel, answer: &FrameHeader) -> Vec<u8> {
    kernel.hit("fences made up");
    let own = answer.epoch.0;
    let epoch = kernel
        .rng
        .pick(&[0, own.saturating_sub(1), own, own + 1, u32::MAX]);
    let header = FrameHeader {
        kind: FrameKind::Refuse,
        flags: RefusalReason::Fenced as u8,
        epoch: Epoch(epoch),
        ..*answer
    };
    packet_of(&header, &[])
}

/// A frame that answers no question, from a lying lender that has just been asked one.
pub(crate) fn perhaps_say_more(kernel: &mut SimKernel, lender: usize, answer: &[u8]) -> Option<Vec<u8>> {
    if kernel.profile.hostile != Some(lender) || kernel.rng.chance(800) {
        return None;
    }
    let answer = Frame::parse(answer).ok()?;
    kernel.hit("answers without a question");
    let header = FrameHeader {
        kind: FrameKind::Data,
        lsn: answer.header.lsn.min(Lsn(1 << 62)).plus(answer.body.len() as u64),
        ..answer.header
    };
    Some(packet_of(&header, &vec![0x5A; FRAME_BODY_BYTES_MAX]))
}
