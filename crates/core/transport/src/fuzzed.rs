//! Entry points for fuzzers (`fuzz/checks`) only: bytes from peers before and after the handshake.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::cipher::Cipher;
use crate::key::ClusterKey;
use crate::key_ring::KeyRing;
use crate::link::{Link, LinkSession, PACKET_BYTES_MAX};
use crate::listen::{HandshakeProgress, PendingHandshake};
use crate::preamble::{MODE_NOISE, PREAMBLE_BYTES, Preamble, STATUS_OK, WIRE_VERSION, may_begin_preamble};
use crate::security::ListenSecurity;

/// Decodes a preamble; encoding it again must give the same bytes.
pub fn preamble(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<PREAMBLE_BYTES>() else {
        return;
    };
    let Some(preamble) = Preamble::decode(bytes) else {
        return;
    };
    assert!(may_begin_preamble(bytes));
    assert_eq!(preamble.encode()[..14], bytes[..14]);
    let versions = preamble.versions;
    assert!(versions.common(versions) == Some(versions.newest));
}

/// Preambles that this build sends.
pub fn preamble_seeds() -> Vec<Vec<u8>> {
    vec![
        Preamble::ours(WIRE_VERSION, MODE_NOISE, STATUS_OK)
            .encode()
            .to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ]
}

/// The lender's end of a connection that carries `bytes` and then ends.
fn connected(bytes: &[u8]) -> OwnedFd {
    let (lender, mut client) = UnixStream::pair().expect("a pair of sockets");
    client
        .write_all(bytes)
        .expect("what a fuzzer sends fits the socket's buffer");
    // The answer is not read, but a closed socket would refuse it.
    client.shutdown(Shutdown::Write).expect("a socket's end");
    std::thread_local! {
        static CLIENT: std::cell::RefCell<Option<UnixStream>> = const { std::cell::RefCell::new(None) };
    }
    CLIENT.with(|last| last.replace(Some(client)));
    lender.into()
}

fn key() -> &'static Arc<ListenSecurity> {
    static KEY: OnceLock<Arc<ListenSecurity>> = OnceLock::new();
    KEY.get_or_init(|| Arc::new(ListenSecurity::Key(ClusterKey::generate())))
}

fn named_clients() -> &'static Arc<ListenSecurity> {
    static CLIENTS: OnceLock<Arc<ListenSecurity>> = OnceLock::new();
    CLIENTS.get_or_init(|| {
        let ring = KeyRing::default();
        ring.replace([("a client".into(), ClusterKey::generate())]);
        Arc::new(ListenSecurity::Clients(ring))
    })
}

/// A client in its handshake. The first byte selects whether the lender requires the cluster key or that of a
/// named client; a client without the key must not be accepted.
pub fn handshake(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    let secure = how & 1 == 0;
    let security = match secure {
        true if how & 4 != 0 => Arc::clone(named_clients()),
        true => Arc::clone(key()),
        false => Arc::new(ListenSecurity::Insecure),
    };
    let now = Instant::now();
    let deadline = now + Duration::from_secs(60);
    let mut pending = PendingHandshake::new(
        connected(bytes),
        "a fuzzer".into(),
        security,
        deadline,
        Arc::new(()),
    );
    if how & 2 != 0 {
        pending.refuse_busy();
    }
    match pending.advance(now) {
        Ok(HandshakeProgress::Done(link)) => assert!(!secure && !link.is_secure() && how & 2 == 0),
        Ok(HandshakeProgress::NeedRead) => panic!("all bytes have been sent"),
        Err(_) => (),
    }
}

/// Handshakes of both modes, as far as a client without the key gets.
pub fn handshake_seeds() -> Vec<Vec<u8>> {
    let hello = |mode| Preamble::ours(WIRE_VERSION, mode, STATUS_OK).encode();
    vec![
        [&[0], &hello(MODE_NOISE)[..], &[7; 48]].concat(),
        [&[1], &hello(0)[..]].concat(),
        [&[2], &hello(MODE_NOISE)[..]].concat(),
        [&[0], &hello(0)[..]].concat(),
        [&[4], &hello(MODE_NOISE)[..], &[7; 48]].concat(),
    ]
}

/// Packets over a plain link. Each must have its announced length and its bytes, and the first impossible one
/// must end the link.
pub fn packets(bytes: &[u8]) {
    let agreed = LinkSession::at_lender(WIRE_VERSION, [0; 32]);
    let mut link = Link::new(connected(bytes), "a fuzzer".into(), Cipher::Plain, agreed, None);
    let mut rest = bytes;
    while let Ok(Some(packet)) = link.receive() {
        let (length, behind) = rest.split_first_chunk::<2>().expect("a length was sent");
        let (sent, behind) = behind.split_at(usize::from(u16::from_le_bytes(*length)));
        assert_eq!(packet, sent);
        assert!((1..=PACKET_BYTES_MAX).contains(&packet.len()));
        rest = behind;
    }
    assert!(!link.has_buffered() || link.receive().is_err());
    // The rest is an incomplete packet or an impossible one.
    if let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length));
        assert!(length == 0 || length > PACKET_BYTES_MAX || length > behind.len());
    }
}

/// Three packets, a truncated packet, and one of zero bytes.
pub fn packets_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![1, 0, 9, 3, 0, 1, 2, 3, 2, 0, 5, 5],
        vec![9, 0, 1, 2],
        vec![1, 0, 9, 0, 0, 1],
    ]
}
