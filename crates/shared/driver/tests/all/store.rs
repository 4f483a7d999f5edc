//! The server's disk: region, versions and numbers are of one moment, whatever was in the way.

use std::os::unix::fs::PermissionsExt;

use crate::common::history::{
    BYTES, RegionModel, SPAN, all_pages, go_on, joining, open, payload, plan, turn_over,
};
use crate::common::{TestRng, until};
use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::wire::ChainPoint;
use netram_shared::server::{
    MergeError, NodeEntryState, PayloadError, RegionCreateError, RegionStore, RegionStoreError,
    RegionTableError, Span, Spans, StoreOpenError,
};
use netram_shared_machine::server::{self as machine, DurableFact, NodeJournal};
use netram_shared_machine::{GrantNumber, LockId, LockVersion, NodeId, Position, RecordNumber, Stamp};

const LOG_BYTES: u64 = 1 << 20;

fn stamp(written: &[(u32, u64)], read: &[(u32, u64)]) -> Stamp {
    let locks = |locks: &[(u32, u64)]| {
        locks
            .iter()
            .map(|(lock, version)| (LockId(*lock), LockVersion(*version)))
            .collect()
    };
    Stamp {
        written: locks(written),
        read: locks(read),
    }
}

#[test]
fn a_history_is_there_again_as_it_was_merged() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mode = std::fs::metadata(&root).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "the table has keys");
    let mut model = RegionModel::new(1);
    for round in 0..4 {
        let mut store = open(&root);
        model.assert_is(&store);
        go_on(&mut store, &mut model, 300);
        model.assert_is(&store);
        match round % 2 {
            0 => store.close().unwrap(),
            _ => drop(store),
        }
    }
    // A drop makes nothing durable by itself; all of it was on its way to the disk, in order.
    let store = open(&root);
    let durable = store.table().counters.position.0;
    assert!(durable >= 900, "closing makes durable");
    RegionModel::after(1, durable).assert_is(&store);
}

