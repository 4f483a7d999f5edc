//! A data lender: a machine with a disk of its own, on which it keeps the client's volume once more. The machines inside
//! are the ones that ship: `netram_block_machine::Replica`, and a `netram_block::Disk` that follows.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | the machine: its files, its process's life |
//! | `log.rs` | the log that somebody else writes |
//! | `serve.rs` | what becomes of a frame |
//! | `link.rs` | the client's part: the connection, and the source's driver |
//! | `ask.rs` | questions over sessions of their own: blocks for a volume, and what a restore says |

mod ask;
mod link;
mod log;
mod serve;

use std::rc::Rc;

use netram_block::{BLOCK_BYTES, Disk as Volume, Files, Options, StagePolicy, Superblock, VolumeId, create};
use netram_block_machine::{Condition, Identity, Replica, Standing};
use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::{LogFile, Slots, View};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::planted::Planted;
use netram_proto::time::Time;

use crate::check::rule06::image_bytes;
use crate::disk::{Disk, DiskFaults, SharedDisk, SimFile};
use crate::rng::Rng;
use log::FollowLog;

pub(crate) use ask::{Answer, SimFetch};
pub(crate) use link::{DataLink, new_source};

/// The volume's name.
pub(crate) const VOLUME: VolumeId = VolumeId(7);

/// Numbers of a volume's files on a disk: image, sums, superblock, dirty map.
pub(crate) type VolumeFiles = [usize; 4];

/// Adds the files of a volume of `blocks` to a disk.
pub(crate) fn add_volume(disk: &SharedDisk, blocks: u64) -> VolumeFiles {
    let image = BLOCK_BYTES + blocks * BLOCK_BYTES;
    let sums = BLOCK_BYTES + blocks * 4;
    let dirty = 3 * BLOCK_BYTES;
    [image, sums, Superblock::FILE_BYTES, dirty].map(|bytes| disk.borrow_mut().add(bytes))
}

/// The files of a volume, to be opened.
pub(crate) fn volume_files(disk: &SharedDisk, files: VolumeFiles, dirty: bool) -> Files<SimFile> {
    let file = |index: usize| SimFile::new(disk, files[index]);
    Files {
        image: file(0),
        sums: file(1),
        superblock: file(2),
        dirty: dirty.then(|| file(3)),
    }
}

/// The data lender's machine.
pub(crate) struct DataLender {
    pub(crate) disk: SharedDisk,
    pub(crate) log_file: usize,
    pub(crate) view_file: usize,
    pub(crate) standing_file: usize,
    pub(crate) volume: VolumeFiles,
    journal: JournalId,
    /// A stage ends with so many bytes of records.
    stage_bytes: u64,
    planted: Planted,
    process: Option<Process>,
    /// Nobody reaches it until then.
    pub(crate) away_until: Time,
    /// It does nothing until then.
    pub(crate) paused_until: Time,
}

/// Its process.
struct Process {
    replica: Replica,
    log: FollowLog,
    view_slots: Slots,
    standing_slots: Slots,
    volume: Volume<FollowLog, SimFile>,
    /// The connection whose frames are taken.
    session: Option<u64>,
    /// The client's process at its other end.
    client: usize,
    /// A sync is on its way.
    flushing: bool,
}

/// What its files say when nobody serves them.
pub(crate) struct Found {
    pub(crate) condition: Condition,
    pub(crate) closed: Option<Lsn>,
    pub(crate) view: View,
    /// Where its log ends.
    pub(crate) end: Lsn,
}

