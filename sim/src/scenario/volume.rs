//! A program keeps a block device's volume. Writes, zeros and discards complete or fail, stages go to the
//! image, machines die. In some worlds a data lender keeps a replica (`replica.rs`).

use std::cell::RefCell;
use std::rc::Rc;

use netram_block::{
    BLOCK_BYTES, DeviceError, Disk, DiskOpenError, DiskOptions, PendingWrite, SECTOR_BYTES, StagePolicy,
    create,
};
use netram_proto::id::Lsn;
use netram_proto::port::RecordLog;
use netram_proto::time::Nanos;

use super::journal;
use crate::check::fail;
use crate::check::rule12;
use crate::check::rvm::{MemoryModel, ModelTransaction};
use crate::client::SimLog;
use crate::data::ask::store_view_at_data;
use crate::data::{SimFetch, SimVolumeFiles, VOLUME, add_volume, volume_files};
use crate::disk::SimFile;
use crate::event_loop;
use crate::inject::heal;
use crate::process::life::crash;
use crate::world::{World, WorldHandle};

pub(super) const BLOCKS: u64 = 12;
pub(super) const BYTES: u64 = BLOCKS * BLOCK_BYTES;
const SECTORS: u64 = BYTES / SECTOR_BYTES;
/// Bytes of a record's payload before its data.
const HEADER_BYTES: usize = 8;

/// Maximum number of failed reads of a restored volume, 100 ms apart.
const CONNECTING_ROUNDS: u32 = 60;

pub(super) type SimVolume = Disk<SimLog, SimFile, SimFetch>;

pub(super) struct VolumeProgram {
    pub(super) world: WorldHandle,
    /// The machine that has the volume.
    pub(super) host: usize,
    /// The volume's files on the machine's disk.
    pub(super) files: SimVolumeFiles,
    /// The model: one segment is the volume, one transaction a record.
    pub(super) model: MemoryModel,
    policy: StagePolicy,
    /// Whether a loss was accepted. The image may then show bytes that the log no longer has, and nothing is
    /// promised of it.
    pub(super) lossy: bool,
    /// End LSN of each record of the model, if a data lender keeps a replica.
    pub(super) ends: Option<Vec<Lsn>>,
    /// The next block that a resync may choose.
    pub(super) cursor: u64,
    /// Number of passes of the resync over all blocks.
    pub(super) pass: u32,
    /// Whether the volume was restored and its data lender has not heard of that yet.
    pub(super) restore_unannounced: bool,
    /// Whether the volume was restored and has not been read since.
    pub(super) restored: bool,
    /// A living process that was given up, with its volume.
    pub(super) zombie: Option<(usize, SimVolume)>,
}

/// Runs the scenario and returns the world.
pub(super) fn run(mut world: World) -> World {
    let lives = world.kernel.rng.between(1, 4);
    let mut program = VolumeProgram::new(world, false);
    for _ in 0..lives {
        program.live();
    }
    heal(&mut program.world.borrow_mut());
    program.live();
    program.live();
    program.end()
}

impl VolumeProgram {
    /// A program with a new volume. The disk has no faults while it is created.
    pub(super) fn new(mut world: World, kept: bool) -> VolumeProgram {
        let policy = StagePolicy {
            bytes: world.kernel.rng.pick(&[2000, 9000, 1 << 20]),
            age: Nanos::from_ms(world.kernel.rng.pick(&[5, 200])),
            closed_max: world.kernel.rng.between(1, 3) as usize,
        };
        let disk = Rc::clone(&world.hosts[0].disk);
        let files = add_volume(&disk, BLOCKS);
        let faults = std::mem::take(&mut disk.borrow_mut().faults);
        let made = create(
            volume_files(&disk, files, false),
            VOLUME,
            world.kernel.journal(),
            BYTES,
        );
        assert!(made.is_ok(), "a healthy disk takes a new volume");
        disk.borrow_mut().faults = faults;
        VolumeProgram {
            world: Rc::new(RefCell::new(world)),
            host: 0,
            restore_unannounced: false,
            restored: false,
            zombie: None,
            files,
            model: MemoryModel::new(1, BYTES as usize),
            policy,
            lossy: false,
            ends: kept.then(Vec::new),
            cursor: 0,
            pass: 0,
        }
    }

    /// Returns the world.
    pub(super) fn end(mut self) -> World {
        self.zombie = None;
        let Ok(world) = Rc::try_unwrap(self.world) else {
            unreachable!("every log of this world is dropped")
        };
        world.into_inner()
    }

