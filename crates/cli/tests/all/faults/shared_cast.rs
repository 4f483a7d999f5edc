//! A shared region whose nodes send their commits to each other by multicast, each in its own network
//! namespace. Two of these networks lose a part of the datagrams. Lost ones come from the server, no version
//! is ever missing, and in the end all nodes have the same bytes.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::server::{RegionPlan, RegionStore, Spans};
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::{LockId, LockMode};
use netram_transport::{ClusterKey, Security};
use serde::{Deserialize, Serialize};

use crate::faults::harness::network::Network;
use crate::faults::harness::process::{FaultsProcess, PATIENCE, tool, until};
use crate::faults::harness::random::FaultsRandom;
use crate::faults::harness::{FaultsFixture, FaultsLender, skipped};

const SERVER: usize = 0;
const NODES: [usize; 3] = [1, 2, 3];
/// Those whose networks lose datagrams.
const LOSSY: [usize; 2] = [2, 3];
const PORT: u16 = 7440;
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 77, 4, 1), 7441);
/// Tells this test binary to be a node: its task, as JSON.
const NODE: &str = "NETRAM_CAST_NODE";

const LOCKS: u64 = 4;
const SPAN: usize = 64 << 10;
/// Entries of a span's ring. A span has the number of its writes, a ring with that number repeated, and bytes
/// that fill some datagrams.
const RING: u64 = 1024;
const TEXT: usize = 32 << 10;
const TEXT_BYTES: usize = 20_000;

/// A node to be.
#[derive(Serialize, Deserialize)]
struct Task {
    directory: PathBuf,
    server: String,
    key: PathBuf,
    /// `None`: it only looks on.
    seed: Option<u64>,
}

/// A node's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    commits: u64,
    taken: u64,
    forgotten: u64,
    cast: u64,
    linked: u64,
}

/// Not a test by itself: with the variable set, a node that writes until its input says to stop. It ends with
/// its parent, or after some minutes.
#[test]
fn cast_node_process() {
    let Ok(task) = std::env::var(NODE) else { return };
    let task: Task = serde_json::from_str(&task).expect("a task");
    std::thread::spawn(|| {
        std::thread::sleep(4 * PATIENCE);
        std::process::exit(3);
    });
    let node = join(&task);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| look_on(&node, &over));
        let stop = threads.spawn(|| std::io::stdin().lines().next().is_some());
        let mut random = task.seed.map(FaultsRandom);
        let mut commits = 0;
        while let (Some(random), false) = (&mut random, stop.is_finished()) {
            write(&node, random);
            commits += 1;
            say("counts", &counts(&node, commits));
        }
        let stopped = stop.join().unwrap();
        over.store(true, Ordering::SeqCst);
        assert!(stopped, "the test has ended");
    });
    say("stopped", &());
    // All have stopped: their last writes come with their locks.
    let _ = std::io::stdin().lines().next();
    let mut txn = node.begin(RestoreMode::Restore).unwrap();
    let locks: Vec<_> = (0..LOCKS)
        .map(|lock| (LockId(lock as u32), LockMode::Shared))
        .collect();
    txn.acquire_all(&locks).unwrap();
    let bytes = node.region().read();
    let counters: Vec<u64> = (0..LOCKS)
        .map(|lock| number(&bytes, lock as usize * SPAN))
        .collect();
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    say("end", &(counters, digest.as_ref()));
    drop(bytes);
    drop(txn);
    node.leave().unwrap();
}

fn join(task: &Task) -> Node {
    let key = ClusterKey::load(&task.key).expect("a key");
    let options = NodeOptions {
        server_timeout: PATIENCE,
        lock_timeout: PATIENCE,
        ..NodeOptions::new(
            task.server.parse().expect("an address"),
            Security::Key(key),
            task.directory.clone(),
        )
    };
    Node::join(options).expect("the node joins")
}

fn say<T: Serialize>(word: &str, value: &T) {
    let value = serde_json::to_string(value).expect("plain values");
    writeln!(std::io::stdout(), "\n{word} {value}").expect("the test listens");
}

fn counts(node: &Node, commits: u64) -> Counts {
    let straight = node.direct_counts();
    Counts {
        commits,
        taken: straight.applied,
        forgotten: straight.ignored,
        cast: straight.multicast,
        linked: straight.unicast,
    }
}

