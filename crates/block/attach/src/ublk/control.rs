//! Commands about a device: add, start, hand over, stop.

use std::fs::{File, OpenOptions};
use std::io;

use netram_block::SECTOR_BYTES;
use rustix::io::Errno;

use super::wire::{self, ControlArguments, FEATURES_BYTES, INFO_BYTES, UblkInfo, UblkParameters};
use super::{NEEDED, UblkError};
use crate::sys::ring::ControlRing;

const CONTROL: &str = "/dev/ublk-control";

/// Connection to the driver's control device.
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

    /// Features of the driver. This query is a feature itself.
    pub(super) fn features(&mut self) -> Result<u64, UblkError> {
        let mut bytes = [0; FEATURES_BYTES];
        let head = ControlArguments { device: 0, data: 0 };
        self.call(wire::GET_FEATURES, head, &mut bytes)
            .map_err(|_| UblkError::Old)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Creates a device that is not visible yet; returns its actual settings.
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
        // The first error says more than one of this call.
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

    /// Starts the block device. Every request must have a fetch command by now.
    pub(super) fn start(&mut self, device: u32) -> Result<(), UblkError> {
        self.plain(wire::START, device, std::process::id().into())
            .map_err(refused("start the device"))
    }

    /// Begins to give the device another server. `false`: the former one is not gone yet.
    pub(super) fn begin_recovery(&mut self, device: u32) -> Result<bool, UblkError> {
        match self.plain(wire::START_RECOVERY, device, 0) {
            Ok(()) => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(false),
            Err(error) => Err(refused("take another server")(error)),
        }
    }

    /// Lets requests continue, beginning with those that waited. Every request must have a fetch command by
    /// now.
    pub(super) fn end_recovery(&mut self, device: u32) -> Result<(), UblkError> {
        self.plain(wire::END_RECOVERY, device, std::process::id().into())
            .map_err(refused("go on with another server"))
    }

    /// Stops the block device: later requests fail, and its server has no more to fetch.
    pub(super) fn stop(&mut self, device: u32) -> Result<(), UblkError> {
        self.plain(wire::STOP, device, 0)
            .map_err(refused("stop the device"))
    }

    /// Removes the device, stopping it first. Its number stays taken until no process has it open.
    pub(super) fn delete(&mut self, device: u32) -> Result<(), UblkError> {
        let deleted = match self.plain(wire::DELETE_LATER, device, 0) {
            // Before Linux 6.7 this waits for all processes that have the device open.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                self.plain(wire::DELETE, device, 0)
            }
            deleted => deleted,
        };
        deleted.map_err(refused("remove the device"))
    }

    /// Gives a started device another size.
    pub(super) fn resize(&mut self, device: u32, bytes: u64) -> Result<(), UblkError> {
        // Drivers without resize may take the command for another one.
        match self.features()? & wire::CAN_RESIZE {
            0 => Err(refused("make the device larger")(io::Error::new(
                io::ErrorKind::Unsupported,
                "Linux before 6.16 does not support it",
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
