//! All limits of discovery, each with its reason.

use std::time::Duration;

use netram_proto::limit::LENDERS_MAX;

/// Maximum lenders that one search returns. Anybody on the network can announce lenders, and each is asked.
pub const FOUND_MAX: usize = 64;
/// Maximum bytes of a cluster file, which a person writes.
pub const CLUSTER_FILE_BYTES_MAX: u64 = 1 << 20;
/// Default time for which answers to an mDNS question are collected. RFC 6762 lets a responder wait 120 ms,
/// and the question is repeated after a second.
pub const BROWSE_DEFAULT: Duration = Duration::from_millis(1300);
/// Longest such time: a program that opens a journal waits for it.
pub const BROWSE_MAX: Duration = Duration::from_secs(30);
/// How long one name server may take before the next is asked.
pub const DNS_ATTEMPT: Duration = Duration::from_millis(1000);
/// How long all name servers together may take.
pub const DNS_PATIENCE: Duration = Duration::from_secs(4);
/// Number of name servers that are asked: as many as the C library asks.
pub const NAME_SERVERS_MAX: usize = 3;
/// Number of times that each of them is asked.
pub const DNS_ROUNDS: usize = 2;
/// Maximum bytes of an answer over TCP.
pub const DNS_BYTES_MAX: usize = 64 * 1024;
/// Maximum bytes of an answer over UDP, as announced to the server.
pub const DNS_UDP_BYTES: u16 = 1232;
/// How long each lender may take to connect and to answer.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// Number of handshakes with a lender whose quickest exchange counts as its distance.
pub const HANDSHAKES: usize = 3;
/// Distance from which one handshake is exact enough: delays of a busy machine are small beside it.
pub const FAR: Duration = Duration::from_millis(50);
/// Maximum addresses of one announcement that are tried.
pub const ADDRESSES_TRIED_MAX: usize = 4;
/// Maximum bytes of a name or a domain's label that is taken from an announcement.
pub const LABEL_BYTES_MAX: usize = 64;

const _: () = assert!(FOUND_MAX >= 2 * LENDERS_MAX, "there is a choice");
const _: () = assert!(BROWSE_DEFAULT.as_millis() < BROWSE_MAX.as_millis());
const _: () = assert!(DNS_ATTEMPT.as_millis() < DNS_PATIENCE.as_millis());
