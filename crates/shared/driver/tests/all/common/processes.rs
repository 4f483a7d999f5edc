//! Nodes, servers and lenders in processes of their own. A process is the test's binary, started again with
//! the name of one test. It reports acknowledged commits on its standard output.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use netram_shared::Node;
use netram_shared::node::{LeaveError, TxnCommit, TxnCommitError};
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::{NodeId, RecordNumber};

use super::world::TestPaths;
use super::{PATIENCE, TestRng, until, until_stopped};

const PLACE: &str = "NETRAM_TEST_PLACE";
const NAME: &str = "NETRAM_TEST_NAME";

/// Directory of a test's process; `None`: the test was started by hand.
pub(crate) fn place_of_child() -> Option<TestPaths> {
    let directory = PathBuf::from(std::env::var_os(PLACE)?);
    // If the process waits in vain, it ends, and the test with it.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    Some(TestPaths { directory })
}

/// Name of a test's process.
pub(crate) fn name() -> String {
    std::env::var(NAME).expect("a name")
}

/// Serves until the test ends or kills the process.
pub(crate) fn serve<T>(serving: T) {
    writeln!(std::io::stdout(), "\nserving").expect("somebody reads");
    let _ = std::io::stdin().lines().next();
    drop(serving);
}

/// Commits until it is told to stop. `join` makes the node; `add` commits under one of the locks.
pub(crate) fn commit_until_told(
    locks: u32,
    join: impl Fn() -> Node,
    add: impl Fn(&Node, u32) -> Result<TxnCommit, TxnCommitError>,
) {
    let told = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&told);
    std::thread::spawn(move || {
        let _ = std::io::stdin().lines().next();
        stop.store(true, Ordering::SeqCst);
    });
    let mut random = TestRng(name().bytes().map(u64::from).sum());
    let mut out = std::io::stdout();
    let mut say = |text: &str| {
        writeln!(out, "\n{text}")
            .and_then(|()| out.flush())
            .expect("somebody reads")
    };
    let mut node = join();
    while !told.load(Ordering::SeqCst) {
        let (number, id) = match add(&node, random.below(u64::from(locks)) as u32) {
            Ok(TxnCommit { record, .. }) => {
                let (id, number) = record.expect("it wrote");
                say(&format!("record {id} {number}\nacked"));
                continue;
            }
            Err(TxnCommitError::Unknown { node, number, .. }) => (Some(number), node),
            Err(TxnCommitError::Gone(_) | TxnCommitError::Lost | TxnCommitError::Refused(_)) => {
                (None, node.id())
            }
            Err(TxnCommitError::Stray(stray)) => panic!("{stray}"),
        };
        say("ended");
        drop(node);
        node = join();
        let fate = number.map(|number| node.outcome(id, number, PATIENCE).expect("there is a node"));
        match fate {
            Some(RecordOutcome::Committed) => say("acked"),
            Some(RecordOutcome::Open | RecordOutcome::Forgotten) => panic!("nobody knows the outcome"),
            Some(RecordOutcome::Aborted) | None => {}
        }
    }
    match node.leave() {
        // The node may be fenced at the last moment, if the machine let it wait: all its acknowledged commits
        // are safe.
        Ok(()) | Err(LeaveError::Gone(_)) => say("left"),
        Err(error) => panic!("{error}"),
    }
}

/// A process, and the lines that it printed.
pub(crate) struct NodeProcess {
    pub(crate) child: Child,
    pub(crate) said: Arc<ProcessLines>,
    hears: Option<JoinHandle<()>>,
}

#[derive(Default)]
pub(crate) struct ProcessLines {
    pub(crate) serving: AtomicBool,
    pub(crate) acked: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) left: AtomicBool,
    /// Last acknowledged record.
    pub(crate) record: Mutex<(u64, u64)>,
}

impl NodeProcess {
    pub(crate) fn start(place: &TestPaths, test: &str, name: &str) -> NodeProcess {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(PLACE, &place.directory)
            .env(NAME, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let said = Arc::new(ProcessLines::default());
        let hears = Arc::clone(&said);
        let hears = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.as_str() {
                    "serving" => hears.serving.store(true, Ordering::SeqCst),
                    "acked" => drop(hears.acked.fetch_add(1, Ordering::SeqCst)),
                    "ended" => drop(hears.ended.fetch_add(1, Ordering::SeqCst)),
                    line if line.starts_with("record ") => {
                        let mut words = line
                            .split(' ')
                            .skip(1)
                            .map(|word| word.parse().expect("a number"));
                        let record = (words.next().expect("an id"), words.next().expect("a number"));
                        *hears.record.lock().expect("no panic") = record;
                    }
                    "left" => hears.left.store(true, Ordering::SeqCst),
                    _ => {}
                }
            }
        });
        NodeProcess {
            child,
            said,
            hears: Some(hears),
        }
    }

    /// Starts a process that serves, and waits until it does.
    pub(crate) fn serve(place: &TestPaths, test: &str, name: &str) -> NodeProcess {
        let process = NodeProcess::start(place, test, name);
        until("it serves", || process.said.serving.load(Ordering::SeqCst));
        process
    }

    pub(crate) fn acked(&self) -> u64 {
        self.said.acked.load(Ordering::SeqCst)
    }

    /// Waits for `more` further commits.
    pub(crate) fn commits(&self, more: u64) {
        let enough = self.acked() + more;
        until("the node commits", || self.acked() >= enough);
    }

    /// Last record that the process reported.
    pub(crate) fn record(&self) -> (NodeId, RecordNumber) {
        let (id, number) = *self.said.record.lock().expect("no panic");
        (NodeId(id), RecordNumber(number))
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill runs").success());
    }

    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
        until_stopped(self.child.id());
    }

    /// Makes the node leave. Returns its number of commits.
    pub(crate) fn leave(mut self) -> u64 {
        let mut input = self.child.stdin.take().expect("it is piped");
        writeln!(input, "stop").expect("it listens");
        assert!(self.child.wait().expect("it ends").success());
        self.hears.take().expect("it hears").join().expect("no panic");
        assert!(self.said.left.load(Ordering::SeqCst));
        self.acked()
    }

    /// Kills the process. Returns the number of commits that it reported.
    pub(crate) fn kill(mut self) -> u64 {
        self.child.kill().expect("it runs");
        self.wait()
    }

    /// Waits until the process has ended and all its lines are read.
    pub(crate) fn wait(mut self) -> u64 {
        self.child.wait().expect("it ends");
        self.hears.take().expect("it hears").join().expect("no panic");
        self.acked()
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // After a failure; the process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
