//! A node that joins slowly: its disk, or a file that it opens, takes many times its lease.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::until;
use crate::common::world::{TestPaths, add};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::limit::{JOINING_BYTES_MAX, LEASE_MIN};
use netram_shared::node::JoinError;
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::{LockId, LockMode};
use netram_transport::ClusterKey;

/// Number of attempts. On a loaded machine such a short lease may end for a correct node.
const ATTEMPTS: usize = 20;
const SPAN: usize = 256 << 10;
/// More bytes than wait for the copy and fit in the buffers between.
const SPANS: usize = 2 * JOINING_BYTES_MAX / SPAN;
const _: () = assert!(JOINING_BYTES_MAX.is_multiple_of(SPAN));

/// A key file on a disk that takes seven leases to read it: a pipe.
struct SlowKey {
    path: PathBuf,
    reads: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlowKey {
    fn make(path: PathBuf) -> SlowKey {
        let made = Command::new("mkfifo").args(["-m", "600"]).arg(&path).status();
        assert!(made.unwrap().success());
        let key = path.with_extension("real");
        ClusterKey::generate().save_new(&key).unwrap();
        let text = std::fs::read(&key).unwrap();
        let (reads, stop) = (Arc::default(), Arc::default());
        let thread = std::thread::spawn({
            let (path, reads, stop) = (path.clone(), Arc::clone(&reads), Arc::clone(&stop));
            move || give(&path, &text, &reads, &stop)
        });
        SlowKey {
            path,
            reads,
            stop,
            thread: Some(thread),
        }
    }
}

fn give(path: &Path, text: &[u8], reads: &AtomicU64, stop: &AtomicBool) {
    loop {
        // Blocks until a reader opens the pipe.
        let mut pipe = OpenOptions::new().write(true).open(path).unwrap();
        if stop.load(Ordering::SeqCst) {
            return;
        }
        reads.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(7 * LEASE_MIN);
        pipe.write_all(text).unwrap();
        drop(pipe);
        // Until the reader has reached the end: the next reader needs another writer.
        while !stop.load(Ordering::SeqCst) && is_read(path) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_read(path: &Path) -> bool {
    let pipe = OpenOptions::new()
        .write(true)
        .custom_flags(nonblocking())
        .open(path);
    pipe.is_ok()
}

fn nonblocking() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits().cast_signed()
}

impl Drop for SlowKey {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _reader: File = OpenOptions::new()
            .read(true)
            .custom_flags(nonblocking())
            .open(&self.path)
            .unwrap();
        // The thread has reported a panic itself.
        let _ = self.thread.take().unwrap().join();
    }
}

/// Each attempt left the bytes of a log behind.
#[test]
fn a_join_that_reaches_no_server_leaves_no_files() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let impatient = || {
        Node::join(NodeOptions {
            server_timeout: Duration::from_millis(1),
            ..place.options("one")
        })
    };
    for _ in 0..3 {
        assert!(matches!(impatient(), Err(JoinError::Link(_))));
    }
    let left = std::fs::read_dir(place.directory.join("one")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let journals: Vec<String> = left.filter(|name| name.starts_with("journal")).collect();
    assert_eq!(journals, Vec::<String>::new());
}

/// While its journal was being created the node sent nothing, was fenced, and joined again, for ever.
#[test]
fn a_node_keeps_its_lease_while_its_copy_is_built() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let key = SlowKey::make(place.directory.join("key"));
    place.create_of(SPANS, SPAN, &[]);
    let settings = format!("[journal]\nkey-file = \"{}\"\nmembers = 0\n", key.path.display());
    std::fs::write(place.region().join("nodes.toml"), settings).unwrap();
    let quick = |name: &str| NodeOptions {
        journal: Some(place.journal(&[])),
        ..place.options(name)
    };
    // A region with more page bytes than a node buffers before its copy is ready.
    let serving = place.serve();
    let one = Node::join(quick("one")).expect("it joins");
    for span in 0..SPANS {
        let mut txn = one.begin(RestoreMode::Restore).unwrap();
        txn.acquire(LockId(span as u32), LockMode::Exclusive).unwrap();
        txn.write(span * SPAN, &vec![span as u8 + 1; SPAN]).unwrap();
        txn.commit(Durability::Remote).unwrap();
    }
    one.leave().expect("it leaves");
    drop(serving);
    let _serving = place.serve_with(LEASE_MIN);
    let mut refused = Vec::new();
    let joined = (0..ATTEMPTS).find_map(|_| {
        let joined = Node::join(place.options("slow"));
        joined.map_err(|error| refused.push(error.to_string())).ok()
    });
    assert!(joined.is_some(), "it takes longer than its lease: {refused:?}");
    let node = joined.expect("it joins");
    assert!(key.reads.load(Ordering::SeqCst) > 0, "it was slow");
    let memory = node.region().read();
    for span in 0..SPANS {
        let bytes = &memory[span * SPAN..][..SPAN];
        assert!(bytes.iter().all(|byte| *byte == span as u8 + 1), "span {span}");
    }
}

/// Until then its server makes its commits durable.
#[test]
fn a_node_reports_why_its_lenders_do_not_count() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    place.create(1, &["nobody"]);
    let _serving = place.serve();
    let node = place.join("one");
    let nothing = netram_journal::LinkFailure::NothingListens.to_string();
    until("it says why", || {
        node.uncounted()
            .is_some_and(|why| why.to_string().contains(&nothing))
    });
    assert_eq!(add(&node, 0, 1).unwrap(), 1);
    let _lender = place.lender("nobody");
    until("the lender counts", || node.uncounted().is_none());
    node.leave().unwrap();
}
