//! Operations of the processes: they write, truncate, remove and sync files, take journals, checkpoint,
//! leave, and die in the middle of each.

use std::rc::Rc;

use netram_proto::port::IoError;
use netram_sqlite_machine::{DatabaseWriterError, FileContents, FileRole, recover};

use super::journal::{DatabaseJournal, DatabaseJournals};
use super::machine::{Hook, MachineHandle, as_process, step};
use super::{SIZE, World, WriterHandle};
use crate::rng::Rng;

/// One operation of a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProgramOp {
    Write(FileRole, usize, usize, u8),
    Resize(FileRole, usize),
    Remove(FileRole),
    Sync(FileRole),
    Checkpoint,
    TakeJournalSlot,
}

impl ProgramOp {
    fn draw(rng: &mut Rng) -> ProgramOp {
        let role = rng.pick(&FileRole::ALL);
        match rng.below(12) {
            0..5 => ProgramOp::write(rng, role),
            5 => ProgramOp::Resize(role, rng.index(SIZE)),
            // The database file itself is never removed.
            6 if role != FileRole::Main => ProgramOp::Remove(role),
            7 => ProgramOp::Checkpoint,
            _ => ProgramOp::Sync(role),
        }
    }

    fn write(rng: &mut Rng, role: FileRole) -> ProgramOp {
        let (offset, length) = (rng.index(SIZE - 8), rng.between(1, 8) as usize);
        ProgramOp::Write(role, offset, length, rng.between(1, 255) as u8)
    }
}

/// An error in place of SQLite's.
#[derive(Debug)]
struct ProgramError;

impl From<DatabaseWriterError> for ProgramError {
    fn from(_: DatabaseWriterError) -> ProgramError {
        ProgramError
    }
}

/// A file as it is now.
struct CurrentFile<'a> {
    machine: &'a MachineHandle,
    process: usize,
    role: FileRole,
}

impl CurrentFile<'_> {
    fn bytes(&self) -> Vec<u8> {
        step(self.machine, self.process);
        let bytes = self.machine.borrow().files.bytes(self.role).cloned();
        step(self.machine, self.process);
        bytes.unwrap_or_default()
    }
}

