//! What a server answers about records of nodes that are no more.

use netram_proto::time::{Span, Time};
use netram_shared_machine::message::{Fate, Opening};
use netram_shared_machine::server::{Outgoing, Row, Server, ServerConfig, Session, Standing, Table};
use netram_shared_machine::{NodeId, Number, ToNode, ToServer};

use super::world::bytes::P;

/// A server that was started again: nodes up to the ninth have been, and all but the last two are forgotten.
fn server() -> Server<P> {
    let config = ServerConfig {
        lease: Span::from_ms(100),
        recent_bytes_max: 300,
        page_bytes: 64,
        tell_again: Span::from_ms(1000),
        opening: Opening::default(),
    };
    let gone = |node: u64, number: u64| {
        let row = Row {
            standing: Standing::Gone,
            id: netram_proto::id::JournalId(u128::from(node)),
            journal: None,
            number: Number(number),
        };
        (NodeId(node), row)
    };
    let table = Table {
        last_node: NodeId(9),
        nodes: [gone(8, 3), gone(9, 0)].into_iter().collect(),
        ..Table::default()
    };
    Server::new(config, table, Time(0))
}

fn fate(server: &mut Server<P>, node: u64, number: u64) -> Fate {
    let (node, number) = (NodeId(node), Number(number));
    server.handle(Time(1), Session(1), ToServer::Outcome { node, number });
    match server.poll_send(Session(1)) {
        Some(Outgoing::Message(ToNode::Fate {
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
fn a_question_about_a_node_that_is_forgotten_gets_a_last_answer() {
    let mut server = server();
    assert_eq!(fate(&mut server, 8, 3), Fate::Committed);
    assert_eq!(fate(&mut server, 8, 4), Fate::Aborted);
    assert_eq!(fate(&mut server, 7, 1), Fate::Forgotten);
    assert_eq!(fate(&mut server, 1, u64::MAX), Fate::Forgotten);
    // The next node will have this id: nothing is known of it yet.
    assert_eq!(fate(&mut server, 10, 1), Fate::Open);
}
