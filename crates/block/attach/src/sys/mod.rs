//! The loop driver's calls, and [`ring`]. This is the crate's only unsafe
//! module.
#![allow(
    unsafe_code,
    reason = "neither ioctl, io_uring nor a driver's memory has another interface"
)]

pub(crate) mod ring;

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::ioctl::{Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;

/// The device is released when its last user closes it.
const AUTOCLEAR: u32 = 4;
/// The file is accessed without its page cache, because the loop device has its own.
const DIRECT_IO: u32 = 16;
const READ_ONLY: u32 = 1;

const NAME_BYTES: usize = 64;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232);
const _: () = assert!(size_of::<Config>() == 304);

/// Configuration of a loop device.
#[derive(Debug)]
pub(crate) struct LoopConfig<'a> {
    /// 512 or 4096.
    pub(crate) block_bytes: u32,
    pub(crate) read_only: bool,
    /// Name that `losetup` shows; cut to 63 bytes.
    pub(crate) name: &'a str,
}

/// Binds the free loop device `target` to `file`.
pub(crate) fn configure(target: &File, file: &File, config: &LoopConfig<'_>) -> rustix::io::Result<()> {
    let mut file_name = [0; NAME_BYTES];
    let length = config.name.len().min(NAME_BYTES - 1);
    file_name[..length].copy_from_slice(&config.name.as_bytes()[..length]);
    let read_only = if config.read_only { READ_ONLY } else { 0 };
    let raw = Config {
        fd: file.as_raw_fd().cast_unsigned(),
        block_size: config.block_bytes,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: AUTOCLEAR | DIRECT_IO | read_only,
            file_name,
            crypt_name: [0; NAME_BYTES],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: this call reads one `loop_config`, whose layout `Config` has (its size is asserted above).
    let call = unsafe { Setter::<LOOP_CONFIGURE, Config>::new(raw) };
    // SAFETY: the driver only reads the value, which lives until the call returns; any other driver refuses
    // the call.
    unsafe { ioctl(target, call) }
}

/// Makes a loop device as large as its file.
pub(crate) fn set_capacity(device: &File) -> rustix::io::Result<()> {
    // SAFETY: the call takes no argument and touches no memory of ours; any other driver refuses it.
    let call = unsafe { NoArg::<LOOP_SET_CAPACITY>::new() };
    // SAFETY: as above.
    unsafe { ioctl(device, call) }
}

/// Number of a free loop device, from the control device.
pub(crate) fn free_number(control: &File) -> rustix::io::Result<u32> {
    // SAFETY: the call takes no argument and touches no memory of ours.
    unsafe { ioctl(control, GetFree) }
}

/// A call whose result is its return value.
struct GetFree;

// SAFETY: the opcode takes no argument, and the returned number is its whole answer.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<u32> {
        u32::try_from(output).map_err(|_| rustix::io::Errno::RANGE)
    }
}
