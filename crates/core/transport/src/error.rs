//! Errors, one enum an operation, one variant a reaction.

use std::io;

use crate::address::NetAddress;
use crate::preamble::VersionRange;

/// What ended or held up a [`Link`](crate::Link).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The send buffer has no room for the packet; nothing of it was taken. Flush until the peer has read.
    #[error("the peer does not read fast enough; the send buffer is full")]
    Congested,
    /// The peer closed the connection, or it broke. Whole packets that had arrived were delivered before.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer announced a packet that cannot be. Drop the link.
    #[error("the peer sent a packet of {length} bytes; no packet has that length")]
    Malformed {
        /// The announced length, as on the wire.
        length: usize,
    },
    /// A packet was changed, replayed or reordered on its way. Drop the link.
    #[error("a packet was changed on its way; the link is not to be trusted any more")]
    Tampered,
    /// The socket failed. Drop the link.
    #[error("the connection failed: {}", io::Error::from_raw_os_error(*.errno))]
    Failed {
        /// The operating system's error number.
        errno: i32,
    },
}

/// Why a lender did not accept a connection. Log it and drop the
/// [`PendingHandshake`](crate::PendingHandshake).
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client has another key, or something on the way changed the handshake.
    #[error("its cluster key is not ours; give both sides the same key file")]
    WrongKey,
    /// No common wire version.
    #[error("it speaks wire version {theirs}, this process {ours}; run the same netram release on both")]
    WrongVersion {
        /// The versions that this build speaks.
        ours: VersionRange,
        /// The versions that the client speaks.
        theirs: VersionRange,
    },
    /// The client came without a key.
    #[error("it came without a cluster key, which is required here")]
    SecureRequired,
    /// The client came with a key, and this lender runs without.
    #[error("it came with a cluster key, but this process runs with --insecure")]
    InsecureRequired,
    /// The owner had [refused](crate::PendingHandshake::refuse_busy) the client beforehand.
    #[error("it was sent away: too many connections")]
    Busy,
    /// The connection ended before the handshake did.
    #[error("the connection ended in the middle of the handshake")]
    CutOff,
    /// The handshake took too long.
    #[error("it did not finish the handshake in time")]
    TimedOut,
    /// The other side is some other program.
    #[error("the other side does not speak netram")]
    NotNetram,
    /// The socket or the random generator failed.
    #[error("the handshake failed: {0}")]
    Failed(#[source] io::Error),
}

/// Why [`connect`](crate::connect()) made no link.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name does not resolve. Retry later.
    #[error("the name {name} has no address: {source}")]
    NameNotFound {
        /// The name.
        name: String,
        /// What the system's resolver said.
        source: io::Error,
    },
    /// No name server has answered in the time given, and no address of the name is known from before. Retry
    /// later.
    #[error(
        "no name server answers for {name}: give the address in digits, or see to the machine's name servers"
    )]
    NameUnanswered {
        /// The name.
        name: String,
    },
    /// Nobody answers there. Retry later.
    #[error("cannot reach {address}: {source}")]
    Unreachable {
        /// The lender.
        address: NetAddress,
        /// Why.
        source: io::Error,
    },
    /// No connection, or no whole handshake, in the time given. Retry later.
    #[error("the other side did not answer in time")]
    TimedOut,
    /// The lender has another key, or something on the way changed the handshake.
    #[error("the other side's cluster key is not ours; give both sides the same key file")]
    WrongKey,
    /// No common wire version.
    #[error(
        "the other side speaks wire version {theirs}, this one {ours}; run the same netram release on both"
    )]
    WrongVersion {
        /// The versions that this build speaks.
        ours: VersionRange,
        /// The versions that the lender speaks.
        theirs: VersionRange,
    },
    /// The lender demands a key, and this client was told to go without.
    #[error("the other side requires the cluster key; give both sides the same key file")]
    SecureRequired,
    /// The lender runs without a key. This client has one and never talks in the clear.
    #[error("the other side runs with --insecure; with a cluster key nobody is talked to in the clear")]
    InsecureRequired,
    /// Without a key only local addresses are spoken to.
    #[error("{address} is not on this machine; without a cluster key only local addresses are allowed")]
    InsecureRefused {
        /// The lender.
        address: NetAddress,
    },
    /// The lender has too many connections. Retry later.
    #[error("the other side is busy: it has too many connections")]
    Busy,
    /// The connection ended before the handshake did. Retry later.
    #[error("the other side ended the connection in the middle of the handshake")]
    CutOff,
    /// The other side is some other program.
    #[error("the other side does not speak netram")]
    NotNetram,
}

/// Why a lender cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Without a key only local addresses are served.
    #[error(
        "{address} can be reached from other machines; without a cluster key only local addresses are served"
    )]
    InsecureRefused {
        /// The address asked for.
        address: NetAddress,
    },
    /// Somebody listens there already.
    #[error("{address} is in use by another process")]
    InUse {
        /// The address asked for.
        address: NetAddress,
    },
    /// The socket cannot be made.
    #[error("cannot listen on {address}: {source}")]
    Failed {
        /// The address asked for.
        address: NetAddress,
        /// Why.
        source: io::Error,
    },
}

impl From<rustix::io::Errno> for LinkError {
    fn from(errno: rustix::io::Errno) -> LinkError {
        use rustix::io::Errno;
        match errno {
            Errno::PIPE | Errno::CONNRESET => LinkError::Closed,
            other => LinkError::Failed {
                errno: other.raw_os_error(),
            },
        }
    }
}
