//! The journal of a node of a shared region, with real lenders and files; the test plays the server.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{KIND, TestJournal};
use netram_journal::error::JournalOpenError;
use netram_journal::paths::{JournalLayout, JournalPaths as JournalPlace};
use netram_journal::seal::DataKey;
use netram_journal::{FencedJournal, FencedJournalError, Journal, JournalConfig, OrphanJournal};
use netram_proto::journal::{PeerAnswer, RecoveryError, ServerAck, View, Voter};
use netram_proto::port::{AppendError, CommitTicket, Durability, LogError, RecordLog, WaitError};
use netram_proto::wire::ChainPoint;

const PATIENCE: Duration = Duration::from_secs(10);

fn config(place: &TestJournal, names: &[&str], members: usize) -> JournalConfig {
    JournalConfig {
        voter: Voter::Server,
        patience: PATIENCE,
        ..place.config(names, members)
    }
}

/// A configuration for reads that must be refused, which take the whole patience.
fn hasty(config: &JournalConfig) -> JournalConfig {
    JournalConfig {
        patience: Duration::from_secs(3),
        ..config.clone()
    }
}

/// The server's durable record of one node.
struct ServerEntry {
    view: View,
    merged_end: ChainPoint,
}

/// A node that has joined the region.
struct SharedNode {
    journal: Journal,
    server: ServerEntry,
}

impl SharedNode {
    fn open(place: &TestJournal, config: JournalConfig) -> SharedNode {
        let members = config.members;
        let (journal, _) = Journal::open(&place.journal(), config).expect("an empty journal opens");
        let kept = journal.server_ack().expect("it is shared").end;
        let view = journal.newest_view();
        let mut node = SharedNode {
            journal,
            server: ServerEntry {
                view,
                merged_end: kept,
            },
        };
        let deadline = Instant::now() + PATIENCE;
        while node
            .journal
            .status()
            .writer
            .lenders
            .iter()
            .filter(|lender| lender.member)
            .count()
            < members
        {
            assert!(Instant::now() < deadline, "members join");
            node.register();
            std::thread::sleep(Duration::from_millis(1));
        }
        node
    }

    /// Records the views that wait for the server.
    fn register(&mut self) {
        if let Some(version) = self.journal.view_for_server() {
            self.server.view = self.journal.newest_view();
            assert!(self.server.view.version >= version);
            self.keep(self.server.merged_end);
        }
    }

    fn keep(&mut self, end: ChainPoint) {
        self.server.merged_end = end;
        let version = self.server.view.version;
        self.journal.set_server_ack(ServerAck { end, version });
    }

    fn append(&self, payload: &str) -> (CommitTicket, ChainPoint) {
        let fill = &mut |into: &mut [u8]| into.copy_from_slice(payload.as_bytes());
        self.journal
            .append_linked(KIND, payload.len(), fill)
            .expect("append")
    }

    fn commit(&self, payload: &str) -> ChainPoint {
        let (ticket, end) = self.append(payload);
        let votes = self.journal.wait(ticket, Durability::Remote).expect("commit");
        assert!(votes.rule);
        end
    }

