//! Datagrams over loopback: who receives them, and which are dropped.

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

/// Time limit for a delivery over loopback, which needs microseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A multicast group for one test: tests and programs with the same group would receive each other's
/// datagrams.
struct TestGroup {
    group: MulticastGroup,
    /// Reserves the port for this test.
    _port: Socket,
}

impl TestGroup {
    /// `None` if this machine's loopback has no multicast; the test has then printed that it is skipped.
    fn new(last: u8) -> Option<TestGroup> {
        match TestGroup::open(last) {
            Ok(place) => Some(place),
            Err(error) => {
                // Not `eprintln`, which the test harness hides when the test passes.
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
        let mut sender = MulticastSender::open(&group, Some(DATAGRAM_BYTES_ETHERNET), 1)?;
        let mut receiver = MulticastReceiver::open(&group)?;
        receiver.listen(&sender.invite(1), 0);
        if sender.send(&append(0), &[0]).sent != 1 || receive_next(&mut receiver).is_none() {
            return Err(std::io::Error::other("the datagram sent was not received"));
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

/// The next datagram. The time limit is generous: loopback loses none while its buffers suffice.
fn receive_next(receiver: &mut MulticastReceiver) -> Option<(usize, Vec<u8>)> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(datagram) = receiver.receive().unwrap() {
            return Some((datagram.listener, datagram.packet.to_vec()));
        }
        std::thread::yield_now();
    }
    None
}

/// Waits until `count` datagrams were dropped; none may be accepted.
fn drops(receiver: &mut MulticastReceiver, count: u64) {
    let until = Instant::now() + PATIENCE;
    let sum = |dropped: DropCounts| dropped.unknown + dropped.duplicate + dropped.forged;
    while sum(receiver.dropped()) < count && Instant::now() < until {
        assert!(receiver.receive().unwrap().is_none());
        std::thread::yield_now();
    }
    assert_eq!(sum(receiver.dropped()), count, "{:?}", receiver.dropped());
}

#[test]
fn a_frame_is_sent_once_and_every_receiver_gets_all_of_it() {
    let Some(place) = TestGroup::new(1) else { return };
    let group = &place.group;
    let mut sender = MulticastSender::open(group, Some(DATAGRAM_BYTES_ETHERNET), 1).unwrap();
    let invite = sender.invite(1);
    assert!(group.is_named_by(&invite));
    let mut receivers = [
        MulticastReceiver::open(group).unwrap(),
        MulticastReceiver::open(group).unwrap(),
    ];
    for (index, receiver) in receivers.iter_mut().enumerate() {
        assert!(receiver.listen(&invite, 7 + index));
    }
    let body: Vec<u8> = (0..20_000_u32).map(|index| index as u8).collect();
    let sent = sender.send(&append(1000), &body);
    let most = DATAGRAM_BYTES_ETHERNET - DATAGRAM_OVERHEAD_BYTES;
    assert_eq!((sent.sent, sent.lost), (body.len().div_ceil(most) as u64, 0));
    for (index, receiver) in receivers.iter_mut().enumerate() {
        let mut got = Vec::new();
        while got.len() < body.len() {
            let (listener, packet) = receive_next(receiver).expect("a datagram");
            let frame = Frame::parse(&packet).unwrap();
            assert_eq!(listener, 7 + index);
            assert_eq!(frame.header, append(1000 + got.len() as u64));
            got.extend_from_slice(frame.body);
        }
        assert_eq!(got, body);
        assert_eq!(receiver.dropped(), DropCounts::default());
    }
}

#[test]
fn a_long_frame_takes_several_calls_and_loses_no_datagram() {
    let Some(place) = TestGroup::new(7) else { return };
    let group = &place.group;
    let mut sender = MulticastSender::open(group, Some(DATAGRAM_BYTES_MIN), 1).unwrap();
    let mut receiver = MulticastReceiver::open(group).unwrap();
    assert!(receiver.listen(&sender.invite(1), 0));
    // More datagrams than one call sends or receives.
    let body: Vec<u8> = (0..FRAME_BODY_BYTES_MAX).map(|index| index as u8).collect();
    let sent = sender.send(&append(0), &body);
    let most = DATAGRAM_BYTES_MIN - DATAGRAM_OVERHEAD_BYTES;
    assert_eq!((sent.sent, sent.lost), (body.len().div_ceil(most) as u64, 0));
    let mut got = Vec::new();
    while got.len() < body.len() {
        let (_, packet) = receive_next(&mut receiver).expect("a datagram");
        got.extend_from_slice(Frame::parse(&packet).unwrap().body);
    }
    assert_eq!(got, body);
    assert!(!receiver.has_buffered());
}

#[test]
fn datagrams_have_the_length_of_the_interface_unless_one_is_set() {
    let Some(place) = TestGroup::new(8) else { return };
    let sender = MulticastSender::open(&place.group, None, 1).unwrap();
    let name = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
    let mtu: usize = name.trim().parse().unwrap();
    let whole = (mtu - 28).min(DATAGRAM_BYTES_MAX);
    let fits = if mtu > 1500 {
        whole
    } else {
        whole.min(DATAGRAM_BYTES_ETHERNET)
    };
    assert_eq!(sender.datagram_bytes(), fits);
    let shorter = MulticastSender::open(&place.group, Some(2000), 1).unwrap();
    assert_eq!(shorter.datagram_bytes(), 2000);
}

#[test]
fn the_largest_datagram_passes() {
    let Some(place) = TestGroup::new(2) else { return };
    let group = &place.group;
    let mut sender = MulticastSender::open(group, Some(DATAGRAM_BYTES_MAX), 1).unwrap();
    let mut receiver = MulticastReceiver::open(group).unwrap();
    assert!(receiver.listen(&sender.invite(1), 0));
    let body = vec![5; DATAGRAM_BYTES_MAX - DATAGRAM_OVERHEAD_BYTES];
    assert_eq!(sender.send(&append(0), &body).sent, 1);
    let (_, packet) = receive_next(&mut receiver).unwrap();
    assert_eq!(Frame::parse(&packet).unwrap().body, body);
}

#[test]
fn another_channel_has_another_key_and_uninvited_receivers_get_nothing() {
    let Some(place) = TestGroup::new(3) else { return };
    let group = &place.group;
    let mut sender = MulticastSender::open(group, Some(DATAGRAM_BYTES_ETHERNET), 1).unwrap();
    let first = sender.invite(1);
    assert_eq!(
        sender.invite(1),
        first,
        "a repeated request gets the same channel"
    );
    let mut left = MulticastReceiver::open(group).unwrap();
    assert!(left.listen(&first, 0));
    let second = sender.invite(2);
    assert_ne!((first.channel, first.key), (second.channel, second.key));
    assert_eq!(
        sender.invite(1),
        second,
        "a late invitation does not replace the key"
    );
    let mut stayed = MulticastReceiver::open(group).unwrap();
    assert!(stayed.listen(&second, 0));
    sender.send(&append(0), b"secret");
    assert!(receive_next(&mut stayed).is_some());
    drops(&mut left, 1);
    assert_eq!(left.dropped().unknown, 1);
    stayed.forget(0);
    assert_eq!(stayed.channels(), 0);
}

#[test]
fn forged_changed_replayed_and_foreign_datagrams_are_dropped_and_counted() {
    let Some(place) = TestGroup::new(4) else { return };
    let group = &place.group;
    let mut sender = MulticastSender::open(group, Some(DATAGRAM_BYTES_ETHERNET), 1).unwrap();
    let invite = sender.invite(1);
    let mut receiver = MulticastReceiver::open(group).unwrap();
    assert!(receiver.listen(&invite, 0));
    // An eavesdropper on the same machine takes a genuine datagram and sends altered copies.
    let spy = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    spy.set_reuse_address(true).unwrap();
    spy.bind(&group.address.into()).unwrap();
    let loopback = rustix::net::netdevice::name_to_index(&spy, "lo").unwrap();
    let loopback = InterfaceIndexOrAddress::Index(loopback);
    spy.join_multicast_v4_n(group.address.ip(), &loopback).unwrap();
    spy.set_read_timeout(Some(PATIENCE)).unwrap();
    spy.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    let spy = std::net::UdpSocket::from(spy);
    sender.send(&append(0), b"genuine");
    assert!(receive_next(&mut receiver).is_some());
    let mut genuine = [0; 2000];
    let length = spy.recv(&mut genuine).unwrap();
    let genuine = &genuine[..length];

    // One at a time, so that no buffer overflows.
    let mut count = 0;
    let mut send = |bytes: &[u8]| {
        spy.send_to(bytes, group.address).unwrap();
        count += 1;
        drops(&mut receiver, count);
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
    let dropped = receiver.dropped();
    // The genuine one replayed, with altered sealed bytes (its number is known), and with its last byte cut
    // off.
    assert_eq!(dropped.duplicate, 1 + (length as u64 - 16) + 1);
    // Altered numbers fail authentication; altered channels, short datagrams and foreign ones are unknown.
    assert_eq!(dropped.forged, 8);
    assert_eq!(dropped.unknown, 8 + 4 + 1);
}

#[test]
fn a_channels_name_cannot_be_taken_with_another_key() {
    let Some(place) = TestGroup::new(5) else { return };
    let group = &place.group;
    let mut sender = MulticastSender::open(group, Some(DATAGRAM_BYTES_ETHERNET), 1).unwrap();
    let invite = sender.invite(1);
    let mut receiver = MulticastReceiver::open(group).unwrap();
    assert!(receiver.listen(&invite, 1));
    let thief = ChannelInvite {
        key: [1; 32],
        ..invite
    };
    assert!(!receiver.listen(&thief, 2));
    assert!(receiver.listen(&invite, 3), "the client's next connection");
    sender.send(&append(0), b"x");
    assert_eq!(receive_next(&mut receiver).unwrap().0, 3);
    assert_eq!(receiver.channels(), 1);
}

#[test]
fn a_missing_interface_is_named_in_the_error() {
    let group: MulticastGroup = "239.77.2.6:20000%nosuch0".parse().unwrap();
    let error = MulticastReceiver::open(&group).unwrap_err().to_string();
    assert!(error.contains("nosuch0"), "{error}");
    let error = MulticastSender::open(&group, Some(DATAGRAM_BYTES_ETHERNET), 1)
        .unwrap_err()
        .to_string();
    assert!(error.contains("nosuch0"), "{error}");
}

#[test]
fn groups_print_as_they_were_parsed_and_invalid_ones_are_refused_with_the_reason() {
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
