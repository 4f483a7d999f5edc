//! Every bound of the server, and how they hang together.

use netram_block::{BLOCK_BYTES, SECTOR_BYTES};

/// Bytes of a request's payload or reply, at most: what is announced to clients, and what nbdkit and qemu
/// take too.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Bytes of a refused payload that are skipped, so that the next request is found behind it; whoever
/// announces more, as only extended headers can, is cut off.
pub const SKIPPED_BYTES_MAX: u64 = u32::MAX as u64;
/// Bytes that wait in a connection's input. A larger write goes to the device in pieces of at most this, so
/// that a connection's memory does not depend on what its client asks.
pub const INPUT_BYTES: usize = 1 << 20;
/// Bytes of replies that are gathered before they are sent.
pub const OUTPUT_BYTES: usize = (1 << 20) + (64 << 10);
/// Bytes of a read that go through the output at a time.
pub const PIECE_BYTES: usize = 1 << 20;
/// A large write is not handed on in smaller pieces than this, however slowly it comes.
pub const PIECE_BYTES_MIN: usize = 256 << 10;
/// Requests that are started before the first is waited for.
pub const BATCH_MAX: usize = 128;
/// Bytes of writes that are started before the first is waited for, beyond which the batch ends.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Bytes written at a time where a client wants zeros that take their space.
pub const ZEROS_BYTES: usize = 64 << 10;
/// Shorter reads do not ask for holes: the question would cost more than the zeros.
pub const HOLES_BYTES_MIN: u32 = 64 << 10;
/// Runs of data and holes in one answer. What lies beyond them is data for a read, and unsaid for a block
/// status.
pub const RUNS_MAX: usize = 1024;
/// Bytes that one block status says something of; a client asks again for the rest. Volumes know nothing
/// larger than a block, so the answer costs time for every byte, in which its connection hears neither the
/// client nor that the server stops.
pub const STATUS_BYTES_MAX: u64 = 16 << 30;

/// Connections at one time, all exports together: one thread and about 2 MiB each.
pub const CONNECTIONS_MAX: usize = 64;
/// Connections whose client has not chosen an export yet.
pub const PENDING_CONNECTIONS_MAX: usize = 32;
/// How long a client may take to choose one.
pub const HANDSHAKE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);
/// How long a stopping server lets clients take their last replies.
pub const STOP_GRACE: std::time::Duration = std::time::Duration::from_secs(5);
/// How long a connection that ends waits for its client to take the last replies.
pub const CLOSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);
/// Exports of one server.
pub const EXPORTS_MAX: usize = 64;
/// Bytes of an export's name or description (the protocol allows 4096).
pub const NAME_BYTES_MAX: usize = 1024;
/// Bytes of an option's data that are looked at. The protocol's longest honest option is a name of 4096 bytes
/// and a few queries.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
/// Bytes of a longer option that are skipped politely before the client is cut off.
pub const SKIP_BYTES_MAX: u32 = 1 << 20;
/// Options in one handshake.
pub const OPTIONS_MAX: u32 = 128;

const _: () = assert!(
    INPUT_BYTES > OPTION_BYTES_MAX + 64,
    "an option fits the input whole"
);
const _: () = assert!(
    OUTPUT_BYTES > PIECE_BYTES + 64,
    "a piece and its header fit the output"
);
const _: () = assert!(
    OUTPUT_BYTES > RUNS_MAX * 16 + 64,
    "a block status fits the output"
);
const _: () = assert!(
    STATUS_BYTES_MAX > REQUEST_BYTES_MAX as u64,
    "a read learns of all its holes"
);
const _: () = assert!(
    (PIECE_BYTES_MIN as u64).is_multiple_of(BLOCK_BYTES),
    "pieces end where blocks do"
);
const _: () = assert!(
    BLOCK_BYTES.is_multiple_of(SECTOR_BYTES),
    "a block is whole sectors"
);
