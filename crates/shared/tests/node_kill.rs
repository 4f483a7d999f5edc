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

use common::world::{LEASE_LONG, LEASE_SHORT, Place, SPAN, add_as, try_read};
use common::{PATIENCE, Random, until};
use netram_lender::Lender;
use netram_proto::port::Durability;
use netram_proto::shared::message::Fate;
use netram_proto::shared::{Hold, LockId, NodeId, Number};
use netram_rvm::Mode;
use netram_shared::node::{Commit, CommitError, LeaveError};
use netram_shared::server::serve::Serving;
use netram_shared::server::{Store, merge_left};

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
    serve(place.serve_shortly());
}

/// Not a test of its own: a server of whose nodes none is to be fenced.
#[test]
#[ignore = "a process of the other tests"]
fn patient_server() {
    let Some(place) = place_of_child() else { return };
    serve(place.serve());
}

fn serve(serving: Serving) {
    writeln!(std::io::stdout(), "\nserving").expect("somebody reads");
    // Until the test ends, or kills it.
    let _ = std::io::stdin().lines().next();
    drop(serving);
}

/// Not a test of its own: a lender.
#[test]
#[ignore = "a process of the other tests"]
fn lender() {
    let Some(place) = place_of_child() else { return };
    let lender = place.lender("a");
    writeln!(std::io::stdout(), "\nserving").expect("somebody reads");
    let _ = std::io::stdin().lines().next();
    drop(lender);
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
        let (number, id) = match add_as(&node, random.below(u64::from(LOCKS)) as u32, 1) {
            Ok((_, Commit { record, .. })) => {
                let (id, number) = record.expect("it wrote");
                say(&format!("record {id} {number}\nacked"));
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
    /// The last record that was acknowledged.
    record: Mutex<(u64, u64)>,
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

    /// The last record that it has told of.
    fn record(&self) -> (NodeId, Number) {
        let (id, number) = *self.said.record.lock().expect("no panic");
        (NodeId(id), Number(number))
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
        self.wait()
    }

    /// Until it has ended, and all that it has told is heard.
    fn wait(mut self) -> u64 {
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

/// Its link takes no more, and the server keeps only so many records for it.
#[test]
fn a_node_that_others_outrun_begins_anew_and_loses_nothing() {
    let _alone = alone();
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = Place {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create(LOCKS as usize + 1, &["a"]);
    let serving = place.serve_as(|config| {
        config.lease = LEASE_LONG;
        // More than the writer may send before the server looks at what it has for others.
        config.recent_bytes = 1 << 20;
    });
    let one = Process::start(&place, "node", "one");
    one.commits(30);
    one.signal("-STOP");
    // Under a lock that the other never has; more than all buffers on the way.
    let writer = place.join("writer");
    for round in 0..1500_u32 {
        let mut txn = writer.begin(Mode::Restore).expect("there is a node");
        txn.acquire(LockId(LOCKS), Hold::Exclusive).expect("it is free");
        txn.write(LOCKS as usize * SPAN, &[round as u8; SPAN])
            .expect("it is held");
        txn.commit(Durability::Remote).expect("it commits");
    }
    one.signal("-CONT");
    until("it is told to begin anew", || {
        one.said.ended.load(Ordering::SeqCst) > 0
    });
    one.commits(30);
    let acked = one.leave();
    assert_eq!(commits(&place), acked);
    drop(serving);
}

/// What the server's disk has is there; what only memories had is lost, and nobody is told otherwise.
#[test]
fn after_a_power_cut_of_everything_what_was_kept_is_there_and_of_the_rest_the_truth_is_told() {
    let _alone = alone();
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = Place {
        directory: directory.path().to_owned(),
    };
    let serves = |test: &str| {
        let process = Process::start(&place, test, test);
        until("it serves", || process.said.serving.load(Ordering::SeqCst));
        process
    };
    let lender = serves("lender");
    place.create(LOCKS as usize, &["a"]);
    let server = serves("patient_server");
    let nodes = ["one", "two"].map(|name| Process::start(&place, "node", name));
    nodes.iter().for_each(|node| node.commits(30));
    let kept = nodes.each_ref().map(Process::record);
    let judge = place.join("judge");
    for (node, number) in kept {
        let fate = judge.outcome(node, number, PATIENCE);
        assert_eq!(fate, Ok(Fate::Committed));
    }
    // A dead one would have to be waited for.
    judge.leave().expect("it leaves");
    nodes.iter().for_each(|node| node.commits(30));
    let ids: Vec<String> = [&lender, &server, &nodes[0], &nodes[1]]
        .map(|process| process.child.id().to_string())
        .to_vec();
    let killed = Command::new("kill").arg("-9").args(ids).status();
    assert!(killed.expect("kill runs").success());
    lender.wait();
    server.wait();
    let acked = nodes.map(|node| {
        let said = Arc::clone(&node.said);
        node.wait();
        *said.record.lock().expect("no panic")
    });
    // The lender comes back empty. What the nodes' disks have is all that is left, and no proof.
    std::fs::remove_file(place.directory.join("a.mem")).expect("the lender had it");
    let _lender = serves("lender");
    let (mut store, _) = Store::open(&place.region(), || ()).expect("the region is whole");
    let roots = ["one", "two"].map(|name| place.directory.join(name));
    let merged = merge_left(&mut store, &roots, true).expect("it is merged");
    store.close().expect("it closes");
    let _server = serves("patient_server");
    let judge = place.join("another judge");
    let mut counted = 0;
    for ((node, number), (id, acked)) in kept.into_iter().zip(acked) {
        assert_eq!(node.0, id, "it was never fenced");
        let its = merged.iter().find(|left| left.node == node);
        let last = its.expect("its directory was named").last;
        assert!(last >= number, "{number} was kept, {last} is there");
        assert!(last.0 <= acked + 1, "{last} is there, {acked} was acknowledged");
        let fate = |number| judge.outcome(node, Number(number), PATIENCE);
        assert_eq!(fate(last.0), Ok(Fate::Committed));
        assert_eq!(fate(last.0 + 1), Ok(Fate::Aborted));
        counted += last.0;
    }
    judge.leave().expect("it leaves");
    assert_eq!(commits(&place), counted);
}
