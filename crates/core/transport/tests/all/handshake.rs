//! Which handshakes succeed, which are refused, and what unauthenticated connections cost.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use netram_transport::{
    ClusterKey, ConnectError, HANDSHAKE_TIMEOUT, HandshakeError, HandshakeProgress, KeyId, KeyRing, Link,
    ListenError, ListenSecurity, Listener, NetAddress, PENDING_MAX, PendingHandshake, Security, VersionRange,
    connect,
};

const HELLO_PLAIN: [u8; 16] = *b"NETRAM\x01\x00\x00\x00\x01\x00\x01\x00\x00\x00";
const HELLO_SECURE: [u8; 16] = *b"NETRAM\x01\x00\x01\x00\x01\x00\x01\x00\x00\x00";
const NEW_PLAIN: [u8; 16] = *b"NETRAM\x02\x00\x00\x00\x01\x00\x02\x00\x00\x00";
const NEW_SECURE: [u8; 16] = *b"NETRAM\x02\x00\x01\x00\x01\x00\x02\x00\x00\x00";
const OURS: VersionRange = VersionRange { oldest: 1, newest: 2 };

fn key() -> Security {
    Security::Key(ClusterKey::generate())
}

/// A lender, and a raw connection to it.
fn raw_client(place: &SocketDir, security: Security) -> (Listener, PendingHandshake, UnixStream) {
    let listener = Listener::bind(&place.unix("lender"), security).unwrap();
    let raw = UnixStream::connect(place.path("lender")).unwrap();
    let pending = accept(&listener);
    (listener, pending, raw)
}

/// A client, and a raw connection from it.
fn impostor(
    place: &SocketDir,
    security: Security,
) -> (thread::JoinHandle<Result<(), ConnectError>>, UnixStream) {
    let listener = std::os::unix::net::UnixListener::bind(place.path("impostor")).unwrap();
    let address = place.unix("impostor");
    let client = thread::spawn(move || connect(&address, &security, PATIENCE).map(drop));
    (client, listener.accept().unwrap().0)
}

/// All bytes that the lender has sent.
fn answers(pending: PendingHandshake, mut raw: UnixStream) -> Vec<u8> {
    drop(pending);
    let mut answers = Vec::new();
    // A reset caused by unread bytes is an end, too.
    let _ = raw.read_to_end(&mut answers);
    answers
}

#[test]
fn another_key_is_named_on_both_sides() {
    let place = SocketDir::new();
    for address in [tcp(), place.unix("a")] {
        let (client, lender) = meet(&address, key(), key());
        assert!(matches!(client, Err(ConnectError::WrongKey)), "{client:?}");
        assert!(matches!(lender, Err(HandshakeError::WrongKey)), "{lender:?}");
    }
}

#[test]
fn a_client_without_a_key_learns_that_one_is_required() {
    let (client, lender) = meet(&tcp(), Security::Insecure, key());
    assert!(matches!(client, Err(ConnectError::SecureRequired)), "{client:?}");
    assert!(
        matches!(lender, Err(HandshakeError::SecureRequired)),
        "{lender:?}"
    );
}

#[test]
fn a_client_with_a_key_never_talks_in_the_clear() {
    let (client, lender) = meet(&tcp(), key(), Security::Insecure);
    assert!(
        matches!(client, Err(ConnectError::InsecureRequired)),
        "{client:?}"
    );
    assert!(
        matches!(lender, Err(HandshakeError::InsecureRequired)),
        "{lender:?}"
    );

    // Nor when a man in the middle claims that plain is accepted.
    let place = SocketDir::new();
    let (client, mut raw) = impostor(&place, key());
    raw.read_exact(&mut [0; 16]).unwrap();
    raw.write_all(&HELLO_PLAIN).unwrap();
    assert!(matches!(
        client.join().unwrap(),
        Err(ConnectError::InsecureRequired)
    ));
    let mut rest = Vec::new();
    let _ = raw.read_to_end(&mut rest);
    assert!(rest.is_empty(), "nothing follows the plain answer");
}

