//! Behaviour of a directory when the disk fails, or when files change behind its back.

use crate::common::log::MemoryLog;
use netram_files::model::MemoryDisk;
use netram_files::{
    ChangeError, CheckpointError, DirectoryEntry, DirectoryOpenError, DirectoryOptions, FileOwner, FileTree,
    InodeId, InodeKind, InodeSpec, JournaledDirectory,
};
use netram_proto::id::JournalId;
use netram_proto::port::{Durability, IoError, RecordLog};

type Tested = JournaledDirectory<MemoryLog, MemoryDisk, MemoryDisk>;

const OPTIONS: DirectoryOptions = DirectoryOptions {
    journal: JournalId(5),
    durability: Durability::Remote,
    loss_accepted: false,
    files_max: 1 << 20,
    on_failed_sync: None,
    reign: None,
    planted: netram_proto::planted::FaultSwitch::NONE,
};

fn new() -> (MemoryLog, MemoryDisk, Tested) {
    let (log, disk) = (MemoryLog::new(1 << 20), MemoryDisk::new());
    let directory = open(&log, &disk).unwrap();
    (log, disk, directory)
}

fn open(log: &MemoryLog, disk: &MemoryDisk) -> Result<Tested, DirectoryOpenError> {
    JournaledDirectory::open(log.clone(), disk.clone(), disk.clone(), OPTIONS).map(|(directory, _)| directory)
}

fn at(name: &str) -> DirectoryEntry<'_> {
    DirectoryEntry {
        directory: InodeId::ROOT,
        name: name.as_bytes(),
    }
}

fn make(directory: &Tested, name: &str) -> Result<InodeId, ChangeError> {
    let made = InodeSpec {
        kind: InodeKind::File,
        mode: 0o600,
        owner: FileOwner::default(),
        target: b"",
    };
    directory.make(at(name), made, None)
}

fn rename(directory: &Tested, from: &str, to: &str) {
    directory.rename(at(from), at(to), true, false, None).unwrap();
}

fn write(directory: &Tested, node: InodeId, bytes: &[u8]) -> Result<(), ChangeError> {
    let file = directory.open_file(node)?;
    directory.write(&file, 0, bytes)?;
    directory.sync(node).map(drop)
}

fn is_there(disk: &MemoryDisk, name: &str) -> Option<Vec<u8>> {
    let inode = disk.contents().remove(name.as_bytes())?;
    Some(inode.bytes)
}

#[test]
fn a_failed_sync_stops_all_changes_and_loses_nothing() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    write(&directory, node, b"first").unwrap();
    disk.fail_after(0);
    assert_eq!(directory.checkpoint(), Err(CheckpointError::Sync(IoError::EIO)));
    // Later syncs succeed and are not trusted.
    disk.kill();
    let failed = CheckpointError::Sync(IoError::EIO);
    assert_eq!(directory.checkpoint(), Err(failed));
    assert_eq!(
        write(&directory, node, b"second"),
        Err(ChangeError::Failed(failed))
    );
    assert_eq!(make(&directory, "other"), Err(ChangeError::Failed(failed)));
    assert_eq!(directory.status().failed, Some(failed));
    drop(directory);
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log").unwrap(), b"first");
}

/// After a failed sync the page cache still showed the bytes that the disk never got. A program found them
/// when the directory was open again, synced the file and relied on them; the next power failure took them
/// (seed 40730 of the simulator).
#[test]
fn bytes_lost_by_a_failed_sync_are_not_read_back() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    write(&directory, node, b"first").unwrap();
    directory.checkpoint().unwrap();
    let file = directory.open_file(node).unwrap();
    directory.write(&file, 0, b"other").unwrap();
    disk.fail_once_after(0);
    assert_eq!(directory.checkpoint(), Err(CheckpointError::Sync(IoError::EIO)));
    drop((file, directory));
    disk.kill();
    let log = log.crash(0);
    let directory = open(&log, &disk).unwrap();
    let found = is_there(&disk, "log");
    directory.sync(node).unwrap();
    drop(directory);
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log"), found);
}

#[test]
fn recovery_skips_a_name_that_the_disk_refused() {
    let (log, disk, directory) = new();
    make(&directory, "first").unwrap();
    disk.fail_after(0);
    assert_eq!(make(&directory, "second"), Err(ChangeError::Disk(IoError::EIO)));
    disk.kill();
    // The name is free, as the refused caller expects.
    make(&directory, "second").unwrap();
    directory.remove(at("second"), false, None).unwrap();
    drop(directory);
    open(&log.crash(usize::MAX / 2), &disk).unwrap();
    assert_eq!(is_there(&disk, "second"), None);
    assert!(is_there(&disk, "first").is_some());
}

