//! Requests against a real server over a real socket, byte by byte.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use common::*;
use netram_disk::{Device, DeviceError, Geometry, Pending};
use netram_nbd::wire::request::{command, flag};
use netram_nbd::{MemoryDevice, Server, StartError};
use netram_proto::id::Lsn;

const MIB: u64 = 1 << 20;

#[test]
fn what_was_written_is_read_whatever_its_length() {
    let place = Place::new();
    let (server, _) = serve(&place, 64 * MIB);
    let mut writer = Client::ready(&place.socket());
    let mut reader = Client::structured(&place.socket());
    // Below, at and above the pieces that large payloads are cut into.
    for (index, length) in [
        512,
        4096,
        65536,
        MIB - 512,
        MIB,
        MIB + 512,
        5 * MIB + 512,
        32 * MIB,
    ]
    .into_iter()
    .enumerate()
    {
        let offset = 512 * (1 + index as u64 * 7);
        let data = pattern(length, length as usize);
        writer.request(command::WRITE, 0, length, offset, length as u32);
        writer.send(&data);
        assert_eq!(
            writer.reply(),
            Reply {
                cookie: length,
                error: 0
            }
        );

        writer.request(command::READ, 0, 1, offset, length as u32);
        assert_eq!(writer.reply().error, 0);
        assert!(
            writer.take(length as usize) == data,
            "{length} bytes in a simple reply"
        );

        reader.request(command::READ, 0, 2, offset, length as u32);
        let mut found = vec![0; length as usize];
        loop {
            let (flags, kind, cookie, data) = reader.chunk();
            let at = (u64::from_be_bytes(data[..8].try_into().unwrap()) - offset) as usize;
            assert_eq!((kind, cookie), (1, 2), "all of it is data");
            found[at..at + data.len() - 8].copy_from_slice(&data[8..]);
            if flags == 1 {
                break;
            }
        }
        assert!(found == data, "{length} bytes in chunks");
    }
    drop((writer, reader));
    assert_eq!(server.stop(), 0);
}

/// A batch was once full when its bytes were many, also without a whole request in it; a payload behind others then
/// waited for ever.
#[test]
fn large_payloads_behind_one_another_all_arrive() {
    let place = Place::new();
    let (_server, _) = gated(&place, false);
    let mut client = Client::ready(&place.socket());
    let lengths = [512, 3 * MIB, 512, 2 * MIB, 4 * MIB - 512, 512];
    let mut bytes = Vec::new();
    for (cookie, &length) in lengths.iter().enumerate() {
        bytes.extend(request(command::WRITE, 0, cookie as u64, 0, length as u32));
        bytes.extend(pattern(length, length as usize));
    }
    let mut sender = client.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || std::io::Write::write_all(&mut sender, &bytes).unwrap());
    for cookie in 0..lengths.len() as u64 {
        assert_eq!(client.reply(), Reply { cookie, error: 0 });
    }
    sending.join().unwrap();
}

#[test]
fn a_refused_write_is_answered_and_the_next_request_found_behind_it() {
    let place = Place::new();
    let (_server, _) = serve(&place, MIB);
    let mut client = Client::ready(&place.socket());
    for (offset, length, error) in [
        (MIB, 512, 28),
        (1, 512, 22),
        (0, 7, 22),
        (0, (33 * MIB) as u32, 28),
        (u64::MAX, 512, 28),
    ] {
        client.request(command::WRITE, 0, 5, offset, length);
        client.send(&vec![1; length as usize]);
        assert_eq!(client.reply(), Reply { cookie: 5, error });
    }
    client.request(command::READ, 0, 6, 0, 512);
    assert_eq!(client.reply(), Reply { cookie: 6, error: 0 });
    assert_eq!(client.take(512), [0; 512]);
}

#[test]
fn errors_of_reads_come_in_the_form_that_was_agreed_on() {
    let place = Place::new();
    let (_server, _) = serve(&place, MIB);
    let mut simple = Client::ready(&place.socket());
    simple.request(command::READ, 0, 1, MIB, 512);
    assert_eq!(simple.reply(), Reply { cookie: 1, error: 22 });
    let mut structured = Client::structured(&place.socket());
    structured.request(command::READ, flag::DF, 1, 0, 2 * MIB as u32);
    let (flags, kind, cookie, data) = structured.chunk();
    assert_eq!((flags, kind, cookie), (1, 0x8001, 1));
    assert_eq!(
        data[..4],
        22_u32.to_be_bytes(),
        "beyond the end comes before too long"
    );
}

