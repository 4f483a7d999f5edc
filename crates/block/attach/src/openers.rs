//! Finds processes that have a device open. The kernel grants exclusive use even if other processes have
//! merely opened the device, as virtual machines and databases do. So they are looked for before a ublk
//! device is stopped.
//!
//! Not found are processes of a PID namespace around this one, a descriptor that only one thread has or that
//! is in flight through a socket, and processes that open the device later. They get errors when the device
//! is gone.

use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, RawMode, StatxFlags, statx};

use crate::loop_device::number_of;

/// Whether a process other than this one has the block device open.
pub(crate) fn others_have(device: &Path) -> bool {
    number_of(device).is_ok_and(|number| others(FileType::BlockDevice, number).next().is_some())
}

/// Processes other than this one that have a device open.
fn others(kind: FileType, number: (u32, u32)) -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|id| *id != std::process::id())
        .filter(move |id| {
            // A process that has ended has no file open.
            let files = fs::read_dir(format!("/proc/{id}/fd"));
            let mut files = files.into_iter().flatten().flatten();
            files.any(|file| is_device(&file.path(), kind, number))
        })
}

fn is_device(file: &Path, kind: FileType, number: (u32, u32)) -> bool {
    // Only cached attributes are used: the file may be that of a hanging server, and must not be queried.
    let known = statx(CWD, file, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    known.is_ok_and(|known| {
        FileType::from_raw_mode(RawMode::from(known.stx_mode)) == kind
            && (known.stx_rdev_major, known.stx_rdev_minor) == number
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_supervise::children;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_found_as_long_as_it_has_the_device_open() {
        // A device that every machine has and hardly any program opens.
        let device = File::open("/dev/full").unwrap();
        let number = device.metadata().unwrap().rdev();
        let number = (rustix::fs::major(number), rustix::fs::minor(number));
        let found = |id, kind| others(kind, number).any(|other| other == id);
        let mut sleep = Command::new("sleep");
        sleep.arg("600").stdin(Stdio::from(device.try_clone().unwrap()));
        let mut opener = children::start(|| sleep.spawn()).unwrap();
        assert!(found(opener.id(), FileType::CharacterDevice));
        // A block device may have the same number.
        assert!(!found(opener.id(), FileType::BlockDevice));
        assert!(!found(std::process::id(), FileType::CharacterDevice));
        opener.kill().unwrap();
        opener.wait().unwrap();
        assert!(!found(opener.id(), FileType::CharacterDevice));
    }
}