#[test]
fn a_write_that_does_not_fit_on_the_disk_is_not_recorded() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    write(&directory, node, b"fits").unwrap();
    disk.set_room(Some(6));
    let tail = directory.log().state().tail;
    assert_eq!(
        write(&directory, node, b"does not"),
        Err(ChangeError::Disk(IoError::ENOSPC))
    );
    assert_eq!(directory.log().state().tail, tail);
    drop(directory);
    disk.set_room(None);
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log").unwrap(), b"fits");
}

#[test]
fn an_added_or_missing_file_stops_recovery_before_any_change() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    directory.checkpoint().unwrap();
    write(&directory, node, b"newer").unwrap();
    drop(directory);
    disk.create_foreign_file(b"strange");
    let path = b"strange".to_vec();
    assert_eq!(
        open(&log, &disk).err(),
        Some(DirectoryOpenError::UnknownFile { path })
    );
    disk.remove(b"strange", false).unwrap();
    disk.remove(b"log", false).unwrap();
    let path = b"log".to_vec();
    assert_eq!(
        open(&log, &disk).err(),
        Some(DirectoryOpenError::Missing { path: path.clone() })
    );
    // Another file with the same name does not count.
    disk.create_foreign_file(b"log");
    assert_eq!(
        open(&log, &disk).err(),
        Some(DirectoryOpenError::Missing { path })
    );
    assert_eq!(is_there(&disk, "log").unwrap(), b"");
}

#[test]
fn a_journal_is_opened_only_with_its_own_catalog() {
    let (log, disk, directory) = new();
    make(&directory, "log").unwrap();
    drop(directory);
    let other = DirectoryOptions {
        journal: JournalId(6),
        ..OPTIONS
    };
    let opened = JournaledDirectory::open(log.clone(), disk.clone(), disk.clone(), other);
    assert!(matches!(opened, Err(DirectoryOpenError::OtherJournal)));
    netram_files::CatalogStore::clear(&disk).unwrap();
    assert_eq!(open(&log, &disk).err(), Some(DirectoryOpenError::NoCatalog));
    open(&MemoryLog::new(1 << 20), &disk).expect("an empty journal accepts the directory as it is");
}

#[test]
fn a_change_that_meets_a_full_journal_runs_a_checkpoint() {
    let (log, disk) = (MemoryLog::new(2_000), MemoryDisk::new());
    let directory = open(&log, &disk).unwrap();
    let node = make(&directory, "log").unwrap();
    for round in 0..100_u8 {
        write(&directory, node, &[round; 300]).unwrap();
        let name = format!("file-{round}");
        make(&directory, &name).unwrap();
        rename(&directory, &name, "current");
    }
    drop(directory);
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log").unwrap(), [99; 300]);
    assert_eq!(disk.contents().len(), 2);
}

#[test]
fn an_open_file_without_a_name_can_be_written_until_it_is_closed() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    let file = directory.open_file(node).unwrap();
    directory.write(&file, 0, b"named").unwrap();
    directory.remove(at("log"), false, None).unwrap();
    directory.write(&file, 0, b"nameless").unwrap();
    assert_eq!(directory.sync(node), Ok(directory.sync(node).unwrap()));
    assert_eq!(
        directory.open_file(node).unwrap().node(),
        node,
        "its open handle still reads it"
    );
    drop((file, directory));
    open(&log.crash(0), &disk).unwrap();
    assert!(disk.contents().is_empty());
}

#[test]
fn with_accepted_loss_names_ahead_of_the_journal_stay() {
    let (log, disk, directory) = new();
    let node = make(&directory, "known").unwrap();
    write(&directory, node, b"known").unwrap();
    directory.checkpoint().unwrap();
    make(&directory, "kept").unwrap();
    let before = log.state().tail;
    let ahead = make(&directory, "ahead").unwrap();
    write(&directory, ahead, b"ahead").unwrap();
    directory.remove(at("known"), false, None).unwrap();
    drop(directory);
    let shorter = log.cut(before);
    assert!(matches!(
        open(&shorter, &disk),
        Err(DirectoryOpenError::Missing { .. })
    ));
    let lossy = DirectoryOptions {
        loss_accepted: true,
        ..OPTIONS
    };
    let (directory, _) = JournaledDirectory::open(shorter, disk.clone(), disk.clone(), lossy).unwrap();
    assert_eq!(is_there(&disk, "ahead").unwrap(), b"ahead");
    assert!(is_there(&disk, "kept").is_some() && is_there(&disk, "known").is_none());
    let ahead = directory.names().look_up(at("ahead")).unwrap();
    write(&directory, ahead, b"again").unwrap();
    directory.close().unwrap();
    assert_eq!(is_there(&disk, "ahead").unwrap(), b"again");
}

