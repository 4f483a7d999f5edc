//! Helpers of several tests.

pub(crate) mod history;
pub(crate) mod lists;
pub(crate) mod processes;
pub(crate) mod script;
pub(crate) mod served_region;
pub(crate) mod world;

use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netram_proto::wire::{FrameHeader, FrameKind};
use netram_shared::channel::{
    AcceptedSession, AcceptorConfig, Channel, ChannelError, SessionAcceptor, SessionHandler,
};
use netram_transport::{ClusterKey, Link, LinkError, NetAddress, Security, connect};

/// Longer than any step takes on a loaded machine: a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A small random generator, so that a test is reproduced from its seed.
pub(crate) struct TestRng(pub(crate) u64);

impl TestRng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Waits until `done` returns true.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns when all threads of a stopped process stand still. The signal takes a moment, in which the process
/// could still answer or receive.
pub(crate) fn until_stopped(process: u32) {
    until("the process stands still", || {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it is there");
        threads.flatten().all(|thread| {
            let line = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The name before the state may contain spaces and brackets.
            line.rsplit_once(") ")
                .is_some_and(|(_, state)| state.starts_with('T'))
        })
    });
}

/// A process that is killed when its test ends.
pub(crate) struct KilledChild(pub(crate) Child);

impl KilledChild {
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
        until_stopped(self.0.id());
    }
}

impl Drop for KilledChild {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hands every accepted session to the test.
pub(crate) struct SessionCollector(Mutex<Sender<AcceptedSession>>);

impl SessionHandler for SessionCollector {
    fn take(&self, arrival: AcceptedSession) {
        // The test may be over.
        let _ = self.0.lock().unwrap().send(arrival);
    }
}

/// An acceptor, and the sessions that it accepted.
pub(crate) struct TestAcceptor {
    pub(crate) door: SessionAcceptor,
    pub(crate) security: Security,
    arrivals: Receiver<AcceptedSession>,
}

impl TestAcceptor {
    /// Opens an acceptor on loopback, with a key.
    pub(crate) fn open() -> TestAcceptor {
        TestAcceptor::open_with(|_| ())
    }

    pub(crate) fn open_with(choose: impl FnOnce(&mut AcceptorConfig)) -> TestAcceptor {
        let security = Security::Key(ClusterKey::generate());
        let listen = vec!["tcp://127.0.0.1:0".parse().unwrap()];
        let mut config = AcceptorConfig::new(listen, security);
        choose(&mut config);
        let security = config.security.clone();
        let (sender, arrivals) = channel();
        let door = SessionAcceptor::open(config, Arc::new(SessionCollector(Mutex::new(sender)))).unwrap();
        TestAcceptor {
            door,
            security,
            arrivals,
        }
    }

    pub(crate) fn address(&self) -> &NetAddress {
        &self.door.addresses()[0]
    }

    /// A node's channel, and the server's end of it.
    pub(crate) fn pair(&self) -> (Channel, AcceptedSession) {
        let node = Channel::open(self.address(), &self.security, PATIENCE).unwrap();
        (node, self.arrival())
    }

    /// The next accepted session.
    pub(crate) fn arrival(&self) -> AcceptedSession {
        let mut arrival = self.arrivals.recv_timeout(PATIENCE).unwrap();
        arrival.channel.allow_long_messages();
        arrival
    }

    /// A link whose first packet the test sends.
    pub(crate) fn dial(&self) -> Link {
        connect(self.address(), &self.security, PATIENCE).unwrap()
    }

    /// A link that sends packets as the test likes, and the server's end, which is not admitted.
    pub(crate) fn raw(&self) -> (Link, AcceptedSession) {
        let mut link = self.dial();
        link.send(&[&FrameHeader::new(FrameKind::Share).encode(0)])
            .unwrap();
        assert_eq!(receive(&mut link).unwrap()[0], FrameKind::ShareAck as u8);
        (link, self.arrivals.recv_timeout(PATIENCE).unwrap())
    }
}

/// The next packet of the link.
pub(crate) fn receive(link: &mut Link) -> Result<Vec<u8>, LinkError> {
    let end = Instant::now() + PATIENCE;
    loop {
        link.flush()?;
        if let Some(packet) = link.receive()? {
            return Ok(packet.to_vec());
        }
        assert!(Instant::now() < end, "nothing came");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The next message of the channel.
pub(crate) fn next(channel: &mut Channel) -> Result<Vec<u8>, ChannelError> {
    let end = Instant::now() + PATIENCE;
    loop {
        channel.flush()?;
        if let Some(message) = channel.receive()? {
            return Ok(message.to_vec());
        }
        assert!(Instant::now() < end, "nothing came");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Reports that a test, or a part of it, cannot run here. Printed output would be captured while the test
/// passes.
pub(crate) fn skipped(missing: impl std::fmt::Display) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // If this cannot be written, there is no reader.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}
