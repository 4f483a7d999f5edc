//! One machine: its processes, the journals with their locks, and the steps at which other processes run.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use netram_sqlite_machine::FileRole;

use super::contents::JournalContents;
use super::files::DatabaseFiles;
use crate::rng::Rng;

/// Actions of another process or thread in the middle of a step.
pub(super) type Hook = Box<dyn FnOnce()>;

pub(super) type MachineHandle = Rc<RefCell<DatabaseMachine>>;

/// Payload of the unwinding that ends a killed process: none of its code goes on.
struct ProcessKilled;

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct DatabaseProcess {
    pub(super) alive: bool,
    /// Number of steps until the process is killed.
    pub(super) steps_left: Option<u32>,
    /// Number of the process among those that have used this slot.
    pub(super) life: u64,
}

/// The machine on which all processes run.
pub(super) struct DatabaseMachine {
    pub(super) processes: Vec<DatabaseProcess>,
    pub(super) files: DatabaseFiles,
    /// The record number below which no record counts.
    pub(super) start: u64,
    /// Whether a process is checkpointing.
    pub(super) checkpointing: bool,
    pub(super) logs: Vec<JournalContents>,
    /// Holder of each journal's lock: process and life.
    pub(super) locks: Vec<Option<(usize, u64)>>,
    pub(super) hook: Option<(u32, Hook)>,
    /// Actions of another thread of a process while the process waits for a record.
    pub(super) wait_hook: Option<(usize, Hook)>,
    /// Contents of each file after every operation on it.
    pub(super) file_versions: [Vec<Option<Vec<u8>>>; 3],
    /// Index in `file_versions` of the oldest version that recovery may find.
    pub(super) synced: [usize; 3],
    /// Whether a recovery is running. Its operations add no versions.
    pub(super) recovering: bool,
    /// Number of further syncs that fail.
    pub(super) syncs_fail: u32,
    /// Whether a sync failed since the journals were last applied to the files.
    pub(super) has_failed: bool,
    /// Number of further calls, other than syncs, of which some are refused.
    pub(super) refusals: u32,
    /// Whether the system drops the logs' cached pages when asked to.
    pub(super) drops_cache: bool,
    pub(super) rng: Rng,
    lives: u64,
}

impl DatabaseMachine {
    pub(super) fn new(processes: usize, seats: usize, mut rng: Rng) -> MachineHandle {
        let mut files = DatabaseFiles::default();
        files.write(FileRole::Main, 0, &[1; 20]);
        files.sync(FileRole::Main, false);
        files.sync_names();
        Rc::new(RefCell::new(DatabaseMachine {
            processes: vec![DatabaseProcess::default(); processes],
            files,
            start: 0,
            checkpointing: false,
            logs: vec![JournalContents::default(); seats],
            locks: vec![None; seats],
            hook: None,
            wait_hook: None,
            file_versions: Default::default(),
            synced: [0; 3],
            recovering: false,
            syncs_fail: 0,
            has_failed: false,
            refusals: 0,
            drops_cache: rng.chance(500),
            rng,
            lives: 0,
        }))
    }

    pub(super) fn begin_versions(&mut self) {
        for role in FileRole::ALL {
            self.file_versions[role as usize] = vec![self.files.bytes(role).cloned()];
        }
        self.synced = [0; 3];
    }

    pub(super) fn start(&mut self, process: usize) {
        self.lives += 1;
        self.processes[process] = DatabaseProcess {
            alive: true,
            steps_left: None,
            life: self.lives,
        };
    }

    /// Ends a process and frees its locks.
    pub(super) fn die(&mut self, process: usize) {
        self.processes[process].alive = false;
        for lock in &mut self.locks {
            lock.take_if(|(owner, _)| *owner == process);
        }
    }

    /// Records a new version of a file.
    pub(super) fn tell(&mut self, role: FileRole) {
        if !self.recovering {
            let now = self.files.bytes(role).cloned();
            self.file_versions[role as usize].push(now);
        }
    }

    /// Draws whether this call is refused.
    pub(super) fn refuses(&mut self) -> bool {
        let refuses = self.refusals > 0 && self.rng.chance(500);
        self.refusals = self.refusals.saturating_sub(1);
        refuses
    }

    /// Draws whether this sync fails.
    pub(super) fn sync_fails(&mut self) -> bool {
        let fails = self.syncs_fail > 0;
        self.syncs_fail = self.syncs_fail.saturating_sub(1);
        self.has_failed |= fails;
        fails
    }

    /// Applies a loss of power to the files and the journals. Of a journal, the acknowledged records stay,
    /// and by chance later ones.
    pub(super) fn lose_power(&mut self) {
        let DatabaseMachine { files, logs, rng, .. } = self;
        files.lose_power(rng);
        logs.iter_mut().for_each(|log| log.recover(rng));
        for process in 0..self.processes.len() {
            self.die(process);
        }
        self.checkpointing = false;
    }
}

/// A step of a process: it may be killed here, and other processes may run.
pub(super) fn step(machine: &MachineHandle, process: usize) {
    let hook = {
        let mut machine = machine.borrow_mut();
        match machine.processes[process].steps_left {
            Some(0) => {
                machine.die(process);
                drop(machine);
                resume_unwind(Box::new(ProcessKilled));
            }
            Some(steps) => machine.processes[process].steps_left = Some(steps - 1),
            None => (),
        }
        match &mut machine.hook {
            Some((0, _)) => machine.hook.take(),
            Some((steps, _)) => {
                *steps -= 1;
                None
            }
            None => None,
        }
    };
    if let Some((_, hook)) = hook {
        hook();
        die_if_dead(machine, process);
    }
}

/// Unwinds if another thread of the process has died, and with it the process.
pub(super) fn die_if_dead(machine: &MachineHandle, process: usize) {
    if !machine.borrow().processes[process].alive {
        resume_unwind(Box::new(ProcessKilled));
    }
}

/// Runs `act` as a process. `None` if the process was killed in the middle.
pub(super) fn as_process<T>(act: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => Some(done),
        Err(payload) if payload.is::<ProcessKilled>() => None,
        Err(payload) => resume_unwind(payload),
    }
}
