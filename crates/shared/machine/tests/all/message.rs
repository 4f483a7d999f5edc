//! Encoding of messages.

use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::{View, ViewMember};
use netram_proto::multicast::{CHANNEL_KEY_BYTES, ChannelInvite};
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::lock::{LockOrder, LockRequestId, LockRequester, ToCache, ToService, TokenClaim};
use netram_shared_machine::message::{
    JoinRefusal, JoinReply, JoinRequest, MessageError, OrphanJournalId, PeerEndpoint, PeerHint,
    RecordOutcome, RegionOpening, ToPeer,
};
use netram_shared_machine::{
    GrantNumber, LockId, LockMode, LockVersion, NodeId, Position, RecordNumber, RegionId, ToNode, ToServer,
};
use proptest::prelude::*;

fn view() -> View {
    let member = ViewMember {
        incarnation: Incarnation(77),
        join: None,
        address: "tcp://lender:7000".into(),
        domain: "rack 1".into(),
    };
    View {
        version: 4,
        epoch: Epoch(3),
        writer: WriterId(9),
        counting: true,
        members: vec![member],
        ..View::first(JournalId(5))
    }
}

const END: ChainPoint = ChainPoint {
    lsn: Lsn(1 << 40),
    chain: 0xFEED_F00D,
};
const ASKER: LockRequester = LockRequester {
    node: NodeId(3),
    ask: LockRequestId(200),
};

fn reach() -> PeerEndpoint {
    PeerEndpoint {
        address: "tcp://node:7000".into(),
        tune: Some(ChannelInvite {
            group: [239, 1, 2, 3],
            port: 7421,
            channel: u64::MAX,
            key: [7; CHANNEL_KEY_BYTES],
        }),
    }
}

fn to_peer(payload: &[u8]) -> Vec<ToPeer<&[u8]>> {
    let (node, number) = (NodeId(300), RecordNumber(1 << 33));
    let hint = |needs| PeerHint {
        node,
        number,
        needs,
        payload,
    };
    vec![
        ToPeer::Hello {
            region: RegionId(1 << 100),
            from: node,
            to: NodeId(7),
        },
        ToPeer::Hint(hint(Vec::new())),
        ToPeer::Hint(hint(vec![(NodeId(4), RecordNumber(1)), (NodeId(900), number)])),
    ]
}

fn join_request() -> JoinRequest {
    JoinRequest {
        region: Some(RegionId(1 << 100)),
        name: "machine".into(),
        view: view(),
        key: vec![4; 32],
        begins: END,
        lazy: true,
        link: 1,
    }
}

fn to_server(payload: &[u8]) -> Vec<ToServer<&[u8]>> {
    let (node, number, lock) = (NodeId(300), RecordNumber(1 << 33), LockId(u32::MAX));
    let join = join_request();
    let claim = |lock, hold| TokenClaim {
        lock: LockId(lock),
        grant: GrantNumber(7),
        hold,
        version: LockVersion(4),
    };
    let old = OrphanJournalId {
        node,
        journal: JournalId(5),
    };
    vec![
        ToServer::Join(join.clone()),
        ToServer::Join(JoinRequest { region: None, ..join }),
        ToServer::Resume {
            region: RegionId(8),
            node,
            link: 2,
            whole: true,
            applied: vec![(NodeId(1), RecordNumber(0)), (node, number)],
        },
        ToServer::Claims(vec![claim(0, LockMode::Shared), claim(9, LockMode::Exclusive)]),
        ToServer::Record {
            number,
            end: END,
            acked: true,
            payload,
        },
        ToServer::Lock(ToService::Acquire {
            lock,
            hold: LockMode::Exclusive,
            order: LockOrder::Out,
            ask: LockRequestId(9),
        }),
        ToServer::Lock(ToService::Release {
            lock,
            grant: GrantNumber(2),
            version: LockVersion(3),
            keep: Some(LockMode::Shared),
        }),
        ToServer::Lock(ToService::Die { lock, asker: ASKER }),
        ToServer::View(view()),
        ToServer::Ping {
            nonce: 1,
            applied: Position(200),
        },
        ToServer::Pull,
        ToServer::Outcome { node, number },
        ToServer::OfferOrphan {
            old,
            last: RecordNumber(0),
        },
        ToServer::OrphanRecord {
            node,
            number,
            payload,
        },
        ToServer::Leave,
        ToServer::Endpoint(PeerEndpoint::default()),
        ToServer::Endpoint(reach()),
    ]
}

