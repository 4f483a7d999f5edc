//! Datagrams over loopback: who hears, what is dropped, and that nothing is believed that does not open.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use netram_proto::id::Lsn;
use netram_proto::limit::{
    DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, DATAGRAM_OVERHEAD_BYTES, FRAME_BODY_BYTES_MAX,
};
use netram_proto::multicast::ChannelInvite;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::multicast::DATAGRAM_BYTES_ETHERNET;
use netram_transport::{DropCounts, MulticastGroup, MulticastReceiver, MulticastSender};
use socket2::{Domain, InterfaceIndexOrAddress, Socket, Type};

/// How long loopback may take: it needs microseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A group of one test alone: several tests, and several programs, hear each other otherwise.
struct TestGroup {
    group: MulticastGroup,
    /// Keeps the port for this test.
    _port: Socket,
}

impl TestGroup {
    /// `None`: nothing can be multicast over this machine's loopback, and the test has said so.
    fn new(last: u8) -> Option<TestGroup> {
        match TestGroup::open(last) {
            Ok(place) => Some(place),
            Err(error) => {
                // Not `eprintln`: whoever runs the tests is to see it where they pass.
                let _ = writeln!(
                    std::io::stderr(),
                    "\nSKIPPED multicast over loopback, {last}: {error}"
                );
                None
            }
        }
    }

    fn open(last: u8) -> std::io::Result<TestGroup> {
        let address = Ipv4Addr::new(239, 77, std::process::id() as u8, last);
        let port = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        port.set_reuse_address(true)?;
        port.bind(&SocketAddrV4::new(address, 0).into())?;
        let bound = port.local_addr()?.as_socket_ipv4();
        let bound = bound.ok_or_else(|| std::io::Error::other("an IPv4 socket has no IPv4 address"))?;
        let group = MulticastGroup {
            address: bound,
            interface: Some("lo".to_owned()),
        };
        let mut caster = MulticastSender::open(&group, Some(DATAGRAM_BYTES_ETHERNET), 1)?;
        let mut ear = MulticastReceiver::open(&group)?;
        ear.listen(&caster.invite(1), 0);
        if caster.send(&append(0), &[0]).sent != 1 || hear(&mut ear).is_none() {
            return Err(std::io::Error::other("what was sent was not heard"));
        }
        Ok(TestGroup { group, _port: port })
    }
}

fn append(lsn: u64) -> FrameHeader {
    FrameHeader {
        lsn: Lsn(lsn),
        ..FrameHeader::new(FrameKind::Append)
    }
}

/// The next datagram within a generous time: loopback loses none as long as its buffers suffice.
fn hear(ear: &mut MulticastReceiver) -> Option<(usize, Vec<u8>)> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(heard) = ear.receive().unwrap() {
            return Some((heard.listener, heard.packet.to_vec()));
        }
        std::thread::yield_now();
    }
    None
}

/// Waits until so many datagrams were dropped; none may be believed meanwhile.
fn drops(ear: &mut MulticastReceiver, count: u64) {
    let until = Instant::now() + PATIENCE;
    let sum = |dropped: DropCounts| dropped.unknown + dropped.duplicate + dropped.forged;
    while sum(ear.dropped()) < count && Instant::now() < until {
        assert!(ear.receive().unwrap().is_none());
        std::thread::yield_now();
    }
    assert_eq!(sum(ear.dropped()), count, "{:?}", ear.dropped());
}

#[test]
fn a_frame_goes_once_and_every_ear_hears_all_of_it() {
    let Some(place) = TestGroup::new(1) else { return };
    let group = &place.group;
    let mut caster = MulticastSender::open(group, Some(DATAGRAM_BYTES_ETHERNET), 1).unwrap();
    let tune = caster.invite(1);
    assert!(group.is_named_by(&tune));
    let mut ears = [
        MulticastReceiver::open(group).unwrap(),
        MulticastReceiver::open(group).unwrap(),
    ];
    for (index, ear) in ears.iter_mut().enumerate() {
        assert!(ear.listen(&tune, 7 + index));
    }
    let body: Vec<u8> = (0..20_000_u32).map(|index| index as u8).collect();
    let sent = caster.send(&append(1000), &body);
    let most = DATAGRAM_BYTES_ETHERNET - DATAGRAM_OVERHEAD_BYTES;
    assert_eq!((sent.sent, sent.lost), (body.len().div_ceil(most) as u64, 0));
    for (index, ear) in ears.iter_mut().enumerate() {
        let mut got = Vec::new();
        while got.len() < body.len() {
            let (listener, packet) = hear(ear).expect("a datagram");
            let frame = Frame::parse(&packet).unwrap();
            assert_eq!(listener, 7 + index);
            assert_eq!(frame.header, append(1000 + got.len() as u64));
            got.extend_from_slice(frame.body);
        }
        assert_eq!(got, body);
        assert_eq!(ear.dropped(), DropCounts::default());
    }
}

