//! A device of the kernel's own NBD client, on a socket: connecting, reconnecting and releasing it.
//!
//! As with a loop device, [`NbdDevice`] is one of its users, and it ends when the last one closes it: the
//! kernel then tells the server to end. But the device outlives its server. Requests wait for
//! [`RECONNECT_SECONDS`] until it has another socket, and requests that the server had received are sent
//! again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::loop_device::number_of;
use crate::netlink::{NetlinkAttributes, NetlinkFamily};
use crate::node;
use crate::release_task::ReleaseTask;

const FAMILY: &str = "nbd";
const VERSION: u8 = 1;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const CLIENT_FLAGS: u16 = 6;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;

const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

const DISCONNECT_ON_CLOSE: u64 = 2;

/// Time that requests wait for another server. Its opening recovers the volume, which may wait for lenders.
const RECONNECT_SECONDS: u64 = 600;
/// Description of a server for the kernel, in place of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NbdConfig {
    pub(crate) bytes: u64,
    /// 512 or 4096.
    pub(crate) block_bytes: u32,
    /// Flags as of the protocol's exports.
    pub(crate) flags: u16,
}

/// A device that this process has open.
#[derive(Debug)]
pub(crate) struct NbdDevice {
    path: PathBuf,
    index: u32,
    /// Only kept open, which keeps the device.
    _open: File,
}

