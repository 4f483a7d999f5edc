//! One machine: its processes, the journals with their locks, and the steps at which something else happens.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use netram_sqlite_machine::Role;

use super::files::Files;
use super::journal::Inside;
use crate::rng::Rng;

/// What another process, or another thread, does in the middle of what is done.
pub(super) type Hook = Box<dyn FnOnce()>;

pub(super) type Shared = Rc<RefCell<Machine>>;

/// Unwinds out of a process that is killed: none of its code goes on.
struct Killed;

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) alive: bool,
    /// Steps until it is killed.
    pub(super) fuse: Option<u32>,
    /// Which of those that have had this slot it is.
    pub(super) life: u64,
}

/// The machine.
pub(super) struct Machine {
    pub(super) processes: Vec<Process>,
    pub(super) files: Files,
    /// The number before which no record counts.
    pub(super) start: u64,
    /// Somebody settles.
    pub(super) settling: bool,
    pub(super) logs: Vec<Inside>,
    /// Who has each journal's lock: process and life.
    pub(super) locks: Vec<Option<(usize, u64)>>,
    pub(super) hook: Option<(u32, Hook)>,
    /// What another thread of a process does while a record is waited for.
    pub(super) waiting: Option<(usize, Hook)>,
    /// Each file as it was after each thing that was done to it.
    pub(super) story: [Vec<Option<Vec<u8>>>; 3],
    /// Which of them must be there, or a later one.
    pub(super) synced: [usize; 3],
    /// A recovery is going on: what it does is no part of the story.
    pub(super) recovers: bool,
    /// Syncs that fail from now on.
    pub(super) syncs_fail: u32,
    /// One failed since the journals were brought into the files.
    pub(super) has_failed: bool,
    /// Calls of which some are refused from now on, which are no syncs.
    pub(super) refusals: u32,
    /// Whether the system drops the logs' cache when it is asked to.
    pub(super) obeys: bool,
    pub(super) rng: Rng,
    lives: u64,
}

impl Machine {
    pub(super) fn new(processes: usize, seats: usize, mut rng: Rng) -> Shared {
        let mut files = Files::default();
        files.write(Role::Main, 0, &[1; 20]);
        files.sync(Role::Main, false);
        files.sync_names();
        Rc::new(RefCell::new(Machine {
            processes: vec![Process::default(); processes],
            files,
            start: 0,
            settling: false,
            logs: vec![Inside::default(); seats],
            locks: vec![None; seats],
            hook: None,
            waiting: None,
            story: Default::default(),
            synced: [0; 3],
            recovers: false,
            syncs_fail: 0,
            has_failed: false,
            refusals: 0,
            obeys: rng.chance(500),
            rng,
            lives: 0,
        }))
    }

    pub(super) fn begin_story(&mut self) {
        for role in Role::ALL {
            self.story[role as usize] = vec![self.files.bytes(role).cloned()];
        }
        self.synced = [0; 3];
    }

    pub(super) fn start(&mut self, process: usize) {
        self.lives += 1;
        self.processes[process] = Process {
            alive: true,
            fuse: None,
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
    pub(super) fn tell(&mut self, role: Role) {
        if !self.recovers {
            let now = self.files.bytes(role).cloned();
            self.story[role as usize].push(now);
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
        let Machine { files, logs, rng, .. } = self;
        files.lose_power(rng);
        logs.iter_mut().for_each(|log| log.recover(rng));
        for process in 0..self.processes.len() {
            self.die(process);
        }
        self.settling = false;
    }
}

/// A step of a process: it may be killed here, and others may do something.
pub(super) fn step(machine: &Shared, process: usize) {
    let hook = {
        let mut machine = machine.borrow_mut();
        match machine.processes[process].fuse {
            Some(0) => {
                machine.die(process);
                drop(machine);
                resume_unwind(Box::new(Killed));
            }
            Some(steps) => machine.processes[process].fuse = Some(steps - 1),
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
pub(super) fn die_if_dead(machine: &Shared, process: usize) {
    if !machine.borrow().processes[process].alive {
        resume_unwind(Box::new(Killed));
    }
}

/// Does something as a process does it. `None`: it was killed in the middle.
pub(super) fn as_process<T>(act: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => Some(done),
        Err(payload) if payload.is::<Killed>() => None,
        Err(payload) => resume_unwind(payload),
    }
}
