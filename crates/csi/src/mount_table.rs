//! The kernel's table of mounts.

use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableMount {
    /// Directory or file that it is mounted on.
    pub target: PathBuf,
    /// The device, for a file system on one.
    pub source: String,
    /// The part of the file system that is mounted there.
    pub root: String,
    /// Kind of the file system.
    pub kind: String,
    /// Whether this mount refuses writes.
    pub read_only: bool,
}

/// Parses `/proc/PID/mountinfo`. Lines of another form are left out.
pub(crate) fn parse(text: &str) -> Vec<TableMount> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<TableMount> {
    let (own, of_file_system) = line.split_once(" - ")?;
    let mut own = own.split(' ').skip(3);
    let (root, target, options) = (own.next()?, own.next()?, own.next()?);
    let mut of_file_system = of_file_system.split(' ');
    let (kind, source) = (of_file_system.next()?, of_file_system.next()?);
    Some(TableMount {
        target: PathBuf::from(unescape(target)),
        source: unescape(source),
        root: unescape(root),
        kind: kind.to_owned(),
        read_only: options.split(',').any(|option| option == "ro"),
    })
}

/// Decodes the octal escapes of spaces, tabs, line ends and backslashes.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

/// Returns the topmost mount on `target`.
pub(crate) fn at<'a>(table: &'a [TableMount], target: &Path) -> Option<&'a TableMount> {
    table.iter().rev().find(|mount| mount.target == target)
}

/// Whether the mount shows `device`: the file system on it, or its node in `/dev`.
pub(crate) fn shows(mount: &TableMount, device: &Path) -> bool {
    Path::new(&mount.source) == device || is_node(mount, device)
}

/// Whether the mount shows the device's node, as a raw block volume is published.
pub(crate) fn is_node(mount: &TableMount, device: &Path) -> bool {
    let in_dev = device.strip_prefix("/dev").ok();
    matches!(mount.kind.as_str(), "devtmpfs" | "tmpfs")
        && in_dev.is_some_and(|name| {
            Path::new(&mount.root)
                .strip_prefix("/")
                .is_ok_and(|root| root == name)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
23 29 0:21 / /dev rw,nosuid shared:7 - devtmpfs udev rw,size=4k
90 29 7:1 / /var/lib/kubelet/a\\040b/globalmount rw,relatime shared:50 - ext4 /dev/loop1 rw
91 29 7:1 / /var/lib/kubelet/pods/x/mount ro,relatime shared:50 - ext4 /dev/loop1 rw
92 29 0:21 /loop2 /var/lib/kubelet/pods/y/block rw - devtmpfs udev rw
odd line
";

    #[test]
    fn mounts_are_told_apart() {
        let table = parse(TABLE);
        assert_eq!(table.len(), 4);
        let staged = at(&table, Path::new("/var/lib/kubelet/a b/globalmount")).unwrap();
        assert!(shows(staged, Path::new("/dev/loop1")));
        assert!(!staged.read_only);
        let pods = at(&table, Path::new("/var/lib/kubelet/pods/x/mount")).unwrap();
        assert!(
            pods.read_only,
            "the mount refuses writes, the file system does not"
        );
        let block = at(&table, Path::new("/var/lib/kubelet/pods/y/block")).unwrap();
        assert!(is_node(block, Path::new("/dev/loop2")));
        assert!(!shows(block, Path::new("/dev/loop1")));
    }
}
