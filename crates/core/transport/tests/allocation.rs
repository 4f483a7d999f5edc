//! Sending and receiving packets allocates nothing, in any thread, with or without encryption.

#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "all/common/mod.rs"]
mod common;

use common::*;
use netram_alloc_counter::{AllocationCounter, allocations};
use netram_transport::Link;

#[global_allocator]
static COUNTING: AllocationCounter = AllocationCounter;

/// Moves one packet without examining it, and returns its length.
fn carry(from: &mut Link, to: &mut Link, parts: &[&[u8]]) -> usize {
    from.send(parts).unwrap();
    loop {
        from.flush().unwrap();
        if let Some(packet) = to.receive().unwrap() {
            return packet.len();
        }
    }
}

/// The only test of its program, since the allocator counts for the whole process.
#[test]
fn sending_and_receiving_allocate_nothing() {
    let place = SocketDir::new();
    let large = packet(1, netram_transport::PACKET_BYTES_MAX);
    for (address, security) in kinds(&place) {
        let (mut client, mut lender) = pair(&address, &security);
        carry(&mut client, &mut lender, &[b"warm"]);
        let before = allocations();
        for _ in 0..1000 {
            assert_eq!(
                carry(&mut client, &mut lender, &[&large[..40], &large[..128]]),
                168
            );
            assert_eq!(carry(&mut lender, &mut client, &[&large[..40]]), 40);
            assert_eq!(lender.receive(), Ok(None));
        }
        for _ in 0..20 {
            assert_eq!(carry(&mut client, &mut lender, &[&large]), large.len());
        }
        assert_eq!(allocations() - before, 0, "{address}, {security:?}");
    }
}