    /// Runs one process, from its opening to its end.
    pub(super) fn live(&mut self) {
        if let Some((process, _volume)) = self.live_on() {
            self.die(process);
        }
    }

    /// The same, but the process goes on.
    pub(super) fn live_on(&mut self) -> Option<(usize, SimVolume)> {
        if self.lossy {
            return None;
        }
        let process = self.open_journal()?;
        if self.lossy {
            return None;
        }
        match self.serve(process) {
            Some(volume) => Some((process, volume)),
            None => {
                self.die(process);
                None
            }
        }
    }

    /// Opens the journal. Before the volume is open too, a data lender is told nothing except the first
    /// message of a restored one.
    pub(super) fn open_journal(&mut self) -> Option<usize> {
        let world = &mut *self.world.borrow_mut();
        let accepted = world.kernel.count("losses that were accepted");
        world.data.hold(Some(self.host));
        let process = journal::open(world, self.host)?;
        self.lossy |= world.kernel.count("losses that were accepted") > accepted;
        if self.restore_unannounced {
            let view = world.hosts[self.host].view.clone();
            match store_view_at_data(world, process, &view, &view, false) {
                Some(Ok(_)) => {
                    self.restore_unannounced = false;
                    world.kernel.hit("data: first words heard");
                }
                _ => {
                    world.kernel.hit("data: first words that nobody heard");
                    crash(world, process, false);
                    return None;
                }
            }
        }
        Some(process)
    }

    pub(super) fn die(&mut self, process: usize) {
        let mut world = self.world.borrow_mut();
        let cut = world.kernel.rng.chance(500);
        crash(&mut world, process, cut);
        let pause = world.kernel.rng.pick(&[0, 1, 30, 400, 2500]);
        event_loop::run_for(&mut world, Nanos::from_ms(pause));
    }

    /// Runs the program's one life. Returns the volume unless it could not be opened.
    fn serve(&mut self, process: usize) -> Option<SimVolume> {
        let volume = self.open(process)?;
        if self.ends.is_some() {
            self.begin_life(process, &volume);
        }
        let deeds = self.world.borrow_mut().kernel.rng.between(5, 80);
        for _ in 0..deeds {
            if !self.world.borrow().processes.alive(process) || !self.run_step(process, &volume) {
                break;
            }
            if self.ends.is_some() {
                self.run_data_lender(process, &volume);
            }
        }
        let statistics = volume.status().statistics;
        let kernel = &mut self.world.borrow_mut().kernel;
        kernel.add("volume: stages applied", statistics.stages);
        kernel.add("volume: blocks merged over their base", statistics.bases);
        kernel.add("volume: blocks made holes of", statistics.holes);
        kernel.add("volume: requests that waited for room", statistics.stalls);
        kernel.add("volume: steps that failed", statistics.failures);
        kernel.add("volume: torn bases in recovery", statistics.unverified_bases);
        if statistics.corrupt_bases > 0 {
            fail(
                6,
                format!(
                    "{} blocks were spoilt, and no disk rots here",
                    statistics.corrupt_bases
                ),
            );
        }
        Some(volume)
    }

    pub(super) fn open(&mut self, process: usize) -> Option<SimVolume> {
        let (files, journal) = {
            let world = self.world.borrow();
            let disk = &world.hosts[self.host].disk;
            (
                volume_files(disk, self.files, self.ends.is_some()),
                world.kernel.journal(),
            )
        };
        let options = DiskOptions {
            policy: self.policy,
            ..DiskOptions::new(journal)
        };
        let copy = SimFetch {
            world: Rc::clone(&self.world),
            process,
            exists: self.ends.is_some(),
        };
        let volume = match Disk::open_beside(SimLog::new(&self.world, process), files, options, copy) {
            Ok(volume) => volume,
            Err(
                DiskOpenError::SmallJournal { .. } | DiskOpenError::File { .. } | DiskOpenError::Apply(_),
            ) => {
                self.world.borrow_mut().kernel.hit("volume: openings that failed");
                return None;
            }
            Err(error) => fail(5, format!("the volume cannot be opened: {error}")),
        };
        self.world.borrow_mut().data.hold(None);
        let found = self.read_patiently(process, &volume)?;
        if std::mem::take(&mut self.restored) {
            let world = self.world.borrow();
            rule12::restored(
                world.hosts.volume(),
                world.hosts[self.host].history.durable,
                &found,
            );
            // No program was promised the bytes that it lacks. From here on this is the volume.
            self.model = MemoryModel::new(1, BYTES as usize);
            let writes = vec![(0, 0, found.clone())];
            self.model.commit(ModelTransaction { writes }, false);
        }
        let in_doubt = self.model.reopened(vec![found]);
        self.ends.iter_mut().for_each(Vec::clear);
        let kernel = &mut self.world.borrow_mut().kernel;
        kernel.hit("volume: openings");
        kernel.add("volume: requests in doubt that were found", in_doubt as u64);
        Some(volume)
    }

