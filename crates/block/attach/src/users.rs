//! Finds exclusive users of a block device: mounts, swap, drivers on top. For messages only; the kernel
//! decides.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::loop_device::number_of;

/// A user that would lose its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceUser {
    /// A file system, mounted at this path.
    Mount(PathBuf),
    /// The kernel's swap.
    Swap,
    /// A driver that built this device on it.
    Device(PathBuf),
}

impl fmt::Display for DeviceUser {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceUser::Mount(at) => write!(out, "mounted at {0} (`umount {0}`)", at.display()),
            DeviceUser::Swap => out.write_str("used as swap (`swapoff`)"),
            DeviceUser::Device(path) => write!(out, "part of {}", path.display()),
        }
    }
}

/// Users of `device` that are visible in this mount namespace.
pub fn users(device: &Path) -> Vec<DeviceUser> {
    let Ok(number) = number_of(device) else {
        return Vec::new();
    };
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut found: Vec<DeviceUser> = mounts(&read("/proc/self/mountinfo"), number, device)
        .map(DeviceUser::Mount)
        .collect();
    if is_swap(&read("/proc/swaps"), device) {
        found.push(DeviceUser::Swap);
    }
    let holders = format!("/sys/dev/block/{}:{}/holders", number.0, number.1);
    let holders = fs::read_dir(holders).into_iter().flatten().flatten();
    found.extend(holders.map(|holder| DeviceUser::Device(Path::new("/dev").join(holder.file_name()))));
    found
}

/// Mount points of a device, by its number, or by its name for file systems with numbers of their own
/// (btrfs).
fn mounts(table: &str, number: (u32, u32), device: &Path) -> impl Iterator<Item = PathBuf> {
    let number = format!("{}:{}", number.0, number.1);
    table.lines().filter_map(move |line| {
        let (mount, source) = line.split_once(" - ")?;
        let fields: Vec<&str> = mount.split(' ').collect();
        let named = || source.split(' ').nth(1).map(unescape).as_deref() == Some(device);
        (*fields.get(2)? == number || named()).then(|| fields.get(4).map(|at| unescape(at)))?
    })
}

fn is_swap(table: &str, device: &Path) -> bool {
    let names = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    names.map(unescape).any(|name| name == device)
}

/// The kernel writes spaces, tabs, line ends and backslashes as `\040` and so on.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let octal = || {
            let digits = std::str::from_utf8(behind.get(..3)?).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        match octal().filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
36 1 7:0 / /mnt/my\\040data rw,noatime shared:1 - ext4 /dev/loop0 rw
37 1 0:45 /sub /srv rw - btrfs /dev/loop0 rw
38 1 7:10 / /other rw - ext4 /dev/loop10 rw
broken line";

    fn found(table: &str) -> Vec<PathBuf> {
        mounts(table, (7, 0), Path::new("/dev/loop0")).collect()
    }

    #[test]
    fn mounts_are_found_by_number_and_by_name_with_unescaped_paths() {
        assert_eq!(found(TABLE), [Path::new("/mnt/my data"), Path::new("/srv")]);
        assert_eq!(found(""), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn swap_is_found() {
        let table = "Filename\tType\tSize\n/dev/loop0 partition 1 0 -2\n";
        assert!(is_swap(table, Path::new("/dev/loop0")));
        assert!(!is_swap(table, Path::new("/dev/loop")));
    }
}
