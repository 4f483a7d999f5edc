//! Nodes that come back, message by message: what they have is compared with what there is, and what they claim with what they sent.

use netram_shared_machine::lock::Claim;
use netram_shared_machine::server::{Standing, Why};
use netram_shared_machine::{
    Alien, Grant, Hold, LockId, NodeId, Number, Position, ToNode, ToServer, Version,
};

use super::stage::{Stage, acquire, record, resume, tail};
use super::world::bytes::P;

fn claims(locks: &[u32]) -> ToServer<P> {
    let claim = |lock: &u32| Claim {
        lock: LockId(*lock),
        grant: Grant(1),
        hold: Hold::Exclusive,
        version: Version(0),
    };
    ToServer::Claims(locks.iter().map(claim).collect())
}

fn began_anew(stage: &mut Stage, session: u64) -> bool {
    stage.said(session).contains(&ToNode::Anew)
}

/// Records go over one link in order, and over the next from where the server says: none comes twice by itself.
#[test]
fn a_record_that_comes_twice_is_refused_and_its_node_fenced() {
    let mut stage = Stage::with_nodes(1);
    stage.hear(1, acquire(0));
    stage.hear(1, tail(1, record(&[(0, 1)], &[])));
    stage.hear(2, resume(1, 2, &[(1, 1)]));
    let merged = stage.said(2).into_iter().find_map(|message| match message {
        ToNode::Resumed { merged, .. } => Some(merged),
        _ => None,
    });
    assert_eq!(merged, Some(Number(1)));
    // The link that it gave up brings it late: nobody listens.
    stage.hear(1, tail(1, record(&[(0, 1)], &[])));
    assert_eq!(stage.ended(), []);
    stage.hear(2, tail(1, record(&[(0, 1)], &[])));
    let again = Alien::Number {
        node: NodeId(1),
        expected: Number(2),
        found: Number(1),
    };
    assert_eq!(stage.ended(), [(NodeId(1), Why::Alien(again))]);
    assert_eq!(stage.server.newest(), Position(1));
}

/// It had seen a record that its writer's members then lost, and the server with them: it begins anew as soon as that is certain, whether it
/// came back before that or after.
#[test]
fn who_has_a_record_that_was_lost_begins_anew() {
    let nodes = [1, 2, 3, 4].map(|node| (node, Standing::Live));
    let mut stage = Stage::restarted(&nodes);
    stage.hear(2, resume(2, 1, &[(1, 1)]));
    stage.hear(3, resume(3, 1, &[(1, 0)]));
    stage.accuse(1);
    assert!(!began_anew(&mut stage, 2), "its journal may have it");
    stage.slow_disk = true;
    stage.found(1, Vec::new());
    assert_eq!(stage.standing(1), Some(Standing::Going));
    assert!(began_anew(&mut stage, 2));
    assert!(!began_anew(&mut stage, 3), "it has not seen it");
    stage.hear(4, resume(4, 1, &[(1, 1)]));
    assert!(
        began_anew(&mut stage, 4),
        "that the node is gone is not durable yet"
    );
    stage.sync_facts();
    stage.hear(5, resume(4, 2, &[(1, 1)]));
    assert!(began_anew(&mut stage, 5));
}

/// Claims make free what they do not name. Said again, they would make free what was granted since.
#[test]
fn claims_that_nobody_waits_for_fence_their_node() {
    let out_of_place = |ended: Vec<(NodeId, Why)>| matches!(ended[..], [(NodeId(1), Why::OutOfPlace(_))]);
    let mut stage = Stage::with_nodes(1);
    stage.hear(1, acquire(0));
    stage.hear(1, claims(&[0]));
    assert!(out_of_place(stage.ended()), "it has joined, and had nothing");
    let mut stage = Stage::with_nodes(1);
    stage.hear(1, acquire(0));
    stage.hear(2, resume(1, 2, &[]));
    stage.hear(2, claims(&[0]));
    assert_eq!(stage.ended(), []);
    assert!(stage.holds(1, 0));
    stage.hear(2, claims(&[]));
    assert!(out_of_place(stage.ended()), "once is enough");
}

/// It wrote under a lock, gave it back, and that was lost with the server. What it does not claim is free only behind its record: here
/// that waits for one that was lost, until whoever looks after the region gives it up.
#[test]
fn what_is_not_claimed_is_taken_until_the_records_before_are_merged() {
    let mut stage = Stage::restarted(&[(1, Standing::Live), (2, Standing::Gone)]);
    let waits = || record(&[(0, 1)], &[(1, 1)]);
    stage.join(3);
    stage.hear(3, acquire(0));
    stage.hear(1, resume(1, 1, &[]));
    stage.hear(1, tail(1, waits()));
    stage.hear(1, claims(&[]));
    assert_eq!(stage.server.missing().len(), 1);
    assert!(!stage.holds(3, 0));
    stage.accuse(1);
    stage.found(1, vec![waits()]);
    assert!(!stage.holds(3, 0));
    assert!(stage.server.give_up(NodeId(1)));
    stage.settle();
    assert!(stage.holds(3, 0));
}
