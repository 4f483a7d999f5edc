//! Unix stream sockets: connecting with a deadline, and listening in place of a lender that died.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_process::files::{self, PRIVATE};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::process::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::tcp::BACKLOG;

/// Interval at which a lender with a full backlog is retried, since Unix sockets have no event for it.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

/// Allows only this user to connect. The socket is opened first: somebody may have replaced its name by a
/// link.
fn make_private(path: &Path) -> io::Result<()> {
    let opened = openat(
        CWD,
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let found = fstat(&opened)?;
    let is_ours =
        FileType::from_raw_mode(found.st_mode) == FileType::Socket && found.st_uid == geteuid().as_raw();
    match is_ours {
        true => fs::set_permissions(
            format!("/proc/self/fd/{}", opened.as_raw_fd()),
            fs::Permissions::from_mode(0o600),
        ),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "another user replaced the socket",
        )),
    }
}

/// Maximum wait for another lender of this user that is making its socket at the same path.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(5);

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
    // Without a lock another lender could start between the check and the removal, and lose its socket.
    let lock = SocketLock::take(path)?;
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
        make_private(path)?;
    }
    socket.listen(BACKLOG)?;
    let made = fs::symlink_metadata(path)?;
    drop(lock);
    let file = SocketFile {
        path: path.to_owned(),
        device: made.dev(),
        inode: made.ino(),
    };
    Ok((socket.into(), file))
}

/// The right to make a socket at a path: a lock file of this user's beside it, removed on drop.
///
/// A lock on the directory would be anybody's who can open that, and a stranger could keep a lender from
/// starting. This file can be opened by its owner only.
struct SocketLock {
    path: PathBuf,
    _file: File,
}

impl SocketLock {
    fn take(socket: &Path) -> io::Result<SocketLock> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let sentence = |what: &str| format!("the lock file {} {what}", path.display());
        loop {
            let file = files::open_or_create(&path, PRIVATE).map_err(|refusal| {
                io::Error::new(io::ErrorKind::PermissionDenied, sentence(&refusal.to_string()))
            })?;
            let made = file.metadata()?;
            if made.uid() != geteuid().as_raw() {
                let what = format!("belongs to user {}: remove it", made.uid());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, sentence(&what)));
            }
            let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
            // The lender that had it may have removed the file that was opened.
            let is_named = || fs::symlink_metadata(&path).is_ok_and(|named| named.ino() == made.ino());
            if locked.is_ok() && is_named() {
                return Ok(SocketLock { path, _file: file });
            }
            if Instant::now() >= deadline {
                let what = "is held by another process of this user";
                return Err(io::Error::new(io::ErrorKind::TimedOut, sentence(what)));
            }
            std::thread::sleep(LOCK_RETRY);
        }
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        // Before the descriptor is closed: the lock is still held.
        let _ = fs::remove_file(&self.path);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Anybody who could open the directory could keep a lender from starting, for ever.
    #[test]
    fn a_lock_on_the_directory_keeps_nobody_from_listening() {
        let directory = tempfile::tempdir().unwrap();
        let stranger = File::open(directory.path()).unwrap();
        flock(&stranger, FlockOperation::NonBlockingLockExclusive).unwrap();
        let path = directory.path().join("socket");
        let (_socket, file) = listen(&path, true).unwrap();
        let names = || fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names(), 1, "no lock file remains");
        drop(file);
        assert_eq!(names(), 0);
    }

    #[test]
    fn a_lock_file_of_a_strangers_is_named() {
        if !geteuid().is_root() {
            eprintln!("\nSKIPPED: giving files away needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let lock = directory.path().join("socket.lock");
        fs::write(&lock, "as it was").unwrap();
        std::os::unix::fs::chown(&lock, Some(12_345), None).unwrap();
        let refused = listen(&path, true).err().unwrap().to_string();
        assert!(
            refused.contains("socket.lock") && refused.contains("12345"),
            "{refused}"
        );
        assert_eq!(fs::read(&lock).unwrap(), b"as it was");
        fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink("/nowhere/else", &lock).unwrap();
        assert!(listen(&path, true).is_err());
    }
}
