//! The ends of nodes, message by message: which of their records count, and when their locks are granted to
//! others.

use netram_proto::id::JournalId;
use netram_proto::time::Nanos;
use netram_shared_machine::message::OrphanJournalId;
use netram_shared_machine::server::{FenceReason, NodeState};
use netram_shared_machine::{InvalidRecord, NodeId, Position, RecordNumber, ToNode, ToServer};

use super::stage::{ServerHarness, acquire, record, release, resume, tail};
use super::world::bytes::PayloadBytes;

fn offer(node: u64, journal: u128, last: u64) -> ToServer<PayloadBytes> {
    ToServer::OfferOrphan {
        old: OrphanJournalId {
            node: NodeId(node),
            journal: JournalId(journal),
        },
        last: RecordNumber(last),
    }
}

fn old_tail(node: u64, number: u64, payload: PayloadBytes) -> ToServer<PayloadBytes> {
    ToServer::OrphanRecord {
        node: NodeId(node),
        number: RecordNumber(number),
        payload,
    }
}

fn wanted(node: u64, from: Option<u64>) -> ToNode<PayloadBytes> {
    ToNode::OrphanWanted {
        node: NodeId(node),
        from: from.map(RecordNumber),
    }
}

fn is_record(message: &ToNode<PayloadBytes>) -> bool {
    matches!(message, ToNode::Record { .. })
}

fn is_lock(message: &ToNode<PayloadBytes>) -> bool {
    matches!(message, ToNode::Lock(_))
}

/// The node's waiting records are in its journal as well, and are read from there with all later ones. If the
/// server kept them, the journal would seem to begin with a known number, and all of it would be left out.
#[test]
fn a_fenced_node_counts_by_its_journal_not_by_its_waiting_records() {
    let mut stage = ServerHarness::restarted(&[(1, NodeState::Live), (2, NodeState::Live)]);
    let first = || record(&[(0, 1)], &[(1, 1)]);
    stage.handle(1, resume(1, 1, &[]));
    stage.handle(1, tail(1, first()));
    assert_eq!(
        stage.server.missing().len(),
        1,
        "it waits for the other node's record"
    );
    stage.accuse(1);
    assert_eq!(stage.server.missing(), []);
    stage.journal_read(1, vec![first(), record(&[(0, 2)], &[])]);
    stage.handle(2, resume(2, 1, &[]));
    stage.handle(2, tail(1, record(&[(1, 1)], &[])));
    assert_eq!(stage.ended(), []);
    assert_eq!(stage.server.newest(), Position(3));
}

/// The node would keep the lock for as long as its journal cannot be read.
#[test]
fn a_fenced_node_is_not_granted_a_requested_lock() {
    let mut stage = ServerHarness::with_nodes(3);
    stage.handle(1, acquire(0));
    stage.handle(2, acquire(0));
    stage.accuse(2);
    assert_eq!(stage.node_state(2), Some(NodeState::Stuck));
    stage.handle(1, release(0, 1, 0));
    assert!(!stage.holds(2, 0));
    stage.handle(3, acquire(0));
    assert!(stage.holds(3, 0));
}

/// The node would keep the lock until all of its records are durable, which may have to wait for other nodes.
#[test]
fn a_leaving_node_is_not_granted_a_requested_lock() {
    let mut stage = ServerHarness::with_nodes(3);
    stage.handle(1, acquire(0));
    stage.handle(2, acquire(0));
    stage.slow_disk = true;
    stage.handle(2, ToServer::Leave);
    assert_eq!(stage.node_state(2), Some(NodeState::Going));
    stage.handle(1, release(0, 1, 0));
    assert!(!stage.holds(2, 0));
    stage.handle(3, acquire(0));
    assert!(stage.holds(3, 0));
}

