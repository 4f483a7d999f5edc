//! Each kind of request, by a guest's driver.

use std::sync::Arc;

use netram_nbd::MemoryDevice;
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{DATA, DiskConnection, GuestMachine, WRITABLE};
use crate::{MIB, serve};

const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 64;
const BYTES: u64 = DATA + 0x1000;
/// A status that no disk gives.
const UNANSWERED: u8 = 0xee;

/// A disk, a guest that uses it, and the number of its requests.
struct Rig {
    machine: GuestMachine,
    connection: DiskConnection,
    count: u16,
}

impl Rig {
    fn new(directory: &std::path::Path) -> Rig {
        let machine = GuestMachine::new();
        let connection = machine.connect(&directory.join("disk"));
        Rig {
            machine,
            connection,
            count: 0,
        }
    }

    /// Status of a request with `bytes` of data, from the guest or for it; bytes written to its memory.
    fn ask(&mut self, kind: u32, sector: u64, bytes: u32, to_guest: bool) -> (u8, u32) {
        self.machine.header(HEADER, kind, sector);
        self.machine
            .memory
            .write_obj(UNANSWERED, GuestAddress(STATUS))
            .unwrap();
        let flags = if to_guest { WRITABLE } else { 0 };
        let mut parts = vec![(HEADER, 16, 0)];
        if bytes > 0 {
            // In two segments.
            let first = bytes / 2;
            parts.push((BYTES, first, flags));
            parts.push((BYTES + u64::from(first), bytes - first, flags));
        }
        parts.push((STATUS, 1, WRITABLE));
        self.machine.offer(&parts);
        self.connection.kick();
        self.count += 1;
        self.connection.wait(&self.machine, self.count);
        (self.machine.byte(STATUS), self.machine.answer(self.count - 1).1)
    }

    fn fill(&self, bytes: usize, with: u8) {
        self.machine
            .memory
            .write_slice(&vec![with; bytes], GuestAddress(BYTES))
            .unwrap();
    }

    fn data(&self, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.machine
            .memory
            .read_slice(&mut data, GuestAddress(BYTES))
            .unwrap();
        data
    }

    fn range(&self, sector: u64, sectors: u32, flags: u32) {
        self.machine
            .memory
            .write_obj(sector, GuestAddress(BYTES))
            .unwrap();
        let rest = u64::from(sectors) | u64::from(flags) << 32;
        self.machine
            .memory
            .write_obj(rest, GuestAddress(BYTES + 8))
            .unwrap();
    }
}

#[test]
fn what_is_written_is_read_and_flushed() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(64 * MIB));
    let server = serve(directory.path(), &device, false);
    let mut rig = Rig::new(directory.path());
    assert!(server.is_connected());
    // Larger than the buffer through which data passes.
    let bytes = 2 * MIB as usize + 512;
    rig.fill(bytes, 7);
    assert_eq!(rig.ask(1, 16, bytes as u32, false), (0, 1));
    rig.fill(bytes, 0);
    assert_eq!(rig.ask(0, 16, bytes as u32, true), (0, bytes as u32 + 1));
    assert!(rig.data(bytes).iter().all(|byte| *byte == 7));
    assert_eq!(rig.ask(4, 0, 0, false), (0, 1));
    assert_eq!(device.flushes(), 1);
    // Zeros, and a range that is not used any more.
    for kind in [13, 11] {
        rig.range(16, 8, 0);
        assert_eq!(rig.ask(kind, 0, 16, false), (0, 1), "{kind}");
        assert_eq!(rig.ask(0, 16, 8192, true), (0, 8193));
        let data = rig.data(8192);
        assert!(data[..4096].iter().all(|byte| *byte == 0) && data[4096..].iter().all(|byte| *byte == 7));
        rig.fill(4096, 7);
        assert_eq!(rig.ask(1, 16, 4096, false), (0, 1));
    }
    assert_eq!(rig.ask(8, 0, 20, true), (0, 21));
    assert_eq!(rig.data(20), b"a-name-of-more-than-");
    let stats = server.stats();
    assert_eq!(
        (stats.sessions, stats.flushes, stats.zeroes, stats.errors),
        (1, 1, 2, 0)
    );
    assert_eq!((stats.reads, stats.read_bytes), (3, bytes as u64 + 2 * 8192));
    assert_eq!((stats.writes, stats.written_bytes), (3, bytes as u64 + 2 * 4096));
}

#[test]
fn a_request_that_cannot_be_carried_out_gets_its_status() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(MIB));
    let server = serve(directory.path(), &device, false);
    let mut rig = Rig::new(directory.path());
    let sectors = MIB / 512;
    // Behind the end, at the end of numbers, half a sector, unknown, with undefined flags.
    assert_eq!(rig.ask(0, sectors, 512, true).0, 1);
    assert_eq!(rig.ask(1, sectors - 1, 1024, false).0, 1);
    assert_eq!(rig.ask(1, u64::MAX, 512, false).0, 1);
    assert_eq!(rig.ask(1, 0, 256, false).0, 1);
    assert_eq!(rig.ask(77, 0, 0, false).0, 2);
    rig.range(0, 8, 4);
    assert_eq!(rig.ask(13, 0, 16, false).0, 2);
    // A discard does not know the flag of zeros.
    rig.range(0, 8, 1);
    assert_eq!(rig.ask(11, 0, 16, false).0, 2);
    assert_eq!(server.stats().errors, 7);
    assert_eq!(rig.ask(1, 0, 512, false).0, 0, "and the next one is served");
}

#[test]
fn a_disk_that_may_only_be_read_refuses_changes() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(MIB));
    let _server = serve(directory.path(), &device, true);
    let mut rig = Rig::new(directory.path());
    rig.range(0, 8, 0);
    for kind in [1, 11, 13] {
        assert_eq!(rig.ask(kind, 0, 16, false).0, 1, "{kind}");
    }
    assert_eq!(rig.ask(0, 0, 512, true), (0, 513));
}

#[test]
fn a_guest_reads_the_size_of_a_disk_that_has_grown() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(MIB));
    let _server = serve(directory.path(), &device, false);
    let mut rig = Rig::new(directory.path());
    let sectors = |fields: &[u8]| u64::from_le_bytes(fields[..8].try_into().unwrap());
    let fields = rig.connection.fields(96);
    assert_eq!((fields.len(), sectors(&fields)), (96, MIB / 512));
    device.grow(2 * MIB);
    assert_eq!(sectors(&rig.connection.fields(60)), 2 * MIB / 512);
}

#[test]
fn many_requests_are_answered_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(64 * MIB));
    let server = serve(directory.path(), &device, false);
    let mut machine = GuestMachine::new();
    let connection = machine.connect(&directory.path().join("disk"));
    let mut heads = Vec::new();
    for round in 0..20u16 {
        for index in 0..40u64 {
            let at = DATA + 0x2000 * index;
            machine.header(at, 1, 8 * index);
            machine
                .memory
                .write_slice(&[round as u8; 4096], GuestAddress(at + 0x1000))
                .unwrap();
            heads.push(machine.next_head());
            machine.offer(&[(at, 16, 0), (at + 0x1000, 4096, 0), (at + 64, 1, WRITABLE)]);
        }
        connection.kick();
        connection.wait(&machine, 40 * (round + 1));
    }
    for (index, head) in heads.iter().enumerate().skip(heads.len() - 100) {
        assert_eq!(machine.answer(index as u16).0, u32::from(*head));
    }
    let stats = server.stats();
    assert_eq!(stats.writes, 800);
    assert!(stats.batches < 800, "{} batches", stats.batches);
}
