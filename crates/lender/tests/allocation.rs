//! An append allocates nothing at the lender.
//!
//! A test binary of its own: the counting allocator sees every thread of the process, so the client's side
//! does not allocate either while it counts.

#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "all/common/mod.rs"]
mod common;

use common::{TestWriter, WINDOW, config, memory_dir};
use netram_alloc_counter::{AllocationCounter, allocations};
use netram_lender::{Lender, LenderConfig};
use netram_proto::id::Lsn;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::{Link, WaitPolicy};

#[global_allocator]
static ALLOCATOR: AllocationCounter = AllocationCounter;

/// Sends one append and waits for its acknowledgement, without allocating.
fn round_trip(link: &mut Link, header: FrameHeader, record: &[u8]) -> Lsn {
    link.send(&[&header.encode(record.len()), record]).unwrap();
    loop {
        if let Some(packet) = link.receive().unwrap() {
            let answer = Frame::parse(packet).unwrap().header;
            assert_eq!(answer.kind, FrameKind::Ack);
            return answer.lsn;
        }
        std::thread::yield_now();
    }
}

#[test]
fn an_append_and_its_acknowledgement_allocate_nothing() {
    for wait in [WaitPolicy::Block, WaitPolicy::default()] {
        let dir = memory_dir();
        let lender = Lender::start(LenderConfig { wait, ..config(&dir) }).unwrap();
        let mut writer = TestWriter::join(&lender.addresses()[0], 7, 1);
        // The ring wraps several times, so that the trim point moves, too.
        let appends: Vec<(FrameHeader, Vec<u8>)> = (0..2000_u32)
            .map(|index| {
                let mut header = writer.header(FrameKind::Append);
                (header.lsn, header.mark) = (writer.at.lsn, writer.at.chain);
                header.stable = Lsn(writer.at.lsn.0.saturating_sub(WINDOW / 2));
                (header, writer.record(&index.to_le_bytes().repeat(32)))
            })
            .collect();
        let (warm, counted) = appends.split_at(500);
        for (header, record) in warm {
            round_trip(&mut writer.link, *header, record);
        }
        let before = allocations();
        for (header, record) in counted {
            let acked = round_trip(&mut writer.link, *header, record);
            assert_eq!(acked, header.lsn.plus(record.len() as u64));
        }
        assert_eq!(allocations() - before, 0, "with {wait}");
    }
}
