//! Every bound of this crate, with its reason, and the relations that must hold between them.

use std::time::Duration;

use netram_proto::limit::RECORD_BYTES_MAX;
use netram_transport::link::SEND_BUFFER_BYTES;

/// Bytes of one message: any record, and what a message says beside it.
pub const MESSAGE_BYTES_MAX: usize = RECORD_BYTES_MAX + 64 * 1024;
/// Bytes of one message of a node that has not been let in: what it costs the server whoever it is.
pub const GREETING_BYTES_MAX: usize = 64 * 1024;
/// While so much waits for the peer, no further message is taken. One more may have been, of any length.
pub const QUEUED_BYTES_MAX: usize = 1024 * 1024;
/// A channel's buffer that has grown beyond this is given back when it is empty.
pub const BUFFER_KEPT_BYTES: usize = 1024 * 1024;

/// Sessions of one server by default; each costs about half a megabyte of buffers.
pub const SESSIONS_MAX_DEFAULT: usize = 256;
/// Strangers by default: shaking hands, or silent since.
pub const STRANGERS_MAX_DEFAULT: usize = 128;
/// When there is no room for another stranger, one that has been there for longer than this makes room.
pub const STRANGER_GRACE: Duration = Duration::from_millis(250);
/// How long a stranger may take to its first frame after its handshake.
pub const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a door looks at its strangers' time.
pub const HOUSEKEEPING: Duration = Duration::from_millis(250);
/// Failed handshakes are reported at most this often, with their number.
pub const FLOOD_LINE_EVERY: Duration = Duration::from_secs(1);

const _: () = assert!(
    MESSAGE_BYTES_MAX <= u32::MAX as usize,
    "the length fits its four bytes"
);
const _: () = assert!(GREETING_BYTES_MAX <= MESSAGE_BYTES_MAX);
const _: () = assert!(
    QUEUED_BYTES_MAX >= SEND_BUFFER_BYTES,
    "what waits fills the link's buffer"
);
