//! Every bound of a shared region, with its reason, and the relations that must hold between them.

use netram_proto::limit::RECORD_BYTES_MAX;
use netram_proto::time::Nanos;

/// Maximum number of locks of one transaction on shared memory.
pub const STAMP_LOCKS_MAX: usize = 1024;
/// Maximum bytes of a message before its payload: a kind, a flag, a place in a journal and at most three
/// numbers, as varints.
pub const SHARED_HEADER_BYTES_MAX: usize = 64;
/// Maximum bytes of one message between a node and its server: any record or bytes of the region, with the
/// header. The receiver allocates no memory for bytes that have not arrived, so this limit costs it nothing.
pub const SHARED_MESSAGE_BYTES_MAX: usize = RECORD_BYTES_MAX + SHARED_HEADER_BYTES_MAX;
/// Maximum bytes of the name that a node gives itself.
pub const NODE_NAME_BYTES_MAX: usize = 256;
/// Maximum number of links that one node may have opened. A node that opens twenty a second reaches it after
/// six years; the number only tells later links from earlier ones.
pub const NODE_LINKS_MAX: u64 = 1 << 32;
/// Maximum number of locks of one region. All their spans and versions fit one message.
pub const REGION_LOCKS_MAX: usize = 1 << 20;
/// Maximum number of node ids that a region remembers. The ids that have been gone longest are forgotten
/// first.
pub const REGION_NODES_MAX: usize = 1 << 16;
/// Maximum bytes of the settings that a region hands to its nodes.
pub const SETTINGS_BYTES_MAX: usize = 64 * 1024;
/// Time after which a node whose machine closed its link is taken for dead; a quarter of the lease if that is
/// shorter. If the network broke the link, the node reconnects within that time.
pub const DISCONNECT_GRACE: Nanos = Nanos::from_ms(100);
/// Time that a node which left has for telling its lenders that its windows may be freed. After that the
/// server tells them too, since the node's process may have ended first.
pub const LEAVE_GRACE: Nanos = Nanos::from_ms(1_000);
/// Maximum number of times that the pause doubles between attempts to reach a lender about freed windows.
pub const FORGET_DOUBLINGS_MAX: u32 = 6;
/// Maximum number of one node's records that wait for records they depend on. An honest node never sends more
/// than its journal may hold; this limit protects the server from a faulty one.
pub const MERGE_RECORDS_MAX: usize = 1 << 20;
/// Maximum bytes of one node's waiting records, and of the records of an offered journal. Everything that a
/// node has and its server does not fits the node's window, so a node that sends more is faulty.
pub const MERGE_BYTES_MAX: usize = 2 * RECORD_BYTES_MAX;
/// Maximum bytes of unsent messages to one node, without records and pages. A node that reads so slowly that
/// more would wait has to rejoin.
pub const OUTBOX_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of views of one journal on their way to the server's disk. A node waits for each before it
/// sends the next.
pub const PENDING_VIEWS_MAX: usize = 16;
/// Maximum number of other nodes' records that a hint may depend on. A hint that would need more is not sent;
/// the server's stream brings the record.
pub const HINT_NEEDS_MAX: usize = 64;
/// Maximum bytes of a record that is sent directly to peers. For a longer one the detour through the server
/// costs little.
pub const HINT_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of the name of a multicast group with its interface.
pub const GROUP_BYTES_MAX: usize = 64;
/// Number of grant numbers that a server makes durable at once. It syncs once for every half of them.
pub const GRANTS_RESERVED: u64 = 1 << 20;

const _: () = assert!(
    REGION_LOCKS_MAX * (5 + 10 + 10)
        + REGION_LOCKS_MAX * (5 + 10)
        + REGION_NODES_MAX * 20
        + SETTINGS_BYTES_MAX
        + 256
        <= SHARED_MESSAGE_BYTES_MAX,
    "the largest `Joined` is one message"
);
const _: () = assert!(SHARED_HEADER_BYTES_MAX >= 1 + 1 + (10 + 4) + 3 * 10);
const _: () = assert!(
    SHARED_MESSAGE_BYTES_MAX <= u32::MAX as usize,
    "a message's length is four bytes"
);
const _: () = assert!(HINT_BYTES_MAX + 32 + HINT_NEEDS_MAX * 20 <= SHARED_MESSAGE_BYTES_MAX);
