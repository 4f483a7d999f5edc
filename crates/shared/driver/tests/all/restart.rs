//! The server is restarted while nodes commit. No node has to rejoin, whichever records it had not been sent.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::world::{SPAN, TestPaths, add, read};
use crate::common::{KilledChild, until};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared_machine::{LockId, LockMode};

const PLACE: &str = "NETRAM_TEST_PLACE";
/// Long enough that no slow node is fenced.
const LEASE: Duration = Duration::from_secs(60);
const LOCKS: u32 = 3;

#[test]
fn nodes_continue_with_a_restarted_server_without_rejoining() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create(LOCKS as usize, &["a"]);
    let mut serving = Some(place.serve_with(LEASE));
    let nodes = ["one", "two", "three"].map(|name| place.join(name));
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (index, node) in nodes.iter().enumerate() {
            let (stop, commits) = (&stop, &commits);
            scope.spawn(move || {
                let mut lock = index as u32;
                while !stop.load(Ordering::SeqCst) {
                    // A node that has ended fails here.
                    add(node, lock, 1).unwrap();
                    commits.fetch_add(1, Ordering::SeqCst);
                    lock = (lock + 1) % LOCKS;
                }
            });
        }
        let mut enough = 0;
        for _ in 0..4 {
            enough += 60;
            until("the nodes commit", || commits.load(Ordering::SeqCst) >= enough);
            drop(serving.take());
            serving = Some(place.serve_with(LEASE));
            enough = commits.load(Ordering::SeqCst);
        }
        until("they go on", || commits.load(Ordering::SeqCst) >= enough + 60);
        stop.store(true, Ordering::SeqCst);
    });
    for node in &nodes {
        let sum: u64 = (0..LOCKS).map(|lock| read(node, lock)).sum();
        assert_eq!(sum, commits.load(Ordering::SeqCst));
        assert_eq!(node.gone(), None);
    }
}

/// Not a test of its own: a node that reads when it is told to.
#[test]
#[ignore = "a process of the other test"]
fn node() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    let node = TestPaths { directory }.join("sleeper");
    writeln!(std::io::stdout(), "\njoined").unwrap();
    let _ = std::io::stdin().lines().next();
    let id = node.id();
    writeln!(std::io::stdout(), "\nread {}", read(&node, 0)).unwrap();
    assert_eq!((node.id(), node.gone()), (id, None));
    node.leave().expect("it leaves");
}

fn start(place: &Path) -> KilledChild {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restart::node", "--ignored", "--nocapture"])
        .env(PLACE, place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    KilledChild(child.unwrap())
}

/// The node does not read while others write more than its socket holds. The rest is lost with the server,
/// which had made it durable.
#[test]
fn a_restarted_server_sends_a_stopped_node_the_records_it_lacks() {
    const LOCKS: usize = 16;
    const ROUNDS: u64 = 22;
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create(LOCKS, &["a"]);
    let serving = place.serve_with(LEASE);
    let writer = place.join("writer");
    let mut process = start(&place.directory);
    let mut said = BufReader::new(process.0.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(said.any(|line| line == "joined"), "it never joined");
    process.freeze();
    for round in 1..=ROUNDS {
        let mut txn = writer.begin(RestoreMode::Restore).unwrap();
        let locks: Vec<_> = (0..LOCKS as u32)
            .map(|lock| (LockId(lock), LockMode::Exclusive))
            .collect();
        txn.acquire_all(&locks).unwrap();
        txn.write(0, &round.to_le_bytes().repeat(LOCKS * SPAN / 8))
            .unwrap();
        txn.commit(Durability::Remote).unwrap();
    }
    drop(serving);
    let _serving = place.serve_with(LEASE);
    process.signal("-CONT");
    writeln!(process.0.stdin.take().unwrap(), "read").unwrap();
    let read = format!("read {ROUNDS}");
    assert!(said.any(|line| line == read), "it has begun anew, or ended");
    assert!(process.0.wait().unwrap().success());
    assert_eq!(writer.gone(), None);
}
