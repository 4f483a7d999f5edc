//! Random operations on a directory, interrupted at random points. Synced content is there afterwards, and
//! the names match some moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::log::MemoryLog;
use netram_files::model::{MemoryDisk, ModelInode};
use netram_files::{
    AttributeChange, ChangeError, DirectoryChange, DirectoryEntry, DirectoryOptions, DirectoryRecovery,
    FallocateMode, FileOwner, FileTree, InodeId, InodeKind, InodeSpec, JournaledDirectory, NameTable,
    OpenFile,
};
use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{Durability, IoError};
use proptest::prelude::*;

type Tested = JournaledDirectory<MemoryLog, MemoryDisk, MemoryDisk>;

/// A requested operation. Its numbers choose among the existing inodes.
#[derive(Clone, Debug)]
enum Wish {
    Make {
        directory: u8,
        name: u8,
        kind: u8,
    },
    Link {
        node: u8,
        directory: u8,
        name: u8,
    },
    Remove {
        directory: u8,
        name: u8,
    },
    Rename {
        from: (u8, u8),
        to: (u8, u8),
        exchange: bool,
    },
    Write {
        node: u8,
        offset: u16,
        bytes: Vec<u8>,
    },
    Resize {
        node: u8,
        size: u16,
    },
    Allocate {
        node: u8,
        how: u8,
        offset: u16,
        length: u16,
    },
    Mode {
        node: u8,
        mode: u16,
    },
    Label {
        node: u8,
        name: u8,
        value: Option<Vec<u8>>,
    },
    Sync {
        node: u8,
    },
    Checkpoint,
}

/// The operation under way at the crash: the disk completes `steps` of it, the journal accepts `records`, and
/// trims or not.
#[derive(Clone, Debug)]
struct Last {
    wish: Wish,
    steps: u64,
    records: u64,
    trims: bool,
}

fn last() -> impl Strategy<Value = Last> {
    // A checkpoint has the most steps.
    let wish = prop_oneof![wish(), Just(Wish::Checkpoint)];
    (wish, 0..12_u64, 0..4_u64, any::<bool>()).prop_map(|(wish, steps, records, trims)| Last {
        wish,
        steps,
        records,
        trims,
    })
}

/// Kind of crash.
#[derive(Clone, Debug)]
enum End {
    /// The process is killed.
    Kill,
    /// The power fails. The number seeds the choice of what reached the platter.
    Power(u64),
}

fn wish() -> impl Strategy<Value = Wish> {
    let place = || (0..4_u8, 0..4_u8);
    prop_oneof![
        4 => (place(), 0..6_u8).prop_map(|((directory, name), kind)| Wish::Make { directory, name, kind }),
        1 => (any::<u8>(), place()).prop_map(|(node, (directory, name))| Wish::Link { node, directory, name }),
        2 => place().prop_map(|(directory, name)| Wish::Remove { directory, name }),
        3 => (place(), place(), prop::bool::weighted(0.2))
            .prop_map(|(from, to, exchange)| Wish::Rename { from, to, exchange }),
        6 => (any::<u8>(), 0..900_u16, prop::collection::vec(any::<u8>(), 1..900))
            .prop_map(|(node, offset, bytes)| Wish::Write { node, offset, bytes }),
        1 => (any::<u8>(), 0..2000_u16).prop_map(|(node, size)| Wish::Resize { node, size }),
        1 => (any::<u8>(), 0..5_u8, 0..900_u16, 1..900_u16)
            .prop_map(|(node, how, offset, length)| Wish::Allocate { node, how, offset, length }),
        1 => (any::<u8>(), 0..0o777_u16).prop_map(|(node, mode)| Wish::Mode { node, mode }),
        1 => (any::<u8>(), 0..2_u8, prop::option::of(prop::collection::vec(any::<u8>(), 0..9)))
            .prop_map(|(node, name, value)| Wish::Label { node, name, value }),
        3 => any::<u8>().prop_map(|node| Wish::Sync { node }),
        1 => Just(Wish::Checkpoint),
    ]
}

