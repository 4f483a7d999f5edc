//! Misbehaving peers lose their own session and affect no other.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, TestWriter, config, dial, memory_dir, receive, send, socket, start, until};
use netram_lender::{ClientLimits, Lender, LenderConfig};
use netram_proto::id::Lsn;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::wire::{FrameHeader, FrameKind, RefusalReason};
use netram_transport::{ClusterKey, Link, LinkError, NetAddress, Security};

/// Appends and reads back in a session of its own.
fn assert_serves(lender: &Lender, journal: u128) {
    let mut writer = TestWriter::join(&lender.addresses()[0], journal, 1);
    let record = writer.append(b"still here");
    writer.acked();
    assert_eq!(writer.read(crate::common::START, record.len()), record);
}

/// A generator of pseudo-random bytes from a fixed seed, so that a failing run repeats.
struct TestRng(u64);

impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

fn assert_dropped(link: &mut Link) {
    let ended = loop {
        match receive(link) {
            Ok(answer) => assert!(
                matches!(answer.refusal(), Some(RefusalReason::Malformed))
                    || answer.header.kind == FrameKind::Bound,
                "{answer:?}"
            ),
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, LinkError::Closed), "{ended:?}");
}

#[test]
fn packets_that_are_not_frames_end_only_their_session() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = &lender.addresses()[0];
    let mut random = TestRng(0x5EED);
    for round in 0..100 {
        let mut link = dial(address);
        let length = 1 + random.next() as usize % 2000;
        // A first byte that is not a kind of frame.
        let bytes = [vec![200], random.bytes(length)].concat();
        link.send(&[&bytes]).unwrap();
        assert_dropped(&mut link);
        let mut bound = TestWriter::bind(address, 1000 + round, 1);
        bound.link.send(&[&bytes]).unwrap();
        assert_dropped(&mut bound.link);
    }
    assert_serves(&lender, 1);
    until("malformed frames are counted", || {
        lender
            .report()
            .counters
            .refusals
            .get("Malformed")
            .is_some_and(|count| *count >= 100)
    });
}

#[test]
fn random_frames_never_stop_the_lender() {
    let dir = memory_dir();
    let lender = Lender::start(LenderConfig {
        journals_max: 4096,
        ..config(&dir)
    })
    .unwrap();
    let address = &lender.addresses()[0];
    let mut random = TestRng(0xBAD);
    let kinds = [
        FrameKind::Fence,
        FrameKind::Join,
        FrameKind::Append,
        FrameKind::Ping,
        FrameKind::Read,
        FrameKind::Leave,
    ];
    for session in 0..200 {
        let mut writer = TestWriter::bind(address, session, 1);
        for _ in 0..50 {
            let mut header = writer.header(kinds[random.next() as usize % kinds.len()]);
            let mut number = || match random.next() % 4 {
                0 => random.next() % 100_000,
                1 => u64::MAX - random.next() % 100_000,
                2 => crate::common::WINDOW,
                _ => random.next(),
            };
            (header.lsn, header.stable, header.mark) = (Lsn(number()), Lsn(number()), number() as u32);
            let body = number().to_le_bytes();
            let length = [0, 4, 8][random.next() as usize % 3];
            if writer
                .link
                .send(&[&header.encode(length), &body[..length]])
                .is_err()
            {
                break;
            }
            // A refusal as malformed ends the session; all other frames are answered.
            match receive(&mut writer.link) {
                Ok(_) => (),
                Err(_) => break,
            }
        }
    }
    assert_serves(&lender, 1 << 100);
}

#[test]
fn frames_before_a_bind_and_second_binds_end_the_session() {
    let dir = memory_dir();
    let lender = start(&dir);
    let address = &lender.addresses()[0];
    for kind in [
        FrameKind::Append,
        FrameKind::Fence,
        FrameKind::Ack,
        FrameKind::Withdraw,
    ] {
        let mut link = dial(address);
        send(&mut link, FrameHeader::new(kind), &[]);
        assert_eq!(
            receive(&mut link).unwrap().refusal(),
            Some(RefusalReason::Malformed)
        );
        assert!(receive(&mut link).is_err());
    }
    let mut twice = TestWriter::bind(address, 5, 1);
    assert_eq!(
        twice.ask(FrameHeader::new(FrameKind::Bind), &[0; 16]).refusal(),
        Some(RefusalReason::Malformed)
    );
    let mut short = dial(address);
    send(&mut short, FrameHeader::new(FrameKind::Bind), &[0; 3]);
    assert_dropped(&mut short);
    assert_serves(&lender, 1);
}

