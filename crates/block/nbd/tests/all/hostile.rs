//! Clients that lie, stall, flood and disconnect at any point, against a real server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::*;
use netram_nbd::limit::{CONNECTIONS_MAX, PENDING_CONNECTIONS_MAX};
use netram_nbd::wire::request::{NbdRequest, command};

const MIB: u64 = 1 << 20;

/// Checks that the server serves a proper client, which finds its bytes unchanged.
fn is_sound(socket: &Path) {
    let mut client = Client::ready(socket);
    client.request(command::WRITE, 0, 1, MIB, 4096);
    client.send(&pattern(9, 4096));
    assert_eq!(client.reply(), Reply { cookie: 1, error: 0 });
    client.request(command::READ, 0, 2, MIB, 4096);
    assert_eq!(client.reply(), Reply { cookie: 2, error: 0 });
    assert!(client.take(4096) == pattern(9, 4096));
}

#[test]
fn an_invalid_request_ends_the_connection() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    let mut client = Client::ready(&place.socket());
    client.send(&[0xab; 64]);
    assert!(client.is_closed());
    drop(client);
    wait_until("the connection is gone", || server.connections() == 0);
    is_sound(&place.socket());
}

#[test]
fn an_option_of_4_gib_ends_the_connection() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    let mut client = Client::connect(&place.socket());
    client.send(&3_u32.to_be_bytes());
    let mut option = option(7, b"");
    option[12..16].fill(0xff);
    client.send(&option);
    assert!(client.is_closed());
    drop(client);
    wait_until("the connection is gone", || server.stats().rejected == 1);
    is_sound(&place.socket());
}

#[test]
fn clients_that_disconnect_anywhere_leave_nothing_behind() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    let mut whole = 3_u32.to_be_bytes().to_vec();
    whole.extend(option(8, b""));
    whole.extend(option(7, b"\0\0\0\0\0\0"));
    whole.extend(request(command::WRITE, 0, 1, 0, 1024));
    whole.extend(pattern(1, 1024));
    whole.extend(request(command::READ, 0, 1, 0, 1024));
    for cut in (0..whole.len()).step_by(7) {
        let mut client = Client::connect(&place.socket());
        client.send(&whole[..cut]);
        drop(client);
        wait_until("the connection is gone", || server.connections() == 0);
    }
    is_sound(&place.socket());
}

#[test]
fn a_flood_of_new_connections_does_not_affect_an_established_client() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    let mut inside = Client::ready(&place.socket());
    // Once answered, the client is no longer pending.
    inside.request(command::FLUSH, 0, 0, 0, 0);
    assert_eq!(inside.reply().error, 0);
    let mut flood: Vec<UnixStream> = (0..PENDING_CONNECTIONS_MAX + 20)
        .map(|_| UnixStream::connect(place.socket()).unwrap())
        .collect();
    // Connections beyond the limit are closed without a greeting.
    let mut away = 0;
    for stream in &mut flood {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        away += usize::from(!matches!(stream.read(&mut [0; 18]), Ok(1..)));
    }
    assert_eq!(away, 20);
    inside.request(command::FLUSH, 0, 1, 0, 0);
    assert_eq!(inside.reply().error, 0);
    drop(flood);
    wait_until("the flood is gone", || server.connections() == 1);
    is_sound(&place.socket());
}

/// Thirty-two connections that said nothing kept everybody else out.
#[test]
fn silent_connections_give_way_to_a_client() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    let silent: Vec<UnixStream> = (0..PENDING_CONNECTIONS_MAX)
        .map(|_| UnixStream::connect(place.socket()).unwrap())
        .collect();
    wait_until("all silent connections are accepted", || {
        server.connections() == PENDING_CONNECTIONS_MAX
    });
    // A client tries again until the silent ones have had their grace.
    let mut tries = 0;
    let mut client = loop {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        if matches!(stream.read(&mut [0; 18]), Ok(1..)) {
            break stream;
        }
        tries += 1;
        assert!(tries < 1000, "a client is kept out");
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut closed = 0;
    for mut stream in silent {
        stream.set_nonblocking(true).unwrap();
        let mut greeting = [0; 64];
        let mut end = stream.read(&mut greeting);
        if matches!(end, Ok(1..)) {
            end = stream.read(&mut greeting);
        }
        closed += usize::from(matches!(end, Ok(0)));
    }
    assert_eq!(closed, 1, "one place was needed, and one is given");
    client.write_all(&3_u32.to_be_bytes()).unwrap();
}

