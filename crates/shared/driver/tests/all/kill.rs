//! The merging process is killed at random points. Region, versions and numbers are of one moment, and no
//! durable record is missing.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::common::TestRng;
use crate::common::history::{RegionModel, go_on, open, plan};
use netram_shared::server::{RegionPlan, RegionStore, RegionTableError, Spans, StoreOpenError};

/// A child that has not called `exec` yet has copies of this process's files, and with them its locks. So no
/// test opens a region while another one starts a child.
static ALONE: Mutex<()> = Mutex::new(());

const PLACE: &str = "NETRAM_TEST_REGION";
const SEED: u64 = 11;
const ROUNDS: u64 = 10;
/// A small log, which is truncated again and again.
const LOG_BYTES: u64 = 64 * 1024;
/// Maximum time of a round on a slow disk, well below the time after which the merger gives up.
const ROUND: Duration = Duration::from_secs(10);

/// If the process waits in vain, it ends, and the other test with it.
fn end_some_day() {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
}

/// Continues the history where the region stands, and prints durable positions.
#[test]
#[ignore = "the process that the other test kills"]
fn merger() {
    let Some(root) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    end_some_day();
    let mut store = open(&root);
    let mut model = RegionModel::after(SEED, store.table().counters.position.0);
    let mut out = std::io::stdout().lock();
    loop {
        go_on(&mut store, &mut model, 1);
        while let Some(kept) = store.next_durable() {
            writeln!(out, "kept {}", kept.position).unwrap();
            out.flush().unwrap();
        }
    }
}

fn child(test: &str, root: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(PLACE, root)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs the merger until this many more records are durable, or the time is over, and kills it. Returns the
/// last durable position.
fn run_and_kill(root: &Path, records: u64) -> u64 {
    let began = Instant::now();
    let mut merger = child("kill::merger", root);
    let mut lines = BufReader::new(merger.stdout.take().unwrap()).lines();
    let (mut first, mut last) = (None, 0);
    for line in &mut lines {
        let line = line.unwrap();
        // The test harness prints lines of its own, one without an end.
        let Some((_, position)) = line.split_once("kept ") else {
            continue;
        };
        last = position.parse().unwrap();
        if last >= *first.get_or_insert(last) + records || began.elapsed() > ROUND {
            break;
        }
    }
    assert!(merger.try_wait().unwrap().is_none(), "the merger ended by itself");
    merger.kill().unwrap();
    // Lines printed before it died count, too.
    for line in lines.map_while(Result::ok) {
        if let Some(position) = line.strip_prefix("kept ") {
            // A line that was cut off would be a smaller number.
            last = last.max(position.parse().unwrap_or(0));
        }
    }
    merger.wait().unwrap();
    last
}

#[test]
fn a_killed_server_keeps_all_durable_records_whole() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    RegionStore::create(&root, &plan(LOG_BYTES)).unwrap();
    let mut random = TestRng(7);
    let mut before = 0;
    for round in 0..ROUNDS {
        let records = random.below(400);
        let kept = run_and_kill(&root, records);
        let store = open(&root);
        let position = store.table().counters.position.0;
        assert!(kept > before, "round {round}: nothing was kept");
        assert!(
            position >= kept,
            "round {round}: {kept} records were kept, {position} are there"
        );
        RegionModel::after(SEED, position).assert_is(&store);
        before = position;
    }
}

fn many_spans() -> RegionPlan {
    let bytes = 1 << 22;
    RegionPlan {
        bytes,
        spans: Spans::even(bytes, 64).unwrap(),
        ..plan(LOG_BYTES)
    }
}

#[test]
#[ignore = "the process that the other test kills"]
fn maker() {
    if let Some(root) = std::env::var_os(PLACE).map(PathBuf::from) {
        RegionStore::create(&root, &many_spans()).unwrap();
    }
}

/// The creation is killed as soon as one of its files exists.
#[test]
fn an_interrupted_creation_leaves_a_whole_region_or_none() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    for round in 0..15 {
        let root = directory.path().join(round.to_string());
        let awaited = root.join(["log", "nodes.toml", "region", "table", "table"][round % 5]);
        let mut maker = child("kill::maker", &root);
        while !awaited.exists() && maker.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        // The process may have ended.
        let _ = maker.kill();
        let made = maker.wait().unwrap().success();
        match RegionStore::open(&root, || ()) {
            Ok((store, _)) => assert_eq!(store.table().spans, many_spans().spans),
            Err(StoreOpenError::Table {
                cause: RegionTableError::Unfinished,
                ..
            }) => assert!(!made, "round {round}"),
            Err(StoreOpenError::Nothing(_) | StoreOpenError::Store(_)) => assert!(!made, "round {round}"),
            Err(error) => panic!("round {round}: {error}"),
        }
    }
}
