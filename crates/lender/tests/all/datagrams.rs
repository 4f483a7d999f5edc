//! A real lender in a multicast group with hostile senders: genuine datagrams count once, and all others are
//! dropped and counted.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use crate::common::{PATIENCE, START, TestWriter, config, memory_dir, receive, until};
use netram_lender::{Lender, LenderConfig};
use netram_proto::id::{Epoch, Lsn};
use netram_proto::limit::DATAGRAM_BYTES_MAX;
use netram_proto::wire::{Flag, FrameHeader, FrameKind};
use netram_transport::{MulticastGroup, MulticastReceiver, MulticastSender};
use socket2::{Domain, InterfaceIndexOrAddress, Socket, Type};

/// A lender in a multicast group of this test's own, and a socket that sends to the group and receives
/// everything in it.
struct MulticastFixture {
    lender: Lender,
    group: MulticastGroup,
    spy: UdpSocket,
    _dir: tempfile::TempDir,
}

impl MulticastFixture {
    /// `None` if this machine's loopback has no multicast; the test has then printed that it is skipped.
    fn new() -> Option<MulticastFixture> {
        match overhear() {
            Ok((spy, group)) => {
                let dir = memory_dir();
                let config = LenderConfig {
                    multicast: Some(group.clone()),
                    ..config(&dir)
                };
                let lender = Lender::start(config).unwrap();
                Some(MulticastFixture {
                    lender,
                    group,
                    spy,
                    _dir: dir,
                })
            }
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "\nSKIPPED multicast over loopback: {error}");
                None
            }
        }
    }

    /// A writer whose session listens to the channel of `sender`.
    fn writer(&self, sender: &mut MulticastSender) -> TestWriter {
        let mut writer = TestWriter::join(&self.lender.addresses()[0], 1, 1);
        let mut header = writer.header(FrameKind::Invite);
        header.lsn = Lsn(1);
        let tuned = writer.ask(header, &sender.invite(1).encode());
        assert_eq!(tuned.header.kind, FrameKind::Listening, "{tuned:?}");
        writer
    }

    fn dropped(&self) -> u64 {
        self.lender.report().counters.datagrams_dropped.values().sum()
    }
}

/// A socket in a multicast group that no other test uses.
fn overhear() -> std::io::Result<(UdpSocket, MulticastGroup)> {
    let host = Ipv4Addr::new(239, 78, std::process::id() as u8, 1);
    let spy = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    spy.set_reuse_address(true)?;
    spy.bind(&SocketAddrV4::new(host, 0).into())?;
    spy.join_multicast_v4_n(&host, &InterfaceIndexOrAddress::Address(Ipv4Addr::LOCALHOST))?;
    spy.set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
    spy.set_read_timeout(Some(PATIENCE))?;
    let spy = UdpSocket::from(spy);
    let port = spy.local_addr()?.port();
    let group: MulticastGroup = format!("{host}:{port}%lo")
        .parse()
        .map_err(std::io::Error::other)?;
    // Joins as the lender will, and leaves again.
    MulticastReceiver::open(&group)?;
    spy.send_to(b"?", group.address)?;
    spy.recv(&mut [0; 16])?;
    Ok((spy, group))
}

/// A generator of pseudo-random bytes from a fixed seed, so that a failing run repeats.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }

    /// A repeated, truncated, altered, random or extended datagram.
    fn altered(&mut self, genuine: &[u8]) -> Vec<u8> {
        match self.below(5) {
            0 => genuine.to_vec(),
            1 => genuine[..self.below(genuine.len())].to_vec(),
            2 => {
                let mut changed = genuine.to_vec();
                changed[self.below(genuine.len())] ^= 1 << self.below(8);
                changed
            }
            3 => {
                let length = self.below(3000);
                self.bytes(length)
            }
            _ => [genuine, &[0]].concat(),
        }
    }
}

