//! A shared region: arbitrary messages between nodes and their server, and the machines that handle them.

use std::sync::Arc;

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ByteReader, ChainPoint, put_varint};
use netram_shared_machine::lock::{LockOrder, LockRequestId, ToService};
use netram_shared_machine::message::{
    JoinRefusal, JoinReply, JoinRequest, PeerEndpoint, PeerHint, RegionOpening,
};
use netram_shared_machine::node::{NodeConfig, PinnedOverflow};
use netram_shared_machine::server::{LinkEnd, RegionState, ServerAction, ServerConfig, SessionId};
use netram_shared_machine::{
    LockId, LockMode, LockVersion, NodeId, Position, RecordNumber, RegionId, RegionNode, RegionServer, Stamp,
    ToNode, ToPeer, ToServer,
};

use crate::input::FuzzInput;
use crate::journal::a_view;

type PayloadBytes = Arc<[u8]>;

macro_rules! message {
    ($(#[$doc:meta])* $name:ident, $type:ident) => {
        $(#[$doc])*
        pub fn $name(bytes: &[u8]) {
            let Ok(message) = $type::decode(bytes) else {
                return;
            };
            let mut again = Vec::new();
            message.head(&mut again);
            again.extend_from_slice(message.payload().copied().unwrap_or_default());
            let read = $type::decode(&again);
            assert_eq!(read.as_ref(), Ok(&message), "what is read is sent as it was");
        }
    };
}

message!(
    /// From a node to its server.
    to_server, ToServer
);
message!(
    /// From a server to a node.
    to_node, ToNode
);
message!(
    /// From a node to another.
    to_peer, ToPeer
);

/// The stamp of a record, which must have only one encoding.
pub fn stamp(bytes: &[u8]) {
    let mut cursor = ByteReader::new(bytes);
    if let Ok(stamp) = Stamp::decode(&mut cursor) {
        let mut again = Vec::new();
        stamp.encode(&mut again);
        assert_eq!(again, bytes[..bytes.len() - cursor.rest().len()]);
    }
    if let Ok(stamp) = Stamp::of(bytes) {
        let written: Vec<_> = Stamp::written_of(bytes).collect();
        assert_eq!(written, stamp.written);
    }
}

fn head<M>(message: &M, put: impl Fn(&M, &mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(message, &mut bytes);
    bytes
}

fn a_join() -> JoinRequest {
    JoinRequest {
        region: Some(RegionId(1 << 100)),
        name: "machine".into(),
        view: a_view(),
        key: vec![4; 32],
        begins: ChainPoint::default(),
        lazy: true,
        link: 1,
    }
}

pub(crate) fn to_server_seeds() -> Vec<Vec<u8>> {
    let (node, number, lock) = (NodeId(3), RecordNumber(9), LockId(2));
    let messages: Vec<ToServer<&[u8]>> = vec![
        ToServer::Join(a_join()),
        ToServer::Resume {
            region: RegionId(8),
            node,
            link: 2,
            whole: true,
            applied: vec![(NodeId(1), RecordNumber(4)), (NodeId(2), RecordNumber(5))],
        },
        ToServer::Lock(ToService::Acquire {
            lock,
            hold: LockMode::Exclusive,
            order: LockOrder::Up,
            ask: LockRequestId(1),
        }),
        ToServer::Outcome { node, number },
        ToServer::View(a_view()),
        ToServer::Endpoint(PeerEndpoint::default()),
        ToServer::Ping {
            nonce: 7,
            applied: Position(9),
        },
        ToServer::Leave,
    ];
    let mut seeds: Vec<Vec<u8>> = messages.iter().map(|it| head(it, |it, to| it.head(to))).collect();
    let tail: ToServer<&[u8]> = ToServer::Record {
        number,
        end: ChainPoint::default(),
        acked: true,
        payload: b"",
    };
    seeds.push([head(&tail, |it, to| it.head(to)), a_record(&[(0, 1)]).to_vec()].concat());
    seeds
}

pub(crate) fn to_node_seeds() -> Vec<Vec<u8>> {
    let messages: Vec<ToNode<&[u8]>> = vec![
        ToNode::Joined(a_joined()),
        ToNode::Pong {
            nonce: 7,
            newest: Position(9),
        },
        ToNode::Durable {
            number: RecordNumber(4),
            end: ChainPoint::default(),
            view: 3,
        },
        ToNode::Peer {
            node: NodeId(2),
            reach: Some(PeerEndpoint::default()),
        },
        ToNode::PeerGroup {
            group: "239.1.2.3:7".into(),
        },
        ToNode::Rejoin,
        ToNode::Refused(JoinRefusal::Full),
    ];
    messages.iter().map(|it| head(it, |it, to| it.head(to))).collect()
}

pub(crate) fn to_peer_seeds() -> Vec<Vec<u8>> {
    let hello: ToPeer<&[u8]> = ToPeer::Hello {
        region: RegionId(1 << 100),
        from: NodeId(3),
        to: NodeId(7),
    };
    let hint: ToPeer<&[u8]> = ToPeer::Hint(PeerHint {
        node: NodeId(3),
        number: RecordNumber(9),
        needs: vec![(NodeId(4), RecordNumber(1)), (NodeId(900), RecordNumber(7))],
        payload: b"",
    });
    [hello, hint]
        .iter()
        .map(|it| head(it, |it, to| it.head(to)))
        .collect()
}

pub(crate) fn stamp_seeds() -> Vec<Vec<u8>> {
    let stamp = Stamp {
        written: vec![(LockId(1), LockVersion(2)), (LockId(9), LockVersion(1 << 40))],
        read: vec![(LockId(3), LockVersion(0))],
    };
    let mut bytes = Vec::new();
    stamp.encode(&mut bytes);
    vec![bytes, a_record(&[(0, 1), (3, 7)]).to_vec()]
}

/// A record that writes under these locks.
fn a_record(written: &[(u32, u64)]) -> PayloadBytes {
    let stamp = Stamp {
        written: written
            .iter()
            .map(|(lock, version)| (LockId(*lock), LockVersion(*version)))
            .collect(),
        read: Vec::new(),
    };
    let (mut preamble, mut bytes) = (Vec::new(), Vec::new());
    stamp.encode(&mut preamble);
    put_varint(&mut bytes, preamble.len() as u64);
    bytes.extend_from_slice(&preamble);
    bytes.into()
}

fn join(journal: u128) -> JoinRequest {
    JoinRequest {
        region: None,
        name: String::new(),
        view: View::first(JournalId(journal)),
        key: Vec::new(),
        begins: ChainPoint::default(),
        lazy: false,
        link: 1,
    }
}

/// A region's server gets arbitrary messages over four links. No lock ever has two writers, and the output of
/// a link is bounded.
pub fn server(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let config = ServerConfig {
        lease: Nanos::from_ms(100),
        recent_bytes_max: 300,
        page_bytes: 64,
        forget_retry: Nanos::from_ms(1000),
        opening: RegionOpening {
            bytes: 128,
            ..RegionOpening::default()
        },
    };
    let table = RegionState {
        versions: (0..4).map(|lock| (LockId(lock), LockVersion(0))).collect(),
        ..RegionState::default()
    };
    let mut server: RegionServer<PayloadBytes> = RegionServer::new(config, table, Time(0));
    let mut now = Time(1);
    for _ in 0..48 {
        if input.is_over() {
            break;
        }
        let which = input.u8();
        let session = SessionId(u64::from(which & 3) + 1);
        match which >> 2 & 15 {
            0 => server.handle(now, session, ToServer::Join(join(session.0.into()))),
            1 => now = now + Nanos::from_ms(u64::from(input.u8() & 15)),
            2 => server.on_tick(now),
            3 if which & 64 != 0 => server.on_closed(now, session, LinkEnd::Broken),
            3 => server.on_closed(now, session, LinkEnd::HungUp),
            4 | 5 => server.handle(now, session, acquire(&mut input)),
            6 | 7 => {
                let written = [(u32::from(input.u8() & 3), u64::from(input.u8() & 7) + 1)];
                let message = ToServer::Record {
                    number: RecordNumber(u64::from(input.u8() & 7) + 1),
                    end: ChainPoint::default(),
                    acked: which & 64 != 0,
                    payload: a_record(&written),
                };
                server.handle(now, session, message);
            }
            _ => {
                let Ok(message) = ToServer::decode(input.bytes()) else {
                    continue;
                };
                server.handle(now, session, message.map(Arc::from));
            }
        }
        run_actions(&mut server, now);
        for lock in (0..4).map(LockId) {
            let holders: Vec<LockMode> = server.locks().holders(lock).map(|(_, hold)| hold).collect();
            assert!(
                holders.len() == 1 || !holders.contains(&LockMode::Exclusive),
                "{holders:?}"
            );
        }
    }
}

fn acquire(input: &mut FuzzInput<'_>) -> ToServer<PayloadBytes> {
    let how = input.u8();
    ToServer::Lock(ToService::Acquire {
        lock: LockId(u32::from(how & 3)),
        hold: if how & 4 == 0 {
            LockMode::Exclusive
        } else {
            LockMode::Shared
        },
        order: [LockOrder::Up, LockOrder::Upgrade, LockOrder::Out, LockOrder::Up][usize::from(how >> 3 & 3)],
        ask: LockRequestId(u64::from(how >> 5) + 1),
    })
}

fn run_actions(server: &mut RegionServer<PayloadBytes>, now: Time) {
    for _ in 0..1000 {
        let mut idle = true;
        while let Some(deed) = server.poll() {
            idle = false;
            match deed {
                ServerAction::Store { ticket, .. } => server.on_stored(now, ticket),
                ServerAction::Apply { position, .. } => server.on_durable(position),
                ServerAction::Recover { node, .. } => server.on_recovered(node, Vec::new()),
                ServerAction::Close(session) => server.on_closed(now, session, LinkEnd::Broken),
                ServerAction::Fenced { .. } | ServerAction::Refused { .. } | ServerAction::Forget { .. } => {}
            }
        }
        for session in (1..=4).map(SessionId) {
            idle &= server.poll_send(session).is_none();
        }
        if idle {
            return;
        }
    }
    panic!("a server is never at rest");
}

/// A node gets arbitrary messages from its server and from other nodes.
pub fn node(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let mut node: RegionNode<PayloadBytes> = RegionNode::new(NodeConfig {
        join: join(1),
        pinned_bytes_max: 10,
        full: PinnedOverflow::Expire,
    });
    let mut now = Time(1);
    let mut txn = None;
    for _ in 0..48 {
        if input.is_over() {
            break;
        }
        let which = input.u8();
        match which & 15 {
            0 => node.on_unlinked(),
            1 => node.on_linked(),
            2 => {
                now = now + Nanos::from_ms(u64::from(which >> 4));
                node.on_tick(now);
            }
            3 => node.set_reach(PeerEndpoint::default()),
            4 => {
                if let Ok(ToPeer::Hint(hint)) = ToPeer::decode(input.bytes()).map(|it| it.map(Arc::from)) {
                    node.on_hint(now, hint);
                }
            }
            5 => node.handle(now, ToNode::Joined(a_joined())),
            6 => txn = Some(node.begin(which & 16 != 0)),
            7 => {
                if let Some(txn) = txn.take() {
                    node.cancel(now, txn);
                }
            }
            8 => node.begin_read(),
            9 => node.end_read(),
            10 => node.accept(),
            11 => node.leave(),
            _ => {
                if let Ok(message) = ToNode::decode(input.bytes()) {
                    node.handle(now, message.map(Arc::from));
                }
            }
        }
        for _ in 0..1000 {
            if node.poll().is_none() {
                break;
            }
        }
        assert!(node.poll().is_none(), "a node is at rest at last");
    }
}

fn a_joined() -> JoinReply {
    JoinReply {
        node: NodeId(1),
        lease: Nanos::from_ms(100),
        position: Position(0),
        opening: RegionOpening {
            region: RegionId(5),
            bytes: 128,
            spans: vec![(LockId(0), 0, 64), (LockId(1), 64, 64)],
            record_bytes_max: 4096,
            ..RegionOpening::default()
        },
        applied: vec![(NodeId(2), RecordNumber(3))],
        versions: vec![(LockId(0), LockVersion(3))],
    }
}

pub(crate) fn server_seeds() -> Vec<Vec<u8>> {
    let mut all = vec![
        0, 1, 16, 0, 24, 0, 0, 0, 17, 0, 25, 0, 1, 1, 12, 77, 4, 9, 8, 20, 4, 24, 1, 1, 1,
    ];
    let mut seeds = vec![all.clone()];
    for message in to_server_seeds() {
        all.truncate(2);
        all.extend_from_slice(&[32, message.len().min(255) as u8]);
        all.extend_from_slice(&message[..message.len().min(255)]);
        seeds.push(all.clone());
    }
    seeds
}

pub(crate) fn node_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![1, 5, 6, 2, 8, 9, 7, 0, 1, 10, 11]];
    for message in to_node_seeds() {
        let mut seed = vec![1, 5, 13, message.len().min(255) as u8];
        seed.extend_from_slice(&message[..message.len().min(255)]);
        seeds.push(seed);
    }
    for message in to_peer_seeds() {
        let mut seed = vec![1, 5, 4, message.len().min(255) as u8];
        seed.extend_from_slice(&message[..message.len().min(255)]);
        seeds.push(seed);
    }
    seeds
}
