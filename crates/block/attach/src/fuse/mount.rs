//! Mount of the FUSE file system without a mount point.
//!
//! No path leads to it, so it need not be unmounted: it ends with the last file that is open in it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use netram_fuse::{DetachedMount, MountAttrFlags};
use rustix::fs::{Mode, OFlags, openat};

use super::file::FuseFile;

/// Mode of the file system's root directory.
const ROOT_MODE: u32 = 0o040_700;

/// Mounts a FUSE file system whose root directory belongs to root. No path leads there; a supervisor whose
/// group is not root's can open the file nevertheless, and others enlarge it.
pub(crate) fn mount_detached() -> io::Result<DetachedMount> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    DetachedMount::new("netram", ROOT_MODE, &[], attributes)
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
    use netram_fuse::{
        AgreedSession, FuseAttributes, FuseOperation, FuseRequest, FuseService, FuseTime, FuseTtl, ReplyBody,
    };
    use rustix::io::Errno;
    use std::sync::Arc;

    use super::*;
    use crate::fuse::session::OPTIONS;

    const LINK: u32 = 0o120_777;
    const NODE: u64 = 2;

    /// Answers like a server that wants root to open its target in place of its file.
    struct LinkServer(Vec<u8>);

    impl FuseService for LinkServer {
        type Timed<'a> = ();

        fn begin(&self, _request: &FuseRequest<'_>) {}

        fn answer(&self, request: &FuseRequest<'_>, body: &mut ReplyBody) -> Result<(), Errno> {
            let link = FuseAttributes {
                node: NODE,
                bytes: self.0.len() as u64,
                units: 0,
                accessed: FuseTime::default(),
                modified: FuseTime::default(),
                changed: FuseTime::default(),
                mode: LINK,
                links: 1,
                user: 0,
                group: 0,
                block_bytes: 4096,
            };
            let ttl = FuseTtl {
                name_s: 0,
                attributes_s: 0,
            };
            match request.operation {
                FuseOperation::Lookup(_) => {
                    body.entry(&link, ttl);
                }
                FuseOperation::Attributes => body.attributes(&link, ttl),
                _ => {
                    body.data(&self.0);
                }
            }
            Ok(())
        }
    }

    /// The supervisor would have bound a loop device to root's file, and written a file system over it.
    #[test]
    fn a_link_that_a_server_shows_in_place_of_its_file_is_not_followed() {
        let DetachedMount { device, root } = match mount_detached() {
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
        let agreed = AgreedSession::begin(device, &OPTIONS).unwrap();
        let server = agreed.serve(Arc::new(LinkServer(target)), 1).unwrap();
        let refused = open_file(&root, "netram-1-1").unwrap_err();
        assert_eq!(
            refused.raw_os_error(),
            Some(rustix::io::Errno::LOOP.raw_os_error())
        );
        for name in ["../secret", "netram-/../secret", "secret", "..", ""] {
            assert!(open_file(&root, name).is_err(), "{name}");
        }
        drop(root);
        server.join();
    }
}
