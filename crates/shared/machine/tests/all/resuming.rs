//! Nodes that resume, message by message: their records are compared with the region's, and their claims with
//! the records that they sent.

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

/// Records go over one link in order, and over the next from where the server says. So a correct node sends
/// none twice.
#[test]
fn a_repeated_record_fences_its_node() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(1, acquire(0));
    stage.handle(1, tail(1, record(&[(0, 1)], &[])));
    stage.handle(2, resume(1, 2, &[(1, 1)]));
    let merged = stage.take_sent(2).into_iter().find_map(|message| match message {
        ToNode::Resumed { merged, .. } => Some(merged),
        _ => None,
    });
    assert_eq!(merged, Some(RecordNumber(1)));
    // The link that the node gave up brings the record late, and is ignored.
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

/// The node had seen a record that its writer's members lost, and the server with them. The node rejoins as
/// soon as that is certain, whether it came back before or after.
#[test]
fn a_node_with_a_lost_record_has_to_rejoin() {
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

/// Claims free the tokens that they do not name. Sent again, they would free tokens that were granted since.
#[test]
fn claims_without_a_resume_fence_their_node() {
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

/// The node wrote under a lock and gave it back, which was lost with the server. The unclaimed token is free
/// only after the node's record. Here that record waits for a lost one, until the operator gives it up.
#[test]
fn an_unclaimed_token_is_taken_until_earlier_records_are_merged() {
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