impl DataLender {
    /// A machine with an empty replica of a volume of `blocks`.
    pub(crate) fn new(
        mut rng: Rng,
        survives_permille: u64,
        journal: JournalId,
        capacity: u64,
        blocks: u64,
    ) -> DataLender {
        let stage_bytes = rng.pick(&[600, 2000, 9000, 1 << 20]);
        let mut disk = Disk::new(rng.fork());
        let log_file = disk.add(LogFile::<SimFile>::file_bytes(capacity));
        let view_file = disk.add(Slots::bytes(SLOT_BYTES));
        let standing_file = disk.add(Slots::bytes(SLOT_BYTES));
        let disk: SharedDisk = Rc::new(std::cell::RefCell::new(disk));
        let volume = add_volume(&disk, blocks);
        let identity = Identity {
            volume: VOLUME.0,
            journal,
        };
        let log = LogFile::create(SimFile::new(&disk, log_file), journal, capacity);
        let view = View::first(journal).encode();
        let view = Slots::create(&SimFile::new(&disk, view_file), View::MAGIC, SLOT_BYTES, &view);
        let standing = Standing::new(identity).encode();
        let file = SimFile::new(&disk, standing_file);
        let standing = Slots::create(&file, Standing::MAGIC, SLOT_BYTES, &standing);
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
        DataLender {
            disk,
            log_file,
            view_file,
            standing_file,
            volume,
            journal,
            stage_bytes,
            planted: Planted::NONE,
            process: None,
            away_until: Time(0),
            paused_until: Time(0),
        }
    }

    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// Whether it takes the frames of this connection.
    fn serves(&self, session: u64) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| process.session == Some(session))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// A process starts, unless one runs. It may die on the way.
    pub(crate) fn start(&mut self) {
        if self.process.is_none() {
            self.disk.borrow_mut().revive();
            self.process = self.open();
        }
    }

    fn open(&self) -> Option<Process> {
        let (view_slots, view) = self.open_view()?;
        let (standing_slots, standing) = self.open_standing()?;
        if standing.condition == Condition::TakenOver {
            return None;
        }
        let log = FollowLog::open(SimFile::new(&self.disk, self.log_file))?;
        let policy = StagePolicy {
            bytes: self.stage_bytes,
            ..StagePolicy::default()
        };
        let options = Options {
            restarted: true,
            policy,
            ..Options::new(self.journal)
        };
        let files = volume_files(&self.disk, self.volume, false);
        let volume = Volume::open(log.clone(), files, options).ok()?;
        let mut replica = Replica::new(standing, view, log.capacity(), log.head().lsn, log.end());
        replica.plant(self.planted);
        Some(Process {
            replica,
            log,
            view_slots,
            standing_slots,
            volume,
            session: None,
            client: 0,
            flushing: false,
        })
    }

    fn open_view(&self) -> Option<(Slots, View)> {
        let file = SimFile::new(&self.disk, self.view_file);
        let (slots, payload) = Slots::open(&file, View::MAGIC, SLOT_BYTES).ok()?;
        Some((slots, View::decode(&payload).ok()?))
    }

    fn open_standing(&self) -> Option<(Slots, Standing)> {
        let file = SimFile::new(&self.disk, self.standing_file);
        let (slots, payload) = Slots::open(&file, Standing::MAGIC, SLOT_BYTES).ok()?;
        Some((slots, Standing::decode(&payload).ok()?))
    }

    /// The process dies; with `power_cut`, its machine.
    pub(crate) fn crash(&mut self, power_cut: bool) {
        self.process = None;
        if power_cut {
            self.disk.borrow_mut().power_cut();
        }
    }

    /// Brings the whole log into the image, so that the log has room for all that members hold, and ends the process.
    /// What a replica that is whole had then.
    pub(crate) fn prepare(&mut self) -> Option<(Lsn, Vec<u8>)> {
        self.start();
        let contents = self.contents();
        self.process = None;
        contents
    }

    /// What the files say. Nobody may serve them.
    pub(crate) fn look(&self) -> Option<Found> {
        assert!(self.process.is_none());
        self.disk.borrow_mut().revive();
        let (_, view) = self.open_view()?;
        let (_, standing) = self.open_standing()?;
        let log = FollowLog::open(SimFile::new(&self.disk, self.log_file))?;
        Some(Found {
            condition: standing.condition,
            closed: standing.closed,
            view,
            end: log.end().lsn,
        })
    }

    /// Where the log on the platter begins, and its bytes up to `end`, while the log that says so is served.
    pub(crate) fn platter(&self, end: Lsn) -> Option<(Lsn, Vec<u8>)> {
        let process = self
            .process
            .as_ref()
            .filter(|process| process.session.is_some())?;
        let head = process.log.head().lsn;
        let taken = process.replica.unflushed().map(|unflushed| unflushed.end);
        let taken = taken.unwrap_or_else(|| process.replica.flushed()).lsn;
        let disk = self.disk.borrow();
        // It may have begun its log anew, further back, since it said so.
        (head <= end && end <= taken).then(|| (head, image_bytes(disk.durable(self.log_file), head, end)))
    }

    /// The volume as it is here, if a replica that is whole is served: everything in its log is brought into the image.
    pub(crate) fn contents(&mut self) -> Option<(Lsn, Vec<u8>)> {
        let process = self.process.as_mut()?;
        serve::drain(process).ok()?;
        let whole = process.replica.standing().condition == Condition::Following;
        let bytes = process.volume.geometry().bytes;
        let mut into = vec![0; bytes as usize];
        let read = process.volume.read(0, &mut into);
        (whole && read.is_ok()).then(|| (process.replica.flushed().lsn, into))
    }
}