#[test]
fn different_versions_are_named_with_the_remedy_on_both_sides() {
    let place = SocketDir::new();
    let (_listener, mut pending, mut raw) = raw_client(&place, key());
    raw.write_all(b"NETRAM\x04\x00\x09\x00\x03\x00\x04\x00\x07\x07")
        .unwrap();
    let error = finish(&mut pending).unwrap_err();
    let theirs = VersionRange { oldest: 3, newest: 4 };
    assert!(matches!(error, HandshakeError::WrongVersion { ours: OURS, theirs: seen } if seen == theirs));
    assert!(
        error
            .to_string()
            .contains("3 to 4, this process 1 to 2; run the same"),
        "{error}"
    );
    assert_eq!(answers(pending, raw)[..10], *b"NETRAM\x02\x00\x01\x01");

    let (client, mut raw) = impostor(&place, key());
    raw.read_exact(&mut [0; 16]).unwrap();
    raw.write_all(b"NETRAM\x04\x00\x01\x01\x03\x00\x04\x00\x00\x00")
        .unwrap();
    let error = client.join().unwrap().unwrap_err();
    assert!(matches!(error, ConnectError::WrongVersion { ours: OURS, theirs: seen } if seen == theirs));
    assert!(
        error
            .to_string()
            .contains("3 to 4, this one 1 to 2; run the same"),
        "{error}"
    );
}

#[test]
fn a_client_cut_off_at_any_byte_is_reported_as_cut_off() {
    for (security, length) in [(Security::Insecure, 16), (key(), 16 + 48 + 16)] {
        for cut in 0..length {
            let place = SocketDir::new();
            let listener = Listener::bind(&place.unix("lender"), security.clone()).unwrap();
            let (client, mut from_client) = impostor(&place, security.clone());
            let mut to_lender = UnixStream::connect(place.path("lender")).unwrap();
            let mut pending = accept(&listener);
            // The client's bytes pass until the cut; the lender's answers pass whole.
            let mut passed = 0;
            for (asked, answered) in [(16, 32), (48, 48), (16, 0)] {
                let mut bytes = vec![0; asked.min(cut - passed)];
                from_client.read_exact(&mut bytes).unwrap();
                to_lender.write_all(&bytes).unwrap();
                passed += bytes.len();
                if bytes.len() < asked || passed == cut && answered == 0 {
                    break;
                }
                assert!(matches!(
                    pending.advance(Instant::now()),
                    Ok(HandshakeProgress::NeedRead)
                ));
                let mut answer = vec![0; answered];
                to_lender.read_exact(&mut answer).unwrap();
                from_client.write_all(&answer).unwrap();
            }
            drop(to_lender);
            drop(from_client);
            let outcome = finish(&mut pending);
            assert!(
                matches!(outcome, Err(HandshakeError::CutOff)),
                "cut at {cut}: {outcome:?}"
            );
            let _ = client.join().unwrap();
        }
    }
}

#[test]
fn a_lender_cut_off_at_any_byte_is_reported_as_cut_off() {
    for cut in 0..32 + 48 {
        let place = SocketDir::new();
        let security = key();
        let listener = Listener::bind(&place.unix("lender"), security.clone()).unwrap();
        let (client, mut from_client) = impostor(&place, security);
        let mut to_lender = UnixStream::connect(place.path("lender")).unwrap();
        let mut pending = accept(&listener);
        let mut passed = 0;
        for (asked, answered) in [(16, 32), (48, 48)] {
            let mut bytes = vec![0; asked];
            from_client.read_exact(&mut bytes).unwrap();
            to_lender.write_all(&bytes).unwrap();
            assert!(matches!(
                pending.advance(Instant::now()),
                Ok(HandshakeProgress::NeedRead)
            ));
            bytes.resize(answered, 0);
            to_lender.read_exact(&mut bytes).unwrap();
            let passing = answered.min(cut - passed);
            from_client.write_all(&bytes[..passing]).unwrap();
            passed += passing;
            if passing < answered {
                break;
            }
        }
        drop(from_client);
        let outcome = client.join().unwrap();
        assert!(
            matches!(outcome, Err(ConnectError::CutOff)),
            "cut at {cut}: {outcome:?}"
        );
    }
}

