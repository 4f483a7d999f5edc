//! The kernel's `userfaultfd`, which reports references to missing pages and maps pages for them.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use super::MappedMemory;

/// `UFFDIO` of linux/userfaultfd.h.
const GROUP: u8 = 0xAA;
const API: u64 = 0xAA;
/// `UFFD_USER_MODE_ONLY`: faults of system calls are not reported. Needs no privilege.
const USER_MODE_ONLY: libc::c_int = 1;
const MODE_MISSING: u64 = 1;
const MODE_WRITE_PROTECT: u64 = 2;
const PROTECT: u64 = 1;

const FAULT: u8 = 0x12;
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;
/// Flag of a fault: the page is there and write-protected.
const FAULT_PROTECTED: u64 = 2;
const MESSAGE_BYTES: usize = 32;

/// Features of a kernel: bits of `struct uffdio_api`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UffdFeatures(u64);

impl UffdFeatures {
    pub(crate) const NONE: UffdFeatures = UffdFeatures(0);
    pub(crate) const PROTECT: UffdFeatures = UffdFeatures(1);
    pub(crate) const REMAP: UffdFeatures = UffdFeatures(1 << 2);
    pub(crate) const REMOVE: UffdFeatures = UffdFeatures(1 << 3);
    pub(crate) const UNMAP: UffdFeatures = UffdFeatures(1 << 6);
    /// A missing page raises a bus error and is not reported.
    pub(crate) const SIGBUS: UffdFeatures = UffdFeatures(1 << 7);
    pub(crate) const THREAD_ID: UffdFeatures = UffdFeatures(1 << 8);
    /// Faults are reported with the exact byte instead of the page.
    pub(crate) const EXACT_ADDRESS: UffdFeatures = UffdFeatures(1 << 11);
    pub(crate) const POISON: UffdFeatures = UffdFeatures(1 << 14);
    pub(crate) const MOVE: UffdFeatures = UffdFeatures(1 << 16);

    pub(crate) const fn and(self, other: UffdFeatures) -> UffdFeatures {
        UffdFeatures(self.0 | other.0)
    }

    pub(crate) fn without(self, other: UffdFeatures) -> UffdFeatures {
        UffdFeatures(self.0 & !other.0)
    }

    pub(crate) fn has(self, other: UffdFeatures) -> bool {
        self.0 & other.0 == other.0
    }

    /// The features in both sets.
    pub(crate) fn common(self, other: UffdFeatures) -> UffdFeatures {
        UffdFeatures(self.0 & other.0)
    }
}