fn options() -> DirectoryOptions {
    DirectoryOptions {
        journal: JournalId(5),
        durability: Durability::Remote,
        loss_accepted: false,
        // Few, so that files are evicted before a checkpoint.
        files_max: 24,
        on_failed_sync: None,
        reign: None,
        planted: netram_proto::planted::FaultSwitch::NONE,
    }
}

fn open(log: &MemoryLog, disk: &MemoryDisk) -> (Tested, DirectoryRecovery) {
    JournaledDirectory::open(log.clone(), disk.clone(), disk.clone(), options()).expect("it opens")
}

fn made(kind: u8) -> InodeSpec<'static> {
    InodeSpec {
        kind: match kind {
            0 | 1 => InodeKind::Directory,
            2 => InodeKind::Symlink,
            _ => InodeKind::File,
        },
        mode: 0o600,
        owner: FileOwner { user: 7, group: 8 },
        target: if kind == 2 { b"elsewhere" } else { b"" },
    }
}

fn directory_of(directory: &Tested, number: u8) -> InodeId {
    let names = directory.names();
    let directories: Vec<InodeId> = { names.nodes() }
        .filter(|node| names.kind(*node) == Some(InodeKind::Directory))
        .collect();
    directories[usize::from(number) % directories.len()]
}

fn node_of(directory: &Tested, number: u8) -> InodeId {
    let nodes: Vec<InodeId> = directory.names().nodes().collect();
    nodes[usize::from(number) % nodes.len()]
}

fn place_of<'n>(directory: &Tested, (number, name): (u8, u8), names: &'n [String]) -> DirectoryEntry<'n> {
    DirectoryEntry {
        directory: directory_of(directory, number),
        name: names[usize::from(name)].as_bytes(),
    }
}

/// A file chosen by `number`, kept open in `files`.
fn file_of(
    directory: &Tested,
    number: u8,
    files: &mut Vec<Arc<OpenFile<u64>>>,
) -> Option<Arc<OpenFile<u64>>> {
    // Sometimes one opened earlier, which may have no name left.
    if number.is_multiple_of(3) && !files.is_empty() {
        return Some(Arc::clone(&files[usize::from(number) % files.len()]));
    }
    let file = directory.open_file(node_of(directory, number)).ok()?;
    files.push(Arc::clone(&file));
    Some(file)
}

fn do_it(directory: &Tested, wish: &Wish) -> Result<(), ChangeError> {
    let names: Vec<String> = (0..4).map(|name| format!("n{name}")).collect();
    match wish {
        Wish::Make {
            directory: at,
            name,
            kind,
        } => {
            let at = place_of(directory, (*at, *name), &names);
            directory.make(at, made(*kind), None).map(drop)
        }
        Wish::Link {
            node,
            directory: at,
            name,
        } => directory.link(
            node_of(directory, *node),
            place_of(directory, (*at, *name), &names),
            None,
        ),
        Wish::Remove { directory: at, name } => {
            let at = place_of(directory, (*at, *name), &names);
            let node = directory.names().look_up(at);
            let is_directory =
                node.and_then(|node| directory.names().kind(node)) == Some(InodeKind::Directory);
            directory.remove(at, is_directory, None)
        }
        Wish::Rename { from, to, exchange } => {
            let (from, to) = (
                place_of(directory, *from, &names),
                place_of(directory, *to, &names),
            );
            directory.rename(from, to, true, *exchange, None)
        }
        Wish::Write { .. } | Wish::Resize { .. } | Wish::Allocate { .. } => {
            unreachable!("file operations are handled above")
        }
        Wish::Mode { node, mode } => {
            let attributes = AttributeChange {
                mode: Some((*mode).into()),
                ..AttributeChange::default()
            };
            directory.set_attributes(node_of(directory, *node), attributes)
        }
        Wish::Label { node, name, value } => {
            let name = format!("user.{name}");
            directory.set_xattr(node_of(directory, *node), name.as_bytes(), value.as_deref(), None)
        }
        Wish::Sync { node } => directory.sync(node_of(directory, *node)).map(drop),
        Wish::Checkpoint => directory.checkpoint().map_err(ChangeError::Failed),
    }
}