/// One transaction: a write under a lock, or under two; one in eight is long.
fn write(node: &Node, random: &mut FaultsRandom) {
    let mut locks: Vec<u64> = (0..=random.below(4) / 3).map(|_| random.below(LOCKS)).collect();
    locks.sort_unstable();
    locks.dedup();
    let long = random.below(8) == 0;
    let mut txn = node.begin(RestoreMode::Restore).unwrap();
    let held: Vec<_> = locks
        .iter()
        .map(|lock| (LockId(*lock as u32), LockMode::Exclusive))
        .collect();
    txn.acquire_all(&held).unwrap();
    for lock in locks {
        let start = lock as usize * SPAN;
        let next = node.region().get::<u64>(start).unwrap() + 1;
        // In this order: a thread that watches in this process sees the stores of its own transactions.
        txn.set(ring(start, next), &next).unwrap();
        txn.set(start, &next).unwrap();
        if long {
            txn.write(start + TEXT, &vec![next as u8; TEXT_BYTES]).unwrap();
        }
    }
    txn.commit(Durability::Remote).unwrap();
}

/// Where in a span its write of this number is noted.
fn ring(start: usize, write: u64) -> usize {
    start + 8 * (1 + write % RING) as usize
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

/// Checks that each write up to the newest is there at every moment, and none is taken back.
fn look_on(node: &Node, over: &AtomicBool) {
    let mut reader = node.reader().unwrap();
    let mut before = vec![0; LOCKS as usize];
    while !over.load(Ordering::SeqCst) {
        reader.accept().unwrap();
        {
            let bytes = reader.read().unwrap();
            for (lock, before) in before.iter_mut().enumerate() {
                let start = lock * SPAN;
                let newest = number(&bytes, start);
                assert!(newest >= *before, "lock {lock}: {newest} after {before}");
                *before = newest;
                for write in newest.saturating_sub(RING / 2).max(1)..=newest {
                    assert_eq!(number(&bytes, ring(start, write)), write, "lock {lock}, {newest}");
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A node's process; killed at the end.
struct Running {
    child: Child,
    input: ChildStdin,
    counts: Arc<Mutex<Counts>>,
    said: std::sync::mpsc::Receiver<String>,
}

impl Running {
    fn start(network: &Network, machine: usize, task: &Task) -> Running {
        let line = network.on(machine);
        let log = std::fs::File::create(task.directory.with_extension("log")).unwrap();
        let mut child = Command::new(&line[0])
            .args(&line[1..])
            .arg(std::env::current_exe().expect("this test has a path"))
            .args(["--exact", "faults::shared_cast::cast_node_process", "--nocapture"])
            .env(NODE, serde_json::to_string(task).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let counts = Arc::<Mutex<Counts>>::default();
        let newest = Arc::clone(&counts);
        let (say, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.strip_prefix("counts ") {
                    Some(counts) => *newest.lock().unwrap() = serde_json::from_str(counts).unwrap(),
                    // The listener may have enough and be gone.
                    None => drop(say.send(line)),
                }
            }
        });
        Running {
            input: child.stdin.take().unwrap(),
            child,
            counts,
            said,
        }
    }

    fn counts(&self) -> Counts {
        *self.counts.lock().unwrap()
    }

    fn tell(&mut self) {
        writeln!(self.input).unwrap();
    }

    fn leaves(mut self) {
        let mut status = None;
        until("the node leaves", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }

    fn hear(&self, word: &str) -> String {
        loop {
            let line = self
                .said
                .recv_timeout(PATIENCE)
                .expect("the node goes on; its log says why not");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a machine drop a fifth of its multicast datagrams, and count them. Links are not touched.
fn lossy(network: &Network, machine: usize) -> Result<(), String> {
    let rules = format!(
        "add table ip loss\n\
         add chain ip loss in {{ type filter hook input priority 0; }}\n\
         add rule ip loss in ip daddr {} numgen random mod 100 < 20 counter drop\n",
        GROUP.ip()
    );
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), rules).map_err(|error| error.to_string())?;
    let path = file.path().display().to_string();
    nft(network, machine, &["-f", &path]).map(drop)
}

/// Datagrams that a machine has dropped.
fn dropped(network: &Network, machine: usize) -> u64 {
    let rules = nft(network, machine, &["list", "table", "ip", "loss"]).unwrap();
    let mut words = rules.split_whitespace().skip_while(|word| *word != "packets");
    words
        .nth(1)
        .and_then(|count| count.parse().ok())
        .expect("a count")
}

fn nft(network: &Network, machine: usize, arguments: &[&str]) -> Result<String, String> {
    let mut line = network.on(machine);
    line.push("nft".to_owned());
    let rest: Vec<&str> = line[1..]
        .iter()
        .map(String::as_str)
        .chain(arguments.iter().copied())
        .collect();
    tool(&line[0], &rest)
}

fn network() -> Result<Network, String> {
    let network = Network::new(4)?;
    for machine in LOSSY {
        lossy(&network, machine)?;
    }
    Ok(network)
}

/// Makes the region, and serves it on its machine.
fn serve(place: &FaultsFixture, network: &Network, lender: &FaultsLender) -> (FaultsProcess, String) {
    let region = place.memory().join("region");
    let bytes = LOCKS * SPAN as u64;
    let plan = RegionPlan {
        bytes,
        address: 0,
        spans: Spans::even(bytes, SPAN as u64).unwrap(),
        log_bytes: 16 << 20,
        nodes_settings: format!(
            "[journal]\nlenders = [{:?}]\nmembers = 1\none-domain = true\nkey-file = {:?}\n",
            lender.address,
            place.key()
        ),
    };
    RegionStore::create(&region, &plan).unwrap();
    let lender_address = network.address(SERVER);
    let (host, _) = lender_address.rsplit_once(':').unwrap();
    let address = format!("{host}:{PORT}");
    let line = network.on(SERVER);
    let mut command = Command::new(&line[0]);
    command
        .args(&line[1..])
        .args([crate::common::program(), "shared", "serve"])
        .arg(&region)
        .args(["--with-parent", "--listen", &address, "--lease", "60s"])
        .args(["--multicast", &format!("{GROUP}%eth"), "--key-file"])
        .arg(place.key());
    let mut server = FaultsProcess::start(&mut command, &place.memory().join("server.log"));
    let mut lines = BufReader::new(server.take_stdout()).lines();
    assert!(
        lines.any(|line| line.is_ok_and(|line| line == "ready")),
        "the server ended before it served"
    );
    (server, address)
}

#[test]
fn the_server_delivers_what_multicast_loses_between_nodes() {
    let test = "the_server_delivers_what_multicast_loses_between_nodes";
    let network = match network() {
        Ok(network) => network,
        Err(missing) => return skipped(test, &missing),
    };
    let place = FaultsFixture::new();
    let wrap = network.on(SERVER);
    let wrap: Vec<&str> = wrap.iter().map(String::as_str).collect();
    let lender = FaultsLender::start(
        &place,
        "m",
        &network.address(SERVER),
        &wrap,
        &["--memory", "64MiB"],
    );
    let (_server, address) = serve(&place, &network, &lender);
    let task = |name: &str, seed| Task {
        directory: place.memory().join(name),
        server: address.clone(),
        key: place.key(),
        seed,
    };
    let mut nodes = NODES.map(|machine| {
        let task = task(&format!("node-{machine}"), Some(place.random.0 ^ machine as u64));
        Running::start(&network, machine, &task)
    });

    until("hints were taken everywhere, and lost where they are", || {
        let all = nodes.iter().all(|node| {
            let counts = node.counts();
            counts.commits >= 200 && counts.taken >= 50 && counts.cast >= 50
        });
        let lost = LOSSY
            .iter()
            .all(|machine| nodes[machine - 1].counts().forgotten > 0 && dropped(&network, *machine) > 0);
        all && lost
    });
    for node in &mut nodes {
        node.tell();
    }
    for node in &nodes {
        node.hear("stopped ");
    }
    for node in &mut nodes {
        node.tell();
    }
    let ends = nodes.each_ref().map(|node| node.hear("end "));
    for (node, machine) in nodes.iter().zip(NODES) {
        let counts = node.counts();
        eprintln!("machine {machine}: {counts:?}");
        assert_eq!(counts.linked, 0, "there are no links between them");
    }
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    for node in nodes {
        node.leaves();
    }
    // A node that joins now gets the server's copy.
    let mut late = Running::start(&network, NODES[0], &task("late", None));
    late.tell();
    late.tell();
    assert_eq!(late.hear("end "), ends[0]);
    late.leaves();
}
