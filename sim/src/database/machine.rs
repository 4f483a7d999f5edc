//! One machine: its processes, the journals with their locks, and the steps at which something else happens.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use netram_sqlite_machine::FileRole;

use super::files::DatabaseFiles;
use super::journal::JournalContents;
use crate::rng::Rng;

/// What another process, or another thread, does in the middle of what is done.
pub(super) type Hook = Box<dyn FnOnce()>;

pub(super) type MachineHandle = Rc<RefCell<DatabaseMachine>>;

/// Unwinds out of a process that is killed: none of its code goes on.
struct ProcessKilled;

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct DatabaseProcess {
    pub(super) alive: bool,
    /// Steps until it is killed.
    pub(super) steps_left: Option<u32>,
    /// Which of those that have had this slot it is.
    pub(super) life: u64,
}

/// The machine.
pub(super) struct DatabaseMachine {
    pub(super) processes: Vec<DatabaseProcess>,
    pub(super) files: DatabaseFiles,
    /// The number before which no record counts.
    pub(super) start: u64,
    /// Somebody settles.
    pub(super) checkpointing: bool,
    pub(super) logs: Vec<JournalContents>,
    /// Who has each journal's lock: process and life.
    pub(super) locks: Vec<Option<(usize, u64)>>,
    pub(super) hook: Option<(u32, Hook)>,
    /// What another thread of a process does while a record is waited for.
    pub(super) wait_hook: Option<(usize, Hook)>,
    /// Each file as it was after each thing that was done to it.
    pub(super) file_versions: [Vec<Option<Vec<u8>>>; 3],
    /// Which of them must be there, or a later one.
    pub(super) synced: [usize; 3],
    /// A recovery is going on: what it does is no part of the story.
    pub(super) recovering: bool,
    /// Syncs that fail from now on.
    pub(super) syncs_fail: u32,
    /// One failed since the journals were brought into the files.
    pub(super) has_failed: bool,
    /// Calls of which some are refused from now on, which are no syncs.
    pub(super) refusals: u32,
    /// Whether the system drops the logs' cache when it is asked to.
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

    /// From here on it does nothing, and its locks are free.
    pub(super) fn die(&mut self, process: usize) {
        self.processes[process].alive = false;
        for lock in &mut self.locks {
            lock.take_if(|(owner, _)| *owner == process);
        }
    }

    /// Tells what a file has become.
    pub(super) fn tell(&mut self, role: FileRole) {
        if !self.recovering {
            let now = self.files.bytes(role).cloned();
            self.file_versions[role as usize].push(now);
        }
    }

    /// Whether this call is refused.
    pub(super) fn refuses(&mut self) -> bool {
        let refuses = self.refusals > 0 && self.rng.chance(500);
        self.refusals = self.refusals.saturating_sub(1);
        refuses
    }

    /// Whether this sync fails.
    pub(super) fn sync_fails(&mut self) -> bool {
        let fails = self.syncs_fail > 0;
        self.syncs_fail = self.syncs_fail.saturating_sub(1);
        self.has_failed |= fails;
        fails
    }

    /// The power fails: files, and of the journals what their lenders or disk hold, and by chance more.
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

/// A step of a process: it may be killed here, and others may do something.
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

/// Another thread may have died, and with it the process.
pub(super) fn die_if_dead(machine: &MachineHandle, process: usize) {
    if !machine.borrow().processes[process].alive {
        resume_unwind(Box::new(ProcessKilled));
    }
}

/// Does something as a process does it. `None`: it was killed in the middle.
pub(super) fn as_process<T>(act: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => Some(done),
        Err(payload) if payload.is::<ProcessKilled>() => None,
        Err(payload) => resume_unwind(payload),
    }
}
