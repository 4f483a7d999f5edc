//! The socket to which a server connects that another program starts: systemd, as the data's user, without
//! rights. It is root's; the user's group may connect.
//!
//! Both sides look at whom they talk to. The supervisor takes only a process of that user, and the server
//! only a process of root's: it gives its data away.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_peercred;

use crate::handover::{HandoverMessage, receive_message};
use crate::server::{ServerError, ServerProcess};
use crate::server_handle::ConnectedServer;

/// Permissions of the socket: the group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Number of processes of other users that are turned away at one attempt.
const STRANGERS_MAX: u32 = 64;
/// Delay between two attempts of a server to find its supervisor, which starts after it.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

/// A supervisor's socket for servers.
#[derive(Debug)]
pub struct ServerListener {
    socket: UnixListener,
    path: PathBuf,
    user: u32,
}

impl ServerListener {
    /// Listens at `path` for servers of this user. No other process listens there.
    ///
    /// # Errors
    ///
    /// The socket cannot be made, or not be given to the user's group.
    pub fn bind(path: PathBuf, user: u32, group: u32) -> io::Result<ServerListener> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => (),
        }
        let socket = UnixListener::bind(&path)?;
        socket.set_nonblocking(true)?;
        // Under systemd the group is this process's own already, and it may not change any.
        if fs::metadata(&path)?.gid() != group {
            chown(&path, None, Some(group))?;
        }
        fs::set_permissions(&path, Permissions::from_mode(SOCKET_MODE))?;
        Ok(ServerListener { socket, path, user })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a server.
    ///
    /// # Errors
    ///
    /// The socket fails.
    pub fn wait(&self, hung_after: Option<Duration>) -> Result<ServerProcess, ServerError> {
        loop {
            if let Some(server) = self.accept(hung_after)? {
                return Ok(server);
            }
            let mut come = [PollFd::new(&self.socket, PollFlags::IN)];
            retry_on_intr(|| poll(&mut come, None)).map_err(|errno| ServerError::Start(errno.into()))?;
        }
    }

    /// A server that has connected, if there is one.
    ///
    /// # Errors
    ///
    /// The socket fails.
    pub fn accept(&self, hung_after: Option<Duration>) -> Result<Option<ServerProcess>, ServerError> {
        for _ in 0..STRANGERS_MAX {
            let channel = match self.socket.accept() {
                Ok((channel, _)) => channel,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(ServerError::Start(error)),
            };
            let server = self
                .known(&channel)
                .and_then(|known| known.ok_or_else(|| ErrorKind::ConnectionAborted.into()))
                .map_err(ServerError::Start)
                .and_then(|known| ServerProcess::of_connection(known, channel, hung_after));
            match server {
                Ok(server) => return Ok(Some(server)),
                // It is gone again, or not the user's.
                Err(error) => tracing::debug!(%error, "a process that connected is not the server"),
            }
        }
        Ok(None)
    }

    /// The process at the other end; `None` if it is not the user's, or gone.
    fn known(&self, channel: &UnixStream) -> io::Result<Option<ConnectedServer>> {
        channel.set_nonblocking(false)?;
        let peer = socket_peercred(channel)?;
        if peer.uid.as_raw() != self.user {
            return Ok(None);
        }
        let server = ConnectedServer::of(peer.pid)?;
        // While its end is open it lives, and its id has not gone to another process.
        let mut end = [PollFd::new(channel, PollFlags::IN)];
        retry_on_intr(|| poll(&mut end, Some(&Timespec::default())))?;
        Ok((!end[0].revents().contains(PollFlags::HUP)).then_some(server))
    }
}

/// Makes this process a server of the supervisor that listens at `path`. Waits until there is one.
///
/// # Errors
///
/// Another user's process listens there, or this process has no more descriptors.
pub fn become_server(path: &Path) -> io::Result<()> {
    let mut told = false;
    loop {
        match connect(path) {
            Ok(Some(())) => return Ok(()),
            Ok(None) => (),
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::WouldBlock => (),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => (),
                _ => return Err(error),
            },
        }
        if !told {
            tracing::info!(socket = %path.display(), "waiting for the supervisor");
            told = true;
        }
        std::thread::sleep(CONNECT_PAUSE);
    }
}

/// Connects, and makes the connection this process's standard input; `None` if the supervisor ended.
fn connect(path: &Path) -> io::Result<Option<()>> {
    let channel = UnixStream::connect(path)?;
    let supervisor = socket_peercred(&channel)?.uid;
    if !supervisor.is_root() {
        let why = format!(
            "{}: user {} listens there, and only root supervises this process",
            path.display(),
            supervisor.as_raw()
        );
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    match receive_message(channel.as_fd())? {
        Some(HandoverMessage::Output(output)) => {
            rustix::stdio::dup2_stdin(OwnedFd::from(channel))?;
            rustix::stdio::dup2_stdout(output)?;
            Ok(Some(()))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::children::none_starts;
    use crate::handover::send_message;

    #[test]
    fn a_server_of_the_user_is_taken_and_its_last_word_counts() {
        let _closed_at_once = none_starts();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server");
        let user = rustix::process::geteuid().as_raw();
        let listener = ServerListener::bind(path, user, rustix::process::getegid().as_raw()).unwrap();
        assert!(listener.accept(None).unwrap().is_none());
        // A server that is gone before it is looked at.
        drop(UnixStream::connect(listener.path()).unwrap());
        assert!(listener.accept(None).unwrap().is_none());
        let channel = UnixStream::connect(listener.path()).unwrap();
        let mut server = listener.accept(None).unwrap().expect("it has connected");
        assert_eq!(server.process().unwrap().id, std::process::id());
        let Some(HandoverMessage::Output(output)) = receive_message(&channel).unwrap() else {
            panic!("another message")
        };
        rustix::io::write(&output, b"refused it\x1b[2J is broken\n").unwrap();
        let refused = server.offered(|_| None::<()>).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "it [2J is broken",
            "nothing controls the terminal"
        );
        send_message(&channel, &HandoverMessage::Closed).unwrap();
        assert!(server.look(Instant::now()).unwrap().is_none(), "it lives");
    }

    #[test]
    fn another_users_process_is_turned_away() {
        let _closed_at_once = none_starts();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server");
        let other = rustix::process::geteuid().as_raw() + 1;
        let listener = ServerListener::bind(path, other, rustix::process::getegid().as_raw()).unwrap();
        let channel = UnixStream::connect(listener.path()).unwrap();
        assert!(listener.accept(None).unwrap().is_none());
        assert!(matches!(receive_message(&channel), Ok(None) | Err(_)));
    }
}
