//! An append allocates nothing at the lender.
//!
//! A test binary of its own: the counting allocator sees every thread of the process, so the client's side
//! does not allocate either while it counts.

#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "all/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{TestWriter, WINDOW, config, memory_dir};
use netram_lender::{Lender, LenderConfig};
use netram_proto::id::Lsn;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::{Link, WaitPolicy};

struct AllocationCounter;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for AllocationCounter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

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
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for (header, record) in counted {
            let acked = round_trip(&mut writer.link, *header, record);
            assert_eq!(acked, header.lsn.plus(record.len() as u64));
        }
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "with {wait}");
    }
}
