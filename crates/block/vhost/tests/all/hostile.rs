//! Guests and virtual machines that break the rules.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_nbd::MemoryDevice;
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{DATA, GuestMachine, Part, QUEUE_SIZE, WRITABLE};
use crate::{MIB, serve};

/// Writes a block and reads it back, by a guest of its own.
fn works(directory: &std::path::Path) {
    let mut machine = GuestMachine::new();
    let connection = machine.connect(&directory.join("disk"));
    machine.header(DATA, 1, 0);
    machine.offer(&[(DATA, 16, 0), (DATA + 0x1000, 4096, 0), (DATA + 64, 1, WRITABLE)]);
    connection.kick();
    connection.wait(&machine, 1);
    assert_eq!(machine.byte(DATA + 64), 0);
}

#[test]
fn a_request_without_a_place_for_its_status_is_never_answered() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(MIB));
    let _server = serve(directory.path(), &device, false);
    let wrong: [&[Part]; 4] = [
        &[(DATA, 16, 0), (DATA + 0x1000, 4096, 0)],
        &[(DATA, 15, 0), (DATA + 64, 1, WRITABLE)],
        &[(DATA, 16, 0), (1 << 40, 512, 0), (DATA + 64, 1, WRITABLE)],
        &[
            (DATA, 16, 0),
            (u64::MAX - 8, 512, WRITABLE),
            (DATA + 64, 1, WRITABLE),
        ],
    ];
    for parts in wrong {
        let mut machine = GuestMachine::new();
        let connection = machine.connect(&directory.path().join("disk"));
        machine.header(DATA, 1, 0);
        // A good one first: it is answered, and tells that the next one was looked at.
        machine.offer(&[(DATA, 16, 0), (DATA + 0x1000, 512, 0), (DATA + 64, 1, WRITABLE)]);
        machine.offer(parts);
        machine.offer(&[(DATA, 16, 0), (DATA + 0x1000, 512, 0), (DATA + 64, 1, WRITABLE)]);
        connection.kick();
        connection.wait(&machine, 1);
        // Whoever stops the queue waits for its requests.
        connection.stop();
        assert_eq!(machine.answered(), 1, "{parts:?}");
        drop(connection);
        works(directory.path());
    }
}

#[test]
fn bytes_that_are_no_protocol_end_their_connection_only() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(MIB));
    let _server = serve(directory.path(), &device, false);
    for bytes in [&b""[..], &[0xff; 12], &[0; 4096], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = UnixStream::connect(directory.path().join("disk")).unwrap();
        // The server may have ended the connection already.
        let _ = stream.write_all(bytes);
        drop(stream);
        works(directory.path());
    }
}

#[test]
fn the_next_virtual_machine_is_served_when_the_first_has_gone() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(MIB));
    let server = serve(directory.path(), &device, false);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    works(directory.path());
    let before = descriptors();
    for _ in 0..50 {
        works(directory.path());
    }
    // The last one's may still be closing; other tests open some, too.
    let deadline = Instant::now() + Duration::from_secs(60);
    while descriptors() > before + 40 {
        assert!(
            Instant::now() < deadline,
            "{before} descriptors, then {}",
            descriptors()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.stats().sessions, 51);
}

#[test]
fn a_server_stops_although_a_guest_is_connected() {
    let directory = tempfile::tempdir().unwrap();
    let device = Arc::new(MemoryDevice::new(MIB));
    let server = serve(directory.path(), &device, false);
    let machine = GuestMachine::new();
    let _connection = machine.connect(&directory.path().join("disk"));
    drop(server);
    assert!(!directory.path().join("disk").exists());
    assert_eq!(Arc::strong_count(&device), 1, "nobody has the device any more");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a guest's memory holds, the server lives, and the disk behind it is not touched outside.
    #[test]
    fn any_queue_is_survived(
        descriptors in prop::collection::vec((any::<u64>(), any::<u32>(), 0u16..8, any::<u16>()), 1..64),
        near in any::<bool>(),
        available in prop::collection::vec(0..2 * QUEUE_SIZE, QUEUE_SIZE as usize),
        offered in any::<u16>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let device = Arc::new(MemoryDevice::new(MIB));
        let _server = serve(directory.path(), &device, false);
        let machine = GuestMachine::new();
        for (index, (address, bytes, flags, next)) in descriptors.into_iter().enumerate() {
            let (address, bytes) = match near {
                true => (address % (4 << 20), bytes % 8192),
                false => (address, bytes),
            };
            let at = 0x1000 + 16 * index as u64;
            machine.memory.write_obj(address, GuestAddress(at)).unwrap();
            let rest = u64::from(bytes) | u64::from(flags) << 32 | u64::from(next % QUEUE_SIZE) << 48;
            machine.memory.write_obj(rest, GuestAddress(at + 8)).unwrap();
        }
        for (index, head) in available.into_iter().enumerate() {
            machine.memory.write_obj(head, GuestAddress(0x4004 + 2 * index as u64)).unwrap();
        }
        machine.memory.write_obj(offered, GuestAddress(0x4002)).unwrap();
        let connection = machine.connect(&directory.path().join("disk"));
        connection.stop();
        drop(connection);
        works(directory.path());
    }
}
