//! A copy of a log over its original's segments. The disk of a machine is copied while a program keeps its
//! state there in recoverable memory. The program goes on and dies, and the copy is opened over the segments
//! that it left.

use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, Rvm, RvmOpenError, SegmentError, TruncateError};

use super::journal;
use super::rvm::{MemoryProgram, SEGMENT_NAMES};
use crate::check::fail;
use crate::client::SimLog;
use crate::inject::heal;
use crate::process::life::crash;
use crate::storage::SimStorage;
use crate::world::World;

/// Runs the scenario and returns the world.
pub(super) fn run(world: World) -> World {
    let mut program = MemoryProgram::new(world);
    let (lives, deeds) = {
        let rng = &mut program.world.borrow_mut().kernel.rng;
        (rng.between(1, 4), rng.between(0, 60))
    };
    program.copied_after = Some(deeds);
    for _ in 0..lives {
        program.live();
    }
    heal(&mut program.world.borrow_mut());
    if program.copy.is_some() && !program.lossy {
        let stamps = program.directory.stamps();
        open_copy(&mut program);
        match stamps == program.directory.stamps() {
            // The copy has changed nothing: the original must not notice it.
            true => program.live(),
            false => reopen_original(&program),
        }
    }
    program.end()
}

/// Bytes of the segments, as a reader of the files sees them.
fn contents(program: &MemoryProgram) -> Vec<Vec<u8>> {
    let world = program.world.borrow();
    program.directory.contents(&world.hosts[0].disk)
}

fn open_copy(program: &mut MemoryProgram) {
    let Some(copy) = program.copy else { return };
    let Some(process) = healed(program, copy) else {
        return;
    };
    let storage = {
        let world = program.world.borrow();
        // The program that had the disk is dead; the disk is not.
        world.hosts[0].disk.borrow_mut().revive();
        SimStorage::beside(&world.hosts[copy].disk, &world.hosts[0].disk, &program.directory)
    };
    let before = contents(program);
    let Some(storage) = storage else { return };
    let opened = Rvm::open(SimLog::new(&program.world, process), storage, program.options());
    match opened {
        Ok(memory) => {
            hit(program, "rvm: copies of a log that were opened");
            judge(program, &memory, &before);
        }
        Err(RvmOpenError::Recovery(TruncateError::Segment(
            SegmentError::Overtaken { .. } | SegmentError::OwnedByOtherLog { .. },
        ))) => {
            if before != contents(program) {
                fail(
                    24,
                    "a copy of the log was refused, and has changed segments".to_owned(),
                );
            }
            hit(program, "rvm: copies of a log that were refused");
        }
        // The disk failed, or the process has ended.
        Err(_) => {}
    }
    let mut world = program.world.borrow_mut();
    let cut = world.kernel.rng.chance(500);
    crash(&mut world, process, cut);
}

/// Checks the segments as the copy left them, and its program's use of those that it may map.
fn judge(program: &MemoryProgram, memory: &Rvm<SimLog, SimStorage>, before: &[Vec<u8>]) {
    if program.world.borrow_mut().kernel.rng.chance(300) {
        return;
    }
    let after = contents(program);
    let regions: Vec<_> = (0..after.len())
        .map(|at| memory.map(SEGMENT_NAMES[at], 0, 0).ok())
        .collect();
    let mapped: Vec<bool> = regions.iter().map(Option::is_some).collect();
    program.model.copy_opened(before, &after, &mapped);
    for (segment, mapped) in mapped.iter().enumerate() {
        if !mapped && before[segment] != after[segment] {
            fail(
                24,
                "a copy of the log has changed a segment that it may not have".to_owned(),
            );
        }
    }
    for region in regions.into_iter().flatten() {
        let mut transaction = memory.begin(RestoreMode::Restore);
        let written = transaction.write(&region, 100, b"the copy's");
        if written.is_err() || transaction.commit(Durability::Disk).is_err() {
            return;
        }
    }
    // A failure leaves the log as it is.
    let _ = memory.truncate();
}

/// Reopens the original after the copy has changed its segments; it must change none of that.
fn reopen_original(program: &MemoryProgram) {
    let Some(process) = healed(program, 0) else { return };
    let before = contents(program);
    let storage = {
        let world = program.world.borrow();
        SimStorage::new(&world.hosts[0].disk, &program.directory)
    };
    let opened = Rvm::open(SimLog::new(&program.world, process), storage, program.options());
    hit(
        program,
        match opened {
            Ok(_) => "rvm: originals opened after their copies",
            Err(_) => "rvm: originals refused after their copies",
        },
    );
    drop(opened);
    if before != contents(program) {
        fail(
            24,
            "a log was applied to segments that its copy had taken over".to_owned(),
        );
    }
    crash(&mut program.world.borrow_mut(), process, false);
}

/// A process that has the journal on `host` open. `None`: it must not be opened, or it lost records that it
/// had.
fn healed(program: &MemoryProgram, host: usize) -> Option<usize> {
    let accepted = || program.world.borrow().kernel.count("losses that were accepted");
    let before = accepted();
    let process = journal::open_healed(&mut program.world.borrow_mut(), host)?;
    if accepted() == before {
        return Some(process);
    }
    crash(&mut program.world.borrow_mut(), process, false);
    None
}

fn hit(program: &MemoryProgram, what: &'static str) {
    program.world.borrow_mut().kernel.hit(what);
}
