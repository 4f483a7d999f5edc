//! Merging journals: any order in which they come leads to the same region, and what cannot be is never
//! merged.

use std::collections::BTreeMap;

use netram_shared_machine::{
    InvalidRecord, LockId, LockVersion, MergeEntry, MergeQueue, MissingVersion, NodeId, QueuedRecord,
    RecordNumber, Stamp,
};
use proptest::prelude::*;

/// One transaction of a history: who, and each lock that it holds, with whether it writes under it.
type Step = (u64, BTreeMap<u32, bool>);

const NODES: u64 = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let locks = proptest::collection::btree_map(0..6u32, any::<bool>(), 1..4);
    proptest::collection::vec((1..=NODES, locks), 1..40)
}

/// What a record writes: under each lock a value that depends on all that was read for it, so that two
/// regions are equal only where the whole histories agree.
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

/// The journals that a serial history leaves, and the region.
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

/// Takes what may go, and applies it.
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
    fn any_arrival_of_a_history_leads_to_the_same_region(
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

    /// With all journals there, each transaction finds what it had found: the order is one in which they
    /// could have run alone.
    #[test]
    fn whole_journals_are_merged_in_an_order_in_which_all_that_was_read_is_read_again(steps in steps()) {
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

    /// What is merged of journals of which one lacks a record, or has one twice or in the wrong place, is
    /// what a part of the history would have made, closed under what each record had read; and the fault is
    /// seen.
    #[test]
    fn a_record_lost_doubled_or_misplaced_is_seen_and_nothing_is_built_on_it(
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
        // A journal that lacks its last record looks like a shorter one: seen only where somebody builds on
        // it.
        prop_assert!(seen || last);
        // The same records in the order of the history make the same region, and none lacks what it had read.
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

/// Hazard 10 of the paper, and test (6) of the research: the ends of the first and the third log have no lock
/// in common, and the third depends on the first all the same, through the second.
#[test]
fn three_logs_whose_ends_have_nothing_in_common_go_in_the_order_of_what_they_read() {
    let mut merge = merge();
    let third = record(1, &[(3, 1)], &[(2, 1)]);
    merge.push(NodeId(1), third.clone()).unwrap();
    assert_eq!(merge.pop(), Ok(None));
    let first = record(1, &[(1, 1)], &[]);
    merge.push(NodeId(3), first).unwrap();
    // The second log has not come: the third's record waits, though it shares no lock with the first's.
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
fn versions_that_jump_or_repeat_are_refused_by_lock_version_and_node() {
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
    // Two that could have gone: the one that lost is found when its turn would come.
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
    // A jump waits, and is named when nothing more comes.
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
