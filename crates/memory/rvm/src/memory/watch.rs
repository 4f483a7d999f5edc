//! Detecting stores by the kernel's page tables. Userfaultfd's asynchronous write protection (Linux 6.7) lets
//! a store through and notes it in the page table. `PAGEMAP_SCAN` collects the notes and protects the pages
//! again in one step, so that no store between two scans is missed.
//!
//! No signal is raised, and stores that the system makes for the program are detected too. Costs about 1 us
//! for the first store to a page, and 35 ns per page to collect.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use netram_proto::port::IoError;
use rustix::mm::UserfaultfdFlags;

use super::{PAGE, RegionMemory};

/// Any user may open a descriptor for user-mode faults; the kernel handles asynchronous ones itself.
const USER_MODE_ONLY: u32 = 1;
const UFFD_API: u64 = 0xaa;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;

const PAGEMAP_SCAN: u64 = 0xc060_6610;
const SCAN_PROTECT: u64 = 1;
const SCAN_CHECK_ASYNC: u64 = 2;
const CATEGORY_WRITTEN: u64 = 1 << 1;
/// Runs of pages that one scan returns at most.
const RUNS: usize = 256;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Protect {
    start: u64,
    length: u64,
    mode: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    runs: u64,
    runs_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(
    size_of::<Scan>() == 96,
    "the number of PAGEMAP_SCAN holds its size"
);

/// Detection of stores to one region by the kernel, until it is dropped.
#[derive(Debug)]
pub(crate) struct PageWatch {
    /// Closing the descriptor ends the protection.
    _faults: OwnedFd,
    pagemap: std::fs::File,
    start: u64,
    end: u64,
}

impl PageWatch {
    /// Starts noting stores to `memory`, which is a mapping.
    pub(crate) fn new(memory: &RegionMemory) -> Result<PageWatch, IoError> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: the descriptor is used only to note stores, never to move or drop pages.
        let faults = unsafe { rustix::mm::userfaultfd(flags) }.map_err(|error| IoError {
            errno: error.raw_os_error(),
        })?;
        let start = memory.start.as_ptr().addr() as u64;
        let length = (memory.len().div_ceil(PAGE) * PAGE) as u64;
        let number = faults.as_raw_fd();
        let mut api = Api {
            api: UFFD_API,
            features: FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED,
            ioctls: 0,
        };
        call(number, UFFDIO_API, &mut api)?;
        let mut register = Register {
            start,
            length,
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        call(number, UFFDIO_REGISTER, &mut register)?;
        let mut protect = Protect {
            start,
            length,
            mode: WRITEPROTECT_MODE_WP,
        };
        call(number, UFFDIO_WRITEPROTECT, &mut protect)?;
        let pagemap = std::fs::File::open("/proc/self/pagemap").map_err(crate::file::io_error)?;
        let watch = PageWatch {
            _faults: faults,
            pagemap,
            start,
            end: start + length,
        };
        // Scans once now, so that an unsupported kernel is detected here.
        watch.scan(SCAN_CHECK_ASYNC, &mut |_| {})?;
        Ok(watch)
    }

    /// Takes the pages that were stored to, in order; the next store to each is noted again. Pages that were
    /// only read may be among them.
    pub(crate) fn take(&self, pages: &mut Vec<usize>) -> Result<(), IoError> {
        self.scan(SCAN_CHECK_ASYNC | SCAN_PROTECT, &mut |page| pages.push(page))
    }

    /// Lists the pages that were stored to, and keeps them.
    pub(crate) fn look(&self, pages: &mut Vec<usize>) -> Result<(), IoError> {
        self.scan(SCAN_CHECK_ASYNC, &mut |page| pages.push(page))
    }

    fn scan(&self, flags: u64, each: &mut dyn FnMut(usize)) -> Result<(), IoError> {
        let mut runs = [Run::default(); RUNS];
        let mut from = self.start;
        while from < self.end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags,
                start: from,
                end: self.end,
                runs: runs.as_mut_ptr().expose_provenance() as u64,
                runs_len: RUNS as u64,
                category_mask: CATEGORY_WRITTEN,
                return_mask: CATEGORY_WRITTEN,
                ..Scan::default()
            };
            let found = call(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut scan)?;
            for run in &runs[..found] {
                for address in (run.start..run.end).step_by(PAGE) {
                    each(((address - self.start) / PAGE as u64) as usize);
                }
            }
            if scan.walk_end <= from {
                // Without progress the scan would never end.
                return Err(IoError::EIO);
            }
            from = scan.walk_end;
        }
        Ok(())
    }
}

/// Calls one of the ioctls above; `argument` is the structure that `number` specifies.
fn call<T>(descriptor: RawFd, number: u64, argument: &mut T) -> Result<usize, IoError> {
    loop {
        // SAFETY: the kernel reads and writes `argument`, up to the size in the number (checked above against
        // the longest), and for a scan the runs that it points to, which outlive the call.
        let returned = unsafe { libc::ioctl(descriptor, number as _, std::ptr::from_mut(argument)) };
        if let Ok(returned) = usize::try_from(returned) {
            return Ok(returned);
        }
        let error = crate::file::io_error(std::io::Error::last_os_error());
        if error.errno != libc::EINTR {
            return Err(error);
        }
    }
}
