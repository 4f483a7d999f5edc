//! Both ends of a link in one process, for tests only: each panics where a test would.

use std::thread;
use std::time::{Duration, Instant};

use crate::address::NetAddress;
use crate::connect::connect;
use crate::error::HandshakeError;
use crate::link::Link;
use crate::listen::{HandshakeProgress, Listener, PendingHandshake};
use crate::security::Security;

/// Longer than any step takes on a loaded machine; a test that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two looks at a socket.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Accepts the next connection, and waits for it.
pub fn accept(listener: &Listener) -> PendingHandshake {
    let end = Instant::now() + PATIENCE;
    loop {
        match listener.accept(Instant::now()) {
            Ok(Some(pending)) => return pending,
            Ok(None) => assert!(Instant::now() < end, "no client connected"),
            Err(error) => panic!("the listener failed: {error}"),
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Drives a handshake to its end.
///
/// # Errors
/// As [`PendingHandshake::advance`].
pub fn finish(pending: &mut PendingHandshake) -> Result<Link, HandshakeError> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let HandshakeProgress::Done(link) = pending.advance(Instant::now())? {
            return Ok(link);
        }
        assert!(Instant::now() < end, "the handshake hangs");
        thread::sleep(LOOK_EVERY);
    }
}

/// The lender's end of the next link.
pub fn accept_link(listener: &Listener) -> Link {
    finish(&mut accept(listener)).expect("the handshake of a test's client")
}

/// A link over `address`: the client's end, then the lender's.
pub fn link_pair(address: &NetAddress, security: &Security) -> (Link, Link) {
    let listener = Listener::bind(address, security.clone()).expect("an address of the test");
    let (address, security) = (listener.address().clone(), security.clone());
    let client = thread::spawn(move || connect(&address, &security, PATIENCE));
    let lender = accept_link(&listener);
    let client = client.join().expect("it connects and no more");
    (client.expect("its lender listens"), lender)
}