#[test]
fn a_replayed_handshake_gets_no_session_and_no_public_key() {
    let place = SocketDir::new();
    let security = key();
    let listener = Listener::bind(&place.unix("lender"), security.clone()).unwrap();
    let (client, mut from_client) = impostor(&place, security);
    let mut to_lender = UnixStream::connect(place.path("lender")).unwrap();
    let mut pending = accept(&listener);
    let mut recorded = Vec::new();
    for (asked, answered) in [(16, 32), (48, 48), (16, 0)] {
        let mut bytes = vec![0; asked];
        from_client.read_exact(&mut bytes).unwrap();
        recorded.extend_from_slice(&bytes);
        to_lender.write_all(&bytes).unwrap();
        if answered > 0 {
            assert!(matches!(
                pending.advance(Instant::now()),
                Ok(HandshakeProgress::NeedRead)
            ));
            let mut answer = vec![0; answered];
            to_lender.read_exact(&mut answer).unwrap();
            from_client.write_all(&answer).unwrap();
        }
    }
    finish(&mut pending).unwrap();
    client.join().unwrap().unwrap();

    let mut replay = UnixStream::connect(place.path("lender")).unwrap();
    let mut pending = accept(&listener);
    replay.write_all(&recorded).unwrap();
    assert!(matches!(finish(&mut pending), Err(HandshakeError::WrongKey)));
    let answered = answers(pending, replay);
    assert_eq!(
        answered.len(),
        32 + 16,
        "a preamble with its nonce, and a refusal"
    );
    assert_eq!(answered[32..42], *b"NETRAM\x02\x00\x01\x05");
}

/// A session id is what a proof of ownership is signed for.
#[test]
fn both_ends_know_a_session_id_that_no_other_link_has() {
    let place = SocketDir::new();
    let mut seen = std::collections::BTreeSet::new();
    for security in [Security::Insecure, key()] {
        for name in ["a", "b", "c"] {
            let (client, lender) = meet(&place.unix(name), security.clone(), security.clone());
            let (client, lender) = (client.unwrap(), lender.unwrap());
            assert_eq!(client.session(), lender.session());
            assert_eq!((client.version(), lender.version()), (2, 2));
            assert!(seen.insert(*client.session()), "it is another link's");
        }
    }
}

/// A listener's ring with two clients, of which the first has two keys.
fn ring_of_two() -> (KeyRing, [ClusterKey; 3]) {
    loop {
        let keys = [(); 3].map(|()| ClusterKey::generate());
        let ids = keys.each_ref().map(KeyId::of);
        if ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2] {
            let ring = KeyRing::default();
            let names = ["first", "first", "second"].map(Box::<str>::from);
            ring.replace(names.into_iter().zip(keys.clone()));
            return (ring, keys);
        }
    }
}

fn meet_ring(ring: &KeyRing, key: &ClusterKey) -> (Result<Link, ConnectError>, Result<Link, HandshakeError>) {
    let listener = Listener::bind(&tcp(), ListenSecurity::Clients(ring.clone())).unwrap();
    let (address, security) = (listener.address().clone(), Security::Key(key.clone()));
    let client = thread::spawn(move || connect(&address, &security, PATIENCE));
    let lender = finish(&mut accept(&listener));
    (client.join().unwrap(), lender)
}

#[test]
fn a_named_client_is_known_by_its_key_until_that_is_revoked() {
    let (ring, keys) = ring_of_two();
    for (key, name) in keys.iter().zip(["first", "first", "second"]) {
        let (client, lender) = meet_ring(&ring, key);
        let (client, lender) = (client.unwrap(), lender.unwrap());
        let identity = lender.client().unwrap();
        assert_eq!((identity.name(), identity.key()), (name, KeyId::of(key)));
        assert!(lender.peer().starts_with(name), "{}", lender.peer());
        assert!(client.client().is_none() && !lender.is_revoked());
        ring.replace([("first".into(), keys[0].clone())]);
        assert_eq!(lender.is_revoked(), *key != keys[0]);
        let names = ["first", "first", "second"].map(Box::<str>::from);
        ring.replace(names.into_iter().zip(keys.clone()));
    }
    ring.replace([("first".into(), keys[0].clone())]);
    for key in [&keys[1], &ClusterKey::generate()] {
        let (client, lender) = meet_ring(&ring, key);
        assert!(matches!(client, Err(ConnectError::WrongKey)), "{client:?}");
        assert!(matches!(lender, Err(HandshakeError::WrongKey)), "{lender:?}");
    }
}

