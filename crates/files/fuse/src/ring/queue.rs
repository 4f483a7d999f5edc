//! One place in a core's queue.
#![allow(unsafe_code, reason = "commands hand addresses to the kernel")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use super::area::{self, RingArea};
use crate::device::FuseDevice;
use crate::wire::reply::reply_header;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Byte of a submission at which it has a number of buffers, which `io-uring` does not set for such commands.
const COUNT_AT: usize = 24;

/// A thread's place in the queue of a core: it receives one request at a time, and replies.
pub(crate) struct QueuePlace {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: Arc<FuseDevice>,
    area: RingArea,
    /// Addresses and lengths of the area's parts, which the kernel reads when the place is taken.
    parts: Box<[(u64, u64); 2]>,
    queue: u16,
    /// Id of the request that this process has. While there is none, the kernel uses the area.
    held: Option<u64>,
}

impl QueuePlace {
    /// Takes a place in the queue `queue`, for requests and replies with up to `payload_bytes`.
    pub(crate) fn take(device: Arc<FuseDevice>, queue: u16, payload_bytes: usize) -> io::Result<QueuePlace> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(1)?;
        let area = RingArea::new(payload_bytes);
        let parts = Box::new(area.parts());
        let mut place = QueuePlace {
            ring,
            device,
            area,
            parts,
            queue,
            held: None,
        };
        place.push(REGISTER, 0)?;
        place.submit(0)?;
        Ok(place)
    }

    /// The next request. `None`: the file system is gone.
    pub(crate) fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            if let Some(said) = self.ring.completion().next() {
                match said.result() {
                    0.. => break,
                    error => return gone(Errno::from_raw_os_error(-error)),
                }
            }
            self.submit(1)?;
        }
        // SAFETY: the only command has ended.
        let bytes = unsafe { self.area.bytes() };
        let Some((commit, request)) = area::request(bytes) else {
            return Err(io::Error::other(
                "the kernel sent a FUSE request of invalid length",
            ));
        };
        self.held = Some(commit);
        Ok(Some(request))
    }

    /// Replies to the request that was received last. The reply is sent with the next wait.
    pub(crate) fn reply(&mut self, unique: u64, result: Result<&[u8], Errno>) -> io::Result<()> {
        let Some(commit) = self.held.take() else {
            return Err(io::Error::other("there is no request"));
        };
        let (errno, body): (i32, &[u8]) = match result {
            Ok(body) => (0, body),
            Err(errno) => (errno.raw_os_error(), &[]),
        };
        // SAFETY: a request was held, so no command is under way.
        let bytes = unsafe { self.area.bytes() };
        if !area::reply(bytes, &reply_header(unique, errno, body.len()), body) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.push(COMMIT_AND_FETCH, commit)
    }

    /// Queues a command.
    fn push(&mut self, operation: u32, commit: u64) -> io::Result<()> {
        let registers = operation == REGISTER;
        let mut command = [0; 80];
        // Flags, the id of what is committed, the queue.
        command[8..16].copy_from_slice(&commit.to_ne_bytes());
        command[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let descriptor = types::Fd(self.device.as_fd().as_raw_fd());
        let mut entry = opcode::UringCmd80::new(descriptor, operation)
            .cmd(command)
            .addr(registers.then_some(self.parts.as_ptr() as u64))
            .build();
        if registers {
            const { assert!(size_of::<squeue::Entry128>() == 128) };
            let count = (&raw mut entry).cast::<u8>().wrapping_add(COUNT_AT).cast::<u32>();
            // SAFETY: an entry is the kernel's `struct io_uring_sqe`, 128 bytes of integers, which has its
            // 32-bit `len` at byte 24.
            unsafe { count.write_unaligned(2) };
        }
        // SAFETY: the device and the area live as long as the process, or until the command has ended. The
        // kernel reads the parts while it takes the command, and this value has them until then.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Sends what is queued, and waits for `wanted` results.
    fn submit(&self, wanted: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wanted) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

/// The end of a file system, or another error.
fn gone<T>(errno: Errno) -> io::Result<Option<T>> {
    match errno {
        Errno::NOTCONN | Errno::NODEV | Errno::CONNABORTED | Errno::CANCELED => Ok(None),
        _ => Err(errno.into()),
    }
}
