//! Recognising a child of `fork` by a page that the kernel wipes in it. This costs one load per call, whereas
//! asking for the process id costs a system call.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::failure::CallFailure;
use crate::registered_pages::PAGE;

/// Distinguishes a process from its children. If unset, there is nothing to protect yet.
#[derive(Debug)]
pub(crate) struct ForkPageMark(AtomicPtr<u8>);

impl ForkPageMark {
    pub(crate) const fn new() -> ForkPageMark {
        ForkPageMark(AtomicPtr::new(null_mut()))
    }

    /// Marks this process. A child that calls it again marks itself.
    pub(crate) fn set(&self) -> Result<(), CallFailure> {
        let mut page = self.0.load(Ordering::Acquire);
        if page.is_null() {
            page = wiped_page()?;
            self.0.store(page, Ordering::Release);
        }
        // SAFETY: `wiped_page` mapped it for writing, and it is never unmapped. One byte is set, always to
        // the same value.
        unsafe { page.write_volatile(1) };
        Ok(())
    }

    /// Whether this process is a child of the marked one.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        let page = self.0.load(Ordering::Acquire);
        if page.is_null() {
            return false;
        }
        // SAFETY: `wiped_page` mapped it for reading, and it is never unmapped.
        unsafe { page.read_volatile() == 0 }
    }
}

fn wiped_page() -> Result<*mut u8, CallFailure> {
    let failed = |errno: rustix::io::Errno| {
        CallFailure::io(
            errno.raw_os_error(),
            format!("a page to recognise forked children could not be mapped: {errno}"),
        )
    };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint lets the kernel choose unused addresses, so no other object is replaced.
    let page = unsafe { mmap_anonymous(null_mut(), PAGE, protection, MapFlags::PRIVATE) }.map_err(failed)?;
    // SAFETY: the page was just mapped and is known only here; the advice changes only what a child of fork
    // sees.
    unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.map_err(failed)?;
    Ok(page.cast())
}