/// Why a `userfaultfd` cannot be opened.
#[derive(Debug)]
pub(crate) enum UffdError {
    /// The kernel has none.
    Absent,
    /// This process lacks the privilege.
    Refused(io::Error),
    Other(io::Error),
}

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UffdMessage {
    /// A thread faulted at this address and waits.
    Fault {
        address: usize,
        thread: u32,
        protected: bool,
    },
    /// The program discards this range. That happens shortly after the message is read.
    Removed { start: usize, end: usize },
    /// The program has unmapped this range.
    Unmapped { start: usize, end: usize },
    /// The program has moved this range.
    Remapped { from: usize, bytes: usize },
}

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Extent {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct UffdRegister {
    extent: Extent,
    mode: u64,
    ioctls: u64,
}

/// `uffdio_copy` and `uffdio_move`.
#[repr(C)]
struct UffdCopy {
    target: u64,
    source: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

/// `uffdio_poison`.
#[repr(C)]
struct UffdPoison {
    extent: Extent,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct UffdWriteProtect {
    extent: Extent,
    mode: u64,
}

const IOC_NEW: Opcode = opcode::none(GROUP, 0x00);
const IOC_API: Opcode = opcode::read_write::<UffdApi>(GROUP, 0x3F);
const IOC_REGISTER: Opcode = opcode::read_write::<UffdRegister>(GROUP, 0x00);
const IOC_WAKE: Opcode = opcode::read::<Extent>(GROUP, 0x02);
const IOC_COPY: Opcode = opcode::read_write::<UffdCopy>(GROUP, 0x03);
const IOC_MOVE: Opcode = opcode::read_write::<UffdCopy>(GROUP, 0x05);
const IOC_PROTECT: Opcode = opcode::read_write::<UffdWriteProtect>(GROUP, 0x06);
const IOC_POISON: Opcode = opcode::read_write::<UffdPoison>(GROUP, 0x08);

const _: () = assert!(size_of::<UffdApi>() == 24);
const _: () = assert!(size_of::<UffdRegister>() == 32);
const _: () = assert!(size_of::<UffdCopy>() == 40);
const _: () = assert!(size_of::<UffdPoison>() == 32);
const _: () = assert!(size_of::<UffdWriteProtect>() == 24);

/// A `userfaultfd`. Methods panic if the given range is outside the memory.
#[derive(Debug)]
pub(crate) struct Uffd(OwnedFd);

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Uffd {
    /// Features that the kernel offers to this process.
    pub(crate) fn offered(user_only: bool) -> Result<UffdFeatures, UffdError> {
        Uffd(descriptor(user_only)?).negotiate(UffdFeatures::NONE)
    }

    /// Opens a `userfaultfd` with these features, which must be offered.
    pub(crate) fn open(user_only: bool, features: UffdFeatures) -> Result<Uffd, UffdError> {
        let uffd = Uffd(descriptor(user_only)?);
        uffd.negotiate(features)?;
        Ok(uffd)
    }

    fn negotiate(&self, features: UffdFeatures) -> Result<UffdFeatures, UffdError> {
        let mut shake = UffdApi {
            api: API,
            features: features.0,
            ioctls: 0,
        };
        self.call(IOC_API, &mut shake)
            .map_err(|error| UffdError::Other(error.into()))?;
        Ok(UffdFeatures(shake.features))
    }

    /// Starts to report references to missing pages of the memory; with `protect` also writes to protected
    /// pages.
    pub(crate) fn register(&self, memory: &MappedMemory, protect: bool) -> io::Result<()> {
        let mut registration = UffdRegister {
            extent: extent(memory, 0, memory.bytes()),
            mode: MODE_MISSING | if protect { MODE_WRITE_PROTECT } else { 0 },
            ioctls: 0,
        };
        Ok(self.call(IOC_REGISTER, &mut registration)?)
    }

    /// Reads the next message. `None`: there is none now.
    pub(crate) fn read(&self) -> io::Result<Option<UffdMessage>> {
        let mut bytes = [0; MESSAGE_BYTES];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(MESSAGE_BYTES) => Ok(parse(&bytes)),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            // The waiting thread was interrupted.
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Maps a page atomically and wakes its waiters. Takes 1.7 µs.
    pub(crate) fn copy(&self, memory: &MappedMemory, offset: usize, page: &[u8]) -> Result<(), Errno> {
        let source = page.as_ptr() as usize;
        self.transfer(IOC_COPY, memory, offset, source, page.len())
    }

    /// Maps contiguous pages. Returns the number of bytes mapped; an attempt at the next page gives the
    /// error. Takes 1 µs per page.
    pub(crate) fn copy_run(&self, memory: &MappedMemory, offset: usize, pages: &[u8]) -> usize {
        self.transfer_run(IOC_COPY, memory, offset, pages.as_ptr() as usize, pages.len())
    }

    /// As [`Uffd::copy`], from another memory.
    pub(crate) fn copy_from(
        &self,
        memory: &MappedMemory,
        offset: usize,
        other: &MappedMemory,
        from: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        other.check(from, bytes);
        self.transfer(IOC_COPY, memory, offset, other.at(from) as usize, bytes)
    }

    /// Moves a page from another memory atomically, so that no store is lost. Takes 1.1 µs.
    pub(crate) fn take(
        &self,
        memory: &MappedMemory,
        offset: usize,
        other: &MappedMemory,
        from: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        other.check(from, bytes);
        self.transfer(IOC_MOVE, memory, offset, other.at(from) as usize, bytes)
    }

    /// Moves contiguous pages. Returns the number of bytes moved; an attempt at the next page gives the
    /// error. Takes 0.1 µs per page plus 1 µs, because other cores are interrupted once.
    pub(crate) fn take_run(
        &self,
        memory: &MappedMemory,
        offset: usize,
        other: &MappedMemory,
        from: usize,
        bytes: usize,
    ) -> usize {
        other.check(from, bytes);
        self.transfer_run(IOC_MOVE, memory, offset, other.at(from) as usize, bytes)
    }

    fn transfer(
        &self,
        call: Opcode,
        memory: &MappedMemory,
        offset: usize,
        source: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        self.call(call, &mut transfer(memory, offset, source, bytes))
    }

    fn transfer_run(
        &self,
        call: Opcode,
        memory: &MappedMemory,
        offset: usize,
        source: usize,
        bytes: usize,
    ) -> usize {
        let mut transfer = transfer(memory, offset, source, bytes);
        match self.call(call, &mut transfer) {
            Ok(()) => bytes,
            // A negative error number, if no page was transferred.
            Err(_) => usize::try_from(transfer.done).unwrap_or(0),
        }
    }

    /// Wakes threads that wait in the range, to retry their reference.
    pub(crate) fn wake(&self, memory: &MappedMemory, offset: usize, bytes: usize) -> Result<(), Errno> {
        self.call(IOC_WAKE, &mut extent(memory, offset, bytes))
    }

    /// Poisons the range: references to it raise a bus error.
    pub(crate) fn poison(&self, memory: &MappedMemory, offset: usize, bytes: usize) -> Result<(), Errno> {
        let mut poison = UffdPoison {
            extent: extent(memory, offset, bytes),
            mode: 0,
            done: 0,
        };
        self.call(IOC_POISON, &mut poison)
    }

    /// Write-protects the range: writes to it wait.
    pub(crate) fn protect(&self, memory: &MappedMemory, offset: usize, bytes: usize) -> Result<(), Errno> {
        let mut protection = UffdWriteProtect {
            extent: extent(memory, offset, bytes),
            mode: PROTECT,
        };
        self.call(IOC_PROTECT, &mut protection)
    }

    fn call<T>(&self, call: Opcode, value: &mut T) -> Result<(), Errno> {
        let value: *mut T = value;
        // SAFETY: the request number contains the size of `T`, and the kernel accesses no more of it and only
        // during the call. The pages it names lie in a `MappedMemory` that the caller borrows, or are bytes
        // that it only reads. Whatever is put into an arena is initialised, and all types stored there allow
        // any bytes (`Pod`).
        match unsafe { libc::ioctl(self.0.as_raw_fd(), call as _, value) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }
}

fn transfer(memory: &MappedMemory, offset: usize, source: usize, bytes: usize) -> UffdCopy {
    memory.check(offset, bytes);
    UffdCopy {
        target: memory.at(offset) as u64,
        source: source as u64,
        bytes: bytes as u64,
        mode: 0,
        done: 0,
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn extent(memory: &MappedMemory, offset: usize, bytes: usize) -> Extent {
    memory.check(offset, bytes);
    Extent {
        start: memory.at(offset) as u64,
        bytes: bytes as u64,
    }
}

/// Opens the device, which an administrator can make accessible, or else uses the system call.
fn descriptor(user_only: bool) -> Result<OwnedFd, UffdError> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    if !user_only && let Ok(device) = File::open("/dev/userfaultfd") {
        // SAFETY: the call takes its flags by value and touches no memory.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW as _, flags) };
        if fd >= 0 {
            // SAFETY: the kernel has just created it for this call.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    let flags = flags | if user_only { USER_MODE_ONLY } else { 0 };
    // SAFETY: the call takes its flags by value and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if let Ok(fd) = i32::try_from(fd)
        && fd >= 0
    {
        // SAFETY: the kernel has just created it for this call.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::ENOSYS) => UffdError::Absent,
        Some(libc::EPERM) => UffdError::Refused(error),
        _ => UffdError::Other(error),
    })
}

/// Parses `struct uffd_msg`: event number, seven unused bytes, and up to three numbers.
fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Option<UffdMessage> {
    let number = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    let address = |at| number(at) as usize;
    match bytes[0] {
        FAULT => Some(UffdMessage::Fault {
            protected: number(8) & FAULT_PROTECTED != 0,
            address: address(16),
            thread: number(24) as u32,
        }),
        REMOVE => Some(UffdMessage::Removed {
            start: address(8),
            end: address(16),
        }),
        UNMAP => Some(UffdMessage::Unmapped {
            start: address(8),
            end: address(16),
        }),
        REMAP => Some(UffdMessage::Remapped {
            from: address(8),
            bytes: address(24),
        }),
        // An event that was not requested.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use netram_far_machine::limit::PAGE_BYTES;

    use super::*;

    fn message(kind: u8, words: [u64; 3]) -> Option<UffdMessage> {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = kind;
        for (index, word) in words.iter().enumerate() {
            bytes[8 + 8 * index..16 + 8 * index].copy_from_slice(&word.to_ne_bytes());
        }
        parse(&bytes)
    }

    const PAGE: usize = PAGE_BYTES;

    /// Opens a `userfaultfd`. `None`: not permitted or not supported, which is reported.
    fn uffd(memory: &MappedMemory, features: UffdFeatures) -> Option<Uffd> {
        let offered = Uffd::offered(true).unwrap_or(UffdFeatures::NONE);
        if !offered.has(features) || Uffd::open(true, features).is_err() {
            // If this cannot be written, there is no other way to report it.
            let _ = writeln!(
                io::stderr(),
                "\nSKIPPED runs of pages: no userfaultfd, or not with {features:?}"
            );
            return None;
        }
        let uffd = Uffd::open(true, features).unwrap();
        uffd.register(memory, false).unwrap();
        Some(uffd)
    }

    fn last_bytes(memory: &MappedMemory) -> Vec<u8> {
        let mut bytes = vec![0; memory.bytes()];
        memory.read(0, &mut bytes);
        bytes.chunks_exact(PAGE).map(|page| page[PAGE - 1]).collect()
    }

    #[test]
    fn a_run_is_mapped_up_to_a_present_page() {
        let memory = MappedMemory::map(4).unwrap();
        let Some(uffd) = uffd(&memory, UffdFeatures::NONE) else {
            return;
        };
        uffd.copy(&memory, 2 * PAGE, &[9; PAGE]).unwrap();
        let run: Vec<u8> = (1..=4).flat_map(|page| [page; PAGE]).collect();
        assert_eq!(uffd.copy_run(&memory, 0, &run), 2 * PAGE);
        assert_eq!(uffd.copy_run(&memory, 2 * PAGE, &run[2 * PAGE..]), 0);
        assert_eq!(uffd.copy_run(&memory, 3 * PAGE, &run[3 * PAGE..]), PAGE);
        assert_eq!(last_bytes(&memory), [1, 2, 9, 4]);
    }

    #[test]
    fn a_run_is_moved_up_to_a_missing_page() {
        let (from, to) = (MappedMemory::map(4).unwrap(), MappedMemory::map(4).unwrap());
        let Some(uffd) = uffd(&to, UffdFeatures::MOVE) else {
            return;
        };
        for page in [0, 1, 3] {
            from.write(page * PAGE, &[page as u8 + 1; PAGE]);
        }
        assert_eq!(uffd.take_run(&to, 0, &from, 0, 4 * PAGE), 2 * PAGE);
        assert_eq!(uffd.take_run(&to, 2 * PAGE, &from, 2 * PAGE, 2 * PAGE), 0);
        assert_eq!(
            uffd.take_run(&to, 2 * PAGE, &from, 3 * PAGE, PAGE),
            PAGE,
            "pages after it can be moved"
        );
        uffd.copy(&to, 3 * PAGE, &[7; PAGE]).unwrap();
        assert_eq!(last_bytes(&to), [1, 2, 4, 7]);
        assert_eq!(last_bytes(&from), [0; 4], "the page is gone here");
    }

    #[test]
    fn kernel_messages_are_parsed() {
        let fault = UffdMessage::Fault {
            address: 0x7000,
            thread: 42,
            protected: true,
        };
        assert_eq!(message(FAULT, [3, 0x7000, 42]), Some(fault));
        let removed = UffdMessage::Removed { start: 1, end: 2 };
        assert_eq!(message(REMOVE, [1, 2, 0]), Some(removed));
        assert_eq!(message(0x13, [1, 2, 3]), None);
    }
}
