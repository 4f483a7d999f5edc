//! Merging the journals in nodes' directories, wherever the nodes were interrupted.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::common::history::{NODES, RegionModel, TERM, open, payload, plan};
use crate::common::{PATIENCE, TestRng};
use netram_journal::{Journal, JournalConfig};
use netram_proto::id::Lsn;
use netram_proto::journal::Voter;
use netram_proto::port::RecordLog;
use netram_proto::wire::ChainPoint;
use netram_rvm::record::KIND_COMPACT;
use netram_shared::server::{NewNode, OfflineError, RegionStore, merge_orphans};
use netram_shared_machine::{LockId, NodeId, Stamp};
use netram_store::{JournalLayout, Store};

/// A child that has not called `exec` yet has copies of this process's files, and with them its locks. So no
/// test opens a region while another one starts a child.
static ALONE: Mutex<()> = Mutex::new(());

const PLACE: &str = "NETRAM_TEST_REGION";
const SEED: u64 = 21;

/// A region whose nodes have joined, and their directories, with the history's first records.
struct OrphanRegion {
    directory: tempfile::TempDir,
    model: RegionModel,
}

impl OrphanRegion {
    /// All records are acknowledged; the server has received the first `merged`.
    fn new(records: u64, merged: u64) -> OrphanRegion {
        OrphanRegion::with(records, merged, |_, _| None)
    }

    /// The same, with one more record of the first node.
    fn with(
        records: u64,
        merged: u64,
        more: impl FnOnce(&RegionModel, u32) -> Option<Vec<u8>>,
    ) -> OrphanRegion {
        assert!(records <= TERM, "the history's nodes are the first ones");
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("region");
        RegionStore::create(&root, &plan(64 * 1024)).unwrap();
        let mut store = open(&root);
        let segment = store.segment();
        let mut journals = Vec::new();
        for node in 1..=NODES {
            let home = Store::create(
                &OrphanRegion::node_in(directory.path(), node),
                JournalLayout::Directory,
                1 << 20,
            )
            .unwrap();
            let config = JournalConfig {
                voter: Voter::Server,
                ..home.settings().unwrap().journal_config().unwrap()
            };
            let (journal, _) = Journal::open(home.path(), config).unwrap();
            let joining = NewNode {
                name: String::new(),
                view: journal.newest_view(),
                key: Vec::new(),
                begins: journal.link_at(journal.state().tail).unwrap(),
            };
            store.join(joining).unwrap();
            journals.push(journal);
        }
        let mut model = RegionModel::new(SEED);
        for index in 0..records {
            let record = model.step();
            let payload = record.payload(segment);
            let journal = &journals[record.node.0 as usize - 1];
            let fill = &mut |into: &mut [u8]| into.copy_from_slice(&payload);
            let (_, end) = journal.append_linked(KIND_COMPACT, payload.len(), fill).unwrap();
            if index < merged {
                store
                    .merge(record.node, record.number, Some(end), &payload)
                    .unwrap();
            }
        }
        if let Some(payload) = more(&model, segment) {
            let fill = &mut |into: &mut [u8]| into.copy_from_slice(&payload);
            journals[0].append(KIND_COMPACT, payload.len(), fill).unwrap();
        }
        for journal in journals {
            let deadline = Instant::now() + PATIENCE;
            while journal.stable_link().lsn < journal.state().tail {
                assert!(Instant::now() < deadline, "the disk follows");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        store.close().unwrap();
        OrphanRegion { directory, model }
    }

    fn region(&self) -> PathBuf {
        self.directory.path().join("region")
    }

    fn node_in(directory: &Path, node: u64) -> PathBuf {
        directory.join(format!("node-{node}"))
    }

    fn nodes(directory: &Path) -> Vec<PathBuf> {
        (1..=NODES)
            .map(|node| OrphanRegion::node_in(directory, node))
            .collect()
    }

    fn dirs(&self) -> Vec<PathBuf> {
        OrphanRegion::nodes(self.directory.path())
    }
}

#[test]
fn merging_all_orphans_completes_the_region() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for merged in [0, 7, TERM] {
        let left = OrphanRegion::new(TERM, merged);
        let mut store = open(&left.region());
        let done = merge_orphans(&mut store, &left.dirs(), false).unwrap();
        left.model.assert_is(&store);
        assert_eq!(done.iter().map(|one| one.merged).sum::<u64>(), TERM - merged);
        assert_eq!(
            store.table().counters.gone,
            NODES,
            "nothing more will come of them"
        );
        // A second merge finds nothing, and changes nothing.
        let again = merge_orphans(&mut store, &left.dirs(), false).unwrap();
        assert!(again.iter().all(|one| one.merged == 0));
        left.model.assert_is(&store);
        drop(store);
        left.model.assert_is(&open(&left.region()));
    }
}

/// After a total power failure this was refused as another journal, and the node's locks stayed taken.
#[test]
fn a_region_may_have_more_records_than_a_slower_nodes_disk() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = OrphanRegion::new(10, 10);
    let mut store = open(&left.region());
    let record = left.model.step();
    let end = ChainPoint {
        lsn: Lsn(1 << 30),
        ..record.end
    };
    let payload = record.payload(store.segment());
    store
        .merge(record.node, record.number, Some(end), &payload)
        .unwrap();
    let done = merge_orphans(&mut store, &left.dirs(), false).unwrap();
    assert!(done.iter().all(|one| one.merged == 0));
    let its = done.iter().find(|one| one.node == record.node);
    assert_eq!(its.unwrap().last, record.number);
    assert_eq!(store.table().counters.gone, NODES);
    left.model.assert_is(&store);
}

