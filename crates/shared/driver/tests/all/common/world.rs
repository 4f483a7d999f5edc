//! A server, a lender and a directory for the nodes of one test.

use std::path::PathBuf;
use std::time::Duration;

use netram_journal::JournalConfig;
use netram_journal::settings::JournalSettings;
use netram_lender::{Lender, LenderConfig};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::node::{AcquireError, TxnCommit, TxnCommitError};
use netram_shared::server::serve::{ServeConfig, ServingRegion};
use netram_shared::server::{RegionPlan, RegionStore, Spans};
use netram_shared::{Node, NodeOptions, Txn};
use netram_shared_machine::{LockId, LockMode};
use netram_transport::{NetAddress, Security};

use super::PATIENCE;

/// Bytes under one lock.
pub(crate) const SPAN: usize = 4096;
/// Lease for tests in which no node dies: longer than any test.
pub(crate) const LEASE_LONG: Duration = Duration::from_secs(300);
/// Lease for tests in which a node dies and is to be retired soon. On a loaded machine it may end for other
/// nodes, too; such a test tolerates that.
pub(crate) const LEASE_SHORT: Duration = Duration::from_secs(1);

/// Paths of a test.
pub(crate) struct TestPaths {
    pub(crate) directory: PathBuf,
}

impl TestPaths {
    pub(crate) fn address(&self, name: &str) -> NetAddress {
        NetAddress::Unix(self.directory.join(format!("{name}.sock")))
    }

    pub(crate) fn region(&self) -> PathBuf {
        self.directory.join("region")
    }

    pub(crate) fn lender(&self, name: &str) -> Lender {
        self.lender_as(name, |_| ())
    }

    /// Starts a lender with special settings.
    pub(crate) fn lender_as(&self, name: &str, choose: impl FnOnce(&mut LenderConfig)) -> Lender {
        let mut config = LenderConfig {
            name: name.to_owned(),
            listen: vec![self.address(name)],
            security: Security::Insecure,
            memory: 64 << 20,
            store: Some(self.directory.join(format!("{name}.mem"))),
            ..LenderConfig::default()
        };
        choose(&mut config);
        Lender::start(config).expect("a lender starts")
    }

    fn settings(&self, lenders: &[&str]) -> String {
        let names = lenders.iter().map(|name| format!("\"{}\"", self.address(name)));
        let names: Vec<String> = names.collect();
        format!(
            "[journal]\nlenders = [{}]\ninsecure = true\none-domain = true\nmembers = {}\nwindow = \"1MiB\"\npatience = \"2s\"\n",
            names.join(", "),
            lenders.len()
        )
    }

    /// Creates a region with this number of locks, whose nodes are sent these lenders.
    pub(crate) fn create(&self, locks: usize, lenders: &[&str]) {
        self.create_with(locks, lenders, |_| ());
    }

    /// Creates a region with this number of locks, each over `span` bytes.
    pub(crate) fn create_of(&self, locks: usize, span: usize, lenders: &[&str]) {
        self.create_with(locks, lenders, |plan| {
            plan.bytes = (locks * span) as u64;
            plan.spans = Spans::even(plan.bytes, span as u64).expect("spans");
        });
    }

    pub(crate) fn create_with(&self, locks: usize, lenders: &[&str], choose: impl FnOnce(&mut RegionPlan)) {
        let bytes = (locks * SPAN) as u64;
        let mut plan = RegionPlan {
            bytes,
            address: 0,
            spans: Spans::even(bytes, SPAN as u64).expect("spans"),
            log_bytes: 4 << 20,
            nodes_settings: self.settings(lenders),
        };
        choose(&mut plan);
        RegionStore::create(&self.region(), &plan).expect("a region is made");
    }

    /// Serves with a lease that does not end.
    pub(crate) fn serve(&self) -> ServingRegion {
        self.serve_with(LEASE_LONG)
    }

    /// Serves with a lease that ends soon for silent nodes.
    pub(crate) fn serve_shortly(&self) -> ServingRegion {
        self.serve_with(LEASE_SHORT)
    }

    pub(crate) fn serve_with(&self, lease: Duration) -> ServingRegion {
        self.serve_as(|config| config.lease = lease)
    }

