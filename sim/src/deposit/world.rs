//! The world: a kernel with clock, schedule and random source, and the parts that it drives.
//!
//! Each part keeps its state to itself; its methods take the parts that they need. The event loop
//! (`event_loop`) passes events to the drivers, which are functions of the whole world.

use netram_proto::planted::FaultSwitch;

use super::kernel::DepositKernel;
use super::lenders::DepositLender;
use super::net::DepositNetwork;
use super::owners::DepositOwners;
use super::profile::DepositProfile;
use crate::rng::Rng;
use crate::trace::EventTrace;

/// The whole simulated deposit world.
pub(super) struct World {
    /// Clock, schedule, random source, trace and counters.
    pub(super) kernel: DepositKernel,
    /// The lenders.
    pub(super) lenders: Vec<DepositLender>,
    /// The owners.
    pub(super) owners: DepositOwners,
    /// Connections between owners and lenders.
    pub(super) network: DepositNetwork,
}

impl World {
    /// A world with these parameters, without owners.
    pub(super) fn new(rng: Rng, profile: DepositProfile, planted: FaultSwitch, trace: EventTrace) -> World {
        let lender = |(index, room): (usize, &u32)| DepositLender::new(*room, profile.hostile == Some(index));
        let rooms = profile.room.iter().take(profile.lenders);
        World {
            lenders: rooms.enumerate().map(lender).collect(),
            owners: DepositOwners::new(profile.arenas),
            network: DepositNetwork::new(profile.arenas, profile.lenders),
            kernel: DepositKernel::new(rng, profile, planted, trace),
        }
    }
}
