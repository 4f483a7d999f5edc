//! The world: machines, the network between them, one clock, one random source.
//!
//! [`World::step`] handles the next event. Client programs (the scenarios) are sequential code that calls
//! [`World::append`], [`World::wait`] and so on, which run the world while they wait.

use std::cell::RefCell;
use std::rc::Rc;

use netram_files::model::MemoryDisk;
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::{LogFile, SlotPair, View};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;

use crate::check::rule06::image_bytes;
use crate::check::rule12::VolumeHistory;
use crate::data::SimDataLender;
use crate::disk::{PlatterFile, SimDisk, SimDiskHandle, SimFile};
use crate::event::WorldEvent;
use crate::history::JournalHistory;
use crate::kernel::SimKernel;
use crate::lenders::Lenders;
use crate::nemesis::Nemesis;
use crate::net::{FrameInFlight, Network};
use crate::past_epochs::PastEpoch;
use crate::process::SimProcess;
use crate::profile::WorldProfile;
use crate::rng::Rng;
use crate::server::SimServer;
use crate::trace::EventTrace;

/// A client's machine.
#[derive(Debug)]
pub struct ClientHost {
    /// Its disk.
    pub disk: SimDiskHandle,
    /// The log's file.
    pub log_file: usize,
    /// The view's file.
    pub view_file: usize,
    /// True history of the journal on this disk.
    pub history: JournalHistory,
    /// The view on the platter.
    pub view: View,
    /// The view as read through the cache. After a failed sync it differs from the platter's until the power
    /// fails.
    pub cached_view: View,
    /// A view that is being stored and may be on the platter after a crash.
    pub storing: Option<View>,
    /// Whether the disk was damaged at rest, so that recovery may have to refuse.
    pub damaged: bool,
    /// Host of which this disk is a copy from which nothing has been recovered yet.
    pub copied_from: Option<usize>,
    /// The view's number when it was copied.
    copied_version: u64,
    /// Set if the disk is a data lender's from which nothing has been recovered yet: the LSN at which its
    /// client closed the volume.
    pub replica_closed: Option<Option<Lsn>>,
    /// File in which such a disk records that it was taken over.
    pub(crate) header_file: Option<usize>,
    /// A newer epoch, on a copy of this disk, that has recovered this log.
    pub newer_epoch: Option<NewerEpoch>,
    /// The epoch that this disk is in.
    pub(crate) epoch: Epoch,
    /// Epoch of the client's last message to the replica from which the journal is restored here.
    pub(crate) heard_epoch: Option<Epoch>,
}

/// Knowledge of the newer epoch on a copied disk.
#[derive(Clone, Copy, Debug)]
pub struct NewerEpoch {
    /// End of the log that it has.
    pub fork: Lsn,
    /// Number of the view that it knew. Later views promise nothing: the newer epoch cannot know which
    /// members to ask, so a live journal's directory must not be copied.
    pub version: u64,
    /// Whether its operator accepted the loss of acknowledged records, including those whose acknowledgement
    /// is still under way to a writer that stood still.
    pub loss_accepted: bool,
}

/// The whole simulated cluster.
pub struct World {
    /// Clock, schedule, random source, trace and counters.
    pub kernel: SimKernel,
    /// The lenders.
    pub lenders: Lenders,
    /// The client's machines: the first, and perhaps one with a copied disk.
    pub hosts: Vec<ClientHost>,
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
    /// True history of the volume.
    pub(crate) changes: VolumeHistory,
    /// Whether a program is reading blocks for the data lender.
    pub(crate) reads_to_send: bool,
    /// Epochs that ended, in worlds with a data lender.
    pub(crate) past_epochs: Vec<PastEpoch>,
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
        let host = new_host(&mut rng, &profile, journal);
        let mut network = Network::new();
        network.add_host(lenders.len());
        let mut world = World {
            kernel: SimKernel::new(rng, profile, journal, planted, trace),
            nemesis: Nemesis::new(),
            lenders,
            hosts: vec![host],
            processes: Vec::new(),
            network,
            data: None,
            server: None,
            data_sessions: 0,
            data_blocked_host: None,
            data_last_down: Time(0),
            volume_bytes: 0,
            changes: VolumeHistory::default(),
            reads_to_send: false,
            past_epochs: Vec::new(),
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
        let source = &self.hosts[host];
        let disk = source.disk.borrow().clone();
        let copy = ClientHost {
            disk: Rc::new(RefCell::new(disk)),
            log_file: source.log_file,
            view_file: source.view_file,
            history: source.history.clone(),
            view: source.view.clone(),
            cached_view: source.cached_view.clone(),
            storing: source.storing.clone(),
            damaged: source.damaged,
            copied_from: Some(host),
            copied_version: source.view.version,
            replica_closed: None,
            header_file: None,
            newer_epoch: None,
            epoch: source.epoch,
            heard_epoch: None,
        };
        self.add_host(copy)
    }

    /// Adds a machine with its own disk and nothing of the journal.
    pub(crate) fn add_blank_host(&mut self) -> usize {
        let journal = self.kernel.journal();
        let host = new_host(&mut self.kernel.rng, &self.kernel.profile, journal);
        self.add_host(host)
    }

    fn add_host(&mut self, host: ClientHost) -> usize {
        self.hosts.push(host);
        self.network.add_host(self.lenders.len());
        self.hosts.len() - 1
    }

