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
//! Threads: `netram-served`, which serves; the store's `netram-kept`, which waits for the disk, and the home's own; `netram-door`, which lets
//! nodes in; `netram-asked`, which answers for the status; a short-lived `netram-remains` for each attempt to read a dead node's
//! journal, and a `netram-forget` when one is gone.

pub mod control;
mod driver;
mod fill;
mod hear;
pub mod inquiry;
mod line;
mod loss;
mod post;
mod readings;
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
use netram_proto::time::{Span, Time};
use netram_shared_machine::limit::SETTINGS_BYTES_MAX;
use netram_shared_machine::message::Opening;
use netram_shared_machine::server::ServerConfig;
use netram_shared_machine::{NodeId, Server};
use netram_store::Settings;
use netram_transport::{Address, Group, Interest, Poller, Security, WaitPolicy};

pub use loss::NotStuck;
pub use report::Report;

use crate::channel::{Door, DoorConfig, DoorError, Service};
use crate::limit::{
    ASKED_PATIENCE, LEASE_DEFAULT, LEASE_MAX, LEASE_MIN, PAGE_BYTES, RECENT_BYTES_DEFAULT,
    SESSIONS_MAX_DEFAULT, TELL_AGAIN_DEFAULT,
};
use crate::server::store::{MergeError, OpenError, PromiseError, Store, StoreError};
use control::Control;
use driver::{BELL, Driver};
use post::{News, Post};
use readings::Readings;
use report::StuckReport;

/// How a region is served.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where nodes come in.
    pub listen: Vec<Address>,
    /// How links are protected: those of nodes, and those to dead nodes' lenders.
    pub security: Security,
    /// How long a node may be silent. The same for all, and told when they join.
    pub lease: Duration,
    /// What the thread that serves does while nothing arrives.
    pub wait: WaitPolicy,
    /// Bytes of records that are kept for nodes that are behind. Who is behind all of them gets the region anew. The server keeps at least what
    /// its log's window holds.
    pub recent_bytes: usize,
    /// Sessions and strangers in all.
    pub sessions_max: usize,
    /// After so long lenders are told again to give back what a node that is gone had, if they could not be reached. It doubles, a few times.
    pub tell_again: Duration,
    /// Where nodes multicast their records to each other; `None`: they go over links.
    pub multicast: Option<Group>,
}

impl ServeConfig {
    /// The usual server at these addresses.
    pub fn new(listen: Vec<Address>, security: Security) -> ServeConfig {
        ServeConfig {
            listen,
            security,
            lease: LEASE_DEFAULT,
            wait: WaitPolicy::default(),
            recent_bytes: RECENT_BYTES_DEFAULT,
            sessions_max: SESSIONS_MAX_DEFAULT,
            tell_again: TELL_AGAIN_DEFAULT,
            multicast: None,
        }
    }
}

