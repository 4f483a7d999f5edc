//! Byte links between clients and lenders: connected, authenticated, encrypted, non-blocking.
//!
//! A [`Link`] moves *packets*; one packet is one protocol frame, whose meaning belongs to `netram-proto`.
//! Clients [`connect`]; lenders [`Listener::bind`] and drive each [`Pending`] handshake from their one thread.
//! With a [`ClusterKey`] every link is encrypted and both ends are proven to hold the key; without one
//! ([`Security::Insecure`]) only local addresses are served.
//!
//! Life of a link, client on the left:
//!
//! ```text
//! preamble (16 bytes, clear)       ->
//!                                  <-  preamble (16 bytes, clear: accepted, or why not)
//! Noise message 1 (48 bytes)       ->                                  \
//!                                  <-  Noise message 2 (48 bytes)       } only with a key
//! confirmation (16 bytes, sealed)  ->                                  /
//! packets                         <->  packets
//! ```
//!
//! | module | decides |
//! |---|---|
//! | [`address`] | how a lender is named, and which names are local |
//! | [`key`] | the cluster key and its file |
//! | [`preamble`] | the first bytes of every connection, the wire version |
//! | [`secure`] | the Noise handshake and the sealing of packets |
//! | [`connect`](mod@connect), [`listen`] | the two ends of the handshake |
//! | `lookup`, `race` | names looked up beside, and addresses tried together |
//! | [`strangers`] | what they may cost who have not said yet what they want |
//! | [`link`](mod@link) | packets over a socket, without allocation |
//! | [`port`] | a listening socket before any protocol, and who may reach it |
//! | [`multicast`] | datagrams to a group, sealed; without any link's promises |
//! | [`poll`], [`wait`] | waiting for many links, and how hard to wait |
#![deny(unsafe_code)]

pub mod address;
mod buffer;
mod cipher;
pub mod connect;
pub mod error;
#[doc(hidden)]
pub mod fuzzed;
mod group;
pub mod key;
pub mod link;
pub mod listen;
mod lookup;
pub mod multicast;
pub mod poll;
pub mod port;
pub mod preamble;
mod race;
pub mod secure;
pub mod strangers;
#[allow(unsafe_code, reason = "the crate's one unsafe module")]
mod sys;
mod tcp;
mod unix;
pub mod wait;

pub use address::{Address, AddressError, Host};
pub use connect::connect;
pub use error::{BindError, ConnectError, HandshakeError, LinkError};
pub use group::{Group, GroupError};
pub use key::{ClusterKey, KeyError};
pub use link::{Link, PACKET_BYTES_MAX, Sent};
pub use listen::{HANDSHAKE_TIMEOUT, Listener, PENDING_MAX, Pending, Progress};
pub use multicast::{Caster, Dropped, Ear, Heard};
pub use poll::{Events, Interest, Poller, Ready, Waker};
pub use port::{Port, Reach};
pub use preamble::{Versions, WIRE_VERSION};
pub use secure::Security;
pub use wait::{WaitPolicy, WaitStep};