#[test]
fn records_are_kept_in_their_order_when_the_disk_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mut store = open(&root);
    let mut model = RegionModel::new(2);
    let mut told = 0;
    for _ in 0..20 {
        go_on(&mut store, &mut model, 10);
        while let Some(kept) = store.next_durable() {
            told += 1;
            assert_eq!(kept.position.0, told);
        }
    }
    until("all are kept", || {
        while let Some(kept) = store.next_durable() {
            told += 1;
            assert_eq!(kept.position.0, told);
        }
        told == 200
    });
    // What was kept is there although nothing was closed.
    drop(store);
    assert!(open(&root).table().counters.position.0 >= told);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mut store = open(&root);
    let mut model = RegionModel::new(3);
    go_on(&mut store, &mut model, 100);
    turn_over(&mut store);
    let (node, segment) = (store.table().nodes[0].id, store.segment());
    let next = store.table().nodes[0].merged.next();
    let version = |store: &RegionStore, lock| store.table().version(LockId(lock)).unwrap().0;
    let (zero, one) = (version(&store, 0), version(&store, 1));
    let bytes = |offset: u64, length: usize| vec![(offset, vec![0xee; length])];
    let good = stamp(&[(0, zero + 1)], &[(1, one)]);
    let mut refused = |node, number, payload: Vec<u8>| {
        let error = store.merge(node, number, None, &payload).unwrap_err();
        model.assert_is(&store);
        error
    };
    let record = |error| match error {
        MergeError::Record { cause, .. } => cause,
        error => panic!("{error}"),
    };
    // Bytes outside the span: behind it, before it, across its end, of a lock that was only read.
    for (offset, length, first) in [
        (SPAN, 8, SPAN),
        (SPAN - 4, 8, SPAN),
        (BYTES - 8, 8, BYTES - 8),
        (3 * SPAN, 1, 3 * SPAN),
    ] {
        let error = record(refused(
            node,
            next,
            payload(&good, segment, &bytes(offset, length)),
        ));
        assert_eq!(error, PayloadError::Outside { offset: first });
    }
    let error = record(refused(
        node,
        next,
        payload(&stamp(&[], &[(0, zero)]), segment, &bytes(0, 8)),
    ));
    assert_eq!(error, PayloadError::Outside { offset: 0 });
    let error = record(refused(node, next, payload(&good, segment + 1, &bytes(0, 8))));
    assert!(matches!(error, PayloadError::Segment { .. }), "{error}");
    for unknown in [stamp(&[(77, 1)], &[]), stamp(&[(0, zero + 1)], &[(77, 0)])] {
        let error = record(refused(node, next, payload(&unknown, segment, &[])));
        assert_eq!(error, PayloadError::Lock(LockId(77)));
    }
    // Versions that jump, stand still, or had read what is not there yet.
    for jump in [
        stamp(&[(0, zero + 2)], &[]),
        stamp(&[(0, zero.max(1))], &[]),
        stamp(&[(0, zero + 1)], &[(1, one + 1)]),
    ] {
        let error = refused(node, next, payload(&jump, segment, &bytes(0, 8)));
        assert!(matches!(error, MergeError::Version { .. }), "{error}");
    }
    let whole = payload(&good, segment, &bytes(0, 8));
    for number in [RecordNumber(next.0 - 1), next.next()] {
        let error = refused(node, number, whole.clone());
        assert!(matches!(error, MergeError::Number { .. }), "{error}");
    }
    for nobody in [NodeId(1), NodeId(99)] {
        let error = refused(nobody, next, whole.clone());
        assert!(matches!(error, MergeError::NoNode { .. }), "{error}");
    }
    // Any cut, but for the one that leaves a record without ranges; and any bytes.
    for cut in (0..whole.len()).filter(|cut| *cut != whole.len() - 12) {
        record(refused(node, next, whole[..cut].to_vec()));
    }
    let mut random = TestRng(4);
    for _ in 0..200 {
        let length = random.below(100) as usize;
        refused(node, next, random.bytes(length));
    }
    // It does fit, an older reading too.
    let older = stamp(&[(0, zero + 1)], &[(1, one.saturating_sub(1))]);
    store
        .merge(
            node,
            next,
            Some(ChainPoint::default()),
            &payload(&older, segment, &bytes(0, 8)),
        )
        .unwrap();
}

#[test]
fn a_range_may_cross_from_one_written_span_to_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mut store = open(&root);
    turn_over(&mut store);
    let both = stamp(&[(4, 1), (5, 1)], &[]);
    let range = vec![(5 * SPAN - 100, vec![7; 200])];
    let payload = payload(&both, store.segment(), &range);
    store
        .merge(NodeId(1), RecordNumber(1), Some(ChainPoint::default()), &payload)
        .unwrap();
    assert_eq!(all_pages(&store)[(5 * SPAN - 100) as usize..][..200], [7; 200]);
}

