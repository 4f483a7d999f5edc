//! Messages between nodes and the server: whole and in order, or the session ends, and no other.

use std::time::{Duration, Instant};

use crate::common::{PATIENCE, TestAcceptor, TestRng, next, receive, until};
use netram_lender::{Lender, LenderConfig};
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_shared::channel::{Channel, ChannelError, ChannelOpenError, ChannelWait};
use netram_shared::limit::GREETING_BYTES_MAX;
use netram_shared_machine::limit::{REGION_NODES_MAX, SHARED_MESSAGE_BYTES_MAX};
use netram_shared_machine::{NodeId, RecordNumber, RegionId, ToServer};
use netram_transport::{ClusterKey, ConnectError, LinkError, NetAddress, Security, WaitPolicy};

/// Sends queued messages, and returns the next message at the other end.
fn carry(from: &mut Channel, to: &mut Channel) -> Vec<u8> {
    let end = Instant::now() + PATIENCE;
    loop {
        from.flush().unwrap();
        if let Some(came) = to.receive().unwrap() {
            return came.to_vec();
        }
        assert!(Instant::now() < end, "nothing comes");
    }
}

fn pass(from: &mut Channel, to: &mut Channel, message: &[u8]) {
    let (front, back) = message.split_at(message.len() / 3);
    from.queue(&[front, back]);
    assert!(carry(from, to) == message, "{} bytes changed", message.len());
}

#[test]
fn messages_of_every_size_arrive_whole_and_in_order() {
    let house = TestAcceptor::open();
    let (mut node, mut arrival) = house.pair();
    let mut random = TestRng(1);
    for length in [
        1,
        2,
        100,
        61_479,
        61_480,
        61_481,
        123_000,
        1 << 20,
        SHARED_MESSAGE_BYTES_MAX,
    ] {
        let message = random.bytes(length);
        pass(&mut node, &mut arrival.channel, &message);
        pass(&mut arrival.channel, &mut node, &message);
    }
    for round in 0..20_u32 {
        let mut messages = Vec::new();
        for _ in 0..250 {
            let length = 1 + random.below(300) as usize;
            messages.push(random.bytes(length));
        }
        for message in &messages {
            node.queue(&[message]);
            if round % 2 == 0 {
                node.flush().unwrap();
            }
        }
        for message in &messages {
            assert_eq!(&carry(&mut node, &mut arrival.channel), message);
        }
    }
}

#[test]
fn small_messages_share_a_packet() {
    let house = TestAcceptor::open();
    let (mut link, mut arrival) = house.raw();
    for number in 0..1000_u32 {
        arrival.channel.queue(&[&number.to_le_bytes()]);
    }
    assert!(arrival.channel.flush().unwrap());
    let packet = receive(&mut link).unwrap();
    assert_eq!(packet.len(), 8000);
    assert_eq!(packet[7992..], [4, 0, 0, 0, 231, 3, 0, 0]);
}

#[test]
fn a_peer_that_does_not_read_is_sent_bounded_bytes() {
    let house = TestAcceptor::open();
    let (mut node, mut arrival) = house.pair();
    let (message, mut sent) = (vec![5; 100_000], 0);
    while arrival.channel.has_room() {
        arrival.channel.queue(&[&message]);
        arrival.channel.flush().unwrap();
        sent += 1;
        assert!(sent < 1000, "the sockets' buffers have no end");
    }
    // The node reads again, and no message was lost.
    for _ in 0..sent {
        arrival.channel.flush().unwrap();
        assert_eq!(next(&mut node).unwrap().len(), message.len());
        arrival.channel.flush().unwrap();
    }
    assert!(arrival.channel.has_room() && arrival.channel.queued_bytes() == 0);
}

