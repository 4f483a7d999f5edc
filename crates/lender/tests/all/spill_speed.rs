//! How fast windows reach a disk and come back, beside the disk's own speed in the same run.
//!
//! `cargo test --release -p netram-lender --test all spill_speed -- --ignored --nocapture`

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use netram_lender::{Lender, LenderConfig, StoreConfig, StoreOrigin, WindowStore};
use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::member::{MemberState, Window};
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record};
use netram_transport::NetAddress;
use rustix::fs::{Advice, OFlags, fadvise};

use crate::common::memory_dir;

const WINDOWS: u128 = 16;
const WINDOW: u64 = 64 << 20;
const RECORD: usize = (1 << 20) - 64;
const BLOCK: usize = 4 << 20;
const ROUNDS: usize = 5;

/// Bytes of all windows.
fn fill(config: &StoreConfig) -> u64 {
    let (store, _) = WindowStore::open(config).unwrap();
    let mut total = 0;
    for number in 1..=WINDOWS {
        let journal = JournalId(number);
        let mut memory = store.journal(journal).unwrap().1;
        memory.reserve(WINDOW).unwrap();
        let mut at = ChainPoint::default();
        while at.lsn.0 + (RECORD as u64) + 4096 < WINDOW {
            let header = RecordHeader::new(at, Epoch(1), Lsn(0), RecordKind(16), false, RECORD);
            let mut bytes = vec![number as u8; header.length];
            header.write(&mut bytes);
            let chain = finish_record(&mut bytes, journal.into());
            memory.write(at.lsn, &bytes);
            at = ChainPoint {
                lsn: header.next(),
                chain,
            };
        }
        memory.save(&MemberState {
            epoch: Epoch(1),
            writer: WriterId(7),
            joined: true,
            window_epoch: Epoch(1),
            generation: 1,
            held: at.lsn,
            received: at.lsn,
            chain: at.chain,
            ..MemberState::default()
        });
        total += at.lsn.0;
    }
    total
}

/// Writes as many bytes to a file of its own, past the page cache, and syncs it.
fn write_floor(path: &Path, bytes: u64) -> Duration {
    let memory = vec![7; BLOCK + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let mut open = OpenOptions::new();
    open.write(true).create(true).truncate(true);
    open.custom_flags(OFlags::DIRECT.bits() as i32);
    let began = Instant::now();
    let mut file = open.open(path).unwrap();
    for _ in 0..bytes / BLOCK as u64 {
        file.write_all(&memory[start..start + BLOCK]).unwrap();
    }
    file.sync_all().unwrap();
    began.elapsed()
}

/// Reads a file past the page cache.
fn read_floor(path: &Path) -> Duration {
    let mut memory = vec![7; BLOCK + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let mut open = OpenOptions::new();
    open.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let began = Instant::now();
    let mut file = open.open(path).unwrap();
    while file.read(&mut memory[start..start + BLOCK]).unwrap() > 0 {}
    began.elapsed()
}

fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
#[ignore = "it measures, and writes 10 GiB"]
fn a_gibibyte_goes_to_the_disk_and_comes_back() {
    let (memory, disk) = (memory_dir(), tempfile::tempdir_in("/var/tmp").unwrap());
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let store = memory.path().join("store");
    let config = LenderConfig {
        name: "speed".to_owned(),
        listen: vec![NetAddress::Unix(memory.path().join("socket"))],
        memory: WINDOWS as u64 * WINDOW,
        quota: Some(WINDOW),
        journals_max: 64,
        store: Some(store.clone()),
        spill: Some(disk.path().to_owned()),
        ..LenderConfig::default()
    };
    let bytes = fill(&StoreConfig {
        path: store.clone(),
        memory: config.memory,
        set_aside: u64::MAX,
        chunk_bytes: config.chunk_bytes,
        quota: WINDOW,
        journals_max: 64,
        mlock: false,
        huge_pages: false,
        discard_windows: false,
        allow_disk: false,
        spill: None,
    });
    let mut times: [Vec<Duration>; 4] = Default::default();
    let floor = disk.path().join("floor");
    for _ in 0..ROUNDS {
        times[0].push(write_floor(&floor, bytes));
        let lender = Lender::start(config.clone()).unwrap();
        // As at the first stop since its windows were read.
        let _ = fs::remove_file(disk.path().join("speed.spill"));
        let began = Instant::now();
        lender.stop_and_spill(Duration::ZERO).unwrap();
        times[1].push(began.elapsed());
        drop(lender);
        fs::remove_file(&store).unwrap();
        times[2].push(read_floor(&floor));
        fs::remove_file(&floor).unwrap();
        forget(&disk.path().join("speed.spill"));
        let began = Instant::now();
        let lender = Lender::start(config.clone()).unwrap();
        times[3].push(began.elapsed());
        assert_eq!(lender.origin(), StoreOrigin::Loaded);
        drop(lender);
    }
    let [write, spill, read, load] = times.map(median);
    let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
    let ratio = |floor: Duration, ours: Duration| floor.as_secs_f64() / ours.as_secs_f64();
    eprintln!(
        "{bytes} bytes; write {:.0} MB/s, spill {:.0} MB/s: {:.2} of the disk; read {:.0} MB/s, load and start {:.0} MB/s: {:.2}",
        speed(write),
        speed(spill),
        ratio(write, spill),
        speed(read),
        speed(load),
        ratio(read, load)
    );
}
