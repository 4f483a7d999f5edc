//! A reproducible history of records, and the region that it yields.

use std::collections::BTreeMap;
use std::path::Path;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::wire::ChainPoint;
use netram_rvm::RangeView;
use netram_rvm::record::encode;
use netram_shared::server::{NewNode, RegionPlan, RegionStore, Spans};
use netram_shared_machine::{LockId, LockVersion, NodeId, RecordNumber, Stamp};

use super::TestRng;

pub(crate) const LOCKS: u64 = 24;
pub(crate) const SPAN: u64 = 2048;
pub(crate) const BYTES: u64 = 64 * 1024;
pub(crate) const NODES: u64 = 3;
/// Number of records after which the oldest node leaves and another one joins.
pub(crate) const TERM: u64 = 40;

/// One record before it is encoded.
pub(crate) struct PlainRecord {
    pub(crate) node: NodeId,
    pub(crate) number: RecordNumber,
    pub(crate) end: ChainPoint,
    pub(crate) stamp: Stamp,
    pub(crate) ranges: Vec<(u64, Vec<u8>)>,
}

impl PlainRecord {
    pub(crate) fn payload(&self, segment: u32) -> Vec<u8> {
        payload(&self.stamp, segment, &self.ranges)
    }
}

pub(crate) fn payload(stamp: &Stamp, segment: u32, ranges: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut preamble = Vec::new();
    stamp.encode(&mut preamble);
    let views = ranges.iter().map(|(offset, bytes)| RangeView {
        segment,
        offset: *offset,
        bytes,
    });
    encode(&preamble, &views.collect::<Vec<_>>())
}

/// The region that the records so far yield.
pub(crate) struct RegionModel {
    random: TestRng,
    pub(crate) records: u64,
    pub(crate) region: Vec<u8>,
    pub(crate) versions: BTreeMap<LockId, LockVersion>,
    pub(crate) numbers: BTreeMap<NodeId, RecordNumber>,
}

impl RegionModel {
    pub(crate) fn new(seed: u64) -> RegionModel {
        RegionModel {
            random: TestRng(seed),
            records: 0,
            region: vec![0; BYTES as usize],
            versions: BTreeMap::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// The state after the first `records` records.
    pub(crate) fn after(seed: u64, records: u64) -> RegionModel {
        let mut model = RegionModel::new(seed);
        while model.records < records {
            model.step();
        }
        model
    }

    /// Makes the next record.
    pub(crate) fn step(&mut self) -> PlainRecord {
        let eldest = self.records / TERM + 1;
        let node = NodeId(eldest + self.random.below(NODES));
        let mut locks: Vec<u64> = (0..1 + self.random.below(5))
            .map(|_| self.random.below(LOCKS))
            .collect();
        locks.sort_unstable();
        locks.dedup();
        let written = 1 + self.random.below(locks.len() as u64) as usize;
        let (mut stamp, mut ranges) = (Stamp::default(), Vec::new());
        for (index, lock) in locks.iter().enumerate() {
            let lock = LockId(*lock as u32);
            let version = self.versions.get(&lock).copied().unwrap_or_default();
            match index < written {
                true => stamp.written.push((lock, version.next())),
                false => stamp.read.push((lock, version)),
            }
            if index < written {
                self.ranges_in(u64::from(lock.0) * SPAN, &mut ranges);
            }
        }
        let number = self.numbers.get(&node).copied().unwrap_or_default().next();
        self.records += 1;
        let record = PlainRecord {
            node,
            number,
            end: ChainPoint {
                lsn: Lsn(self.records * 1000),
                chain: self.random.next() as u32,
            },
            stamp,
            ranges,
        };
        self.apply(&record);
        record
    }

    fn ranges_in(&mut self, mut from: u64, ranges: &mut Vec<(u64, Vec<u8>)>) {
        let end = from + SPAN;
        for _ in 0..self.random.below(6) {
            let length = 1 + self.random.below(200);
            let offset = from + self.random.below(300);
            if offset + length > end {
                return;
            }
            ranges.push((offset, self.random.bytes(length as usize)));
            // Adjacent ranges would be one range.
            from = offset + length + 1;
        }
    }

    fn apply(&mut self, record: &PlainRecord) {
        for (offset, bytes) in &record.ranges {
            self.region[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        self.versions.extend(record.stamp.written.iter().copied());
        self.numbers.insert(record.node, record.number);
    }

    /// Checks that the store has these records and no others.
    pub(crate) fn assert_is(&self, store: &RegionStore) {
        let table = store.table();
        assert_eq!(table.counters.position.0, self.records);
        assert!(
            table
                .versions()
                .eq(self.versions.iter().map(|(lock, version)| (*lock, *version)))
        );
        let numbers: BTreeMap<_, _> = table.numbers().filter(|(_, number)| number.0 > 0).collect();
        assert_eq!(numbers, self.numbers);
        assert_eq!(table.faults(), []);
        assert!(
            all_pages(store) == self.region,
            "the region's bytes differ after {} records",
            self.records
        );
    }
}

/// The region as a joining node receives it.
pub(crate) fn all_pages(store: &RegionStore) -> Vec<u8> {
    let (mut bytes, mut next) = (vec![0; store.table().bytes as usize], Some(0));
    while let Some(from) = next {
        let run = store.page_run(from, 8192);
        bytes[run.offset as usize..][..run.bytes.len()].copy_from_slice(&run.bytes);
        next = run.next;
    }
    bytes
}

pub(crate) fn plan(log_bytes: u64) -> RegionPlan {
    RegionPlan {
        bytes: BYTES,
        address: 0,
        spans: Spans::even(LOCKS * SPAN, SPAN).unwrap(),
        log_bytes,
        nodes_settings: String::new(),
    }
}

pub(crate) fn open(root: &Path) -> RegionStore {
    RegionStore::open(root, || ()).unwrap().0
}

pub(crate) fn joining(number: u64) -> NewNode {
    NewNode {
        name: format!("node {number}"),
        view: View::first(JournalId(u128::from(number))),
        key: vec![number as u8; 32],
        begins: ChainPoint::default(),
    }
}

/// Lets nodes leave and join as the next record needs.
pub(crate) fn turn_over(store: &mut RegionStore) {
    let terms = store.table().counters.position.0 / TERM;
    while store.table().counters.gone < terms {
        let eldest = store.table().nodes.iter().map(|node| node.id).min().unwrap();
        store.fence(eldest).unwrap();
        store.retire(eldest).unwrap();
    }
    while store.table().counters.last_node.0 < terms + NODES {
        let next = store.table().counters.last_node.next();
        let (id, _) = store.join(joining(next.0)).unwrap();
        assert_eq!(id, next);
    }
}

/// Merges the next records of the history.
pub(crate) fn go_on(store: &mut RegionStore, model: &mut RegionModel, records: u64) {
    for _ in 0..records {
        turn_over(store);
        let record = model.step();
        let stored = store.merge(
            record.node,
            record.number,
            Some(record.end),
            &record.payload(store.segment()),
        );
        assert_eq!(stored.unwrap().position.0, model.records);
    }
}