#[test]
fn the_next_sync_records_what_could_not_be_recorded() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    let file = directory.open_file(node).unwrap();
    directory.write(&file, 0, b"written").unwrap();
    log.close(true);
    assert!(matches!(directory.sync(node), Err(ChangeError::Append(_))));
    assert!(matches!(directory.record_written(), Err(ChangeError::Append(_))));
    log.close(false);
    directory.sync(node).unwrap();
    drop((file, directory));
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log").unwrap(), b"written");
}

#[test]
fn writes_are_recorded_before_a_rename() {
    let (log, disk, directory) = new();
    let node = make(&directory, "new").unwrap();
    make(&directory, "current").unwrap();
    let file = directory.open_file(node).unwrap();
    directory.write(&file, 0, b"whole").unwrap();
    rename(&directory, "new", "current");
    drop((file, directory));
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "current").unwrap(), b"whole");
    assert_eq!(is_there(&disk, "new"), None);
}

#[test]
fn a_range_written_repeatedly_is_recorded_once() {
    let (log, _, directory) = new();
    let node = make(&directory, "log").unwrap();
    let file = directory.open_file(node).unwrap();
    let before = log.records().len();
    for round in 0..100_u8 {
        directory
            .write(&file, u64::from(round % 4) * 100, &[round; 100])
            .unwrap();
    }
    directory.sync(node).unwrap();
    assert_eq!(log.records().len(), before + 1);
    directory.sync(node).unwrap();
    assert_eq!(log.records().len(), before + 1, "no second record");
}

#[test]
fn a_catalog_without_room_is_written_later() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    write(&directory, node, b"first").unwrap();
    disk.set_catalog_writable(false);
    let full = CheckpointError::CatalogIo(IoError::ENOSPC);
    assert_eq!(directory.checkpoint(), Err(full));
    // The journal has everything and accepts further records.
    write(&directory, node, b"second").unwrap();
    make(&directory, "other").unwrap();
    assert_eq!(directory.status().failed, None);
    disk.set_catalog_writable(true);
    directory.checkpoint().unwrap();
    assert_eq!(log.state().head, log.state().tail);
    drop(directory);
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log").unwrap(), b"second");
    assert!(is_there(&disk, "other").is_some());
}

/// The file on the disk is complete, yet a crash makes it anew from its records: the catalog with it did not
/// fit on the disk.
#[test]
fn pending_writes_survive_a_checkpoint_without_a_catalog() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    {
        let file = directory.open_file(node).unwrap();
        directory.write(&file, 0, b"written, and not recorded").unwrap();
    }
    disk.set_catalog_writable(false);
    directory.checkpoint().unwrap_err();
    directory.sync(node).unwrap();
    disk.set_catalog_writable(true);
    drop(directory);
    disk.kill();
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log").unwrap(), b"written, and not recorded");
}

#[test]
fn a_full_journal_refuses_changes_until_a_checkpoint_succeeds() {
    let (log, disk) = (MemoryLog::new(2_000), MemoryDisk::new());
    let directory = open(&log, &disk).unwrap();
    let node = make(&directory, "log").unwrap();
    disk.set_catalog_writable(false);
    let refused = (0..100_u8).find_map(|round| write(&directory, node, &[round; 300]).err());
    let full = ChangeError::Full(CheckpointError::CatalogIo(IoError::ENOSPC));
    assert_eq!(refused, Some(full));
    disk.set_catalog_writable(true);
    write(&directory, node, b"again").unwrap();
    drop(directory);
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log").unwrap()[..5], *b"again");
}