#[test]
fn raw_bytes_oversized_lengths_and_cut_packets_leave_the_lender_serving() {
    let dir = memory_dir();
    let lender = start(&dir);
    let hello = *b"NETRAM\x01\x00\x00\x00\x01\x00\x01\x00\x00\x00";
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 4096], &hello[..7], b""] {
        let mut raw = UnixStream::connect(socket(&dir)).unwrap();
        // The lender may have closed the connection already.
        let _ = raw.write_all(bytes);
    }
    for packet in [&[0xFF, 0xFF, 1, 2, 3][..], &[0, 0], &[10, 0, 1], &[40]] {
        let mut raw = UnixStream::connect(socket(&dir)).unwrap();
        raw.set_read_timeout(Some(PATIENCE)).unwrap();
        raw.write_all(&hello).unwrap();
        raw.read_exact(&mut [0; 16]).unwrap();
        raw.write_all(packet).unwrap();
    }
    assert_serves(&lender, 1);
    until("all connections are closed", || lender.report().connections == 0);
}

#[test]
fn a_thousand_idle_connections_do_not_keep_others_out() {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // Both ends of every connection are in this process.
    const FILES_MIN: u64 = 2200;
    if files.maximum.is_some_and(|maximum| maximum < FILES_MIN) {
        let _ = writeln!(
            std::io::stderr(),
            "\nSKIPPED: a thousand connections need {FILES_MIN} descriptors, and the hard limit is below that"
        );
        return;
    }
    let raised = rustix::process::Rlimit {
        current: files.maximum,
        ..files
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let dir = memory_dir();
    let limits = ClientLimits {
        pending_max: 64,
        ..ClientLimits::default()
    };
    let lender = Lender::start(LenderConfig {
        limits,
        ..config(&dir)
    })
    .unwrap();
    let hello = *b"NETRAM\x01\x00\x00\x00\x01\x00\x01\x00\x00\x00";
    let strangers: Vec<UnixStream> = (0..1000)
        .map(|index| {
            let mut raw = UnixStream::connect(socket(&dir)).unwrap();
            // Some send nothing, some send a few bytes, and some complete the preamble and fall silent.
            raw.write_all(&hello[..[0, 5, 16][index % 3]]).unwrap();
            raw
        })
        .collect();
    // Clients retry when the lender is busy.
    let mut tries = 0;
    let link = loop {
        match netram_transport::connect(
            &lender.addresses()[0],
            &netram_transport::Security::Insecure,
            PATIENCE,
        ) {
            Ok(link) => break link,
            Err(error) => assert!(tries < 100, "{error}"),
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(20));
    };
    drop(link);
    assert_serves(&lender, 1);
    assert!(lender.report().connections <= 66);
    drop(strangers);
}

/// Strangers who sent nothing took the places of clients, who were told that the lender is busy.
#[test]
fn strangers_take_no_place_of_a_client() {
    let dir = memory_dir();
    let security = Security::Key(ClusterKey::generate());
    let lender = Lender::start(LenderConfig {
        security: security.clone(),
        limits: ClientLimits {
            pending_max: 2,
            ..ClientLimits::default()
        },
        ..config(&dir)
    })
    .unwrap();
    let strangers: Vec<UnixStream> = (0..100)
        .map(|_| UnixStream::connect(socket(&dir)).unwrap())
        .collect();
    let client = netram_transport::connect(&lender.addresses()[0], &security, PATIENCE);
    client.expect("a client with the key is served at its first attempt");
    drop(strangers);
}

/// Figures: how long an honest client waits for its connection while strangers come.
#[test]
#[ignore = "figures, ten seconds: cargo test -p netram-lender --test all hostile::connections -- --ignored --nocapture"]
fn connections_beside_three_thousand_strangers_a_second() {
    const A_SECOND: u32 = 3000;
    let dir = memory_dir();
    let security = Security::Key(ClusterKey::generate());
    let lender = Lender::start(LenderConfig {
        security: security.clone(),
        listen: vec!["tcp://127.0.0.1:0".parse().unwrap()],
        ..config(&dir)
    })
    .unwrap();
    let address = lender.addresses()[0].clone();
    let NetAddress::Tcp { port, .. } = address else {
        unreachable!("it listens on TCP")
    };
    for kind in ["silent", "a preamble", "a wrong key"] {
        let over = AtomicBool::new(false);
        let (mut waits, came) = std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let (began, mut came) = (Instant::now(), 0_u32);
                let mut open = VecDeque::new();
                while !over.load(Ordering::Relaxed) {
                    if f64::from(came) > began.elapsed().as_secs_f64() * f64::from(A_SECOND) {
                        std::thread::sleep(Duration::from_micros(200));
                        continue;
                    }
                    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                    let hello = b"NETRAM\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00";
                    let _ = match kind {
                        "silent" => Ok(()),
                        "a preamble" => stream.write_all(hello),
                        _ => stream.write_all(&[&hello[..], &[7; 48]].concat()),
                    };
                    came += 1;
                    open.push_back(stream);
                    if open.len() > 300 {
                        open.pop_front();
                    }
                }
                f64::from(came) / began.elapsed().as_secs_f64()
            });
            std::thread::sleep(Duration::from_millis(500));
            let waits: Vec<Duration> = (0..100)
                .map(|_| {
                    let began = Instant::now();
                    while netram_transport::connect(&address, &security, PATIENCE).is_err() {}
                    let waited = began.elapsed();
                    std::thread::sleep(Duration::from_millis(20));
                    waited
                })
                .collect();
            over.store(true, Ordering::Relaxed);
            (waits, flood.join().unwrap())
        });
        waits.sort();
        let _ = writeln!(
            std::io::stderr(),
            "{came:.0} strangers a second ({kind}): connected after {:?} (median), {:?} (longest of 100)",
            waits[50],
            waits[99]
        );
    }
}

