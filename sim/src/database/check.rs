//! State that a database must have after any death, refusal or loss of power.

use netram_sqlite_machine::{DatabaseRecoverError, FileRole};

use super::World;
use super::program::{ProgramOp, run_op};
use crate::check::fail;

fn byte(file: Option<&Vec<u8>>, at: usize) -> Option<u8> {
    file.and_then(|bytes| bytes.get(at)).copied()
}

impl World {
    /// Checks after a recovery that every synced byte is there, or a later one.
    pub(super) fn check_files(&self) {
        let machine = self.machine.borrow();
        for role in FileRole::ALL {
            let story = &machine.file_versions[role as usize];
            let synced = machine.synced[role as usize];
            let later = &story[synced..];
            let now = machine.files.bytes(role);
            for at in 0..super::SIZE + 8 {
                let found = byte(now, at);
                let mut may = later.iter().any(|file| byte(file.as_ref(), at) == found);
                // The file was made longer, and the new part was lost.
                may |= later.len() > 1 && found == Some(0);
                if !may {
                    let was = byte(story[synced].as_ref(), at);
                    let said =
                        format!("byte {at} of the database's {role:?} is {found:?}, and {was:?} was synced");
                    drop(machine);
                    fail(5, said);
                }
            }
        }
    }

    /// Checks that a disk counts as failed only after a failed sync.
    pub(super) fn check_failed(&self) {
        if self.shared_index().has_failed() && !self.machine.borrow().has_failed {
            fail(
                17,
                String::from("no sync failed, yet every process reports a failed disk"),
            );
        }
    }

    pub(super) fn fail_recovery(&self, error: &DatabaseRecoverError) -> ! {
        fail(0, format!("recovery fails without any fault: {error}"));
    }

    /// Checks the database without further faults: each process that writes and syncs is served, by journals
    /// as far as there are some, and its bytes survive one more loss of power.
    pub(super) fn quiesce(&mut self) {
        (self.profile.kills, self.profile.sync_failures) = (0, 0);
        (self.profile.refusals, self.profile.journals_break) = (0, 0);
        {
            let mut machine = self.machine.borrow_mut();
            (machine.syncs_fail, machine.refusals) = (0, 0);
        }
        let mut sat = 0;
        for process in 0..self.profile.processes {
            if self.writers[process].is_none() {
                self.join(process);
            }
            let Some(member) = self.writers[process].clone() else {
                fail(0, format!("process {process} cannot open the database"));
            };
            sat += usize::from(run_op(
                &self.machine,
                &member,
                process,
                ProgramOp::TakeJournalSlot,
            ));
            for role in FileRole::ALL {
                let value = process as u8 + 1;
                let written = run_op(
                    &self.machine,
                    &member,
                    process,
                    ProgramOp::Write(role, process * 8, 8, value),
                );
                if !written || !run_op(&self.machine, &member, process, ProgramOp::Sync(role)) {
                    fail(0, format!("process {process} cannot sync {role:?}"));
                }
            }
        }
        let seats = self.machine.borrow().logs.len().min(self.profile.processes);
        if sat != seats {
            fail(
                0,
                format!("{sat} processes found a journal, and {seats} are there"),
            );
        }
        self.writers.iter_mut().for_each(|member| *member = None);
        self.machine.borrow_mut().lose_power();
        self.shared_index().invalidate();
        self.recover();
    }
}
