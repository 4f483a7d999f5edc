//! An established link delivers packets whole, in order and unchanged, or fails.

use std::io::Write;
use std::time::Instant;

use crate::common::*;
use netram_transport::link::SEND_BUFFER_BYTES;
use netram_transport::{ClusterKey, Link, LinkError, PACKET_BYTES_MAX, Security, SendProgress};
use proptest::prelude::*;
use socket2::SockRef;

fn key() -> Security {
    Security::Key(ClusterKey::generate())
}

/// Sends `packet` and receives it at the other end, flushing as needed.
fn carry(from: &mut Link, to: &mut Link, packet: &[u8]) -> Vec<u8> {
    from.send(&[packet]).unwrap();
    loop {
        from.flush().unwrap();
        if let Some(received) = to.receive().unwrap() {
            return received.to_vec();
        }
    }
}

#[test]
fn packets_of_every_size_arrive_unchanged_on_every_kind_of_link() {
    let place = SocketDir::new();
    for (address, security) in kinds(&place) {
        let (mut client, mut lender) = pair(&address, &security);
        let near_limits = PACKET_BYTES_MAX - 40..=PACKET_BYTES_MAX;
        let powers = (10..16).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]);
        for length in (1..600)
            .chain(powers)
            .chain(near_limits)
            .filter(|&length| length <= PACKET_BYTES_MAX)
        {
            let sent = packet(length, length);
            assert!(
                carry(&mut client, &mut lender, &sent) == sent,
                "{address}, {length} bytes to the lender"
            );
            assert!(
                carry(&mut lender, &mut client, &sent) == sent,
                "{address}, {length} bytes to the client"
            );
        }
    }
}

#[test]
fn parts_arrive_as_one_packet() {
    let place = SocketDir::new();
    for (address, security) in kinds(&place) {
        let (mut client, mut lender) = pair(&address, &security);
        assert_eq!(
            client.send(&[b"head", b"", b"er and ", b"body"]),
            Ok(SendProgress::Whole)
        );
        assert_eq!(receive(&mut lender).unwrap(), b"header and body");
    }
}

#[test]
fn one_receive_brings_many_packets() {
    let (mut client, mut lender) = pair(&tcp(), &key());
    for number in 0..100 {
        client.queue(&[&packet(number, 50)]).unwrap();
    }
    assert!(client.flush().unwrap());
    assert_eq!(receive(&mut lender).unwrap(), packet(0, 50));
    for number in 1..100 {
        assert!(lender.has_buffered());
        assert_eq!(lender.receive().unwrap(), Some(&packet(number, 50)[..]));
    }
    assert!(!lender.has_buffered());
    assert_eq!(lender.receive(), Ok(None));
}

