//! A client with the cluster's key that means harm. It speaks to lenders of another client's journal, in its
//! own name or in the writer's. It knows the members' states.
//!
//! It changes nothing of a journal that has an owner (rule 15). From the writer of a journal without one it
//! can take members, and lie about the records they hold. The rules of members still hold, and recovery
//! refuses to open a journal that lacks acknowledged records; it never opens one silently.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::limit::WINDOW_BYTES_MIN;
use netram_proto::member::MemberState;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind, RecordHeader, finish_record};

use crate::check::rule15;
use crate::kernel::SimKernel;
use crate::lender::{PacketOutcome, packet_of};
use crate::lenders::Lenders;
use crate::net::Network;

/// Number of the intruder's connection.
pub(crate) const CONN: usize = usize::MAX - 1;
const NAME: u64 = 0xBAD;

/// Sends a few harmful frames to a lender.
pub(crate) fn run_intruder(
    kernel: &mut SimKernel,
    lenders: &mut Lenders,
    network: &mut Network,
    lender: usize,
) {
    kernel.hit("intruder: visits");
    for _ in 0..kernel.rng.between(1, 6) {
        let packet = draw_harmful_frame(kernel, &lenders[lender].state());
        if !send_packet(kernel, lenders, network, lender, &packet) {
            break;
        }
    }
    if lenders[lender].up {
        lenders[lender].forget(CONN);
    }
}

/// Sends a packet. `false` if no process listens.
fn send_packet(
    kernel: &mut SimKernel,
    lenders: &mut Lenders,
    network: &mut Network,
    lender: usize,
    packet: &[u8],
) -> bool {
    if !lenders[lender].up {
        return false;
    }
    let (journal, planted) = (kernel.journal(), kernel.planted());
    let bind = packet_of(&FrameHeader::new(FrameKind::Bind), &journal.0.to_le_bytes());
    let before = lenders[lender].state();
    // A second bind ends the session; the next frame begins another.
    if let PacketOutcome::Ended = lenders[lender].on_packet(CONN, &bind, journal, planted) {
        lenders[lender].forget(CONN);
        lenders[lender].on_packet(CONN, &bind, journal, planted);
    }
    let kind = Frame::parse(packet).map_or(0, |frame| frame.header.kind as u64);
    kernel.mark(12, kind);
    kernel.tell(|| format!("an intruder says a frame of kind {kind} to lender {lender}"));
    let outcome = lenders[lender].on_packet(CONN, packet, journal, planted);
    let after = lenders[lender].state();
    rule15::untouched(kernel, lender, &before, &after);
    if before != after {
        kernel.hit("intruder: members changed");
        lenders.mark_tampered(lender);
    }
    if before.epoch != after.epoch {
        kernel.hit("intruder: fences");
    }
    if let PacketOutcome::Died = outcome {
        network.lender_died(kernel, lender);
        return false;
    }
    true
}

/// Draws a harmful frame, mostly in the writer's name.
fn draw_harmful_frame(kernel: &mut SimKernel, state: &MemberState) -> Vec<u8> {
    let mut header = FrameHeader {
        epoch: state.epoch,
        sender: state.writer.0,
        lsn: state.received,
        ..FrameHeader::new(FrameKind::Append)
    };
    let mut body = Vec::new();
    match kernel.rng.below(20) {
        0 => {
            header.kind = FrameKind::Fence;
            header.epoch = Epoch(state.epoch.0 + kernel.rng.pick(&[0, 1, 1, 2, 1000]));
            header.sender = NAME;
        }
        1 | 2 => {
            header.kind = FrameKind::Join;
            header.lsn = draw_position(kernel, state.held);
            header.mark = kernel.rng.pick(&[state.chain, 0]);
            header.stable = Lsn(u64::from(state.generation) + kernel.rng.below(3));
            let bytes = kernel
                .rng
                .pick(&[kernel.profile.window, WINDOW_BYTES_MIN, 1 << 40]);
            body.extend_from_slice(&bytes.to_le_bytes());
        }
        3..7 => body = forged(kernel, state.held, state.chain, state.epoch),
        7 | 8 => {
            header.lsn = Lsn(state.received.0 + 8 * kernel.rng.between(1, 1000));
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
            header.lsn = draw_position(kernel, state.held);
            body.extend_from_slice(&u32::MAX.to_le_bytes());
        }
        _ => {
            header.kind = kernel
                .rng
                .pick(&[FrameKind::Append, FrameKind::Join, FrameKind::Ack]);
            header.lsn = draw_position(kernel, state.held);
            header.sender = NAME;
            body.resize(kernel.rng.index(300), 0x5A);
        }
    }
    packet_of(&header, &body)
}

fn draw_position(kernel: &mut SimKernel, held: Lsn) -> Lsn {
    match kernel.rng.below(4) {
        0 => held,
        1 => Lsn(kernel.rng.draw()),
        2 => Lsn(held.0.saturating_sub(8 * kernel.rng.below(100))),
        _ => Lsn(held.0 + 8 * kernel.rng.below(100)),
    }
}

/// A record that chains and has a valid CRC but no valid seal: the intruder lacks the journal's key.
fn forged(kernel: &mut SimKernel, lsn: Lsn, chain: u32, epoch: Epoch) -> Vec<u8> {
    let payload = kernel.rng.index(200);
    let link = ChainPoint { lsn, chain };
    let header = RecordHeader::new(link, epoch, Lsn(0), RecordKind(16), false, payload);
    let mut record = vec![0xBA; header.length];
    header.write(&mut record);
    finish_record(&mut record, kernel.journal().into());
    record
}
