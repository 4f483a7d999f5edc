//! A program keeps its state in recoverable memory: transactions commit and abort, truncation runs, machines
//! die.

use std::cell::RefCell;
use std::rc::Rc;

use netram_proto::port::Durability;
use netram_proto::time::Nanos;
use netram_rvm::{
    Region, RestoreMode, Rvm, RvmCommitError, RvmOpenError, RvmOptions, SegmentAllocation, SegmentError,
    TruncateError,
};

use super::journal;
use crate::check::fail;
use crate::check::rvm::{MemoryModel, ModelTransaction};
use crate::client::SimLog;
use crate::event_loop;
use crate::inject::heal;
use crate::process::life::crash;
use crate::storage::{SegmentDirectory, SimStorage};
use crate::world::{World, WorldHandle};

const SEGMENT_BYTES: usize = 8192;
pub(super) const SEGMENT_NAMES: [&str; 2] = ["accounts", "orders"];

type Memory = Rvm<SimLog, SimStorage>;

pub(super) struct MemoryProgram {
    pub(super) world: WorldHandle,
    pub(super) directory: SegmentDirectory,
    pub(super) model: MemoryModel,
    segments: usize,
    batch: usize,
    /// Size of the spool in bytes; zero for none.
    spool: usize,
    /// Percentage of lazy commits.
    lazy_percent: u64,
    /// Whether a loss was accepted. Segments may then show unsynced bytes that the log no longer has, and
    /// nothing is promised of them.
    pub(super) lossy: bool,
    /// Number of operations after which the machine's disk is copied.
    pub(super) copied_after: Option<u64>,
    /// The machine that has the copy.
    pub(super) copy: Option<usize>,
}

/// Runs the scenario and returns the world.
pub(super) fn run(world: World) -> World {
    let mut program = MemoryProgram::new(world);
    let lives = program.world.borrow_mut().kernel.rng.between(1, 4);
    for _ in 0..lives {
        program.live();
    }
    heal(&mut program.world.borrow_mut());
    program.live();
    program.live();
    program.end()
}

impl MemoryProgram {
    /// A program that has never run.
    pub(super) fn new(mut world: World) -> MemoryProgram {
        let segments = world.kernel.rng.between(1, 2) as usize;
        let batch = world.kernel.rng.pick(&[500, 4000, 1 << 20]);
        let spool = world.kernel.rng.pick(&[0, 0, 300, 2000, 1 << 20]);
        let lazy_percent = world.kernel.rng.pick(&[30, 30, 90]);
        let world = Rc::new(RefCell::new(world));
        MemoryProgram {
            world,
            directory: SegmentDirectory::default(),
            model: MemoryModel::new(segments, SEGMENT_BYTES),
            segments,
            batch,
            spool,
            lazy_percent,
            lossy: false,
            copied_after: None,
            copy: None,
        }
    }

    /// Returns the world.
    pub(super) fn end(self) -> World {
        let MemoryProgram { world, .. } = self;
        let Ok(world) = Rc::try_unwrap(world) else {
            unreachable!("every log of this world is dropped")
        };
        world.into_inner()
    }

    /// Runs one process, from its opening to its end.
    pub(super) fn live(&mut self) {
        if self.lossy {
            return;
        }
        let accepted = self.world.borrow().kernel.count("losses that were accepted");
        let opened = journal::open(&mut self.world.borrow_mut(), 0);
        self.lossy |= self.world.borrow().kernel.count("losses that were accepted") > accepted;
        let Some(process) = opened else { return };
        if self.lossy {
            return;
        }
        self.serve(process);
        let mut world = self.world.borrow_mut();
        let cut = world.kernel.rng.chance(500);
        crash(&mut world, process, cut);
        let pause = world.kernel.rng.pick(&[0, 1, 30, 400, 2500]);
        event_loop::run_for(&mut world, Nanos::from_ms(pause));
    }

    fn serve(&mut self, process: usize) {
        let Some((memory, mut regions)) = self.open(process) else {
            self.world.borrow_mut().kernel.hit("rvm: openings that failed");
            return;
        };
        let deeds = self.world.borrow_mut().kernel.rng.between(5, 60);
        for _ in 0..deeds {
            self.copy_when_due();
            if !self.world.borrow().processes.alive(process) || !self.run_step(process, &memory, &mut regions)
            {
                break;
            }
        }
        self.count(&memory);
        // Otherwise the handle is dropped, which logs the spool if the process can.
        if self.world.borrow_mut().kernel.rng.chance(200) && memory.close().is_ok() {
            self.world.borrow_mut().kernel.hit("rvm: closings");
            self.model.flushed();
        }
    }

    fn copy_when_due(&mut self) {
        self.copied_after = match self.copied_after {
            Some(0) => {
                self.copy = Some(self.world.borrow_mut().copy_host(0));
                None
            }
            deeds => deeds.map(|deeds| deeds - 1),
        };
    }

    fn count(&self, memory: &Memory) {
        let statistics = memory.statistics();
        let kernel = &mut self.world.borrow_mut().kernel;
        kernel.add("rvm: commits spooled", statistics.spooled_commits);
        kernel.add("rvm: records of a spool", statistics.spool_records);
        kernel.add("rvm: compactions of a spool", statistics.spool_compactions);
        kernel.add("rvm: bytes that a spool saved", statistics.bytes_saved_between);
    }

    /// Options with which the memory is opened.
    pub(super) fn options(&self) -> RvmOptions {
        let world = self.world.borrow();
        RvmOptions {
            truncation_batch_bytes: self.batch,
            spool_bytes: self.spool,
            planted: world.kernel.planted(),
            ..RvmOptions::new(world.kernel.journal())
        }
    }

