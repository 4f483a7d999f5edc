//! Nodes and their server in processes of their own, killed and stopped by signals while they commit: others go on, nothing that was
//! acknowledged is missing, nothing happens twice.
//!
//! Every commit adds one to a counter, so that the counters say how many there were. A process is this test binary, started again with
//! the name of one test; it tells on its standard output what was acknowledged.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::world::{LEASE_SHORT, Place, add, try_read};
use common::{PATIENCE, Random, until};
use netram_lender::Lender;
use netram_proto::shared::message::Fate;
use netram_shared::node::{CommitError, LeaveError};

/// A child that has not become another program yet has copies of this process's files, and with them its locks: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const PLACE: &str = "NETRAM_TEST_PLACE";
const NAME: &str = "NETRAM_TEST_NAME";
const LOCKS: u32 = 3;

fn place_of_child() -> Option<Place> {
    let directory = PathBuf::from(std::env::var_os(PLACE)?);
    // Should it ever wait in vain, it ends, and the test with it.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    Some(Place { directory })
}

/// Not a test of its own: the server.
#[test]
#[ignore = "a process of the other tests"]
fn server() {
    let Some(place) = place_of_child() else { return };
    let serving = place.serve_shortly();
    writeln!(std::io::stdout(), "\nserving").expect("somebody reads");
    // Until the test ends, or kills it.
    let _ = std::io::stdin().lines().next();
    drop(serving);
}

/// Not a test of its own: a node that commits until it is told to stop.
#[test]
#[ignore = "a process of the other tests"]
fn node() {
    let Some(place) = place_of_child() else { return };
    let name = std::env::var(NAME).expect("a name");
    let told = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&told);
    std::thread::spawn(move || {
        let _ = std::io::stdin().lines().next();
        stop.store(true, Ordering::SeqCst);
    });
    let mut random = Random(name.bytes().map(u64::from).sum());
    let mut out = std::io::stdout();
    let mut say = |text: &str| {
        writeln!(out, "\n{text}")
            .and_then(|()| out.flush())
            .expect("somebody reads")
    };
    let mut node = place.join(&name);
    while !told.load(Ordering::SeqCst) {
        let (number, id) = match add(&node, random.below(u64::from(LOCKS)) as u32, 1) {
            Ok(_) => {
                say("acked");
                continue;
            }
            Err(CommitError::Unknown { node, number, .. }) => (Some(number), node),
            Err(CommitError::Gone(_) | CommitError::Lost | CommitError::Refused(_)) => (None, node.id()),
            Err(CommitError::Stray(stray)) => panic!("{stray}"),
        };
        say("ended");
        drop(node);
        node = place.join(&name);
        let fate = number.map(|number| node.outcome(id, number, PATIENCE).expect("there is a node"));
        match fate {
            Some(Fate::Committed) => say("acked"),
            Some(Fate::Open | Fate::Forgotten) => panic!("nobody knows the outcome"),
            Some(Fate::Aborted) | None => {}
        }
    }
    match node.leave() {
        // Fenced at the last moment, because the machine let it wait: all that it had acknowledged is safe.
        Ok(()) | Err(LeaveError::Gone(_)) => say("left"),
        Err(error) => panic!("{error}"),
    }
}