/// Why a region is not served, or not any more. What is durable is there at the next start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A lease that makes no sense.
    #[error("a lease of {0:?} is out of bounds; choose {LEASE_MIN:?} to {LEASE_MAX:?}")]
    Lease(Duration),
    /// The directory.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The door.
    #[error("{0}")]
    Door(#[from] DoorError),
    /// How long nodes' records may be.
    #[error("{0}")]
    Promise(#[from] PromiseError),
    /// The settings that nodes are told.
    #[error("nodes.toml has {0} bytes; at most {SETTINGS_BYTES_MAX} can be told to nodes")]
    Settings(usize),
    /// The disk.
    #[error("the server's disk has failed: {0}; start it again when the disk works")]
    Disk(WaitError),
    /// The table.
    #[error("{0}")]
    Store(#[from] StoreError),
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

/// A region that is being served, until it is [stopped](Serving::stop) or its disk fails. Dropping it stops it.
pub struct Serving {
    // Dropped in this order: nobody is let in, or answered, by a thread that has ended.
    control: Option<Control>,
    door: Option<Door>,
    addresses: Vec<Address>,
    post: Arc<Post>,
    thread: Mutex<Option<JoinHandle<Result<(), ServeError>>>>,
}

impl Serving {
    /// Recovers the region in `root`, and serves it. Nodes of an earlier start have a lease from now on to come back.
    pub fn start(root: &Path, config: ServeConfig) -> Result<Serving, ServeError> {
        if config.lease < LEASE_MIN || config.lease > LEASE_MAX {
            return Err(ServeError::Lease(config.lease));
        }
        let post = Arc::new(Post::new()?);
        let told = Arc::clone(&post);
        let (mut store, _) = Store::open_recalling(root, config.recent_bytes, move || told.look())?;
        store.promise()?;
        let mut driver = driver(store, &config, &post)?;
        let door = DoorConfig {
            sessions_max: config.sessions_max,
            tells_status: true,
            ..DoorConfig::new(config.listen, config.security)
        };
        let door = Door::open(door, Arc::clone(&post) as Arc<dyn Service>)?;
        let addresses = door.addresses().to_vec();
        driver.addresses = addresses.iter().map(ToString::to_string).collect();
        let control = Control::start(root, Arc::clone(&post))?;
        let thread = std::thread::Builder::new()
            .name("netram-served".to_owned())
            .spawn(move || driver.run())?;
        Ok(Serving {
            control: Some(control),
            door: Some(door),
            addresses,
            post,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Where nodes come in: names resolved, and ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// How it stands. `None`: it has ended, or does not answer in time.
    pub fn report(&self) -> Option<Report> {
        ask(&self.post)
    }

    /// Asks it to stop: everything becomes durable, and nodes may resume with the next server.
    pub fn stop(&self) {
        self.post.stop();
    }

    /// Waits for its end. To be called once.
    pub fn wait(&self) -> Result<(), ServeError> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(ServeError::Panicked),
            None => Ok(()),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop((self.control.take(), self.door.take()));
        self.stop();
        if let Err(error) = self.wait() {
            tracing::error!(%error, "a region is not served any more");
        }
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Serving")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// The thread that serves, before it runs.
fn driver(mut store: Store, config: &ServeConfig, post: &Arc<Post>) -> Result<Driver, ServeError> {
    let poller = Poller::new()?;
    poller.add(&post.bell, BELL, Interest::Read)?;
    let opening = opening(&store)?;
    let lenders = lenders(&opening);
    let machine = ServerConfig {
        lease: Span(u64::try_from(config.lease.as_nanos()).unwrap_or(u64::MAX)),
        recent_bytes_max: recent_bytes(&store, config),
        page_bytes: PAGE_BYTES,
        tell_again: Span(u64::try_from(config.tell_again.as_nanos()).unwrap_or(u64::MAX)),
        opening,
    };
    let mut server = Server::new(machine, store.known(), Time(0));
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
    Ok(Driver {
        server,
        payload_bytes_max: store.payload_bytes_max(),
        store,
        addresses: Vec::new(),
        told: None,
        lines: BTreeMap::new(),
        readings: Readings::new(config.security.clone(), Arc::clone(post)),
        post: Arc::clone(post),
        poller,
        wait: config.wait,
        lease: config.lease,
        sessions: 0,
        facts: VecDeque::new(),
        stalled: None,
        refusals: RetryBackoff::new(),
        lenders,
        wasted: BTreeSet::new(),
        fenced: BTreeMap::new(),
        began: now,
        now,
        tick: now,
        due: Vec::new(),
        unfilled: false,
        asked: now,
        all: Vec::new(),
        scratch: Vec::new(),
    })
}

/// Bytes of records that are kept for nodes that are behind: at least what the server's window holds. What is in there may have to be on the disk
/// before anybody is shown it, and with less all nodes would be behind whenever somebody commits so much at once.
fn recent_bytes(store: &Store, config: &ServeConfig) -> usize {
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
fn opening(store: &Store) -> Result<Opening, ServeError> {
    let settings = store.nodes_settings()?;
    if settings.len() > SETTINGS_BYTES_MAX {
        return Err(ServeError::Settings(settings.len()));
    }
    let table = store.table();
    let spans = table.spans.iter();
    Ok(Opening {
        region: table.region,
        bytes: table.bytes,
        address: table.address,
        spans: spans.map(|span| (span.lock, span.offset, span.length)).collect(),
        record_bytes_max: store.payload_bytes_max() as u64,
        settings,
    })
}

/// The lenders that nodes are told of.
fn lenders(opening: &Opening) -> Vec<String> {
    let text = String::from_utf8_lossy(&opening.settings);
    match Settings::parse(&text, Path::new("nodes.toml")) {
        Ok(settings) => settings.lenders.iter().map(ToString::to_string).collect(),
        Err(error) => {
            tracing::error!(%error, "nodes cannot join: the settings that they are told are none");
            Vec::new()
        }
    }
}

/// Has the thread that serves give up what cannot be proven of a node. `None`: it has ended, or does not answer in time.
fn accept_loss(post: &Post, node: NodeId) -> Option<Result<StuckReport, NotStuck>> {
    let (answer, answered) = sync_channel(1);
    post.send(News::AcceptLoss(node, answer));
    answered.recv_timeout(ASKED_PATIENCE).ok()
}

/// Asks the thread that serves how it stands.
fn ask(post: &Post) -> Option<Report> {
    let (answer, answered) = sync_channel(1);
    post.send(News::Asked(answer));
    answered.recv_timeout(ASKED_PATIENCE).ok()
}
