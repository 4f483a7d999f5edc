//! The world: machines, the network between them, one clock, one random source.
//!
//! [`World::step`] handles the next event. Client programs (the scenarios) are sequential code that calls
//! [`World::append`], [`World::wait`] and so on, which run the world while they wait.

use std::cell::RefCell;
use std::rc::Rc;

use netram_files::model::MemoryDisk;
use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;

use crate::data::SimDataLender;
use crate::event::WorldEvent;
use crate::hosts::ClientHosts;
use crate::kernel::SimKernel;
use crate::lenders::Lenders;
use crate::nemesis::Nemesis;
use crate::net::{FrameInFlight, Network};
use crate::process::SimProcess;
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
    pub(crate) processes: Vec<SimProcess>,
    /// The network between the client's machines and the lenders.
    pub(crate) network: Network,
    pub(crate) nemesis: Nemesis,
    /// The machine that keeps a replica of the client's volume, in worlds that have one.
    pub(crate) data: Option<SimDataLender>,
    /// The server of the region, in worlds whose journal is a node's.
    pub(crate) server: Option<SimServer>,
    pub(crate) data_sessions: u64,
    /// Host whose processes do not connect to the data lender yet, because their volume is being opened.
    pub(crate) data_blocked_host: Option<usize>,
    /// Arrival time of the data lender's newest frame; its frames arrive in order.
    pub(crate) data_last_down: Time,
    /// Size of the volume in bytes.
    pub(crate) volume_bytes: u64,
    /// Whether a program is reading blocks for the data lender.
    pub(crate) reads_to_send: bool,
    /// The backing disk of a directory of files, beside the first host's other one, in worlds that have one.
    pub(crate) backing_disk: Option<MemoryDisk>,
    /// LSN that members had acknowledged while the data lender was in service.
    pub(crate) acked_in_service: Lsn,
}

/// A world that programs share.
pub type WorldHandle = Rc<RefCell<World>>;

impl World {
    /// A world with these parameters, and a journal created on its first host.
    pub fn new(mut rng: Rng, profile: WorldProfile, planted: FaultSwitch, trace: EventTrace) -> World {
        let journal = JournalId(u128::from(rng.draw()));
        let lenders = Lenders::new(&profile);
        let mut kernel = SimKernel::new(rng, profile, journal, planted, trace);
        let hosts = ClientHosts::new(&mut kernel);
        let mut network = Network::new();
        network.add_host(lenders.len());
        let mut world = World {
            kernel,
            nemesis: Nemesis::new(),
            lenders,
            hosts,
            processes: Vec::new(),
            network,
            data: None,
            server: None,
            data_sessions: 0,
            data_blocked_host: None,
            data_last_down: Time(0),
            volume_bytes: 0,
            reads_to_send: false,
            backing_disk: None,
            acked_in_service: Lsn(0),
        };
        world.plan_nemesis();
        world
    }

    /// Handles the next event.
    pub fn step(&mut self) {
        let Some(event) = self.kernel.next_event() else {
            return;
        };
        if let Some(until) = self.standing_still(&event) {
            self.kernel.push(until, event);
            return;
        }
        match event {
            WorldEvent::Frame {
                conn,
                way,
                number,
                packet,
            } => self.on_packet(FrameInFlight {
                conn,
                way,
                number,
                packet,
            }),
            WorldEvent::Datagram {
                conn,
                channel,
                packet,
            } => self.on_datagram(conn, channel, packet),
            WorldEvent::Connected { conn } => self.on_connected(conn),
            WorldEvent::Closed { conn } => self.on_closed(conn),
            WorldEvent::Tick { process } => self.on_tick(process),
            WorldEvent::Flushed { process } => self.on_flushed(process),
            WorldEvent::ViewStored { process } => self.on_view_stored(process),
            WorldEvent::LenderUp { lender } => self.start_lender(lender),
            WorldEvent::LenderStops { lender } => self.lender_stops(lender),
            WorldEvent::LenderRoomBack { lender } => {
                self.lenders[lender].window.limit = crate::lender::LENDER_BYTES
            }
            WorldEvent::Nemesis => self.on_nemesis(),
            WorldEvent::Busy { process } => self.on_busy(process),
            WorldEvent::DataConnected { process, session } => self.on_data_connected(process, session),
            WorldEvent::DataUp {
                process,
                session,
                packet,
            } => self.on_data_up(process, session, &packet),
            WorldEvent::DataDown {
                process,
                session,
                packet,
            } => self.on_data_down(process, session, &packet),
            WorldEvent::DataLost { process, session } => self.on_data_lost(process, session),
            WorldEvent::DataFlushed => self.on_data_flushed(),
            WorldEvent::DataStarts => self.on_data_starts(),
            WorldEvent::ServerMessage { process, boot, word } => self.on_server_message(process, boot, word),
            WorldEvent::ServerStores { process, boot, word } => self.on_server_stores(process, boot, word),
            WorldEvent::ServerStarts => self.on_server_starts(),
            WorldEvent::ServerAck { process, said } => self.on_server_ack(process, said),
            WorldEvent::NodeFenced { process } => self.on_node_fenced(process),
            WorldEvent::Mark => (),
        }
    }

    /// Lets `span` pass.
    pub fn run_for(&mut self, span: Nanos) {
        let until = self.kernel.now() + span;
        self.kernel.push(until, WorldEvent::Mark);
        while self.kernel.now() < until {
            self.step();
        }
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