    pub(crate) fn serve_as(&self, choose: impl FnOnce(&mut ServeConfig)) -> ServingRegion {
        let mut config = ServeConfig::new(vec![self.address("server")], Security::Insecure);
        choose(&mut config);
        let served = unhurried(|| ServingRegion::start(&self.region(), config.clone()));
        served.expect("the region is served")
    }

    pub(crate) fn options(&self, name: &str) -> NodeOptions {
        NodeOptions {
            name: name.to_owned(),
            log_bytes: 4 << 20,
            server_timeout: PATIENCE,
            ..NodeOptions::new(
                self.address("server"),
                Security::Insecure,
                self.directory.join(name),
            )
        }
    }

    /// Configuration of a node's journal that does not come from the server.
    pub(crate) fn journal(&self, lenders: &[&str]) -> JournalConfig {
        let settings = JournalSettings::parse(&self.settings(lenders), &self.directory).expect("settings");
        settings.journal_config().expect("settings")
    }

    pub(crate) fn join(&self, name: &str) -> Node {
        self.join_as(name, |_| ())
    }

    pub(crate) fn join_as(&self, name: &str, choose: impl Fn(&mut NodeOptions)) -> Node {
        let options = || {
            let mut options = self.options(name);
            choose(&mut options);
            options
        };
        unhurried(|| Node::join(options())).expect("the node joins")
    }
}

/// Tries again while a directory's lock is held. A process that another test starts has all descriptors of
/// this one, including released locks, until it runs its own program.
fn unhurried<T, E: std::fmt::Debug>(mut start: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        match start() {
            Err(error) if format!("{error:?}").contains("InUse") && std::time::Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// Adds to the counter at the start of a lock's span. Returns the new value.
pub(crate) fn add(node: &Node, lock: u32, more: u64) -> Result<u64, TxnCommitError> {
    add_as(node, lock, more).map(|(value, _)| value)
}

/// Like [`add`], but also returns the commit.
pub(crate) fn add_as(node: &Node, lock: u32, more: u64) -> Result<(u64, TxnCommit), TxnCommitError> {
    let mut txn = node.begin(RestoreMode::Restore)?;
    acquire(&mut txn, lock, LockMode::Exclusive)?;
    let at = lock as usize * SPAN;
    let value: u64 = node.region().get(at).expect("inside");
    txn.set(at, &(value + more)).expect("it is held");
    let commit = txn.commit(Durability::Remote)?;
    Ok((value + more, commit))
}

/// Increments the counter, and fills the lock's span with it.
pub(crate) fn add_and_fill(node: &Node, lock: u32) -> Result<TxnCommit, TxnCommitError> {
    let mut txn = node.begin(RestoreMode::Restore)?;
    acquire(&mut txn, lock, LockMode::Exclusive)?;
    let at = lock as usize * SPAN;
    let value: u64 = node.region().get(at).expect("inside");
    let bytes = (value + 1).to_le_bytes().repeat(SPAN / 8);
    txn.write(at, &bytes).expect("it is held");
    txn.commit(Durability::Remote)
}

/// The counter at the start of a lock's span, as of now.
pub(crate) fn read(node: &Node, lock: u32) -> u64 {
    try_read(node, lock).expect("the node stays one")
}

/// Like [`read`], for a node that may be fenced.
pub(crate) fn try_read(node: &Node, lock: u32) -> Result<u64, TxnCommitError> {
    let mut txn = node.begin(RestoreMode::Restore)?;
    acquire(&mut txn, lock, LockMode::Shared)?;
    let value = node.region().get(lock as usize * SPAN).expect("inside");
    let commit = txn.commit(Durability::Remote)?;
    assert_eq!(commit.record, None, "nothing was written");
    Ok(value)
}

fn acquire(txn: &mut Txn<'_>, lock: u32, hold: LockMode) -> Result<(), TxnCommitError> {
    match txn.acquire(LockId(lock), hold) {
        Ok(()) => Ok(()),
        Err(AcquireError::Gone(gone)) => Err(gone.into()),
        Err(AcquireError::Lost) => Err(TxnCommitError::Lost),
        Err(error) => panic!("{error}"),
    }
}

/// Moves money between the counters of two locks.
pub(crate) fn transfer(node: &Node, from: u32, to: u32, money: u64) {
    let mut txn = node.begin(RestoreMode::Restore).expect("there is a node");
    let locks = [from, to].map(|lock| (LockId(lock), LockMode::Exclusive));
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
