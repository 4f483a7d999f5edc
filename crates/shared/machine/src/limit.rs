//! Every bound of a shared region, with its reason, and the relations that must hold between them.

use netram_proto::limit::RECORD_BYTES_MAX;
use netram_proto::time::Nanos;

/// Locks of one transaction on shared memory.
pub const STAMP_LOCKS_MAX: usize = 1024;
/// Bytes of a message before its payload: a kind, a flag, a place in a journal and at most three numbers, as
/// varints.
pub const SHARED_HEADER_BYTES_MAX: usize = 64;
/// Bytes of one message between a node and its server: any record, or bytes of the region, with what is
/// before it. Who receives takes no memory for bytes that have not come, so what is longer is refused for
/// what it is and not for what it costs.
pub const SHARED_MESSAGE_BYTES_MAX: usize = RECORD_BYTES_MAX + SHARED_HEADER_BYTES_MAX;
/// Bytes of the name that a node gives itself.
pub const NODE_NAME_BYTES_MAX: usize = 256;
/// Locks of one region. All of their spans and versions fit one message.
pub const REGION_LOCKS_MAX: usize = 1 << 20;
/// Node ids of one region that anything is known of. Those that are gone longest are forgotten.
pub const REGION_NODES_MAX: usize = 1 << 16;
/// Bytes of the settings that a region hands to its nodes.
pub const SETTINGS_BYTES_MAX: usize = 64 * 1024;
/// A node whose machine has closed its link is taken for dead after so long, or a quarter of the lease: if
/// something between the machines has broken the link, the node has come back over another by then.
pub const DISCONNECT_GRACE: Nanos = Nanos::from_ms(100);
/// A node that has left tells its lenders itself that they may give its windows back. The server tells them
/// too, for its process may end before it has, but not before it had this long.
pub const LEAVE_GRACE: Nanos = Nanos::from_ms(1_000);
/// Lenders that cannot be told so are tried again ever more seldom; the pause doubles at most so often.
pub const FORGET_DOUBLINGS_MAX: u32 = 6;
/// Records of one node that wait until what they depend on has come. A node sends no more than it may have in
/// its journal, but this bounds what a server keeps for one that says nonsense.
pub const MERGE_RECORDS_MAX: usize = 1 << 20;
/// Bytes of them, and of the records of a journal that is offered: whatever a node has that its server does
/// not keep fits its window, of which it uses no more. Whoever sends more errs, or lies.
pub const MERGE_BYTES_MAX: usize = 2 * RECORD_BYTES_MAX;
/// Bytes of what a server has to say to a node beside records and pages, and has not said. Whoever takes so
/// little begins anew.
pub const OUTBOX_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Views of one journal on their way to the server's disk. A node waits for each before it sends the next.
pub const PENDING_VIEWS_MAX: usize = 16;
/// Numbers of other nodes that a hint may need. One that needs more is not sent: the server's stream brings
/// the record.
pub const HINT_NEEDS_MAX: usize = 64;
/// Bytes of a record that goes straight to peers. A longer one's way through the server is hardly longer.
pub const HINT_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the name of a multicast group, with an interface.
pub const GROUP_BYTES_MAX: usize = 64;
/// Grant numbers that a server makes durable at once: a sync for every half of that many hand-overs.
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
