//! Merging journals: every order of arrival leads to the same region, and invalid records are never merged.

use std::collections::BTreeMap;

use netram_shared_machine::{
    InvalidRecord, LockId, LockVersion, MergeEntry, MergeQueue, MissingVersion, NodeId, QueuedRecord,
    RecordNumber, Stamp,
};
use proptest::prelude::*;

/// One transaction of a history: its node, and each lock that it holds with whether it writes under it.
type Step = (u64, BTreeMap<u32, bool>);

const NODES: u64 = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let locks = proptest::collection::btree_map(0..6u32, any::<bool>(), 1..4);
    proptest::collection::vec((1..=NODES, locks), 1..40)
}

/// Values that a record writes. The value under each lock depends on everything that was read, so that two
/// regions are equal only if their whole histories agree.
type Values = Vec<(LockId, u64)>;
type Region = BTreeMap<LockId, u64>;

fn values(region: &Region, node: NodeId, number: RecordNumber, stamp: &Stamp) -> Values {
    let held = stamp.written.iter().chain(&stamp.read);
    let mut hash = node.0 * 0x9E37_79B9 + number.0;
    for (lock, _) in held {
        let value = region.get(lock).copied().unwrap_or_default();
        hash = (hash ^ value).wrapping_mul(0x100_0000_01B3).rotate_left(17);
    }
    let written = stamp.written.iter();
    written
        .map(|(lock, _)| (*lock, hash ^ u64::from(lock.0)))
        .collect()
}

/// Journals of a serial history, and its region.
fn journals(steps: &[Step]) -> (BTreeMap<NodeId, Vec<QueuedRecord<Values>>>, Region) {
    let (mut versions, mut region) = (BTreeMap::<LockId, LockVersion>::new(), Region::default());
    let mut journals: BTreeMap<NodeId, Vec<QueuedRecord<Values>>> = BTreeMap::new();
    for (node, locks) in steps {
        let journal = journals.entry(NodeId(*node)).or_default();
        let mut stamp = Stamp::default();
        for (lock, writes) in locks {
            let version = versions.entry(LockId(*lock)).or_default();
            if *writes {
                *version = version.next();
                stamp.written.push((LockId(*lock), *version));
            } else {
                stamp.read.push((LockId(*lock), *version));
            }
        }
        let number = RecordNumber(journal.len() as u64 + 1);
        let ticket = values(&region, NodeId(*node), number, &stamp);
        region.extend(ticket.iter().copied());
        journal.push(QueuedRecord {
            number,
            stamp,
            ticket,
        });
    }
    (journals, region)
}

fn merge<T>() -> MergeQueue<T> {
    MergeQueue::new([], (1..=NODES).map(|node| (NodeId(node), RecordNumber(0))))
}

/// Merges and applies all records that can be merged.
fn drain(merge: &mut MergeQueue<Values>, region: &mut Region) -> Result<u64, InvalidRecord> {
    let mut count = 0;
    while let Some(MergeEntry { record, .. }) = merge.pop()? {
        region.extend(record.ticket);
        count += 1;
    }
    Ok(count)
}

fn record(number: u64, written: &[(u32, u64)], read: &[(u32, u64)]) -> QueuedRecord<()> {
    let locks = |locks: &[(u32, u64)]| {
        let locks = locks.iter();
        locks
            .map(|(lock, version)| (LockId(*lock), LockVersion(*version)))
            .collect()
    };
    QueuedRecord {
        number: RecordNumber(number),
        stamp: Stamp {
            written: locks(written),
            read: locks(read),
        },
        ticket: (),
    }
}