fn join_reply(node: NodeId, number: RecordNumber, position: Position) -> JoinReply {
    JoinReply {
        node,
        lease: Nanos::from_ms(2000),
        position,
        opening: RegionOpening {
            region: RegionId(3),
            bytes: 1 << 30,
            address: 0x7000_0000_0000,
            spans: vec![(LockId(0), 0, 1 << 20), (LockId(5), 1 << 20, 64)],
            record_bytes_max: 1 << 24,
            settings: b"lenders".to_vec(),
        },
        applied: vec![(NodeId(1), number)],
        versions: vec![(LockId(0), LockVersion(9)), (LockId(5), LockVersion(1))],
    }
}

fn lock_answers() -> [ToCache; 3] {
    let (lock, grant) = (LockId(1), GrantNumber(5));
    [
        ToCache::Grant {
            lock,
            grant,
            hold: LockMode::Shared,
            version: LockVersion(0),
        },
        ToCache::Recall {
            lock,
            grant,
            keep: None,
            asker: ASKER,
            waits: false,
        },
        ToCache::Died {
            lock,
            ask: LockRequestId(7),
        },
    ]
}

fn to_node(payload: &[u8]) -> Vec<ToNode<&[u8]>> {
    let (node, number, position) = (NodeId(300), RecordNumber(1 << 33), Position(1 << 20));
    let [grant, recall, died] = lock_answers().map(ToNode::Lock);
    vec![
        ToNode::Joined(join_reply(node, number, position)),
        ToNode::Page {
            offset: 1 << 29,
            bytes: payload,
        },
        ToNode::Current,
        ToNode::Resumed {
            merged: number,
            position,
            ahead: vec![(node, number)],
        },
        ToNode::Record {
            position,
            node,
            number,
            payload,
        },
        grant,
        recall,
        died,
        ToNode::Durable {
            number,
            end: END,
            view: 6,
        },
        ToNode::Pong {
            nonce: u64::MAX,
            newest: position,
        },
        ToNode::Outcome {
            node,
            number,
            fate: RecordOutcome::Aborted,
        },
        ToNode::Outcome {
            node,
            number,
            fate: RecordOutcome::Forgotten,
        },
        ToNode::OrphanWanted {
            node,
            from: Some(number),
        },
        ToNode::OrphanWanted { node, from: None },
        ToNode::Left,
        ToNode::Rejoin,
        ToNode::Fenced,
        ToNode::Refused(JoinRefusal::Full),
        ToNode::PeerGroup {
            group: "239.1.2.3:7421%eth1".into(),
        },
        ToNode::Peer {
            node,
            reach: Some(reach()),
        },
        ToNode::Peer { node, reach: None },
        ToNode::Gone { node, last: number },
    ]
}

#[test]
fn every_message_decodes_to_itself_and_no_prefix_decodes() {
    for payload in [&b""[..], b"payload"] {
        for message in to_server(payload) {
            let mut bytes = Vec::new();
            message.head(&mut bytes);
            check_cuts(&bytes, |cut| ToServer::decode(cut).map(|_| ()));
            let has_payload = message.payload().is_some();
            bytes.extend_from_slice(message.payload().unwrap_or(&&b""[..]));
            assert_eq!(ToServer::decode(&bytes), Ok(message.clone()));
            bytes.push(0);
            let longer = ToServer::decode(&bytes);
            assert!(has_payload || longer == Err(MessageError::Long), "{message:?}");
        }
        for message in to_peer(payload) {
            let mut bytes = Vec::new();
            message.head(&mut bytes);
            check_cuts(&bytes, |cut| ToPeer::decode(cut).map(|_| ()));
            let has_payload = message.payload().is_some();
            bytes.extend_from_slice(message.payload().unwrap_or(&&b""[..]));
            assert_eq!(ToPeer::decode(&bytes), Ok(message.clone()));
            bytes.push(0);
            let longer = ToPeer::decode(&bytes);
            assert!(has_payload || longer == Err(MessageError::Long), "{message:?}");
        }
        for message in to_node(payload) {
            let mut bytes = Vec::new();
            message.head(&mut bytes);
            check_cuts(&bytes, |cut| ToNode::decode(cut).map(|_| ()));
            let has_payload = message.payload().is_some();
            bytes.extend_from_slice(message.payload().unwrap_or(&&b""[..]));
            assert_eq!(ToNode::decode(&bytes), Ok(message.clone()));
            bytes.push(0);
            let longer = ToNode::decode(&bytes);
            assert!(has_payload || longer == Err(MessageError::Long), "{message:?}");
        }
    }
}

