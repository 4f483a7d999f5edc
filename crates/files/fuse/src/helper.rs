//! Mounts of users other than root, by the set-user-id program `fusermount3`.
//!
//! The kernel then admits only processes of the user who mounted (it does not know `allow_other`).

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::device::FuseDevice;

/// Program by which users other than root mount and unmount.
pub const FUSERMOUNT: &str = "fusermount3";
/// Names the descriptor over which the program sends the kernel's end.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts over `dir`, with these mount options.
///
/// # Errors
///
/// The program is missing, or its refusal.
pub fn mount_by_helper(dir: &Path, options: &[&str]) -> io::Result<FuseDevice> {
    let (own, its) = UnixStream::pair()?;
    // The program's standard input is the socket: a descriptor that it inherits would be every other child's
    // for a moment, too.
    let helper = Command::new(FUSERMOUNT)
        .args(["-o", &options.join(","), "--"])
        .arg(dir)
        .env(SOCKET_VARIABLE, "0")
        .stdin(Stdio::from(OwnedFd::from(its)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let received = receive(&own);
    let ended = helper.wait_with_output()?;
    match received? {
        Some(device) if ended.status.success() => Ok(FuseDevice::from(device)),
        _ => {
            let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
            Err(io::Error::other(said))
        }
    }
}

/// The descriptor that the program sends. `None`: it ended without.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut bytes = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => (),
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    Ok(descriptors.next())
}
