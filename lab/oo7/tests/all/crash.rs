//! A process that is killed in the middle of t3b, with real files: recovery finds exactly what was committed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use netram_heap::Heap;
use netram_oo7::{
    DatabaseAudit, DateIndex, HeapSpace, ObjectGraph, Oo7Parameters, Oo7Store, Oo7Transaction, Operation,
    PlainStore, audit, build,
};
use netram_store::{Durability, JournalLayout, JournaledRvm, SegmentAllocation, Store, StoreSettings};

const DIRECTORY_VARIABLE: &str = "NETRAM_OO7_PLACE";
const FIRST_VARIABLE: &str = "NETRAM_OO7_FIRST";
/// Operations that the process repeats, each in its own transaction.
const HISTORY: [Operation; 4] = [Operation::T3b, Operation::I, Operation::T3b, Operation::D];
/// Longest time of a transaction, which takes some milliseconds; a slower process hangs.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(60);
const LOG_BYTES: u64 = 16 << 20;

fn parameters() -> Oo7Parameters {
    "tiny-3".parse().unwrap()
}

fn memory(directory: &Path) -> JournaledRvm {
    let home = Store::at(&directory.join("home"));
    home.open(&StoreSettings::default()).unwrap().memory
}

fn heap(memory: &JournaledRvm, directory: &Path) -> Heap {
    let path = directory.join("database");
    let region = memory.map(path.to_str().unwrap(), 0, 0).unwrap();
    Heap::open(region).unwrap()
}

/// Continues the history and reports each transaction after its commit, until it is killed.
#[test]
#[ignore = "the process that the other test kills"]
fn worker() {
    let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from) else {
        return;
    };
    let first: usize = std::env::var(FIRST_VARIABLE).unwrap().parse().unwrap();
    let memory = memory(&directory);
    let heap = heap(&memory, &directory);
    let store = ObjectGraph::open(HeapSpace::new(&memory, &heap, Durability::Remote)).unwrap();
    for operation in HISTORY.iter().cycle().skip(first % HISTORY.len()) {
        let mut open = store.begin().unwrap();
        operation.run(&mut open, &parameters(), 1).unwrap();
        open.commit().unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "committed").and_then(|()| out.flush()).unwrap();
    }
}

/// The database after each of the history's transactions.
struct ExpectedHistory {
    store: PlainStore,
    after: Vec<DatabaseAudit>,
}

impl ExpectedHistory {
    fn new() -> ExpectedHistory {
        let store = PlainStore::default();
        build(&store, &parameters()).unwrap();
        let after = vec![audited(&store)];
        ExpectedHistory { store, after }
    }

    fn after(&mut self, transactions: usize) -> DatabaseAudit {
        while self.after.len() <= transactions {
            let operation = HISTORY[(self.after.len() - 1) % HISTORY.len()];
            let mut open = self.store.begin().unwrap();
            operation.run(&mut open, &parameters(), 1).unwrap();
            open.commit().unwrap();
            self.after.push(audited(&self.store));
        }
        self.after[transactions]
    }
}

fn audited(store: &impl Oo7Store) -> DatabaseAudit {
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, &parameters(), true).unwrap();
    open.commit().unwrap();
    found
}

fn begin(directory: &Path, first: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::worker", "--ignored", "--nocapture"])
        .env(DIRECTORY_VARIABLE, directory)
        .env(FIRST_VARIABLE, first.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Kills the process a while after it has reported this many commits; returns the number reported by then.
fn kill_after(mut child: Child, transactions: usize, pause: Duration) -> usize {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (tell, told) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if line.ends_with("committed") && tell.send(()).is_err() {
                return;
            }
        }
    });
    let waited = (0..transactions).try_for_each(|_| told.recv_timeout(TRANSACTION_TIMEOUT));
    thread::sleep(pause);
    child.kill().unwrap();
    child.wait().unwrap();
    waited.expect("it goes on until it is killed");
    // Output that was printed and not read yet.
    reader.join().unwrap();
    transactions + told.iter().count()
}

#[test]
fn a_process_killed_during_t3b_leaves_its_commits() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let home = Store::create(&directory.join("home"), JournalLayout::Directory, LOG_BYTES).unwrap();
    {
        let memory = home.open(&StoreSettings::default()).unwrap().memory;
        let path = directory.join("database");
        let path = path.to_str().unwrap();
        memory
            .create_segment(path, parameters().heap_bytes(), SegmentAllocation::Sparse)
            .unwrap();
        let heap = Heap::format(&memory, memory.map(path, 0, 0).unwrap()).unwrap();
        let space = HeapSpace::new(&memory, &heap, Durability::Lazy);
        let store = ObjectGraph::create(space, &parameters(), DateIndex::All).unwrap();
        build(&store, &parameters()).unwrap();
        memory.flush(Durability::Remote).unwrap();
    }
    let mut expected = ExpectedHistory::new();
    let mut done = 0;
    for round in 0..6 {
        let child = begin(directory, done);
        // The next transaction has begun: a t3b in half of the rounds, which takes by far the longest.
        let pause = Duration::from_millis(3 * round);
        let said = done + kill_after(child, 1 + round as usize, pause);
        let memory = memory(directory);
        let heap = heap(&memory, directory);
        heap.check().unwrap();
        let store = ObjectGraph::open(HeapSpace::new(&memory, &heap, Durability::Remote)).unwrap();
        let found = audited(&store);
        // One more may have been committed without being reported.
        let more = (said..=said + 1).find(|transactions| found == expected.after(*transactions));
        done =
            more.unwrap_or_else(|| panic!("{said} transactions were committed, and this is after no such"));
    }
    assert!(done >= 21, "each round committed what it had waited for");
}
