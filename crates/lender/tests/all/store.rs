//! A store's promises between processes.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::common::memory_dir;
use netram_lender::{JournalMemory, StoreConfig, StoreOrigin, WindowStore, WindowStoreError};
use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::member::{MemberState, Window};
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, RecordHeader, RefusalReason, crc32c, finish_record};

const CHUNK: u64 = 4096;

fn config(path: &Path) -> StoreConfig {
    StoreConfig {
        path: path.to_owned(),
        memory: 32 * CHUNK,
        set_aside: u64::MAX,
        chunk_bytes: CHUNK,
        quota: 20 * CHUNK,
        journals_max: 4,
        mlock: false,
        huge_pages: false,
        discard_windows: false,
        allow_disk: false,
        spill: None,
    }
}

fn fenced(epoch: u32) -> MemberState {
    MemberState {
        epoch: Epoch(epoch),
        writer: WriterId(7),
        ..MemberState::default()
    }
}

/// Joins an empty window.
fn join(memory: &mut JournalMemory, bytes: u64) {
    memory.reserve(bytes).unwrap();
    let empty = MemberState {
        joined: true,
        window_epoch: Epoch(1),
        generation: 1,
        ..fenced(1)
    };
    memory.save(&empty);
}

#[test]
fn a_reopened_store_keeps_its_incarnation_its_fences_and_its_windows() {
    let dir = memory_dir();
    let config = config(&dir.path().join("store"));
    let (store, kept) = WindowStore::open(&config).unwrap();
    assert_eq!((store.origin(), kept.len()), (StoreOrigin::New, 0));
    let incarnation = store.incarnation();
    let mut memory = store.journal(JournalId(5)).unwrap().1;
    join(&mut memory, 3 * CHUNK + 100);
    drop((store, memory));
    let (store, mut kept) = WindowStore::open(&config).unwrap();
    assert_eq!(
        (store.origin(), store.incarnation()),
        (StoreOrigin::Restored, incarnation)
    );
    let kept = kept.pop().unwrap();
    assert_eq!(kept.memory.journal(), JournalId(5));
    assert_eq!(kept.member.state().epoch, Epoch(1));
    assert!(kept.member.state().joined);
    assert_eq!(kept.memory.capacity(), 3 * CHUNK + 100);
    assert_eq!(
        store.free(),
        28 * CHUNK,
        "a window of three chunks and a bit takes four"
    );
}

#[test]
fn an_unfenced_journal_leaves_no_trace() {
    let dir = memory_dir();
    let config = config(&dir.path().join("store"));
    let (store, _) = WindowStore::open(&config).unwrap();
    let memory = store.journal(JournalId(5)).unwrap().1;
    drop((store, memory));
    assert!(WindowStore::open(&config).unwrap().1.is_empty());
}

