//! Commands to the kernel's ublk by io_uring, and the memory in which the driver describes requests.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::ublk::wire::{self, ControlArguments, DESCRIPTOR_BYTES};

/// Commands to the driver's control device: one at a time, each waited for.
pub(crate) struct ControlRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl ControlRing {
    pub(crate) fn new() -> io::Result<ControlRing> {
        let ring = IoUring::builder().build(2)?;
        Ok(ControlRing { ring })
    }

    /// Executes `operation` in the driver, which reads and writes `buffer`. Returns the driver's result or
    /// error.
    pub(crate) fn call(
        &mut self,
        control: &File,
        operation: u32,
        head: ControlArguments,
        buffer: &mut [u8],
    ) -> io::Result<i32> {
        // The driver's own copy, which must live as long as the driver uses it, whatever happens to this
        // call.
        let shared = Box::leak(Box::<[u8]>::from(&*buffer));
        let length = u16::try_from(shared.len()).expect("a few hundred bytes");
        let start: *mut [u8] = shared;
        let command = wire::control(head, start.cast::<u8>() as u64, length);
        let entry = opcode::UringCmd80::new(types::Fd(control.as_raw_fd()), operation)
            .cmd(command)
            .build();
        // SAFETY: `control` is open until the command has ended. The only address in the command is of memory
        // without other references, with its length, and is freed only after the driver has finished.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring is empty");
        // On an error the buffer stays leaked: the driver may still write there.
        let said = self.wait()?;
        // SAFETY: `start` came from a box, and the driver has answered, so it has no other user any more.
        let shared = unsafe { Box::from_raw(start) };
        buffer.copy_from_slice(&shared);
        match said {
            0.. => Ok(said),
            _ => Err(io::Error::from_raw_os_error(-said)),
        }
    }

    fn wait(&mut self) -> io::Result<i32> {
        loop {
            if let Some(answer) = self.ring.completion().next() {
                return Ok(answer.result());
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => (),
            }
        }
    }
}

/// Ring for the requests of one queue, for use by the thread that created it.
pub(crate) struct QueueRing {
    ring: IoUring,
}

impl QueueRing {
    /// Creates a ring for up to `depth` requests.
    pub(crate) fn new(depth: u16) -> io::Result<QueueRing> {
        // Completions are delivered only when this thread asks for them. Otherwise each one would interrupt
        // its other waits.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(depth.into())?;
        Ok(QueueRing { ring })
    }

    /// Queues the command `operation` for request `tag`: it reports `result`, if it is an answer, and fetches
    /// the next request. Sent with the next submission.
    pub(crate) fn push(
        &mut self,
        device: &File,
        operation: u32,
        queue: u16,
        tag: u16,
        result: i32,
    ) -> io::Result<()> {
        let entry = opcode::UringCmd16::new(types::Fd(device.as_raw_fd()), operation)
            .cmd(wire::io(queue, tag, result))
            .build()
            .user_data(tag.into());
        if self.ring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: such a command contains no address. The caller keeps the device open as long as this ring.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Sends the queued commands.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                sent => return sent.map(drop),
            }
        }
    }

    /// Sends the queued commands, and waits until a request has arrived.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Collects the tags of ended commands, with the driver's results.
    pub(crate) fn ended(&mut self, into: &mut Vec<(u16, i32)>) {
        // An entry's user data is the tag passed with it.
        into.extend(
            self.ring
                .completion()
                .map(|entry| (entry.user_data() as u16, entry.result())),
        );
    }
}

/// Descriptions of a queue's requests, written by the driver and only read by this process.
pub(crate) struct Descriptors {
    start: NonNull<c_void>,
    bytes: usize,
    depth: u16,
}

impl Descriptors {
    /// Maps the descriptions of queue `queue`, which has `depth` requests.
    pub(crate) fn map(device: &File, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let (offset, bytes) = wire::descriptors(queue, depth, rustix::param::page_size());
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                device.as_fd(),
                offset,
            )
        }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Descriptors { start, bytes, depth })
    }

    /// A copy of the description of request `tag`. It is complete once the request's command has ended.
    pub(crate) fn read(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        assert!(tag < self.depth);
        let first = self.start.cast::<[u8; DESCRIPTOR_BYTES]>().as_ptr();
        let at = first.wrapping_add(usize::from(tag));
        // SAFETY: `depth` descriptions lie in the mapping, which `self` owns, and the tag is below that.
        // Bytes may be read wherever they are, and the driver's writes come before the end of the command.
        unsafe { at.read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping is `self`'s own, and no reference into it exists.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