/// The short id is in the clear: whoever names another's gets no further than without it.
#[test]
fn naming_the_id_of_a_key_proves_nothing() {
    let (ring, keys) = ring_of_two();
    let place = SocketDir::new();
    let listener = Listener::bind(&place.unix("lender"), ListenSecurity::Clients(ring)).unwrap();
    let mut raw = UnixStream::connect(place.path("lender")).unwrap();
    let mut pending = accept(&listener);
    let mut hello = NEW_SECURE;
    let id = u16::from_str_radix(&KeyId::of(&keys[2]).to_string(), 16).unwrap();
    hello[14..].copy_from_slice(&id.to_le_bytes());
    raw.write_all(&[&hello[..], &[7; 48]].concat()).unwrap();
    let refused = finish(&mut pending);
    assert!(matches!(refused, Err(HandshakeError::WrongKey)), "{refused:?}");
    assert_eq!(answers(pending, raw)[32..42], *b"NETRAM\x02\x00\x01\x05");
}

#[test]
fn a_client_of_the_first_version_is_answered_in_it() {
    let place = SocketDir::new();
    let (_listener, mut pending, mut raw) = raw_client(&place, Security::Insecure);
    raw.write_all(&HELLO_PLAIN).unwrap();
    let link = finish(&mut pending).unwrap();
    assert_eq!(link.version(), 1);
    drop(link);
    let answer = answers(pending, raw);
    assert_eq!(answer, *b"NETRAM\x01\x00\x00\x00\x01\x00\x02\x00\x00\x00");
}

#[test]
fn a_lender_of_the_first_version_is_spoken_to_in_it() {
    let place = SocketDir::new();
    let (client, mut raw) = impostor(&place, Security::Insecure);
    raw.read_exact(&mut [0; 16]).unwrap();
    raw.write_all(&HELLO_PLAIN).unwrap();
    client.join().unwrap().unwrap();
}

#[test]
fn other_programs_are_disconnected_at_once_without_an_answer() {
    for greeting in [
        &b"G"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"NETRAN",
        &[0; 100],
        &[0x16, 3, 1],
    ] {
        let place = SocketDir::new();
        let (_listener, mut pending, mut raw) = raw_client(&place, key());
        raw.write_all(greeting).unwrap();
        assert!(matches!(finish(&mut pending), Err(HandshakeError::NotNetram)));
        assert!(answers(pending, raw).is_empty());
    }
    let place = SocketDir::new();
    let (client, mut raw) = impostor(&place, key());
    raw.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2").unwrap();
    assert!(matches!(client.join().unwrap(), Err(ConnectError::NotNetram)));
}

#[test]
fn no_unauthenticated_client_gets_more_than_a_nonce_beyond_what_it_sent() {
    for hello in [HELLO_PLAIN, HELLO_SECURE, NEW_PLAIN, NEW_SECURE] {
        for security in [Security::Insecure, key()] {
            let place = SocketDir::new();
            let (_listener, mut pending, mut raw) = raw_client(&place, security);
            let noise: Vec<u8> = (0..64).collect();
            raw.write_all(&hello).unwrap();
            raw.write_all(&noise[..48]).unwrap();
            let _ = finish(&mut pending);
            assert!(answers(pending, raw).len() <= 16 + 16 + 48);
        }
    }
}

