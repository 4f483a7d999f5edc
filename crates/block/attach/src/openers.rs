//! Who has a device open. The kernel lets a device be had for oneself beside those who have merely opened it,
//! as virtual machines and databases do, so before a ublk device is stopped they are looked for.
//!
//! Not seen: processes of a PID namespace around this one, a descriptor that only one thread of a process has
//! or that is on its way through a socket, and whoever comes after the look. They get errors when the device
//! goes.

use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, RawMode, StatxFlags, statx};

use crate::loop_device::number_of;

/// Whether a process other than this one has the block device open.
pub(crate) fn others_have(device: &Path) -> bool {
    number_of(device).is_ok_and(|number| others(FileType::BlockDevice, number).next().is_some())
}

/// The processes, but this one, that have a device open.
fn others(kind: FileType, number: (u32, u32)) -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|id| *id != std::process::id())
        .filter(move |id| {
            // One that has ended has nothing open.
            let files = fs::read_dir(format!("/proc/{id}/fd"));
            let mut files = files.into_iter().flatten().flatten();
            files.any(|file| is_device(&file.path(), kind, number))
        })
}

fn is_device(file: &Path, kind: FileType, number: (u32, u32)) -> bool {
    // What is known is enough: a file may be one of a server that hangs, and must not be asked for.
    let known = statx(CWD, file, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    known.is_ok_and(|known| {
        FileType::from_raw_mode(RawMode::from(known.stx_mode)) == kind
            && (known.stx_rdev_major, known.stx_rdev_minor) == number
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn who_has_a_device_open_is_found_as_long_as_he_has() {
        // A device that every machine has and next to nobody opens.
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
