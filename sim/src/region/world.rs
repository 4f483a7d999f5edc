//! The world: a kernel with clock, schedule and random source, and the parts that it drives.
//!
//! Each part keeps its state to itself; its methods take the parts that they need. The event loop
//! (`event_loop`) passes events to the drivers, which are functions of the whole world.

use netram_proto::journal::View;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::Time;

use super::history::RegionHistory;
use super::kernel::RegionKernel;
use super::lenders::RegionLenders;
use super::net::RegionNetwork;
use super::node_links::NodeLinks;
use super::profile::RegionProfile;
use super::queries::MemberQueries;
use super::server::ServerHost;
use super::slots::NodeSlots;
use crate::rng::Rng;
use crate::trace::EventTrace;

/// The whole simulated region.
pub(super) struct World {
    /// Clock, schedule, random source, trace and counters.
    pub(super) kernel: RegionKernel,
    /// The lenders.
    pub(super) lenders: RegionLenders,
    /// Connections to the lenders.
    pub(super) network: RegionNetwork,
    /// Queries of journals' members.
    pub(super) queries: MemberQueries,
    /// The server's machine.
    pub(super) server: ServerHost,
    /// The nodes' machines.
    pub(super) slots: NodeSlots,
    /// Links between the nodes and the server.
    pub(super) node_links: NodeLinks,
    /// True history, to compare with.
    pub(super) history: RegionHistory,
}

impl World {
    /// A world with these parameters in which nothing runs.
    pub(super) fn new(rng: Rng, profile: RegionProfile, planted: FaultSwitch, trace: EventTrace) -> World {
        let (nodes, lenders) = (profile.nodes, profile.lenders);
        let mut kernel = RegionKernel::new(rng, profile, planted, trace);
        World {
            slots: NodeSlots::new(&mut kernel, nodes),
            lenders: RegionLenders::new(&mut kernel.rng, lenders),
            network: RegionNetwork::new(nodes + 1, lenders),
            queries: MemberQueries::default(),
            server: ServerHost::new(&mut kernel),
            node_links: NodeLinks::default(),
            history: RegionHistory::default(),
            kernel,
        }
    }

    /// Time until which a node's machine stands still, or the server's, which is the last host.
    pub(super) fn paused_until(&self, host: usize) -> Time {
        match self.slots.get(host) {
            Some(slot) => slot.paused_until,
            None => self.server.paused_until,
        }
    }

    /// Local time of a slot's machine.
    pub(super) fn local(&self, slot: usize) -> Time {
        self.slots[slot].local(self.kernel.now())
    }

    /// The views of journals that may still have to be read: at the server, and at their nodes.
    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        let processes = self.slots.iter().filter_map(|slot| slot.process.as_ref());
        let stored = self.server.disk.views();
        stored.chain(processes.map(|process| &process.journal.view))
    }

    /// Whether every journal that may still be read can be read without this lender.
    pub(super) fn can_spare(&self, lender: usize) -> bool {
        let mut views = self.views();
        views.all(|view| self.lenders.intact_without(view, lender) >= view.answers())
    }
}
