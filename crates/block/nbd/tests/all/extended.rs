//! Extended headers: 64-bit lengths, byte by byte over a real socket.

use std::sync::{Arc, Mutex};

use crate::common::*;
use netram_block::limit::REQUEST_BYTES_MAX;
use netram_block::{BlockDevice, DeviceError, DeviceGeometry, PendingWrite, SectorSpan};
use netram_nbd::NbdServer;
use netram_nbd::limit::STATUS_BYTES_MAX;
use netram_nbd::wire::request::{NbdRequest, command, flag};

const TIB: u64 = 1 << 40;
/// A length of more than 32 bits.
const WIDE: u64 = 5 << 30;

/// A device of 1 TiB of holes that records the ranges of zero requests and the lengths of hole queries.
#[derive(Default)]
struct Void {
    zeroed: Mutex<Vec<(u64, u64)>>,
    looked: Mutex<Vec<u64>>,
}

impl BlockDevice for Void {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            bytes: TIB,
            request_bytes_max: REQUEST_BYTES_MAX,
        }
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        into.fill(7);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<PendingWrite, DeviceError> {
        Ok(PendingWrite::default())
    }

    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        SectorSpan::check(offset, length, TIB)?;
        self.zeroed.lock().unwrap().push((offset, length));
        Ok(PendingWrite::default())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        self.zero(offset, length)
    }

    fn wait(&self, _: PendingWrite) -> Result<(), DeviceError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Data in the first and the last of ten GiB, and holes behind.
    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        SectorSpan::check(offset, length, TIB)?;
        self.looked.lock().unwrap().push(length);
        let runs = [
            (1 << 30, false),
            (8 << 30, true),
            (1 << 30, false),
            (TIB - (10 << 30), true),
        ];
        let _ = runs.iter().all(|(length, hole)| each(*length, *hole));
        Ok(())
    }
}

