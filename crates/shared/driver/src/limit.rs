//! Every bound of this crate, with its reason, and the relations that must hold between them.

use std::time::Duration;

use netram_shared_machine::limit::{REGION_NODES_MAX, SHARED_HEADER_BYTES_MAX, SHARED_MESSAGE_BYTES_MAX};
use netram_transport::link::SEND_BUFFER_BYTES;

/// Maximum bytes of one message of a node that has not been admitted, so of what any stranger costs the
/// server. A returning node sends the last record of every known node id, each as two numbers of at most ten
/// bytes.
pub const GREETING_BYTES_MAX: usize = SHARED_HEADER_BYTES_MAX + REGION_NODES_MAX * 20;
/// Bytes that may wait for the peer before no further message is queued. The last queued message may be of
/// any length.
pub const QUEUED_BYTES_MAX: usize = 1024 * 1024;
/// Capacity in bytes above which an empty buffer of a channel is freed.
pub const BUFFER_KEPT_BYTES: usize = 1024 * 1024;

/// Default number of sessions of one server; each costs about half a megabyte of buffers.
pub const SESSIONS_MAX_DEFAULT: usize = 256;
/// Maximum number of connections that have not proven the key; see the lender's limit of this name.
pub const STRANGERS_MAX: usize = 512;
/// Default number of pending sessions: first frame not finished.
pub const PENDING_MAX_DEFAULT: usize = 128;
/// Age above which a pending session may be closed to make room for a new one.
pub const PENDING_GRACE: Duration = Duration::from_millis(250);
/// Time that a pending session has for its first frame after its handshake.
pub const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time between two checks of an acceptor's pending sessions, and of a server's nodes.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum time between two log lines about failed handshakes; each names their number.
pub const FLOOD_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Default time for which a node may be silent.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(2);
/// Shortest lease. With a shorter one the scheduler of a busy machine would end leases.
pub const LEASE_MIN: Duration = Duration::from_millis(200);
/// Longest lease. No transaction would wait longer for a dead node's locks.
pub const LEASE_MAX: Duration = Duration::from_secs(600);
/// Default bytes of records that a server keeps for nodes that are behind.
pub const RECENT_BYTES_DEFAULT: usize = 64 << 20;
/// Bytes of the region that one message carries to a joining node. Small, so that other nodes' records wait
/// little behind it.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Number of messages read from one link before the others have their turn.
pub const MESSAGES_A_TURN: usize = 64;
/// Number of packets read from one link before the others have their turn, 2 MiB: a message may have many.
pub const PACKETS_A_TURN: u64 = 32;
/// Bytes of messages, or of the region examined, that one link is sent before the others have their turn.
pub const FILL_BYTES_A_TURN: usize = 256 << 10;
/// Number of answers waiting for a link at which nothing more is read from it.
pub const QUEUED_REPLIES_MAX: usize = 64;
/// Time for which a session without a node id may be silent.
pub const PENDING_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Time that an ended session has to receive its last message.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that one attempt to read a dead node's journal waits for the members that must answer.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a failed reading is repeated.
pub const READ_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Time for which a journal is not read after its process has offered it. Reading would fence it while the
/// process sends its records.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that one attempt to tell a gone node's lenders takes at most.
pub const FORGET_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause before the first repetition for lenders that could not be reached.
pub const FORGET_RETRY_DEFAULT: Duration = Duration::from_secs(10);
/// Time for which a node's safe records may wait to be sent to the server together. Each sending costs the
/// server a sync, and both machines the wake-up of half a dozen threads. A node without direct records gets
/// them later by this time.
pub const RELAY_PAUSE: Duration = Duration::from_micros(500);
/// Bytes of records at which they are sent without waiting.
pub const DEFERRED_BYTES_MAX: usize = 64 << 10;
/// Maximum number of locks in a status.
pub const LOCKS_REPORTED_MAX: usize = 64;
/// Maximum number of nodes with an accepted loss in a status.
pub const LOSSES_REPORTED_MAX: usize = 64;
/// Age at which the status is computed anew for requests over links, so that its cost does not grow with the
/// number of clients.
pub const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// Time that a client has to request the status and to read it.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of status sessions at one time. They have permits of their own, so that watching a region
/// keeps no node out.
pub const STATUS_SESSIONS_MAX: usize = 16;
/// Maximum bytes of a control request.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Maximum bytes of a control reply: 256 nodes and [`LOCKS_REPORTED_MAX`] locks with their holders. If
/// control characters in names and addresses make it longer, it is sent without them.
pub const REPLY_BYTES_MAX: usize = 4 << 20;

/// Default bytes of a node's log. It holds what the server lags behind, which the window bounds, and as much
/// again while it is trimmed.
pub const NODE_LOG_BYTES_DEFAULT: u64 = 32 << 20;
/// Bytes of pages and records that may wait for a joining node's copy. At this bound the node reads nothing
/// more from its link, but keeps its lease.
pub const JOINING_BYTES_MAX: usize = 8 << 20;
/// Default time for which a transaction waits for a lock.
pub const LOCK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Default time for which a node waits for a silent server.
pub const SERVER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Bytes of records that may wait because the program reads the region under a guard. Beyond this the node
/// ends. (Pinned readers have a bound of their own.)
pub const UNAPPLIED_BYTES_MAX: usize = 256 << 20;
/// Number of records that may wait to be sent directly to other nodes. Beyond this the oldest is dropped.
pub const HINTS_QUEUED_MAX: usize = 256;
/// Default bytes of records that are held back for pinned readers.
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