impl Wish {
    /// The changed file, if the operation changes one.
    fn node(&self) -> Option<u8> {
        match self {
            Wish::Write { node, .. } | Wish::Resize { node, .. } | Wish::Allocate { node, .. } => Some(*node),
            _ => None,
        }
    }
}

fn change(directory: &Tested, file: &Arc<OpenFile<u64>>, wish: &Wish) -> Result<(), ChangeError> {
    match wish {
        Wish::Write { offset, bytes, .. } => directory.write(file, (*offset).into(), bytes),
        Wish::Resize { size, .. } => directory.resize(file, (*size).into()),
        Wish::Allocate {
            how, offset, length, ..
        } => directory.allocate(
            file,
            FallocateMode::ALL[usize::from(*how)],
            (*offset).into(),
            (*length).into(),
        ),
        _ => unreachable!("not an operation on a file"),
    }
}

/// A record of the journal.
type Record = (Lsn, netram_proto::port::RecordKind, Vec<u8>);

/// Model: applies the records to an empty disk, one after the other. Returns the paths with their inodes.
fn replay_model<'r>(records: &'r [Record]) -> (BTreeMap<Vec<u8>, ModelInode>, BTreeMap<Vec<u8>, InodeId>) {
    let disk = MemoryDisk::new();
    let mut names = NameTable::new(0o700, FileOwner::default());
    let decoded = |(lsn, kind, payload): &'r Record| {
        (
            *lsn,
            DirectoryChange::decode(*kind, payload)
                .unwrap()
                .expect("a directory's record")
                .0,
        )
    };
    let all: Vec<(Lsn, DirectoryChange<'_>)> = records.iter().map(decoded).collect();
    let refused = |(_, change): &(Lsn, DirectoryChange<'_>)| match change {
        DirectoryChange::Revoked { lsn } => Some(*lsn),
        _ => None,
    };
    let refused: BTreeSet<Lsn> = all.iter().filter_map(refused).collect();
    for (_, change) in all.into_iter().filter(|(lsn, _)| !refused.contains(lsn)) {
        apply(&disk, &names, &change);
        let _ = names.apply(&change);
    }
    let mut called = BTreeMap::new();
    for node in names.nodes() {
        for at in names.names_of(node) {
            called.insert(names.path_of(at).unwrap(), node);
        }
    }
    (disk.contents(), called)
}

/// Model: applies one change to a disk.
fn apply(disk: &MemoryDisk, names: &NameTable, change: &DirectoryChange<'_>) {
    let path = |node: InodeId| names.path(node);
    match *change {
        DirectoryChange::Make { at, spec: made, .. } => {
            disk.make(&names.path_of(at).unwrap(), &made).unwrap()
        }
        DirectoryChange::Link { node, at } => disk
            .link(&path(node).unwrap(), &names.path_of(at).unwrap())
            .unwrap(),
        DirectoryChange::Remove { at } => {
            let node = names.look_up(at).unwrap();
            let is_directory = names.kind(node) == Some(InodeKind::Directory);
            disk.remove(&names.path_of(at).unwrap(), is_directory).unwrap();
        }
        DirectoryChange::Rename { from, to, exchange } => disk
            .rename(
                &names.path_of(from).unwrap(),
                &names.path_of(to).unwrap(),
                exchange,
            )
            .unwrap(),
        DirectoryChange::Write { node, offset, bytes } => {
            if let Some(path) = path(node) {
                disk.write(&disk.open(&path).unwrap(), offset, bytes).unwrap();
            }
        }
        DirectoryChange::Resize { node, size } => {
            if let Some(path) = path(node) {
                disk.resize(&disk.open(&path).unwrap(), size).unwrap();
            }
        }
        DirectoryChange::Allocate {
            node,
            mode: how,
            offset,
            length,
        } => {
            if let Some(path) = path(node) {
                disk.allocate(&disk.open(&path).unwrap(), how, offset, length)
                    .unwrap();
            }
        }
        DirectoryChange::SetAttributes { node, attributes } => {
            if let Some(path) = path(node) {
                disk.set_attributes(&path, &attributes).unwrap();
            }
        }
        DirectoryChange::SetXattr { node, name, value } => {
            if let Some(path) = path(node) {
                disk.set_xattr(&path, name, value).unwrap();
            }
        }
        DirectoryChange::Revoked { .. } => (),
    }
}

