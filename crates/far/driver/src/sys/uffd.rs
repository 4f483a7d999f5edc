//! The kernel's `userfaultfd`: it tells of references to pages that are not there, and takes pages for them.

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
/// Faults of system calls are not told, and need no right.
const USER_MODE_ONLY: libc::c_int = 1;
const MODE_MISSING: u64 = 1;
const MODE_WRITE_PROTECT: u64 = 2;
const PROTECT: u64 = 1;

const FAULT: u8 = 0x12;
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;
/// Of a fault: the page is there, and protected.
const FAULT_PROTECTED: u64 = 2;
const MESSAGE_BYTES: usize = 32;

/// What a kernel can do: bits of `struct uffdio_api`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UffdFeatures(u64);

impl UffdFeatures {
    pub(crate) const NONE: UffdFeatures = UffdFeatures(0);
    pub(crate) const PROTECT: UffdFeatures = UffdFeatures(1);
    pub(crate) const REMAP: UffdFeatures = UffdFeatures(1 << 2);
    pub(crate) const REMOVE: UffdFeatures = UffdFeatures(1 << 3);
    pub(crate) const UNMAP: UffdFeatures = UffdFeatures(1 << 6);
    /// A page that is missed is a bus error, and is not told.
    pub(crate) const SIGBUS: UffdFeatures = UffdFeatures(1 << 7);
    pub(crate) const THREAD_ID: UffdFeatures = UffdFeatures(1 << 8);
    /// Faults are told by the byte, not by the page.
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

    /// Those that both have.
    pub(crate) fn common(self, other: UffdFeatures) -> UffdFeatures {
        UffdFeatures(self.0 & other.0)
    }
}

/// Why there is no `userfaultfd`.
#[derive(Debug)]
pub(crate) enum UffdError {
    /// The kernel has none.
    Absent,
    /// This process may not have one.
    Refused(io::Error),
    Other(io::Error),
}

/// What the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UffdMessage {
    /// A thread waits for what is at this address.
    Fault {
        address: usize,
        thread: u32,
        protected: bool,
    },
    /// The program throws away what is there. It goes when this has been read, a little later.
    Removed { start: usize, end: usize },
    /// The program has unmapped it.
    Unmapped { start: usize, end: usize },
    /// The program has moved it.
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