    /// Waits until the local disk has everything, which need not mean that it is acknowledged.
    fn synced(&self, end: ChainPoint) {
        let deadline = Instant::now() + PATIENCE;
        while self.journal.stable_link().lsn < end.lsn {
            assert!(Instant::now() < deadline, "the disk follows");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn remains(&self, root: &Path) -> FencedJournal {
        let key = JournalPlace::of(root, JournalLayout::Directory).key();
        FencedJournal {
            view: self.server.view.clone(),
            server_end: self.server.merged_end,
            key: DataKey::load(&key).expect("the server was given it"),
        }
    }
}

fn found(remains: &FencedJournal, config: &JournalConfig) -> Result<Vec<String>, FencedJournalError> {
    let found = remains.read(config)?;
    let last = found
        .records
        .last()
        .map_or(remains.server_end, |record| record.end);
    assert_eq!(last, found.end);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(found.records.iter().map(|record| text(&record.payload)).collect())
}

#[test]
fn the_disk_alone_acknowledges_nothing_and_the_server_does() {
    let place = TestJournal::new();
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let mut node = SharedNode::open(&place, config(&place, &[], 0));
    let (ticket, end) = node.append("a");
    node.synced(end);
    let state = node.journal.state();
    assert!(
        state.acked < end.lsn && state.stable < end.lsn,
        "it must not be applied to anything"
    );
    assert!(node.journal.needs_server());
    node.keep(end);
    for durability in [Durability::Remote, Durability::Disk] {
        let votes = node.journal.wait(ticket, durability).expect("kept");
        assert!(votes.disk && !votes.rule);
    }
}

#[test]
fn members_count_from_when_the_server_has_their_view() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let (journal, _) = Journal::open(&place.journal(), config(&place, &["a", "b"], 2)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while journal.view_for_server().is_none() {
        assert!(Instant::now() < deadline, "a view waits for the server");
        std::thread::sleep(Duration::from_millis(1));
    }
    let ticket = journal.append(KIND, 1, &mut |into| into.fill(1)).unwrap();
    // Both members and the disk have it.
    let all_have = |journal: &Journal| {
        let status = journal.status();
        journal.stable_link().lsn >= ticket.end
            && status
                .writer
                .lenders
                .iter()
                .filter(|it| it.held >= ticket.end)
                .count()
                > 0
    };
    while !all_have(&journal) {
        assert!(Instant::now() < deadline, "members take it");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(journal.state().acked < ticket.end);
    while journal.state().acked < ticket.end {
        assert!(Instant::now() < deadline, "it is acknowledged");
        if let Some(version) = journal.view_for_server() {
            let end = ChainPoint::default();
            journal.set_server_ack(ServerAck { end, version });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(journal.wait(ticket, Durability::Both).unwrap().rule);
    assert!(!journal.needs_server());
}

#[test]
fn a_window_of_records_that_the_server_lacks_blocks_appends_and_trims() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let mut node = SharedNode::open(
        &place,
        JournalConfig {
            window_bytes: 64 << 10,
            ..config(&place, &["a"], 1)
        },
    );
    let payload = "x".repeat(6000);
    let mut ends = Vec::new();
    for _ in 0..10 {
        ends.push(node.commit(&payload));
    }
    node.synced(ends[9]);
    assert_eq!(
        node.journal.trim(ends[0].lsn),
        Err(LogError::OutOfRange(ends[0].lsn))
    );
    std::thread::scope(|scope| {
        let journal = &node.journal;
        let appending = scope.spawn(|| journal.append(KIND, 6000, &mut |into| into.fill(2)));
        let deadline = Instant::now() + PATIENCE;
        while journal.status().window_stalls == 0 {
            assert!(Instant::now() < deadline, "the append waits");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!appending.is_finished());
        let version = node.server.view.version;
        journal.set_server_ack(ServerAck {
            end: ends[1],
            version,
        });
        let ticket = appending.join().expect("no panic").expect("there is room now");
        assert!(journal.wait(ticket, Durability::Remote).is_ok());
    });
    node.server.merged_end = ends[1];
    assert_eq!(node.journal.trim(ends[1].lsn), Ok(()));
    // The server reads the rest from the member, though the disk has it already.
    let remains = node.remains(&place.journal());
    let found = found(&remains, &config(&place, &[], 0)).expect("the member has it");
    assert_eq!(found.len(), 9);
}

#[test]
fn a_node_that_lives_on_is_fenced_and_everything_it_acknowledged_is_read() {
    let place = TestJournal::new();
    let lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let mut node = SharedNode::open(&place, config(&place, &["a", "b"], 2));
    let first = node.commit("kept");
    node.keep(first);
    let (acked, outcome) = std::thread::scope(|scope| {
        let node = &node;
        let committing = scope.spawn(move || {
            let mut acked = Vec::new();
            for number in 0.. {
                let payload = format!("{number}");
                let fill = &mut |into: &mut [u8]| into.copy_from_slice(payload.as_bytes());
                let ticket = match node.journal.append(KIND, payload.len(), fill) {
                    Ok(ticket) => ticket,
                    Err(error) => return (acked, Err(error)),
                };
                match node.journal.wait(ticket, Durability::Remote) {
                    Ok(_) => acked.push(payload),
                    Err(WaitError::Fenced { .. }) => return (acked, Ok(())),
                    Err(error) => panic!("{error}"),
                }
            }
            unreachable!("a fenced node comes to an end")
        });
        let deadline = Instant::now() + PATIENCE;
        while node.journal.state().acked <= first.lsn.plus(10_000) {
            assert!(Instant::now() < deadline, "it commits");
            std::thread::sleep(Duration::from_millis(1));
        }
        let remains = node.remains(&place.journal());
        let config = config(&place, &[], 0);
        let all = found(&remains, &config).expect("both members answer");
        let (acked, outcome) = committing.join().expect("no panic");
        assert!(all.len() >= acked.len() && all[..acked.len()] == acked[..]);
        // Reads again, like a server that was interrupted; one member suffices then. A record in doubt may be
        // at either member only, or have reached one that the first reading did not wait for.
        let [a, _b] = lenders;
        drop(a);
        let again = found(&remains, &config).expect("one of two");
        assert!(again.len() >= acked.len());
        assert!(all.starts_with(&again) || again.starts_with(&all));
        assert_eq!(remains.forget(&[], &hasty(&config)).len(), 1);
        let refused = found(&remains, &hasty(&config));
        assert!(
            matches!(
                &refused,
                Err(FencedJournalError::Refused(RecoveryError::Missing { missing, .. }, _))
                    if missing.iter().any(|(_, answer)| *answer == PeerAnswer::Amnesiac)
            ),
            "{refused:?}"
        );
        (acked, outcome)
    });
    assert!(!acked.is_empty());
    assert!(matches!(outcome, Ok(()) | Err(AppendError::Fenced { .. })));
    assert!(node.journal.fenced().is_some());
}

#[test]
fn a_read_from_too_few_members_is_refused_with_names_and_loss_needs_consent() {
    let place = TestJournal::new();
    let [a, b] = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let node = SharedNode::open(&place, config(&place, &["a", "b"], 2));
    node.commit("a");
    let remains = node.remains(&place.journal());
    let config = config(&place, &[], 0);
    let addresses: Vec<String> = remains
        .view
        .members
        .iter()
        .map(|member| member.address.clone())
        .collect();
    drop((a, b));
    let said = found(&remains, &hasty(&config))
        .expect_err("no member answers")
        .to_string();
    assert!(
        addresses.iter().all(|address| said.contains(address.as_str())),
        "{said}"
    );
    let accepting = JournalConfig {
        accept_loss: true,
        ..hasty(&config)
    };
    let found = remains.read(&accepting).expect("loss is accepted");
    assert!(found.records.is_empty() && found.loss_accepted.is_some());
}

#[test]
fn a_restarted_node_offers_its_old_records_before_or_after_the_server_fences_it() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let shared = config(&place, &["a", "b"], 2);
    let mut node = SharedNode::open(&place, shared.clone());
    let kept = node.commit("kept");
    node.keep(kept);
    let end = node.commit("left");
    let remains = node.remains(&place.journal());
    node.journal.close().expect("the disk is sound");
    match Journal::open(&place.journal(), shared.clone()) {
        Err(JournalOpenError::Unmerged { end: at, .. }) => assert_eq!(at, end.lsn),
        other => panic!("{:?}", other.map(|_| ())),
    }
    let (left, _) = OrphanJournal::open(&place.journal(), &shared).expect("the node was not fenced");
    let mut payloads = Vec::new();
    let each = &mut |record: netram_proto::port::Record<'_>| {
        payloads.push(String::from_utf8_lossy(record.payload).into_owned());
        true
    };
    assert_eq!(left.read(kept.lsn, each), Ok(end.lsn));
    assert_eq!(
        (payloads.as_slice(), left.end()),
        (&[String::from("left")][..], end)
    );
    // The server does not know of it and fences the node; its members still have everything.
    assert_eq!(found(&remains, &shared).expect("both answer"), ["left"]);
    drop(left);
    assert!(
        matches!(
            Journal::open(&place.journal(), shared.clone()),
            Err(JournalOpenError::Unmerged { .. })
        ),
        "its view has no members, and the log is not empty"
    );
    let (left, _) = OrphanJournal::open(&place.journal(), &shared).expect("no member need be asked");
    left.merged().expect("the disk is sound");
    assert!(Journal::open(&place.journal(), shared).is_ok());
}

#[test]
fn a_node_restarted_after_it_was_fenced_learns_it() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a"), place.lender("b")];
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let shared = config(&place, &["a", "b"], 2);
    let node = SharedNode::open(&place, shared.clone());
    node.commit("a");
    let remains = node.remains(&place.journal());
    node.journal.close().expect("the disk is sound");
    assert_eq!(found(&remains, &shared).expect("both answer"), ["a"]);
    let (seen, _) = remains.view.fence();
    for _ in 0..2 {
        match OrphanJournal::open(&place.journal(), &shared) {
            Err(JournalOpenError::NodeFenced { seen: by, .. }) => assert_eq!(by, seen),
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn a_node_that_leaves_releases_its_members() {
    let place = TestJournal::new();
    let _lenders = [place.lender("a")];
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let shared = config(&place, &["a"], 1);
    let mut node = SharedNode::open(&place, shared.clone());
    let end = node.commit("a");
    node.synced(end);
    node.keep(end);
    node.journal.trim(end.lsn).expect("the server keeps it");
    let remains = node.remains(&place.journal());
    assert_eq!(node.journal.leave(), Ok(true));
    let mut node = SharedNode::open(&place, shared);
    assert!(node.server.merged_end == end && remains.server_end == end);
    let end = node.commit("b");
    assert_eq!(node.journal.leave(), Ok(false), "the server lacks it");
    node = match OrphanJournal::open(&place.journal(), &config(&place, &["a"], 1)) {
        Ok((left, _)) => {
            assert_eq!(left.end(), end);
            left.merged().expect("the disk is sound");
            SharedNode::open(&place, config(&place, &["a"], 1))
        }
        Err(error) => panic!("{error}"),
    };
    node.commit("c");
}

#[test]
fn after_the_server_fences_a_node_nothing_is_acknowledged() {
    let place = TestJournal::new();
    let _lender = place.lender("a");
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let mut node = SharedNode::open(&place, config(&place, &["a"], 1));
    let acked = node.commit("a");
    node.journal.set_fenced_by_server();
    assert!(node.journal.append(KIND, 1, &mut |_| ()).is_err());
    node.keep(acked);
    assert_eq!(node.journal.state().acked, acked.lsn);
}