#[test]
fn an_invalid_length_ends_the_session() {
    let house = TestAcceptor::open();
    for (let_in, length) in [
        (true, 0),
        (true, SHARED_MESSAGE_BYTES_MAX + 1),
        (true, u32::MAX as usize),
        (false, GREETING_BYTES_MAX + 1),
    ] {
        let (mut link, mut arrival) = house.raw();
        if let_in {
            arrival.channel.allow_long_messages();
        }
        link.send(&[&[1, 0, 0, 0, 9], &(length as u32).to_le_bytes(), b"rest"])
            .unwrap();
        assert_eq!(next(&mut arrival.channel), Ok(vec![9]));
        let refused = next(&mut arrival.channel);
        assert_eq!(refused, Err(ChannelError::Length { length }));
        // The session stays ended, whatever comes after.
        link.send(&[&[1, 0, 0, 0, 9]]).unwrap();
        assert_eq!(next(&mut arrival.channel), Err(ChannelError::Length { length }));
    }
    let (mut node, mut arrival) = house.pair();
    pass(&mut node, &mut arrival.channel, b"others go on");
}

/// In a region where more than some 16,000 nodes had been, a node was cut off whenever it came back. Its list
/// of nodes was longer than any message that a server accepted from an unknown session.
#[test]
fn a_node_can_resume_in_a_region_with_the_maximum_of_node_ids() {
    let house = TestAcceptor::open();
    let (mut node, mut arrival) = house.pair();
    // Ids are as far apart, and numbers as long, as possible.
    let nodes = (0..REGION_NODES_MAX as u64).map(|index| (NodeId(1 + (index << 47)), RecordNumber(u64::MAX)));
    let resume: ToServer<Vec<u8>> = ToServer::Resume {
        region: RegionId(u128::MAX),
        node: NodeId(u64::MAX),
        link: u64::MAX,
        whole: true,
        applied: nodes.collect(),
    };
    let mut message = Vec::new();
    resume.head(&mut message);
    assert!(message.len() > 1 << 20, "{} bytes", message.len());
    pass(&mut node, &mut arrival.channel, &message);
}

#[test]
fn a_message_that_is_cut_off_never_arrives() {
    let house = TestAcceptor::open();
    let (mut link, mut arrival) = house.raw();
    arrival.channel.allow_long_messages();
    link.send(&[&[2, 0, 0, 0, 1, 2, 100, 0]]).unwrap();
    link.send(&[&[0, 0], &[3; 99]]).unwrap();
    assert_eq!(next(&mut arrival.channel), Ok(vec![1, 2]));
    drop(link);
    let ended = next(&mut arrival.channel);
    assert_eq!(ended, Err(ChannelError::Link(LinkError::Closed)));
}

#[test]
fn any_packets_are_messages_or_end_their_session() {
    let house = TestAcceptor::open();
    let mut random = TestRng(3);
    for _ in 0..100 {
        let (mut link, mut arrival) = house.raw();
        for _ in 0..20 {
            let length = 1 + random.below(200) as usize;
            let mut packet = random.bytes(length);
            // Half of them look like a message of a plausible length.
            if random.below(2) == 0 && length > 4 {
                packet[..4].copy_from_slice(&(random.below(300) as u32).to_le_bytes());
            }
            link.send(&[&packet]).unwrap();
        }
        drop(link);
        while next(&mut arrival.channel).is_ok() {}
    }
    let (mut node, mut arrival) = house.pair();
    pass(&mut node, &mut arrival.channel, b"still here");
}

#[test]
fn a_client_that_asks_for_another_service_is_told_so() {
    let house = TestAcceptor::open();
    let told = |packet: &[u8]| {
        let mut link = house.dial();
        link.send(&[packet]).unwrap();
        let answer = receive(&mut link).unwrap();
        assert!(matches!(receive(&mut link), Err(LinkError::Closed)));
        let header = Frame::parse(&answer).unwrap().header;
        assert_eq!(header.kind, FrameKind::Refuse);
        RefusalReason::from_byte(header.flags)
    };
    for kind in [
        FrameKind::Bind,
        FrameKind::Follow,
        FrameKind::Status,
        FrameKind::Inquire,
    ] {
        assert_eq!(
            told(&FrameHeader::new(kind).encode(0)),
            Some(RefusalReason::RegionOnly),
            "{kind:?}"
        );
    }
    let mut random = TestRng(4);
    for _ in 0..50 {
        // A first byte that is not a kind of frame.
        let length = random.below(2000) as usize;
        let bytes = random.bytes(length);
        assert_eq!(
            told(&[&[200], &bytes[..]].concat()),
            Some(RefusalReason::Malformed)
        );
    }
    until("their places are free", || house.door.occupied() == 0);
    house.pair();
}

