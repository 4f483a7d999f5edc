//! Serving a region: the state machine, the store, the acceptor and the links.
//!
//! | file | contents |
//! |---|---|
//! | `driver.rs` | the serving thread: mailbox, disk, time; the machine's actions |
//! | `receive.rs` | receiving and checking messages |
//! | `fill.rs` | sending links what is due |
//! | `node_link.rs` | one session |
//! | `mailbox.rs` | events from other threads |
//! | `loss.rs` | giving up a dead node's records that cannot be proven |
//! | `readings.rs` | reading dead nodes' journals, in threads of their own |
//! | `report.rs`, `status.rs` | the status |
//! | `metrics.rs` | the status, for Prometheus |
//! | `control.rs` | the control socket, for other processes of this machine |
//! | `inquiry.rs` | the status over a link, for clients with the cluster's key |
//!
//! Threads: `netram-region` serves. The store's `netram-sync` waits for the disk; its journal has threads of
//! its own. `netram-accept` accepts sessions. `netram-command` serves the control socket. A short-lived
//! `netram-recover` makes one attempt to read a dead node's journal, and a `netram-forget` tells the lenders
//! of a gone node.

pub mod control;
mod driver;
mod fill;
pub mod inquiry;
mod loss;
mod mailbox;
pub mod metrics;
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

use netram_clients::{ClientRegistry, ClientsFileError, RegistryChange};
use netram_journal::settings::JournalSettings;
use netram_proto::failure::RetryBackoff;
use netram_proto::port::WaitError;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::limit::SETTINGS_BYTES_MAX;
use netram_shared_machine::message::RegionOpening;
use netram_shared_machine::server::ServerConfig;
use netram_shared_machine::{NodeId, RegionServer};
use netram_telemetry::MetricsRegistration;
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
use metrics::RegionMetrics;
use readings::Readings;
use report::StuckReport;

/// Configuration of a region's server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Addresses on which nodes connect.
    pub listen: Vec<NetAddress>,
    /// Protection of the links of nodes, and of those to dead nodes' lenders.
    pub security: Security,
    /// Named clients, whose keys replace `security` on the links of nodes; `None`: all clients are one.
    pub clients: Option<Arc<ClientRegistry>>,
    /// Time for which a node may be silent. It is the same for all nodes, which learn it when they join.
    pub lease: Duration,
    /// Behaviour of the serving thread while nothing arrives: polling or sleeping.
    pub wait: WaitPolicy,
    /// Bytes of records that are kept for nodes that are behind. A node that lacks older ones has to fetch
    /// the region anew. The server keeps at least as many as its log's window holds.
    pub recent_bytes: usize,
    /// Maximum number of nodes' sessions and pending ones together.
    pub sessions_max: usize,
    /// Pause before lenders that could not be reached are told again to free a gone node's memory. It doubles
    /// a few times.
    pub forget_retry: Duration,
    /// Multicast group for records that nodes send each other directly; `None`: they use links.
    pub multicast: Option<MulticastGroup>,
}

impl ServeConfig {
    /// Creates the default configuration with these addresses.
    pub fn new(listen: Vec<NetAddress>, security: Security) -> ServeConfig {
        ServeConfig {
            listen,
            security,
            clients: None,
            lease: LEASE_DEFAULT,
            wait: WaitPolicy::default(),
            recent_bytes: RECENT_BYTES_DEFAULT,
            sessions_max: SESSIONS_MAX_DEFAULT,
            forget_retry: FORGET_RETRY_DEFAULT,
            multicast: None,
        }
    }
}