/// A node joins while others write: it gets pages piece by piece, and every record that is merged meanwhile.
#[test]
fn pages_and_the_records_after_them_make_the_region() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mut store = open(&root);
    let mut model = RegionModel::new(5);
    go_on(&mut store, &mut model, 50);
    let (mut joiner, mut next, mut pieces) = (vec![0; BYTES as usize], Some(0), 0);
    while let Some(from) = next {
        let run = store.page_run(from, 4096);
        joiner[run.offset as usize..][..run.bytes.len()].copy_from_slice(&run.bytes);
        (next, pieces) = (run.next, pieces + 1);
        turn_over(&mut store);
        let record = model.step();
        let payload = record.payload(store.segment());
        store
            .merge(record.node, record.number, Some(record.end), &payload)
            .unwrap();
        for (offset, bytes) in &record.ranges {
            joiner[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    assert!(joiner == model.region && pieces >= 10, "{pieces} pieces");
    // What nobody wrote to is not sent: behind the spans there are only zeros.
    let tail = store.page_run(48 * 1024, 1 << 20);
    assert!(tail.bytes.is_empty() && tail.next.is_none());
}

#[test]
fn who_takes_part_is_remembered() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mut store = open(&root);
    let (first, _) = store.join(joining(1)).unwrap();
    let (second, _) = store.join(joining(2)).unwrap();
    let view = View {
        version: 9,
        ..View::first(JournalId(2))
    };
    store.set_view(second, view.clone()).unwrap();
    store.fence(first).unwrap();
    store.raise_ceiling(GrantNumber(500)).unwrap();
    store.raise_ceiling(GrantNumber(100)).unwrap();
    store.close().unwrap();

    let mut store = open(&root);
    let table = store.table();
    assert_eq!(table.counters.ceiling, GrantNumber(500), "never backwards");
    let (one, two) = (table.node(first).unwrap(), table.node(second).unwrap());
    assert_eq!(
        (one.state, one.name.as_str(), &one.key),
        (NodeEntryState::Fencing, "node 1", &vec![1; 32])
    );
    assert_eq!((two.state, &two.view), (NodeEntryState::Live, &view));
    store.retire(first).unwrap();
    let (third, end) = store.join(joining(3)).unwrap();
    assert_eq!(third, NodeId(3), "an id is never given twice");
    store.wait(end).unwrap();
    assert!(store.durable() <= end && matches!(store.retire(first), Err(RegionStoreError::NoNode(_))));
    drop(store);

    let store = open(&root);
    assert_eq!(
        store.table().gone.iter().map(|gone| gone.id).collect::<Vec<_>>(),
        [first]
    );
    assert!(store.table().node(first).is_none() && store.table().node(third).is_some());
    let bytes = std::fs::read(root.join("table")).unwrap();
    drop(store);
    assert!(
        !bytes.windows(32).any(|window| window == [1; 32]),
        "a buried node's key is gone too"
    );
}

/// The machine's facts go in, and come out again as what it begins with.
#[test]
fn the_machine_finds_what_it_had_written_down() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mut store = open(&root);
    let journal = |number: u64| NodeJournal {
        view: View::first(JournalId(number.into())),
        key: vec![1; 32],
        kept: RecordNumber(0),
        end: ChainPoint::default(),
    };
    let joined = |node: u64| DurableFact::Joined {
        node: NodeId(node),
        name: String::new(),
        journal: journal(node),
    };
    // The machine may leave ids out, and never goes back.
    for node in [2, 5, 6] {
        store.record_fact(joined(node)).unwrap();
    }
    let old = store.record_fact(joined(4));
    assert!(matches!(old, Err(RegionStoreError::OldId(NodeId(4)))), "{old:?}");
    let record = payload(&stamp(&[(3, 1)], &[]), store.segment(), &[(3 * SPAN, vec![1; 8])]);
    let ends = ChainPoint {
        lsn: Lsn(77),
        chain: 7,
    };
    store
        .merge(NodeId(5), RecordNumber(1), Some(ends), &record)
        .unwrap();
    let record = payload(&stamp(&[(3, 2)], &[]), store.segment(), &[(3 * SPAN, vec![2; 8])]);
    store.merge(NodeId(5), RecordNumber(2), None, &record).unwrap();
    store
        .record_fact(DurableFact::Fencing { node: NodeId(5) })
        .unwrap();
    for node in [NodeId(2), NodeId(6)] {
        store.record_fact(DurableFact::Gone { node }).unwrap();
    }
    store
        .record_fact(DurableFact::Forgotten { node: NodeId(2) })
        .unwrap();
    store.record_fact(DurableFact::Ceiling(GrantNumber(64))).unwrap();
    let known = store.region_state();
    store.close().unwrap();
    let again = open(&root).region_state();
    assert_eq!(again, known);
    assert_eq!(
        (again.position, again.last_node, again.ceiling),
        (Position(2), NodeId(6), GrantNumber(64))
    );
    let row = |node: u64| &again.nodes[&NodeId(node)];
    assert_eq!(
        (row(2).state, row(2).id, &row(2).journal),
        (machine::NodeState::Gone, JournalId(2), &None)
    );
    let untold = row(6).journal.as_ref().unwrap();
    assert_eq!(row(6).state, machine::NodeState::Gone);
    assert_eq!(untold.key, [0; 32], "nobody reads its records any more");
    let reading = row(5).journal.as_ref().unwrap();
    // A record that was read from the journal leaves no mark: it is read again, and known by its number.
    assert_eq!(
        (row(5).state, row(5).number),
        (machine::NodeState::Fencing, RecordNumber(2))
    );
    assert_eq!((reading.kept, reading.end), (RecordNumber(1), ends));
    assert_eq!(again.versions.len(), 24);
    assert_eq!(again.versions[3], (LockId(3), LockVersion(2)));
}

