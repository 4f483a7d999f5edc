//! A program keeps a block device's volume: writes, zeros and discards are completed or not, stages go to the image,
//! machines die.

use std::cell::RefCell;
use std::rc::Rc;

use netram_disk::{
    BLOCK_BYTES, DeviceError, Disk, Files, OpenError, Options, Pending, SECTOR_BYTES, StagePolicy,
    Superblock, VolumeId, create,
};
use netram_proto::port::Log;
use netram_proto::time::Span;

use super::journal;
use crate::check::fail;
use crate::check::rvm::{Model, Transaction};
use crate::disk::SimFile;
use crate::process::SimLog;
use crate::world::{SharedWorld, World};

const BLOCKS: u64 = 12;
const BYTES: u64 = BLOCKS * BLOCK_BYTES;
const SECTORS: u64 = BYTES / SECTOR_BYTES;
/// A record's payload before its data.
const HEADER_BYTES: usize = 8;

type Volume = Disk<SimLog, SimFile>;

struct Program {
    world: SharedWorld,
    /// Numbers of image, sums and superblock on the machine's disk.
    files: [usize; 3],
    /// One segment: the volume. One transaction: a record.
    model: Model,
    policy: StagePolicy,
    /// Loss was accepted: the image may show what the log no longer has, and nothing is promised of it.
    lossy: bool,
}

/// Runs the story and gives the world back.
pub(super) fn run(mut world: World) -> World {
    let policy = StagePolicy {
        bytes: world.rng.pick(&[2000, 9000, 1 << 20]),
        age: Span::from_ms(world.rng.pick(&[5, 200])),
        closed_max: world.rng.between(1, 3) as usize,
    };
    let lives = world.rng.between(1, 4);
    let files = make_files(&mut world);
    let world = Rc::new(RefCell::new(world));
    let mut program = Program {
        world: Rc::clone(&world),
        files,
        model: Model::new(1, BYTES as usize),
        policy,
        lossy: false,
    };
    for _ in 0..lives {
        program.live();
    }
    world.borrow_mut().heal();
    program.live();
    program.live();
    drop(program);
    let Ok(world) = Rc::try_unwrap(world) else {
        unreachable!("every log of this world is dropped")
    };
    world.into_inner()
}

/// Makes the volume on a disk that is healthy meanwhile.
fn make_files(world: &mut World) -> [usize; 3] {
    let disk = Rc::clone(&world.hosts[0].disk);
    let sums_bytes = BLOCK_BYTES + BLOCKS * 4;
    let sizes = [BLOCK_BYTES + BYTES, sums_bytes, Superblock::FILE_BYTES];
    let files = sizes.map(|bytes| disk.borrow_mut().add(bytes));
    let faults = std::mem::take(&mut disk.borrow_mut().faults);
    let made = create(open_files(world, files), VolumeId(7), world.journal, BYTES);
    assert!(made.is_ok(), "a healthy disk takes a new volume");
    disk.borrow_mut().faults = faults;
    files
}

fn open_files(world: &World, [image, sums, superblock]: [usize; 3]) -> Files<SimFile> {
    let file = |number| SimFile::new(&world.hosts[0].disk, number);
    Files {
        image: file(image),
        sums: file(sums),
        superblock: file(superblock),
        dirty: None,
    }
}

impl Program {
    /// One process, from its opening to its end.
    fn live(&mut self) {
        if self.lossy {
            return;
        }
        let accepted = self.world.borrow().coverage.get("losses that were accepted");
        let opened = journal::open(&mut self.world.borrow_mut(), 0);
        self.lossy |= self.world.borrow().coverage.get("losses that were accepted") > accepted;
        let Some(process) = opened else { return };
        if self.lossy {
            return;
        }
        self.serve(process);
        let mut world = self.world.borrow_mut();
        let cut = world.rng.chance(500);
        world.crash(process, cut);
        let pause = world.rng.pick(&[0, 1, 30, 400, 2500]);
        world.run_for(Span::from_ms(pause));
    }

