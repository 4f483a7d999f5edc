//! Turns of one session.

use std::sync::Arc;
use std::time::Duration;

use netram_proto::id::JournalId;
use netram_transport::{HandshakeProgress, Listener, NetAddress, Security, Waker, connect};

use super::*;
use crate::config::LenderConfig;
use crate::journal::ShardJournals;
use crate::store::WindowStore;

const ID: JournalId = JournalId(7);

/// A shard's state, a session that is bound to a journal, and the client's end of its link.
struct Bench {
    _directory: tempfile::TempDir,
    shared: Arc<DaemonState>,
    journals: ShardJournals,
    connection: Connection,
    client: Link,
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
        let config = LenderConfig {
            memory: 64 * 1024,
            chunk_bytes: 4096,
            journals_max: 1,
            store: Some(directory.path().join("store")),
            ..LenderConfig::default()
        };
        let (store, _) = WindowStore::open(&config.store_config()).unwrap();
        let wakers = (0..3).map(|_| Waker::new().unwrap()).collect();
        let addresses = (Vec::new(), Vec::new());
        let shared = Arc::new(DaemonState::new(config, store, None, addresses, wakers));
        let mut journals = ShardJournals::new(Arc::clone(&shared), Vec::new());
        let address = NetAddress::Unix(directory.path().join("socket"));
        let (client, link) = link_pair(&address);
        let mut session = LenderSession::default();
        let id = ID.0.to_le_bytes();
        let header = FrameHeader::new(FrameKind::Bind);
        session.handle(&Frame { header, body: &id }).unwrap();
        let visit = ClientVisit::begin(shared.clients.account(None)).unwrap();
        let Ok(index) = journals.bind(ID, &visit.account) else {
            panic!("the store has a slot")
        };
        let permit = shared.permit().unwrap();
        let mut greeting = Greeting::default();
        greeting.session = session;
        let connection = Connection::new(
            link,
            greeting,
            visit,
            (index, shared.incarnation()),
            permit,
            Instant::now(),
        );
        Bench {
            _directory: directory,
            shared,
            journals,
            connection,
            client,
        }
    }

    fn turn(&mut self) -> bool {
        let turn = TurnContext {
            now: Instant::now(),
            shard: 0,
            shared: &self.shared,
            counters: &self.shared.counters[0],
        };
        let journal = self.journals.at(self.connection.index);
        self.connection.turn(journal, &turn).unwrap().received
    }

    /// Sends `count` frames of this kind, as many as fit one read of the socket.
    fn say(&mut self, kind: FrameKind, count: usize) {
        let frame = FrameHeader::new(kind).encode(0);
        (0..count).for_each(|_| self.client.queue(&[&frame]).unwrap());
        assert!(self.client.flush().unwrap(), "the socket takes them all");
    }

    /// Number of frames that the client has got.
    fn answers(&mut self) -> usize {
        let mut answers = 0;
        while self.client.receive().unwrap().is_some() {
            answers += 1;
        }
        answers
    }
}

pub(crate) fn link_pair(address: &NetAddress) -> (Link, Link) {
    let listener = Listener::bind(address, Security::Insecure).unwrap();
    let there = address.clone();
    let patience = Duration::from_secs(20);
    let client = std::thread::spawn(move || connect(&there, &Security::Insecure, patience).unwrap());
    let mut pending = loop {
        match listener.accept(Instant::now()).unwrap() {
            Some(pending) => break pending,
            None => std::thread::yield_now(),
        }
    };
    loop {
        match pending.advance(Instant::now()).unwrap() {
            HandshakeProgress::Done(link) => return (client.join().unwrap(), link),
            HandshakeProgress::NeedRead => std::thread::yield_now(),
        }
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
        bench.shared.desk.build(&bench.shared);
        bench.turn();
        assert_eq!(bench.answers(), 1);
    }
    assert!(!bench.connection.is_paused());
}