/// The node had seen a record that was lost, and used it. No node can send the version that its own record
/// needs. It is fenced like a dead node, and is not told that all its records are safe.
#[test]
fn a_leaving_node_with_an_unmergeable_record_is_fenced() {
    let mut stage = ServerHarness::restarted(&[(1, NodeState::Live), (2, NodeState::Gone)]);
    let waits = || record(&[(0, 1)], &[(1, 1)]);
    stage.handle(1, resume(1, 1, &[(2, 1)]));
    assert!(stage.take_sent(1).contains(&ToNode::Rejoin));
    stage.handle(1, tail(1, waits()));
    stage.handle(1, ToServer::Leave);
    assert_eq!(stage.node_state(1), Some(NodeState::Leaving));
    stage.advance(Nanos::from_ms(50));
    // The server sleeps, and no node can send anything during that time.
    stage.now = stage.now + Nanos::from_ms(1000);
    stage.advance(Nanos::from_ms(40));
    assert_eq!(stage.node_state(1), Some(NodeState::Leaving));
    stage.advance(Nanos::from_ms(40));
    assert_eq!(stage.ended(), [(NodeId(1), FenceReason::Unmerged)]);
    assert_eq!(stage.take_sent(1), [ToNode::Fenced]);
    stage.journal_read(1, vec![waits()]);
    assert_eq!(stage.server.unmergeable()[0].node, NodeId(1));
    assert!(stage.server.give_up(NodeId(1)));
    stage.settle();
    assert_eq!(stage.node_state(1), Some(NodeState::Gone));
}

/// Another node's record makes the same version, so one of the two nodes is faulty. This node is not told
/// that its record is safe.
#[test]
fn a_leaving_node_with_a_duplicate_version_is_not_told_that_it_left() {
    let mut stage = ServerHarness::restarted(&[(1, NodeState::Live), (2, NodeState::Live)]);
    stage.handle(1, resume(1, 1, &[]));
    stage.handle(1, tail(1, record(&[(0, 1)], &[(1, 1)])));
    stage.handle(1, ToServer::Leave);
    stage.handle(2, resume(2, 1, &[]));
    stage.handle(2, tail(1, record(&[(0, 1)], &[])));
    let ended = stage.ended();
    assert!(
        matches!(
            ended[..],
            [(NodeId(1), FenceReason::Alien(InvalidRecord::Version { .. }))]
        ),
        "{ended:?}"
    );
    assert_eq!(stage.take_sent(1).last(), Some(&ToNode::Fenced));
}

/// A session with a node's own journal proves that the node's process has ended. Another journal, or an older
/// one of the same directory, proves nothing.
#[test]
fn only_its_own_journal_ends_a_living_node() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(9, offer(1, 99, 5));
    assert_eq!(stage.take_sent(9), [wanted(1, None)]);
    assert_eq!(stage.ended(), []);
    assert_eq!(stage.node_state(1), Some(NodeState::Live));
    stage.handle(9, offer(1, 1, 0));
    assert_eq!(stage.ended(), [(NodeId(1), FenceReason::Dead)]);
}

/// The session offers the journal again while its records for the first answer are still coming. Taken as an
/// answer to the second offer, they would be a journal without its beginning, and be left out.
#[test]
fn a_journal_offered_twice_is_merged_once_and_whole() {
    let mut stage = ServerHarness::with_nodes(2);
    stage.handle(1, acquire(0));
    stage.accuse(1);
    let record = |version: u64| record(&[(0, version)], &[]);
    stage.handle(9, offer(1, 1, 2));
    assert_eq!(stage.take_sent(9), [wanted(1, Some(1))]);
    stage.handle(9, old_tail(1, 1, record(1)));
    stage.handle(9, offer(1, 1, 2));
    stage.handle(9, old_tail(1, 2, record(2)));
    assert_eq!(stage.node_state(1), Some(NodeState::Stuck));
    stage.handle(9, old_tail(1, 1, record(1)));
    stage.handle(9, old_tail(1, 2, record(2)));
    assert_eq!(stage.ended(), []);
    assert_eq!(stage.server.newest(), Position(2));
    assert_eq!(stage.node_state(1), Some(NodeState::Gone));
}

/// The order in which the disk's thread reports records and facts is not visible to nodes: a grant follows
/// the records, which follow their durability.
#[test]
fn a_gone_nodes_records_are_hidden_until_they_are_known_to_be_durable() {
    let mut stage = ServerHarness::with_nodes(2);
    stage.handle(1, acquire(0));
    stage.handle(2, acquire(0));
    stage.accuse(1);
    stage.take_sent(2);
    stage.slow_disk = true;
    stage.journal_read(1, vec![record(&[(0, 1)], &[])]);
    stage.sync_facts();
    stage.settle();
    assert_eq!(stage.node_state(1), Some(NodeState::Gone));
    assert!(stage.holds(2, 0), "it is on its way");
    let said = stage.take_sent(2);
    assert!(!said.iter().any(|one| is_record(one) || is_lock(one)), "{said:?}");
    stage.sync_records();
    stage.settle();
    let said = stage.take_sent(2);
    assert!(
        matches!(&said[..], [record, grant] if is_record(record) && is_lock(grant)),
        "{said:?}"
    );
}