#[test]
fn a_slow_client_is_cut_off_at_the_deadline() {
    let place = SocketDir::new();
    let (_listener, mut pending, mut raw) = raw_client(&place, key());
    let start = Instant::now();
    for (at, byte) in HELLO_SECURE[..15].iter().enumerate() {
        raw.write_all(&[*byte]).unwrap();
        let now = start + HANDSHAKE_TIMEOUT * at as u32 / 16;
        assert!(matches!(pending.advance(now), Ok(HandshakeProgress::NeedRead)));
    }
    assert!(pending.deadline() <= Instant::now() + HANDSHAKE_TIMEOUT);
    let late = pending.deadline();
    assert!(matches!(pending.advance(late), Err(HandshakeError::TimedOut)));
}

#[test]
fn a_silent_lender_is_given_up_at_the_timeout() {
    let place = SocketDir::new();
    let _silent = std::os::unix::net::UnixListener::bind(place.path("silent")).unwrap();
    let start = Instant::now();
    let outcome = connect(&place.unix("silent"), &key(), Duration::from_millis(50));
    assert!(matches!(outcome, Err(ConnectError::TimedOut)), "{outcome:?}");
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[test]
fn an_address_without_listener_is_unreachable() {
    let place = SocketDir::new();
    let outcome = connect(&place.unix("none"), &key(), PATIENCE);
    assert!(
        matches!(outcome, Err(ConnectError::Unreachable { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_busy_lender_says_so() {
    let place = SocketDir::new();
    let security = key();
    let listener = Listener::bind(&place.unix("lender"), security.clone()).unwrap();
    let address = place.unix("lender");
    let client = thread::spawn(move || connect(&address, &security, PATIENCE).map(drop));
    let mut pending = accept(&listener);
    pending.refuse_busy();
    assert!(matches!(finish(&mut pending), Err(HandshakeError::Busy)));
    assert!(matches!(client.join().unwrap(), Err(ConnectError::Busy)));
}

#[test]
fn without_a_key_only_local_addresses_are_served_or_spoken_to() {
    for text in ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:7"] {
        let address: NetAddress = text.parse().unwrap();
        let bound = Listener::bind(&address, Security::Insecure);
        assert!(
            matches!(bound, Err(ListenError::InsecureRefused { .. })),
            "{bound:?}"
        );
        let connected = connect(&address, &Security::Insecure, PATIENCE);
        assert!(
            matches!(connected, Err(ConnectError::InsecureRefused { .. })),
            "{connected:?}"
        );
    }
}

#[test]
fn thousands_of_pending_connections_are_bounded_and_leave_room_again() {
    assert!(
        size_of::<PendingHandshake>() <= 256,
        "{} bytes a pending connection",
        size_of::<PendingHandshake>()
    );
    let place = SocketDir::new();
    let listener = Listener::bind(&place.unix("lender"), key()).unwrap();
    let (mut clients, mut pending) = (Vec::new(), Vec::new());
    for _ in 0..2 * PENDING_MAX {
        clients.push(UnixStream::connect(place.path("lender")).unwrap());
        pending.extend(listener.accept(Instant::now()).unwrap());
    }
    assert_eq!(pending.len(), PENDING_MAX);
    assert_eq!(listener.pending_count(), PENDING_MAX);
    assert_eq!(
        clients[PENDING_MAX].read(&mut [0]).unwrap(),
        0,
        "the surplus is closed at once"
    );
    pending.clear();
    clients.push(UnixStream::connect(place.path("lender")).unwrap());
    assert!(listener.accept(Instant::now()).unwrap().is_some());
}

#[test]
fn a_socket_file_is_replaced_only_when_its_lender_is_dead() {
    let place = SocketDir::new();
    let address = place.unix("lender");
    // A socket file whose owner died: the file stays without a listener.
    drop(std::os::unix::net::UnixListener::bind(place.path("lender")).unwrap());
    let alive = Listener::bind(&address, key()).unwrap();
    assert!(matches!(
        Listener::bind(&address, key()),
        Err(ListenError::InUse { .. })
    ));
    drop(alive);
    assert!(!place.path("lender").exists());
    std::fs::write(place.path("lender"), b"precious").unwrap();
    assert!(matches!(
        Listener::bind(&address, key()),
        Err(ListenError::Failed { .. })
    ));
    assert_eq!(std::fs::read(place.path("lender")).unwrap(), b"precious");
}