/// Content that must survive: of each file its content at the last sync, unless it has changed since.
type Promised = BTreeMap<InodeId, Vec<u8>>;

/// Updates the promised content after an operation that succeeded.
fn promise(
    directory: &Tested,
    disk: &MemoryDisk,
    wish: &Wish,
    changed: Option<InodeId>,
    promised: &mut Promised,
) {
    let names = directory.names();
    let contents = disk.contents();
    let bytes = |node: InodeId| {
        let path = names.path(node)?;
        let inode = contents.get(&path)?;
        (inode.kind == InodeKind::File).then(|| inode.bytes.clone())
    };
    match wish {
        Wish::Sync { node } => {
            let nodes: Vec<InodeId> = names.nodes().collect();
            let node = nodes[usize::from(*node) % nodes.len()];
            promised.extend(bytes(node).map(|bytes| (node, bytes)));
        }
        Wish::Checkpoint => promised.extend({ names.nodes() }.filter_map(|node| Some((node, bytes(node)?)))),
        _ => drop(changed.map(|node| promised.remove(&node))),
    }
}

/// Inodes with lost records: they were not synced, so that any content is allowed.
fn of_lost(all: &[Record], kept: usize) -> BTreeSet<InodeId> {
    let node = |(_, kind, payload): &Record| match DirectoryChange::decode(*kind, payload) {
        Ok(Some((
            DirectoryChange::Write { node, .. }
            | DirectoryChange::Resize { node, .. }
            | DirectoryChange::Allocate { node, .. }
            | DirectoryChange::SetAttributes { node, .. }
            | DirectoryChange::SetXattr { node, .. },
            _,
        ))) => Some(node),
        _ => None,
    };
    all[kept..].iter().filter_map(node).collect()
}

fn check_recovered(log: &MemoryLog, disk: &MemoryDisk, lost: &BTreeSet<InodeId>, promised: &Promised) {
    let (expected, called) = replay_model(&log.records());
    let found = disk.contents();
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>(),
        "names"
    );
    for (path, inode) in &expected {
        assert_eq!(found[path].kind, inode.kind);
        let (found, node) = (&found[path], called[path]);
        if !lost.contains(&node) {
            let but_bytes = |inode: &ModelInode| (inode.mode, inode.owner, inode.xattrs.clone());
            assert_eq!(but_bytes(found), but_bytes(inode), "{}", path.escape_ascii());
        }
        if let Some(bytes) = promised.get(&node) {
            assert!(
                &found.bytes == bytes,
                "{}: differs from its synced content",
                path.escape_ascii()
            );
        }
        if inode.kind != InodeKind::File {
            assert_eq!(found.bytes, inode.bytes);
        }
    }
    for (one, node) in &called {
        for (other, its) in &called {
            assert_eq!(
                disk.is_same_file(one, other),
                node == its,
                "the number of files differs"
            );
        }
    }
}

fn chance(seed: u64) -> impl FnMut() -> bool {
    let mut state = seed | 1;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 62 != 0
    }
}

/// `PROPTEST_CASES` raises the number of cases.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(2000)
}

