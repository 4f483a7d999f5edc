//! A real lender that hears a group in which strangers shout: what is genuine counts once, and all else is
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

/// A lender that hears a group of this test's own, somebody who may send there, and somebody who overhears
/// it.
struct MulticastFixture {
    lender: Lender,
    group: MulticastGroup,
    spy: UdpSocket,
    _dir: tempfile::TempDir,
}

impl MulticastFixture {
    /// `None`: nothing can be multicast over this machine's loopback, and the test has said so.
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

    /// A writer whose session listens to `caster`'s channel.
    fn writer(&self, caster: &mut MulticastSender) -> TestWriter {
        let mut writer = TestWriter::join(&self.lender.addresses()[0], 1, 1);
        let mut header = writer.header(FrameKind::Invite);
        header.lsn = Lsn(1);
        let tuned = writer.ask(header, &caster.invite(1).encode());
        assert_eq!(tuned.header.kind, FrameKind::Listening, "{tuned:?}");
        writer
    }

    fn dropped(&self) -> u64 {
        self.lender.report().counters.datagrams_dropped.values().sum()
    }
}

/// A socket that hears what goes over a group that nobody else has, and may send there.
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
    // Joins as the lender will, and is gone again.
    MulticastReceiver::open(&group)?;
    spy.send_to(b"?", group.address)?;
    spy.recv(&mut [0; 16])?;
    Ok((spy, group))
}

/// A generator of bytes that a failing run can repeat.
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
}

/// Multicasts the next record. Returns its bytes.
fn cast(caster: &mut MulticastSender, writer: &mut TestWriter, payload: &[u8]) -> Vec<u8> {
    let mut header = writer.header(FrameKind::Append);
    header.lsn = writer.at.lsn;
    header.stable = writer.stable;
    let record = writer.record(payload);
    assert_eq!(caster.send(&header, &record).lost, 0);
    record
}

#[test]
fn hostile_datagrams_cost_their_counting_and_nothing_genuine() {
    let Some(place) = MulticastFixture::new() else {
        return;
    };
    let group = &place.group;
    let mut caster = MulticastSender::open(group, Some(1400), 1).unwrap();
    // A client of the same group whom this lender does not know.
    let mut stranger = MulticastSender::open(group, Some(1400), 1).unwrap();
    stranger.invite(1);
    let mut writer = place.writer(&mut caster);
    let mut random = TestRng(0xDA7A_6AA5);
    let (mut log, mut hostile, mut genuine) = (Vec::new(), 0, 0);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    for round in 0..60 {
        let payload = random.bytes(1 + random.0 as usize % 1000);
        log.extend(cast(&mut caster, &mut writer, &payload));
        genuine += 1;
        // Of what was shouted before, nothing is kept: the answer is to this one.
        let answer = receive(&mut writer.link).unwrap().header;
        assert_eq!(
            (answer.kind, answer.lsn),
            (FrameKind::Ack, writer.at.lsn),
            "round {round}"
        );
        assert_eq!(answer.flags, Flag::HEARD);
        // The spy hears its own words too.
        let heard = loop {
            let length = place.spy.recv(&mut buffer).unwrap();
            if buffer[..8] == caster.invite(1).channel.to_le_bytes() && length > 100 {
                break buffer[..length].to_vec();
            }
        };
        for _ in 0..8 {
            let bytes = match random.below(5) {
                0 => heard.clone(),
                1 => heard[..random.below(heard.len())].to_vec(),
                2 => {
                    let mut changed = heard.clone();
                    changed[random.below(heard.len())] ^= 1 << random.below(8);
                    changed
                }
                3 => {
                    let length = random.below(3000);
                    random.bytes(length)
                }
                _ => [&heard[..], &[0]].concat(),
            };
            place.spy.send_to(&bytes, group.address).unwrap();
            hostile += 1;
        }
        stranger.send(&writer.header(FrameKind::Append), &payload);
        hostile += 1;
        while place.spy.set_nonblocking(true).is_ok() && place.spy.recv(&mut buffer).is_ok() {}
        place.spy.set_nonblocking(false).unwrap();
    }
    // Somebody who was given the key says what may not be said by multicast, or not by him.
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
        assert_eq!(caster.send(&header, &[0; 64]).sent, 1);
    }
    log.extend(cast(&mut caster, &mut writer, b"the last"));
    genuine += 1;
    writer.acked();
    assert_eq!(writer.read(START, log.len()), log);

    until("what was dropped is counted", || place.dropped() >= hostile);
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
    // Of the five, two are appends that open.
    assert_eq!(counters.datagrams, genuine + 2);
    assert_eq!(counters.refusals.len(), 0, "{counters:?}");
    assert_eq!(counters.datagrams_missing, 0);
}