#[test]
fn a_region_is_made_once_and_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    for wrong in [0, 1000] {
        let refused = RegionStore::create(
            &root,
            &netram_shared::server::RegionPlan {
                bytes: wrong,
                ..plan(LOG_BYTES)
            },
        );
        assert!(matches!(refused, Err(RegionCreateError::Size(_))), "{refused:?}");
    }
    assert!(matches!(
        RegionStore::open(&root, || ()),
        Err(StoreOpenError::Nothing(_))
    ));
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let again = RegionStore::create(&root, &plan(LOG_BYTES));
    assert!(matches!(again, Err(RegionCreateError::Exists(_))), "{again:?}");
    assert!(
        open(&root).table().counters.position.0 == 0,
        "the refusal touched nothing"
    );
    // A log too small to begin with leaves nothing behind.
    let other = directory.path().join("other");
    RegionStore::create(&other, &plan(1)).unwrap_err();
    assert!(!other.exists());
    // What a creation left that was killed is not in the way of the next.
    let left = directory.path().join("third.unfinished");
    std::fs::rename(&root, &left).unwrap();
    std::fs::remove_file(left.join("table")).unwrap();
    RegionStore::create(&directory.path().join("third"), &plan(LOG_BYTES)).unwrap();
    assert!(!left.exists());
    assert_eq!(
        open(&directory.path().join("third")).table().counters.position.0,
        0
    );
    // Spans of any number and order.
    let spans = Spans::new(
        BYTES,
        vec![
            Span {
                lock: LockId(9),
                offset: 0,
                length: 8,
            },
            Span {
                lock: LockId(2),
                offset: BYTES - 8,
                length: 8,
            },
        ],
    )
    .unwrap();
    RegionStore::create(
        &other,
        &netram_shared::server::RegionPlan {
            spans: spans.clone(),
            ..plan(LOG_BYTES)
        },
    )
    .unwrap();
    assert_eq!(open(&other).table().spans, spans);
}

#[test]
fn damage_to_the_table_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mut store = open(&root);
    go_on(&mut store, &mut RegionModel::new(6), 60);
    store.close().unwrap();
    let path = root.join("table");
    // The log's records are applied at an opening, and the table is as it was closed.
    drop(open(&root));
    let whole = std::fs::read(&path).unwrap();
    let damaged = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        use std::os::unix::fs::FileExt;
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .write_all_at(&bytes, 0)
            .unwrap();
        RegionStore::open(&root, || ()).map(drop)
    };
    let cause = |opened| match opened {
        Err(StoreOpenError::Table { cause, .. }) => cause,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        cause(damaged(&|bytes| bytes[..64].fill(0))),
        RegionTableError::Unfinished
    );
    assert_eq!(
        cause(damaged(&|bytes| bytes[0] ^= 1)),
        RegionTableError::NotATable
    );
    assert_eq!(
        cause(damaged(&|bytes| bytes[17] ^= 1)),
        RegionTableError::Checksum
    );
    assert_eq!(cause(damaged(&|bytes| bytes[8] = 2)), RegionTableError::Format(2));
    assert!(matches!(
        cause(damaged(&|bytes| bytes[4104] ^= 8)),
        RegionTableError::Spans(_)
    ));
    for fault in [512, 520] {
        let opened = damaged(&|bytes| bytes[fault] = 1);
        assert!(
            matches!(opened, Err(StoreOpenError::Fault { .. })),
            "{fault}: {opened:?}"
        );
    }
    damaged(&|_| ()).unwrap();
}