fn check_cuts(head: &[u8], decode: impl Fn(&[u8]) -> Result<(), MessageError>) {
    for end in 0..head.len() {
        assert_eq!(
            decode(&head[..end]),
            Err(MessageError::Short),
            "{end} of {head:?}"
        );
    }
}

/// A field that a peer chose never exceeds its bound, however the message encodes it.
#[test]
fn an_invalid_field_is_refused_by_name() {
    let refused = |bytes: &[u8]| ToServer::decode(bytes).unwrap_err();
    assert_eq!(refused(&[0]), MessageError::Kind(0));
    // Node id 0; number 0; an invalid mode; one lock claimed twice; a span beyond the region's end.
    assert_eq!(refused(&[12, 0, 1]), MessageError::Field("node id"));
    assert_eq!(refused(&[4, 0]), MessageError::Field("number"));
    assert_eq!(refused(&[5, 1, 0]), MessageError::Field("mode"));
    assert_eq!(
        refused(&[3, 2, 1, 1, 1, 1, 1, 1, 1, 1]),
        MessageError::Field("claims")
    );
    let mut bytes = vec![1, 9, 1, 1];
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(&[100, 0, 1, 5, 90, 11, 0, 0, 0]);
    assert_eq!(ToNode::decode(&bytes), Err(MessageError::Field("spans")));
    // A hint without a node; one that needs a node's record twice, or too many; an invalid channel.
    let hint = |bytes: &[u8]| ToPeer::decode(bytes).unwrap_err();
    assert_eq!(hint(&[0]), MessageError::Kind(0));
    assert_eq!(hint(&[2, 0, 1, 0]), MessageError::Field("node id"));
    assert_eq!(hint(&[2, 1, 0, 0]), MessageError::Field("number"));
    assert_eq!(hint(&[2, 1, 1, 2, 5, 1, 0, 1]), MessageError::Field("numbers"));
    assert_eq!(hint(&[2, 1, 1, 65]), MessageError::Field("numbers"));
    let mut bytes = vec![16, 0, 1];
    bytes.extend_from_slice(&[1; 48]);
    assert_eq!(refused(&bytes), MessageError::Field("channel"));
    assert_eq!(refused(&[16, 1, 0xff, 0]), MessageError::Field("address"));
    // More claims than there are bytes: no memory is reserved for them.
    assert_eq!(refused(&[3, 0xff, 0xff, 0x3f]), MessageError::Short);
    assert_eq!(
        refused(&[3, 0xff, 0xff, 0xff, 0x7f]),
        MessageError::Field("claims")
    );
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0..20u8) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(message) = ToServer::decode(&bytes) {
            let mut again = Vec::new();
            message.head(&mut again);
            again.extend_from_slice(message.payload().unwrap_or(&&b""[..]));
            prop_assert_eq!(ToServer::decode(&again), Ok(message));
        }
        if let Ok(message) = ToNode::decode(&bytes) {
            let mut again = Vec::new();
            message.head(&mut again);
            again.extend_from_slice(message.payload().unwrap_or(&&b""[..]));
            prop_assert_eq!(&again, &bytes);
        }
        if let Ok(message) = ToPeer::decode(&bytes) {
            let mut again = Vec::new();
            message.head(&mut again);
            again.extend_from_slice(message.payload().unwrap_or(&&b""[..]));
            prop_assert_eq!(ToPeer::decode(&again), Ok(message));
        }
    }

    #[test]
    fn a_damaged_message_decodes_to_another_or_fails(at in any::<prop::sample::Index>(), which in 0..20usize, bit in 0..8u8) {
        let mut bytes = Vec::new();
        let (up, down, across) = (to_server(b""), to_node(b""), to_peer(b""));
        up[which % up.len()].head(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let _ = ToServer::decode(&bytes);
        let mut bytes = Vec::new();
        down[which % down.len()].head(&mut bytes);
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1 << bit;
        let _ = ToNode::decode(&bytes);
        let mut bytes = Vec::new();
        across[which % across.len()].head(&mut bytes);
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1 << bit;
        let _ = ToPeer::decode(&bytes);
    }
}