#[test]
fn holes_are_told_and_not_sent() {
    let place = Place::new();
    let (_server, device) = serve(&place, 4 * MIB);
    device.write(MIB, &pattern(3, 65536)).unwrap();
    let mut client = Client::structured(&place.socket());
    client.request(command::READ, 0, 1, 0, 2 * MIB as u32);
    let (_, kind, _, data) = client.chunk();
    assert_eq!(
        (kind, data),
        (
            2,
            [0_u64.to_be_bytes().as_slice(), &(MIB as u32).to_be_bytes()].concat()
        )
    );
    let (_, kind, _, data) = client.chunk();
    assert_eq!((kind, data.len()), (1, 8 + 65536));
    assert_eq!(data[8..], pattern(3, 65536));
    let (flags, kind, ..) = client.chunk();
    assert_eq!((flags, kind), (1, 2));

    client.request(command::BLOCK_STATUS, 0, 2, 0, 2 * MIB as u32);
    let (flags, kind, _, data) = client.chunk();
    let runs = [1, MIB as u32, 3, 65536, 0, (MIB - 65536) as u32, 3];
    assert_eq!((flags, kind), (1, 5));
    assert_eq!(data, runs.map(u32::to_be_bytes).as_flattened());
    client.request(command::BLOCK_STATUS, flag::REQ_ONE, 3, MIB, MIB as u32);
    assert_eq!(
        client.chunk().3,
        [1, 65536_u32, 0].map(u32::to_be_bytes).as_flattened()
    );
}

#[test]
fn zeros_are_holes_unless_they_are_to_be_stored() {
    let place = Place::new();
    let (_server, device) = serve(&place, MIB);
    let holes = || {
        let mut found = Vec::new();
        device
            .extents(0, 8192, &mut |length, hole| {
                found.push((length, hole));
                true
            })
            .unwrap();
        found
    };
    let mut client = Client::ready(&place.socket());
    client.request(command::WRITE, 0, 1, 0, 8192);
    client.send(&pattern(1, 8192));
    client.request(command::WRITE_ZEROES, flag::NO_HOLE, 2, 0, 4096);
    client.request(command::WRITE_ZEROES, flag::FAST_ZERO | flag::FUA, 3, 4096, 4096);
    client.request(command::WRITE_ZEROES, flag::FAST_ZERO | flag::NO_HOLE, 4, 0, 4096);
    let errors = [0, 0, 0, 95];
    for error in errors {
        assert_eq!(client.reply().error, error);
    }
    assert_eq!(holes(), [(4096, false), (4096, true)]);
    client.request(command::READ, 0, 5, 0, 8192);
    client.reply();
    assert_eq!(client.take(8192), [0; 8192]);
    client.request(command::TRIM, 0, 6, 0, 4096);
    assert_eq!(client.reply().error, 0);
    assert_eq!(holes()[0], (4096, true));
}

#[test]
fn a_client_sees_a_volume_grow() {
    let place = Place::new();
    let (_server, device) = serve(&place, MIB);
    let mut client = Client::ready(&place.socket());
    client.request(command::READ, 0, 1, MIB, 512);
    assert_eq!(client.reply().error, 22);
    device.grow(2 * MIB);
    client.request(command::READ, 0, 2, MIB, 512);
    assert_eq!(client.reply().error, 0);
}

#[test]
fn a_socket_is_its_users_own_unless_others_are_let_in() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    for other_users in [false, true] {
        let mut config = config(&place, Arc::new(MemoryDevice::new(4096)));
        config.other_users = other_users;
        let server = Server::start(config).unwrap();
        let mode = std::fs::metadata(place.socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 == 0o600, !other_users, "{mode:o}");
        drop(server);
        assert!(!place.socket().exists(), "the file goes with the server");
    }
}

