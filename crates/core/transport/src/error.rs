//! Errors: one enum an operation, one variant a reaction of the caller.

use std::io;

use crate::address::NetAddress;
use crate::preamble::VersionRange;

/// Why a [`Link`](crate::Link) failed or could not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The send buffer has no room for the packet, and no byte of it was taken. Flush until the peer has
    /// read.
    #[error("the peer does not read fast enough; the send buffer is full")]
    Congested,
    /// The peer closed the connection, or it broke. All whole packets that arrived before were delivered.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer announced a packet of an impossible length. Drop the link.
    #[error("the peer announced a packet of {length} bytes, which is not a valid length")]
    Malformed {
        /// The announced length in bytes, as on the wire.
        length: usize,
    },
    /// A packet was altered, replayed or reordered in transit. Drop the link.
    #[error("a packet was altered in transit; the link can no longer be trusted")]
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
    /// The client has another key, or the handshake was altered in transit.
    #[error("its cluster key is not ours; give both sides the same key file")]
    WrongKey,
    /// The client and this build have no wire version in common.
    #[error("it speaks wire version {theirs}, this process {ours}; run the same netram release on both")]
    WrongVersion {
        /// The versions that this build speaks.
        ours: VersionRange,
        /// The versions that the client speaks.
        theirs: VersionRange,
    },
    /// The client has no key, and this lender requires one.
    #[error("it has no cluster key, and this process requires one")]
    SecureRequired,
    /// The client has a key, and this lender runs without one.
    #[error("it has a cluster key, but this process runs with --insecure")]
    InsecureRequired,
    /// The owner [refused](crate::PendingHandshake::refuse_busy) the client because it has too many
    /// connections.
    #[error("it was refused: too many connections")]
    Busy,
    /// The connection ended before the handshake was complete.
    #[error("the connection ended in the middle of the handshake")]
    CutOff,
    /// The handshake was not complete at its deadline.
    #[error("it did not finish the handshake in time")]
    TimedOut,
    /// The other side is not netram.
    #[error("the other side does not speak netram")]
    NotNetram,
    /// The socket or the system's random generator failed.
    #[error("the handshake failed: {0}")]
    Failed(#[source] io::Error),
}

/// Why [`connect`](crate::connect()) made no link.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name does not resolve. Retry later.
    #[error("the name {name} has no address: {source}")]
    NameNotFound {
        /// The host name.
        name: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// No name server answered in time, and no earlier address of the name is cached. Retry later.
    #[error(
        "no name server answered for {name}: use a numeric address, or check this machine's name servers"
    )]
    NameUnanswered {
        /// The host name.
        name: String,
    },
    /// The connection was refused or there is no route. Retry later.
    #[error("cannot reach {address}: {source}")]
    Unreachable {
        /// The lender.
        address: NetAddress,
        /// The system's error.
        source: io::Error,
    },
    /// The connection or the handshake was not complete in time. Retry later.
    #[error("the other side did not answer in time")]
    TimedOut,
    /// The lender has another key, or the handshake was altered in transit.
    #[error("the other side's cluster key is not ours; give both sides the same key file")]
    WrongKey,
    /// The lender and this build have no wire version in common.
    #[error(
        "the other side speaks wire version {theirs}, this one {ours}; run the same netram release on both"
    )]
    WrongVersion {
        /// The versions that this build speaks.
        ours: VersionRange,
        /// The versions that the lender speaks.
        theirs: VersionRange,
    },
    /// The lender requires a key, and this client has none.
    #[error("the other side requires the cluster key; give both sides the same key file")]
    SecureRequired,
    /// The lender runs without a key. A client with a key never talks in the clear.
    #[error(
        "the other side runs with --insecure, but this side has a cluster key and never talks in the clear"
    )]
    InsecureRequired,
    /// The address is not local, and this client has no key.
    #[error("{address} is not on this machine; without a cluster key only local addresses are allowed")]
    InsecureRefused {
        /// The lender.
        address: NetAddress,
    },
    /// The lender has too many connections. Retry later.
    #[error("the other side is busy: it has too many connections")]
    Busy,
    /// The connection ended before the handshake was complete. Retry later.
    #[error("the other side ended the connection in the middle of the handshake")]
    CutOff,
    /// The other side is not netram.
    #[error("the other side does not speak netram")]
    NotNetram,
}

/// Why a lender cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other machines can reach the address, and this lender has no key.
    #[error(
        "{address} can be reached from other machines; without a cluster key only local addresses are served"
    )]
    InsecureRefused {
        /// The requested address.
        address: NetAddress,
    },
    /// Another process listens at the address.
    #[error("{address} is in use by another process")]
    InUse {
        /// The requested address.
        address: NetAddress,
    },
    /// The socket cannot be created.
    #[error("cannot listen on {address}: {source}")]
    Failed {
        /// The requested address.
        address: NetAddress,
        /// The system's error.
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