#[test]
fn a_node_that_dials_a_lender_or_has_a_wrong_key_is_told_so() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let lender = Lender::start(LenderConfig {
        listen: vec![NetAddress::Unix(dir.path().join("socket"))],
        store: Some(dir.path().join("store")),
        memory: 1 << 20,
        ..LenderConfig::default()
    })
    .unwrap();
    let refused = Channel::open(&lender.addresses()[0], &Security::Insecure, PATIENCE);
    assert!(matches!(refused, Err(ChannelOpenError::Lender)), "{refused:?}");
    let house = TestAcceptor::open();
    let alien = Security::Key(ClusterKey::generate());
    let refused = Channel::open(house.address(), &alien, PATIENCE);
    assert!(
        matches!(refused, Err(ChannelOpenError::Connect(ConnectError::WrongKey))),
        "{refused:?}"
    );
}

#[test]
fn silent_strangers_do_not_keep_nodes_out() {
    let house = TestAcceptor::open_with(|config| config.pending_max = 8);
    let strangers: Vec<_> = (0..8).map(|_| house.dial()).collect();
    until("all are inside", || house.door.occupied() == 8);
    // An honest node retries when the server is busy.
    let end = Instant::now() + PATIENCE;
    while let Err(error) = Channel::open(house.address(), &house.security, PATIENCE) {
        assert!(
            Instant::now() < end && matches!(error, ChannelOpenError::Connect(ConnectError::Busy)),
            "{error}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(strangers);
}

#[test]
fn sessions_are_counted_until_they_end() {
    let house = TestAcceptor::open_with(|config| config.sessions_max = 2);
    let (first, second) = (house.pair(), house.pair());
    let refused = Channel::open(house.address(), &house.security, PATIENCE);
    assert!(
        matches!(refused, Err(ChannelOpenError::Connect(ConnectError::Busy))),
        "{refused:?}"
    );
    drop(first);
    until("one place is free", || house.door.occupied() == 1);
    house.pair();
    drop(second);
}

#[test]
fn a_sleeping_thread_is_woken_by_a_message_and_by_its_waker() {
    let house = TestAcceptor::open();
    for policy in ["spin", "yield:50", "block"] {
        let policy: WaitPolicy = policy.parse().unwrap();
        let (mut node, mut arrival) = house.pair();
        let rest = ChannelWait::new(&node, policy).unwrap();
        let bell = rest.waker();
        let rung = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..200_u8 {
                    arrival.channel.queue(&[&[number]]);
                    arrival.channel.flush().unwrap();
                    assert_eq!(next(&mut arrival.channel).unwrap(), [number]);
                }
                rung.store(true, std::sync::atomic::Ordering::SeqCst);
                bell.wake();
            });
            // Each sleep may last as long as the whole test: a lost wake-up fails it.
            let (mut since, news) = (Instant::now(), || rung.load(std::sync::atomic::Ordering::SeqCst));
            while !news() {
                assert!(since.elapsed() < PATIENCE, "nobody woke it");
                if let Some(message) = node.receive().unwrap().map(<[u8]>::to_vec) {
                    node.queue(&[&message]);
                    since = Instant::now();
                    continue;
                }
                let flushed = node.flush().unwrap();
                rest.wait(&node, flushed, since.elapsed(), PATIENCE, news)
                    .unwrap();
            }
        });
    }
}
