//! The disk, as one process sees it.

use std::rc::Rc;

use netram_proto::failure::{CallError, SystemCall};
use netram_proto::port::IoError;
use netram_sqlite_machine::{Beneath, Role};

use super::machine::{Shared, step};

pub(super) struct Disk {
    machine: Shared,
    process: usize,
}

/// Nobody else settles.
pub(super) struct Alone(Shared);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.borrow_mut().settling = false;
    }
}

fn opening(error: IoError) -> CallError {
    error.of(SystemCall::Open)
}

impl Disk {
    pub(super) fn new(machine: &Shared, process: usize) -> Disk {
        let machine = Rc::clone(machine);
        Disk { machine, process }
    }

    fn step(&self) {
        step(&self.machine, self.process);
    }

    fn may(&self) -> Result<(), IoError> {
        self.step();
        match self.machine.borrow_mut().refuses() {
            true => Err(IoError::EMFILE),
            false => Ok(()),
        }
    }

    fn synced(&self, role: Option<Role>) -> Result<(), CallError> {
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
            // No death here, before it is told: of that whoever had the files open is told by the system
            // (docs/sqlite.md).
            return Err(IoError::EIO.of(SystemCall::Sync));
        }
        self.step();
        Ok(())
    }
}

impl Beneath for Disk {
    type Alone = Alone;
    type Held = ();

    fn alone(&self) -> Result<Alone, IoError> {
        self.may()?;
        let mut machine = self.machine.borrow_mut();
        // Another one settles, in the middle of which this is: whoever would wait for it here would wait for
        // ever.
        if machine.settling {
            return Err(IoError::EINTR);
        }
        machine.settling = true;
        Ok(Alone(Rc::clone(&self.machine)))
    }

    fn dead(&self, slot: usize) -> Option<()> {
        let machine = self.machine.borrow();
        let alive = machine.processes.get(slot).is_some_and(|process| process.alive);
        (!alive).then_some(())
    }

    fn sync(&self) -> Result<(), CallError> {
        self.synced(Some(Role::Main))?;
        for role in [Role::Wal, Role::Journal] {
            self.may().map_err(opening)?;
            self.synced(Some(role))?;
        }
        self.synced(None)
    }

    fn distrust_cache(&self) -> Result<(), IoError> {
        for role in Role::ALL {
            self.may()?;
            let mut machine = self.machine.borrow_mut();
            let fails = machine.sync_fails();
            machine.files.sync(role, fails);
            if role == Role::Main || machine.obeys {
                machine.files.drop_cache(role);
            }
            if role != Role::Main {
                machine.files.rewrite(role);
            }
        }
        Ok(())
    }

    fn start(&self) -> Result<u64, IoError> {
        Ok(self.machine.borrow().start)
    }

    fn set_start(&self, start: u64) -> Result<(), CallError> {
        self.may().map_err(opening)?;
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

    fn exists(&self, role: Role) -> Result<bool, IoError> {
        Ok(self.machine.borrow().files.bytes(role).is_some())
    }

    fn write(&self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.may()?;
        self.machine
            .borrow_mut()
            .files
            .write(role, offset as usize, bytes);
        Ok(())
    }

    fn resize(&self, role: Role, size: u64) -> Result<(), IoError> {
        self.may()?;
        self.machine.borrow_mut().files.resize(role, size as usize);
        Ok(())
    }

    fn remove(&self, role: Role) -> Result<(), IoError> {
        self.may()?;
        self.machine.borrow_mut().files.remove(role);
        Ok(())
    }
}
