//! Bounds on the memory that one hostile node with the cluster's key can take from the server. The node is
//! fenced or refused; other nodes notice nothing.

use std::sync::Arc;

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_shared_machine::limit::{MERGE_BYTES_MAX, OUTBOX_BYTES_MAX, PENDING_VIEWS_MAX};
use netram_shared_machine::message::OrphanJournalId;
use netram_shared_machine::server::{FenceReason, NodeState, SessionId};
use netram_shared_machine::{NodeId, Position, RecordNumber, ToNode, ToServer};

use super::stage::{ServerHarness, acquire, record, release, tail};
use super::world::bytes::PayloadBytes;

/// A few records of this size are as much as may wait.
const LONG_BYTES: usize = MERGE_BYTES_MAX / 4 - 1024;

/// A record that writes under lock 0, and has read a version under lock 1 that was never written. Its ranges
/// are zeros.
fn long(version: u64) -> PayloadBytes {
    let mut bytes = record(&[(0, version)], &[(1, 99)]).to_vec();
    bytes.resize(LONG_BYTES, 0);
    Arc::from(bytes)
}

fn is_out_of_place(ended: &[(NodeId, FenceReason)], node: u64) -> bool {
    matches!(ended, [(whose, FenceReason::OutOfPlace(_))] if *whose == NodeId(node))
}

/// Checks that the other node works as before.
fn goes_on(stage: &mut ServerHarness, node: u64, lock: u32) {
    let before = stage.server.newest();
    stage.handle(node, acquire(lock));
    assert!(stage.holds(node, lock));
    stage.handle(node, tail(1, record(&[(lock, 1)], &[])));
    assert_eq!(stage.server.newest(), Position(before.0 + 1));
    assert_eq!(stage.node_state(node), Some(NodeState::Live));
}

#[test]
fn a_node_with_more_waiting_bytes_than_a_window_is_fenced() {
    let mut stage = ServerHarness::with_nodes(2);
    stage.handle(1, acquire(0));
    stage.handle(1, acquire(1));
    for number in 1..=4 {
        stage.handle(1, tail(number, long(number)));
    }
    assert_eq!(
        stage.ended(),
        [],
        "a node may have so much that waits for another"
    );
    stage.handle(1, tail(5, long(5)));
    assert!(is_out_of_place(&stage.ended(), 1));
    assert!(stage.take_sent(1).contains(&ToNode::Fenced));
    assert_eq!(stage.server.missing(), [], "nothing of it is kept");
    goes_on(&mut stage, 2, 2);
    stage.journal_read(1, Vec::new());
    stage.handle(2, acquire(0));
    assert!(stage.holds(2, 0), "and its locks go on");
}

/// Merged records do not wait: a node may send any number of records that are in order.
#[test]
fn merged_records_do_not_count_as_waiting() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(1, acquire(0));
    for number in 1..=9 {
        let mut bytes = record(&[(0, number)], &[]).to_vec();
        bytes.resize(LONG_BYTES, 0);
        stage.handle(1, tail(number, bytes.into()));
    }
    assert_eq!((stage.ended(), stage.server.newest()), (vec![], Position(9)));
}

fn offer(stage: &mut ServerHarness, session: u64) {
    let old = OrphanJournalId {
        node: NodeId(1),
        journal: JournalId(1),
    };
    let last = RecordNumber(100);
    stage.handle(session, ToServer::OfferOrphan { old, last });
    let (node, from) = (NodeId(1), Some(RecordNumber(1)));
    assert!(
        stage
            .take_sent(session)
            .contains(&ToNode::OrphanWanted { node, from })
    );
}

fn give(stage: &mut ServerHarness, session: u64, number: u64) {
    stage.handle(
        session,
        ToServer::OrphanRecord {
            node: NodeId(1),
            number: RecordNumber(number),
            payload: long(number),
        },
    );
}

#[test]
fn an_offer_larger_than_any_journal_is_refused_and_another_session_may_offer_it() {
    let mut stage = ServerHarness::with_nodes(3);
    stage.accuse(1);
    offer(&mut stage, 3);
    (1..=4).for_each(|number| give(&mut stage, 3, number));
    assert_eq!(stage.ended(), []);
    give(&mut stage, 3, 5);
    assert!(is_out_of_place(&stage.ended(), 3));
    goes_on(&mut stage, 2, 2);
    // A session without a node, which has only the key.
    offer(&mut stage, 9);
    (1..=5).for_each(|number| give(&mut stage, 9, number));
    assert_eq!(stage.server.node(SessionId(9)), None);
    assert_eq!(stage.node_state(1), Some(NodeState::Stuck));
    offer(&mut stage, 8);
    stage.journal_read(1, Vec::new());
    assert_eq!(stage.node_state(1), Some(NodeState::Gone));
}

/// Each hand-over queues a grant behind those that the node has not read. A node that is only slow gets here,
/// too: it has to rejoin.
#[test]
fn a_node_that_reads_none_of_its_grants_has_to_rejoin() {
    let mut stage = ServerHarness::with_nodes(2);
    stage.take_sent(1);
    stage.blocked_link = Some(SessionId(1));
    let message = size_of::<(Position, ToNode<PayloadBytes>)>();
    let most = (OUTBOX_BYTES_MAX / message) as u64;
    for grant in 1..=most {
        stage.handle(1, acquire(0));
        assert_eq!(stage.node_state(1), Some(NodeState::Live));
        stage.handle(1, release(0, grant, 0));
    }
    stage.handle(1, acquire(0));
    assert_eq!(stage.node_state(1), Some(NodeState::Behind));
    stage.handle(1, release(0, most + 1, 0));
    // No more messages are kept for it, however long it continues.
    for grant in most + 2..most + 1000 {
        stage.handle(1, acquire(0));
        stage.handle(1, release(0, grant, 0));
    }
    assert_eq!(stage.ended(), []);
    goes_on(&mut stage, 2, 0);
    stage.blocked_link = None;
    stage.settle();
    assert_eq!(stage.take_sent(1), [ToNode::Rejoin]);
}

#[test]
fn a_node_that_sends_views_without_waiting_is_fenced() {
    let mut stage = ServerHarness::with_nodes(2);
    let view = |version| {
        ToServer::View(View {
            version,
            ..View::first(JournalId(1))
        })
    };
    stage.slow_disk = true;
    let first = View::first(JournalId(1)).version;
    let last = first + PENDING_VIEWS_MAX as u64;
    for version in first..=last {
        stage.handle(1, view(version));
        // A view that is sent again over a new link means nothing new.
        stage.handle(1, view(version));
    }
    assert_eq!(stage.ended(), []);
    stage.handle(1, view(last + 1));
    assert!(is_out_of_place(&stage.ended(), 1));
    stage.slow_disk = false;
    stage.settle();
    stage.sync_facts();
    goes_on(&mut stage, 2, 2);
}