#[test]
fn a_journal_is_not_replayed_into_another_directory() {
    let (log, disk, directory) = new();
    make(&directory, "log").unwrap();
    drop(directory);
    let other = MemoryDisk::number(1);
    let catalog = netram_files::CatalogStore::load(&disk).unwrap().unwrap();
    netram_files::CatalogStore::store(&other, &catalog).unwrap();
    assert_eq!(open(&log, &other).err(), Some(DirectoryOpenError::OtherDirectory));
    assert!(other.contents().is_empty());
    let directory = open(&log, &disk).unwrap();
    // Its own disk is up to date now.
    directory.checkpoint().unwrap();
    drop(directory);
    let catalog = netram_files::CatalogStore::load(&disk).unwrap().unwrap();
    netram_files::CatalogStore::store(&other, &catalog).unwrap();
    open(&log, &other).unwrap();
    assert!(is_there(&disk, "log").is_some());
}

/// If a file is shortened before that is recorded, a crash leaves it short, and replay cannot restore the
/// lost middle: the journal has only its newest part.
#[test]
fn a_truncation_is_atomic() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    write(&directory, node, b"checkpointed, ").unwrap();
    directory.checkpoint().unwrap();
    let file = directory.open_file(node).unwrap();
    directory.write(&file, 14, b"and recorded").unwrap();
    directory.sync(node).unwrap();
    log.stop_after(0, true);
    assert!(directory.resize(&file, 0).is_err());
    drop((file, directory));
    disk.kill();
    let log = log.crash(0);
    let directory = open(&log, &disk).unwrap();
    let whole = b"checkpointed, and recorded".to_vec();
    assert_eq!(is_there(&disk, "log"), Some(whole));
    let file = directory.open_file(node).unwrap();
    directory.resize(&file, 5).unwrap();
    drop((file, directory));
    disk.power_off(|| false);
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(
        is_there(&disk, "log"),
        Some(b"check".to_vec()),
        "the record is held when resize returns"
    );
}

#[test]
fn recovery_skips_a_length_that_the_disk_refused() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    write(&directory, node, b"something").unwrap();
    let file = directory.open_file(node).unwrap();
    disk.fail_once_after(0);
    assert!(matches!(directory.resize(&file, 3), Err(ChangeError::Disk(_))));
    directory.write(&file, 9, b" else").unwrap();
    directory.sync(node).unwrap();
    drop((file, directory));
    disk.kill();
    open(&log.crash(0), &disk).unwrap();
    assert_eq!(is_there(&disk, "log"), Some(b"something else".to_vec()));
}

/// Summary of recovery after a crash that keeps `more` of the unsynced records.
fn recovered(log: &MemoryLog, disk: &MemoryDisk, more: usize) -> netram_files::DirectoryRecovery {
    let opened = JournaledDirectory::open(log.crash(more), disk.clone(), disk.clone(), OPTIONS);
    opened.unwrap().1
}

/// The journal's disk was full for a moment, hours before the server was killed. Three files came back empty,
/// although the disk had all their bytes.
#[test]
fn a_file_without_a_record_keeps_its_bytes_when_the_server_is_killed() {
    let (log, disk, directory) = new();
    make(&directory, "earlier").unwrap();
    disk.set_catalog_writable(false);
    assert_eq!(
        directory.checkpoint(),
        Err(CheckpointError::CatalogIo(IoError::ENOSPC))
    );
    disk.set_catalog_writable(true);
    for name in ["copied", "edited"] {
        let file = directory.open_file(make(&directory, name).unwrap()).unwrap();
        directory.write(&file, 0, b"of which no record is").unwrap();
    }
    make(&directory, "empty").unwrap();
    let renamed = make(&directory, "renamed").unwrap();
    write(&directory, renamed, b"and recorded").unwrap();
    rename(&directory, "renamed", "there");
    drop(directory);
    let found = recovered(&log, &disk, 0);
    assert_eq!(found.unrecorded, [b"copied".to_vec(), b"edited".to_vec()]);
    assert_eq!(is_there(&disk, "copied").unwrap(), b"of which no record is");
    assert_eq!(is_there(&disk, "edited").unwrap(), b"of which no record is");
    assert_eq!(is_there(&disk, "there").unwrap(), b"and recorded");
    assert_eq!((found.created, found.removed), (0, 0), "every file was there");
}

/// Between its record and its rename a file has a name that no program can see.
#[test]
fn recovery_completes_an_interrupted_creation() {
    for steps in 0..3 {
        let (log, disk, directory) = new();
        disk.fail_after(steps);
        let made = make(&directory, "new");
        disk.kill();
        let recorded = log.records().len() > log.open_records();
        assert_eq!(made.is_ok(), steps == 2);
        drop(directory);
        recovered(&log, &disk, 0);
        let names: Vec<Vec<u8>> = disk.contents().into_keys().collect();
        match made.is_ok() {
            true => assert_eq!(names, [b"new".to_vec()]),
            // It was revoked or never recorded.
            false => assert!(names.is_empty(), "{steps} {recorded} {names:?}"),
        }
    }
}

