//! The world: a kernel with clock, schedule and random source, and the parts that it drives.
//!
//! Each part keeps its state to itself; functions take the parts that they need. The event loop
//! (`event_loop`) handles the next event. Client programs (the scenarios) are sequential code that calls
//! [`crate::client`], which runs the world while it waits.

use std::cell::RefCell;
use std::rc::Rc;

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::owner::owned_id;
use netram_proto::planted::FaultSwitch;
use netram_proto::port::LogState;
use netram_proto::wire::ChainPoint;

use crate::backing_disk::BackingDisk;
use crate::check::rule21::SealHistory;
use crate::data::DataService;
use crate::hosts::ClientHosts;
use crate::kernel::SimKernel;
use crate::lenders::Lenders;
use crate::nemesis::Nemesis;
use crate::net::Network;
use crate::process::Processes;
use crate::profile::WorldProfile;
use crate::rng::Rng;
use crate::server::SimServer;
use crate::trace::EventTrace;

/// The whole simulated cluster.
pub struct World {
    /// Clock, schedule, random source, trace and counters.
    pub kernel: SimKernel,
    /// The lenders.
    pub lenders: Lenders,
    /// The client's machines.
    pub hosts: ClientHosts,
    /// The client's processes.
    pub(crate) processes: Processes,
    /// The network between the client's machines and the lenders.
    pub(crate) network: Network,
    /// The fault injector's state.
    pub(crate) nemesis: Nemesis,
    /// The data lender, which keeps a replica of the client's volume, in worlds that have one.
    pub(crate) data: DataService,
    /// The server of the region, in worlds whose journal is a node's.
    pub(crate) server: Option<SimServer>,
    /// The backing disk of a directory of files.
    pub(crate) backing_disk: BackingDisk,
    /// Keys and nonces of all records of the journal.
    pub(crate) seals: SealHistory,
    /// Number of copies that the durable view has at any moment, in worlds whose story promises some.
    pub(crate) copies_promised: usize,
}

/// A world that programs share.
pub type WorldHandle = Rc<RefCell<World>>;

/// A journal's id. Three of four journals have an owner; the others are of a release before owners.
fn draw_journal(rng: &mut Rng) -> JournalId {
    let drawn = rng.draw();
    if drawn.is_multiple_of(4) {
        return JournalId(drawn.into());
    }
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&drawn.to_be_bytes());
    JournalId(owned_id(&digest))
}

impl World {
    /// A world with these parameters, and a journal created on its first host.
    pub fn new(mut rng: Rng, profile: WorldProfile, planted: FaultSwitch, trace: EventTrace) -> World {
        let journal = draw_journal(&mut rng);
        let lenders = Lenders::new(&profile);
        let mut kernel = SimKernel::new(rng, profile, journal, planted, trace);
        let hosts = ClientHosts::new(&mut kernel);
        let mut network = Network::new();
        network.add_host(lenders.len());
        let nemesis = Nemesis::new(&mut kernel);
        World {
            kernel,
            nemesis,
            lenders,
            hosts,
            processes: Processes::default(),
            network,
            data: DataService::new(),
            server: None,
            backing_disk: BackingDisk::default(),
            seals: SealHistory::default(),
            copies_promised: 0,
        }
    }

    /// State of the log that a process serves; for one that has ended, its last state.
    pub fn log_state(&self, process: usize) -> LogState {
        self.processes.log_state(&self.kernel.profile, process)
    }

    /// Copies a host's disk, as an operator does who believes that this moves a journal. Returns the new
    /// host.
    pub fn copy_host(&mut self, host: usize) -> usize {
        self.network.add_host(self.lenders.len());
        self.hosts.copy(host)
    }

    /// Adds a machine with its own disk and nothing of the journal.
    pub(crate) fn add_blank_host(&mut self) -> usize {
        self.network.add_host(self.lenders.len());
        self.hosts.add_blank(&mut self.kernel)
    }

    /// Adds a machine on which the journal of `source` is to be restored; see [`ClientHosts::restore`].
    pub(crate) fn restore_host(&mut self, source: usize, from: (&View, ChainPoint), heard: &View) -> usize {
        self.network.add_host(self.lenders.len());
        self.hosts.restore(&mut self.kernel, source, from, heard)
    }
}
