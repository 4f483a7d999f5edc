//! Mount of the FUSE file system without a mount point.
//!
//! The mount uses the kernel's newer system calls (Linux 5.2), which return a mount as a descriptor. No path
//! leads to it, `/proc/mounts` does not list it, it need not be unmounted, and it ends with the last file
//! that is open in it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use super::file::FuseFile;

const CONTROL: &str = "/dev/fuse";

/// A mount without a mount point, and the kernel's end of the session with its server.
#[derive(Debug)]
pub(crate) struct DetachedMount {
    /// Requests are read from here, and replies written to it.
    pub(crate) control: OwnedFd,
    /// The mount. It ends with this descriptor and every file opened in it.
    pub(crate) root: OwnedFd,
}

impl DetachedMount {
    /// Mounts a FUSE file system whose root directory belongs to root.
    pub(crate) fn new() -> io::Result<DetachedMount> {
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open(CONTROL)
            .map_err(|error| {
                let sentence =
                    format!("{CONTROL}: {error}; it needs root and the kernel's FUSE (`modprobe fuse`)");
                io::Error::new(error.kind(), sentence)
            })?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", "netram")?;
        let descriptor = control.as_raw_fd().to_string();
        for (key, value) in [
            ("fd", descriptor.as_str()),
            ("rootmode", "40700"),
            ("user_id", "0"),
            ("group_id", "0"),
        ] {
            fsconfig_set_string(&context, key, value)?;
        }
        // No path leads here. Without this, a supervisor whose group is not root's could not open the file,
        // and nobody else enlarge it.
        fsconfig_set_flag(&context, "allow_other")?;
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NOATIME;
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(DetachedMount {
            control: control.into(),
            root,
        })
    }
}

/// Opens the served file of this name. Waits for the server, which may be another user's: a link that it
/// shows is not followed, and whatever is not a regular file is refused.
pub(crate) fn open_file(root: &OwnedFd, name: &str) -> io::Result<File> {
    if !FuseFile::is_name(name) {
        return Err(io::Error::other("the server offers a file that is not its own"));
    }
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(root, name, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("the server offers something else than a file")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read, Write};

    use super::*;
    use crate::fuse::wire::{self, FuseAttributes, FuseOperation, FuseRequest};

    const LINK: u32 = 0o120_777;
    const NODE: u64 = 2;

    /// Answers like a server that wants root to open `target` in place of its file.
    fn show_link(mut control: &File, target: &[u8]) {
        let mut buffer = vec![0; 2 << 20];
        while let Ok(length) = control.read(&mut buffer) {
            let request = FuseRequest::parse(&buffer[..length]).unwrap();
            let link = FuseAttributes {
                node: NODE,
                bytes: target.len() as u64,
                mode: LINK,
                made_s: 0,
                block_bytes: 4096,
            };
            let body = match request.operation {
                FuseOperation::Init(init) => init.agree(1 << 20, 16).unwrap().answer.to_vec(),
                FuseOperation::Lookup(_) => link.entry(0).to_vec(),
                FuseOperation::Attributes => link.answer().to_vec(),
                FuseOperation::Forget => continue,
                _ => target.to_vec(),
            };
            let header = wire::header(request.unique, 0, body.len());
            // The mount may be gone.
            let _ = control.write_vectored(&[IoSlice::new(&header), IoSlice::new(&body)]);
        }
    }

    /// The supervisor would have bound a loop device to root's file, and written a file system over it.
    #[test]
    fn a_link_that_a_server_shows_in_place_of_its_file_is_not_followed() {
        let DetachedMount { control, root } = match DetachedMount::new() {
            Ok(mount) => mount,
            Err(error) => {
                eprintln!("\nSKIPPED: a mount needs root and FUSE: {error}");
                return;
            }
        };
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, [7; 4096]).unwrap();
        let target = secret.to_str().unwrap().as_bytes().to_vec();
        let control = File::from(control);
        let server = std::thread::spawn(move || show_link(&control, &target));
        let refused = open_file(&root, "netram-1-1").unwrap_err();
        assert_eq!(
            refused.raw_os_error(),
            Some(rustix::io::Errno::LOOP.raw_os_error())
        );
        for name in ["../secret", "netram-/../secret", "secret", "..", ""] {
            assert!(open_file(&root, name).is_err(), "{name}");
        }
        drop(root);
        server.join().unwrap();
    }
}
