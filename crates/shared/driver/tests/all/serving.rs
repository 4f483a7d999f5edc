//! A served region with scripted nodes: who receives which record and lock.

use std::time::Duration;

use crate::common::history::{BYTES, SPAN};
use crate::common::script::ScriptedPeer;
use crate::common::served_region::{LONG, ServedRegion};
use netram_shared::server::serve::control;
use netram_shared::server::{RegionServeError, ServeConfig, ServingRegion};
use netram_shared_machine::lock::{ToCache, TokenClaim};
use netram_shared_machine::{LockId, LockMode, LockVersion, RecordNumber, ToNode, ToServer};

#[test]
fn a_record_arrives_before_its_lock_is_granted() {
    let place = ServedRegion::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    let (grant, version) = one.acquire(3);
    assert_eq!(version, LockVersion(0));
    let written = one.write(3, 1, b"drawn");
    assert_eq!(other.next_record(), (one.id, RecordNumber(1), written));
    other.ask(3, LockMode::Exclusive);
    let recalled = one.expect("Recall", |message| match message {
        ToNode::Lock(ToCache::Recall { lock, grant, .. }) => Some((*lock, *grant)),
        _ => None,
    });
    assert_eq!(recalled, (LockId(3), grant));
    let again = one.write(3, 2, b"again");
    one.release(3, grant, LockVersion(2));
    assert_eq!(other.next_record(), (one.id, RecordNumber(2), again));
    let (later, version) = other.granted(3);
    assert!(later > grant);
    assert_eq!(version, LockVersion(2));
    one.kept(RecordNumber(2));

    // A node that joins now gets the record in its pages, and is told so.
    let (mut late, joined) = place.join(3);
    assert_eq!(joined.applied, [(one.id, RecordNumber(2))]);
    assert_eq!(joined.versions, [(LockId(3), LockVersion(2))]);
    assert_eq!(joined.opening.bytes, BYTES);
    let region = late.whole(BYTES);
    let start = 3 * SPAN as usize;
    assert_eq!(region[start..start + 5], *b"again");
    assert!(region[..start].iter().all(|byte| *byte == 0));

    let report = control::ask(&place.root()).unwrap().unwrap();
    assert_eq!((report.position, report.nodes.len()), (2, 3));
    assert_eq!(report.addresses, [place.address().to_string()]);
    let first = &report.nodes[0];
    assert_eq!((first.merged, first.standing.as_str()), (2, "live"));
}

#[test]
fn all_nodes_receive_records_in_one_order() {
    let place = ServedRegion::new(LONG);
    let mut nodes: Vec<ScriptedPeer> = (1..=3).map(|journal| place.node(journal)).collect();
    for (index, node) in nodes.iter_mut().enumerate() {
        node.acquire(index as u32);
    }
    const RECORDS: u64 = 200;
    for version in 1..=RECORDS {
        for (index, node) in nodes.iter_mut().enumerate() {
            node.write(index as u32, version, &version.to_le_bytes());
        }
    }
    for node in &mut nodes {
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..2 * RECORDS {
            let (whose, number, _) = node.next_record();
            let before = seen.insert(whose, number).unwrap_or_default();
            assert_eq!(number, before.next(), "of node {whose}");
            assert_ne!(whose, node.id);
        }
    }
    // Their durability may have been reported in between; that of one more record has not.
    for (index, node) in nodes.iter_mut().enumerate() {
        node.write(index as u32, RECORDS + 1, b"the last");
        node.kept(RecordNumber(RECORDS + 1));
    }
}

#[test]
fn a_node_continues_over_another_link() {
    let place = ServedRegion::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    let (grant, _) = one.acquire(0);
    one.write(0, 1, b"a");
    assert_eq!(other.next_record().1, RecordNumber(1));
    let merged = one.resume(place.address(), &place.security, Vec::new());
    assert_eq!(merged, RecordNumber(1));
    // One record was never sent over the former link.
    one.write(0, 2, b"b");
    one.say(&ToServer::Claims(vec![TokenClaim {
        lock: LockId(0),
        grant,
        hold: LockMode::Exclusive,
        version: LockVersion(2),
    }]));
    assert_eq!(other.next_record().1, RecordNumber(2));
    one.write(0, 3, b"c");
    assert_eq!(other.next_record().1, RecordNumber(3));
    // The other node had received two records when its link broke.
    let of_one = vec![(one.id, RecordNumber(2))];
    other.resume(place.address(), &place.security, of_one);
    assert_eq!(other.next_record().1, RecordNumber(3));
    assert!(place.report_of(one.id).unwrap().peer.is_some());
}

#[test]
fn a_restarted_server_continues_where_it_stopped() {
    let mut place = ServedRegion::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    let (grant, _) = one.acquire(0);
    one.write(0, 1, b"a");
    one.kept(RecordNumber(1));
    place.stop();
    assert!(control::ask(&place.root()).unwrap().is_none());
    place.start();
    assert_eq!(
        one.resume(place.address(), &place.security, Vec::new()),
        RecordNumber(1)
    );
    one.say(&ToServer::Claims(vec![TokenClaim {
        lock: LockId(0),
        grant,
        hold: LockMode::Exclusive,
        version: LockVersion(1),
    }]));
    let of_one = vec![(one.id, RecordNumber(1))];
    other.resume(place.address(), &place.security, of_one);
    other.say(&ToServer::Claims(Vec::new()));
    one.write(0, 2, b"b");
    assert_eq!(other.next_record().1, RecordNumber(2));
    let (later, _) = other.acquire(1);
    assert!(later > grant, "grants rise over all starts");
}

#[test]
fn a_node_that_reads_nothing_delays_no_other() {
    let place = ServedRegion::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    let (mut deaf, _) = place.join(3);
    one.acquire(0);
    for version in 1..=300 {
        one.write(0, version, &[version as u8; SPAN as usize]);
        assert_eq!(other.next_record().1, RecordNumber(version));
    }
    one.kept(RecordNumber(300));
    // The node asks and does not read answers: no more is read from it than its answers have room for.
    for _ in 0..20_000 {
        if !deaf.channel.has_room() {
            break;
        }
        deaf.say(&ToServer::Outcome {
            node: one.id,
            number: RecordNumber(1),
        });
    }
    one.write(0, 301, b"on");
    assert_eq!(other.next_record().1, RecordNumber(301));
    assert_eq!(deaf.whole(BYTES).len(), BYTES as usize);
}

#[test]
fn one_directory_has_one_server_and_a_lease_has_bounds() {
    let place = ServedRegion::new(LONG);
    let error = ServingRegion::start(&place.root(), place.config()).unwrap_err();
    assert!(matches!(error, RegionServeError::Open(_)), "{error}");
    let lease = Duration::from_millis(1);
    let config = ServeConfig {
        lease,
        ..place.config()
    };
    let error = ServingRegion::start(&place.root(), config).unwrap_err();
    assert!(matches!(error, RegionServeError::Lease(_)), "{error}");
    // The present server continues.
    place.node(1).acquire(0);
}
