//! A data lender's link that silently carries no bytes any more, because the other machine lost power or a
//! firewall its state. Each side notices by itself, and the client reconnects.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use netram_block_machine::SourceTiming;
use netram_lender::{DataService, Lender, LenderConfig};
use netram_proto::time::Nanos;
use netram_transport::NetAddress;
use netram_volume::replica::{ReplicaHost, ReplicaHostLimits};
use netram_volume::{BlockDevice, Volume, VolumeSettings};

/// Timeout of everything that is not itself under test.
const PATIENCE: Duration = Duration::from_secs(60);
const TIMING: SourceTiming = SourceTiming {
    detect: Nanos::from_ms(100),
    give_up: Nanos::from_ms(400),
    retry: Nanos::from_ms(50),
    repair: Nanos::from_ms(600_000),
};

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "timed out waiting until {what}");
        sleep(Duration::from_millis(2));
    }
}

/// Which bytes are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossKind {
    ToLender,
    FromLender,
    Both,
}

/// One connection through the relay.
#[derive(Clone, Default)]
struct RelayedConnection {
    to_lender: Arc<AtomicBool>,
    from_lender: Arc<AtomicBool>,
    /// Whether the lender has closed its end.
    left: Arc<AtomicBool>,
}

/// Relays bytes between a client and its data lender until it loses them silently.
struct Relay {
    lines: Mutex<Vec<RelayedConnection>>,
    /// Whether no new connection gets through.
    down: AtomicBool,
    accepted: AtomicUsize,
}

impl Relay {
    fn start(listen: &Path, lender: PathBuf) -> Arc<Relay> {
        let listener = UnixListener::bind(listen).unwrap();
        let relay = Arc::new(Relay {
            lines: Mutex::default(),
            down: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
        });
        let theirs = Arc::clone(&relay);
        // The thread ends with the test's process.
        spawn(move || {
            for client in listener.incoming() {
                let line = RelayedConnection::default();
                let lost = theirs.down.load(Ordering::SeqCst);
                line.to_lender.store(lost, Ordering::SeqCst);
                line.from_lender.store(lost, Ordering::SeqCst);
                let (client, lender) = (client.unwrap(), UnixStream::connect(&lender).unwrap());
                let (client_too, lender_too) = (client.try_clone().unwrap(), lender.try_clone().unwrap());
                theirs.lines.lock().unwrap().push(line.clone());
                theirs.accepted.fetch_add(1, Ordering::SeqCst);
                let (lost, left) = (line.from_lender, line.left);
                spawn(move || {
                    carry(lender, client_too, &lost);
                    left.store(true, Ordering::SeqCst);
                });
                spawn(move || carry(client, lender_too, &line.to_lender));
            }
        });
        relay
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// From now on the existing connections lose bytes.
    fn lose(&self, lost: LossKind) {
        for line in &*self.lines.lock().unwrap() {
            line.to_lender
                .fetch_or(lost != LossKind::FromLender, Ordering::SeqCst);
            line.from_lender
                .fetch_or(lost != LossKind::ToLender, Ordering::SeqCst);
        }
    }

    /// Whether the lender has closed all of the first `count` connections.
    fn are_left(&self, count: usize) -> bool {
        let lines = self.lines.lock().unwrap();
        lines[..count].iter().all(|line| line.left.load(Ordering::SeqCst))
    }
}

/// Relays bytes until one end closes. The other end is told unless bytes are lost.
fn carry(mut from: UnixStream, mut to: UnixStream, lost: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !lost.load(Ordering::SeqCst) && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    if !lost.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// A volume whose data lender is behind a relay.
struct RelayFixture {
    relay: Arc<Relay>,
    volume: Option<Volume>,
    lender: Lender,
    keeper: Arc<ReplicaHost>,
    _directory: tempfile::TempDir,
}

impl RelayFixture {
    fn new(limits: ReplicaHostLimits) -> RelayFixture {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let keeper = Arc::new(ReplicaHost::start_with(&path("kept"), limits).unwrap());
        let config = LenderConfig {
            listen: vec![NetAddress::Unix(path("lender"))],
            memory: 1 << 20,
            store: Some(path("store")),
            allow_disk: true,
            ..LenderConfig::default()
        };
        let lender = Lender::start_with(config, Some(Arc::clone(&keeper) as _)).unwrap();
        let relay = Relay::start(&path("relay"), path("lender"));
        Volume::create(&path("volume"), 1 << 20, 1 << 20).unwrap();
        let mut settings = VolumeSettings {
            data_lender: Some(NetAddress::Unix(path("relay"))),
            data_lender_timing: TIMING,
            ..VolumeSettings::default()
        };
        settings.journal.insecure = true;
        let (volume, _) = Volume::open_with(&path("volume"), &settings).unwrap();
        RelayFixture {
            relay,
            volume: Some(volume),
            lender,
            keeper,
            _directory: directory,
        }
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn write(&self, byte: u8) {
        let volume = self.volume();
        volume.wait(volume.write(0, &[byte; 4096]).unwrap()).unwrap();
    }

    /// Waits until the data lender is in service and has everything.
    fn settle(&self) {
        until("the copy has everything", || {
            let tail = self.volume().status().journal.log.tail.0;
            let kept = self.volume().data_lender();
            kept.is_some_and(|kept| kept.in_service && kept.flushed == tail)
        });
    }
}

impl Drop for RelayFixture {
    fn drop(&mut self) {
        drop(self.volume.take());
        self.lender.stop(Duration::ZERO);
        self.keeper.stop();
    }
}

#[test]
fn a_client_drops_a_silent_data_lender_and_reconnects() {
    let world = RelayFixture::new(ReplicaHostLimits::default());
    for (byte, lost) in (1..).zip([LossKind::Both, LossKind::ToLender, LossKind::FromLender]) {
        world.write(byte);
        world.settle();
        let before = world.relay.accepted();
        world.relay.lose(lost);
        // No write waits for it in the meantime.
        world.write(byte + 100);
        until("the data lender is out of service", || {
            world.volume().data_lender().is_some_and(|kept| !kept.in_service)
        });
        until("the client reconnects", || world.relay.accepted() > before);
        world.settle();
        // The new session has replaced the silent one.
        until("the lender has closed the old session", || {
            world.relay.are_left(before)
        });
    }
}

#[test]
fn a_data_lender_disconnects_a_silent_client() {
    let world = RelayFixture::new(ReplicaHostLimits {
        silence_max: Duration::from_millis(300),
        ..ReplicaHostLimits::default()
    });
    world.write(1);
    world.settle();
    assert!(world.keeper.replicas()[0].connected);
    let before = world.relay.accepted();
    world.relay.down.store(true, Ordering::SeqCst);
    world.relay.lose(LossKind::Both);
    until("the lender has closed the session", || {
        world.relay.are_left(before)
    });
    until("the lender reports it", || !world.keeper.replicas()[0].connected);
    world.relay.down.store(false, Ordering::SeqCst);
    world.write(2);
    world.settle();
}