/// Reason why a region is not served, or not any more. Durable records are there at the next start.
#[derive(Debug, thiserror::Error)]
pub enum RegionServeError {
    /// The lease is out of bounds.
    #[error("a lease of {0:?} is out of bounds; choose {LEASE_MIN:?} to {LEASE_MAX:?}")]
    Lease(Duration),
    /// The region's directory cannot be opened.
    #[error("{0}")]
    Open(#[from] StoreOpenError),
    /// The acceptor cannot be opened.
    #[error("{0}")]
    Acceptor(#[from] AcceptorError),
    /// The server's log is too small for records that nodes may have.
    #[error("{0}")]
    RecordLimit(#[from] RecordLimitError),
    /// The settings for nodes are too long.
    #[error("nodes.toml has {0} bytes, but at most {SETTINGS_BYTES_MAX} can be sent to nodes: shorten it")]
    Settings(usize),
    /// The disk has failed.
    #[error("the server's disk has failed: {0}; start it again when the disk works")]
    Disk(WaitError),
    /// The table did not take a change.
    #[error("{0}")]
    Store(#[from] RegionStoreError),
    /// The store did not take a record.
    #[error("{0}")]
    Merge(#[from] MergeError),
    /// The system has no threads or descriptors left.
    #[error("cannot serve the region: {0}")]
    System(#[from] std::io::Error),
    /// The serving thread panicked because of a bug.
    #[error("the thread that serves the region panicked; its message was printed above")]
    Panicked,
}

/// A region that is being served until it is [stopped](ServingRegion::stop) or its disk fails. Dropping it
/// stops it.
pub struct ServingRegion {
    // Dropped in this order, so that no session is accepted or answered for a thread that has ended.
    control: Option<RegionControl>,
    acceptor: Option<SessionAcceptor>,
    addresses: Vec<NetAddress>,
    mailbox: Arc<DriverMailbox>,
    clients: Option<Arc<ClientRegistry>>,
    _metrics: MetricsRegistration<RegionMetrics>,
    thread: Mutex<Option<JoinHandle<Result<(), RegionServeError>>>>,
}

impl ServingRegion {
    /// Recovers the region in `root` and serves it. Nodes of an earlier start have one lease from now on to
    /// come back.
    ///
    /// # Errors
    ///
    /// [`RegionServeError`] if the lease is out of bounds, or the directory, an address or a thread cannot be
    /// had.
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
            clients: config.clients.clone(),
            ..AcceptorConfig::new(config.listen, config.security)
        };
        let door = SessionAcceptor::open(door, Arc::clone(&post) as Arc<dyn SessionHandler>)?;
        let addresses = door.addresses().to_vec();
        driver.addresses = addresses.iter().map(ToString::to_string).collect();
        let control = RegionControl::start(root, Arc::clone(&post))?;
        let thread = std::thread::Builder::new()
            .name("netram-region".to_owned())
            .spawn(move || driver.run())?;
        Ok(ServingRegion {
            control: Some(control),
            acceptor: Some(door),
            addresses,
            clients: config.clients,
            _metrics: RegionMetrics::register(root, &post),
            mailbox: post,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Addresses that are listened on: names resolved, and ports that the system chose.
    pub fn addresses(&self) -> &[NetAddress] {
        &self.addresses
    }

    /// Reads the file of named clients again. Sessions of clients that are still in it go on; those whose key
    /// is gone end within a moment. After an error everything stays as it was.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or says something that cannot be. `None`: there are no named clients.
    pub fn reload_clients(&self) -> Result<Option<RegistryChange>, ClientsFileError> {
        self.clients.as_ref().map_or(Ok(None), |clients| clients.reload())
    }

    /// Status of the server; `None`: it has ended, or does not answer in time.
    pub fn report(&self) -> Option<ServerReport> {
        ask(&self.mailbox)
    }

    /// Tells the server to stop: everything becomes durable, and nodes may resume with the next server.
    pub fn stop(&self) {
        self.mailbox.stop();
    }

    /// Waits for the server's end. Later calls return at once.
    ///
    /// # Errors
    ///
    /// The [`RegionServeError`] that ended the server.
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
            tracing::error!(%error, "the server of a region has ended with an error");
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

/// Creates the state of the serving thread.
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
        "loaded the newest records from the log; nodes that lack older ones have to fetch the region anew"
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

/// Bytes of records that are kept for nodes that are behind: at least those of the server's window. Records
/// in the window may have to be durable before any node sees them. With less, all nodes would be behind
/// whenever a node commits a window's bytes at once.
fn recent_bytes(store: &RegionStore, config: &ServeConfig) -> usize {
    let least = usize::try_from(store.window_bytes()).unwrap_or(usize::MAX);
    if config.recent_bytes < least {
        tracing::info!(
            asked = config.recent_bytes,
            least,
            "keeping more of the newest records than `--recent` asks for: as many as the server's window holds"
        );
    }
    config.recent_bytes.max(least)
}

/// Description of the region for joining nodes.
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

/// Lenders in the nodes' settings.
fn lenders(opening: &RegionOpening) -> Vec<String> {
    let text = String::from_utf8_lossy(&opening.settings);
    match JournalSettings::parse(&text, Path::new("nodes.toml")) {
        Ok(settings) => settings.lenders.iter().map(ToString::to_string).collect(),
        Err(error) => {
            tracing::error!(%error, "nodes cannot join: their settings in nodes.toml are invalid");
            Vec::new()
        }
    }
}

/// Tells the serving thread to give up a node's records that cannot be proven. Returns `None` if it has
/// ended, or does not answer in time.
fn accept_loss(post: &DriverMailbox, node: NodeId) -> Option<Result<StuckReport, NotStuck>> {
    let (answer, answered) = sync_channel(1);
    post.send(DriverEvent::AcceptLoss(node, answer));
    answered.recv_timeout(STATUS_TIMEOUT).ok()
}

/// Asks the serving thread for its status.
fn ask(post: &DriverMailbox) -> Option<ServerReport> {
    let (answer, answered) = sync_channel(1);
    post.send(DriverEvent::StatusRequested(answer));
    answered.recv_timeout(STATUS_TIMEOUT).ok()
}
