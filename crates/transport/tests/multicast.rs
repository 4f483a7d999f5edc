//! Datagrams over loopback: who hears, what is dropped, and that nothing is believed that does not open.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use netram_proto::cast::Tune;
use netram_proto::id::Lsn;
use netram_proto::limit::{DATAGRAM_BYTES_MAX, DATAGRAM_OVERHEAD_BYTES};
use netram_proto::wire::{Frame, FrameKind, Header};
use netram_transport::multicast::DATAGRAM_BYTES_DEFAULT;
use netram_transport::{Caster, Dropped, Ear, Group};

/// A group of this test alone: several tests, and several programs, hear each other otherwise.
fn group(last: u8) -> Group {
    let port = 20_000 + (std::process::id() % 20_000) as u16;
    format!("239.77.2.{last}:{port}%lo").parse().unwrap()
}

fn append(lsn: u64) -> Header {
    Header {
        lsn: Lsn(lsn),
        ..Header::new(FrameKind::Append)
    }
}

/// The next datagram within a generous time: loopback loses none as long as its buffers suffice.
fn hear(ear: &mut Ear) -> Option<(usize, Vec<u8>)> {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if let Some(heard) = ear.receive().unwrap() {
            return Some((heard.listener, heard.packet.to_vec()));
        }
        std::thread::yield_now();
    }
    None
}

fn hears_nothing_more(ear: &mut Ear, caster: &mut Caster) {
    // What is sent last arrives last: once it has come, all before it has.
    assert_eq!(caster.send(&append(u64::MAX - 8), &[9]).sent, 1);
    let (_, packet) = hear(ear).unwrap();
    assert_eq!(Frame::parse(&packet).unwrap().header.lsn, Lsn(u64::MAX - 8));
}

#[test]
fn a_frame_goes_once_and_every_ear_hears_all_of_it() {
    let group = group(1);
    let mut caster = Caster::open(&group, DATAGRAM_BYTES_DEFAULT).unwrap();
    let tune = caster.tune(1);
    assert!(group.is_named_by(&tune));
    let mut ears = [Ear::open(&group).unwrap(), Ear::open(&group).unwrap()];
    for (index, ear) in ears.iter_mut().enumerate() {
        assert!(ear.listen(&tune, 7 + index));
    }
    let body: Vec<u8> = (0..20_000_u32).map(|index| index as u8).collect();
    let sent = caster.send(&append(1000), &body);
    let most = DATAGRAM_BYTES_DEFAULT - DATAGRAM_OVERHEAD_BYTES;
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
        assert_eq!(ear.dropped(), Dropped::default());
    }
}

#[test]
fn the_largest_datagram_passes() {
    let group = group(2);
    let mut caster = Caster::open(&group, DATAGRAM_BYTES_MAX).unwrap();
    let mut ear = Ear::open(&group).unwrap();
    assert!(ear.listen(&caster.tune(1), 0));
    let body = vec![5; DATAGRAM_BYTES_MAX - DATAGRAM_OVERHEAD_BYTES];
    assert_eq!(caster.send(&append(0), &body).sent, 1);
    let (_, packet) = hear(&mut ear).unwrap();
    assert_eq!(Frame::parse(&packet).unwrap().body, body);
}

#[test]
fn another_channel_has_another_key_and_whoever_was_not_told_hears_nothing() {
    let group = group(3);
    let mut caster = Caster::open(&group, DATAGRAM_BYTES_DEFAULT).unwrap();
    let first = caster.tune(1);
    assert_eq!(caster.tune(1), first, "asked again, the same");
    let mut left = Ear::open(&group).unwrap();
    assert!(left.listen(&first, 0));
    let second = caster.tune(2);
    assert_ne!((first.channel, first.key), (second.channel, second.key));
    let mut stayed = Ear::open(&group).unwrap();
    assert!(stayed.listen(&second, 0));
    caster.send(&append(0), b"secret");
    assert!(hear(&mut stayed).is_some());
    let until = Instant::now() + Duration::from_secs(10);
    while left.dropped().strange == 0 && Instant::now() < until {
        assert!(left.receive().unwrap().is_none());
    }
    assert_eq!(left.dropped().strange, 1);
    stayed.forget(0);
    assert_eq!(stayed.channels(), 0);
}