#[test]
fn idle_sessions_end_and_active_ones_stay() {
    let dir = memory_dir();
    let limits = ClientLimits {
        idle_timeout: Duration::from_millis(600),
        ..ClientLimits::default()
    };
    let lender = Lender::start(LenderConfig {
        limits,
        ..config(&dir)
    })
    .unwrap();
    let mut talking = TestWriter::join(&lender.addresses()[0], 1, 1);
    let mut silent = TestWriter::bind(&lender.addresses()[0], 2, 1);
    until("the silent session ends", || {
        talking.append(b"on and on");
        talking.acked();
        talking.stable = talking.at.lsn;
        lender.report().connections == 1
    });
    assert!(matches!(receive(&mut silent.link), Err(LinkError::Closed)));
    talking.append(b"and on");
    talking.acked();
}

#[test]
fn a_slow_reader_is_dropped_while_others_are_served() {
    let dir = memory_dir();
    let limits = ClientLimits {
        slow_reader_timeout: Duration::from_millis(400),
        ..ClientLimits::default()
    };
    let lender = Lender::start(LenderConfig {
        limits,
        ..config(&dir)
    })
    .unwrap();
    let mut slow = TestWriter::join(&lender.addresses()[0], 2, 1);
    slow.append(&vec![7; 50_000]);
    slow.acked();
    let mut other = TestWriter::join(&lender.addresses()[0], 1, 1);
    let mut read = slow.header(FrameKind::Read);
    read.lsn = crate::common::START;
    until("the slow reader is dropped", || {
        // It requests more and more bytes and never reads them.
        let _ = slow
            .link
            .send(&[&read.encode(4), &(FRAME_BODY_BYTES_MAX as u32).to_le_bytes()]);
        other.append(b"meanwhile");
        other.acked();
        other.stable = other.at.lsn;
        lender.report().connections == 1
    });
}

#[test]
fn lsns_near_the_maximum_end_the_session_and_not_the_lender() {
    let dir = memory_dir();
    let lender = start(&dir);
    for at in [u64::MAX, u64::MAX - 7, u64::MAX / 2] {
        let mut writer = TestWriter::join(&lender.addresses()[0], u128::from(at), 1);
        let mut header = writer.header(FrameKind::Append);
        (header.lsn, header.stable) = (Lsn(at), Lsn(u64::MAX));
        assert_eq!(
            writer.ask(header, &[0; 64]).refusal(),
            Some(RefusalReason::Malformed)
        );
        let mut writer = TestWriter::bind(&lender.addresses()[0], u128::from(at) + 1, 1);
        writer.fence();
        writer.at.lsn = Lsn(at);
        assert_eq!(
            writer.join_window(crate::common::WINDOW, 1).refusal(),
            Some(RefusalReason::Malformed)
        );
    }
    assert_serves(&lender, 1);
}
