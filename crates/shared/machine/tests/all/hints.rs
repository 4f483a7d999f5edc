//! Records straight from node to node: what is taken, and what becomes of who took what does not count.

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

/// A node that has the region, a lease, and peers 3 and 4.
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
fn a_hint_is_applied_once_and_the_stream_brings_it_again_in_vain() {
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
fn a_hint_waits_for_nothing_it_is_forgotten() {
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

/// A node that was fenced and does not know of it might use the token: then nothing may change under it.
#[test]
fn nothing_changes_under_a_token_that_is_here() {
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

/// They would be ended by what need not come now.
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

/// What does not count, because its node never committed it or lost what had acknowledged it, is nowhere
/// else. Who has it must not go on.
#[test]
fn who_took_what_does_not_count_finds_out() {
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
    // While its sender lives: the server has the lock below.
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

/// Its own record, and what peers must have before it.
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
fn a_record_says_what_has_come_since_the_one_before_and_what_is_still_to_come() {
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
    // A server that has started since has not everything.
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

/// The server has such a record by then and sends it no more: the stream never brings it. Without it among
/// the needs a peer could show what overwrote a value, and lack a record that had read that value.
#[test]
fn a_hint_that_the_server_has_when_its_taker_resumes_is_needed_by_the_next_record() {
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

/// Whether somebody may wait for the tail of its next record.
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
fn a_record_that_is_safe_and_that_peers_were_given_does_not_hurry_to_the_server() {
    let mut node = node();
    let own = |number| record(&[(LockId(2), number)], &[]);
    assert!(!hurries(&mut node, 1, own(1), true));
    let stamp = Stamp {
        written: vec![(LockId(2), LockVersion(2))],
        read: Vec::new(),
    };
    let long = bytes::record(&stamp, &vec![(0, 0); HINT_BYTES_MAX / 2]);
    assert!(hurries(&mut node, 2, long, true), "it is too long for peers");
    // Too few members: the server's disk makes it safe.
    node.on_members(NOW, true);
    assert!(hurries(&mut node, 3, own(3), false));
    node.on_members(NOW, false);
    // Nobody is there.
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
