//! The server's disk: region, versions and numbers are of one moment after every kind of end.

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
use netram_transport::OwnerKey;

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
fn a_reopened_region_has_the_merged_history() {
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
    // Dropping the store syncs nothing; all changes were on their way to the disk, in order.
    let store = open(&root);
    let durable = store.table().counters.position.0;
    assert!(durable >= 900, "closing makes durable");
    RegionModel::after(1, durable).assert_is(&store);
}

#[test]
fn records_become_durable_in_order() {
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
    // Durable records are there although the store was not closed.
    drop(store);
    assert!(open(&root).table().counters.position.0 >= told);
}

/// A region with 100 merged records, to which invalid ones are offered.
struct MergedRegion {
    _directory: tempfile::TempDir,
    store: RegionStore,
    model: RegionModel,
    segment: u32,
    node: NodeId,
    /// Number of the node's next record.
    next: RecordNumber,
    /// Versions of locks 0 and 1.
    zero: u64,
    one: u64,
}

impl MergedRegion {
    fn new() -> MergedRegion {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("region");
        RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
        let mut store = open(&root);
        let mut model = RegionModel::new(3);
        go_on(&mut store, &mut model, 100);
        turn_over(&mut store);
        let version = |lock| store.table().version(LockId(lock)).unwrap().0;
        let (zero, one) = (version(0), version(1));
        let (node, segment) = (store.table().nodes[0].id, store.segment());
        let next = store.table().nodes[0].merged.next();
        MergedRegion {
            _directory: directory,
            store,
            model,
            segment,
            node,
            next,
            zero,
            one,
        }
    }

    /// Stamp of a record that writes under lock 0 and has read under lock 1.
    fn good(&self) -> Stamp {
        stamp(&[(0, self.zero + 1)], &[(1, self.one)])
    }

    /// Checks that a record is refused and changes nothing.
    fn refused(&mut self, node: NodeId, number: RecordNumber, payload: &[u8]) -> MergeError {
        let error = self.store.merge(node, number, None, payload).unwrap_err();
        self.model.assert_is(&self.store);
        error
    }

    /// The same for a payload that is invalid in itself.
    fn invalid(&mut self, payload: &[u8]) -> PayloadError {
        match self.refused(self.node, self.next, payload) {
            MergeError::Record { cause, .. } => cause,
            error => panic!("{error}"),
        }
    }
}

fn range(offset: u64, length: usize) -> Vec<(u64, Vec<u8>)> {
    vec![(offset, vec![0xee; length])]
}

#[test]
fn invalid_payloads_are_refused_and_change_nothing() {
    let mut region = MergedRegion::new();
    let (good, segment) = (region.good(), region.segment);
    // Bytes outside the span: after it, across its end, at the region's end, under a lock that was only read.
    for (offset, length, first) in [
        (SPAN, 8, SPAN),
        (SPAN - 4, 8, SPAN),
        (BYTES - 8, 8, BYTES - 8),
        (3 * SPAN, 1, 3 * SPAN),
    ] {
        let error = region.invalid(&payload(&good, segment, &range(offset, length)));
        assert_eq!(error, PayloadError::Outside { offset: first });
    }
    let reads = stamp(&[], &[(0, region.zero)]);
    let error = region.invalid(&payload(&reads, segment, &range(0, 8)));
    assert_eq!(error, PayloadError::Outside { offset: 0 });
    let error = region.invalid(&payload(&good, segment + 1, &range(0, 8)));
    assert!(matches!(error, PayloadError::Segment { .. }), "{error}");
    for unknown in [stamp(&[(77, 1)], &[]), stamp(&[(0, region.zero + 1)], &[(77, 0)])] {
        let error = region.invalid(&payload(&unknown, segment, &[]));
        assert_eq!(error, PayloadError::Lock(LockId(77)));
    }
    // Every prefix, except the one that is a record without ranges; and random bytes.
    let whole = payload(&good, segment, &range(0, 8));
    for cut in (0..whole.len()).filter(|cut| *cut != whole.len() - 12) {
        region.invalid(&whole[..cut]);
    }
    let mut random = TestRng(4);
    for _ in 0..200 {
        let length = random.below(100) as usize;
        let (node, next) = (region.node, region.next);
        region.refused(node, next, &random.bytes(length));
    }
}