/// Begins the last operation and stops it between two of its steps.
fn interrupt(
    directory: &Tested,
    (disk, log): (&MemoryDisk, &MemoryLog),
    last: &Last,
    files: &mut Vec<Arc<OpenFile<u64>>>,
    promised: &mut Promised,
    lost: &mut BTreeSet<InodeId>,
) {
    disk.fail_after(last.steps);
    log.stop_after(last.records, last.trims);
    let (mut changed, before) = (None, promised.clone());
    let dressed = match last.wish {
        Wish::Mode { node, .. } | Wish::Label { node, .. } => Some(node_of(directory, node)),
        _ => None,
    };
    let done = match last.wish.node().map(|number| file_of(directory, number, files)) {
        None => do_it(directory, &last.wish),
        Some(None) => Ok(()),
        Some(Some(file)) => {
            changed = Some(file.node());
            change(directory, &file, &last.wish)
        }
    };
    match done {
        Ok(()) => promise(directory, disk, &last.wish, changed, promised),
        Err(_) => {
            // The change may be half done. A sync or checkpoint changes nothing.
            *promised = before;
            changed.map(|node| promised.remove(&node));
            lost.extend(dressed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_recovered_directory_matches_its_journal(
        lives in prop::collection::vec(
            (prop::collection::vec(wish(), 0..40), last(), prop_oneof![Just(End::Kill), any::<u64>().prop_map(End::Power)], any::<u8>(), 0..60_u64),
            1..4,
        ),
        capacity in prop_oneof![Just(1_u64 << 30), 3_000..20_000_u64],
    ) {
        let disk = MemoryDisk::new();
        let mut log = MemoryLog::new(capacity);
        let (mut lost, mut promised) = (BTreeSet::new(), Promised::new());
        for (wishes, last, end, more, cut) in lives {
            let (directory, _) = open(&log, &disk);
            check_recovered(&log, &disk, &lost, &promised);
            let mut files = Vec::new();
            for wish in &wishes {
                let (mut changed, mut done) = (None, Ok(()));
                if let Some(file) = wish.node().and_then(|number| file_of(&directory, number, &mut files)) {
                    changed = Some(file.node());
                    done = change(&directory, &file, wish);
                } else if wish.node().is_none() {
                    done = do_it(&directory, wish);
                }
                if done.is_ok() {
                    promise(&directory, &disk, wish, changed, &mut promised);
                }
                let few = Err(ChangeError::Disk(IoError::ENFILE));
                prop_assert!(done == few || matches!(done, Ok(()) | Err(ChangeError::Name(_))), "{wish:?}: {done:?}");
            }
            interrupt(&directory, (&disk, &log), &last, &mut files, &mut promised, &mut lost);
            let all = log.records();
            let kept = usize::from(more) % (log.open_records() + 1);
            log = log.crash(kept);
            // Unrecorded writes may be in files, and stay there.
            lost.extend(of_lost(&all, log.records().len()));
            match end {
                End::Kill => disk.kill(),
                End::Power(seed) => disk.power_off(chance(seed)),
            }
            // Recovery itself is interrupted, and the disk may lose what it did not sync.
            disk.fail_after(cut);
            drop(directory);
            let cut_off = JournaledDirectory::open(log.clone(), disk.clone(), disk.clone(), options());
            disk.kill();
            if let (Err(_), End::Power(seed)) = (&cut_off, &end) {
                disk.power_off(chance(seed ^ 0x5555));
            }
        }
        let (directory, _) = open(&log, &disk);
        check_recovered(&log, &disk, &lost, &promised);
        let log = directory.close().unwrap();
        // Everything is on the platter, and the directory can be changed again.
        disk.power_off(|| false);
        check_recovered(&log, &disk, &lost, &promised);
        disk.create_foreign_file(b"new");
        let (directory, recovered) = open(&log, &disk);
        prop_assert_eq!(recovered, DirectoryRecovery::default());
        let place = DirectoryEntry { directory: InodeId::ROOT, name: b"new" };
        prop_assert!(directory.names().look_up(place).is_some());
    }
}
