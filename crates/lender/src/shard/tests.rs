//! A shard without its thread: a test serves its sessions by hand.

use std::sync::mpsc::{Sender, channel};

use super::*;
use crate::test_bench::{TestDaemon, answers, say};

struct Bench {
    daemon: TestDaemon,
    shard: Shard,
    _arrivals: Sender<ShardMessage>,
}

impl Bench {
    fn new() -> Bench {
        let daemon = TestDaemon::new(4);
        let shared = Arc::clone(&daemon.shared);
        let journals = ShardJournals::new(Arc::clone(&shared), Vec::new());
        let (arrivals, inbox) = channel();
        Bench {
            daemon,
            shard: Shard::new(0, shared, Poller::new().unwrap(), inbox, journals),
            _arrivals: arrivals,
        }
    }

    /// Binds a session. Returns its index at the shard, and the client's end.
    fn bind(&mut self, journal: u128) -> (usize, Link) {
        let (mut client, link) = self.daemon.link_pair();
        let greeting = self.daemon.greet(JournalId(journal));
        let index = self.shard.vacant.last().copied();
        let index = index.unwrap_or(self.shard.connections.len());
        self.shard.arrive(SessionArrival {
            link,
            greeting,
            journal: JournalId(journal),
            permit: self.shard.shared.permit().unwrap(),
        });
        assert_eq!(answers(&mut client), 1, "bound");
        (index, client)
    }

    fn rests(&mut self, index: usize) -> bool {
        let place = self.shard.connections[index].as_ref().unwrap().index;
        self.shard.journals.at(place).rests
    }

    /// Serves `noisy`, whose client asks without end, beside appends of `honest`, until its journal rests.
    fn flood(&mut self, noisy: (usize, &mut Link), honest: (usize, &mut Link)) {
        for _ in 0..1_000_000 {
            say(honest.1, FrameKind::Append, 1);
            self.shard.now = Instant::now();
            self.shard.serve(honest.0);
            answers(honest.1);
            say(noisy.1, FrameKind::Ping, 100);
            self.shard.serve(noisy.0);
            answers(noisy.1);
            if self.rests(noisy.0) {
                return;
            }
        }
        panic!("a journal whose client asks without end never rests");
    }
}

#[test]
fn a_journal_that_asks_without_end_rests_with_all_its_sessions_and_others_are_served() {
    let mut bench = Bench::new();
    let (honest, mut honest_link) = bench.bind(1);
    let (noisy, mut noisy_link) = bench.bind(2);
    let (beside, mut beside_link) = bench.bind(2);
    bench.flood((noisy, &mut noisy_link), (honest, &mut honest_link));
    say(&mut noisy_link, FrameKind::Ping, 1000);
    say(&mut beside_link, FrameKind::Ping, 1);
    for index in [noisy, beside, noisy] {
        assert!(!bench.shard.serve(index), "nothing is read from it");
        let session = bench.shard.connections[index].as_ref().unwrap();
        assert!(session.is_paused() && !session.has_more());
    }
    assert_eq!((answers(&mut noisy_link), answers(&mut beside_link)), (0, 0));
    say(&mut honest_link, FrameKind::Append, 1);
    assert!(bench.shard.serve(honest) && answers(&mut honest_link) == 1);

    bench.shard.now = Instant::now() + Duration::from_secs(1);
    assert!(bench.shard.end_rests());
    assert!(answers(&mut noisy_link) > 0);
    // That turn may have made the journal rest again, and then the other session is the first to be served.
    bench.shard.now += Duration::from_secs(1);
    bench.shard.end_rests();
    assert_eq!(answers(&mut beside_link), 1);
}

#[test]
fn a_journal_alone_never_rests() {
    let mut bench = Bench::new();
    let (noisy, mut noisy_link) = bench.bind(2);
    for _ in 0..500 {
        say(&mut noisy_link, FrameKind::Ping, 100);
        bench.shard.serve(noisy);
        answers(&mut noisy_link);
        assert!(!bench.rests(noisy));
    }
}

/// The journal's place is another's when its rest ends.
#[test]
fn a_session_that_ends_while_it_rests_leaves_nothing() {
    let mut bench = Bench::new();
    let (honest, mut honest_link) = bench.bind(1);
    let (noisy, mut noisy_link) = bench.bind(2);
    bench.flood((noisy, &mut noisy_link), (honest, &mut honest_link));
    bench.shard.serve(noisy);
    bench.shard.end(noisy, SessionEnd::Idle);
    let (next, mut next_link) = bench.bind(3);
    assert_eq!(next, noisy, "it has the place of the one that ended");
    say(&mut next_link, FrameKind::Ping, 1);
    assert!(bench.shard.serve(next) && answers(&mut next_link) == 1);
    bench.shard.now = Instant::now() + Duration::from_secs(1);
    bench.shard.end_rests();
    assert_eq!(bench.shard.resting.len(), 0);
}