/// A process, and what it has said.
struct Process {
    child: Child,
    said: Arc<Said>,
    hears: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Said {
    serving: AtomicBool,
    acked: AtomicU64,
    ended: AtomicU64,
    left: AtomicBool,
}

impl Process {
    fn start(place: &Place, test: &str, name: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(PLACE, &place.directory)
            .env(NAME, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let said = Arc::new(Said::default());
        let hears = Arc::clone(&said);
        let hears = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.as_str() {
                    "serving" => hears.serving.store(true, Ordering::SeqCst),
                    "acked" => drop(hears.acked.fetch_add(1, Ordering::SeqCst)),
                    "ended" => drop(hears.ended.fetch_add(1, Ordering::SeqCst)),
                    "left" => hears.left.store(true, Ordering::SeqCst),
                    _ => {}
                }
            }
        });
        Process {
            child,
            said,
            hears: Some(hears),
        }
    }

    fn acked(&self) -> u64 {
        self.said.acked.load(Ordering::SeqCst)
    }

    /// Waits for so many commits more.
    fn commits(&self, more: u64) {
        let enough = self.acked() + more;
        until("the node commits", || self.acked() >= enough);
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill runs").success());
    }

    /// Has the node leave. Returns its commits.
    fn leave(mut self) -> u64 {
        let mut input = self.child.stdin.take().expect("it is piped");
        writeln!(input, "stop").expect("it listens");
        assert!(self.child.wait().expect("it ends").success());
        self.hears.take().expect("it hears").join().expect("no panic");
        assert!(self.said.left.load(Ordering::SeqCst));
        self.acked()
    }

    /// SIGKILL. Returns the node's commits that it has told of.
    fn kill(mut self) -> u64 {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        self.hears.take().expect("it hears").join().expect("no panic");
        self.acked()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After a failure; it may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server and two nodes that commit.
struct World {
    place: Place,
    server: Process,
    nodes: [Process; 2],
    _lender: Lender,
    _directory: tempfile::TempDir,
}

impl World {
    fn start() -> World {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let place = Place {
            directory: directory.path().to_owned(),
        };
        let lender = place.lender("a");
        place.create(LOCKS as usize, &["a"]);
        let server = World::serve(&place);
        let nodes = ["one", "two"].map(|name| Process::start(&place, "node", name));
        nodes.iter().for_each(|node| node.commits(30));
        World {
            place,
            server,
            nodes,
            _lender: lender,
            _directory: directory,
        }
    }

    fn serve(place: &Place) -> Process {
        let server = Process::start(place, "server", "server");
        until("the server serves", || server.said.serving.load(Ordering::SeqCst));
        server
    }
}

/// All commits that there were.
fn commits(place: &Place) -> u64 {
    let end = Instant::now() + PATIENCE;
    loop {
        let judge = place.join("judge");
        let counted = (0..LOCKS).map(|lock| try_read(&judge, lock));
        match counted.sum::<Result<u64, CommitError>>() {
            Ok(counted) => return counted,
            // The machine let the judge wait for longer than a lease.
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn when_a_node_is_killed_others_go_on_and_all_that_it_had_acknowledged_is_there() {
    let _alone = alone();
    let World {
        place,
        server: _server,
        nodes: [one, two],
        _lender,
        _directory,
    } = World::start();
    let killed = one.kill();
    // Enough to have had every lock.
    two.commits(60);
    let acked = killed + two.leave();
    let counted = commits(&place);
    // Its last one may be in, or not.
    assert!(
        (acked..=acked + 1).contains(&counted),
        "{acked} were acknowledged, {counted} are there"
    );
    // The same machine again: what it left is offered, and nothing comes twice.
    let again = place.join("one");
    until("what was left is offered", || again.left_behind().is_empty());
    again.leave().expect("it leaves");
    assert_eq!(commits(&place), counted);
}

#[test]
fn a_node_that_slept_beyond_its_lease_learns_what_became_of_its_commit() {
    let _alone = alone();
    let World {
        place,
        server: _server,
        nodes: [one, two],
        _lender,
        _directory,
    } = World::start();
    one.signal("-STOP");
    std::thread::sleep(LEASE_SHORT * 2);
    two.commits(60);
    one.signal("-CONT");
    until("it is told that it was fenced", || {
        one.said.ended.load(Ordering::SeqCst) > 0
    });
    one.commits(30);
    let acked = one.leave() + two.leave();
    assert_eq!(commits(&place), acked);
}

#[test]
fn a_server_that_is_killed_and_started_again_loses_nothing() {
    let _alone = alone();
    let World {
        place,
        server,
        nodes: [one, two],
        _lender,
        _directory,
    } = World::start();
    server.kill();
    let _server = World::serve(&place);
    one.commits(60);
    two.commits(60);
    let acked = one.leave() + two.leave();
    assert_eq!(commits(&place), acked);
}