/// Failure of a device of the kernel's NBD client.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The kernel has no NBD client, or this process may not use it.
    #[error(
        "cannot use the kernel's nbd: {0}; it needs root and the driver (`modprobe nbd`), or attach with `--way fuse`"
    )]
    Missing(io::Error),
    /// The driver refused.
    #[error("the kernel's nbd refused to {what}: {source}; see also the kernel log (`dmesg`)")]
    Refused {
        /// The refused operation.
        what: &'static str,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The device cannot be used.
    #[error("{path}: {source}")]
    Device {
        /// The device, or its file in `/sys`.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
}

/// Whether the kernel's NBD client is loaded and may be used.
pub(crate) fn is_available() -> bool {
    rustix::process::geteuid().is_root() && NetlinkFamily::open(FAMILY, VERSION).is_ok()
}

impl NbdDevice {
    /// Connects the first free device to the server at the other end of `socket`.
    pub(crate) fn connect(socket: &OwnedFd, config: NbdConfig) -> Result<NbdDevice, NbdError> {
        let mut family = family()?;
        let answer = family.call(CONNECT, |attributes| {
            attributes.long(SIZE_BYTES, config.bytes);
            attributes.long(BLOCK_BYTES, config.block_bytes.into());
            attributes.long(SERVER_FLAGS, config.flags.into());
            attributes.long(DEAD_CONNECTION_TIMEOUT, RECONNECT_SECONDS);
            // One connection, and no timeout. With more, the kernel gives up a connection whose server was
            // silent for the timeout, and sends its requests over another. If that server still lives, an old
            // write could then overwrite a newer one.
            put_socket(attributes, socket);
        });
        let answer = answer.map_err(refused("make a device"))?;
        let index = answer.find_word(INDEX).ok_or_else(|| {
            refused("make a device")(io::Error::other("the driver did not return the device's number"))
        })?;
        let made = open(index).and_then(|device| {
            node::look_often(&device.path).map_err(|source| NbdError::Device {
                path: device.path.clone(),
                source,
            })?;
            // Not earlier: a program that scans new disks would have ended the device by closing it.
            device.end_with_last_user(&mut family)?;
            Ok(device)
        });
        if made.is_err() {
            // The first error says more than one of this call.
            let _ = disconnect(&mut family, index);
        }
        made
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Connects the device to another server after its first has died. Users notice only a pause.
    pub(crate) fn reconnect(&self, socket: &OwnedFd, bytes: u64) -> Result<(), NbdError> {
        let reconfigured = family()?.call(RECONFIGURE, |attributes| {
            attributes.word(INDEX, self.index);
            attributes.long(SIZE_BYTES, bytes);
            put_socket(attributes, socket);
        });
        reconfigured.map(drop).map_err(refused("take another server"))
    }

    fn end_with_last_user(&self, family: &mut NetlinkFamily) -> Result<(), NbdError> {
        let reconfigured = family.call(RECONFIGURE, |attributes| {
            attributes.word(INDEX, self.index);
            attributes.long(CLIENT_FLAGS, DISCONNECT_ON_CLOSE);
        });
        reconfigured
            .map(drop)
            .map_err(refused("end the device with its last user"))
    }

    /// Begins to release the device, unless another user has it exclusively; see
    /// [`LoopDevice::begin_release`](crate::loop_device::LoopDevice::begin_release).
    pub(crate) fn begin_release(&self) -> io::Result<ReleaseTask> {
        let path = self.path.clone();
        let exclusive = OFlags::EXCL.bits().cast_signed();
        let have = move || OpenOptions::new().read(true).custom_flags(exclusive).open(path);
        ReleaseTask::begin(have, drop)
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Fails every request, now and from now on.
    pub(crate) fn fail(&self) -> Result<(), NbdError> {
        fail_index(self.index)
    }
}

/// Fails every request of device `index` of this process, now and from now on.
pub(crate) fn fail_index(index: u32) -> Result<(), NbdError> {
    disconnect(&mut family()?, index)
}

/// Makes the device as large as its server's volume while it is in use.
pub(crate) fn resize(device: &Path, bytes: u64) -> Result<(), NbdError> {
    let index = index_of(device).ok_or_else(|| NbdError::Device {
        path: device.to_path_buf(),
        source: io::Error::other("this is not a device of the kernel's nbd"),
    })?;
    let reconfigured = family()?.call(RECONFIGURE, |attributes| {
        attributes.word(INDEX, index);
        attributes.long(SIZE_BYTES, bytes);
    });
    reconfigured.map(drop).map_err(refused("make the device larger"))
}

/// Fails every request of the device, now and from now on, if process `maker` still has it connected.
pub(crate) fn fail(device: &Path, maker: u32) -> Result<(), NbdError> {
    let name = device.file_name().unwrap_or_default();
    // The kernel shows which process connected a device.
    let shown = std::fs::read_to_string(Path::new("/sys/block").join(name).join("pid"));
    let is_ours = shown.is_ok_and(|pid| pid.trim().parse() == Ok(maker));
    match index_of(device).filter(|_| is_ours) {
        Some(index) => disconnect(&mut family()?, index),
        None => Ok(()),
    }
}

fn family() -> Result<NetlinkFamily, NbdError> {
    NetlinkFamily::open(FAMILY, VERSION).map_err(NbdError::Missing)
}

fn put_socket(attributes: &mut NetlinkAttributes, socket: &OwnedFd) {
    attributes.nested(SOCKETS, |sockets| {
        sockets.nested(SOCKET_ITEM, |item| {
            item.word(SOCKET_FD, socket.as_raw_fd().cast_unsigned());
        });
    });
}

fn disconnect(family: &mut NetlinkFamily, index: u32) -> Result<(), NbdError> {
    let disconnected = family.call(DISCONNECT, |attributes| attributes.word(INDEX, index));
    disconnected.map(drop).map_err(refused("end the device"))
}

fn open(index: u32) -> Result<NbdDevice, NbdError> {
    let path = PathBuf::from(format!("/dev/nbd{index}"));
    let opened = node::wait_for(&path, |path| number_of(path).and_then(|_| File::open(path)));
    match opened {
        Ok(held) => Ok(NbdDevice {
            path,
            index,
            _open: held,
        }),
        Err(source) => Err(NbdError::Device { path, source }),
    }
}

fn index_of(device: &Path) -> Option<u32> {
    device.file_name()?.to_str()?.strip_prefix("nbd")?.parse().ok()
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> NbdError {
    move |source| NbdError::Refused { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_nbd_devices_have_an_index() {
        assert_eq!(index_of(Path::new("/dev/nbd0")), Some(0));
        assert_eq!(index_of(Path::new("/dev/nbd12")), Some(12));
        for other in ["/dev/nbd0p1", "/dev/loop0", "/dev/nbd", "/"] {
            assert_eq!(index_of(Path::new(other)), None, "{other}");
        }
    }
}
