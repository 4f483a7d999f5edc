//! A region with its server and its lenders, each in its own process, and nodes that join it.

use std::path::PathBuf;
use std::time::Duration;

use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::server::{RegionPlan, RegionStore, Spans};
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::{LockId, LockMode};
use netram_transport::{NetAddress, WaitPolicy};
use serde::Serialize;

use super::node_process::{NodeJob, NodeTask};
use crate::child::{ChildProcess, listening_addresses};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::volume::free_group;

/// Size of the server's log in bytes.
const LOG_BYTES: u64 = 64 << 20;
/// A lease so long that a busy machine's node is not taken for dead. Measurements of deaths use another.
const LEASE: Duration = Duration::from_secs(20);
/// Time within which a node must join, and a lock must come.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether nodes send each other their commits, beside the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerDelivery {
    /// All records of other nodes come from the server.
    #[default]
    Never,
    /// Nodes send over their own links.
    Links,
    /// Nodes send once for all, to a multicast group on loopback.
    Multicast,
}

/// Parameters of a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionSetup {
    /// Number of locks, whose spans have the same size.
    pub locks: u32,
    /// Size of each span in bytes.
    pub span_bytes: u64,
    /// Number of members of each node's journal.
    pub members: usize,
    /// Lease of a node.
    pub lease: Duration,
    /// Wait policy of server, lenders and nodes.
    pub wait: WaitPolicy,
    /// Way in which nodes send each other their commits.
    pub peer_delivery: PeerDelivery,
}

impl Default for RegionSetup {
    fn default() -> RegionSetup {
        RegionSetup {
            locks: 4,
            span_bytes: 4096,
            members: 1,
            lease: LEASE,
            wait: WaitPolicy::default(),
            peer_delivery: PeerDelivery::Never,
        }
    }
}

/// A region with its server. Nodes must end before it does.
pub struct RegionTestbed<'s> {
    site: &'s Testbed,
    plan: RegionSetup,
    directory: PathBuf,
    address: NetAddress,
    _server: ChildProcess,
    _lenders: Vec<LenderProcess>,
}

impl<'s> RegionTestbed<'s> {
    /// Creates a region and starts its server and lenders.
    ///
    /// # Errors
    ///
    /// Fails if a process cannot be started.
    pub fn start(site: &'s Testbed, plan: RegionSetup) -> Result<RegionTestbed<'s>, BenchError> {
        let spec = LenderSpec {
            wire: SocketKind::Tcp,
            secure: true,
            wait: plan.wait,
            core: None,
        };
        let lenders: Result<Vec<LenderProcess>, _> = (0..plan.members).map(|_| site.lender(spec)).collect();
        let lenders = lenders?;
        let directory = site.directory().join(format!("shared-{}", site.number()));
        std::fs::create_dir(&directory).context("make a directory for a region")?;
        let bytes = u64::from(plan.locks) * plan.span_bytes;
        let names: Vec<String> = lenders
            .iter()
            .map(|lender| format!("{:?}", lender.address().to_string()))
            .collect();
        let region = RegionPlan {
            bytes,
            address: 0,
            spans: Spans::even(bytes, plan.span_bytes).context("divide a region")?,
            log_bytes: LOG_BYTES,
            nodes_settings: format!(
                "[journal]\nlenders = [{}]\nmembers = {}\none-domain = true\nkey-file = {:?}\n",
                names.join(", "),
                plan.members,
                site.key_file().display().to_string(),
            ),
        };
        let region_path = directory.join("region");
        RegionStore::create(&region_path, &region).context("make a region")?;
        let group = match plan.peer_delivery {
            PeerDelivery::Multicast => Some(free_group()?.to_string()),
            PeerDelivery::Never | PeerDelivery::Links => None,
        };
        let words = [
            "shared",
            "serve",
            &region_path.display().to_string(),
            "--listen",
            &site.listen(SocketKind::Tcp).to_string(),
            "--key-file",
            &site.key_file().display().to_string(),
            "--lease",
            &format!("{}ms", plan.lease.as_millis()),
            "--wait",
            &plan.wait.to_string(),
            "--with-parent",
        ];
        let group = group.iter().flat_map(|group| ["--multicast", group.as_str()]);
        let words = words.into_iter().chain(group);
        let mut server = ChildProcess::start(site.program(), words, "server", site.directory())?;
        let addresses = listening_addresses(&server.ready("ready")?)?;
        let address = addresses.into_iter().next();
        Ok(RegionTestbed {
            site,
            plan,
            directory,
            address: address.ok_or_else(|| server.log_error("it named no address"))?,
            _server: server,
            _lenders: lenders,
        })
    }

    /// Joins the region in this process.
    ///
    /// # Errors
    ///
    /// Fails if the server refuses, or does not answer in time.
    pub fn join(&self) -> Result<Node, BenchError> {
        let player = self.player(NodeTask::Follow);
        Node::join(player.options()?).context("join a region")
    }

    /// Starts a node in its own process, which has joined when this returns.
    ///
    /// # Errors
    ///
    /// Fails if the process ends or does not join in time.
    pub fn play(&self, act: NodeTask) -> Result<ChildProcess, BenchError> {
        let job = self.player(act);
        let mut child = ChildProcess::play(self.site.program(), &job, "node", self.site.directory())?;
        child.ready(super::node_process::READY_LINE)?;
        Ok(child)
    }

    fn player(&self, act: NodeTask) -> NodeJob {
        let name = format!("node-{}", self.site.number());
        NodeJob {
            server: self.address.to_string(),
            key_file: self.site.key_file().to_owned(),
            directory: self.directory.join(&name),
            name,
            wait: self.plan.wait.to_string(),
            straight: self.plan.peer_delivery != PeerDelivery::Never,
            listen: (self.plan.peer_delivery == PeerDelivery::Links).then(|| PEER_LISTEN_ADDRESS.to_owned()),
            act,
        }
    }
}

/// Address at which a node accepts links of others.
const PEER_LISTEN_ADDRESS: &str = "tcp://127.0.0.1:0";

impl NodeJob {
    /// Options with which a node joins.
    pub(super) fn options(&self) -> Result<NodeOptions, BenchError> {
        let key = netram_transport::ClusterKey::load(&self.key_file).context("load the cluster key")?;
        let server = self.server.parse().context("read the server's address")?;
        let security = netram_transport::Security::Key(key);
        let listen = self.listen.as_ref().map(|listen| listen.parse()).transpose();
        let listen = listen.context("read where other nodes come in")?;
        Ok(NodeOptions {
            name: self.name.clone(),
            wait: self.wait.parse().context("read how to wait")?,
            lock_timeout: NODE_TIMEOUT,
            server_timeout: NODE_TIMEOUT,
            direct: self.straight,
            listen,
            ..NodeOptions::new(server, security, self.directory.clone())
        })
    }
}

/// Stores eight bytes at the beginning of a lock's span, in their own transaction.
pub(super) fn update(node: &Node, lock: LockId, value: u64) -> Result<(), BenchError> {
    let mut txn = node.begin(RestoreMode::Restore).context("begin a transaction")?;
    txn.acquire(lock, LockMode::Exclusive).context("acquire a lock")?;
    let place = node.spans().find(lock);
    let place = place.ok_or_else(|| BenchError::InvalidRequest(format!("there is no lock {lock}")))?;
    let offset = node.spans().at(place).offset as usize;
    txn.set(offset, &value).context("store eight bytes")?;
    txn.commit(Durability::Remote).context("commit")?;
    Ok(())
}