#[test]
fn a_missing_record_is_named_and_nothing_changes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let left = OrphanRegion::new(TERM, 5);
    let mut store = open(&left.region());
    let before = store.table().clone();
    let error = merge_orphans(&mut store, &left.dirs()[..2], false).unwrap_err();
    let OfflineError::Missing(missing) = &error else {
        panic!("{error}");
    };
    let first = missing[0];
    assert!(first.needs > first.stands && first.node < NodeId(3), "{first}");
    for named in [
        format!("lock {}", first.lock),
        format!("record {}", first.number),
        format!("node {}", first.node),
    ] {
        assert!(error.to_string().contains(&named), "{error}");
    }
    assert_eq!(store.table(), &before);
    RegionModel::after(SEED, 5).assert_is(&store);
    merge_orphans(&mut store, &left.dirs(), false).unwrap();
    left.model.assert_is(&store);
}

#[test]
fn foreign_empty_and_duplicate_directories_are_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let left = OrphanRegion::new(10, 3);
    let mut store = open(&left.region());
    let alien = Store::create(
        &left.directory.path().join("alien"),
        JournalLayout::Directory,
        1 << 20,
    )
    .unwrap();
    let refused = merge_orphans(&mut store, &[alien.path().to_owned()], false);
    assert!(matches!(refused, Err(OfflineError::Alien { .. })), "{refused:?}");
    let refused = merge_orphans(&mut store, &[left.directory.path().join("none")], false);
    assert!(
        matches!(refused, Err(OfflineError::Journal { .. })),
        "{refused:?}"
    );
    // The parent directory of the node's, for example: nothing would be merged, which would look like
    // success.
    let empty = left.directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let refused = merge_orphans(&mut store, &[left.dirs(), vec![empty]].concat(), false);
    assert!(matches!(refused, Err(OfflineError::Empty { .. })), "{refused:?}");
    // An older copy of the directory: two copies would be merged over each other.
    let (one, copy) = (left.dirs()[0].clone(), left.directory.path().join("copy"));
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(&one).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let refused = merge_orphans(&mut store, &[one, copy], false);
    assert!(matches!(refused, Err(OfflineError::Twice { .. })), "{refused:?}");
    RegionModel::after(SEED, 3).assert_is(&store);
}

#[test]
fn an_orphan_record_outside_its_locks_is_refused_by_number() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // The first node's last record changes bytes of lock 0, but has a stamp of lock 2.
    let left = OrphanRegion::with(10, 10, |model, segment| {
        let version = model.versions.get(&LockId(2)).copied().unwrap_or_default();
        let stamp = Stamp {
            written: vec![(LockId(2), version.next())],
            read: Vec::new(),
        };
        Some(payload(&stamp, segment, &[(0, vec![1; 8])]))
    });
    let mut store = open(&left.region());
    let number = store.table().node(NodeId(1)).unwrap().merged.next();
    let error = merge_orphans(&mut store, &left.dirs(), false).unwrap_err();
    assert!(
        matches!(&error, OfflineError::Record { number: found, node: NodeId(1), .. } if *found == number),
        "{error}"
    );
    left.model.assert_is(&store);
}

#[test]
#[ignore = "the process that the other test kills"]
fn merger() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let mut store = open(&directory.join("region"));
    merge_orphans(&mut store, &OrphanRegion::nodes(&directory), false).unwrap();
    store.close().unwrap();
}

#[test]
fn a_killed_merge_can_be_repeated() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut random = TestRng(9);
    for round in 0..2 {
        let left = OrphanRegion::new(TERM, 4);
        // Longer each time, until one attempt finishes, however slow the machine.
        for attempt in 0.. {
            let mut merger = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "offline::merger", "--ignored", "--nocapture"])
                .env(PLACE, left.directory.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let end = Instant::now() + Duration::from_millis(random.below(20) + (attempt * attempt));
            while Instant::now() < end && merger.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            let _ = merger.kill();
            if merger.wait().unwrap().success() {
                break;
            }
            let store = open(&left.region());
            let position = store.table().counters.position.0;
            assert!(
                position >= 4 && store.table().faults().is_empty(),
                "round {round}"
            );
            assert!(attempt < 1000, "it never comes to its end");
        }
        left.model.assert_is(&open(&left.region()));
    }
}