    fn serve(&mut self, process: usize) {
        let Some(volume) = self.open(process) else { return };
        let deeds = self.world.borrow_mut().rng.between(5, 80);
        for _ in 0..deeds {
            if !self.world.borrow().alive(process) || !self.deed(process, &volume) {
                break;
            }
        }
        let statistics = volume.status().statistics;
        let coverage = &mut self.world.borrow_mut().coverage;
        coverage.add("volume: stages applied", statistics.stages);
        coverage.add("volume: blocks merged over their base", statistics.bases);
        coverage.add("volume: blocks made holes of", statistics.holes);
        coverage.add("volume: requests that waited for room", statistics.stalls);
        coverage.add("volume: steps that failed", statistics.failures);
        coverage.add("volume: torn bases in recovery", statistics.unverified_bases);
        if statistics.corrupt_bases > 0 {
            fail(
                6,
                format!(
                    "{} blocks were spoilt, and no disk rots here",
                    statistics.corrupt_bases
                ),
            );
        }
    }

    fn open(&mut self, process: usize) -> Option<Volume> {
        let (files, journal) = {
            let world = self.world.borrow();
            (open_files(&world, self.files), world.journal)
        };
        let options = Options {
            policy: self.policy,
            ..Options::new(journal)
        };
        let volume = match Disk::open(SimLog::new(&self.world, process), files, options) {
            Ok(volume) => volume,
            Err(OpenError::SmallJournal { .. } | OpenError::File { .. } | OpenError::Apply(_)) => {
                self.world
                    .borrow_mut()
                    .coverage
                    .hit("volume: openings that failed");
                return None;
            }
            Err(error) => fail(5, format!("the volume cannot be opened: {error}")),
        };
        let found = self.read(&volume)?;
        let in_doubt = self.model.reopened(vec![found]);
        let coverage = &mut self.world.borrow_mut().coverage;
        coverage.hit("volume: openings");
        coverage.add("volume: requests in doubt that were found", in_doubt as u64);
        Some(volume)
    }

    /// All of it; `None` when the disk does not give it.
    fn read(&self, volume: &Volume) -> Option<Vec<u8>> {
        let mut bytes = vec![0xee; BYTES as usize];
        match volume.read(0, &mut bytes) {
            Ok(()) => Some(bytes),
            Err(DeviceError::Io(_)) => None,
            Err(error) => fail(6, format!("the volume cannot be read: {error}")),
        }
    }

    /// `false`: this life is over.
    fn deed(&mut self, process: usize, volume: &Volume) -> bool {
        let draw = self.world.borrow_mut().rng.below(20);
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
            }
            16 => {
                let now = self.world.borrow().now;
                volume.tick(now);
            }
            _ => {
                let mut world = self.world.borrow_mut();
                let ms = world.rng.pick(&[0, 1, 5, 20, 100, 600]);
                world.run_for(Span::from_ms(ms));
            }
        }
        if self.world.borrow().alive(process)
            && let Some(bytes) = self.read(volume)
        {
            self.model.seen(0, &bytes, "while running");
        }
        true
    }

    fn change(&mut self, process: usize, volume: &Volume) -> bool {
        let payload_max = volume.log().state().payload_max;
        let (offset, bytes, zeros, waits) = self.draw_change(payload_max - HEADER_BYTES);
        let changed = match zeros {
            true => volume.zero(offset as u64, bytes.len() as u64),
            false => volume.write(offset as u64, &bytes),
        };
        let pending: Pending = match changed {
            Ok(pending) => pending,
            // Refused, and not logged: the image takes no stages, or this process is at its end.
            Err(_) => {
                self.world.borrow_mut().coverage.hit("volume: requests refused");
                return self.world.borrow().alive(process);
            }
        };
        let writes = vec![(0, offset, bytes)];
        self.model.commit(Transaction { writes }, false);
        self.world.borrow_mut().coverage.hit("volume: requests logged");
        if waits {
            if volume.wait(pending).is_err() {
                return false;
            }
            self.model.flushed();
            self.world.borrow_mut().coverage.hit("volume: requests completed");
        }
        true
    }

    /// Where, what, whether it is zeros, and whether it is waited for. One record.
    fn draw_change(&mut self, data_max: usize) -> (usize, Vec<u8>, bool, bool) {
        let mut world = self.world.borrow_mut();
        let rng = &mut world.rng;
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
