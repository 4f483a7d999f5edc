//! Turns of one session.

use netram_proto::id::JournalId;

use super::*;
use crate::journal::ShardJournals;
use crate::test_bench::{self, TestDaemon};

const ID: JournalId = JournalId(7);

/// A shard's state, a session that is bound to a journal, and the client's end of its link.
struct Bench {
    daemon: TestDaemon,
    journals: ShardJournals,
    connection: Connection,
    client: Link,
}

impl Bench {
    fn new() -> Bench {
        let daemon = TestDaemon::new(1);
        let mut journals = ShardJournals::new(Arc::clone(&daemon.shared), Vec::new());
        let (client, link) = daemon.link_pair();
        let mut greeting = daemon.greet(ID);
        let visit = greeting.visit.take().unwrap();
        let Ok(index) = journals.bind(ID, &visit.account) else {
            panic!("the store has a slot")
        };
        let permit = daemon.shared.permit().unwrap();
        let place = (index, daemon.shared.incarnation());
        let connection = Connection::new(link, greeting, visit, place, permit, Instant::now());
        Bench {
            daemon,
            journals,
            connection,
            client,
        }
    }

    fn turn(&mut self) -> bool {
        let turn = TurnContext {
            now: Instant::now(),
            shard: 0,
            shared: &self.daemon.shared,
            counters: &self.daemon.shared.counters[0],
        };
        let journal = self.journals.at(self.connection.index);
        self.connection.turn(journal, &turn).unwrap().received
    }

    /// Sends `count` frames of this kind, as many as fit one read of the socket.
    fn say(&mut self, kind: FrameKind, count: usize) {
        assert!(
            test_bench::say(&mut self.client, kind, count),
            "the socket takes them all"
        );
    }

    /// Number of frames that the client has got.
    fn answers(&mut self) -> usize {
        test_bench::answers(&mut self.client)
    }
}

/// A turn answered everything that had come, two thousand frames with one read of the socket.
#[test]
fn a_turn_ends_after_a_bounded_number_of_frames() {
    const SENT: usize = 2000;
    let mut bench = Bench::new();
    bench.say(FrameKind::Ping, SENT);
    assert!(bench.turn());
    let first = bench.answers();
    assert!(
        (1..=FRAMES_PER_TURN).contains(&first),
        "{first} answers in one turn"
    );
    assert!(bench.connection.has_more(), "the shard is told to come back");
    let mut answered = first;
    while bench.connection.has_more() {
        bench.turn();
        answered += bench.answers();
    }
    assert_eq!(answered, SENT);
}

#[test]
fn a_question_for_the_status_pauses_the_session_until_a_report_is_there() {
    let mut bench = Bench::new();
    bench.say(FrameKind::Status, 3);
    assert!(bench.turn());
    for _ in 0..3 {
        assert!(bench.connection.is_paused() && !bench.connection.has_more());
        assert!(!bench.turn());
        assert_eq!(bench.answers(), 0);
        bench.daemon.shared.desk.build(&bench.daemon.shared);
        bench.turn();
        assert_eq!(bench.answers(), 1);
    }
    assert!(!bench.connection.is_paused());
}
