//! Serving a region: the machine that decides, with the store, a door and links.
//!
//! | file | does |
//! |---|---|
//! | `driver.rs` | the thread that serves: post, disk, time; the machine's deeds |
//! | `hear.rs` | takes what links bring, and checks it |
//! | `fill.rs` | gives links what there is for them |
//! | `line.rs` | one session |
//! | `post.rs` | what other threads tell the one that serves |
//! | `loss.rs` | giving up what cannot be proven of a dead node |
//! | `readings.rs` | dead nodes' journals, read by threads of their own |
//! | `report.rs`, `status.rs` | how it stands |
//! | `control.rs` | telling that to other processes of this machine |
//! | `inquiry.rs` | telling it to whoever has the cluster's key, over a link |
//!
//! Threads: `netram-served`, which serves; the store's `netram-kept`, which waits for the disk, and the
//! home's own; `netram-door`, which lets nodes in; `netram-asked`, which answers for the status; a
//! short-lived `netram-remains` for each attempt to read a dead node's journal, and a `netram-forget` when
//! one is gone.

pub mod control;
mod driver;
mod fill;
pub mod inquiry;
mod loss;
mod mailbox;
mod node_link;
mod readings;
mod receive;
pub mod report;
mod status;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_proto::failure::RetryBackoff;
use netram_proto::port::WaitError;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::limit::SETTINGS_BYTES_MAX;
use netram_shared_machine::message::RegionOpening;
use netram_shared_machine::server::ServerConfig;
use netram_shared_machine::{NodeId, RegionServer};
use netram_store::StoreSettings;
use netram_transport::{Interest, MulticastGroup, NetAddress, Poller, Security, WaitPolicy};

pub use loss::NotStuck;
pub use report::ServerReport;

use crate::channel::{AcceptorConfig, AcceptorError, SessionAcceptor, SessionHandler};
use crate::limit::{
    FORGET_RETRY_DEFAULT, LEASE_DEFAULT, LEASE_MAX, LEASE_MIN, PAGE_BYTES, RECENT_BYTES_DEFAULT,
    SESSIONS_MAX_DEFAULT, STATUS_TIMEOUT,
};
use crate::server::store::{MergeError, RecordLimitError, RegionStore, RegionStoreError, StoreOpenError};
use control::RegionControl;
use driver::{ServeDriver, WAKER_TOKEN};
use mailbox::{DriverEvent, DriverMailbox};
use readings::Readings;
use report::StuckReport;

/// How a region is served.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where nodes come in.
    pub listen: Vec<NetAddress>,
    /// How links are protected: those of nodes, and those to dead nodes' lenders.
    pub security: Security,
    /// How long a node may be silent. The same for all, and told when they join.
    pub lease: Duration,
    /// What the thread that serves does while nothing arrives.
    pub wait: WaitPolicy,
    /// Bytes of records that are kept for nodes that are behind. Who is behind all of them gets the region
    /// anew. The server keeps at least what its log's window holds.
    pub recent_bytes: usize,
    /// Sessions and strangers in all.
    pub sessions_max: usize,
    /// After so long lenders are told again to give back what a node that is gone had, if they could not be
    /// reached. It doubles, a few times.
    pub forget_retry: Duration,
    /// Where nodes multicast their records to each other; `None`: they go over links.
    pub multicast: Option<MulticastGroup>,
}

impl ServeConfig {
    /// The usual server at these addresses.
    pub fn new(listen: Vec<NetAddress>, security: Security) -> ServeConfig {
        ServeConfig {
            listen,
            security,
            lease: LEASE_DEFAULT,
            wait: WaitPolicy::default(),
            recent_bytes: RECENT_BYTES_DEFAULT,
            sessions_max: SESSIONS_MAX_DEFAULT,
            forget_retry: FORGET_RETRY_DEFAULT,
            multicast: None,
        }
    }
}