#[test]
fn what_is_forged_changed_replayed_or_no_datagram_is_dropped_and_counted() {
    let group = group(4);
    let mut caster = Caster::open(&group, DATAGRAM_BYTES_DEFAULT).unwrap();
    let tune = caster.tune(1);
    let mut ear = Ear::open(&group).unwrap();
    assert!(ear.listen(&tune, 0));
    // An eavesdropper on the same machine, who takes a genuine datagram and sends what it likes.
    let spy = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    spy.set_reuse_address(true).unwrap();
    spy.bind(&group.address.into()).unwrap();
    spy.join_multicast_v4_n(group.address.ip(), &socket2::InterfaceIndexOrAddress::Index(1))
        .unwrap();
    spy.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    spy.set_multicast_if_v4(&std::net::Ipv4Addr::LOCALHOST).unwrap();
    let spy = UdpSocket::from(spy);
    caster.send(&append(0), b"genuine");
    assert!(hear(&mut ear).is_some());
    let mut genuine = [0; 2000];
    let length = spy.recv(&mut genuine).unwrap();
    let genuine = &genuine[..length];

    spy.send_to(genuine, group.address).unwrap();
    for at in 0..genuine.len() {
        let mut changed = genuine.to_vec();
        changed[at] ^= 1;
        spy.send_to(&changed, group.address).unwrap();
    }
    for cut in [0, 1, 16, 71, length - 1] {
        spy.send_to(&genuine[..cut], group.address).unwrap();
    }
    spy.send_to(&vec![0; 20_000], group.address).unwrap();
    hears_nothing_more(&mut ear, &mut caster);
    let dropped = ear.dropped();
    // The genuine one again, its sealed bytes changed (its number is known), and its last byte cut off.
    assert_eq!(dropped.doubled, 1 + (length as u64 - 16) + 1);
    // Changed numbers do not open; changed channels are nobody's, and so is what is short or not ours.
    assert_eq!(dropped.forged, 8);
    assert_eq!(dropped.strange, 8 + 4 + 1);
}

#[test]
fn a_channels_name_cannot_be_taken_with_another_key() {
    let group = group(5);
    let mut caster = Caster::open(&group, DATAGRAM_BYTES_DEFAULT).unwrap();
    let tune = caster.tune(1);
    let mut ear = Ear::open(&group).unwrap();
    assert!(ear.listen(&tune, 1));
    let thief = Tune { key: [1; 32], ..tune };
    assert!(!ear.listen(&thief, 2));
    assert!(ear.listen(&tune, 3), "the client's next connection");
    caster.send(&append(0), b"x");
    assert_eq!(hear(&mut ear).unwrap().0, 3);
    assert_eq!(ear.channels(), 1);
}

#[test]
fn an_interface_that_there_is_not_is_named() {
    let group: Group = "239.77.2.6:20000%nosuch0".parse().unwrap();
    let error = Ear::open(&group).unwrap_err().to_string();
    assert!(error.contains("nosuch0"), "{error}");
    let error = Caster::open(&group, DATAGRAM_BYTES_DEFAULT)
        .unwrap_err()
        .to_string();
    assert!(error.contains("nosuch0"), "{error}");
}

#[test]
fn groups_print_as_they_were_parsed_and_others_are_refused_with_the_reason() {
    for text in ["239.1.2.3:7421", "232.0.0.1:1%eth1"] {
        assert_eq!(text.parse::<Group>().unwrap().to_string(), text);
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
        let error = text.parse::<Group>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
}
