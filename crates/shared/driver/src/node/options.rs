//! Options of a node.

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

/// Options for [`Node::join`](crate::Node::join). Every field but the first three has a working default.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Address on which the region's server listens.
    pub server: NetAddress,
    /// Protection of the link to the server, and of links to lenders unless `journal` says otherwise.
    pub security: Security,
    /// Directory of the node's files, for this process alone. Journals of earlier processes there are offered
    /// to the server.
    pub directory: PathBuf,
    /// Machine and process, for people.
    pub name: String,
    /// Region to join; `None`: whichever the server has.
    pub region: Option<RegionId>,
    /// Lenders and replication of the journal; `None`: as the server's settings say.
    pub journal: Option<JournalConfig>,
    /// Size of the journal's log in bytes.
    pub log_bytes: u64,
    /// Whether records come only before a grant, or when they are [asked for](crate::Node::pull).
    pub lazy: bool,
    /// Whether the node exchanges records with other nodes directly, besides their way through the server. A
    /// lazy node never does.
    pub direct: bool,
    /// Address on which to listen for other nodes, under which they reach this machine; `None`: this node
    /// connects to those that listen.
    pub listen: Option<NetAddress>,
    /// Multicast group for direct records, instead of the server's one. For a machine whose interface has
    /// another name.
    pub group: Option<MulticastGroup>,
    /// Behaviour of threads that wait for the server: polling or sleeping.
    pub wait: WaitPolicy,
    /// How this node's stores are captured. If by page, only one of its transactions at a time may hold locks
    /// exclusively.
    pub capture: CaptureMode,
    /// Time for which a transaction waits for a lock.
    pub lock_timeout: Duration,
    /// Time limit for joining and leaving, and for commits while the server does not make records durable.
    pub server_timeout: Duration,
    /// Maximum bytes of records that are held back for pinned readers.
    pub pinned_bytes_max: usize,
    /// Fate of readers that hold back more.
    pub full: PinnedOverflow,
}

impl NodeOptions {
    /// Creates the default options.
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