proptest! {
    #[test]
    fn every_arrival_order_of_a_history_leads_to_the_same_region(
        steps in steps(),
        arrival in proptest::collection::vec((1..=NODES, any::<bool>()), 0..200),
    ) {
        let (journals, expected) = journals(&steps);
        let (mut merge, mut region) = (merge(), Region::default());
        let mut given: BTreeMap<NodeId, usize> = BTreeMap::new();
        let (rest, mut merged) = ((1..=NODES).flat_map(|node| vec![(node, false); steps.len()]), 0);
        for (node, now) in arrival.into_iter().chain(rest) {
            let next = given.entry(NodeId(node)).or_default();
            if let Some(record) = journals.get(&NodeId(node)).and_then(|journal| journal.get(*next)) {
                merge.push(NodeId(node), record.clone()).unwrap();
                *next += 1;
            }
            if now {
                merged += drain(&mut merge, &mut region).unwrap();
            }
        }
        merged += drain(&mut merge, &mut region).unwrap();
        prop_assert_eq!(merged, steps.len() as u64);
        prop_assert!(merge.missing().is_empty() && merge.is_clear());
        prop_assert_eq!(region, expected);
    }

    /// With complete journals each transaction reads the same values as in the history: the order is
    /// serializable.
    #[test]
    fn complete_journals_merge_in_a_serializable_order(steps in steps()) {
        let (journals, expected) = journals(&steps);
        let (mut merge, mut region) = (merge(), Region::default());
        for (node, journal) in &journals {
            for record in journal {
                merge.push(*node, record.clone()).unwrap();
            }
        }
        while let Some(MergeEntry { node, record }) = merge.pop().unwrap() {
            prop_assert_eq!(&record.ticket, &values(&region, node, record.number, &record.stamp));
            region.extend(record.ticket);
        }
        prop_assert_eq!(region, expected);
    }

    /// With one record lost, doubled or misplaced, the merged records are those of a part of the history that
    /// is closed under reads; and the fault is detected.
    #[test]
    fn a_lost_doubled_or_misplaced_record_is_detected_and_nothing_builds_on_it(
        steps in steps(),
        at in any::<prop::sample::Index>(),
        kind in 0..3u8,
    ) {
        let (mut journals, _) = journals(&steps);
        let whole = journals.clone();
        let (node, place) = {
            let (node, _) = steps[at.index(steps.len())];
            (NodeId(node), at.index(journals[&NodeId(node)].len()))
        };
        let journal = journals.get_mut(&node).unwrap();
        match kind {
            0 => drop(journal.remove(place)),
            1 => journal.insert(place, journal[place].clone()),
            _ if journal.len() > 1 => journal.swap(place, (place + 1) % whole[&node].len()),
            _ => return Ok(()),
        }
        let last = kind == 0 && place + 1 == whole[&node].len();
        let (mut merge, mut region) = (merge(), Region::default());
        let mut seen = false;
        let mut done: Vec<(NodeId, RecordNumber)> = Vec::new();
        for (node, journal) in &journals {
            for record in journal {
                seen |= merge.push(*node, record.clone()).is_err();
            }
        }
        while let Some(MergeEntry { node, record }) = merge.pop().unwrap() {
            region.extend(record.ticket);
            done.push((node, record.number));
        }
        // A journal that lacks its last record looks like a shorter one. That is detected only if another
        // record builds on it.
        prop_assert!(seen || last);
        // The same records in the history's order make the same region, and none lacks a version that it had
        // read.
        let (mut given, mut expected) = (BTreeMap::<NodeId, usize>::new(), Region::default());
        let mut versions = BTreeMap::<LockId, LockVersion>::new();
        for (node, _) in &steps {
            let next = given.entry(NodeId(*node)).or_default();
            let record = &whole[&NodeId(*node)][*next];
            *next += 1;
            if done.contains(&(NodeId(*node), record.number)) {
                for (lock, read) in &record.stamp.read {
                    prop_assert_eq!(versions.get(lock).copied().unwrap_or_default(), *read);
                }
                versions.extend(record.stamp.written.iter().copied());
                expected.extend(record.ticket.iter().copied());
            }
        }
        prop_assert_eq!(region, expected);
    }
}

/// Hazard 10 of the paper, and test (6) of the research. The last records of the first and the third log have
/// no lock in common. The third depends on the first all the same, by way of the second.
#[test]
fn three_logs_merge_in_the_order_of_their_reads_without_a_common_lock() {
    let mut merge = merge();
    let third = record(1, &[(3, 1)], &[(2, 1)]);
    merge.push(NodeId(1), third.clone()).unwrap();
    assert_eq!(merge.pop(), Ok(None));
    let first = record(1, &[(1, 1)], &[]);
    merge.push(NodeId(3), first).unwrap();
    // The second log has not come. The third's record waits, though it shares no lock with the first's.
    assert_eq!(merge.pop().unwrap().map(|entry| entry.node), Some(NodeId(3)));
    assert_eq!(merge.pop(), Ok(None));
    assert_eq!(
        merge.missing(),
        [MissingVersion {
            node: NodeId(1),
            number: RecordNumber(1),
            lock: LockId(2),
            needs: LockVersion(1),
            stands: LockVersion(0),
        }]
    );
    merge.push(NodeId(2), record(1, &[(2, 1)], &[(1, 1)])).unwrap();
    assert_eq!(merge.pop().unwrap().map(|entry| entry.node), Some(NodeId(2)));
    let entry = merge.pop().unwrap();
    assert_eq!(entry.map(|entry| entry.record), Some(third));
    assert!(merge.is_clear());
}

#[test]
fn skipped_and_repeated_versions_are_refused_with_lock_version_and_node() {
    let mut merge = merge();
    merge.push(NodeId(1), record(1, &[(7, 1)], &[])).unwrap();
    assert!(merge.pop().unwrap().is_some());
    let twice = merge.push(NodeId(2), record(1, &[(7, 1)], &[])).unwrap_err();
    let expected = InvalidRecord::Version {
        node: NodeId(2),
        number: RecordNumber(1),
        lock: LockId(7),
        stands: LockVersion(1),
        makes: LockVersion(1),
    };
    assert_eq!(twice, expected);
    // Two records could have been merged: the losing one is found when its turn would come.
    merge.push(NodeId(2), record(1, &[(7, 2)], &[])).unwrap();
    merge.push(NodeId(3), record(1, &[(7, 2)], &[])).unwrap();
    assert_eq!(merge.pop().unwrap().map(|entry| entry.node), Some(NodeId(2)));
    assert!(matches!(
        merge.pop(),
        Err(InvalidRecord::Version {
            node: NodeId(3),
            lock: LockId(7),
            ..
        })
    ));
    merge.forget_waiting(NodeId(3));
    // A skipped version waits, and is reported when no more records come.
    merge.push(NodeId(3), record(1, &[(7, 9)], &[])).unwrap();
    assert_eq!(merge.pop(), Ok(None));
    let missing = merge.missing();
    assert_eq!(
        (missing[0].needs, missing[0].stands),
        (LockVersion(8), LockVersion(2))
    );
    assert_eq!(
        merge.push(NodeId(1), record(4, &[], &[(7, 2)])),
        Err(InvalidRecord::Number {
            node: NodeId(1),
            expected: RecordNumber(2),
            found: RecordNumber(4),
        })
    );
}
