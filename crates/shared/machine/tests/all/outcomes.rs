//! A server's answers about records of gone nodes.

use netram_proto::time::{Nanos, Time};
use netram_shared_machine::message::{RecordOutcome, RegionOpening};
use netram_shared_machine::server::{
    DurableNode, LinkOutput, NodeState, RegionServer, RegionState, ServerConfig, SessionId,
};
use netram_shared_machine::{NodeId, RecordNumber, ToNode, ToServer};

use super::world::bytes::PayloadBytes;

/// A restarted server: node ids up to 9 were assigned, and all but the last two are forgotten.
fn server() -> RegionServer<PayloadBytes> {
    let config = ServerConfig {
        lease: Nanos::from_ms(100),
        recent_bytes_max: 300,
        page_bytes: 64,
        forget_retry: Nanos::from_ms(1000),
        opening: RegionOpening::default(),
    };
    let gone = |node: u64, number: u64| {
        let row = DurableNode {
            state: NodeState::Gone,
            id: netram_proto::id::JournalId(u128::from(node)),
            journal: None,
            number: RecordNumber(number),
        };
        (NodeId(node), row)
    };
    let table = RegionState {
        last_node: NodeId(9),
        nodes: [gone(8, 3), gone(9, 0)].into_iter().collect(),
        ..RegionState::default()
    };
    RegionServer::new(config, table, Time(0))
}

fn fate(server: &mut RegionServer<PayloadBytes>, node: u64, number: u64) -> RecordOutcome {
    let (node, number) = (NodeId(node), RecordNumber(number));
    server.handle(Time(1), SessionId(1), ToServer::Outcome { node, number });
    match server.poll_send(SessionId(1)) {
        Some(LinkOutput::Message(ToNode::Outcome {
            node: of,
            number: which,
            fate,
        })) => {
            assert_eq!((of, which), (node, number));
            fate
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_outcome_of_a_forgotten_nodes_record_is_forgotten() {
    let mut server = server();
    assert_eq!(fate(&mut server, 8, 3), RecordOutcome::Committed);
    assert_eq!(fate(&mut server, 8, 4), RecordOutcome::Aborted);
    assert_eq!(fate(&mut server, 7, 1), RecordOutcome::Forgotten);
    assert_eq!(fate(&mut server, 1, u64::MAX), RecordOutcome::Forgotten);
    // The next node will have this id: nothing is known of it yet.
    assert_eq!(fate(&mut server, 10, 1), RecordOutcome::Open);
}