/// Multicasts the next record. Returns its bytes.
fn cast(sender: &mut MulticastSender, writer: &mut TestWriter, payload: &[u8]) -> Vec<u8> {
    let mut header = writer.header(FrameKind::Append);
    header.lsn = writer.at.lsn;
    header.stable = writer.stable;
    let record = writer.record(payload);
    assert_eq!(sender.send(&header, &record).lost, 0);
    record
}

/// Multicasts five frames that are not allowed by multicast, or not for this writer, as a holder of the key
/// could.
fn cast_forbidden(sender: &mut MulticastSender, writer: &TestWriter) {
    let append = writer.header(FrameKind::Append);
    let at = writer.at.lsn;
    for header in [
        FrameHeader {
            epoch: Epoch(2),
            lsn: at,
            ..append
        },
        FrameHeader {
            sender: 5,
            lsn: at,
            ..append
        },
        FrameHeader {
            flags: Flag::FRESH,
            lsn: at.plus(8),
            stable: at.plus(8),
            ..append
        },
        FrameHeader {
            kind: FrameKind::Leave,
            ..append
        },
        FrameHeader {
            kind: FrameKind::Fence,
            epoch: Epoch(9),
            ..append
        },
    ] {
        assert_eq!(sender.send(&header, &[0; 64]).sent, 1);
    }
}

#[test]
fn hostile_datagrams_are_counted_and_no_genuine_one_is_lost() {
    let Some(place) = MulticastFixture::new() else {
        return;
    };
    let group = &place.group;
    let mut sender = MulticastSender::open(group, Some(1400), 1).unwrap();
    // A client of the same group that this lender does not know.
    let mut foreign = MulticastSender::open(group, Some(1400), 1).unwrap();
    foreign.invite(1);
    let mut writer = place.writer(&mut sender);
    let mut random = TestRng(0xDA7A_6AA5);
    let (mut log, mut hostile, mut genuine) = (Vec::new(), 0, 0);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    for round in 0..60 {
        let payload = random.bytes(1 + random.0 as usize % 1000);
        log.extend(cast(&mut sender, &mut writer, &payload));
        genuine += 1;
        // No earlier datagram was accepted, so the answer is to this one.
        let answer = receive(&mut writer.link).unwrap().header;
        assert_eq!(
            (answer.kind, answer.lsn),
            (FrameKind::Ack, writer.at.lsn),
            "round {round}"
        );
        assert_eq!(answer.flags, Flag::HEARD);
        // The spy receives its own datagrams, too.
        let genuine_bytes = loop {
            let length = place.spy.recv(&mut buffer).unwrap();
            if buffer[..8] == sender.invite(1).channel.to_le_bytes() && length > 100 {
                break buffer[..length].to_vec();
            }
        };
        for _ in 0..8 {
            let bytes = random.altered(&genuine_bytes);
            place.spy.send_to(&bytes, group.address).unwrap();
            hostile += 1;
        }
        foreign.send(&writer.header(FrameKind::Append), &payload);
        hostile += 1;
        while place.spy.set_nonblocking(true).is_ok() && place.spy.recv(&mut buffer).is_ok() {}
        place.spy.set_nonblocking(false).unwrap();
    }
    cast_forbidden(&mut sender, &writer);
    log.extend(cast(&mut sender, &mut writer, b"the last"));
    genuine += 1;
    writer.acked();
    assert_eq!(writer.read(START, log.len()), log);

    until("all drops are counted", || place.dropped() >= hostile);
    let counters = place.lender.report().counters;
    assert_eq!(place.dropped(), hostile, "{counters:?}");
    for kind in ["doubled", "forged", "strange"] {
        assert!(
            counters
                .datagrams_dropped
                .get(kind)
                .is_some_and(|count| *count > 0),
            "{kind}"
        );
    }
    // Of the five, two are appends that decrypt.
    assert_eq!(counters.datagrams, genuine + 2);
    assert_eq!(counters.refusals.len(), 0, "{counters:?}");
    assert_eq!(counters.datagrams_missing, 0);
}