    fn open(&mut self, process: usize) -> Option<(Memory, Vec<Region>)> {
        let disk = Rc::clone(&self.world.borrow().hosts[0].disk);
        let storage = SimStorage::new(&disk, &self.directory);
        let opened = Rvm::open(SimLog::new(&self.world, process), storage, self.options());
        if let Err(RvmOpenError::Recovery(TruncateError::Segment(error))) = &opened
            && !matches!(error, SegmentError::Io { .. })
        {
            fail(24, format!("the only log was refused its segments: {error}"));
        }
        let memory = opened.ok()?;
        memory.plant(self.world.borrow().kernel.planted());
        let mut regions = Vec::new();
        for name in &SEGMENT_NAMES[..self.segments] {
            // Refused if an earlier life has created it.
            let _ = memory.create_segment(name, SEGMENT_BYTES as u64, SegmentAllocation::Preallocated);
            regions.push(memory.map(name, 0, 0).ok()?);
        }
        let found = regions.iter().map(|region| region.read().to_vec()).collect();
        let in_doubt = self.model.reopened(found);
        let mut world = self.world.borrow_mut();
        world.kernel.hit("rvm: openings");
        world
            .kernel
            .add("rvm: commits in doubt that were found", in_doubt as u64);
        Some((memory, regions))
    }

    /// Runs one step. `false`: this life is over.
    fn run_step(&mut self, process: usize, memory: &Memory, regions: &mut Vec<Region>) -> bool {
        let draw = self.world.borrow_mut().kernel.rng.below(22);
        match draw {
            0..13 => return self.transact(process, memory, regions),
            13 => {
                if memory.flush(Durability::Remote).is_err() {
                    return false;
                }
                self.model.flushed();
            }
            14 => {
                // A failure leaves the log as it is; the next round begins anew.
                let _ = memory.truncate();
            }
            20 => {
                // The thread does this about every second: it logs the spool without waiting.
                if memory.flush(Durability::Lazy).is_err() {
                    return self.world.borrow().processes.alive(process);
                }
            }
            21 => {
                let segment = self.world.borrow_mut().kernel.rng.index(self.segments);
                if regions.swap_remove(segment).unmap().is_err() {
                    unreachable!("no transaction is open");
                }
                // A region that is mapped again shows every commit, including those only in the spool or the
                // log.
                let Ok(region) = memory.map(SEGMENT_NAMES[segment], 0, 0) else {
                    return false;
                };
                regions.push(region);
                regions.swap(segment, self.segments - 1);
                self.world.borrow_mut().kernel.hit("rvm: regions mapped again");
            }
            15..17 => {
                for _ in 0..4 {
                    let _ = memory.truncate_step();
                }
            }
            _ => {
                let mut world = self.world.borrow_mut();
                let ms = world.kernel.rng.pick(&[0, 1, 5, 20, 100, 600]);
                event_loop::run_for(&mut world, Nanos::from_ms(ms));
            }
        }
        for (segment, region) in regions.iter().enumerate() {
            self.model.check_running(segment, &region.read(), "while running");
        }
        true
    }

    fn transact(&mut self, process: usize, memory: &Memory, regions: &[Region]) -> bool {
        let (mode, abort, durability, transaction) = self.draw_transaction();
        let mut open = memory.begin(mode);
        for (segment, offset, bytes) in &transaction.writes {
            if open.write(&regions[*segment], *offset, bytes).is_err() {
                return false;
            }
        }
        if abort {
            open.abort();
            self.world.borrow_mut().kernel.hit("rvm: aborts");
            self.compare(regions, "after an abort");
            return true;
        }
        match open.commit(durability) {
            Ok(_) => {
                self.world.borrow_mut().kernel.hit("rvm: commits");
                self.model.commit(transaction, durability != Durability::Lazy);
                true
            }
            Err(RvmCommitError::Unknown { .. }) => {
                self.world.borrow_mut().kernel.hit("rvm: commits of unknown fate");
                self.model.commit(transaction, false);
                false
            }
            Err(RvmCommitError::Full { .. } | RvmCommitError::TooLarge { .. })
                if mode == RestoreMode::Restore =>
            {
                self.world
                    .borrow_mut()
                    .kernel
                    .hit("rvm: commits that found no room");
                self.compare(regions, "after a refused commit");
                self.world.borrow().processes.alive(process)
            }
            Err(_) => false,
        }
    }

    fn draw_transaction(&mut self) -> (RestoreMode, bool, Durability, ModelTransaction) {
        let mut world = self.world.borrow_mut();
        let rng = &mut world.kernel.rng;
        let abort = rng.chance(150);
        let mode = if abort || rng.chance(800) {
            RestoreMode::Restore
        } else {
            RestoreMode::NoRestore
        };
        let durability = match rng.chance(self.lazy_percent * 10) {
            true => Durability::Lazy,
            false => rng.pick(&[
                Durability::Disk,
                Durability::Remote,
                Durability::Remote,
                Durability::Remote,
            ]),
        };
        let longest = rng.pick(&[8, 64, 700]);
        let writes = (0..rng.between(1, 6)).map(|_| {
            let mut bytes = vec![0; rng.between(1, longest) as usize];
            rng.fill(&mut bytes);
            let offset = rng.index(SEGMENT_BYTES - bytes.len());
            (rng.index(self.segments), offset, bytes)
        });
        let writes = writes.collect();
        (mode, abort, durability, ModelTransaction { writes })
    }

    fn compare(&self, regions: &[Region], when: &str) {
        for (segment, region) in regions.iter().enumerate() {
            self.model.check_running(segment, &region.read(), when);
        }
    }
}
