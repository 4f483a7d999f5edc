//! The newest records that a starting server finds in its log: as their nodes had sent them, without a gap.

use crate::common::history::{RegionModel, TERM, go_on, plan};
use netram_shared::server::{RecentRecord, RegionStore};

const SEED: u64 = 11;

/// The newest of the history's first `records` records, as far as they fit the bytes.
fn expected(records: u64, segment: u32) -> Vec<RecentRecord> {
    let mut model = RegionModel::new(SEED);
    let told = (0..records).map(|_| {
        let record = model.step();
        RecentRecord {
            node: record.node,
            number: record.number,
            payload: record.payload(segment),
        }
    });
    told.collect()
}

#[test]
fn recent_records_are_recovered_from_the_log_after_every_kind_of_end() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(8 << 20)).unwrap();
    let (mut store, _) = RegionStore::open_recalling(&root, 1 << 20, || ()).unwrap();
    assert_eq!(store.take_recent(), []);
    let (mut model, segment) = (RegionModel::new(SEED), store.segment());
    // Nodes come and go, which is in the log, too.
    go_on(&mut store, &mut model, 3 * TERM);
    store.close().unwrap();
    let (mut store, _) = RegionStore::open_recalling(&root, 64 << 20, || ()).unwrap();
    assert_eq!(store.take_recent(), expected(3 * TERM, segment));
    model.assert_is(&store);
    // Opening applies and drops the log's records: from here on it has only later ones.
    go_on(&mut store, &mut model, 7);
    let end = store
        .raise_ceiling(netram_shared_machine::GrantNumber(9))
        .unwrap();
    store.wait(end).unwrap();
    store.close().unwrap();
    let (mut store, _) = RegionStore::open_recalling(&root, 64 << 20, || ()).unwrap();
    let all = expected(3 * TERM + 7, segment);
    assert_eq!(store.take_recent(), all[all.len() - 7..]);
    go_on(&mut store, &mut model, 20);
    store.close().unwrap();
    // As many of the newest as fit.
    let (mut store, _) = RegionStore::open_recalling(&root, 8 << 10, || ()).unwrap();
    let recent = store.take_recent();
    let all = expected(3 * TERM + 27, segment);
    assert!((2..20).contains(&recent.len()), "{}", recent.len());
    assert_eq!(recent, all[all.len() - recent.len()..]);
    model.assert_is(&store);
}
