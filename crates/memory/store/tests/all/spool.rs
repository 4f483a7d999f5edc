//! Lazy commits in a spool, in a process that is killed: the segments contain the state of one commit, not
//! older than the last one that waited.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode, SegmentAllocation};
use netram_store::{JournalLayout, JournaledRvm, Store, StoreSettings};

const LOG_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 1 << 20;
/// Words that commits use in turn; word 0 holds the number of the newest commit.
const WORDS: u64 = 1000;
const PLACE: &str = "NETRAM_TEST_SPOOL_PLACE";

fn settings(spool_bytes: usize) -> StoreSettings {
    StoreSettings {
        spool_bytes: Some(spool_bytes),
        ..StoreSettings::default()
    }
}

fn map(memory: &JournaledRvm, directory: &Path) -> [Region; 2] {
    ["first", "second"].map(|name| {
        let path = directory.join(name);
        let path = path.to_str().unwrap();
        // Exists already in every life but the first.
        let _ = memory.create_segment(path, SEGMENT_BYTES, SegmentAllocation::Sparse);
        memory.map(path, 0, 0).unwrap()
    })
}

/// The word of commit `number`, beside word 0.
fn word(number: u64) -> usize {
    (1 + number % WORDS) as usize * 8
}

/// Commits until it is killed, and writes the number of the last waiting commit to a file.
#[test]
#[ignore = "helper process that the other test kills"]
fn killed() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let opened = Store::at(&directory.join("log"))
        .open(&settings(100_000))
        .unwrap();
    let told = std::fs::OpenOptions::new()
        .write(true)
        .open(directory.join("told"))
        .unwrap();
    let [first, second] = map(&opened.memory, &directory);
    let mut number: u64 = first.get(0).unwrap();
    loop {
        number += 1;
        let mut transaction = opened.memory.begin(RestoreMode::Restore);
        transaction.set(&first, 0, &number).unwrap();
        transaction.set(&first, word(number), &number).unwrap();
        transaction.set(&second, word(number) + 4096, &number).unwrap();
        // Rare enough that thousands of commits are in the spool, and that it fills up at times.
        let durability = match number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52 {
            0 => Durability::Disk,
            _ => Durability::Lazy,
        };
        transaction.commit(durability).unwrap();
        if durability == Durability::Disk {
            told.write_all_at(&number.to_le_bytes(), 0).unwrap();
        }
    }
}

fn told(directory: &Path) -> u64 {
    let bytes = std::fs::read(directory.join("told")).unwrap();
    u64::from_le_bytes(bytes.try_into().unwrap())
}

#[test]
fn a_killed_process_leaves_a_prefix_of_its_commits_with_every_one_that_waited() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("told"), 0u64.to_le_bytes()).unwrap();
    Store::create(&directory.join("log"), JournalLayout::Beside, LOG_BYTES).unwrap();
    for life in 1..=4u64 {
        let before = told(directory);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "spool::killed", "--ignored", "--nocapture"])
            .env(PLACE, directory)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // A different moment each time; the log wraps in between.
        while told(directory) < before + 10_000 * life {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the process ended by itself: {status}");
            }
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let waited = told(directory);
        let opened = Store::at(&directory.join("log")).open(&settings(0)).unwrap();
        let [first, second] = map(&opened.memory, directory);
        let last: u64 = first.get(0).unwrap();
        assert!(
            last >= waited,
            "life {life}: {waited} had waited, {last} was found"
        );
        for slot in 0..WORDS {
            let newest = last - (last + WORDS - slot) % WORDS;
            let found: [u64; 2] = [
                first.get(word(slot)).unwrap(),
                second.get(word(slot) + 4096).unwrap(),
            ];
            assert_eq!(found, [newest; 2], "life {life}, commit {last} was the last");
        }
        assert!(opened.memory.close().is_ok());
    }
}