#[test]
fn a_server_that_makes_no_sense_does_not_start() {
    let place = Place::new();
    let device = || Arc::new(MemoryDevice::new(4096));
    let refused = |change: &dyn Fn(&mut netram_nbd::Config)| {
        let mut config = config(&place, device());
        change(&mut config);
        matches!(Server::start(config), Err(StartError::Config(_)))
    };
    assert!(refused(&|config| config.listen.clear()));
    assert!(refused(&|config| config.exports.clear()));
    assert!(refused(&|config| config.exports[0].name = "x".repeat(1025)));
    assert!(refused(&|config| {
        let same = common::config(&place, device()).exports.remove(0);
        config.exports.push(same);
    }));
    assert!(!refused(&|_| ()));
}

/// A memory device whose writes complete only when the test lets them, and which fails when told.
struct Gate {
    inner: MemoryDevice,
    logged: AtomicU64,
    waits: AtomicU64,
    broken: AtomicBool,
    held: Mutex<bool>,
    moved: Condvar,
}

impl Gate {
    fn new(held: bool) -> Arc<Gate> {
        Arc::new(Gate {
            inner: MemoryDevice::new(4 * MIB),
            logged: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            held: Mutex::new(held),
            moved: Condvar::new(),
        })
    }

    fn open(&self) {
        *self.held.lock().unwrap() = false;
        self.moved.notify_all();
    }

    fn judge(&self) -> Result<(), DeviceError> {
        match self.broken.load(Ordering::SeqCst) {
            true => Err(DeviceError::Fenced),
            false => Ok(()),
        }
    }

    fn log(&self) -> Pending {
        Pending(Lsn(self.logged.fetch_add(1, Ordering::SeqCst) + 1))
    }
}

impl Device for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.judge()?;
        self.inner.read(offset, into)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<Pending, DeviceError> {
        self.inner.write(offset, bytes)?;
        Ok(self.log())
    }
    fn zero(&self, offset: u64, length: u64) -> Result<Pending, DeviceError> {
        self.inner.zero(offset, length)?;
        Ok(self.log())
    }
    fn discard(&self, offset: u64, length: u64) -> Result<Pending, DeviceError> {
        self.zero(offset, length)
    }
    fn wait(&self, pending: Pending) -> Result<(), DeviceError> {
        assert!(pending.0.0 <= self.logged.load(Ordering::SeqCst));
        self.waits.fetch_add(1, Ordering::SeqCst);
        let held = self.held.lock().unwrap();
        let (held, late) = self
            .moved
            .wait_timeout_while(held, PATIENCE, |held| *held)
            .unwrap();
        assert!(!late.timed_out() && !*held, "the test lets writes complete");
        self.judge()
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.judge()?;
        self.inner.flush()
    }
    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        self.inner.extents(offset, length, each)
    }
}

fn gated(place: &Place, held: bool) -> (Server, Arc<Gate>) {
    let gate = Gate::new(held);
    (Server::start(config(place, gate.clone())).unwrap(), gate)
}

#[test]
fn requests_that_come_together_are_waited_for_once_and_flushed_once() {
    let place = Place::new();
    let (server, gate) = gated(&place, true);
    let mut client = Client::ready(&place.socket());
    let mut bytes = Vec::new();
    let writes = |bytes: &mut Vec<u8>, cookies: std::ops::Range<u64>, flags| {
        for cookie in cookies {
            bytes.extend(request(command::WRITE, flags, cookie, cookie * 512, 512));
            bytes.extend(pattern(cookie, 512));
        }
    };
    // The first batch, however it is cut, holds the device up; everything else is one batch behind it.
    writes(&mut bytes, 0..1, 0);
    client.send(&bytes);
    wait_until("the first write is waited for", || {
        gate.waits.load(Ordering::SeqCst) == 1
    });
    bytes.clear();
    writes(&mut bytes, 1..40, flag::FUA);
    bytes.extend(request(command::FLUSH, 0, 40, 0, 0));
    client.send(&bytes);
    gate.open();
    let mut cookies: Vec<u64> = (0..41)
        .map(|_| {
            let reply = client.reply();
            assert_eq!(reply.error, 0);
            reply.cookie
        })
        .collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..41).collect::<Vec<_>>());
    // Two of the one and one of the other, but for a socket that hands over what is there in several parts.
    assert!(gate.waits.load(Ordering::SeqCst) < 10, "one wait a batch");
    assert!(gate.inner.flushes() < 10, "one flush a batch");
    assert_eq!(server.stats().writes, 40);
}