#[test]
fn more_than_one_call_takes_goes_in_several_and_none_is_left_in_between() {
    let Some(place) = TestGroup::new(7) else { return };
    let group = &place.group;
    let mut caster = MulticastSender::open(group, Some(DATAGRAM_BYTES_MIN), 1).unwrap();
    let mut ear = MulticastReceiver::open(group).unwrap();
    assert!(ear.listen(&caster.invite(1), 0));
    // More datagrams than one call sends, and more than one takes.
    let body: Vec<u8> = (0..FRAME_BODY_BYTES_MAX).map(|index| index as u8).collect();
    let sent = caster.send(&append(0), &body);
    let most = DATAGRAM_BYTES_MIN - DATAGRAM_OVERHEAD_BYTES;
    assert_eq!((sent.sent, sent.lost), (body.len().div_ceil(most) as u64, 0));
    let mut got = Vec::new();
    while got.len() < body.len() {
        let (_, packet) = hear(&mut ear).expect("a datagram");
        got.extend_from_slice(Frame::parse(&packet).unwrap().body);
    }
    assert_eq!(got, body);
    assert!(!ear.has_buffered());
}

#[test]
fn a_datagram_is_as_long_as_the_interface_carries_unless_it_is_told() {
    let Some(place) = TestGroup::new(8) else { return };
    let caster = MulticastSender::open(&place.group, None, 1).unwrap();
    let name = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
    let mtu: usize = name.trim().parse().unwrap();
    let whole = (mtu - 28).min(DATAGRAM_BYTES_MAX);
    let fits = if mtu > 1500 {
        whole
    } else {
        whole.min(DATAGRAM_BYTES_ETHERNET)
    };
    assert_eq!(caster.datagram_bytes(), fits);
    let told = MulticastSender::open(&place.group, Some(2000), 1).unwrap();
    assert_eq!(told.datagram_bytes(), 2000);
}

#[test]
fn the_largest_datagram_passes() {
    let Some(place) = TestGroup::new(2) else { return };
    let group = &place.group;
    let mut caster = MulticastSender::open(group, Some(DATAGRAM_BYTES_MAX), 1).unwrap();
    let mut ear = MulticastReceiver::open(group).unwrap();
    assert!(ear.listen(&caster.invite(1), 0));
    let body = vec![5; DATAGRAM_BYTES_MAX - DATAGRAM_OVERHEAD_BYTES];
    assert_eq!(caster.send(&append(0), &body).sent, 1);
    let (_, packet) = hear(&mut ear).unwrap();
    assert_eq!(Frame::parse(&packet).unwrap().body, body);
}

#[test]
fn another_channel_has_another_key_and_whoever_was_not_told_hears_nothing() {
    let Some(place) = TestGroup::new(3) else { return };
    let group = &place.group;
    let mut caster = MulticastSender::open(group, Some(DATAGRAM_BYTES_ETHERNET), 1).unwrap();
    let first = caster.invite(1);
    assert_eq!(caster.invite(1), first, "asked again, the same");
    let mut left = MulticastReceiver::open(group).unwrap();
    assert!(left.listen(&first, 0));
    let second = caster.invite(2);
    assert_ne!((first.channel, first.key), (second.channel, second.key));
    assert_eq!(
        caster.invite(1),
        second,
        "a late invitation does not replace the key"
    );
    let mut stayed = MulticastReceiver::open(group).unwrap();
    assert!(stayed.listen(&second, 0));
    caster.send(&append(0), b"secret");
    assert!(hear(&mut stayed).is_some());
    drops(&mut left, 1);
    assert_eq!(left.dropped().unknown, 1);
    stayed.forget(0);
    assert_eq!(stayed.channels(), 0);
}

