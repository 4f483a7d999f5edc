//! Every bound of this crate, with its reason, and the relations that must hold between them.

use std::time::Duration;

use netram_shared_machine::limit::{REGION_NODES_MAX, SHARED_HEADER_BYTES_MAX, SHARED_MESSAGE_BYTES_MAX};
use netram_transport::link::SEND_BUFFER_BYTES;

/// Bytes of one message of a node that has not been let in: what it costs the server whoever it is. A node
/// that comes back says how far it is with every node id that is known, each two numbers of ten bytes at
/// most.
pub const GREETING_BYTES_MAX: usize = SHARED_HEADER_BYTES_MAX + REGION_NODES_MAX * 20;
/// While so much waits for the peer, no further message is taken. One more may have been, of any length.
pub const QUEUED_BYTES_MAX: usize = 1024 * 1024;
/// A channel's buffer that has grown beyond this is given back when it is empty.
pub const BUFFER_KEPT_BYTES: usize = 1024 * 1024;

/// Sessions of one server by default; each costs about half a megabyte of buffers.
pub const SESSIONS_MAX_DEFAULT: usize = 256;
/// Strangers by default: shaking hands, or silent since.
pub const PENDING_MAX_DEFAULT: usize = 128;
/// When there is no room for another stranger, one that has been there for longer than this makes room.
pub const PENDING_GRACE: Duration = Duration::from_millis(250);
/// How long a stranger may take to its first frame after its handshake.
pub const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a door looks at its strangers' time, and a server at its nodes', at least.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);
/// Failed handshakes are reported at most this often, with their number.
pub const FLOOD_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// How long a node may be silent, by default.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(2);
/// Below this a busy machine's scheduler ends leases.
pub const LEASE_MIN: Duration = Duration::from_millis(200);
/// Beyond this nobody waits for a dead node's locks.
pub const LEASE_MAX: Duration = Duration::from_secs(600);
/// Bytes of records that a server keeps for nodes that are behind, by default.
pub const RECENT_BYTES_DEFAULT: usize = 64 << 20;
/// Bytes of the region that one message carries to a joining node: small, so that others' records wait little
/// behind it.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Messages that are taken from one link before the others have their turn.
pub const MESSAGES_A_TURN: usize = 64;
/// Bytes, of messages or of the region looked at, that one link is given before the others have their turn.
pub const FILL_BYTES_A_TURN: usize = 256 << 10;
/// While so many answers wait for a link, nothing is read from it.
pub const QUEUED_REPLIES_MAX: usize = 64;
/// A session that is no node's may be silent for so long.
pub const PENDING_SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a session that is over may take to hear the last word.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// One reading of a dead node's journal waits so long for the members that must answer.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// What could not be read is read again after so long.
pub const READ_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// A journal is not read for so long after somebody has offered it: it would be sealed while that goes on.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the lenders of a node that is gone are asked at once to give its windows back.
pub const FORGET_TIMEOUT: Duration = Duration::from_secs(3);
/// After so long those that could not be reached are asked again, at first.
pub const FORGET_RETRY_DEFAULT: Duration = Duration::from_secs(10);
/// How long a node's records may wait for others to go to the server with, when nobody waits for that: each
/// sending costs the server a sync, and both machines the waking of half a dozen threads. A node that takes
/// no records straight is so much later.
pub const RELAY_PAUSE: Duration = Duration::from_micros(500);
/// Bytes of records that wait no longer.
pub const DEFERRED_BYTES_MAX: usize = 64 << 10;
/// Locks that a status tells of.
pub const LOCKS_REPORTED_MAX: usize = 64;
/// Nodes of whom a loss was accepted that a status tells of.
pub const LOSSES_REPORTED_MAX: usize = 64;
/// A status is made anew so often for those who ask over links: what it costs others does not grow with those
/// who ask.
pub const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// Whoever asks for the status has so long to say so, and to take it.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// Those who are told the status over links at one time. They have places of their own: nobody who watches a
/// region keeps a node out.
pub const STATUS_SESSIONS_MAX: usize = 16;
/// Bytes of a question.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Bytes of an answer: 256 nodes and [`LOCKS_REPORTED_MAX`] locks with their holders. Names and addresses of
/// nothing but control characters could make it longer; then it is told without them.
pub const REPLY_BYTES_MAX: usize = 4 << 20;

/// Bytes of a node's log by default: it is needed as far as the server lags, which the window bounds, and
/// once more while it is trimmed.
pub const NODE_LOG_BYTES_DEFAULT: u64 = 32 << 20;
/// Bytes of the region, and of records, that wait for the copy of a node that joins. While they do nothing is
/// taken of its link; it says that it lives.
pub const JOINING_BYTES_MAX: usize = 8 << 20;
/// How long an acquire waits by default.
pub const LOCK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How long a node waits by default for a server that is silent.
pub const SERVER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Bytes of records that may wait because a program reads the region under a guard. With a pinned reader they
/// are bounded by choice; beyond this the node is none any more.
pub const UNAPPLIED_BYTES_MAX: usize = 256 << 20;
/// Records that wait to be sent straight to other nodes: the oldest is forgotten when there are more.
pub const HINTS_QUEUED_MAX: usize = 256;
/// Bytes of records that are held back for pinned readers by default.
pub const PINNED_BYTES_DEFAULT: usize = 64 << 20;

const _: () = assert!(FILL_BYTES_A_TURN <= QUEUED_BYTES_MAX);
const _: () = assert!(GREETING_BYTES_MAX <= SHARED_MESSAGE_BYTES_MAX);
const _: () = assert!(REPLY_BYTES_MAX <= SHARED_MESSAGE_BYTES_MAX);
const _: () = assert!(PAGE_BYTES as usize + SHARED_HEADER_BYTES_MAX <= SHARED_MESSAGE_BYTES_MAX);
const _: () = assert!(
    QUEUED_BYTES_MAX >= SEND_BUFFER_BYTES,
    "what waits fills the link's buffer"
);
const _: () = assert!(
    netram_shared_machine::limit::STAMP_LOCKS_MAX * (5 + 10) + 4 <= netram_rvm::limit::PREAMBLE_BYTES_MAX,
    "a lock and its version take at most 15 bytes of varints"
);
