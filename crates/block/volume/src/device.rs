//! A volume as a block device: its disk, timed.

use netram_block::{BlockDevice, DeviceError, DeviceGeometry, PendingWrite};

use crate::metrics::DeviceCall;
use crate::volume::Volume;

impl BlockDevice for Volume {
    fn geometry(&self) -> DeviceGeometry {
        self.disk().geometry()
    }

    fn probe(&self) {
        self.disk().probe();
        // Takes the journal's lock.
        let _ = self.journal().status();
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let _timed = self.times().begin(DeviceCall::Read);
        self.disk().read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError> {
        let _timed = self.times().begin(DeviceCall::Write);
        self.disk().write(offset, bytes)
    }

    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        let _timed = self.times().begin(DeviceCall::Zero);
        self.disk().zero(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        let _timed = self.times().begin(DeviceCall::Zero);
        self.disk().zero(offset, length)
    }

    fn wait(&self, pending: PendingWrite) -> Result<(), DeviceError> {
        let _timed = self.times().begin(DeviceCall::Wait);
        self.disk().wait(pending)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let _timed = self.times().begin(DeviceCall::Flush);
        self.disk().flush()
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        self.disk().extents(offset, length, each)
    }
}
