//! A region whose server is killed and whose directory is lost is rescued from its nodes' copies.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::world::{SPAN, TestPaths, add, read};
use crate::common::{PATIENCE, until};
use netram_rvm::RestoreMode;
use netram_shared::Node;
use netram_shared::node::{NodeGone, SaveError};
use netram_shared::server::{RescueError, rescue};
use netram_shared_machine::node::NodeEnd;
use netram_shared_machine::{LockId, LockMode, LockVersion};

const LOCKS: usize = 6;
const LOG_BYTES: u64 = 4 << 20;
/// A copy can be saved only after the lease; on a loaded machine it must not end too early.
const LEASE: Duration = Duration::from_secs(3);
const DIRECTORY: &str = "NETRAM_TEST_RESCUE";

/// A server in a process of its own, so that it can be killed.
struct ServerChild(Child);

impl ServerChild {
    fn start(place: &TestPaths) -> ServerChild {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "rescue::server", "--ignored", "--nocapture"])
            .env(DIRECTORY, &place.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let serving = lines.any(|line| line.is_ok_and(|line| line == "serving"));
        assert!(serving, "the server serves");
        ServerChild(child)
    }

    /// Kills the server, and deletes its disk.
    fn lose(mut self, place: &TestPaths) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
        std::fs::remove_dir_all(place.region()).expect("its directory");
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        // After a failure; the process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "a process of the other tests"]
fn server() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let place = TestPaths {
        directory: PathBuf::from(directory),
    };
    let _serving = place.serve_with(LEASE);
    let mut out = std::io::stdout();
    writeln!(out, "\nserving").expect("somebody reads");
    out.flush().expect("somebody reads");
    // Until it is killed, or its test is gone.
    let _ = std::io::stdin().lines().next();
}

fn place() -> (tempfile::TempDir, TestPaths) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    (directory, place)
}

/// Saves a node's copy once its lease has ended.
fn save(node: &Node, path: &std::path::Path) {
    let end = Instant::now() + PATIENCE;
    loop {
        match node.save_copy(path) {
            Ok(()) => return,
            Err(SaveError::Served) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Adds until it succeeds, because a busy machine lets leases end.
fn surely_add(node: &Node, lock: u32, more: u64) {
    let end = Instant::now() + PATIENCE;
    while let Err(error) = add(node, lock, more) {
        assert!(node.gone().is_none() && Instant::now() < end, "{error}");
    }
}

#[test]
fn a_rescued_region_has_all_commits_of_the_saving_nodes() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(LOCKS, &["a"]);
    let server = ServerChild::start(&place);
    let one = place.join("one");
    // This node gets other nodes' records only on request, so its copy alone is not enough.
    let lazy = Node::join(netram_shared::NodeOptions {
        lazy: true,
        ..place.options("lazy")
    })
    .expect("it joins");
    for _ in 0..20 {
        surely_add(&one, 1, 1);
        surely_add(&one, 2, 10);
        surely_add(&lazy, 3, 100);
    }
    let refused = one.save_copy(&place.directory.join("early"));
    assert!(matches!(refused, Err(SaveError::Served)), "{refused:?}");
    server.lose(&place);
    let copies = ["one.copy", "lazy.copy"].map(|name| place.directory.join(name));
    save(&one, &copies[0]);
    save(&lazy, &copies[1]);
    assert!(
        lazy.version(LockId(1)) < LockVersion(20),
        "it has what came before its one grant"
    );
    let made = rescue(&place.region(), &copies, LOG_BYTES).expect("a region is made");
    assert_ne!(made.region, made.was);
    assert_eq!(made.copies[0].2 + made.copies[1].2, 3, "{made:?}");
    assert_eq!(made.absent, []);
    // Nodes of the old region are refused by the new one, at the same address.
    let _server = ServerChild::start(&place);
    for node in [&one, &lazy] {
        until("it hears that there is another region", || node.gone().is_some());
        assert!(
            matches!(node.gone(), Some(NodeGone::Ended(NodeEnd::Refused(_)))),
            "{:?}",
            node.gone()
        );
    }
    drop(one);
    // Its directory still has the journal of the old region, which is left there.
    let again = place.join("one");
    assert_eq!([1, 2, 3].map(|lock| read(&again, lock)), [20, 200, 2000]);
    surely_add(&again, 1, 1);
    let alien = |failed: &str| failed.contains("of another region");
    until("the old journal is looked at", || {
        let left = again.orphans();
        left.iter().any(|left| left.failed.as_deref().is_some_and(alien))
    });
    let other = place.join("other");
    assert_eq!(read(&other, 1), 21);
    assert_eq!(other.region().get::<u64>(3 * SPAN).expect("inside"), 2000);
}

#[test]
fn incompatible_copies_are_refused_and_leave_no_files() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(LOCKS, &["a"]);
    let server = ServerChild::start(&place);
    let (one, other) = (place.join("one"), place.join("other"));
    surely_add(&one, 1, 7);
    until("it comes", || other.version(LockId(1)) == LockVersion(1));
    let mut holds = other.begin(RestoreMode::Restore).expect("there is a node");
    holds.acquire(LockId(2), LockMode::Exclusive).expect("it is free");
    server.lose(&place);
    let copies = ["one.copy", "other.copy"].map(|name| place.directory.join(name));
    save(&one, &copies[0]);
    let busy = other.save_copy(&copies[1]);
    assert!(matches!(busy, Err(SaveError::Busy)), "{busy:?}");
    drop(holds);
    save(&other, &copies[1]);
    // The program stores without a lock: its copy differs at the same version.
    other.region().put_back(SPAN + 100, &[1]).expect("inside");
    let stray = place.directory.join("stray.copy");
    save(&other, &stray);
    let refused = rescue(&place.region(), &[copies[0].clone(), stray], LOG_BYTES);
    let lock = LockId(1);
    assert!(
        matches!(refused, Err(RescueError::Fork { lock: named, .. }) if named == lock),
        "{refused:?}"
    );
    let (again, to) = (one.save_copy(&copies[0]), place.region());
    assert!(
        matches!(again, Err(SaveError::Copy(_))),
        "it is there already: {again:?}"
    );

    // With one node's copy alone, the report names the other node.
    let made = rescue(&place.directory.join("alone"), &copies[1..], LOG_BYTES).expect("a region is made");
    assert_eq!(made.absent, [(one.id(), netram_shared_machine::RecordNumber(1))]);

    let bytes = copies[1].join("bytes");
    let whole = std::fs::read(&bytes).expect("the copy's bytes");
    let mut damaged = whole.clone();
    damaged[SPAN] ^= 1;
    std::fs::write(&bytes, &damaged).expect("it is a file");
    let refused = rescue(&to, &copies, LOG_BYTES);
    assert!(matches!(refused, Err(RescueError::Copy(_))), "{refused:?}");
    std::fs::write(&bytes, &whole).expect("it is a file");
    std::fs::remove_file(copies[1].join("copy")).expect("it is a file");
    let refused = rescue(&to, &copies, LOG_BYTES);
    assert!(matches!(refused, Err(RescueError::Copy(_))), "{refused:?}");
    assert!(!to.exists());
    rescue(&to, &copies[..1], LOG_BYTES).expect("one copy is enough");
    let refused = rescue(&to, &copies[..1], LOG_BYTES);
    assert!(matches!(refused, Err(RescueError::Create(_))), "{refused:?}");
}
