//! The kernel's word that programs have waited for memory: a trigger on `/proc/pressure/memory`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use netram_far_machine::limit::PRESSURE_WINDOW;

const PROC_MAGIC: u64 = 0x9FA0;
/// Time over which a privileged process (`CAP_SYS_RESOURCE`) may have waits counted.
const PRIVILEGED_WINDOW: Duration = Duration::from_secs(1);

/// A trigger; poll it for [`Interest::Exception`](netram_transport::Interest::Exception).
pub(super) struct StallTrigger(File);

impl StallTrigger {
    /// Has the kernel report when programs wait for more than a part of the time, in hundredths of a percent.
    ///
    /// # Errors
    /// The kernel has no such file, or grants no trigger.
    pub(super) fn open(path: &Path, waits: u32) -> io::Result<StallTrigger> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        if rustix::fs::fstatfs(&file)?.f_type as u64 != PROC_MAGIC {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut granted = Err(io::ErrorKind::Unsupported.into());
        for window in [PRIVILEGED_WINDOW, Duration::from_nanos(PRESSURE_WINDOW.0)] {
            let stall_us = (window.as_micros() * u128::from(waits) / 10_000).max(1);
            // The kernel wants the zero byte, in one write.
            let order = format!("some {stall_us} {}\0", window.as_micros());
            granted = file.write(order.as_bytes());
            if granted.is_ok() {
                break;
            }
        }
        granted.map(|_| StallTrigger(file))
    }
}

impl AsFd for StallTrigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_own_file_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory");
        assert!(StallTrigger::open(&file, 1000).is_err());
        std::fs::write(&file, "some avg10=0.00").unwrap();
        assert!(StallTrigger::open(&file, 1000).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "some avg10=0.00");
    }

    #[test]
    fn the_kernel_grants_a_trigger_without_privileges() {
        let file = Path::new("/proc/pressure/memory");
        if OpenOptions::new().write(true).open(file).is_err() {
            eprintln!("\nSKIPPED: this kernel has no {} to write to", file.display());
            return;
        }
        StallTrigger::open(file, 1000).unwrap();
    }
}
