//! Signatures of the journal's owner. Instead of Ed25519 they are sums under a secret that hostile parts of
//! the simulator do not use; the drivers' tests use real ones.

use netram_proto::id::{JournalId, WriterId};
use netram_proto::owner::{FenceSignature, FenceStatement, is_credible, is_owned};
use netram_proto::planted::FaultSwitch;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};

use crate::lender::packet_of;

const SECRET: u64 = 0x9E37_79B9_7F4A_7C15;

/// The owner's signature of a fence.
fn sign(fence: &FenceStatement) -> FenceSignature {
    let mut sum = SECRET;
    for byte in fence.message() {
        sum = (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    let mut signature = [0; 64];
    for eight in signature.chunks_exact_mut(8) {
        sum = sum.rotate_left(29).wrapping_mul(SECRET);
        eight.copy_from_slice(&sum.to_le_bytes());
    }
    FenceSignature(signature)
}

/// Whether the owner made this signature of this fence.
pub(crate) fn is_signed(fence: &FenceStatement, signature: &FenceSignature) -> bool {
    sign(fence) == *signature
}

/// A frame of the journal's owner as it travels: a fence is signed.
pub(crate) fn owners_packet(journal: JournalId, header: &FrameHeader, body: &[u8]) -> Vec<u8> {
    if header.kind != FrameKind::Fence || !is_owned(journal.0) {
        return packet_of(header, body);
    }
    let FenceSignature(signature) = sign(&FenceStatement {
        journal,
        epoch: header.epoch,
        writer: WriterId(header.sender),
    });
    packet_of(header, &signature)
}

/// Whether the owner may believe a lender's frame, as the shipped driver decides.
pub(crate) fn is_believed(journal: JournalId, frame: &Frame<'_>, planted: FaultSwitch) -> bool {
    !is_owned(journal.0) || is_credible(journal, frame, &is_signed, planted)
}
