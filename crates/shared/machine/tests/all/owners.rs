//! Nodes whose journals have owners: nobody else speaks for them, whatever link numbers he names.

use netram_proto::id::JournalId;
use netram_proto::owner::owned_id;
use netram_shared_machine::limit::NODE_LINKS_MAX;
use netram_shared_machine::message::{JoinRefusal, JoinRequest, MessageError};
use netram_shared_machine::server::{FenceReason, NodeState, SessionId};
use netram_shared_machine::{NodeId, ToNode, ToServer};

use super::hostile::join;
use super::stage::{ServerHarness, resume};
use super::world::bytes::PayloadBytes;

fn owned(key: u8) -> u128 {
    owned_id(&[key; 32])
}

fn prove(stage: &mut ServerHarness, session: u64, key: u8) {
    stage.server.on_proven(SessionId(session), JournalId(owned(key)));
}

/// A region whose only node, node 1, has an owner, and has joined over session 1.
fn with_owned_node() -> ServerHarness {
    let mut stage = ServerHarness::with_nodes(0);
    prove(&mut stage, 1, 1);
    stage.handle(1, ToServer::Join(join(owned(1))));
    assert_eq!(stage.node_state(1), Some(NodeState::Live));
    stage.take_sent(1);
    stage
}

/// The request of a process with node 1's journal in which there are records.
fn join_again(link: u64) -> ToServer<PayloadBytes> {
    let mut begins = join(owned(1)).begins;
    begins.lsn.0 += 64;
    ToServer::Join(JoinRequest {
        begins,
        link,
        ..join(owned(1))
    })
}

#[test]
fn a_stranger_neither_resumes_nor_joins_as_a_node_that_has_an_owner() {
    let refused = [ToNode::Refused(JoinRefusal::Owner)];
    for message in [resume(1, NODE_LINKS_MAX, &[]), join_again(NODE_LINKS_MAX)] {
        let mut stage = with_owned_node();
        // Session 3's client owns a journal of its own.
        prove(&mut stage, 3, 2);
        for session in [2, 3] {
            stage.handle(session, message.clone());
            assert_eq!(stage.take_sent(session), refused);
            assert_eq!(stage.server.node(SessionId(session)), None);
        }
        assert_eq!(
            stage.server.node(SessionId(1)),
            Some(NodeId(1)),
            "it keeps its link"
        );
        assert_eq!(
            (stage.node_state(1), stage.ended()),
            (Some(NodeState::Live), vec![])
        );
        // The stranger's link numbers do not count: the owner's next link is not late.
        prove(&mut stage, 4, 1);
        stage.handle(4, resume(1, 2, &[]));
        assert_eq!(stage.server.node(SessionId(4)), Some(NodeId(1)));
    }
}

#[test]
fn a_journal_that_has_an_owner_joins_only_with_its_proof() {
    let mut stage = ServerHarness::with_nodes(0);
    stage.handle(1, ToServer::Join(join(owned(1))));
    assert_eq!(stage.take_sent(1), [ToNode::Refused(JoinRefusal::Owner)]);
    assert_eq!(stage.server.node_states().count(), 0);
}

#[test]
fn the_owner_of_a_node_may_end_it() {
    let mut stage = with_owned_node();
    prove(&mut stage, 2, 1);
    stage.handle(2, join_again(2));
    assert_eq!(stage.ended(), [(NodeId(1), FenceReason::Dead)]);
}

/// So do all nodes of an earlier release, and those whose records are not sealed.
#[test]
fn a_node_without_owner_resumes_without_a_proof() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(2, resume(1, 2, &[]));
    assert_eq!(stage.server.node(SessionId(2)), Some(NodeId(1)));
}

#[test]
fn a_link_number_beyond_all_that_a_node_can_open_is_no_message() {
    for link in [NODE_LINKS_MAX, NODE_LINKS_MAX + 1] {
        let mut bytes = Vec::new();
        resume(1, link, &[]).head(&mut bytes);
        let mut joining = Vec::new();
        join_again(link).head(&mut joining);
        for bytes in [bytes, joining] {
            let decoded = ToServer::decode(&bytes).map(drop);
            match link > NODE_LINKS_MAX {
                true => assert_eq!(decoded, Err(MessageError::Field("link"))),
                false => assert_eq!(decoded, Ok(())),
            }
        }
    }
}