/// A client that has negotiated extended headers and chosen the export with GO, and the export's flags.
fn extended(place: &SocketDirectory) -> (Client, u16) {
    let mut client = Client::connect(&place.socket());
    client.send(&3_u32.to_be_bytes());
    client.send(&option(11, b""));
    assert_eq!(client.take(20)[12..16], 1_u32.to_be_bytes(), "ACK");
    client.send(&option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"));
    client.take(20 + 19 + 20);
    client.send(&option(7, b"\0\0\0\0\0\0"));
    let export = client.take(20 + 12);
    client.take(20 + 14 + 20);
    (client, u16::from_be_bytes([export[30], export[31]]))
}

fn ask(client: &mut Client, command: u16, flags: u16, cookie: u64, offset: u64, length: u64) {
    let request = NbdRequest {
        flags,
        command,
        cookie,
        offset,
        length,
    };
    client.send(&request.encode_extended());
}

/// Flags, kind and data of a chunk, which must be about this request.
fn chunk(client: &mut Client, cookie: u64, offset: u64) -> (u16, u16, Vec<u8>) {
    let head = client.take(32);
    assert_eq!(head[..4], [0x6e, 0x8a, 0x27, 0x8c], "an extended chunk");
    assert_eq!(head[8..16], cookie.to_be_bytes());
    assert_eq!(head[16..24], offset.to_be_bytes());
    let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let length = u64::from_be_bytes(head[24..32].try_into().unwrap());
    (number(4), number(6), client.take(length as usize))
}

/// The error that ends a request.
fn refusal(client: &mut Client, cookie: u64, offset: u64) -> u32 {
    let (flags, kind, data) = chunk(client, cookie, offset);
    assert_eq!((flags, kind), (1, 0x8001));
    u32::from_be_bytes(data[..4].try_into().unwrap())
}

fn serve_void(place: &SocketDirectory) -> (NbdServer, Arc<Void>) {
    let device = Arc::new(Void::default());
    let server = NbdServer::start(config(place, Arc::<Void>::clone(&device))).unwrap();
    (server, device)
}

#[test]
fn zeros_discards_and_block_status_accept_64_bit_lengths() {
    let place = SocketDirectory::new();
    let (_server, device) = serve_void(&place);
    let (mut client, flags) = extended(&place);
    assert!(flags & 1 << 12 != 0, "BLOCK_STAT_PAYLOAD: {flags:#x}");
    ask(&mut client, command::WRITE_ZEROES, 0, 1, 4096, WIDE);
    ask(&mut client, command::TRIM, flag::FUA, 2, 8192, TIB - 8192);
    ask(&mut client, command::CACHE, 0, 3, 0, TIB);
    ask(&mut client, command::FLUSH, 0, 4, 0, 0);
    for (cookie, offset) in [(1, 4096), (2, 8192), (3, 0), (4, 0)] {
        assert_eq!(chunk(&mut client, cookie, offset), (1, 0, vec![]));
    }
    assert_eq!(*device.zeroed.lock().unwrap(), [(4096, WIDE), (8192, TIB - 8192)]);
    ask(&mut client, command::BLOCK_STATUS, 0, 5, 0, 10 << 30);
    let (flags, kind, data) = chunk(&mut client, 5, 0);
    assert_eq!((flags, kind), (1, 6));
    assert_eq!(data[..8], [0, 0, 0, 1, 0, 0, 0, 3]);
    let runs = [1_u64 << 30, 0, 8 << 30, 3, 1 << 30, 0].map(u64::to_be_bytes);
    assert_eq!(data[8..], *runs.as_flattened());
    for (command, error) in [
        (command::WRITE_ZEROES, 28),
        (command::TRIM, 22),
        (command::BLOCK_STATUS, 22),
    ] {
        for length in [TIB, u64::MAX - 511] {
            ask(&mut client, command, 0, 6, 4096, length);
            assert_eq!(refusal(&mut client, 6, 4096), error, "{command} {length}");
        }
    }
}

#[test]
fn a_block_status_of_the_whole_device_is_answered_in_bounded_parts() {
    let place = SocketDirectory::new();
    let (_server, device) = serve_void(&place);
    let (mut client, _) = extended(&place);
    ask(&mut client, command::BLOCK_STATUS, 0, 1, 0, TIB);
    let (flags, kind, data) = chunk(&mut client, 1, 0);
    assert_eq!((flags, kind), (1, 6));
    let runs = [1_u64 << 30, 0, 8 << 30, 3, 1 << 30, 0, 6 << 30, 3].map(u64::to_be_bytes);
    assert_eq!(data[8..], *runs.as_flattened());
    assert_eq!(*device.looked.lock().unwrap(), [STATUS_BYTES_MAX]);
}

#[test]
fn reads_and_writes_carry_their_payloads() {
    let place = SocketDirectory::new();
    let (_server, _) = serve(&place, 64 << 20);
    let (mut client, _) = extended(&place);
    let large = (32 << 20) - 512;
    for (cookie, length) in [(1, 512), (2, 65536), (3, large)] {
        let data = pattern(cookie, length as usize);
        ask(
            &mut client,
            command::WRITE,
            flag::PAYLOAD_LEN,
            cookie,
            512,
            length,
        );
        client.send(&data);
        assert_eq!(chunk(&mut client, cookie, 512), (1, 0, vec![]));
        ask(&mut client, command::READ, 0, cookie, 512, length);
        let mut found = vec![0; length as usize];
        loop {
            let (flags, kind, piece) = chunk(&mut client, cookie, 512);
            assert_eq!(kind, 1, "the whole range must be data");
            let at = (u64::from_be_bytes(piece[..8].try_into().unwrap()) - 512) as usize;
            found[at..at + piece.len() - 8].copy_from_slice(&piece[8..]);
            if flags == 1 {
                break;
            }
        }
        assert!(found == data, "{length}");
    }
    ask(&mut client, command::READ, 0, 4, 0, WIDE);
    assert_eq!(refusal(&mut client, 4, 0), 22);
    // The payload of a refused write is skipped, as is one where none is allowed.
    for (command, length, error) in [
        (command::WRITE, 33 << 20, 22),
        (command::READ, 4096, 22),
        (command::TRIM, 7, 22),
    ] {
        ask(&mut client, command, flag::PAYLOAD_LEN, 5, 0, length);
        client.send(&vec![1; length as usize]);
        assert_eq!(refusal(&mut client, 5, 0), error, "{command}");
    }
    ask(&mut client, command::READ, 0, 6, 0, 512);
    assert_eq!(chunk(&mut client, 6, 0).2.len(), 520);
}

#[test]
fn a_block_status_may_name_only_the_existing_context() {
    let place = SocketDirectory::new();
    let (_server, _) = serve_void(&place);
    let (mut client, _) = extended(&place);
    let payload = |length: u64, contexts: &[u32]| {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend(contexts.iter().flat_map(|context| context.to_be_bytes()));
        bytes
    };
    let status = |client: &mut Client, bytes: &[u8]| {
        let length = bytes.len() as u64;
        ask(client, command::BLOCK_STATUS, flag::PAYLOAD_LEN, 1, 0, length);
        // A server that took header and payload for one would wait for the rest.
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        client.send(first);
        std::thread::yield_now();
        client.send(rest);
    };
    status(&mut client, &payload(1 << 30, &[1]));
    let (_, kind, data) = chunk(&mut client, 1, 0);
    assert_eq!((kind, data.len()), (6, 8 + 16));
    assert_eq!(data[8..16], (1_u64 << 30).to_be_bytes());
    for wrong in [
        payload(4096, &[2]),
        payload(4096, &[]),
        payload(4096, &[1, 1]),
        vec![0; 7],
        vec![0; 100_000],
    ] {
        status(&mut client, &wrong);
        assert_eq!(refusal(&mut client, 1, 0), 22, "{} bytes", wrong.len());
    }
    status(&mut client, &payload(TIB + 512, &[1]));
    assert_eq!(refusal(&mut client, 1, 0), 22);
}

#[test]
fn options_incompatible_with_extended_headers_are_refused() {
    let place = SocketDirectory::new();
    let (_server, _) = serve_void(&place);
    let mut client = Client::connect(&place.socket());
    client.send(&3_u32.to_be_bytes());
    let mut kind = |number: u32, data: &[u8]| {
        client.send(&option(number, data));
        let head = client.take(20);
        client.take(u32::from_be_bytes(head[16..20].try_into().unwrap()) as usize);
        u32::from_be_bytes(head[12..16].try_into().unwrap())
    };
    assert_eq!(kind(11, b"x"), (1 << 31) + 3);
    assert_eq!(kind(8, b""), 1);
    assert_eq!(kind(11, b""), 1);
    assert_eq!(kind(11, b""), (1 << 31) + 3);
    assert_eq!(kind(8, b""), (1 << 31) + 10);
    client.send(&option(1, b""));
    assert!(client.is_closed(), "EXPORT_NAME");
    // A compact header, and a payload that is too long to skip.
    let (mut client, _) = extended(&place);
    client.request(command::READ, 0, 1, 0, 512);
    client.send(&[0; 4]);
    assert!(client.is_closed(), "a compact request");
    let (mut client, _) = extended(&place);
    ask(&mut client, command::WRITE, flag::PAYLOAD_LEN, 1, 0, 1 << 33);
    assert!(client.is_closed(), "8 GiB to skip");
}
