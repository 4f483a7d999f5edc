//! The data lender's machine: its files and its process's lifetime.

use std::rc::Rc;

use netram_block::{
    BLOCK_BYTES, Disk as Volume, DiskFiles, DiskOptions, StagePolicy, VolumeId, VolumeSuperblock, create,
};
use netram_block_machine::{Replica, ReplicaCondition, ReplicaHeader, ReplicaIdentity};
use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::{LogFile, SlotPair, View};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::Time;

use super::log::ReplicaLog;
use crate::disk::{DiskFaults, SimDisk, SimDiskHandle, SimFile};
use crate::log_image::image_bytes;
use crate::rng::Rng;

/// The volume's name.
pub(crate) const VOLUME: VolumeId = VolumeId(7);

/// Numbers of a volume's files on a disk: image, sums, superblock, dirty map.
pub(crate) type SimVolumeFiles = [usize; 4];

/// Adds the files of a volume of `blocks` to a disk.
pub(crate) fn add_volume(disk: &SimDiskHandle, blocks: u64) -> SimVolumeFiles {
    let image = BLOCK_BYTES + blocks * BLOCK_BYTES;
    let sums = BLOCK_BYTES + blocks * 4;
    let dirty = 3 * BLOCK_BYTES;
    [image, sums, VolumeSuperblock::FILE_BYTES, dirty].map(|bytes| disk.borrow_mut().add(bytes))
}

/// The files of a volume on the simulated disk, ready to be opened.
pub(crate) fn volume_files(disk: &SimDiskHandle, files: SimVolumeFiles, dirty: bool) -> DiskFiles<SimFile> {
    let file = |index: usize| SimFile::new(disk, files[index]);
    DiskFiles {
        image: file(0),
        sums: file(1),
        superblock: file(2),
        dirty: dirty.then(|| file(3)),
    }
}

/// The data lender's machine.
pub(crate) struct SimDataLender {
    pub(crate) disk: SimDiskHandle,
    pub(crate) log_file: usize,
    pub(crate) view_file: usize,
    pub(crate) header_file: usize,
    pub(crate) volume: SimVolumeFiles,
    pub(super) journal: JournalId,
    /// Bytes of records after which a stage ends.
    stage_bytes: u64,
    pub(super) planted: FaultSwitch,
    pub(super) process: Option<ReplicaProcess>,
    /// The machine cannot be reached until this time.
    pub(crate) away_until: Time,
    /// The process stands still until this time.
    pub(crate) paused_until: Time,
}

/// The process of the data lender.
pub(super) struct ReplicaProcess {
    pub(super) replica: Replica,
    pub(super) log: ReplicaLog,
    pub(super) view_slots: SlotPair,
    pub(super) header_slots: SlotPair,
    pub(super) volume: Volume<ReplicaLog, SimFile>,
    /// The connection whose frames are accepted.
    pub(super) session: Option<u64>,
    /// The client's process at the other end of that connection.
    pub(super) client: usize,
    /// Whether a sync is under way.
    pub(super) flushing: bool,
}

/// State of a replica as read from its files while no process serves them.
pub(crate) struct ReplicaState {
    pub(crate) condition: ReplicaCondition,
    pub(crate) closed: Option<Lsn>,
    pub(crate) view: View,
    /// End of its log.
    pub(crate) end: Lsn,
}

impl SimDataLender {
    /// A machine with an empty replica of a volume of `blocks`.
    pub(crate) fn new(
        mut rng: Rng,
        survives_permille: u64,
        journal: JournalId,
        capacity: u64,
        blocks: u64,
    ) -> SimDataLender {
        let stage_bytes = rng.pick(&[600, 2000, 9000, 1 << 20]);
        let mut disk = SimDisk::new(rng.fork());
        let log_file = disk.add(LogFile::<SimFile>::file_bytes(capacity));
        let view_file = disk.add(SlotPair::bytes(SLOT_BYTES));
        let standing_file = disk.add(SlotPair::bytes(SLOT_BYTES));
        let disk: SimDiskHandle = Rc::new(std::cell::RefCell::new(disk));
        let volume = add_volume(&disk, blocks);
        let identity = ReplicaIdentity {
            volume: VOLUME.0,
            journal,
        };
        let log = LogFile::create(SimFile::new(&disk, log_file), journal, capacity);
        let view = View::first(journal).encode();
        let view = SlotPair::create(&SimFile::new(&disk, view_file), View::MAGIC, SLOT_BYTES, &view);
        let standing = ReplicaHeader::new(identity).encode();
        let file = SimFile::new(&disk, standing_file);
        let standing = SlotPair::create(&file, ReplicaHeader::MAGIC, SLOT_BYTES, &standing);
        let made = create(
            volume_files(&disk, volume, false),
            VOLUME,
            journal,
            blocks * BLOCK_BYTES,
        );
        assert!(
            log.is_ok() && view.is_ok() && standing.is_ok() && made.is_ok(),
            "a healthy disk takes a replica"
        );
        disk.borrow_mut().faults = DiskFaults {
            survives_permille,
            ..DiskFaults::default()
        };
        SimDataLender {
            disk,
            log_file,
            view_file,
            header_file: standing_file,
            volume,
            journal,
            stage_bytes,
            planted: FaultSwitch::NONE,
            process: None,
            away_until: Time(0),
            paused_until: Time(0),
        }
    }

