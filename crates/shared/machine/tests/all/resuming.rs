//! Nodes that come back, message by message: what they have is compared with what there is, and what they
//! claim with what they sent.

use netram_shared_machine::lock::TokenClaim;
use netram_shared_machine::server::{FenceReason, NodeState};
use netram_shared_machine::{
    GrantNumber, InvalidRecord, LockId, LockMode, LockVersion, NodeId, Position, RecordNumber, ToNode,
    ToServer,
};

use super::stage::{ServerHarness, acquire, record, resume, tail};
use super::world::bytes::PayloadBytes;

fn claims(locks: &[u32]) -> ToServer<PayloadBytes> {
    let claim = |lock: &u32| TokenClaim {
        lock: LockId(*lock),
        grant: GrantNumber(1),
        hold: LockMode::Exclusive,
        version: LockVersion(0),
    };
    ToServer::Claims(locks.iter().map(claim).collect())
}

fn began_anew(stage: &mut ServerHarness, session: u64) -> bool {
    stage.take_sent(session).contains(&ToNode::Rejoin)
}

/// Records go over one link in order, and over the next from where the server says: none comes twice by
/// itself.
#[test]
fn a_record_that_comes_twice_is_refused_and_its_node_fenced() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(1, acquire(0));
    stage.handle(1, tail(1, record(&[(0, 1)], &[])));
    stage.handle(2, resume(1, 2, &[(1, 1)]));
    let merged = stage.take_sent(2).into_iter().find_map(|message| match message {
        ToNode::Resumed { merged, .. } => Some(merged),
        _ => None,
    });
    assert_eq!(merged, Some(RecordNumber(1)));
    // The link that it gave up brings it late: nobody listens.
    stage.handle(1, tail(1, record(&[(0, 1)], &[])));
    assert_eq!(stage.ended(), []);
    stage.handle(2, tail(1, record(&[(0, 1)], &[])));
    let again = InvalidRecord::Number {
        node: NodeId(1),
        expected: RecordNumber(2),
        found: RecordNumber(1),
    };
    assert_eq!(stage.ended(), [(NodeId(1), FenceReason::Alien(again))]);
    assert_eq!(stage.server.newest(), Position(1));
}

/// It had seen a record that its writer's members then lost, and the server with them: it begins anew as soon
/// as that is certain, whether it came back before that or after.
#[test]
fn who_has_a_record_that_was_lost_begins_anew() {
    let nodes = [1, 2, 3, 4].map(|node| (node, NodeState::Live));
    let mut stage = ServerHarness::restarted(&nodes);
    stage.handle(2, resume(2, 1, &[(1, 1)]));
    stage.handle(3, resume(3, 1, &[(1, 0)]));
    stage.accuse(1);
    assert!(!began_anew(&mut stage, 2), "its journal may have it");
    stage.slow_disk = true;
    stage.journal_read(1, Vec::new());
    assert_eq!(stage.node_state(1), Some(NodeState::Going));
    assert!(began_anew(&mut stage, 2));
    assert!(!began_anew(&mut stage, 3), "it has not seen it");
    stage.handle(4, resume(4, 1, &[(1, 1)]));
    assert!(
        began_anew(&mut stage, 4),
        "that the node is gone is not durable yet"
    );
    stage.sync_facts();
    stage.handle(5, resume(4, 2, &[(1, 1)]));
    assert!(began_anew(&mut stage, 5));
}

/// Claims make free what they do not name. Said again, they would make free what was granted since.
#[test]
fn claims_that_nobody_waits_for_fence_their_node() {
    let out_of_place =
        |ended: Vec<(NodeId, FenceReason)>| matches!(ended[..], [(NodeId(1), FenceReason::OutOfPlace(_))]);
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(1, acquire(0));
    stage.handle(1, claims(&[0]));
    assert!(out_of_place(stage.ended()), "it has joined, and had nothing");
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(1, acquire(0));
    stage.handle(2, resume(1, 2, &[]));
    stage.handle(2, claims(&[0]));
    assert_eq!(stage.ended(), []);
    assert!(stage.holds(1, 0));
    stage.handle(2, claims(&[]));
    assert!(out_of_place(stage.ended()), "once is enough");
}

/// It wrote under a lock, gave it back, and that was lost with the server. What it does not claim is free
/// only behind its record: here that waits for one that was lost, until whoever looks after the region gives
/// it up.
#[test]
fn what_is_not_claimed_is_taken_until_the_records_before_are_merged() {
    let mut stage = ServerHarness::restarted(&[(1, NodeState::Live), (2, NodeState::Gone)]);
    let waits = || record(&[(0, 1)], &[(1, 1)]);
    stage.join(3);
    stage.handle(3, acquire(0));
    stage.handle(1, resume(1, 1, &[]));
    stage.handle(1, tail(1, waits()));
    stage.handle(1, claims(&[]));
    assert_eq!(stage.server.missing().len(), 1);
    assert!(!stage.holds(3, 0));
    stage.accuse(1);
    stage.journal_read(1, vec![waits()]);
    assert!(!stage.holds(3, 0));
    assert!(stage.server.give_up(NodeId(1)));
    stage.settle();
    assert!(stage.holds(3, 0));
}
