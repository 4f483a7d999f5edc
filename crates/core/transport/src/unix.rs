//! Unix stream sockets: connecting with a deadline, and listening in place of a lender that died.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::tcp::BACKLOG;

/// Interval at which a lender with a full backlog is retried, since Unix sockets have no event for it.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

/// The file of a listening socket. Dropping removes it, unless another file has its name by then.
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Connects before `deadline`. The socket returned is non-blocking.
pub(crate) fn connect(path: &Path, deadline: Instant) -> io::Result<OwnedFd> {
    let address = SockAddr::unix(path)?;
    loop {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        match socket.connect(&address) {
            Ok(()) => return Ok(socket.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(BACKLOG_RETRY);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Listens at `path` and replaces a socket file without a listener. `private` allows only this user to
/// connect.
pub(crate) fn listen(path: &Path, private: bool) -> io::Result<(OwnedFd, SocketFile)> {
    // Without a lock another lender could start between the check and the removal, and lose its socket. The
    // lock is the directory itself, so that no lock file remains.
    let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
    flock(&directory, FlockOperation::LockExclusive)?;
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path, &address)?;
            socket.bind(&address)?;
        }
        bound => bound?,
    }
    if private {
        // Before `listen` no process can connect, so the permissions apply from the start.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    }
    socket.listen(BACKLOG)?;
    let made = fs::symlink_metadata(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        device: made.dev(),
        inode: made.ino(),
    };
    Ok((socket.into(), file))
}

/// Removes a socket file that refuses connections. Any other file stays, and is reported as `AddrInUse` or
/// `AlreadyExists`.
fn remove_stale(path: &Path, address: &SockAddr) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket is in the way",
        ));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match probe.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // The socket was connected, or its backlog is full, or access is denied: a listener may exist.
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = |found: &fs::Metadata| found.dev() == self.device && found.ino() == self.inode;
        if fs::symlink_metadata(&self.path).is_ok_and(|found| ours(&found)) {
            // If this fails a stale file remains, which the next lender removes.
            let _ = fs::remove_file(&self.path);
        }
    }
}
