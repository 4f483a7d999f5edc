//! Knowing a child of `fork` by a page that the kernel wipes in it: one load a call, where asking for the
//! process's number costs a system call.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::failure::CallFailure;
use crate::registered_pages::PAGE;

/// Tells a process from its children. Unset: there is nothing to protect yet.
#[derive(Debug)]
pub(crate) struct ForkPageMark(AtomicPtr<u8>);

impl ForkPageMark {
    pub(crate) const fn new() -> ForkPageMark {
        ForkPageMark(AtomicPtr::new(null_mut()))
    }

    /// Marks this process. A child that sets it again marks itself.
    pub(crate) fn set(&self) -> Result<(), CallFailure> {
        let mut page = self.0.load(Ordering::Acquire);
        if page.is_null() {
            page = wiped_page()?;
            self.0.store(page, Ordering::Release);
        }
        // SAFETY: `wiped_page` mapped it for writing, and it is never unmapped. One byte, set to one value
        // only.
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
        CallFailure::io(errno.raw_os_error(), format!("a page to know forks by: {errno}"))
    };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint lets the kernel choose unused addresses, so no other object is replaced.
    let page = unsafe { mmap_anonymous(null_mut(), PAGE, protection, MapFlags::PRIVATE) }.map_err(failed)?;
    // SAFETY: it is this page, just mapped, which nobody else knows; the advice changes what a child of fork
    // sees.
    unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.map_err(failed)?;
    Ok(page.cast())
}