#[test]
fn records_that_do_not_follow_are_refused_and_change_nothing() {
    let mut region = MergedRegion::new();
    let MergedRegion {
        segment,
        node,
        next,
        zero,
        one,
        ..
    } = region;
    // Versions that skip one, repeat one, or had read one that is not there yet.
    for jump in [
        stamp(&[(0, zero + 2)], &[]),
        stamp(&[(0, zero.max(1))], &[]),
        stamp(&[(0, zero + 1)], &[(1, one + 1)]),
    ] {
        let error = region.refused(node, next, &payload(&jump, segment, &range(0, 8)));
        assert!(matches!(error, MergeError::Version { .. }), "{error}");
    }
    let whole = payload(&region.good(), segment, &range(0, 8));
    for number in [RecordNumber(next.0 - 1), next.next()] {
        let error = region.refused(node, number, &whole);
        assert!(matches!(error, MergeError::Number { .. }), "{error}");
    }
    for nobody in [NodeId(1), NodeId(99)] {
        let error = region.refused(nobody, next, &whole);
        assert!(matches!(error, MergeError::NoNode { .. }), "{error}");
    }
    // A record that had read an older version follows all the same.
    let older = stamp(&[(0, zero + 1)], &[(1, one.saturating_sub(1))]);
    let older = payload(&older, segment, &range(0, 8));
    let end = Some(ChainPoint::default());
    region.store.merge(node, next, end, &older).unwrap();
}

#[test]
fn a_range_may_cross_adjacent_written_spans() {
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

/// A node joins while others write: it gets the pages in pieces, and every record that is merged in between.
#[test]
fn pages_and_later_records_yield_the_region() {
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
    // Unwritten bytes are not sent: after the spans there are only zeros.
    let tail = store.page_run(48 * 1024, 1 << 20);
    assert!(tail.bytes.is_empty() && tail.next.is_none());
}

#[test]
fn the_table_remembers_nodes() {
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

/// The machine's facts are recorded, and read again as its initial state.
#[test]
fn recorded_facts_restore_the_machines_state() {
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
    // The machine may skip ids, but never uses a lower one.
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
    // Its lenders obey its owner, and nobody reads its records any more.
    assert_eq!(untold.key, OwnerKey::derive(&[1; 32]).seed());
    let reading = row(5).journal.as_ref().unwrap();
    // A record that was read from the journal is not marked: it is read again, and recognised by its number.
    assert_eq!(
        (row(5).state, row(5).number),
        (machine::NodeState::Fencing, RecordNumber(2))
    );
    assert_eq!((reading.kept, reading.end), (RecordNumber(1), ends));
    assert_eq!(again.versions.len(), 24);
    assert_eq!(again.versions[3], (LockId(3), LockVersion(2)));
}

#[test]
fn a_region_is_created_once_and_whole_or_not_at_all() {
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
    // A creation that fails because of a too small log leaves no files.
    let other = directory.path().join("other");
    RegionStore::create(&other, &plan(1)).unwrap_err();
    assert!(!other.exists());
    // The files of a killed creation do not block the next one.
    let left = directory.path().join("third.unfinished");
    std::fs::rename(&root, &left).unwrap();
    std::fs::remove_file(left.join("table")).unwrap();
    RegionStore::create(&directory.path().join("third"), &plan(LOG_BYTES)).unwrap();
    assert!(!left.exists());
    assert_eq!(
        open(&directory.path().join("third")).table().counters.position.0,
        0
    );
    // Spans with any lock numbers and in any order.
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
    // Opening applies the log's records, so that the table's file is complete.
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
