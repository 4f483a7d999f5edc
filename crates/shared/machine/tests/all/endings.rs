//! How nodes end, message by message: what of them counts, who has their locks, and who is believed about
//! them.

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

/// What it had sent and still waited is in its journal as well, and comes from there with all that is behind
/// it. Were it kept, the journal would seem to begin with a number that has been, and everything in it would
/// be left out.
#[test]
fn of_a_fenced_node_counts_what_is_in_its_journal_and_nothing_that_waited() {
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

/// It would keep the lock for as long as its journal cannot be read.
#[test]
fn a_fenced_node_that_had_asked_for_a_lock_never_gets_it() {
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

/// It would keep the lock until everything of it is durable, which may have to wait for others.
#[test]
fn a_node_that_leaves_never_gets_what_it_had_asked_for() {
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

/// It had seen a record that was lost, and used it. Nobody will ever bring what its own record needs: that is
/// found out as it is of a dead node, and it does not hear that all that it had is safe.
#[test]
fn a_node_that_leaves_a_record_that_can_never_go_does_not_leave_for_ever() {
    let mut stage = ServerHarness::restarted(&[(1, NodeState::Live), (2, NodeState::Gone)]);
    let waits = || record(&[(0, 1)], &[(1, 1)]);
    stage.handle(1, resume(1, 1, &[(2, 1)]));
    assert!(stage.take_sent(1).contains(&ToNode::Rejoin));
    stage.handle(1, tail(1, waits()));
    stage.handle(1, ToServer::Leave);
    assert_eq!(stage.node_state(1), Some(NodeState::Leaving));
    stage.advance(Nanos::from_ms(50));
    // The server sleeps: nobody could bring anything meanwhile.
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

/// Another node's record makes the version that its own makes, for one of the two erred: it does not hear
/// that its record is safe.
#[test]
fn a_node_that_leaves_a_record_whose_version_another_makes_does_not_leave_in_peace() {
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

/// Whoever has a node's own journal has proof that its process is no more. Another one, or an old one of the
/// same directory, proves nothing.
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

/// It offers again what it is being asked for: what it was still sending for the first answer comes behind
/// the second offer. Taken for the second's it would be a journal that begins in the middle, and be left out.
#[test]
fn a_journal_that_is_offered_twice_is_taken_once_and_whole() {
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

/// In which order a disk's thread is asked for records and for facts says nothing to anybody: a grant goes
/// behind the records, and these when they are durable.
#[test]
fn that_a_node_is_gone_shows_nobody_its_records_before_these_are_known_to_be_durable() {
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
