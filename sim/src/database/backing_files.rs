//! The disk as one process of a database sees it.

use std::rc::Rc;

use netram_proto::failure::{CallError, SystemCall};
use netram_proto::port::IoError;
use netram_sqlite_machine::{BackingFiles, FileRole};

use super::machine::{MachineHandle, step};

pub(super) struct ProcessDisk {
    machine: MachineHandle,
    process: usize,
}

/// Held while this process checkpoints, so that no other does.
pub(super) struct SimCheckpointGuard(MachineHandle);

impl Drop for SimCheckpointGuard {
    fn drop(&mut self) {
        self.0.borrow_mut().checkpointing = false;
    }
}

fn open_failure(error: IoError) -> CallError {
    error.of(SystemCall::Open)
}

impl ProcessDisk {
    pub(super) fn new(machine: &MachineHandle, process: usize) -> ProcessDisk {
        let machine = Rc::clone(machine);
        ProcessDisk { machine, process }
    }

    fn step(&self) {
        step(&self.machine, self.process);
    }

    fn admit_call(&self) -> Result<(), IoError> {
        self.step();
        match self.machine.borrow_mut().refuses() {
            true => Err(IoError::EMFILE),
            false => Ok(()),
        }
    }

    fn synced(&self, role: Option<FileRole>) -> Result<(), CallError> {
        self.step();
        let fails = {
            let mut machine = self.machine.borrow_mut();
            let fails = machine.sync_fails();
            match role {
                Some(role) => machine.files.sync(role, fails),
                None if fails => (),
                None => machine.files.sync_names(),
            }
            fails
        };
        if fails {
            // The process does not die here, before the failure is reported: the system reports it to any
            // process that had the file open (docs/design/sqlite.md).
            return Err(IoError::EIO.of(SystemCall::Sync));
        }
        self.step();
        Ok(())
    }
}

impl BackingFiles for ProcessDisk {
    type CheckpointGuard = SimCheckpointGuard;
    type DeadSlot = ();

    fn lock_checkpoint(&self) -> Result<SimCheckpointGuard, IoError> {
        self.admit_call()?;
        let mut machine = self.machine.borrow_mut();
        // Another process is checkpointing, and this code runs in the middle of it. Waiting for it here would
        // never end.
        if machine.checkpointing {
            return Err(IoError::EINTR);
        }
        machine.checkpointing = true;
        Ok(SimCheckpointGuard(Rc::clone(&self.machine)))
    }

    fn claim_dead_slot(&self, slot: usize) -> Option<()> {
        let machine = self.machine.borrow();
        let alive = machine.processes.get(slot).is_some_and(|process| process.alive);
        (!alive).then_some(())
    }

    fn sync(&self) -> Result<(), CallError> {
        self.synced(Some(FileRole::Main))?;
        for role in [FileRole::Wal, FileRole::Journal] {
            self.admit_call().map_err(open_failure)?;
            self.synced(Some(role))?;
        }
        self.synced(None)
    }

    fn drop_cache(&self) -> Result<(), IoError> {
        for role in FileRole::ALL {
            self.admit_call()?;
            let mut machine = self.machine.borrow_mut();
            let fails = machine.sync_fails();
            machine.files.sync(role, fails);
            if role == FileRole::Main || machine.drops_cache {
                machine.files.drop_cache(role);
            }
            if role != FileRole::Main {
                machine.files.rewrite(role);
            }
        }
        Ok(())
    }

    fn start(&self) -> Result<u64, IoError> {
        Ok(self.machine.borrow().start)
    }

    fn set_start(&self, start: u64) -> Result<(), CallError> {
        self.admit_call().map_err(open_failure)?;
        if self.machine.borrow_mut().sync_fails() {
            return Err(IoError::EIO.of(SystemCall::Sync));
        }
        {
            let mut machine = self.machine.borrow_mut();
            machine.start = machine.start.max(start);
        }
        self.step();
        Ok(())
    }

    fn exists(&self, role: FileRole) -> Result<bool, IoError> {
        Ok(self.machine.borrow().files.bytes(role).is_some())
    }

    fn write(&self, role: FileRole, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.admit_call()?;
        self.machine
            .borrow_mut()
            .files
            .write(role, offset as usize, bytes);
        Ok(())
    }

    fn resize(&self, role: FileRole, size: u64) -> Result<(), IoError> {
        self.admit_call()?;
        self.machine.borrow_mut().files.resize(role, size as usize);
        Ok(())
    }

    fn remove(&self, role: FileRole) -> Result<(), IoError> {
        self.admit_call()?;
        self.machine.borrow_mut().files.remove(role);
        Ok(())
    }
}
