//! Processes that allocate, link and free in the same heaps are killed at random points. Acknowledged numbers
//! are there once, and every block has one owner.
//!
//! A process is this test binary, started again with the name of one test. It prints the numbers that it has
//! put into the lists.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::lists::{HEAP, carry, format, numbers, push};
use crate::common::world::TestPaths;
use crate::common::{TestRng, until};
use netram_shared::node::TxnCommitError;

const PLACE: &str = "NETRAM_TEST_PLACE";
const NAME: &str = "NETRAM_TEST_NAME";
const HEAPS: u32 = 2;

/// Not a test of its own: a node that pushes and moves numbers until its input ends.
#[test]
#[ignore = "a process of the other test"]
fn node() {
    let (Some(directory), Some(name)) = (std::env::var_os(PLACE), std::env::var_os(NAME)) else {
        return;
    };
    let name: u64 = name
        .to_str()
        .and_then(|name| name.parse().ok())
        .expect("a number");
    let place = TestPaths {
        directory: PathBuf::from(directory),
    };
    // If the process waits in vain, it ends, and the test with it.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    let done = std::thread::spawn(|| drop(std::io::stdin().lines().next()));
    let node = place.join(&format!("node-{name}"));
    let mut random = TestRng(name);
    let mut out = std::io::stdout();
    for turn in 0.. {
        if done.is_finished() {
            break;
        }
        let number = name << 32 | turn;
        let lock = random.below(HEAPS.into()) as u32;
        push(&node, lock, number).expect("nobody fences it");
        writeln!(out, "\nacked {number}")
            .and_then(|()| out.flush())
            .expect("somebody reads");
        match carry(&node, lock, (lock + 1) % HEAPS) {
            Ok(_) => {}
            Err(error @ TxnCommitError::Unknown { .. }) => panic!("{error}"),
            Err(error) => panic!("{error}"),
        }
    }
    node.leave().expect("it leaves");
}

/// A process, and the numbers that it has acknowledged.
struct HeapProcess {
    child: Child,
    acked: Arc<Mutex<BTreeSet<u64>>>,
    hears: Option<JoinHandle<()>>,
}

impl HeapProcess {
    fn start(place: &TestPaths, name: u64) -> HeapProcess {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "heap_kill::node", "--ignored", "--nocapture"])
            .env(PLACE, &place.directory)
            .env(NAME, name.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let acked = Arc::new(Mutex::new(BTreeSet::new()));
        let heard = Arc::clone(&acked);
        let hears = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(number) = line.strip_prefix("acked ") {
                    let number = number.parse().expect("a number");
                    heard.lock().expect("no panic").insert(number);
                }
            }
        });
        HeapProcess {
            child,
            acked,
            hears: Some(hears),
        }
    }

    fn acked(&self) -> usize {
        self.acked.lock().expect("no panic").len()
    }

    /// Waits for `more` further numbers.
    fn goes_on(&self, more: usize) {
        let enough = self.acked() + more;
        until("the node commits", || self.acked() >= enough);
    }

    /// All numbers that the process had acknowledged when it ended.
    fn told(mut self) -> BTreeSet<u64> {
        self.hears.take().expect("it hears").join().expect("no panic");
        std::mem::take(&mut self.acked.lock().expect("no panic"))
    }

    fn leave(mut self) -> BTreeSet<u64> {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it ends").success());
        self.told()
    }

    /// Kills the process.
    fn kill(mut self) -> BTreeSet<u64> {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        self.told()
    }
}

impl Drop for HeapProcess {
    fn drop(&mut self) {
        // After a failure; the process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn killed_processes_leave_valid_heaps_with_all_acknowledged_items() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create_of(HEAPS as usize, 8 * HEAP, &["a"]);
    let _serving = place.serve();
    let judge = place.join("judge");
    format(&judge, HEAPS);
    let stays = HeapProcess::start(&place, 1);
    let mut acked = BTreeSet::new();
    let mut killed = 0;
    for name in 2..5 {
        let process = HeapProcess::start(&place, name);
        process.goes_on(8);
        stays.goes_on(8);
        acked.extend(process.kill());
        killed += 1;
        // Until after the dead node's lease, whatever it held.
        stays.goes_on(20);
    }
    acked.extend(stays.leave());

    let lists = |node| -> Vec<Vec<u64>> { (0..HEAPS).map(|lock| numbers(node, lock).1).collect() };
    let found = lists(&judge);
    let all: BTreeSet<u64> = found.iter().flatten().copied().collect();
    assert_eq!(
        all.len(),
        found.iter().map(Vec::len).sum::<usize>(),
        "no number twice"
    );
    assert!(
        acked.is_subset(&all),
        "missing: {:?}",
        acked.difference(&all).collect::<Vec<_>>()
    );
    // The last push of each killed process may be there or not.
    assert!(all.len() <= acked.len() + killed);
    // The judge was there all the time; a node that joins now gets the heaps as pages.
    let late = place.join("late");
    assert_eq!(lists(&late), found);
    assert_eq!(*late.region().read(), *judge.region().read());
}
