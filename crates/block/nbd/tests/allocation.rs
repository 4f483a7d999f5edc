//! Serving requests does not allocate: reads, holes, writes of any length, zeros, flushes, refusals.

#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "all/common/mod.rs"]
mod common;

use common::*;
use netram_alloc_counter::{AllocationCounter, allocations};
use netram_nbd::wire::request::{command, flag};

#[global_allocator]
static COUNTING: AllocationCounter = AllocationCounter;

const MIB: usize = 1 << 20;

/// The client's bytes and the length of the replies, both prepared before the count starts.
struct Round {
    sent: Vec<u8>,
    answered: usize,
    received: Vec<u8>,
}

impl Round {
    /// Requests of every kind to an export whose first 4 MiB are data and whose rest is a hole.
    fn new() -> Round {
        let mut sent = Vec::new();
        let mut answered = 0;
        let write = |sent: &mut Vec<u8>, flags, length: usize| {
            sent.extend(request(command::WRITE, flags, 1, 0, length as u32));
            sent.extend(pattern(1, length));
        };
        for flags in [0, flag::FUA] {
            write(&mut sent, flags, 4096);
            answered += 16;
        }
        write(&mut sent, 0, 4 * MIB);
        answered += 16;
        let mut ask = |command, flags, offset: usize, length: usize, reply: usize| {
            sent.extend(request(command, flags, 2, offset as u64, length as u32));
            answered += reply;
        };
        ask(command::READ, 0, 0, 4096, 28 + 4096);
        ask(command::READ, 0, 3 * MIB, 2 * MIB, 28 + MIB + 32);
        ask(command::BLOCK_STATUS, 0, 0, 8 * MIB, 20 + 4 + 16);
        ask(command::WRITE_ZEROES, 0, 6 * MIB, MIB, 16);
        ask(command::TRIM, 0, 6 * MIB, MIB, 16);
        ask(command::CACHE, 0, 0, MIB, 16);
        ask(command::FLUSH, 0, 0, 0, 16);
        Round {
            sent,
            answered,
            received: vec![0; answered],
        }
    }

    fn go(&mut self, client: &mut Client) {
        use std::io::{Read, Write};
        // Requests with large replies are the last and small, so they are sent completely before a reply
        // blocks.
        client.stream.write_all(&self.sent).unwrap();
        client.stream.read_exact(&mut self.received).unwrap();
        assert_eq!(self.received.len(), self.answered);
    }
}

/// The only test, because the count is that of the whole process.
#[test]
fn serving_requests_allocates_nothing() {
    let place = SocketDirectory::new();
    let (server, _device) = serve(&place, 8 * MIB as u64);
    let mut client = Client::structured(&place.socket());
    let mut round = Round::new();
    round.go(&mut client);
    let before = allocations();
    for _ in 0..20 {
        round.go(&mut client);
    }
    assert_eq!(allocations() - before, 0);
    let stats = server.stats();
    assert_eq!((stats.reads, stats.writes, stats.errors), (42, 63, 0));
}