#[test]
fn what_is_forged_changed_replayed_or_no_datagram_is_dropped_and_counted() {
    let Some(place) = TestGroup::new(4) else { return };
    let group = &place.group;
    let mut caster = MulticastSender::open(group, Some(DATAGRAM_BYTES_ETHERNET), 1).unwrap();
    let tune = caster.invite(1);
    let mut ear = MulticastReceiver::open(group).unwrap();
    assert!(ear.listen(&tune, 0));
    // An eavesdropper on the same machine, who takes a genuine datagram and sends what it likes.
    let spy = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    spy.set_reuse_address(true).unwrap();
    spy.bind(&group.address.into()).unwrap();
    let loopback = rustix::net::netdevice::name_to_index(&spy, "lo").unwrap();
    let loopback = InterfaceIndexOrAddress::Index(loopback);
    spy.join_multicast_v4_n(group.address.ip(), &loopback).unwrap();
    spy.set_read_timeout(Some(PATIENCE)).unwrap();
    spy.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    let spy = std::net::UdpSocket::from(spy);
    caster.send(&append(0), b"genuine");
    assert!(hear(&mut ear).is_some());
    let mut genuine = [0; 2000];
    let length = spy.recv(&mut genuine).unwrap();
    let genuine = &genuine[..length];

    // One after the other, so that no buffer overflows.
    let mut count = 0;
    let mut send = |bytes: &[u8]| {
        spy.send_to(bytes, group.address).unwrap();
        count += 1;
        drops(&mut ear, count);
    };
    send(genuine);
    for at in 0..genuine.len() {
        let mut changed = genuine.to_vec();
        changed[at] ^= 1;
        send(&changed);
    }
    for cut in [0, 1, 16, 71, length - 1] {
        send(&genuine[..cut]);
    }
    send(&vec![0; 20_000]);
    let dropped = ear.dropped();
    // The genuine one again, its sealed bytes changed (its number is known), and its last byte cut off.
    assert_eq!(dropped.duplicate, 1 + (length as u64 - 16) + 1);
    // Changed numbers do not open; changed channels are nobody's, and so is what is short or not ours.
    assert_eq!(dropped.forged, 8);
    assert_eq!(dropped.unknown, 8 + 4 + 1);
}

#[test]
fn a_channels_name_cannot_be_taken_with_another_key() {
    let Some(place) = TestGroup::new(5) else { return };
    let group = &place.group;
    let mut caster = MulticastSender::open(group, Some(DATAGRAM_BYTES_ETHERNET), 1).unwrap();
    let tune = caster.invite(1);
    let mut ear = MulticastReceiver::open(group).unwrap();
    assert!(ear.listen(&tune, 1));
    let thief = ChannelInvite { key: [1; 32], ..tune };
    assert!(!ear.listen(&thief, 2));
    assert!(ear.listen(&tune, 3), "the client's next connection");
    caster.send(&append(0), b"x");
    assert_eq!(hear(&mut ear).unwrap().0, 3);
    assert_eq!(ear.channels(), 1);
}

#[test]
fn an_interface_that_there_is_not_is_named() {
    let group: MulticastGroup = "239.77.2.6:20000%nosuch0".parse().unwrap();
    let error = MulticastReceiver::open(&group).unwrap_err().to_string();
    assert!(error.contains("nosuch0"), "{error}");
    let error = MulticastSender::open(&group, Some(DATAGRAM_BYTES_ETHERNET), 1)
        .unwrap_err()
        .to_string();
    assert!(error.contains("nosuch0"), "{error}");
}

#[test]
fn groups_print_as_they_were_parsed_and_others_are_refused_with_the_reason() {
    for text in ["239.1.2.3:7421", "232.0.0.1:1%eth1"] {
        assert_eq!(text.parse::<MulticastGroup>().unwrap().to_string(), text);
    }
    for (text, problem) in [
        ("10.0.0.1:7421", "multicast"),
        ("224.0.0.1:7421", "own protocols"),
        ("239.1.2.3", "a port"),
        ("239.1.2.3:0", "zero"),
        ("239.1.2.3:7421%", "1 to 15"),
        ("239.1.2.3:7421%a/b", "1 to 15"),
        ("239.1.2.3:7421%abcdefghijklmnop", "1 to 15"),
        ("[ff02::1]:7421", "IPv4"),
    ] {
        let error = text.parse::<MulticastGroup>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
}
