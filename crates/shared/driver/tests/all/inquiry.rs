//! The status over a link: the same as that of the control socket, for clients with the key only.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::common::script::join_message;
use crate::common::served_region::{LONG, ServedRegion};
use crate::common::{PATIENCE, TestAcceptor, receive, until};
use netram_lender::{Lender, LenderConfig};
use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_shared::channel::{AcceptedSession, ChannelError, ChannelOpenError, SessionKind};
use netram_shared::limit::STATUS_SESSIONS_MAX;
use netram_shared::node::{Node, NodeOptions};
use netram_shared::server::ServerReport;
use netram_shared::server::serve::inquiry::{self, InquiryError};
use netram_shared::server::serve::{ServeConfig, ServingRegion, control};
use netram_shared_machine::RecordNumber;
use netram_transport::link::Link;
use netram_transport::{ClusterKey, ConnectError, LinkError, NetAddress, Security, connect};

fn asked(place: &ServedRegion) -> Result<ServerReport, InquiryError> {
    inquiry::ask(place.address(), &place.security, PATIENCE)
}

fn refused(address: &NetAddress, security: &Security) -> ChannelOpenError {
    match inquiry::ask(address, security, PATIENCE) {
        Err(InquiryError::Open { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

/// Sends a request, and does not read the answer.
fn raw(address: &NetAddress, security: &Security) -> Link {
    let mut link = connect(address, security, PATIENCE).unwrap();
    link.send(&[&FrameHeader::new(FrameKind::Status).encode(0)])
        .unwrap();
    link
}

#[test]
fn the_status_over_a_link_equals_the_control_sockets() {
    let place = ServedRegion::new(LONG);
    let mut node = place.node(1);
    node.acquire(5);
    node.write(5, 1, b"true");
    node.kept(RecordNumber(1));
    until("both say the same", || {
        let there = control::ask(&place.root()).unwrap().expect("it is served");
        let here = asked(&place).unwrap();
        // The answer to the question before may still be on its way.
        let timeless = |report: ServerReport| ServerReport {
            uptime_s: 0,
            strangers: 0,
            ..report
        };
        assert_eq!(here.nodes[0].merged, 1);
        assert!(
            here.region
                .as_ref()
                .is_some_and(|region| region.locks_written == 1)
        );
        timeless(here) == timeless(there)
    });
}

#[test]
fn a_wrong_key_or_address_gives_an_error_that_names_it() {
    let place = ServedRegion::new(LONG);
    let alien = Security::Key(ClusterKey::generate());
    let wrong = refused(place.address(), &alien);
    assert!(
        matches!(wrong, ChannelOpenError::Connect(ConnectError::WrongKey)),
        "{wrong}"
    );
    let plain = refused(place.address(), &Security::Insecure);
    assert!(
        matches!(plain, ChannelOpenError::Connect(ConnectError::SecureRequired)),
        "{plain}"
    );

    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let lender = Lender::start(LenderConfig {
        listen: vec![NetAddress::Unix(directory.path().join("socket"))],
        store: Some(directory.path().join("store")),
        memory: 1 << 20,
        ..LenderConfig::default()
    })
    .unwrap();
    let lends = refused(&lender.addresses()[0], &Security::Insecure);
    assert!(matches!(lends, ChannelOpenError::Lender), "{lends}");
    let gone = lender.addresses()[0].clone();
    drop(lender);
    let nobody = refused(&gone, &Security::Insecure);
    assert!(
        matches!(
            nobody,
            ChannelOpenError::Connect(ConnectError::Unreachable { .. })
        ),
        "{nobody}"
    );
    // A node's listener for peers.
    let house = TestAcceptor::open();
    let node = refused(house.address(), &house.security);
    assert!(matches!(node, ChannelOpenError::NoStatus), "{node}");
    // A peer that sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", silent.local_addr().unwrap());
    let late = inquiry::ask(&address.parse().unwrap(), &alien, Duration::from_millis(100));
    assert!(
        matches!(
            late,
            Err(InquiryError::Open {
                cause: ChannelOpenError::Connect(ConnectError::TimedOut),
                ..
            })
        ),
        "{late:?}"
    );
}

#[test]
fn a_stopping_server_and_an_invalid_answer_give_different_errors() {
    let house = TestAcceptor::open_with(|config| config.tells_status = true);
    let ask = || {
        let (address, security) = (house.address().clone(), house.security.clone());
        thread::spawn(move || inquiry::ask(&address, &security, PATIENCE))
    };
    let asking = ask();
    let arrival = house.arrival();
    assert_eq!(arrival.kind, SessionKind::Status);
    drop(arrival);
    let ended = asking.join().unwrap();
    assert!(
        matches!(
            ended,
            Err(InquiryError::Open {
                cause: ChannelOpenError::Link(LinkError::Closed),
                ..
            })
        ),
        "{ended:?}"
    );
    for (answer, understood) in [
        (&b"{\"refused\":\"no\"}"[..], true),
        (b"{}", false),
        (b"\xff", false),
        (
            b"{\"accepted\":{\"reason\":\"\",\"lenders\":[],\"attempts\":0,\"seconds\":0}}",
            false,
        ),
    ] {
        let asking = ask();
        let mut arrival = house.arrival();
        arrival.channel.queue(&[answer]);
        assert!(arrival.channel.flush().unwrap());
        match asking.join().unwrap() {
            Err(InquiryError::Refused { .. }) => assert!(understood),
            Err(InquiryError::Answer { .. }) => assert!(!understood),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn status_clients_that_do_not_read_delay_no_node_and_are_closed() {
    let place = ServedRegion::new(LONG);
    let mut node = place.node(1);
    node.acquire(5);
    // They never read and never close.
    let mut deaf: Vec<Link> = (0..100).map(|_| raw(place.address(), &place.security)).collect();
    for version in 1..20 {
        node.write(5, version, b"true");
        node.kept(RecordNumber(version));
    }
    // They continue as if they were nodes, which is ignored.
    let mut join = Vec::new();
    join_message(View::first(JournalId(9))).head(&mut join);
    let length = u32::try_from(join.len()).unwrap().to_le_bytes();
    for link in &mut deaf {
        // The session may have ended already, or have been refused.
        let _ = link.send(&[&length, &join]);
    }
    until("their sessions are over", || {
        place
            .serving()
            .report()
            .is_some_and(|report| report.strangers == 0)
    });
    drop(deaf);
    let told = asked(&place).unwrap();
    assert_eq!((told.position, told.nodes.len()), (19, 1));
}

#[test]
fn an_invalid_request_is_refused_and_the_next_one_answered() {
    let place = ServedRegion::new(LONG);
    // The request is cut off after its kind.
    let mut link = connect(place.address(), &place.security, PATIENCE).unwrap();
    let question = FrameHeader::new(FrameKind::Status).encode(0);
    link.send(&[&question[..5]]).unwrap();
    let answer = receive(&mut link).unwrap();
    let answer = Frame::parse(&answer).unwrap().header;
    assert_eq!(
        (answer.kind, RefusalReason::from_byte(answer.flags)),
        (FrameKind::Refuse, Some(RefusalReason::Malformed))
    );
    assert!(matches!(receive(&mut link), Err(LinkError::Closed)));
    // A session that sends an invalid message.
    let mut stranger = place.stranger();
    stranger.raw(&[&[200]]);
    assert_eq!(
        stranger.hear("why").unwrap_err(),
        ChannelError::Link(LinkError::Closed)
    );
    assert_eq!(asked(&place).unwrap().nodes, []);
}

/// Status clients took the permits of nodes.
#[test]
fn status_sessions_are_bounded_and_take_no_nodes_permit() {
    let house = TestAcceptor::open_with(|config| {
        config.tells_status = true;
        config.sessions_max = 1;
    });
    let asks = || -> (Link, AcceptedSession) {
        let mut link = raw(house.address(), &house.security);
        assert_eq!(receive(&mut link).unwrap()[0], FrameKind::ShareAck as u8);
        let arrival = house.arrival();
        assert_eq!(arrival.kind, SessionKind::Status);
        (link, arrival)
    };
    let mut asking: Vec<_> = (0..STATUS_SESSIONS_MAX).map(|_| asks()).collect();
    let one_more = refused(house.address(), &house.security);
    assert!(matches!(one_more, ChannelOpenError::Busy), "{one_more}");
    until("the refused one has gone", || house.door.occupied() == 0);
    let node = house.pair();
    assert_eq!((node.1.kind, house.door.occupied()), (SessionKind::Node, 1));
    // A permit is free again when its session is over, whatever others exist.
    drop(node);
    asking.pop();
    asking.push(asks());
}

#[test]
fn a_full_server_reports_that_it_is_busy() {
    let mut place = ServedRegion::new(LONG);
    place.stop();
    let config = ServeConfig {
        sessions_max: 1,
        ..place.config()
    };
    place.serving = Some(ServingRegion::start(&place.root(), config).unwrap());
    let mut node = place.node(1);
    node.acquire(5);
    let busy = asked(&place);
    assert!(
        matches!(
            busy,
            Err(InquiryError::Open {
                cause: ChannelOpenError::Connect(ConnectError::Busy),
                ..
            })
        ),
        "{busy:?}"
    );
    let there = control::ask(&place.root()).unwrap();
    assert!(there.is_some(), "the directory's socket has its own place");
}

/// The limit was a panic of a thread, far from the caller that gave the name.
#[test]
fn a_name_that_is_too_long_is_refused_with_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let address = NetAddress::Unix(directory.path().join("nobody.sock"));
    let mut options = NodeOptions::new(address, Security::Insecure, directory.path().join("node"));
    options.name = "y".repeat(257);
    let refused = Node::join(options).map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("257 bytes, but at most 256 are allowed"),
        "{refused}"
    );
    assert!(!directory.path().join("node").exists(), "nothing was begun");
}
