//! Internal to netram: programs use the crate `netram`.
//!
//! Byte links between clients and lenders: connected, authenticated, encrypted, non-blocking.
//!
//! A [`Link`] moves *packets*; one packet is one protocol frame, whose meaning belongs to `netram-proto`.
//! Clients [`connect`](connect()); lenders [`Listener::bind`] and drive every [`PendingHandshake`] from one
//! thread. With a [`ClusterKey`] every link is encrypted, and both ends are proven to hold the key. Without
//! one ([`Security::Insecure`]) only local addresses are served.
//!
//! Sequence of a link, client on the left:
//!
//! ```text
//! preamble (16 bytes, clear)       ->
//!                                  <-  preamble (16 bytes, clear: accepted, or why not), nonce (16 bytes)
//! Noise message 1 (48 bytes)       ->                                  \
//!                                  <-  Noise message 2 (48 bytes)       } only with a key
//! confirmation (16 bytes, sealed)  ->                                  /
//! packets                         <->  packets
//! ```
//!
//! | module | decides |
//! |---|---|
//! | [`address`] | syntax of a lender's address; which addresses are local |
//! | [`key`] | the cluster key and its file |
//! | [`key_ring`] | the keys of named clients |
//! | [`security`] | the choice between a key and none; default key files |
//! | [`preamble`] | the first 16 bytes of every connection; the wire version |
//! | [`secure`], `cipher` | the Noise handshake, and the encryption of packets after it |
//! | [`connect`](mod@connect), [`listen`] | the client's and the lender's side of the handshake |
//! | [`owner`] | signatures of a journal's owner |
//! | `locked_key` | the one copy of a key in memory |
//! | `lookup`, `happy_eyeballs` | name lookups with a deadline; concurrent attempts to several addresses |
//! | [`acceptor`] | the thread that takes connections to their first request |
//! | [`pending_connections`] | limits on connections that have not authenticated or sent a first frame |
//! | [`link`](mod@link) | packets over a socket, without allocation |
//! | [`listen_socket`] | a listening socket without a protocol; its scope |
//! | [`multicast`] | encrypted datagrams to a group, unordered and unreliable |
//! | [`poll`], [`wait`] | waiting for many links; spin, yield or block |
//! | [`yield_history`] | whether it pays to yield |
#![deny(unsafe_code)]

pub mod acceptor;
pub mod address;
#[doc(hidden)]
pub mod both_ends;
mod buffer;
mod cipher;
pub mod connect;
pub mod error;
#[doc(hidden)]
pub mod fuzzed;
mod group;
mod happy_eyeballs;
pub mod key;
pub mod key_ring;
pub mod link;
pub mod listen;
pub mod listen_socket;
mod locked_key;
mod lookup;
pub mod multicast;
pub mod owner;
pub mod pending_connections;
pub mod poll;
pub mod preamble;
pub mod secure;
pub mod security;
#[allow(unsafe_code, reason = "the crate's one unsafe module")]
mod sys;
mod tcp;
mod unix;
pub mod wait;
pub mod yield_history;

pub use acceptor::{Acceptor, AcceptorLimits, ConnectionHandler, GreetOutcome};
pub use address::{NetAddress, NetAddressError, NetHost};
pub use connect::{connect, connect_to_user};
pub use error::{ConnectError, HandshakeError, LinkError, ListenError};
pub use group::{MulticastGroup, MulticastGroupError};
pub use key::{ClusterKey, KeyError};
pub use key_ring::{ClientIdentity, KeyId, KeyRing};
pub use link::{Link, PACKET_BYTES_MAX, SendProgress};
pub use listen::{HANDSHAKE_TIMEOUT, HandshakeProgress, Listener, PENDING_MAX, PendingHandshake};
pub use listen_socket::{ListenScope, ListenSocket};
pub use locked_key::LockedKey;
pub use multicast::{DropCounts, MulticastReceiver, MulticastSender, ReceivedDatagram};
pub use owner::{OwnerId, OwnerKey, check_proof};
pub use poll::{Interest, Poller, ReadyEvent, ReadyEvents, Waker};
pub use preamble::{VersionRange, WIRE_VERSION};
pub use security::{ListenSecurity, Security, SecurityError};
pub use wait::{WaitPolicy, WaitStep, may_yield, yield_core};