    /// Adds a machine with an empty disk, on which the journal of `source` is to be restored: it begins at
    /// `start`, in `view`, as a replica says. `heard` is the view of the client's last message to the
    /// replica.
    pub(crate) fn restore_host(
        &mut self,
        source: usize,
        view: &View,
        start: ChainPoint,
        heard: &View,
    ) -> usize {
        let mut disk = SimDisk::new(self.kernel.rng.fork());
        let capacity = self.kernel.profile.capacity;
        let log_file = disk.add(LogFile::<SimFile>::file_bytes(capacity));
        let view_file = disk.add(SlotPair::bytes(SLOT_BYTES));
        let disk: SimDiskHandle = Rc::new(RefCell::new(disk));
        let view = view.adopted();
        let log = LogFile::create_at(
            SimFile::new(&disk, log_file),
            self.kernel.journal(),
            capacity,
            start,
        );
        let file = SimFile::new(&disk, view_file);
        let stored = SlotPair::create(&file, View::MAGIC, SLOT_BYTES, &view.encode());
        assert!(
            log.is_ok() && stored.is_ok(),
            "a healthy disk takes a journal that begins elsewhere"
        );
        disk.borrow_mut().faults = self.kernel.profile.disk;
        self.add_host(ClientHost {
            disk,
            log_file,
            view_file,
            history: JournalHistory::new(),
            cached_view: view.clone(),
            view,
            storing: None,
            damaged: false,
            copied_from: Some(source),
            copied_version: heard.version,
            replica_closed: None,
            header_file: None,
            newer_epoch: None,
            epoch: Epoch(0),
            heard_epoch: Some(heard.epoch),
        })
    }

    /// LSN that members known to the copy promised to the original of a copied disk, which the copy's epoch
    /// must have.
    pub(crate) fn promised_to_copy(&self, host: usize) -> Lsn {
        let copy = &self.hosts[host];
        match copy.copied_from.map(|source| &self.hosts[source]) {
            Some(source) if source.view.version == copy.copied_version => source.history.acked_by_members,
            _ => Lsn(0),
        }
    }

    /// Begins the epoch on `host` with the log up to `end`, all of it on the platter and compared with
    /// [`World::truth`].
    pub(crate) fn adopt(&mut self, host: usize, end: ChainPoint, head: Lsn, loss_accepted: bool) {
        match self.hosts[host].copied_from {
            Some(source) => {
                self.inherit(host, end);
                self.hosts[host].copied_from = None;
                let version = self.hosts[host].copied_version;
                self.hosts[source].newer_epoch = Some(NewerEpoch {
                    fork: end.lsn,
                    version,
                    loss_accepted,
                });
            }
            None => self.save_past_epoch(host),
        }
        self.hosts[host].epoch = self.hosts[host].view.epoch;
        self.changes.rewind(end.lsn);
        let history = &mut self.hosts[host].history;
        history.rewind(end.lsn);
        history.acked = end.lsn;
        history.head = head;
    }

    /// The bytes of a host's log from `from` to `to`: on the platter, or as read through the cache.
    pub(crate) fn log_bytes(&self, host: usize, from: Lsn, to: Lsn, platter: bool) -> Vec<u8> {
        let host = &self.hosts[host];
        let disk = host.disk.borrow();
        let image = if platter {
            disk.durable(host.log_file)
        } else {
            disk.cached(host.log_file)
        };
        image_bytes(image, from, to)
    }

    /// The first LSN from `from` to `to` at which the platter differs from the appended bytes.
    pub(crate) fn platter_lacks(&self, host: usize, from: Lsn, to: Lsn) -> Option<Lsn> {
        if to <= from {
            return None;
        }
        let found = self.log_bytes(host, from, to, true);
        let wanted = self.hosts[host].history.bytes(from, to);
        let at = found
            .iter()
            .zip(wanted)
            .position(|(found, wanted)| found != wanted)?;
        Some(from.plus(at as u64))
    }

    /// Reads the view from the platter that a crash would leave.
    pub(crate) fn refresh_view(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        let disk = host.disk.borrow();
        if let Some(view) = view_in(disk.durable(host.view_file)) {
            host.view = view;
        }
        if let Some(view) = view_in(disk.cached(host.view_file)) {
            host.cached_view = view;
        }
    }
}

fn view_in(image: &[u8]) -> Option<View> {
    let (_, payload) = SlotPair::open(&PlatterFile(image), View::MAGIC, SLOT_BYTES).ok()?;
    View::decode(&payload).ok()
}

fn new_host(rng: &mut Rng, profile: &WorldProfile, journal: JournalId) -> ClientHost {
    let mut disk = SimDisk::new(rng.fork());
    let log_file = disk.add(LogFile::<SimFile>::file_bytes(profile.capacity));
    let view_file = disk.add(SlotPair::bytes(SLOT_BYTES));
    let disk: SimDiskHandle = Rc::new(RefCell::new(disk));
    let view = View::first(journal);
    let created = LogFile::create(SimFile::new(&disk, log_file), journal, profile.capacity).is_ok()
        && SlotPair::create(
            &SimFile::new(&disk, view_file),
            View::MAGIC,
            SLOT_BYTES,
            &view.encode(),
        )
        .is_ok();
    assert!(created, "a healthy disk takes a new journal");
    disk.borrow_mut().faults = profile.disk;
    ClientHost {
        disk,
        log_file,
        view_file,
        history: JournalHistory::new(),
        cached_view: view.clone(),
        view,
        storing: None,
        damaged: false,
        copied_from: None,
        copied_version: 0,
        replica_closed: None,
        header_file: None,
        newer_epoch: None,
        epoch: Epoch(0),
        heard_epoch: None,
    }
}
