//! The calls of /dev/fuse that have no other interface. The crate's other unsafe modules are `ring/area` and
//! `ring/queue`.
#![allow(unsafe_code, reason = "ioctl has no other interface")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

/// Type of FUSE's calls in linux/fuse.h.
const FUSE: u8 = 229;
const CLONE: Opcode = opcode::read::<u32>(FUSE, 0);
const BACKING_OPEN: Opcode = opcode::write::<BackingMap>(FUSE, 1);
const BACKING_CLOSE: Opcode = opcode::write::<u32>(FUSE, 2);

/// `struct fuse_backing_map` of linux/fuse.h.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

const _: () = assert!(size_of::<BackingMap>() == 16);

/// Makes the newly opened `device` another end of the session of `session`.
pub(crate) fn clone_session(device: impl AsFd, session: impl AsFd) -> rustix::io::Result<()> {
    let number = session.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: this call reads one `u32`, although its number says that it would write it.
    let call = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: the driver only reads the value, which lives until the call returns; any other driver refuses
    // the call.
    unsafe { ioctl(device, call) }
}

/// Registers an open file for the kernel to read and write by itself. Returns its number.
pub(crate) fn open_backing(session: impl AsFd, file: impl AsFd) -> rustix::io::Result<u32> {
    let map = BackingMap {
        fd: file.as_fd().as_raw_fd(),
        flags: 0,
        padding: 0,
    };
    // SAFETY: the call reads one `fuse_backing_map`, whose layout `BackingMap` has; any other driver refuses
    // it.
    unsafe { ioctl(session, OpenBacking(map)) }
}

/// Ends a registration. Files that are open by it stay open.
pub(crate) fn close_backing(session: impl AsFd, number: u32) -> rustix::io::Result<()> {
    // SAFETY: this call reads one `u32`.
    let call = unsafe { Setter::<BACKING_CLOSE, u32>::new(number) };
    // SAFETY: the driver only reads the value, which lives until the call returns; any other driver refuses
    // the call.
    unsafe { ioctl(session, call) }
}

/// A call whose result is its return value.
struct OpenBacking(BackingMap);

// SAFETY: the opcode reads one `fuse_backing_map`, and the returned number is its whole answer.
unsafe impl Ioctl for OpenBacking {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        BACKING_OPEN
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<u32> {
        u32::try_from(output).map_err(|_| Errno::RANGE)
    }
}