#[test]
fn a_slow_peer_congests_and_nothing_is_lost() {
    let place = SocketDir::new();
    for (address, security) in kinds(&place) {
        let (mut client, mut lender) = pair(&address, &security);
        // The kernel's smallest send buffer makes every packet cross in pieces. The receive buffer keeps its
        // size: a TCP window below one segment moves at the pace of the kernel's probe timer, which takes
        // minutes.
        SockRef::from(&client).set_send_buffer_size(1).unwrap();
        let (mut sent, mut received, mut congested) = (0, 0, 0);
        let end = Instant::now() + PATIENCE;
        while received < 600 {
            assert!(Instant::now() < end, "{address}: {received} of 600 packets came");
            if sent < 600 {
                let next = packet(sent, 1 + sent * 7919 % 9000);
                match client.send(&[&next[..next.len() / 3], &next[next.len() / 3..]]) {
                    Ok(_) => {
                        sent += 1;
                        // The lender reads only while the client cannot send.
                        continue;
                    }
                    Err(LinkError::Congested) => congested += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            client.flush().unwrap();
            while let Some(got) = lender.receive().unwrap() {
                assert!(
                    got == packet(received, 1 + received * 7919 % 9000),
                    "{address}, packet {received}"
                );
                received += 1;
            }
        }
        assert!(
            congested > 0,
            "{address}: the test has never filled the send buffer"
        );
        assert!(client.flush().unwrap());
    }
}

#[test]
fn congestion_takes_nothing_and_comes_only_when_half_the_buffer_is_full() {
    let place = SocketDir::new();
    let (mut client, _lender) = pair(&place.unix("a"), &key());
    SockRef::from(&client).set_send_buffer_size(1).unwrap();
    let mut sent = 0;
    while client.send(&[&[7; 1000]]) != Err(LinkError::Congested) {
        sent += 1;
    }
    assert!(
        sent * 1018 >= SEND_BUFFER_BYTES / 2,
        "congested after {sent} packets"
    );
    assert_eq!(client.send(&[&[7; 1000]]), Err(LinkError::Congested));
}

#[test]
fn a_changed_bit_anywhere_in_a_sealed_packet_is_detected() {
    for bit in (0..8 * (2 + 24 + 16)).step_by(5).chain(0..16) {
        let place = SocketDir::new();
        let (mut client, mut lender, mut middleman) = pair_with_middleman(&place, &key());
        client.send(&[&[42; 24]]).unwrap();
        client.send(&[&[43; 24]]).unwrap();
        let mut wire = middleman.take_from_client(2 * (2 + 24 + 16));
        wire[bit / 8] ^= 1 << (bit % 8);
        middleman.lender_side.write_all(&wire).unwrap();
        drop(middleman);
        // An altered length is impossible, or longer than the data that follows, or cuts the packet at the
        // wrong place.
        let error = receive(&mut lender).unwrap_err();
        if bit < 16 {
            let wrong_place = matches!(
                error,
                LinkError::Tampered | LinkError::Closed | LinkError::Malformed { .. }
            );
            assert!(wrong_place, "bit {bit}: {error}");
        } else {
            assert_eq!(error, LinkError::Tampered, "bit {bit}");
        }
        assert!(
            receive(&mut lender).is_err(),
            "nothing behind a changed packet is believed"
        );
    }
}

#[test]
fn dropped_repeated_or_swapped_packets_are_detected() {
    const ON_WIRE: usize = 2 + 10 + 16;
    for order in [&[1][..], &[0, 0], &[1, 0], &[0, 2], &[0, 1, 1]] {
        let place = SocketDir::new();
        let (mut client, mut lender, mut middleman) = pair_with_middleman(&place, &key());
        for number in 0..3 {
            client.send(&[&packet(number, 10)]).unwrap();
        }
        let wire = middleman.take_from_client(3 * ON_WIRE);
        for &number in order {
            middleman
                .lender_side
                .write_all(&wire[number * ON_WIRE..][..ON_WIRE])
                .unwrap();
        }
        let last = order
            .iter()
            .map(|_| receive(&mut lender))
            .find(|outcome| outcome.is_err());
        assert_eq!(last, Some(Err(LinkError::Tampered)), "{order:?}");
    }
}

#[test]
fn plaintext_is_not_on_the_wire() {
    let place = SocketDir::new();
    let (mut client, mut lender, mut middleman) = pair_with_middleman(&place, &key());
    client.send(&[b"attack at dawn"]).unwrap();
    let wire = middleman.take_from_client(2 + 14 + 16);
    assert!(!wire.windows(6).any(|window| window == b"attack"));
    middleman.lender_side.write_all(&wire).unwrap();
    assert_eq!(receive(&mut lender).unwrap(), b"attack at dawn");
}

#[test]
fn impossible_lengths_end_the_link() {
    for security in [Security::Insecure, key()] {
        let overhead = if matches!(security, Security::Insecure) {
            0
        } else {
            16
        };
        for length in [0, overhead, PACKET_BYTES_MAX + overhead + 1, 65535] {
            let place = SocketDir::new();
            let (_client, mut lender, mut middleman) = pair_with_middleman(&place, &security);
            middleman
                .lender_side
                .write_all(&(length as u16).to_le_bytes())
                .unwrap();
            assert_eq!(receive(&mut lender), Err(LinkError::Malformed { length }));
            assert_eq!(lender.receive(), Err(LinkError::Malformed { length }));
            assert!(
                lender.has_buffered(),
                "a caller that sleeps must not sleep on this"
            );
        }
    }
}

#[test]
fn packets_that_arrive_byte_by_byte_are_reassembled() {
    let place = SocketDir::new();
    let (mut client, mut lender, mut middleman) = pair_with_middleman(&place, &key());
    client.send(&[&packet(1, 300)]).unwrap();
    client.send(&[&packet(2, 1)]).unwrap();
    for left in (0..2 + 316 + 2 + 17).rev() {
        assert_eq!(
            lender.receive().map(|packet| packet.is_some()),
            Ok(left == 18),
            "{left} bytes left"
        );
        middleman.pass_to_lender(1);
    }
    assert_eq!(receive(&mut lender).unwrap(), packet(2, 1));
}

#[test]
fn packets_that_arrived_before_the_close_are_delivered_before_it() {
    let place = SocketDir::new();
    for (address, security) in kinds(&place) {
        let (mut client, mut lender) = pair(&address, &security);
        client.send(&[b"one"]).unwrap();
        client.send(&[b"two"]).unwrap();
        drop(client);
        assert_eq!(receive(&mut lender).unwrap(), b"one");
        assert_eq!(receive(&mut lender).unwrap(), b"two");
        assert_eq!(receive(&mut lender), Err(LinkError::Closed));
        // The first send may still find an open socket; a later one fails, and no signal kills the process.
        let closed = (0..1000).any(|_| lender.send(&[b"anybody?"]) == Err(LinkError::Closed));
        assert!(closed, "{address}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A plain link returns packets or an error for any bytes, and never panics.
    #[test]
    fn any_bytes_are_packets_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let place = SocketDir::new();
        let (_client, mut lender, mut middleman) = pair_with_middleman(&place, &Security::Insecure);
        middleman.lender_side.write_all(&bytes).unwrap();
        drop(middleman);
        let mut expected = &bytes[..];
        let outcome = loop {
            match receive(&mut lender) {
                Ok(packet) => {
                    let (length, rest) = expected.split_at(2);
                    prop_assert_eq!(packet.len(), usize::from(u16::from_le_bytes([length[0], length[1]])));
                    prop_assert_eq!(&packet[..], &rest[..packet.len()]);
                    expected = &rest[packet.len()..];
                }
                Err(error) => break error,
            }
        };
        let known = matches!(outcome, LinkError::Closed | LinkError::Malformed { .. });
        prop_assert!(known);
    }
}