/// One `userfaultfd`. Calls that name a part of memory panic if it is not inside.
#[derive(Debug)]
pub(crate) struct Uffd(OwnedFd);

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Uffd {
    /// What the kernel can do for this process.
    pub(crate) fn offered(user_only: bool) -> Result<UffdFeatures, UffdError> {
        Uffd(descriptor(user_only)?).negotiate(UffdFeatures::NONE)
    }

    /// One with these features, of those that are offered.
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

    /// From now on, references to pages of the memory that are not there are told; with `protect`, writes to
    /// protected ones, too.
    pub(crate) fn register(&self, memory: &MappedMemory, protect: bool) -> io::Result<()> {
        let mut registration = UffdRegister {
            extent: extent(memory, 0, memory.bytes()),
            mode: MODE_MISSING | if protect { MODE_WRITE_PROTECT } else { 0 },
            ioctls: 0,
        };
        Ok(self.call(IOC_REGISTER, &mut registration)?)
    }

    /// What the kernel has to tell; `None`: nothing now.
    pub(crate) fn read(&self) -> io::Result<Option<UffdMessage>> {
        let mut bytes = [0; MESSAGE_BYTES];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(MESSAGE_BYTES) => Ok(parse(&bytes)),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            // Who waited waits no more.
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a page there, all at once, and wakes who waits for it. 1.7 us.
    pub(crate) fn copy(&self, memory: &MappedMemory, offset: usize, page: &[u8]) -> Result<(), Errno> {
        let source = page.as_ptr() as usize;
        self.transfer(IOC_COPY, memory, offset, source, page.len())
    }

    /// Puts pages there that stand one behind the other. Returns how many bytes of them; why not all says the
    /// attempt to put the next. 1 us a page.
    pub(crate) fn copy_run(&self, memory: &MappedMemory, offset: usize, pages: &[u8]) -> usize {
        self.transfer_run(IOC_COPY, memory, offset, pages.as_ptr() as usize, pages.len())
    }

    /// The same, out of another memory.
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

    /// Takes a page out of another memory and puts it there, all at once: no store is lost in between. 1.1
    /// us.
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

    /// Takes pages that stand one behind the other. Returns how many bytes of them; why not all says the
    /// attempt to take the next. 0.1 us a page, and 1 us: other cores are told once.
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
            // An error's number if there were none.
            Err(_) => usize::try_from(transfer.done).unwrap_or(0),
        }
    }

    /// Whoever waits for what is there looks again.
    pub(crate) fn wake(&self, memory: &MappedMemory, offset: usize, bytes: usize) -> Result<(), Errno> {
        self.call(IOC_WAKE, &mut extent(memory, offset, bytes))
    }

    /// From now on a reference to what is there is a bus error.
    pub(crate) fn poison(&self, memory: &MappedMemory, offset: usize, bytes: usize) -> Result<(), Errno> {
        let mut poison = UffdPoison {
            extent: extent(memory, offset, bytes),
            mode: 0,
            done: 0,
        };
        self.call(IOC_POISON, &mut poison)
    }

    /// Writes to what is there wait.
    pub(crate) fn protect(&self, memory: &MappedMemory, offset: usize, bytes: usize) -> Result<(), Errno> {
        let mut protection = UffdWriteProtect {
            extent: extent(memory, offset, bytes),
            mode: PROTECT,
        };
        self.call(IOC_PROTECT, &mut protection)
    }

    fn call<T>(&self, call: Opcode, value: &mut T) -> Result<(), Errno> {
        let value: *mut T = value;
        // SAFETY: the call's number holds the size of `T`, and the kernel reads and writes no more of it,
        // until it returns. The pages that it names lie in a `MappedMemory` that the caller borrows, or are
        // bytes that it only reads. What is put into an arena is initialised, and all types that are kept
        // there allow any bytes (`Pod`).
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

/// The device, to which an administrator can give a right; the system call otherwise.
fn descriptor(user_only: bool) -> Result<OwnedFd, UffdError> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    if !user_only && let Ok(device) = File::open("/dev/userfaultfd") {
        // SAFETY: the call takes its flags by value and touches no memory.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW as _, flags) };
        if fd >= 0 {
            // SAFETY: the kernel has just made it, and gave it to nobody else.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    let flags = flags | if user_only { USER_MODE_ONLY } else { 0 };
    // SAFETY: the call takes its flags by value and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if let Ok(fd) = i32::try_from(fd)
        && fd >= 0
    {
        // SAFETY: the kernel has just made it, and gave it to nobody else.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::ENOSYS) => UffdError::Absent,
        Some(libc::EPERM) => UffdError::Refused(error),
        _ => UffdError::Other(error),
    })
}

/// `struct uffd_msg`: the event's number, seven bytes of nothing, and up to three numbers.
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
        // A kind that was not asked for.
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

    /// `None`: this process may not have one, or the kernel cannot do this, and that was said.
    fn uffd(memory: &MappedMemory, features: UffdFeatures) -> Option<Uffd> {
        let offered = Uffd::offered(true).unwrap_or(UffdFeatures::NONE);
        if !offered.has(features) || Uffd::open(true, features).is_err() {
            // Nobody is left to be told if this cannot be written.
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
    fn a_run_of_pages_is_put_there_up_to_one_that_is_there() {
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
    fn a_run_of_pages_is_taken_up_to_one_that_is_not_there() {
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
            "what is behind it can be taken"
        );
        uffd.copy(&to, 3 * PAGE, &[7; PAGE]).unwrap();
        assert_eq!(last_bytes(&to), [1, 2, 4, 7]);
        assert_eq!(last_bytes(&from), [0; 4], "it is here no more");
    }

    #[test]
    fn messages_are_read_as_the_kernel_writes_them() {
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
