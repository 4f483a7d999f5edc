//! Records sent directly from node to node: which hints are applied, and the fate of a node that applied a
//! false one.

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;
use netram_shared_machine::limit::HINT_BYTES_MAX;
use netram_shared_machine::lock::ToCache;
use netram_shared_machine::message::{JoinReply, JoinRequest, PeerEndpoint, PeerHint, RegionOpening};
use netram_shared_machine::node::{
    NodeAction, NodeConfig, NodeEnd, NodePhase, PeerAction, PinnedOverflow, RegionNode,
};
use netram_shared_machine::{
    GrantNumber, LockId, LockMode, LockVersion, NodeId, Position, RecordNumber, Stamp, ToNode, ToServer,
};

use super::world::bytes::{self, PayloadBytes};

const PEER: NodeId = NodeId(3);
const OTHER: NodeId = NodeId(4);
const LOCK: LockId = LockId(0);
const NOW: Time = Time(1000);

/// A node with the region, a lease, and peers 3 and 4.
fn node() -> RegionNode<PayloadBytes> {
    let mut node = RegionNode::new(NodeConfig {
        join: JoinRequest {
            region: None,
            name: String::new(),
            view: View::first(JournalId(1)),
            key: Vec::new(),
            begins: ChainPoint::default(),
            lazy: false,
            link: 0,
        },
        pinned_bytes_max: 200,
        full: PinnedOverflow::FallBehind,
    });
    node.set_reach(PeerEndpoint::default());
    node.on_linked();
    let opening = RegionOpening::default();
    node.handle(
        NOW,
        ToNode::Joined(JoinReply {
            node: NodeId(7),
            lease: Nanos::from_ms(100),
            position: Position(0),
            opening,
            applied: Vec::new(),
            versions: Vec::new(),
        }),
    );
    node.handle(NOW, ToNode::Current);
    let group = String::new();
    node.handle(NOW, ToNode::PeerGroup { group });
    for peer in [PEER, OTHER] {
        let reach = Some(PeerEndpoint::default());
        node.handle(NOW, ToNode::Peer { node: peer, reach });
    }
    while let Some(deed) = node.poll() {
        if let NodeAction::Send(ToServer::Ping { nonce, .. }) = deed {
            let newest = Position(0);
            node.handle(NOW, ToNode::Pong { nonce, newest });
        }
    }
    assert!(node.tokens().leased(NOW));
    node
}

fn record(written: &[(LockId, u64)], read: &[(LockId, u64)]) -> PayloadBytes {
    let versions =
        |locks: &[(LockId, u64)]| locks.iter().map(|(lock, at)| (*lock, LockVersion(*at))).collect();
    let stamp = Stamp {
        written: versions(written),
        read: versions(read),
    };
    bytes::record(&stamp, &[])
}

fn hint(number: u64, version: u64) -> PeerHint<PayloadBytes> {
    PeerHint {
        node: PEER,
        number: RecordNumber(number),
        needs: Vec::new(),
        payload: record(&[(LOCK, version)], &[]),
    }
}

fn applied(node: &mut RegionNode<PayloadBytes>) -> Vec<(NodeId, RecordNumber)> {
    let deeds = std::iter::from_fn(|| node.poll());
    let applied = deeds.filter_map(|deed| match deed {
        NodeAction::Apply { node, number, .. } => Some((node, number)),
        _ => None,
    });
    applied.collect()
}

#[test]
fn a_hint_is_applied_once_and_ignored_in_the_stream() {
    let mut node = node();
    assert!(node.on_hint(NOW, hint(1, 1)));
    assert!(!node.on_hint(NOW, hint(1, 1)), "it came twice");
    assert!(!node.on_hint(NOW, hint(3, 3)), "one is missing");
    assert!(!node.on_hint(NOW, hint(2, 3)), "the version jumps");
    assert!(node.on_hint(NOW, hint(2, 2)));
    assert_eq!(
        applied(&mut node),
        [(PEER, RecordNumber(1)), (PEER, RecordNumber(2))]
    );
    for number in 1..=3 {
        node.handle(
            NOW,
            ToNode::Record {
                position: Position(number),
                node: PEER,
                number: RecordNumber(number),
                payload: record(&[(LOCK, number)], &[]),
            },
        );
    }
    assert_eq!(applied(&mut node), [(PEER, RecordNumber(3))]);
    assert_eq!(node.hints(), (2, 2));
    assert_eq!(node.state(), NodePhase::Whole);
}