    pub(crate) fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Whether frames of this connection are accepted.
    pub(super) fn serves(&self, session: u64) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| process.session == Some(session))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts the process unless one runs. It may die while it starts.
    pub(crate) fn start(&mut self) {
        if self.process.is_none() {
            self.disk.borrow_mut().revive();
            self.process = self.open();
        }
    }

    fn open(&self) -> Option<ReplicaProcess> {
        let (view_slots, view) = self.open_view()?;
        let (standing_slots, standing) = self.open_header()?;
        if standing.condition == ReplicaCondition::TakenOver {
            return None;
        }
        let log = ReplicaLog::open(SimFile::new(&self.disk, self.log_file))?;
        let policy = StagePolicy {
            bytes: self.stage_bytes,
            ..StagePolicy::default()
        };
        let options = DiskOptions {
            restarted: true,
            policy,
            ..DiskOptions::new(self.journal)
        };
        let files = volume_files(&self.disk, self.volume, false);
        let volume = Volume::open(log.clone(), files, options).ok()?;
        let mut replica = Replica::new(standing, view, log.capacity(), log.head().lsn, log.end());
        replica.plant(self.planted);
        Some(ReplicaProcess {
            replica,
            log,
            view_slots,
            header_slots: standing_slots,
            volume,
            session: None,
            client: 0,
            flushing: false,
        })
    }

    fn open_view(&self) -> Option<(SlotPair, View)> {
        let file = SimFile::new(&self.disk, self.view_file);
        let (slots, payload) = SlotPair::open(&file, View::MAGIC, SLOT_BYTES).ok()?;
        Some((slots, View::decode(&payload).ok()?))
    }

    fn open_header(&self) -> Option<(SlotPair, ReplicaHeader)> {
        let file = SimFile::new(&self.disk, self.header_file);
        let (slots, payload) = SlotPair::open(&file, ReplicaHeader::MAGIC, SLOT_BYTES).ok()?;
        Some((slots, ReplicaHeader::decode(&payload).ok()?))
    }

    /// Kills the process; with `power_cut`, its machine.
    pub(crate) fn crash(&mut self, power_cut: bool) {
        self.process = None;
        if power_cut {
            self.disk.borrow_mut().power_cut();
        }
    }

    /// Applies the whole log to the image, to make room for all that members hold, and ends the process.
    /// Returns the log's end and the contents of a whole replica.
    pub(crate) fn prepare(&mut self) -> Option<(Lsn, Vec<u8>)> {
        self.start();
        let contents = self.contents();
        self.process = None;
        contents
    }

    /// Reads the state from the files. No process may serve them.
    pub(crate) fn inspect(&self) -> Option<ReplicaState> {
        assert!(self.process.is_none());
        self.disk.borrow_mut().revive();
        let (_, view) = self.open_view()?;
        let (_, standing) = self.open_header()?;
        let log = ReplicaLog::open(SimFile::new(&self.disk, self.log_file))?;
        Some(ReplicaState {
            condition: standing.condition,
            closed: standing.closed,
            view,
            end: log.end().lsn,
        })
    }

    /// Beginning of the log on the platter, and its bytes up to `end`, while that log is served.
    pub(crate) fn platter(&self, end: Lsn) -> Option<(Lsn, Vec<u8>)> {
        let process = self
            .process
            .as_ref()
            .filter(|process| process.session.is_some())?;
        let head = process.log.head().lsn;
        let taken = process.replica.unflushed().map(|unflushed| unflushed.end);
        let taken = taken.unwrap_or_else(|| process.replica.flushed()).lsn;
        let disk = self.disk.borrow();
        // The replica may have begun its log anew, further back, since it reported `end`.
        (head <= end && end <= taken).then(|| (head, image_bytes(disk.durable(self.log_file), head, end)))
    }
}