    /// Reads the whole volume; `None` if the disk fails.
    pub(super) fn read(&self, volume: &SimVolume) -> Option<Vec<u8>> {
        let mut bytes = vec![0xee; BYTES as usize];
        match volume.read(0, &mut bytes) {
            Ok(()) => Some(bytes),
            Err(DeviceError::Io(_) | DeviceError::Missing { .. }) => None,
            Err(error) => fail(6, format!("the volume cannot be read: {error}")),
        }
    }

    /// The same just after an opening: blocks may be at the data lender, to which no connection is up yet.
    fn read_patiently(&mut self, process: usize, volume: &SimVolume) -> Option<Vec<u8>> {
        for _ in 0..CONNECTING_ROUNDS {
            let found = self.read(volume);
            if found.is_some() || !volume.is_restoring() || !self.world.borrow().processes.alive(process) {
                return found;
            }
            event_loop::run_for(&mut self.world.borrow_mut(), Nanos::from_ms(100));
            self.run_source_action(process, volume);
        }
        None
    }

    /// Runs one step. `false`: this life is over.
    fn run_step(&mut self, process: usize, volume: &SimVolume) -> bool {
        let draw = self.world.borrow_mut().kernel.rng.below(20);
        match draw {
            0..11 => return self.change(process, volume),
            11 => {
                if volume.flush().is_err() {
                    return false;
                }
                self.model.flushed();
            }
            12 => {
                // A failure leaves stage and log as they are; the next attempt begins anew.
                let _ = volume.drain();
            }
            13..16 => {
                for _ in 0..4 {
                    let _ = volume.apply_step();
                }
                self.fetch_blocks(volume);
            }
            16 => {
                let now = self.world.borrow().kernel.now();
                volume.tick(now);
            }
            _ => {
                let mut world = self.world.borrow_mut();
                let ms = world.kernel.rng.pick(&[0, 1, 5, 20, 100, 600]);
                event_loop::run_for(&mut world, Nanos::from_ms(ms));
            }
        }
        if self.world.borrow().processes.alive(process)
            && let Some(bytes) = self.read(volume)
        {
            self.model.check_running(0, &bytes, "while running");
        }
        true
    }

    pub(super) fn change(&mut self, process: usize, volume: &SimVolume) -> bool {
        let payload_max = volume.log().state().payload_max;
        let (offset, bytes, zeros, waits) = self.draw_change(payload_max - HEADER_BYTES);
        let changed = match zeros {
            true => volume.zero(offset as u64, bytes.len() as u64),
            false => volume.write(offset as u64, &bytes),
        };
        let pending: PendingWrite = match changed {
            Ok(pending) => pending,
            // Refused and not logged: the image takes no stages, or this process is ending.
            Err(_) => {
                self.world.borrow_mut().kernel.hit("volume: requests refused");
                return self.world.borrow().processes.alive(process);
            }
        };
        if self.ends.is_some() {
            self.world
                .borrow_mut()
                .hosts
                .record_change(pending.0, offset, bytes.clone());
        }
        let writes = vec![(0, offset, bytes)];
        self.model.commit(ModelTransaction { writes }, false);
        if let Some(ends) = &mut self.ends {
            ends.push(pending.0);
        }
        self.world.borrow_mut().kernel.hit("volume: requests logged");
        if waits {
            if volume.wait(pending).is_err() {
                return false;
            }
            self.model.flushed();
            self.world.borrow_mut().kernel.hit("volume: requests completed");
        }
        true
    }

    /// Draws one record: offset, bytes, whether it is zeros, and whether the program waits for it.
    fn draw_change(&mut self, data_max: usize) -> (usize, Vec<u8>, bool, bool) {
        let mut world = self.world.borrow_mut();
        let rng = &mut world.kernel.rng;
        let zeros = rng.chance(150);
        let most = match zeros {
            true => SECTORS,
            false => (data_max as u64 / SECTOR_BYTES).min(20),
        };
        let sectors = rng.between(1, most);
        let first = rng.below(SECTORS - sectors + 1);
        let mut bytes = vec![0; (sectors * SECTOR_BYTES) as usize];
        if !zeros {
            rng.fill(&mut bytes);
        }
        ((first * SECTOR_BYTES) as usize, bytes, zeros, rng.chance(400))
    }
}