impl FileContents for CurrentFile<'_> {
    fn size(&mut self) -> Result<u64, IoError> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, IoError> {
        let bytes = self.bytes();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// Runs an operation to its end or to the death of the process. Returns whether it was completed.
pub(super) fn run_op(
    machine: &MachineHandle,
    member: &WriterHandle,
    process: usize,
    doing: ProgramOp,
) -> bool {
    as_process(|| try_op(machine, member, process, doing)).unwrap_or(false)
}

fn try_op(machine: &MachineHandle, member: &WriterHandle, process: usize, doing: ProgramOp) -> bool {
    let now = |role: FileRole| machine.borrow().file_versions[role as usize].len() - 1;
    let said = |role: FileRole, at: usize| {
        let synced = &mut machine.borrow_mut().synced[role as usize];
        *synced = (*synced).max(at);
    };
    let change = |role: FileRole, act: &mut dyn FnMut()| {
        step(machine, process);
        act();
        machine.borrow_mut().tell(role);
        step(machine, process);
    };
    match doing {
        ProgramOp::Write(role, offset, length, value) => {
            member.write(role, offset as u64, length as u64, || {
                change(role, &mut || {
                    let bytes = vec![value; length];
                    machine.borrow_mut().files.write(role, offset, &bytes);
                });
            });
            true
        }
        ProgramOp::Resize(role, size) => {
            member.resize(role, size as u64, || {
                change(role, &mut || machine.borrow_mut().files.resize(role, size));
            });
            true
        }
        ProgramOp::Remove(role) => {
            let mut at = 0;
            let removed = member.remove(role, || {
                change(role, &mut || {
                    machine.borrow_mut().files.remove(role);
                });
                at = now(role);
                Ok::<(), ProgramError>(())
            });
            removed.map(|()| said(role, at)).is_ok()
        }
        ProgramOp::Sync(role) => {
            let at = now(role);
            let mut file = CurrentFile {
                machine,
                process,
                role,
            };
            member.sync(role, &mut file).map(|_| said(role, at)).is_ok()
        }
        ProgramOp::Checkpoint => member.checkpoint().is_ok(),
        ProgramOp::TakeJournalSlot => {
            let machine = Rc::clone(machine);
            member
                .take_journal_slot(&DatabaseJournals { machine, process })
                .is_ok()
        }
    }
}

impl World {
    /// Lets one process run one operation.
    pub(super) fn run_one_op(&mut self) {
        let process = self.rng.index(self.profile.processes);
        self.draw_faults();
        let Some(member) = self.writers[process].clone() else {
            if self.rng.chance(500) {
                self.join(process);
            }
            return;
        };
        let sits = member.log().is_none() && self.rng.chance(330);
        let doing = match sits {
            true => ProgramOp::TakeJournalSlot,
            false => ProgramOp::draw(&mut self.rng),
        };
        if self.rng.chance(self.profile.kills) {
            let steps = self.rng.below(8) as u32;
            self.machine.borrow_mut().processes[process].steps_left = Some(steps);
        }
        // SQLite's locks give a process that removes a file exclusive access to it.
        if !matches!(doing, ProgramOp::Remove(_)) && self.rng.chance(330) {
            self.hook_other_process(process);
        }
        self.hook_other_thread(process, &member, doing);
        self.tell(1, process as u64, || format!("{process} begins {doing:?}"));
        let done = run_op(&self.machine, &member, process, doing);
        {
            let mut machine = self.machine.borrow_mut();
            (machine.hook, machine.wait_hook) = (None, None);
        }
        self.count(doing, done);
        self.tell(2, u64::from(done), || format!("{process} has done it: {done}"));
        drop(member);
        self.reap_dead();
        self.check_failed();
        if self.shared_index().has_failed() && self.rng.chance(100) {
            self.leave_all();
        }
    }

    fn count(&mut self, doing: ProgramOp, done: bool) {
        match (doing, done) {
            (ProgramOp::Sync(_), true) => self.coverage.hit("database: syncs"),
            (ProgramOp::TakeJournalSlot, true) => self.coverage.hit("database: journals taken"),
            (_, false) => self.coverage.hit("database: calls that were not done"),
            _ => (),
        }
    }

    fn draw_faults(&mut self) {
        let mut machine = self.machine.borrow_mut();
        if self.rng.chance(self.profile.sync_failures) {
            machine.syncs_fail = 1;
            self.coverage.hit("database: syncs that failed");
        }
        if self.rng.chance(self.profile.refusals) {
            machine.refusals = self.rng.between(1, 12) as u32;
            self.coverage.hit("database: calls refused for a while");
        }
        if self.rng.chance(self.profile.journals_break) {
            let seat = self.rng.index(machine.logs.len());
            machine.logs[seat].broken = true;
            self.coverage.hit("database: journals that broke");
        }
    }

    /// Prepares another process's operations, and perhaps its death, for the middle of this one.
    fn hook_other_process(&mut self, process: usize) {
        let others = self.profile.processes - 1;
        let other = (process + 1 + self.rng.index(others)) % self.profile.processes;
        let Some(member) = self.writers[other].clone() else {
            return;
        };
        let mut all: Vec<ProgramOp> = (0..self.rng.between(1, 3))
            .map(|_| ProgramOp::draw(&mut self.rng))
            .collect();
        // The operation on which most depends is the one reported as durable.
        if let Some(ProgramOp::Write(role, ..)) = all.last().copied() {
            all.push(ProgramOp::Sync(role));
        }
        let is_killed = self.profile.kills > 0 && self.rng.chance(300);
        let machine = Rc::clone(&self.machine);
        let hook: Hook = Box::new(move || {
            for doing in all {
                run_op(&machine, &member, other, doing);
            }
            if is_killed {
                machine.borrow_mut().die(other);
            }
        });
        let steps = self.rng.below(6) as u32;
        self.machine.borrow_mut().hook = Some((steps, hook));
    }

    /// Prepares another thread's operation for the middle of a sync or a checkpoint.
    fn hook_other_thread(&mut self, process: usize, member: &WriterHandle, doing: ProgramOp) {
        if !self.rng.chance(330) {
            return;
        }
        let role = match doing {
            ProgramOp::Sync(role) => role,
            _ => self.rng.pick(&FileRole::ALL),
        };
        let between = ProgramOp::write(&mut self.rng, role);
        let (member, machine) = (Rc::clone(member), Rc::clone(&self.machine));
        let hook: Hook = Box::new(move || {
            run_op(&machine, &member, process, between);
        });
        let steps = self.rng.below(4) as u32;
        let mut machine = self.machine.borrow_mut();
        match doing {
            ProgramOp::Sync(_) => machine.wait_hook = Some((process, hook)),
            ProgramOp::Checkpoint => machine.hook = Some((steps, hook)),
            _ => (),
        }
    }

    /// Closes the database in all processes and opens it again in one.
    fn leave_all(&mut self) {
        for process in 0..self.profile.processes {
            if let Some(member) = self.writers[process].take() {
                run_op(&self.machine, &member, process, ProgramOp::Checkpoint);
                as_process(|| drop(member.detach_journal()));
                self.machine.borrow_mut().die(process);
            }
        }
        if self.shared_index().is_of_boot(super::INDEX_MARK) {
            return;
        }
        self.coverage.hit("database: recoveries in the same boot");
        let logs = self.machine.borrow().logs.len();
        for seat in 0..logs {
            let mut machine = self.machine.borrow_mut();
            let machine = &mut *machine;
            machine.logs[seat].recover(&mut machine.rng);
        }
        self.recover();
    }

    /// Ends all processes, at once or one by one. The power usually fails too.
    pub(super) fn end_all(&mut self) {
        if self.rng.chance(200) {
            self.leave_all();
            return;
        }
        self.writers.iter_mut().for_each(|member| *member = None);
        self.tell(3, 0, || String::from("the power fails"));
        self.machine.borrow_mut().lose_power();
        self.shared_index().invalidate();
        self.coverage.hit("database: power cuts");
        self.recover();
    }

    /// Lets the first process that opens the database apply the journals to the files.
    pub(super) fn recover(&mut self) {
        self.machine.borrow_mut().recovering = true;
        for attempt in 0.. {
            let last = attempt > 2;
            self.machine.borrow_mut().start(0);
            {
                let mut machine = self.machine.borrow_mut();
                machine.processes[0].steps_left =
                    (!last && self.rng.chance(330)).then(|| self.rng.below(12) as u32);
                if last {
                    (machine.syncs_fail, machine.refusals) = (0, 0);
                }
            }
            let seats = self.machine.borrow().logs.len();
            let logs: Vec<DatabaseJournal> = (0..seats)
                .map(|seat| DatabaseJournal::of_recovery(&self.machine, 0, seat))
                .collect();
            let (disk, planted) = (self.disk(0), self.planted);
            self.shared_index().invalidate();
            let recovered = as_process(|| recover(&logs, &disk, planted));
            self.machine.borrow_mut().die(0);
            match recovered {
                Some(Ok(recovered)) => {
                    self.coverage
                        .add("database: records done again", recovered.records);
                    self.coverage.hit("database: recoveries");
                    self.tell(4, recovered.records, || format!("recovered: {recovered:?}"));
                    self.check_files();
                    self.machine.borrow_mut().has_failed = false;
                    self.begin(recovered.next);
                    break;
                }
                Some(Err(error)) if last => self.fail_recovery(&error),
                // A recovery that was cut off is repeated, also after a loss of power in the middle.
                _ => {
                    self.coverage.hit("database: recoveries cut off");
                    if self.rng.chance(500) {
                        self.machine.borrow_mut().lose_power();
                    }
                }
            }
        }
        self.machine.borrow_mut().recovering = false;
    }
}
