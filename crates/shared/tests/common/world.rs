//! A server, a lender and a directory for the nodes of one test.

use std::path::PathBuf;
use std::time::Duration;

use netram_lender::{Config, Lender};
use netram_proto::port::Durability;
use netram_proto::shared::{Hold, LockId};
use netram_rvm::Mode;
use netram_shared::node::{AcquireError, Commit, CommitError};
use netram_shared::server::serve::{ServeConfig, Serving};
use netram_shared::server::{Plan, Spans, Store};
use netram_shared::{Node, Options};
use netram_transport::{Address, Security};

use super::PATIENCE;

/// Bytes under one lock.
pub const SPAN: usize = 4096;
/// Short, so that the dead are buried soon; and longer than a loaded machine lets a thread wait.
pub const LEASE: Duration = Duration::from_millis(800);

/// Where everything of a test is.
pub struct Place {
    pub directory: PathBuf,
}

impl Place {
    pub fn address(&self, name: &str) -> Address {
        Address::Unix(self.directory.join(format!("{name}.sock")))
    }

    pub fn region(&self) -> PathBuf {
        self.directory.join("region")
    }

    pub fn lender(&self, name: &str) -> Lender {
        let config = Config {
            name: name.to_owned(),
            listen: vec![self.address(name)],
            security: Security::Insecure,
            memory: 64 << 20,
            store: Some(self.directory.join(format!("{name}.mem"))),
            ..Config::default()
        };
        Lender::start(config).expect("a lender starts")
    }

    /// Makes a region of so many locks, whose nodes are told these lenders.
    pub fn create(&self, locks: usize, lenders: &[&str]) {
        let bytes = (locks * SPAN) as u64;
        let names = lenders.iter().map(|name| format!("\"{}\"", self.address(name)));
        let names: Vec<String> = names.collect();
        let settings = format!(
            "lenders = [{}]\ninsecure = true\none-domain = true\nmembers = {}\nwindow = \"1MiB\"\npatience = \"2s\"\n",
            names.join(", "),
            lenders.len()
        );
        let plan = Plan {
            bytes,
            address: 0,
            spans: Spans::even(bytes, SPAN as u64).expect("spans"),
            log_bytes: 4 << 20,
            nodes_settings: settings,
        };
        Store::create(&self.region(), &plan).expect("a region is made");
    }

    pub fn serve(&self) -> Serving {
        self.serve_with(LEASE)
    }

    pub fn serve_with(&self, lease: Duration) -> Serving {
        let config = ServeConfig {
            lease,
            ..ServeConfig::new(vec![self.address("server")], Security::Insecure)
        };
        Serving::start(&self.region(), config).expect("the region is served")
    }

    pub fn options(&self, name: &str) -> Options {
        Options {
            name: name.to_owned(),
            log_bytes: 4 << 20,
            patience: PATIENCE,
            ..Options::new(
                self.address("server"),
                Security::Insecure,
                self.directory.join(name),
            )
        }
    }

    pub fn join(&self, name: &str) -> Node {
        Node::join(self.options(name)).expect("the node joins")
    }
}

/// Adds to the counter at the beginning of a lock's span. Returns what it is then.
pub fn add(node: &Node, lock: u32, more: u64) -> Result<u64, CommitError> {
    let mut txn = node.begin(Mode::Restore)?;
    match txn.acquire(LockId(lock), Hold::Exclusive) {
        Ok(()) => {}
        Err(AcquireError::Gone(gone)) => return Err(gone.into()),
        Err(AcquireError::Lost) => return Err(CommitError::Lost),
        Err(error) => panic!("{error}"),
    }
    let at = lock as usize * SPAN;
    let value: u64 = node.region().get(at).expect("inside");
    txn.set(at, &(value + more)).expect("it is held");
    txn.commit(Durability::Remote)?;
    Ok(value + more)
}

/// The counter at the beginning of a lock's span, as of now.
pub fn read(node: &Node, lock: u32) -> u64 {
    let mut txn = node.begin(Mode::Restore).expect("there is a node");
    txn.acquire(LockId(lock), Hold::Shared)
        .expect("it is free some day");
    let value = node.region().get(lock as usize * SPAN).expect("inside");
    let commit = txn.commit(Durability::Remote).expect("nothing was written");
    assert_eq!(
        commit,
        Commit {
            record: None,
            ..commit
        }
    );
    value
}

/// Moves money between the counters of two locks.
pub fn transfer(node: &Node, from: u32, to: u32, money: u64) {
    let mut txn = node.begin(Mode::Restore).expect("there is a node");
    let locks = [from, to].map(|lock| (LockId(lock), Hold::Exclusive));
    txn.acquire_all(&locks).expect("they are free some day");
    let [one, other] = [from, to].map(|lock| lock as usize * SPAN);
    let (had, has): (u64, u64) = (
        node.region().get(one).expect("inside"),
        node.region().get(other).expect("inside"),
    );
    txn.set(one, &had.wrapping_sub(money)).expect("it is held");
    txn.set(other, &has.wrapping_add(money)).expect("it is held");
    txn.commit(Durability::Remote).expect("it commits");
}
