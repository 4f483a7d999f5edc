//! When requests are waited for: a device that completes writes only when the test allows it.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::common::*;
use netram_block::{BlockDevice, DeviceError, DeviceGeometry, PendingWrite};
use netram_nbd::wire::request::{command, flag};
use netram_nbd::{MemoryDevice, NbdServer};
use netram_proto::id::Lsn;

const MIB: u64 = 1 << 20;

/// A memory device whose writes complete only when the test allows it, and which fails on request.
struct Gate {
    inner: MemoryDevice,
    logged: AtomicU64,
    waits: AtomicU64,
    broken: AtomicBool,
    /// Offset from which reads fail.
    bad_from: AtomicU64,
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
            bad_from: AtomicU64::new(u64::MAX),
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

    fn log(&self) -> PendingWrite {
        PendingWrite(Lsn(self.logged.fetch_add(1, Ordering::SeqCst) + 1))
    }
}

impl BlockDevice for Gate {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry()
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.judge()?;
        match offset + into.len() as u64 > self.bad_from.load(Ordering::SeqCst) {
            true => Err(DeviceError::Corrupt { block: offset / 4096 }),
            false => self.inner.read(offset, into),
        }
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError> {
        self.inner.write(offset, bytes)?;
        Ok(self.log())
    }
    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        self.inner.zero(offset, length)?;
        Ok(self.log())
    }
    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        self.zero(offset, length)
    }
    fn wait(&self, pending: PendingWrite) -> Result<(), DeviceError> {
        assert!(pending.0.0 <= self.logged.load(Ordering::SeqCst));
        self.waits.fetch_add(1, Ordering::SeqCst);
        let held = self.held.lock().unwrap();
        let (held, late) = self
            .moved
            .wait_timeout_while(held, PATIENCE, |held| *held)
            .unwrap();
        assert!(
            !late.timed_out() && !*held,
            "timed out waiting for the test to complete writes"
        );
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

fn gated(place: &SocketDirectory, held: bool) -> (NbdServer, Arc<Gate>) {
    let gate = Gate::new(held);
    (NbdServer::start(config(place, gate.clone())).unwrap(), gate)
}

#[test]
fn requests_that_arrive_together_are_waited_for_once_and_flushed_once() {
    let place = SocketDirectory::new();
    let (server, gate) = gated(&place, true);
    let mut client = Client::ready(&place.socket());
    let mut bytes = Vec::new();
    let writes = |bytes: &mut Vec<u8>, cookies: std::ops::Range<u64>, flags| {
        for cookie in cookies {
            bytes.extend(request(command::WRITE, flags, cookie, cookie * 512, 512));
            bytes.extend(pattern(cookie, 512));
        }
    };
    // The first batch, of any size, blocks in the device; all other requests form one batch behind it.
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
    // Two waits and one flush, unless the socket delivers the bytes in several parts.
    assert!(
        gate.waits.load(Ordering::SeqCst) < 10,
        "more than one wait a batch"
    );
    assert!(gate.inner.flushes() < 10, "more than one flush a batch");
    assert_eq!(server.stats().writes, 40);
}

#[test]
fn reads_do_not_wait_for_writes() {
    let place = SocketDirectory::new();
    let (_server, gate) = gated(&place, true);
    let mut client = Client::ready(&place.socket());
    let mut bytes = request(command::WRITE, 0, 1, 0, 512).to_vec();
    bytes.extend(pattern(1, 512));
    bytes.extend(request(command::READ, 0, 2, 512, 512));
    client.send(&bytes);
    assert_eq!(
        client.reply().cookie,
        2,
        "the read must be answered while the write is held"
    );
    client.take(512);
    gate.open();
    assert_eq!(client.reply().cookie, 1);
}

#[test]
fn an_incomplete_request_does_not_delay_those_before_it() {
    let place = SocketDirectory::new();
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
fn a_failing_device_fails_requests_but_not_the_connection() {
    let place = SocketDirectory::new();
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
fn a_stopping_server_answers_started_requests() {
    let place = SocketDirectory::new();
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
    wait_until("the server stops listening", || !place.socket().exists());
    gate.open();
    assert_eq!(client.reply(), Reply { cookie: 1, error: 0 });
    assert!(client.is_closed());
    assert!(stranger.is_closed());
    drop((client, idle, stranger));
    assert_eq!(stopping.join().unwrap(), 0);
}

#[test]
fn a_client_that_reads_no_replies_does_not_keep_the_server_from_stopping() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 4 * MIB);
    let mut client = Client::ready(&place.socket());
    for cookie in 0..16 {
        client.request(command::READ, 0, cookie, 0, 4 * MIB as u32);
    }
    wait_until("the client has its session", || server.stats().sessions == 1);
    assert_eq!(server.stop(), 0);
}

#[test]
fn after_a_disconnect_started_requests_are_finished() {
    let place = SocketDirectory::new();
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

/// A batch with many bytes counted as full even without a whole request, so a payload behind others waited
/// for ever.
#[test]
fn large_payloads_behind_one_another_all_arrive() {
    let place = SocketDirectory::new();
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
fn nothing_follows_an_interrupted_reply() {
    let place = SocketDirectory::new();
    let (_server, gate) = gated(&place, true);
    gate.bad_from.store(MIB, Ordering::SeqCst);
    let mut client = Client::ready(&place.socket());
    let mut bytes = Vec::new();
    for cookie in 0..40_u64 {
        bytes.extend(request(command::WRITE, 0, cookie, cookie * 512, 512));
        bytes.extend(pattern(cookie, 512));
    }
    // The first piece of the reply is sound and sent; the second cannot be read.
    bytes.extend(request(command::READ, 0, 99, 0, MIB as u32 + 512));
    client.send(&bytes[..28 + 512]);
    wait_until("the first write is waited for", || {
        gate.waits.load(Ordering::SeqCst) == 1
    });
    client.send(&bytes[28 + 512..]);
    gate.open();
    assert_eq!(client.reply(), Reply { cookie: 0, error: 0 });
    let mut heard = Vec::new();
    // A reset may follow the bytes.
    let _ = client.stream.read_to_end(&mut heard);
    // Replies before the read are complete; behind the read's header are only its own bytes.
    let mut at = 0;
    while at + 16 <= heard.len() && heard[at + 8..at + 16] != 99_u64.to_be_bytes() {
        at += 16;
    }
    assert!(
        heard.len() <= at + 16 + MIB as usize,
        "{} bytes too many",
        heard.len() - at - 16 - MIB as usize
    );
}