#[test]
fn a_hint_that_cannot_be_applied_now_is_dropped() {
    let mut node = node();
    let stranger = PeerHint {
        node: NodeId(9),
        ..hint(1, 1)
    };
    assert!(!node.on_hint(NOW, stranger), "the server has not named it");
    let needs = PeerHint {
        needs: vec![(OTHER, RecordNumber(1))],
        ..hint(1, 1)
    };
    assert!(!node.on_hint(NOW, needs.clone()), "what it needs is not here");
    let reads = PeerHint {
        payload: record(&[(LOCK, 1)], &[(LockId(1), 1)]),
        ..hint(1, 1)
    };
    assert!(!node.on_hint(NOW, reads.clone()), "what it read is not here");
    let late = NOW + Nanos::from_ms(100);
    assert!(!node.on_hint(late, hint(1, 1)), "the lease is over");
    node.handle(
        NOW,
        ToNode::Peer {
            node: PEER,
            reach: None,
        },
    );
    assert!(!node.on_hint(NOW, hint(1, 1)), "the server has taken it back");
    let reach = Some(PeerEndpoint::default());
    node.handle(NOW, ToNode::Peer { node: PEER, reach });
    let first = PeerHint {
        node: OTHER,
        payload: record(&[(LockId(1), 1)], &[]),
        ..hint(1, 1)
    };
    assert!(node.on_hint(NOW, first));
    let both = PeerHint {
        payload: reads.payload,
        ..needs
    };
    assert!(node.on_hint(NOW, both));
    assert_eq!(
        applied(&mut node),
        [(OTHER, RecordNumber(1)), (PEER, RecordNumber(1))]
    );
}

/// A fenced node that does not know of its fencing might use the token, so nothing may change under it.
#[test]
fn a_hint_is_not_applied_under_a_held_token() {
    let mut node = node();
    let txn = node.begin(true);
    let later = NOW + Nanos::from_ms(50);
    let waits = node.acquire(NOW, txn, LOCK, LockMode::Shared, later);
    assert_eq!(waits, Ok(netram_shared_machine::lock::Acquired::Waits));
    let grant = ToCache::Grant {
        lock: LOCK,
        grant: GrantNumber(1),
        hold: LockMode::Shared,
        version: LockVersion(0),
    };
    node.handle(NOW, ToNode::Lock(grant));
    assert!(!node.on_hint(NOW, hint(1, 1)));
    assert_eq!(applied(&mut node), []);
}

/// The hint would end them, although its record need not come now.
#[test]
fn a_hint_does_not_end_pinned_readers() {
    let mut node = node();
    node.begin_read();
    let mut number = 0;
    while node.on_hint(NOW, hint(number + 1, number + 1)) {
        number += 1;
        assert!(number < 200);
    }
    assert!(number > 0);
    assert_eq!(node.state(), NodePhase::Whole);
    assert_eq!(applied(&mut node), []);
    node.end_read();
    assert_eq!(applied(&mut node).len() as u64, number);
}

/// A record that its node never committed, or lost after acknowledging it, is at no other node. A node that
/// has it must not go on.
#[test]
fn a_node_that_applied_a_false_hint_ends_as_diverged() {
    let mut astray = node();
    assert!(astray.on_hint(NOW, hint(1, 1)));
    let gone = |last| ToNode::Gone {
        node: PEER,
        last: RecordNumber(last),
    };
    let mut fine = astray.clone();
    fine.handle(NOW, gone(1));
    assert_eq!(fine.state(), NodePhase::Whole);
    assert!(!fine.on_hint(NOW, hint(2, 2)), "it is gone");
    astray.handle(NOW, gone(0));
    assert_eq!(astray.state(), NodePhase::Over(NodeEnd::Diverged));
    // The same while the sender is alive: the server has the lock at a lower version.
    let mut astray = node();
    assert!(astray.on_hint(NOW, hint(1, 1)));
    let txn = astray.begin(true);
    let later = NOW + Nanos::from_ms(50);
    let waits = astray.acquire(NOW, txn, LOCK, LockMode::Exclusive, later);
    assert!(waits.is_ok());
    let grant = ToCache::Grant {
        lock: LOCK,
        grant: GrantNumber(1),
        hold: LockMode::Exclusive,
        version: LockVersion(0),
    };
    astray.handle(NOW, ToNode::Lock(grant));
    assert_eq!(astray.state(), NodePhase::Over(NodeEnd::Diverged));
}

/// Commits a record of this node. Returns the hint with the needs of peers.
fn commits(node: &mut RegionNode<PayloadBytes>, number: u64) -> Option<PeerHint<PayloadBytes>> {
    let payload = record(&[(LockId(2), number)], &[]);
    let end = ChainPoint::default();
    assert_eq!(node.on_appended(NOW, end, payload), RecordNumber(number));
    let before: Vec<NodeAction<PayloadBytes>> = std::iter::from_fn(|| node.poll()).collect();
    assert!(
        !before.iter().any(|deed| matches!(deed, NodeAction::Peer(_))),
        "it is not safe"
    );
    node.on_acked(NOW, RecordNumber(number));
    let mut deeds = std::iter::from_fn(|| node.poll());
    deeds.find_map(|deed| match deed {
        NodeAction::Peer(PeerAction::Hint(hint)) => Some(hint),
        _ => None,
    })
}

