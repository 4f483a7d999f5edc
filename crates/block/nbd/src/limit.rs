//! Bounds of the server, and the relations between them.

use netram_block::{BLOCK_BYTES, SECTOR_BYTES};

/// Maximum bytes of a request's payload or reply. Announced to clients; nbdkit and qemu have the same limit.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Maximum bytes of a refused payload that are skipped to find the next request. A client that announces
/// more, as extended headers allow, is disconnected.
pub const SKIPPED_BYTES_MAX: u64 = u32::MAX as u64;
/// Bytes of a connection's input buffer. A larger write goes to the device in pieces of at most this, so that
/// a connection's memory does not depend on its client's requests.
pub const INPUT_BYTES: usize = 1 << 20;
/// Bytes of the buffer in which replies are collected before they are sent.
pub const OUTPUT_BYTES: usize = (1 << 20) + (64 << 10);
/// Maximum bytes of a read that pass through the output buffer at once.
pub const PIECE_BYTES: usize = 1 << 20;
/// Minimum bytes of a large write's piece, however slowly the payload arrives.
pub const PIECE_BYTES_MIN: usize = 256 << 10;
/// Maximum number of requests of a batch.
pub const BATCH_MAX: usize = 128;
/// Bytes of writes at which a batch ends.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Bytes written at once for zeros that need allocated space.
pub const ZEROS_BYTES: usize = 64 << 10;
/// Minimum bytes of a read that looks for holes; for shorter reads the look would cost more than the zeros.
pub const HOLES_BYTES_MIN: u32 = 64 << 10;
/// Maximum number of runs of data and holes in one reply. The rest is sent as data by a read, and left out by
/// a block status.
pub const RUNS_MAX: usize = 1024;
/// Maximum bytes that one block status reports; the client asks again for the rest. Volumes keep nothing
/// larger than a block, so the reply costs time for every byte. During that time the connection notices
/// neither its client nor a stopping server.
pub const STATUS_BYTES_MAX: u64 = 16 << 30;

/// Maximum number of connections of all exports; each has a thread and about 2 MiB.
pub const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections whose client has not chosen an export yet.
pub const PENDING_CONNECTIONS_MAX: usize = 32;
/// Time that a client surely has to choose an export. After it, the client that has been silent for longest
/// is disconnected when there is no room for a new one. A TLS handshake takes a few round trips.
pub const PENDING_GRACE: std::time::Duration = std::time::Duration::from_millis(500);
/// Time for a client to choose an export.
pub const HANDSHAKE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);
/// Time that a stopping server gives clients to read their last replies.
pub const STOP_GRACE: std::time::Duration = std::time::Duration::from_secs(5);
/// Time that an ending connection gives its client to read the last replies.
pub const CLOSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);
/// Maximum bytes of the file that says which certificate opens which exports.
pub const CLIENTS_FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of exports of one server.
pub const EXPORTS_MAX: usize = 64;
/// Maximum bytes of an export's name or description; the protocol allows 4096.
pub const NAME_BYTES_MAX: usize = 1024;
/// Maximum bytes of an option's data that are parsed. The protocol's longest sensible option is a name of
/// 4096 bytes and a few queries.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes of a longer option that are skipped; for more the client is disconnected.
pub const SKIP_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of options in one handshake.
pub const OPTIONS_MAX: u32 = 128;

const _: () = assert!(
    INPUT_BYTES > OPTION_BYTES_MAX + 64,
    "a whole option must fit in the input buffer"
);
const _: () = assert!(
    OUTPUT_BYTES > PIECE_BYTES + 64,
    "a piece and its header must fit in the output buffer"
);
const _: () = assert!(
    OUTPUT_BYTES > RUNS_MAX * 16 + 64,
    "a block status must fit in the output buffer"
);
const _: () = assert!(
    STATUS_BYTES_MAX > REQUEST_BYTES_MAX as u64,
    "a read must be able to find all its holes"
);
const _: () = assert!(
    (PIECE_BYTES_MIN as u64).is_multiple_of(BLOCK_BYTES),
    "pieces must end at blocks"
);
const _: () = assert!(
    BLOCK_BYTES.is_multiple_of(SECTOR_BYTES),
    "a block must be whole sectors"
);
