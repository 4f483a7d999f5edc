//! The journals that processes of this machine have open, found by their sockets.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::client::{converse, report_in};
use super::{JournalOrder, JournalReport, OrderError, SOCKET_PREFIX};

/// Kernel's flag of a socket that listens, in `/proc/net/unix`.
const LISTENS: &str = "00010000";

/// The socket of a journal that a process has open. Anybody can listen at such a name, so what it reports is
/// only shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenJournalSocket(String);

/// The sockets of all journals that are open in this network namespace, whoever has them open.
///
/// # Errors
/// The kernel's table of sockets cannot be read.
pub fn open_journals() -> io::Result<BTreeSet<OpenJournalSocket>> {
    let table = std::fs::read("/proc/net/unix")?;
    Ok(listening(&String::from_utf8_lossy(&table)))
}

fn listening(table: &str) -> BTreeSet<OpenJournalSocket> {
    let name = |line: &str| {
        // Number, references, protocol, flags, type, state, inode, name.
        let mut words = line.split_whitespace();
        let listens = words.nth(3) == Some(LISTENS);
        let name = words.nth(3)?.strip_prefix('@')?;
        let is_journal = listens && name.starts_with(SOCKET_PREFIX);
        is_journal.then(|| OpenJournalSocket(name.to_owned()))
    };
    table.lines().filter_map(name).collect()
}

impl OpenJournalSocket {
    /// The socket's name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Asks for the journal's state. Waits no longer than `patience` for each step: a stopped process does
    /// not even accept.
    ///
    /// # Errors
    /// [`OrderError::Foreign`] if the process is another user's, and answers only that user and root; others
    /// if it does not answer or refuses.
    pub fn report(&self, patience: Duration) -> Result<JournalReport, OrderError> {
        let system = |errno: rustix::io::Errno| OrderError::Io(errno.into());
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.map_err(system)?;
        // This bounds the connecting, too, which waits while the other side's queue is full.
        set_socket_timeout(&socket, Timeout::Send, Some(patience)).map_err(system)?;
        let name = SocketAddrUnix::new_abstract_name(self.0.as_bytes()).map_err(system)?;
        connect(&socket, &name).map_err(system)?;
        let peer = socket_peercred(&socket).map_err(system)?.uid;
        let own = rustix::process::geteuid();
        if !own.is_root() && peer != own {
            return Err(OrderError::Foreign(peer.as_raw()));
        }
        let reply = converse(&mut UnixStream::from(socket), &JournalOrder::Report, patience)?;
        report_in(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_of_journals_are_taken() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 7 @netram-journal-ab\n\
            0: 00000002 00000000 00010000 0001 01 8 @netram-journal-ab\n\
            0: 00000003 00000000 00000000 0001 03 9 @netram-journal-cd\n\
            0: 00000002 00000000 00010000 0001 01 6 /run/netram-journal-ef\n\
            0: 00000003 00000000 00000000 0001 03 5\n";
        let found = listening(table);
        assert_eq!(found, [OpenJournalSocket("netram-journal-ab".to_owned())].into());
    }
}