#[test]
fn a_records_needs_are_records_since_the_last_one_and_unstreamed_hints() {
    let mut node = node();
    let stream = |number| ToNode::Record {
        position: Position(number),
        node: OTHER,
        number: RecordNumber(number),
        payload: record(&[(LockId(1), number)], &[]),
    };
    node.handle(NOW, stream(1));
    node.handle(NOW, stream(2));
    assert!(node.on_hint(NOW, hint(1, 1)));
    let needs = |hint: Option<PeerHint<PayloadBytes>>| hint.expect("a hint").needs;
    assert_eq!(
        needs(commits(&mut node, 1)),
        [(PEER, RecordNumber(1)), (OTHER, RecordNumber(2))]
    );
    // The stream has not brought it yet.
    assert_eq!(needs(commits(&mut node, 2)), [(PEER, RecordNumber(1))]);
    node.handle(
        NOW,
        ToNode::Record {
            position: Position(9),
            node: PEER,
            number: RecordNumber(1),
            payload: record(&[(LOCK, 1)], &[]),
        },
    );
    assert_eq!(needs(commits(&mut node, 3)), [(PEER, RecordNumber(1))]);
    assert_eq!(needs(commits(&mut node, 4)), []);
    // A restarted server does not have all of it.
    node.on_unlinked();
    node.on_linked();
    let ahead = vec![(OTHER, RecordNumber(2))];
    node.handle(
        NOW,
        ToNode::Resumed {
            merged: RecordNumber(4),
            position: Position(1),
            ahead,
        },
    );
    assert_eq!(needs(commits(&mut node, 5)), [(OTHER, RecordNumber(2))]);
    assert_eq!(needs(commits(&mut node, 6)), [(OTHER, RecordNumber(2))]);
}

/// The server has such a record by then and does not send it again, so the stream never brings it. If it were
/// no need, a peer could show an overwriting value and lack a record that had read the old value.
#[test]
fn an_applied_hint_is_a_need_of_the_next_record_after_a_resume() {
    let mut node = node();
    assert!(node.on_hint(NOW, hint(1, 1)));
    node.on_unlinked();
    node.on_linked();
    node.handle(
        NOW,
        ToNode::Resumed {
            merged: RecordNumber(0),
            position: Position(1),
            ahead: Vec::new(),
        },
    );
    let peer = ToNode::Peer {
        node: PEER,
        reach: Some(PeerEndpoint::default()),
    };
    node.handle(NOW, peer);
    while node.poll().is_some() {}
    let needs = commits(&mut node, 1).expect("a hint").needs;
    assert_eq!(needs, [(PEER, RecordNumber(1))]);
    assert_eq!(commits(&mut node, 2).expect("a hint").needs, []);
}

/// Whether the node's next record is urgent for the server.
fn hurries(node: &mut RegionNode<PayloadBytes>, number: u64, payload: PayloadBytes, acked: bool) -> bool {
    assert_eq!(
        node.on_appended(NOW, ChainPoint::default(), payload),
        RecordNumber(number)
    );
    if acked {
        node.on_acked(NOW, RecordNumber(number));
    }
    let mut sent = Vec::new();
    while let Some(deed) = node.poll() {
        if let NodeAction::Send(message) = deed {
            let tail =
                matches!(&message, ToServer::Record { number: tail, .. } if *tail == RecordNumber(number));
            assert!(tail, "nothing else is sent");
            sent.push(node.is_urgent(&message));
        }
    }
    assert_eq!(sent.len(), 1);
    sent[0]
}

#[test]
fn a_safe_record_sent_to_peers_is_not_urgent() {
    let mut node = node();
    let own = |number| record(&[(LockId(2), number)], &[]);
    assert!(!hurries(&mut node, 1, own(1), true));
    let stamp = Stamp {
        written: vec![(LockId(2), LockVersion(2))],
        read: Vec::new(),
    };
    let long = bytes::record(&stamp, &vec![(0, 0); HINT_BYTES_MAX / 2]);
    assert!(hurries(&mut node, 2, long, true), "it is too long for peers");
    // Too few members: the server's disk makes the record safe.
    node.on_members(NOW, true);
    assert!(hurries(&mut node, 3, own(3), false));
    node.on_members(NOW, false);
    // No peer is left.
    for peer in [PEER, OTHER] {
        node.handle(
            NOW,
            ToNode::Peer {
                node: peer,
                reach: None,
            },
        );
    }
    node.on_acked(NOW, RecordNumber(3));
    while node.poll().is_some() {}
    assert!(!hurries(&mut node, 4, own(4), true));
    assert!(node.is_urgent(&ToServer::Leave));
}