/// Why a region is not served, or not any more. What is durable is there at the next start.
#[derive(Debug, thiserror::Error)]
pub enum RegionServeError {
    /// A lease that makes no sense.
    #[error("a lease of {0:?} is out of bounds; choose {LEASE_MIN:?} to {LEASE_MAX:?}")]
    Lease(Duration),
    /// The directory.
    #[error("{0}")]
    Open(#[from] StoreOpenError),
    /// The door.
    #[error("{0}")]
    Acceptor(#[from] AcceptorError),
    /// How long nodes' records may be.
    #[error("{0}")]
    RecordLimit(#[from] RecordLimitError),
    /// The settings that nodes are told.
    #[error("nodes.toml has {0} bytes; at most {SETTINGS_BYTES_MAX} can be told to nodes")]
    Settings(usize),
    /// The disk.
    #[error("the server's disk has failed: {0}; start it again when the disk works")]
    Disk(WaitError),
    /// The table.
    #[error("{0}")]
    Store(#[from] RegionStoreError),
    /// A record.
    #[error("{0}")]
    Merge(#[from] MergeError),
    /// The system refused.
    #[error("serving the region: {0}")]
    System(#[from] std::io::Error),
    /// A bug.
    #[error("the thread that serves the region panicked; what it said above says where")]
    Panicked,
}

/// A region that is being served, until it is [stopped](Serving::stop) or its disk fails. Dropping it stops
/// it.
pub struct ServingRegion {
    // Dropped in this order: nobody is let in, or answered, by a thread that has ended.
    control: Option<RegionControl>,
    acceptor: Option<SessionAcceptor>,
    addresses: Vec<NetAddress>,
    mailbox: Arc<DriverMailbox>,
    thread: Mutex<Option<JoinHandle<Result<(), RegionServeError>>>>,
}

impl ServingRegion {
    /// Recovers the region in `root`, and serves it. Nodes of an earlier start have a lease from now on to
    /// come back.
    pub fn start(root: &Path, config: ServeConfig) -> Result<ServingRegion, RegionServeError> {
        if config.lease < LEASE_MIN || config.lease > LEASE_MAX {
            return Err(RegionServeError::Lease(config.lease));
        }
        let post = Arc::new(DriverMailbox::new()?);
        let told = Arc::clone(&post);
        let (mut store, _) = RegionStore::open_recalling(root, config.recent_bytes, move || told.wake())?;
        store.store_record_limit()?;
        let mut driver = driver(store, &config, &post)?;
        let door = AcceptorConfig {
            sessions_max: config.sessions_max,
            tells_status: true,
            ..AcceptorConfig::new(config.listen, config.security)
        };
        let door = SessionAcceptor::open(door, Arc::clone(&post) as Arc<dyn SessionHandler>)?;
        let addresses = door.addresses().to_vec();
        driver.addresses = addresses.iter().map(ToString::to_string).collect();
        let control = RegionControl::start(root, Arc::clone(&post))?;
        let thread = std::thread::Builder::new()
            .name("netram-served".to_owned())
            .spawn(move || driver.run())?;
        Ok(ServingRegion {
            control: Some(control),
            acceptor: Some(door),
            addresses,
            mailbox: post,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Where nodes come in: names resolved, and ports that the system chose.
    pub fn addresses(&self) -> &[NetAddress] {
        &self.addresses
    }

    /// How it stands. `None`: it has ended, or does not answer in time.
    pub fn report(&self) -> Option<ServerReport> {
        ask(&self.mailbox)
    }

    /// Asks it to stop: everything becomes durable, and nodes may resume with the next server.
    pub fn stop(&self) {
        self.mailbox.stop();
    }

    /// Waits for its end. To be called once.
    pub fn wait(&self) -> Result<(), RegionServeError> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(RegionServeError::Panicked),
            None => Ok(()),
        }
    }
}

impl Drop for ServingRegion {
    fn drop(&mut self) {
        drop((self.control.take(), self.acceptor.take()));
        self.stop();
        if let Err(error) = self.wait() {
            tracing::error!(%error, "a region is not served any more");
        }
    }
}

impl std::fmt::Debug for ServingRegion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Serving")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// The thread that serves, before it runs.
fn driver(
    mut store: RegionStore,
    config: &ServeConfig,
    post: &Arc<DriverMailbox>,
) -> Result<ServeDriver, RegionServeError> {
    let poller = Poller::new()?;
    poller.add(&post.waker, WAKER_TOKEN, Interest::Read)?;
    let opening = opening(&store)?;
    let lenders = lenders(&opening);
    let machine = ServerConfig {
        lease: Nanos(u64::try_from(config.lease.as_nanos()).unwrap_or(u64::MAX)),
        recent_bytes_max: recent_bytes(&store, config),
        page_bytes: PAGE_BYTES,
        forget_retry: Nanos(u64::try_from(config.forget_retry.as_nanos()).unwrap_or(u64::MAX)),
        opening,
    };
    let mut server = RegionServer::new(machine, store.region_state(), Time(0));
    let recent = store.take_recent();
    tracing::info!(
        records = recent.len(),
        position = server.newest().0,
        "the newest records are remembered, as the log has them; nodes that lack older ones begin anew"
    );
    let recent = recent.into_iter();
    server.remember(
        recent
            .map(|one| (one.node, one.number, one.payload.into()))
            .collect(),
    );
    let now = Instant::now();
    if let Some(group) = &config.multicast {
        server.set_group(&group.to_string());
    }
    Ok(ServeDriver {
        server,
        payload_bytes_max: store.payload_bytes_max(),
        store,
        addresses: Vec::new(),
        last_status: None,
        links: BTreeMap::new(),
        readings: Readings::new(config.security.clone(), Arc::clone(post)),
        mailbox: Arc::clone(post),
        poller,
        wait: config.wait,
        lease: config.lease,
        sessions: 0,
        facts: VecDeque::new(),
        stalled: None,
        refusals: RetryBackoff::new(),
        lenders,
        forget_failure_logged: BTreeSet::new(),
        fenced: BTreeMap::new(),
        began: now,
        now,
        tick: now,
        due: Vec::new(),
        unfilled: false,
        requested_at: now,
        all: Vec::new(),
        scratch: Vec::new(),
    })
}

/// Bytes of records that are kept for nodes that are behind: at least what the server's window holds. What is
/// in there may have to be on the disk before anybody is shown it, and with less all nodes would be behind
/// whenever somebody commits so much at once.
fn recent_bytes(store: &RegionStore, config: &ServeConfig) -> usize {
    let least = usize::try_from(store.window_bytes()).unwrap_or(usize::MAX);
    if config.recent_bytes < least {
        tracing::info!(
            asked = config.recent_bytes,
            least,
            "more of the newest records are kept than was asked for: as many as the server's window holds"
        );
    }
    config.recent_bytes.max(least)
}

/// What a joining node is told of the region.
fn opening(store: &RegionStore) -> Result<RegionOpening, RegionServeError> {
    let settings = store.nodes_settings()?;
    if settings.len() > SETTINGS_BYTES_MAX {
        return Err(RegionServeError::Settings(settings.len()));
    }
    let table = store.table();
    let spans = table.spans.iter();
    Ok(RegionOpening {
        region: table.region,
        bytes: table.bytes,
        address: table.address,
        spans: spans.map(|span| (span.lock, span.offset, span.length)).collect(),
        record_bytes_max: store.payload_bytes_max() as u64,
        settings,
    })
}

/// The lenders that nodes are told of.
fn lenders(opening: &RegionOpening) -> Vec<String> {
    let text = String::from_utf8_lossy(&opening.settings);
    match StoreSettings::parse(&text, Path::new("nodes.toml")) {
        Ok(settings) => settings.lenders.iter().map(ToString::to_string).collect(),
        Err(error) => {
            tracing::error!(%error, "nodes cannot join: the settings that they are told are none");
            Vec::new()
        }
    }
}

/// Has the thread that serves give up what cannot be proven of a node. `None`: it has ended, or does not
/// answer in time.
fn accept_loss(post: &DriverMailbox, node: NodeId) -> Option<Result<StuckReport, NotStuck>> {
    let (answer, answered) = sync_channel(1);
    post.send(DriverEvent::AcceptLoss(node, answer));
    answered.recv_timeout(STATUS_TIMEOUT).ok()
}

/// Asks the thread that serves how it stands.
fn ask(post: &DriverMailbox) -> Option<ServerReport> {
    let (answer, answered) = sync_channel(1);
    post.send(DriverEvent::StatusRequested(answer));
    answered.recv_timeout(STATUS_TIMEOUT).ok()
}
