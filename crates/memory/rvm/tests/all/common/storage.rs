//! The machine's files as storage of recoverable memory.

use netram_proto::port::{IoError, StorageFile};
use netram_proto::time::Time;
use netram_rvm::{
    Placement, RegionMemory, SegmentAllocation, SegmentIdentity, SegmentStamp, SegmentStorage, StampId,
};

use super::{Contents, Machine, MachineFile, NOT_SUPPORTED, TABLE};

/// The machine's files, with the segment table's file opened.
pub(crate) struct MachineStorage {
    machine: Machine,
    table: MachineFile,
}

impl Machine {
    pub(crate) fn storage(&self) -> MachineStorage {
        let table = MachineFile {
            machine: self.clone(),
            path: TABLE.to_owned(),
        };
        MachineStorage {
            machine: self.clone(),
            table,
        }
    }
}

impl SegmentStorage for MachineStorage {
    type File = MachineFile;

    fn name(&self, path: &str) -> Result<String, IoError> {
        match self.machine.state().files.contains_key(path) {
            true => Ok(path.to_owned()),
            false => Err(IoError::ENOENT),
        }
    }

    fn create_segment(&self, path: &str, length: u64, _: SegmentAllocation) -> Result<(), IoError> {
        let state = &mut *self.machine.state();
        if !state.operate() {
            return Err(IoError::EIO);
        }
        let zeros = vec![0; length as usize];
        let contents = Contents {
            durable: zeros.clone(),
            current: zeros,
            ..Contents::default()
        };
        if state.files.contains_key(path) {
            return Err(IoError { errno: 17 });
        }
        state.files.insert(path.to_owned(), contents);
        Ok(())
    }

    fn open_segment(&self, path: &str) -> Result<MachineFile, IoError> {
        self.name(path)?;
        Ok(MachineFile {
            machine: self.machine.clone(),
            path: path.to_owned(),
        })
    }

    fn map(
        &self,
        file: &MachineFile,
        offset: u64,
        length: usize,
        placement: Placement,
    ) -> Result<RegionMemory, IoError> {
        if placement != Placement::ANYWHERE {
            return Err(NOT_SUPPORTED);
        }
        let mut bytes = vec![0; length].into_boxed_slice();
        file.read_at(offset, &mut bytes)?;
        Ok(RegionMemory::from_bytes(bytes))
    }

    fn identity(&self, file: &MachineFile) -> Result<SegmentIdentity, IoError> {
        Ok(self.machine.state().files[&file.path].identity)
    }

    fn assign_identity(&self, file: &MachineFile) -> Result<SegmentIdentity, IoError> {
        let state = &mut *self.machine.state();
        state.identities += 1;
        let identity = [state.identities; 16];
        state.files.get_mut(&file.path).unwrap().identity = identity;
        Ok(identity)
    }

    fn stamp(&self, file: &MachineFile, _: &str) -> Result<Option<SegmentStamp>, IoError> {
        Ok(self.machine.state().files[&file.path].stamp.clone())
    }

    /// Like a file system: a stamp during which the machine crashes may have been left or not.
    fn leave_stamp(&self, file: &MachineFile, _: &str, stamp: &SegmentStamp) -> Result<bool, IoError> {
        let state = &mut *self.machine.state();
        let works = state.operate();
        if let Some(error) = state.segments_fail {
            return Err(error);
        }
        let met = state.crash_at == Some(state.operations - 1) && stamp.id[0].is_multiple_of(2);
        if works || met {
            state.files.get_mut(&file.path).unwrap().stamp = Some(stamp.clone());
        }
        match works {
            true => Ok(true),
            false => Err(IoError::EIO),
        }
    }

    fn draw_stamp(&self) -> Result<StampId, IoError> {
        let state = &mut *self.machine.state();
        state.stamps += 1;
        let mut id = [state.machine; 16];
        id[..8].copy_from_slice(&state.stamps.to_le_bytes());
        Ok(id)
    }

    fn number(&self, file: &MachineFile) -> Result<u64, IoError> {
        Ok(self.machine.state().files[&file.path].number)
    }

    fn table(&self) -> &MachineFile {
        &self.table
    }

    fn now(&self) -> Time {
        // Called around steps and waits: at times it lets other threads run.
        let (asked, operations) = {
            let state = &mut *self.machine.state();
            state.asked += 1;
            (state.asked, state.operations)
        };
        if asked.is_multiple_of(23) {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        Time(operations)
    }
}
