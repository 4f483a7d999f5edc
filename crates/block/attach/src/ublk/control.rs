//! Commands about a device: add, start, hand over, stop.

use std::fs::{File, OpenOptions};
use std::io;

use netram_block::SECTOR_BYTES;
use rustix::io::Errno;

use super::wire::{self, ControlArguments, FEATURES_BYTES, INFO_BYTES, UblkInfo, UblkParameters};
use super::{NEEDED, UblkError};
use crate::sys::ring::ControlRing;

const CONTROL: &str = "/dev/ublk-control";

/// The driver's ear.
pub(super) struct UblkControl {
    file: File,
    ring: ControlRing,
}

impl UblkControl {
    pub(super) fn open() -> Result<UblkControl, UblkError> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL);
        let file = file
            .map_err(|error| io::Error::new(error.kind(), format!("{CONTROL}: {error}")))
            .map_err(UblkError::Missing)?;
        let ring = ControlRing::new()
            .map_err(|error| io::Error::new(error.kind(), format!("io_uring: {error}")))
            .map_err(UblkError::Missing)?;
        Ok(UblkControl { file, ring })
    }

    /// What the driver can do; that it can be asked for this is a feature itself.
    pub(super) fn features(&mut self) -> Result<u64, UblkError> {
        let mut bytes = [0; FEATURES_BYTES];
        let head = ControlArguments { device: 0, data: 0 };
        self.call(wire::GET_FEATURES, head, &mut bytes)
            .map_err(|_| UblkError::Old)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Makes a device, which nobody sees yet: what has become of the wish.
    pub(super) fn add(&mut self, wanted: &UblkInfo) -> Result<UblkInfo, UblkError> {
        let mut bytes = wanted.encode();
        let head = ControlArguments {
            device: wanted.device,
            data: 0,
        };
        self.call(wire::ADD, head, &mut bytes)
            .map_err(refused("make a device"))?;
        let made = UblkInfo::decode(&bytes);
        if made.features & NEEDED & wanted.features == NEEDED & wanted.features {
            return Ok(made);
        }
        // The error that comes first says more than one of this.
        let _ = self.delete(made.device);
        Err(UblkError::Old)
    }

    pub(super) fn describe(&mut self, device: u32, parameters: &UblkParameters) -> Result<(), UblkError> {
        let mut bytes = parameters.encode();
        let head = ControlArguments { device, data: 0 };
        self.call(wire::SET_PARAMETERS, head, &mut bytes)
            .map(drop)
            .map_err(refused("describe the device"))
    }

    pub(super) fn info(&mut self, device: u32) -> Result<UblkInfo, UblkError> {
        let mut bytes = [0; INFO_BYTES];
        self.call(wire::GET_INFO, ControlArguments { device, data: 0 }, &mut bytes)
            .map_err(refused("tell of the device"))?;
        Ok(UblkInfo::decode(&bytes))
    }

    /// Makes a block device of it. All its requests must be fetched for by now.
    pub(super) fn start(&mut self, device: u32) -> Result<(), UblkError> {
        self.plain(wire::START, device, std::process::id().into())
            .map_err(refused("start the device"))
    }

    /// Begins to give the device another server. `false`: the one before is not gone for long enough.
    pub(super) fn begin_recovery(&mut self, device: u32) -> Result<bool, UblkError> {
        match self.plain(wire::START_RECOVERY, device, 0) {
            Ok(()) => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(false),
            Err(error) => Err(refused("take another server")(error)),
        }
    }

    /// Lets requests go on, those that wait first. All must be fetched for by now.
    pub(super) fn end_recovery(&mut self, device: u32) -> Result<(), UblkError> {
        self.plain(wire::END_RECOVERY, device, std::process::id().into())
            .map_err(refused("go on with another server"))
    }

    /// Ends the block device: what still comes fails, and its server has nothing more to fetch.
    pub(super) fn stop(&mut self, device: u32) -> Result<(), UblkError> {
        self.plain(wire::STOP, device, 0)
            .map_err(refused("stop the device"))
    }

    /// Removes the device, stopping it. Its number stays taken until nobody has it open.
    pub(super) fn delete(&mut self, device: u32) -> Result<(), UblkError> {
        let deleted = match self.plain(wire::DELETE_LATER, device, 0) {
            // Before Linux 6.7 this waits for all who have the device open.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                self.plain(wire::DELETE, device, 0)
            }
            deleted => deleted,
        };
        deleted.map_err(refused("remove the device"))
    }

    /// Gives a started device another size.
    pub(super) fn resize(&mut self, device: u32, bytes: u64) -> Result<(), UblkError> {
        // Drivers that cannot may have taken the command for another one.
        match self.features()? & wire::CAN_RESIZE {
            0 => Err(refused("make the device larger")(io::Error::new(
                io::ErrorKind::Unsupported,
                "Linux before 6.16 cannot do that",
            ))),
            _ => self
                .plain(wire::RESIZE, device, bytes / SECTOR_BYTES)
                .map_err(refused("make the device larger")),
        }
    }

    fn plain(&mut self, operation: u32, device: u32, data: u64) -> io::Result<()> {
        self.call(operation, ControlArguments { device, data }, &mut [])
            .map(drop)
    }

    fn call(&mut self, operation: u32, head: ControlArguments, buffer: &mut [u8]) -> io::Result<i32> {
        self.ring.call(&self.file, operation, head, buffer)
    }
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> UblkError {
    move |source| UblkError::Refused { what, source }
}
