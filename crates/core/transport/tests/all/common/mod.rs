//! Links between two ends of one test.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

pub(crate) use netram_transport::both_ends::{PATIENCE, accept, finish, link_pair as pair};
use netram_transport::{
    ClusterKey, ConnectError, HandshakeError, HandshakeProgress, Link, LinkError, Listener, NetAddress,
    Security, connect,
};

/// A temporary directory for sockets, removed on drop.
pub(crate) struct SocketDir(tempfile::TempDir);

impl SocketDir {
    pub(crate) fn new() -> SocketDir {
        SocketDir(tempfile::tempdir().unwrap())
    }

    pub(crate) fn unix(&self, name: &str) -> NetAddress {
        NetAddress::Unix(self.path(name))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

pub(crate) fn tcp() -> NetAddress {
    "tcp://127.0.0.1:0".parse().unwrap()
}

/// The four kinds of link: TCP and Unix, plain and encrypted.
pub(crate) fn kinds(place: &SocketDir) -> Vec<(NetAddress, Security)> {
    let key = Security::Key(ClusterKey::generate());
    vec![
        (tcp(), Security::Insecure),
        (tcp(), key.clone()),
        (place.unix("plain"), Security::Insecure),
        (place.unix("secure"), key),
    ]
}

/// Connects two sides whose security may differ, and returns the outcome at both.
pub(crate) fn meet(
    address: &NetAddress,
    client: Security,
    lender: Security,
) -> (Result<Link, ConnectError>, Result<Link, HandshakeError>) {
    let listener = Listener::bind(address, lender).unwrap();
    let address = listener.address().clone();
    let client = thread::spawn(move || connect(&address, &client, PATIENCE));
    let mut pending = accept(&listener);
    let lender = finish(&mut pending);
    drop(pending);
    (client.join().unwrap(), lender)
}

/// Both ends of a Unix link through a middleman that reads, and may change, the bytes on the wire.
pub(crate) fn pair_with_middleman(place: &SocketDir, security: &Security) -> (Link, Link, TcpMiddleman) {
    let listener = Listener::bind(&place.unix("lender"), security.clone()).unwrap();
    let front = UnixListener::bind(place.path("middleman")).unwrap();
    let (target, middleman) = (place.unix("middleman"), place.path("lender"));
    let client_security = security.clone();
    let secure = matches!(security, Security::Key(_));
    let client = thread::spawn(move || connect(&target, &client_security, PATIENCE));
    let (client_side, _) = front.accept().unwrap();
    let lender_side = UnixStream::connect(middleman).unwrap();
    let mut middleman = TcpMiddleman {
        client_side,
        lender_side,
    };
    let mut pending = accept(&listener);
    middleman.pass_to_lender(16);
    let mut pass = |middleman: &mut TcpMiddleman, bytes| {
        let _ = pending
            .advance(Instant::now())
            .map(|progress| assert!(matches!(progress, HandshakeProgress::NeedRead)));
        middleman.pass_to_client(bytes);
    };
    if secure {
        pass(&mut middleman, 32);
        middleman.pass_to_lender(48);
        pass(&mut middleman, 48);
        middleman.pass_to_lender(16);
    }
    let lender = finish(&mut pending).unwrap();
    if !secure {
        middleman.pass_to_client(32);
    }
    (client.join().unwrap().unwrap(), lender, middleman)
}

/// Both halves of an intercepted connection.
pub(crate) struct TcpMiddleman {
    pub(crate) client_side: UnixStream,
    pub(crate) lender_side: UnixStream,
}

impl TcpMiddleman {
    pub(crate) fn take_from_client(&mut self, bytes: usize) -> Vec<u8> {
        let mut taken = vec![0; bytes];
        self.client_side.read_exact(&mut taken).unwrap();
        taken
    }

    pub(crate) fn pass_to_lender(&mut self, bytes: usize) {
        let taken = self.take_from_client(bytes);
        self.lender_side.write_all(&taken).unwrap();
    }

    pub(crate) fn pass_to_client(&mut self, bytes: usize) {
        let mut taken = vec![0; bytes];
        self.lender_side.read_exact(&mut taken).unwrap();
        self.client_side.write_all(&taken).unwrap();
    }
}

/// Waits for the next packet.
pub(crate) fn receive(link: &mut Link) -> Result<Vec<u8>, LinkError> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(packet) = link.receive()? {
            return Ok(packet.to_vec());
        }
        assert!(Instant::now() < end, "no packet came");
        thread::yield_now();
    }
}

/// A packet whose bytes encode its number and their positions.
pub(crate) fn packet(number: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (number.wrapping_mul(31) + at + at / 251) as u8)
        .collect()
}
