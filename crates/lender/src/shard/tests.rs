//! A shard without its thread: a test serves its sessions by hand.

use std::sync::mpsc::{Sender, channel};

use netram_transport::{NetAddress, Waker};

use super::*;
use crate::accept::ClientVisit;
use crate::config::LenderConfig;
use crate::connection::tests::link_pair;
use crate::store::WindowStore;

struct Bench {
    directory: tempfile::TempDir,
    shard: Shard,
    _arrivals: Sender<SessionArrival>,
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
        let config = LenderConfig {
            memory: 64 * 1024,
            chunk_bytes: 4096,
            journals_max: 4,
            store: Some(directory.path().join("store")),
            ..LenderConfig::default()
        };
        let (store, _) = WindowStore::open(&config.store_config()).unwrap();
        let wakers = (0..3).map(|_| Waker::new().unwrap()).collect();
        let addresses = (Vec::new(), Vec::new());
        let shared = Arc::new(DaemonState::new(config, store, None, addresses, wakers));
        let journals = ShardJournals::new(Arc::clone(&shared), Vec::new());
        let (arrivals, inbox) = channel();
        Bench {
            directory,
            shard: Shard::new(0, shared, Poller::new().unwrap(), inbox, journals),
            _arrivals: arrivals,
        }
    }

    /// Binds a session. Returns its index at the shard, and the client's end.
    fn bind(&mut self, journal: u128) -> (usize, Link) {
        let socket = self.directory.path().join("socket");
        let (mut client, link) = link_pair(&NetAddress::Unix(socket));
        let mut greeting = Greeting::default();
        let header = FrameHeader::new(FrameKind::Bind);
        let body = &journal.to_le_bytes();
        let bind = netram_proto::wire::Frame { header, body };
        greeting.session.handle(&bind).unwrap();
        let account = self.shard.shared.clients.account(None);
        greeting.visit = Some(ClientVisit::begin(account).unwrap());
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

/// Sends as many frames of this kind as the link takes, up to `count`.
fn say(client: &mut Link, kind: FrameKind, count: usize) {
    let frame = FrameHeader::new(kind).encode(0);
    (0..count).all(|_| client.queue(&[&frame]).is_ok());
    client.flush().unwrap();
}

/// Number of frames that the client has got.
fn answers(client: &mut Link) -> usize {
    let mut answers = 0;
    while client.receive().unwrap().is_some() {
        answers += 1;
    }
    answers
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
