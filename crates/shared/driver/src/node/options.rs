//! What a node joins with.

use std::path::PathBuf;
use std::time::Duration;

use netram_journal::JournalConfig;
use netram_rvm::CaptureMode;
use netram_shared_machine::RegionId;
use netram_shared_machine::node::PinnedOverflow;

use netram_transport::{MulticastGroup, NetAddress, Security, WaitPolicy};

use crate::limit::{
    LOCK_TIMEOUT_DEFAULT, NODE_LOG_BYTES_DEFAULT, PINNED_BYTES_DEFAULT, SERVER_TIMEOUT_DEFAULT,
};

/// Choices at [`NodeEntry::join`](crate::NodeEntry::join). Every field but the first three has a working
/// default.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Where the region's server listens.
    pub server: NetAddress,
    /// How the link to it is protected; those to lenders, too, unless `journal` says otherwise.
    pub security: Security,
    /// Where the node's files are: this process's alone. What earlier processes left there is offered to the
    /// server.
    pub directory: PathBuf,
    /// For people: machine and process.
    pub name: String,
    /// Which region it must be; `None`: whichever the server has.
    pub region: Option<RegionId>,
    /// The journal's lenders, and how it replicates; `None`: as the server says.
    pub journal: Option<JournalConfig>,
    /// Bytes of the journal's log.
    pub log_bytes: u64,
    /// Records come only before a grant, or when they are [asked for](crate::NodeEntry::pull).
    pub lazy: bool,
    /// Records go to other nodes, and come from them, straight, beside their way through the server. A lazy
    /// node has them from there alone.
    pub direct: bool,
    /// Where other nodes may come for that: an address under which they reach this machine. `None`: this node
    /// goes to those that have one.
    pub listen: Option<NetAddress>,
    /// The multicast group for that, instead of the one that the server names: where this machine's interface
    /// has another name.
    pub group: Option<MulticastGroup>,
    /// What whoever waits for the server does with its core.
    pub wait: WaitPolicy,
    /// How this node's stores are found. Where that is by page, one of its transactions at a time holds locks
    /// exclusively.
    pub capture: CaptureMode,
    /// How long an acquire waits for others.
    pub lock_timeout: Duration,
    /// How long joining may take, a commit waits for a server that keeps nothing, and what was left is
    /// offered.
    pub server_timeout: Duration,
    /// Bytes of records that are held back for pinned readers.
    pub pinned_bytes_max: usize,
    /// What becomes of readers that hold back more.
    pub full: PinnedOverflow,
}

impl NodeOptions {
    /// The usual choices.
    pub fn new(server: NetAddress, security: Security, directory: PathBuf) -> NodeOptions {
        NodeOptions {
            server,
            security,
            directory,
            name: format!("process {}", std::process::id()),
            region: None,
            journal: None,
            log_bytes: NODE_LOG_BYTES_DEFAULT,
            lazy: false,
            direct: true,
            listen: None,
            group: None,
            wait: WaitPolicy::default(),
            capture: CaptureMode::Declared,
            lock_timeout: LOCK_TIMEOUT_DEFAULT,
            server_timeout: SERVER_TIMEOUT_DEFAULT,
            pinned_bytes_max: PINNED_BYTES_DEFAULT,
            full: PinnedOverflow::Expire,
        }
    }
}
