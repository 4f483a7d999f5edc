//! Each lender that does not count has a reason, distinct from the others.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_clients::{ClientLimits, ClientRegistry, ClientResource, change_file};
use netram_journal::{Journal, JournalConfig, JournalOpenError, LinkFailure, UncountedReason};
use netram_lender::{Lender, LenderConfig};
use netram_proto::port::Durability;
use netram_proto::wire::RefusalReason;
use netram_transport::{ClusterKey, NetAddress, Security};

use crate::common::{TestJournal, commit, copy_of};

const LOG_BYTES: u64 = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(8);

fn lender(place: &TestJournal, name: &str, change: impl FnOnce(&mut LenderConfig)) -> Lender {
    let mut config = LenderConfig {
        name: name.to_owned(),
        listen: vec![place.address(name)],
        security: place.security.clone(),
        memory: 64 << 20,
        store: Some(place.directory.path().join(format!("{name}.mem"))),
        ..LenderConfig::default()
    };
    change(&mut config);
    Lender::start(config).expect("a lender starts")
}

/// Waits until the only lender does not count for an expected reason, and returns the message.
fn wait_for_reason(journal: &Journal, expected: impl Fn(&UncountedReason) -> bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = journal.status();
        match &status.reasons[..] {
            [Some(reason)] if expected(reason) => {
                let why = status
                    .quorum_error()
                    .expect("commits wait for the disk")
                    .to_string();
                assert!(why.contains(&reason.to_string()), "{why}");
                return reason.to_string();
            }
            reasons => assert!(Instant::now() < deadline, "{reasons:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A journal whose only lender does not count.
fn alone(place: &TestJournal, change: impl FnOnce(&mut JournalConfig)) -> Journal {
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let mut config = place.config(&["a"], 1);
    change(&mut config);
    Journal::open(&place.journal(), config).unwrap().0
}

#[test]
fn nothing_listens() {
    let place = TestJournal::new();
    let journal = alone(&place, |_| ());
    let why = wait_for_reason(&journal, |why| {
        *why == UncountedReason::Unreachable(LinkFailure::NothingListens)
    });
    assert_eq!(why, "nothing listens there: start the lender");
}

#[test]
fn nothing_listens_at_a_port() {
    let place = TestJournal::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", free.local_addr().unwrap());
    drop(free);
    let journal = alone(&place, |config| config.lenders = vec![address.parse().unwrap()]);
    wait_for_reason(&journal, |why| {
        *why == UncountedReason::Unreachable(LinkFailure::NothingListens)
    });
}

#[test]
fn the_name_has_no_address() {
    let place = TestJournal::new();
    // A label too long for any name server to be asked.
    let name = format!("{}.invalid", "a".repeat(64));
    let address: NetAddress = format!("tcp://{name}:7420").parse().unwrap();
    let journal = alone(&place, |config| config.lenders = vec![address]);
    let why = wait_for_reason(&journal, |why| {
        matches!(why, UncountedReason::Unreachable(LinkFailure::NameNotFound(_)))
    });
    assert!(why.contains(&name), "{why}");
}

#[test]
fn another_key() {
    let place = TestJournal::new();
    let _lender = lender(&place, "a", |_| ());
    let journal = alone(&place, |config| {
        config.security = Security::Key(ClusterKey::generate())
    });
    wait_for_reason(&journal, |why| {
        *why == UncountedReason::Unreachable(LinkFailure::WrongKey)
    });
}

#[test]
fn a_key_on_one_side_only() {
    let place = TestJournal::new();
    let _lender = lender(&place, "a", |_| ());
    let journal = alone(&place, |config| config.security = Security::Insecure);
    wait_for_reason(&journal, |why| {
        *why == UncountedReason::Unreachable(LinkFailure::KeyRequired)
    });
}

#[test]
fn another_program_listens() {
    let place = TestJournal::new();
    let listener = UnixListener::bind(place.directory.path().join("a.sock")).unwrap();
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 64]);
            // The connection may have been closed in the meantime.
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    let journal = alone(&place, |_| ());
    wait_for_reason(&journal, |why| {
        *why == UncountedReason::Unreachable(LinkFailure::NotNetram)
    });
}

/// Takes three seconds, the limit of a connection attempt.
#[test]
fn no_answer() {
    let place = TestJournal::new();
    // The listener accepts connections and stays silent, like a stopped process.
    let _listener = UnixListener::bind(place.directory.path().join("a.sock")).unwrap();
    let journal = alone(&place, |_| ());
    wait_for_reason(&journal, |why| {
        *why == UncountedReason::Unreachable(LinkFailure::NoAnswer)
    });
}

/// A journal that occupies another client's lender, under the same key.
fn neighbour(place: &TestJournal) -> (TestJournal, Journal) {
    let first = TestJournal {
        directory: tempfile::tempdir_in("/dev/shm").unwrap(),
        security: place.security.clone(),
    };
    Journal::create(&first.journal(), LOG_BYTES).unwrap();
    let (journal, _) = first.open(place.config(&["a"], 1));
    (first, journal)
}

#[test]
fn no_room() {
    let place = TestJournal::new();
    let _lender = lender(&place, "a", |config| config.memory = 3 << 20);
    let _neighbour = neighbour(&place);
    let journal = alone(&place, |config| config.window_bytes = 3 << 20);
    let refused = |why: &UncountedReason| matches!(why, UncountedReason::Refused(refused) if refused.reason == RefusalReason::NoRoom);
    let why = wait_for_reason(&journal, refused);
    assert!(why.starts_with("no room: it has "), "{why}");
}

#[test]
fn over_the_quota() {
    let place = TestJournal::new();
    let _lender = lender(&place, "a", |config| config.memory = 1 << 20);
    let journal = alone(&place, |config| config.window_bytes = 4 << 20);
    let refused = |why: &UncountedReason| matches!(why, UncountedReason::Refused(refused) if refused.reason == RefusalReason::OverQuota);
    let why = wait_for_reason(&journal, refused);
    assert!(
        why.contains("one journal gets 1048576 bytes there, and 4194304 are asked for"),
        "{why}"
    );
}

#[test]
fn no_slot() {
    let place = TestJournal::new();
    let _lender = lender(&place, "a", |config| config.journals_max = 1);
    let _neighbour = neighbour(&place);
    let journal = alone(&place, |_| ());
    let refused = |why: &UncountedReason| matches!(why, UncountedReason::Refused(refused) if refused.reason == RefusalReason::TooManyJournals && refused.limit == 1);
    let why = wait_for_reason(&journal, refused);
    assert!(why.starts_with("no slot: "), "{why}");
}

/// The file of clients gives the name of this program's key too little; what raises it is said.
#[test]
fn over_the_limit_of_its_name() {
    let place = TestJournal::new();
    let Security::Key(key) = &place.security else {
        panic!("the journal has a key")
    };
    let file = place.directory.path().join("clients");
    let write = |limit: u64| {
        let mut limits = ClientLimits::default();
        limits.set(ClientResource::Memory, Some(limit));
        let _ = std::fs::remove_file(&file);
        change_file(&file, |file| file.add("db", key, &limits)).unwrap();
    };
    write(1 << 20);
    let clients = Arc::new(ClientRegistry::read(&file).unwrap());
    let lender = lender(&place, "a", |config| config.clients = Some(clients));
    let journal = alone(&place, |config| config.window_bytes = 4 << 20);
    let refused = |why: &UncountedReason| matches!(why, UncountedReason::Refused(refused) if refused.reason == RefusalReason::OverClientLimit);
    let why = wait_for_reason(&journal, refused);
    assert!(why.contains("may have memory = 1048576 there"), "{why}");
    commit(&journal, b"the disk has it", Durability::Disk);
    write(8 << 20);
    lender.reload_clients().unwrap();
    journal.wait_for_members(2 * PATIENCE).unwrap();
    commit(&journal, b"and now the lender", Durability::Remote);
}

/// A recovery that fails because of a wrong key must name the key.
#[test]
fn a_refused_recovery_states_why_lenders_did_not_answer() {
    let place = TestJournal::new();
    let _lender = lender(&place, "a", |_| ());
    Journal::create(&place.journal(), LOG_BYTES).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(60),
        ..place.config(&["a"], 1)
    };
    let (journal, _) = place.open(config);
    commit(&journal, b"a moment ago", Durability::Remote);
    let copy = copy_of(&place);
    drop(journal);
    let config = JournalConfig {
        security: Security::Key(ClusterKey::generate()),
        ..place.config(&["a"], 1)
    };
    let refused = Journal::open(&copy, config).map(drop).unwrap_err();
    let JournalOpenError::Refused { away, .. } = &refused else {
        panic!("{refused}")
    };
    assert_eq!(
        away.0[..],
        [(place.address("a").to_string(), LinkFailure::WrongKey)]
    );
    assert!(
        refused.to_string().contains("cluster key is not ours"),
        "{refused}"
    );
}