#[test]
fn a_client_beyond_the_limit_is_closed_and_a_freed_place_is_reused() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    let mut clients: Vec<Client> = (0..CONNECTIONS_MAX)
        .map(|_| {
            let mut client = Client::ready(&place.socket());
            client.request(command::FLUSH, 0, 1, 0, 0);
            assert_eq!(client.reply().error, 0);
            client
        })
        .collect();
    let mut stream = UnixStream::connect(place.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(!matches!(stream.read(&mut [0; 18]), Ok(1..)), "no greeting");
    clients.pop();
    wait_until("a place is free", || server.connections() < CONNECTIONS_MAX);
    is_sound(&place.socket());
}

#[test]
fn a_short_run_of_random_clients() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    for seed in 1..=200 {
        lie(&place.socket(), seed);
    }
    wait_until("all connections are gone", || server.connections() == 0);
    is_sound(&place.socket());
}

/// The same for hours: `NETRAM_SECONDS=600 cargo test --release -p netram-nbd --test all hostile:: --
/// --ignored --nocapture`
#[test]
#[ignore = "runs for NETRAM_SECONDS"]
fn a_long_run_of_random_clients() {
    let seconds =
        std::env::var("NETRAM_SECONDS").map_or(60, |text| text.parse().expect("a number of seconds"));
    let first = std::env::var("NETRAM_SEED").map_or(1, |text| text.parse().expect("a seed"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    let mut seed: u64 = first;
    while Instant::now() < end {
        lie(&place.socket(), seed);
        seed += 1;
        if seed.is_multiple_of(1000) {
            wait_until("all connections are gone", || server.connections() == 0);
            is_sound(&place.socket());
        }
    }
    eprintln!(
        "{} clients, the last of seed {}: {:?}",
        seed - first,
        seed - 1,
        server.stats()
    );
}

/// A client that begins properly and continues at random: options and requests with some wrong fields,
/// payloads of the wrong length, flipped bytes, cut off anywhere. A stall is found by the timeout.
fn lie(socket: &Path, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut bytes = vec![];
    bytes.extend((dice.below(8) as u32 & 3).to_be_bytes());
    add_options(&mut dice, &mut bytes);
    add_requests(&mut dice, &mut bytes);
    for _ in 0..dice.below(3) {
        let at = dice.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << dice.below(8);
    }
    bytes.truncate(bytes.len() - dice.below(bytes.len() as u64 / 4 + 1) as usize);

    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let drain = std::thread::spawn(move || {
        let mut all = vec![0; 65536];
        loop {
            match reader.read(&mut all) {
                Ok(0) => return,
                Ok(_) => (),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("the server neither answers nor closes")
                }
                Err(_) => return,
            }
        }
    });
    for part in bytes.chunks(1 + dice.below(20_000) as usize) {
        // The server may have closed the connection already.
        if (&stream).write_all(part).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    drain
        .join()
        .unwrap_or_else(|_| panic!("seed {seed} blocks the server: NETRAM_SEED={seed} repeats it"));
}

fn add_options(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..dice.below(6) {
        let number = dice.below(13) as u32;
        let mut data = match dice.below(4) {
            0 => vec![],
            1 => b"\0\0\0\0\0\0".to_vec(),
            2 => b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation".to_vec(),
            _ => pattern(dice.next(), dice.below(300) as usize),
        };
        if dice.below(3) == 0 && !data.is_empty() {
            let at = dice.below(data.len() as u64) as usize;
            data[at] ^= 1 << dice.below(8);
        }
        bytes.extend(option(number, &data));
    }
}

fn add_requests(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let extended = dice.below(2) == 0;
    if dice.below(4) > 0 {
        if extended {
            bytes.extend(option(11, b""));
        }
        bytes.extend(option(7, b"\0\0\0\0\0\0"));
    }
    for _ in 0..dice.below(30) {
        let command = dice.below(9) as u16;
        let flags = if dice.below(2) == 0 {
            0
        } else {
            dice.below(64) as u16
        };
        let offset = match dice.below(4) {
            0 => dice.next(),
            1 => dice.below(4 * MIB),
            _ => dice.below(3 * MIB / 512) * 512,
        };
        let length = match dice.below(6) {
            0 => dice.next() as u32,
            1 => dice.below(70_000) as u32,
            _ => dice.below(128) as u32 * 512,
        };
        if extended {
            let length = match dice.below(8) {
                0 => dice.next(),
                _ => length.into(),
            };
            let asked = NbdRequest {
                flags,
                command,
                cookie: dice.next(),
                offset,
                length,
            };
            bytes.extend(asked.encode_extended());
        } else {
            bytes.extend(request(command, flags, dice.next(), offset, length));
        }
        if command == command::WRITE {
            let payload = (length as usize).min(70_000);
            bytes.extend(pattern(dice.next(), payload));
        }
    }
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which is not zero.
    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}
