//! Gone nodes: their lenders free the windows in the end, whichever process read the records and however long
//! a lender is away.

use netram_proto::id::JournalId;
use netram_proto::time::Nanos;
use netram_shared_machine::message::OrphanJournalId;
use netram_shared_machine::server::NodeState;
use netram_shared_machine::{NodeId, RecordNumber, ToNode, ToServer};

use super::stage::{ServerHarness, acquire, record, tail};

const NOBODY: [u64; 0] = [];

#[test]
fn the_lenders_of_a_fenced_node_are_told_once_its_end_is_durable() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.accuse(1);
    stage.slow_disk = true;
    stage.journal_read(1, Vec::new());
    assert_eq!(stage.forgotten(), NOBODY);
    stage.sync_facts();
    stage.settle();
    assert_eq!(stage.forgotten(), [1]);
    stage.tell(1, true);
    stage.advance(Nanos::from_ms(100_000));
    assert_eq!(
        (stage.forgotten(), stage.server.pending_forgets().count()),
        (vec![], 0)
    );
}

/// The windows were never freed: an offering process might have started the journal anew, it was thought, and
/// its lenders be fenced against it. But each joining node has a new journal.
#[test]
fn the_lenders_of_an_offered_journal_are_told() {
    let mut stage = ServerHarness::with_nodes(2);
    stage.handle(1, acquire(0));
    stage.handle(1, tail(1, record(&[(0, 1)], &[])));
    let old = OrphanJournalId {
        node: NodeId(1),
        journal: JournalId(1),
    };
    let last = RecordNumber(1);
    stage.handle(2, ToServer::OfferOrphan { old, last });
    assert_eq!(stage.node_state(1), Some(NodeState::Gone));
    assert_eq!(stage.forgotten(), [1]);
}

/// The node was told that its records were durable only after it was told to leave, or not at all. So it
/// believed that its lenders had records that the server lacks.
#[test]
fn a_leaving_node_learns_first_that_all_its_records_are_durable() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(1, acquire(0));
    stage.slow_disk = true;
    stage.take_sent(1);
    stage.handle(1, tail(1, record(&[(0, 1)], &[])));
    stage.handle(1, ToServer::Leave);
    assert_eq!(stage.take_sent(1), []);
    // The disk gets the record and the end of the node at once, before either is reported.
    stage.sync_facts();
    stage.settle();
    let said = stage.take_sent(1);
    let [ToNode::Durable { number, .. }, ToNode::Left] = said.as_slice() else {
        panic!("{said:?}")
    };
    assert_eq!(*number, RecordNumber(1));
}

#[test]
fn a_node_that_left_has_a_moment_to_tell_its_lenders_itself() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.handle(1, ToServer::Leave);
    assert_eq!(stage.node_state(1), Some(NodeState::Gone));
    stage.advance(Nanos::from_ms(990));
    assert_eq!(stage.forgotten(), NOBODY);
    stage.advance(Nanos::from_ms(10));
    assert_eq!(stage.forgotten(), [1], "its process may have ended before");
}

#[test]
fn an_unreachable_lender_is_told_again_with_growing_pauses() {
    let mut stage = ServerHarness::with_nodes(1);
    stage.accuse(1);
    stage.journal_read(1, Vec::new());
    for seconds in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
        assert_eq!(stage.forgotten(), [1]);
        stage.tell(1, false);
        stage.advance(Nanos::from_ms(seconds * 1000 - 10));
        assert_eq!(stage.forgotten(), NOBODY);
        stage.advance(Nanos::from_ms(10));
    }
    assert_eq!(stage.forgotten(), [1]);
    stage.tell(1, true);
    assert_eq!(stage.server.pending_forgets().count(), 0);
}

/// Otherwise a lender that is gone for good would cost a waiting thread per gone node.
#[test]
fn failed_forget_attempts_are_repeated_for_one_node_at_a_time() {
    let mut stage = ServerHarness::owing_forgets(&[1, 2, 3]);
    stage.advance(Nanos::from_ms(10));
    assert_eq!(stage.forgotten(), [1], "the next server tells them");
    stage.advance(Nanos::from_ms(5000));
    assert_eq!(stage.forgotten(), NOBODY);
    stage.tell(1, false);
    assert_eq!(stage.forgotten(), [2]);
    stage.join(4);
    stage.accuse(10);
    stage.journal_read(10, Vec::new());
    assert_eq!(
        stage.forgotten(),
        [10],
        "whoever is gone only now waits for nobody"
    );
    stage.tell(10, true);
    stage.tell(2, true);
    assert_eq!(stage.forgotten(), [3]);
    stage.tell(3, true);
    stage.advance(Nanos::from_ms(2000));
    assert_eq!(stage.forgotten(), [1]);
}

#[test]
fn the_oldest_pending_forget_is_abandoned_first() {
    let mut stage = ServerHarness::owing_forgets(&[1, 2]);
    stage.advance(Nanos::from_ms(10));
    assert_eq!(stage.forgotten(), [1]);
    assert_eq!(stage.server.abandon_forget(), Some(NodeId(1)));
    stage.advance(Nanos::from_ms(10));
    assert_eq!(stage.forgotten(), [2]);
    stage.tell(1, false);
    stage.advance(Nanos::from_ms(100_000));
    assert_eq!(
        stage.forgotten(),
        NOBODY,
        "that one is given up, and the other one under way"
    );
    assert_eq!(stage.server.abandon_forget(), Some(NodeId(2)));
    assert_eq!(stage.server.abandon_forget(), None);
}
