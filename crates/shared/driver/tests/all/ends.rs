//! The ends of scripted nodes: by silence, by an offer of their journal, or with a journal that cannot be
//! read.

use std::time::Duration;

use crate::common::history::BYTES;
use crate::common::script::{Bytes, ScriptedPeer};
use crate::common::served_region::{LONG, ServedRegion};
use crate::common::until;
use netram_proto::id::{Incarnation, JournalId};
use netram_proto::journal::{View, ViewMember};
use netram_shared::server::RegionStore;
use netram_shared::server::serve::control::{self, AskError};
use netram_shared_machine::lock::ToCache;
use netram_shared_machine::message::{OrphanJournalId, RecordOutcome};
use netram_shared_machine::{LockMode, LockVersion, NodeId, RecordNumber, ToNode, ToServer};

#[test]
fn a_silent_node_is_fenced_and_its_locks_are_granted() {
    let place = ServedRegion::new(Duration::from_millis(500));
    let (mut one, mut other) = (place.node(1), place.node(2));
    one.acquire(0);
    one.write(0, 1, b"a");
    other.ask(0, LockMode::Exclusive);
    let (_, version) = other.granted(0);
    assert_eq!(version, LockVersion(1), "what it had sent counts");
    until("it is gone", || place.report_of(one.id).is_none());
    other.say(&ToServer::Outcome {
        node: one.id,
        number: RecordNumber(2),
    });
    let fate = other.expect("Fate", |message| match message {
        ToNode::Outcome { fate, .. } => Some(*fate),
        _ => None,
    });
    assert_eq!(fate, RecordOutcome::Aborted);
    one.pings = false;
    one.expect("Fenced", |message| {
        matches!(message, ToNode::Fenced).then_some(())
    });
    one.expect_end();
}

#[test]
fn an_offered_journal_is_merged_without_its_members() {
    let place = ServedRegion::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    one.acquire(0);
    one.write(0, 1, b"a");
    assert_eq!(other.next_record().1, RecordNumber(1));
    let lost = one.record(0, 2, b"b");
    // The node's link stays open: otherwise its members, of which it has none, would be read at once.
    let (old, journal) = (one.id, one.journal);
    other.ask(0, LockMode::Exclusive);
    let mut heir = place.node(3);
    let last = RecordNumber(2);
    heir.say(&ToServer::OfferOrphan {
        old: OrphanJournalId { node: old, journal },
        last,
    });
    let wanted = |message: &ToNode<Bytes>| match message {
        ToNode::OrphanWanted { from, .. } => Some(*from),
        _ => None,
    };
    assert_eq!(heir.expect("Wanted", wanted), Some(last));
    heir.say(&ToServer::OrphanRecord {
        node: old,
        number: last,
        payload: lost.clone(),
    });
    assert_eq!(other.next_record(), (old, last, lost));
    assert_eq!(other.granted(0).1, LockVersion(2));
    assert_eq!(heir.expect("Wanted", wanted), None);
}

#[test]
fn an_unreadable_journal_keeps_its_locks_and_is_reported() {
    let place = ServedRegion::new(Duration::from_millis(500));
    let nowhere = "tcp://127.0.0.1:1";
    let view = View {
        counting: true,
        members: vec![ViewMember {
            incarnation: Incarnation(7),
            join: None,
            address: nowhere.to_owned(),
            domain: "a".to_owned(),
        }],
        ..View::first(JournalId(1))
    };
    let (mut one, _) = ScriptedPeer::join_with(place.address(), &place.security, place.segment, view);
    one.whole(BYTES);
    one.acquire(0);
    let (old, journal) = (one.id, one.journal);
    let mut other = place.node(2);
    other.ask(0, LockMode::Exclusive);
    drop(one);
    // Its own pings keep this node alive.
    let stuck = loop {
        other.say(&ToServer::Outcome {
            node: old,
            number: RecordNumber(1),
        });
        let fate = other.expect("Fate", |message| match message {
            ToNode::Outcome { fate, .. } => Some(*fate),
            ToNode::Lock(ToCache::Grant { .. }) => panic!("nobody knows what it had acknowledged"),
            _ => None,
        });
        assert_eq!(fate, RecordOutcome::Open);
        let report = place.report_of(old).unwrap();
        if let Some(stuck) = report.stuck {
            assert_eq!(report.standing, "stuck");
            assert!(report.why.is_some());
            break stuck;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(stuck.lenders[0].contains(nowhere), "{stuck:?}");
    let report = place.serving().report().unwrap();
    assert_eq!((report.waited_for_count, report.waited_for[0].lock), (1, 0));
    assert_eq!(report.waited_for[0].holders[0].node, old.0);
    // The node's machine comes back, and has no more records.
    let mut heir = place.stranger();
    heir.say(&ToServer::OfferOrphan {
        old: OrphanJournalId { node: old, journal },
        last: RecordNumber(0),
    });
    assert_eq!(other.granted(0).1, LockVersion(0));
}

/// The node's records were read, and the first needs a version that was never made. That is certain, so it is
/// reported, and the operator decides.
#[test]
fn an_unmergeable_record_is_reported_and_given_up_by_the_operator() {
    let mut place = ServedRegion::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    one.acquire(0);
    let jumps = one.record(0, 5, b"from nowhere");
    let (old, journal) = (one.id, one.journal);
    other.ask(0, LockMode::Exclusive);
    assert!(matches!(
        control::accept_loss(&place.root(), old),
        Err(AskError::Refused(_))
    ));
    let mut heir = place.stranger();
    heir.say(&ToServer::OfferOrphan {
        old: OrphanJournalId { node: old, journal },
        last: RecordNumber(1),
    });
    heir.expect("Wanted", |message| {
        matches!(message, ToNode::OrphanWanted { .. }).then_some(())
    });
    heir.say(&ToServer::OrphanRecord {
        node: old,
        number: RecordNumber(1),
        payload: jumps,
    });
    let mut stuck = None;
    until("there is a verdict", || {
        stuck = place.report_of(old).and_then(|report| report.stuck);
        stuck.is_some()
    });
    let stuck = stuck.unwrap();
    assert!(stuck.reason.contains("needs lock 0 at version 4"), "{stuck:?}");
    assert_eq!(control::accept_loss(&place.root(), old).unwrap(), Some(stuck));
    assert_eq!(other.granted(0).1, LockVersion(0));
    place.stop();
    assert_eq!(control::accept_loss(&place.root(), NodeId(9)).unwrap(), None);
    let (store, _) = RegionStore::open(&place.root(), || ()).unwrap();
    let gone = store.table().gone.iter().find(|gone| gone.id == old).unwrap();
    assert!(gone.loss_accepted && gone.last == RecordNumber(0));
}