/// Earlier versions wrote such records, without the file's identity.
#[test]
fn a_file_whose_record_has_no_identity_keeps_its_bytes() {
    let (log, disk, directory) = new();
    let node = directory.names().next();
    drop(directory);
    let old = [2, node.0 as u8, 0, 0x80, 3, 0, 0, 1, 3, b'o', b'l', b'd', 0];
    let ticket = log
        .append(netram_files::KIND_CHANGE, old.len(), &mut |into| {
            into.copy_from_slice(&old)
        })
        .unwrap();
    log.wait(ticket, Durability::Disk).unwrap();
    disk.create_foreign_file(b"old");
    let file = disk.open(b"old").unwrap();
    disk.write(&file, 0, b"written").unwrap();
    let found = recovered(&log, &disk, 0);
    assert_eq!(found.unrecorded, [b"old".to_vec()]);
    assert_eq!(is_there(&disk, "old").unwrap(), b"written");
}

/// Opening a file for a sync failed for want of descriptors, and the mount accepted no change any more.
#[test]
fn a_checkpoint_without_descriptors_is_retried() {
    let (log, disk, directory) = new();
    let node = make(&directory, "log").unwrap();
    write(&directory, node, b"first").unwrap();
    disk.set_opens_allowed(false);
    assert_eq!(
        directory.checkpoint(),
        Err(CheckpointError::Open(IoError::EMFILE))
    );
    assert_eq!(make(&directory, "other"), Err(ChangeError::Disk(IoError::EMFILE)));
    assert_eq!(directory.status().failed, None);
    directory.sync(node).unwrap();
    disk.set_opens_allowed(true);
    directory.checkpoint().unwrap();
    write(&directory, node, b"later").unwrap();
    drop(directory);
    recovered(&log, &disk, 0);
    assert_eq!(is_there(&disk, "log").unwrap(), b"later");
    assert_eq!(is_there(&disk, "other"), None);
}

#[test]
fn the_number_of_open_files_is_bounded() {
    const MAX: usize = 40;
    let (log, disk) = (MemoryLog::new(1 << 20), MemoryDisk::new());
    let few = DirectoryOptions {
        files_max: MAX,
        ..OPTIONS
    };
    let directory = JournaledDirectory::open(log.clone(), disk.clone(), disk.clone(), few)
        .unwrap()
        .0;
    let mut names = Vec::new();
    for number in 0..500 {
        let name = format!("{number}");
        let file = directory.open_file(make(&directory, &name).unwrap()).unwrap();
        directory.write(&file, 0, name.as_bytes()).unwrap();
        names.push(name);
        assert!(directory.status().open <= MAX, "{:?}", directory.status());
    }
    directory.record_written().unwrap();
    // Programs hold as many files open as allowed.
    let held: Vec<_> = (0..500)
        .map_while(|number| {
            directory
                .open_file(directory.names().look_up(at(&names[number]))?)
                .ok()
        })
        .collect();
    assert!((MAX / 2..=MAX).contains(&held.len()), "{}", held.len());
    let next = directory.names().look_up(at("499")).unwrap();
    assert_eq!(
        directory.open_file(next).err(),
        Some(ChangeError::Disk(IoError::ENFILE)),
        "one more open is refused"
    );
    directory.sync(held[0].node()).unwrap();
    directory.checkpoint().unwrap();
    drop(held);
    assert!(directory.open_file(next).is_ok());
    directory
        .write(&directory.open_file(next).unwrap(), 0, b"499")
        .unwrap();
    drop(directory);
    recovered(&log, &disk, usize::MAX / 2);
    for name in names {
        assert_eq!(is_there(&disk, &name).unwrap(), name.as_bytes());
    }
}

/// Attributes of an unlinked file can be set while it is open.
#[test]
fn attributes_of_an_unlinked_open_file_can_be_set() {
    let (_, disk, directory) = new();
    let node = make(&directory, "gone").unwrap();
    let file = directory.open_file(node).unwrap();
    directory.remove(at("gone"), false, None).unwrap();
    let private = netram_files::AttributeChange {
        mode: Some(0o400),
        ..Default::default()
    };
    directory.set_attributes(node, private).unwrap();
    directory.set_xattr(node, b"user.a", Some(b"b"), None).unwrap();
    drop((file, directory));
    assert!(disk.contents().is_empty());
}