#[test]
fn reads_do_not_wait_for_writes() {
    let place = Place::new();
    let (_server, gate) = gated(&place, true);
    let mut client = Client::ready(&place.socket());
    let mut bytes = request(command::WRITE, 0, 1, 0, 512).to_vec();
    bytes.extend(pattern(1, 512));
    bytes.extend(request(command::READ, 0, 2, 512, 512));
    client.send(&bytes);
    assert_eq!(
        client.reply().cookie,
        2,
        "the read's reply comes while the write is held"
    );
    client.take(512);
    gate.open();
    assert_eq!(client.reply().cookie, 1);
}

#[test]
fn half_a_request_does_not_hold_up_those_before_it() {
    let place = Place::new();
    let (_server, _) = gated(&place, false);
    let mut client = Client::ready(&place.socket());
    let mut bytes = request(command::WRITE, 0, 1, 0, 512).to_vec();
    bytes.extend(pattern(1, 512));
    bytes.extend(request(command::WRITE, 0, 2, 512, 1024));
    bytes.extend(pattern(2, 700));
    client.send(&bytes);
    assert_eq!(client.reply().cookie, 1);
    client.send(&pattern(3, 324));
    assert_eq!(client.reply().cookie, 2);
}

#[test]
fn a_failing_device_fails_requests_and_not_the_connection() {
    let place = Place::new();
    let (server, gate) = gated(&place, false);
    gate.broken.store(true, Ordering::SeqCst);
    let mut client = Client::ready(&place.socket());
    client.request(command::WRITE, 0, 1, 0, 512);
    client.send(&pattern(1, 512));
    assert_eq!(
        client.reply(),
        Reply {
            cookie: 1,
            error: 108
        }
    );
    client.request(command::READ, 0, 2, 0, 512);
    assert_eq!(
        client.reply(),
        Reply {
            cookie: 2,
            error: 108
        }
    );
    client.request(command::FLUSH, 0, 3, 0, 0);
    assert_eq!(
        client.reply(),
        Reply {
            cookie: 3,
            error: 108
        }
    );
    gate.broken.store(false, Ordering::SeqCst);
    client.request(command::FLUSH, 0, 4, 0, 0);
    assert_eq!(client.reply(), Reply { cookie: 4, error: 0 });
    assert_eq!(server.stats().errors, 3);
}

#[test]
fn a_stopping_server_answers_what_it_started() {
    let place = Place::new();
    let (server, gate) = gated(&place, true);
    let mut client = Client::ready(&place.socket());
    client.request(command::WRITE, 0, 1, 0, 512);
    client.send(&pattern(1, 512));
    wait_until("the write is waited for", || {
        gate.waits.load(Ordering::SeqCst) == 1
    });
    let idle = Client::ready(&place.socket());
    let mut stranger = Client::connect(&place.socket());
    let stopping = std::thread::spawn(move || server.stop());
    wait_until("nobody listens any more", || !place.socket().exists());
    gate.open();
    assert_eq!(client.reply(), Reply { cookie: 1, error: 0 });
    assert!(client.is_closed());
    assert!(stranger.is_closed());
    drop((client, idle, stranger));
    assert_eq!(stopping.join().unwrap(), 0);
}

#[test]
fn a_client_that_reads_no_replies_does_not_keep_the_server_from_stopping() {
    let place = Place::new();
    let (server, _) = serve(&place, 4 * MIB);
    let mut client = Client::ready(&place.socket());
    for cookie in 0..16 {
        client.request(command::READ, 0, cookie, 0, 4 * MIB as u32);
    }
    wait_until("the client has its session", || server.stats().sessions == 1);
    assert_eq!(server.stop(), 0);
}

#[test]
fn after_a_disconnect_everything_is_finished() {
    let place = Place::new();
    let (server, gate) = gated(&place, false);
    let mut client = Client::ready(&place.socket());
    let mut bytes = request(command::WRITE, 0, 1, 0, 512).to_vec();
    bytes.extend(pattern(1, 512));
    bytes.extend(request(command::DISC, 0, 2, 0, 0));
    client.send(&bytes);
    assert_eq!(client.reply(), Reply { cookie: 1, error: 0 });
    assert!(client.is_closed());
    drop(client);
    wait_until("the connection is gone", || server.connections() == 0);
    assert_eq!(gate.waits.load(Ordering::SeqCst), 1);
}