#[test]
fn another_boot_another_shape_and_damage_start_empty_under_a_fresh_incarnation() {
    let dir = memory_dir();
    let config = config(&dir.path().join("store"));
    let make = || {
        let (store, _) = WindowStore::open(&config).unwrap();
        store.journal(JournalId(5)).unwrap().1.save(&fenced(3));
        store.incarnation()
    };
    let check = |config: &StoreConfig, origin, before| {
        let (store, kept) = WindowStore::open(config).unwrap();
        assert_eq!((store.origin(), kept.len()), (origin, 0));
        assert_ne!(store.incarnation(), before);
    };
    let edit = |offset: u64, bytes: &[u8]| {
        let file = fs::OpenOptions::new().write(true).open(&config.path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    };

    let before = make();
    let mut block = fs::read(&config.path).unwrap()[..72].to_vec();
    block[24] ^= 1;
    let crc = crc32c(&block[..68]);
    block[68..].copy_from_slice(&crc.to_le_bytes());
    edit(0, &block);
    check(&config, StoreOrigin::OtherBoot, before);

    let before = make();
    check(
        &StoreConfig {
            memory: 16 * CHUNK,
            ..config.clone()
        },
        StoreOrigin::OtherShape,
        before,
    );

    let before = make();
    edit(3, &[0xFF]);
    check(&config, StoreOrigin::Damaged, before);

    let before = make();
    // Both copies of the first slot are damaged: a fence was there, for an unknown journal.
    edit(4096 + 10, &[0xFF]);
    edit(4096 + 128 + 10, &[0xFF]);
    check(&config, StoreOrigin::Damaged, before);

    let before = make();
    fs::OpenOptions::new()
        .write(true)
        .open(&config.path)
        .unwrap()
        .set_len(9000)
        .unwrap();
    check(&config, StoreOrigin::Damaged, before);
}

/// A store of another size must not discard the bytes of a client that is down (rule 23).
#[test]
fn a_store_with_bytes_in_a_window_keeps_its_shape_and_is_restored() {
    let dir = memory_dir();
    let config = config(&dir.path().join("store"));
    let (store, _) = WindowStore::open(&config).unwrap();
    let incarnation = store.incarnation();
    let mut memory = store.journal(JournalId(5)).unwrap().1;
    join(&mut memory, 3 * CHUNK);
    let held = fill(&mut memory, JournalId(5));
    drop((store, memory));
    let other = StoreConfig {
        memory: 16 * CHUNK,
        ..config.clone()
    };
    let refusal = WindowStore::open(&other).err().expect("refused");
    let sentence = refusal.to_string();
    let named = |what: &str| assert!(sentence.contains(what), "{sentence}");
    named(&JournalId(5).to_string());
    named(&format!("{held} bytes"));
    named(&format!("--memory {} --journals-max 4", 32 * CHUNK));
    named("--discard-windows");
    let (store, kept) = WindowStore::open(&config).unwrap();
    assert_eq!(
        (store.origin(), store.incarnation()),
        (StoreOrigin::Restored, incarnation)
    );
    assert_eq!(kept[0].member.state().held, Lsn(held));
    drop((store, kept));
    // A damaged slot costs no other journal its bytes unless the operator says so.
    let file = fs::OpenOptions::new().write(true).open(&config.path).unwrap();
    for copy in [0, 128] {
        file.write_all_at(&[0xFF; 4], 4096 + 4096 + copy + 10).unwrap();
    }
    let refusal = WindowStore::open(&config).err().expect("refused").to_string();
    assert!(refusal.contains("damaged"), "{refusal}");
    let discards = StoreConfig {
        discard_windows: true,
        ..other
    };
    let (store, kept) = WindowStore::open(&discards).unwrap();
    assert_eq!((store.origin(), kept.len()), (StoreOrigin::OtherShape, 0));
}

#[test]
fn a_store_of_another_format_is_not_changed() {
    let dir = memory_dir();
    let config = config(&dir.path().join("store"));
    drop(WindowStore::open(&config).unwrap());
    let file = fs::OpenOptions::new().write(true).open(&config.path).unwrap();
    file.write_all_at(&9_u32.to_le_bytes(), 8).unwrap();
    let refusal = WindowStore::open(&config).err().expect("refused").to_string();
    assert!(
        refusal.contains("format 9") && refusal.contains("--discard-windows"),
        "{refusal}"
    );
    let discards = StoreConfig {
        discard_windows: true,
        ..config
    };
    assert_eq!(
        WindowStore::open(&discards).unwrap().0.origin(),
        StoreOrigin::Damaged
    );
}

/// Stores and saves one record in the window. Returns where it ends.
fn fill(memory: &mut JournalMemory, journal: JournalId) -> u64 {
    let header = RecordHeader::new(
        ChainPoint::default(),
        Epoch(1),
        Lsn(0),
        RecordKind(16),
        false,
        100,
    );
    let mut bytes = vec![0; header.length];
    header.write(&mut bytes);
    let chain = finish_record(&mut bytes, journal.into());
    memory.write(Lsn(0), &bytes);
    let end = Lsn(bytes.len() as u64);
    memory.save(&MemberState {
        joined: true,
        window_epoch: Epoch(1),
        generation: 1,
        held: end,
        received: end,
        chain,
        ..fenced(1)
    });
    end.0
}

#[test]
fn a_window_with_invalid_bytes_is_dropped_and_its_fence_kept() {
    let dir = memory_dir();
    let config = config(&dir.path().join("store"));
    let (store, _) = WindowStore::open(&config).unwrap();
    let mut memory = store.journal(JournalId(5)).unwrap().1;
    memory.reserve(4 * CHUNK).unwrap();
    let lying = MemberState {
        joined: true,
        held: Lsn(4096),
        received: Lsn(4096),
        ..fenced(9)
    };
    memory.save(&lying);
    drop((store, memory));
    let (store, mut kept) = WindowStore::open(&config).unwrap();
    let kept = kept.pop().unwrap();
    assert!(kept.window_lost);
    assert!(!kept.member.state().joined);
    assert_eq!(
        (kept.member.state().epoch, kept.member.state().writer),
        (Epoch(9), WriterId(7))
    );
    assert_eq!(store.free(), store.memory());
}

#[test]
fn windows_never_exceed_the_memory_or_the_quota() {
    let dir = memory_dir();
    let (store, _) = WindowStore::open(&config(&dir.path().join("store"))).unwrap();
    let mut first = store.journal(JournalId(1)).unwrap().1;
    let mut second = store.journal(JournalId(2)).unwrap().1;
    let over = first.reserve(20 * CHUNK + 1).unwrap_err();
    assert_eq!(
        (over.refusal, over.asked, over.limit),
        (RefusalReason::OverQuota, 20 * CHUNK + 1, 20 * CHUNK)
    );
    join(&mut first, 20 * CHUNK);
    let full = second.reserve(12 * CHUNK + 1).unwrap_err();
    assert_eq!(
        (full.refusal, full.asked, full.limit),
        (RefusalReason::NoRoom, 12 * CHUNK + 1, 12 * CHUNK)
    );
    join(&mut second, 12 * CHUNK);
    assert_eq!(store.free(), 0);
    first.release();
    assert_eq!(store.free(), 20 * CHUNK);
    first.reserve(CHUNK).unwrap();
    assert_eq!(store.free(), 19 * CHUNK);
    let length = fs::metadata(store.path()).unwrap().len();
    assert_eq!(length, 4096 + 4 * 4096 + 32 * CHUNK);
}

#[test]
fn a_window_is_a_ring_of_exactly_its_bytes_whatever_its_chunks() {
    let dir = memory_dir();
    let (store, _) = WindowStore::open(&config(&dir.path().join("store"))).unwrap();
    let mut memory = store.journal(JournalId(1)).unwrap().1;
    let bytes = 2 * CHUNK + 24;
    memory.reserve(bytes).unwrap();
    let at = Lsn(bytes * 5 - 100);
    let data: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
    memory.write(at, &data);
    let mut back = vec![0; data.len()];
    netram_proto::member::copy_out(&memory, at, &mut back);
    assert_eq!(back, data);
    assert_eq!(
        memory.piece(at, usize::MAX).len(),
        76,
        "to the end of a whole chunk"
    );
    assert_eq!(
        memory.piece(at.plus(76), usize::MAX).len(),
        24,
        "to the end of the ring"
    );
}

#[test]
fn slots_are_bounded_and_unfenced_ones_are_reused() {
    let dir = memory_dir();
    let (store, _) = WindowStore::open(&config(&dir.path().join("store"))).unwrap();
    let all: Vec<_> = (0..4).map(|id| store.journal(JournalId(id)).unwrap()).collect();
    assert!(store.journal(JournalId(9)).is_none());
    drop(all);
}

#[test]
fn two_lenders_never_share_a_store() {
    let dir = memory_dir();
    let config = config(&dir.path().join("store"));
    let held = WindowStore::open(&config).unwrap();
    assert!(matches!(
        WindowStore::open(&config),
        Err(WindowStoreError::InUse { .. })
    ));
    drop(held);
    WindowStore::open(&config).unwrap();
}

#[test]
fn a_store_that_does_not_fit_reports_the_free_memory_and_reserves_none() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let huge = StoreConfig {
        memory: 1 << 44,
        chunk_bytes: 1 << 30,
        ..config(&path)
    };
    match WindowStore::open(&huge) {
        Err(WindowStoreError::NoMemory { asked, free }) => assert!(asked > 1 << 44 && free < 1 << 44),
        other => panic!("{:?}", other.map(|_| ())),
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn a_store_on_a_disk_or_open_to_others_is_refused() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    fs::write(&path, b"").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(
        WindowStore::open(&config(&path)),
        Err(WindowStoreError::NotPrivate { mode: 0o644, .. })
    ));

    // This test may run under another user than the one that built it.
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir());
    let disk = disk.unwrap();
    let path = disk.path().join("store");
    match WindowStore::open(&config(&path)) {
        Err(WindowStoreError::NotMemory { .. }) => (),
        Ok(_) => return eprintln!("skipped: the directory for temporary files is in memory itself"),
        Err(error) => panic!("{error}"),
    }
    let allowed = StoreConfig {
        allow_disk: true,
        ..config(&path)
    };
    let first = WindowStore::open(&allowed).unwrap().0.incarnation();
    let second = WindowStore::open(&allowed).unwrap().0;
    assert_eq!(second.origin(), StoreOrigin::OnDisk);
    assert_ne!(first, second.incarnation());
}

#[test]
fn locked_memory_on_huge_pages_works_or_the_error_has_the_remedy() {
    let dir = memory_dir();
    let locked = StoreConfig {
        mlock: true,
        huge_pages: true,
        ..config(&dir.path().join("store"))
    };
    match WindowStore::open(&locked) {
        Ok((store, _)) => assert_eq!(store.free(), store.memory()),
        Err(error @ WindowStoreError::Lock { .. }) => assert!(error.to_string().contains("ulimit -l")),
        Err(error) => panic!("{error}"),
    }
}
