//! Every bound of the protocol, with its reason, and the relations that must hold between them.

use crate::id::Lsn;
use crate::time::Nanos;

/// Maximum number of lenders in one journal's configuration. Each costs a connection and a heartbeat.
pub const LENDERS_MAX: usize = 16;
/// Maximum number of members in one view. Bounded so that a view fits its slot and a set of members fits a
/// byte.
pub const MEMBERS_MAX: usize = 8;
/// Maximum length of a lender's address (`tcp://host:port`, `unix:/path`), in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Maximum length of a power domain's label, in bytes.
pub const DOMAIN_BYTES_MAX: usize = 64;

/// Maximum length of the text that says who claimed a journal, in bytes. Bounded so that a view with it fits
/// its slot.
pub const NOTE_BYTES_MAX: usize = 96;
/// Maximum bytes of a journal's name, by which a lender's operator knows it: its machine and directory.
pub const JOURNAL_NAME_BYTES_MAX: usize = 64;

/// Size of a frame's header, in bytes.
pub const FRAME_HEADER_BYTES: usize = 40;
/// Maximum size of a frame's body, in bytes. A Noise message carries at most 65,535 bytes with its tag; a
/// larger record travels in several frames.
pub const FRAME_BODY_BYTES_MAX: usize = 60 * 1024;

/// Size of a datagram's unencrypted header (channel and number), in bytes.
pub const DATAGRAM_HEADER_BYTES: usize = 16;
/// Overhead of a datagram that carries log bytes: unencrypted header, frame header and AES-GCM tag.
pub const DATAGRAM_OVERHEAD_BYTES: usize = DATAGRAM_HEADER_BYTES + FRAME_HEADER_BYTES + SEAL_TAG_BYTES;
/// The smallest datagram size that may be configured: the 576 bytes that every IPv4 path carries
/// unfragmented, less the IP and UDP headers.
pub const DATAGRAM_BYTES_MIN: usize = 548;
/// The largest datagram size that may be configured: a whole frame, which the loopback interface carries.
/// Anything larger than the network's MTU is sent as IP fragments, and losing one fragment loses the
/// datagram.
pub const DATAGRAM_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX + DATAGRAM_OVERHEAD_BYTES;
/// Minimum number of listening members before appends are multicast. A single member is better served over
/// its own link.
pub const MULTICAST_MEMBERS_MIN: usize = 2;
/// Maximum number of bytes in flight to the member that has received most; beyond it no frame is multicast.
/// Together with one more frame it fits the kernel's default receive buffer (208 KiB, in which a datagram of
/// 1,400 bytes counts for 2,304).
pub const MULTICAST_FLIGHT_BYTES_MAX: u64 = 64 * 1024;
/// A member that lacks more than this many multicast bytes is served over its own link until it has caught
/// up.
pub const MULTICAST_LAG_BYTES_MAX: u64 = 4 * MULTICAST_FLIGHT_BYTES_MAX;
/// The longest wait for a listener's answer before the bytes sent to it count as lost.
pub const MULTICAST_TIMEOUT_MAX: Nanos = Nanos::from_ms(250);
/// Maximum number of bytes that a listening lender buffers for one journal while earlier bytes are missing.
pub const REASSEMBLY_BYTES_MAX: usize = 512 * 1024;
/// Maximum number of fragments that a listening lender buffers for one journal. Each costs an allocation.
pub const REASSEMBLY_FRAGMENTS_MAX: usize = 1024;
/// Maximum number of missing ranges that the writer remembers for one member. Beyond it ranges are merged,
/// together with the bytes between them.
pub const MISSING_RANGES_MAX: usize = 8;
/// Maximum number of datagrams under one channel's key; then a channel with a new key replaces it.
pub const CHANNEL_DATAGRAMS_MAX: u64 = 1 << 24;
/// Maximum number of bytes encrypted under one channel's key; then a channel with a new key replaces it. 2^33
/// AES blocks are within the safe bound of AES-GCM.
pub const CHANNEL_BYTES_MAX: u64 = 1 << 37;

/// Size of a record's header, in bytes.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Size of the AES-GCM tag that encryption adds after a payload, in bytes.
pub const SEAL_TAG_BYTES: usize = 16;
/// Size of the random bytes from which the sealing key of one epoch is derived. No two draws of 128 bits are
/// expected to be equal in 2^64 openings.
pub const EPOCH_SALT_BYTES: usize = 16;
/// Bytes that sealing adds behind a payload: the tag, and the salt of the writer's epoch.
pub const SEAL_BYTES: usize = SEAL_TAG_BYTES + EPOCH_SALT_BYTES;
/// Alignment of records, in bytes: a header never straddles the end of a log's data area.
pub const RECORD_ALIGN: usize = 8;
/// Maximum size of a record with its header, in bytes. Bounds what a reader allocates for a length that a
/// peer sent.
pub const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The first pause before a refused call is repeated. A person does not notice it, and it outlasts a burst of
/// calls that uses up the last file descriptors.
pub const RETRY_PAUSE_MIN: Nanos = Nanos::from_ms(10);
/// The longest pause before a refused call is repeated: a machine without room pays one call a second, and
/// recovers within a second.
pub const RETRY_PAUSE_MAX: Nanos = Nanos::from_ms(1_000);

/// How long work is retried after a failure that nothing is expected to repair (EIO of a write). Equal to the
/// time for which a silent lender is waited for.
pub const FAILURE_PATIENCE: Nanos = Nanos::from_ms(500);

/// Maximum length of the key that encrypts a journal's records, as a data lender receives it, in bytes.
pub const DATA_KEY_BYTES_MAX: usize = 64;

/// Maximum number of epochs in a view's history: how often a volume may be opened without its data lender
/// until the oldest epochs are merged.
pub const EPOCH_HISTORY_MAX: usize = 16;

/// The smallest local log (its data area), in bytes.
pub const LOG_BYTES_MIN: u64 = 16 * 1024;
/// The largest local log, in bytes.
pub const LOG_BYTES_MAX: u64 = 1 << 40;
/// Alignment of a log's size, in bytes: the page size, so that the data area can be mapped and rewritten by
/// page.
pub const LOG_ALIGN: u64 = 4096;
/// The smallest window (ring), in bytes.
pub const WINDOW_BYTES_MIN: u64 = 16 * 1024;
/// The largest window (ring), in bytes: the most that a lender may be asked to hold for one journal.
pub const WINDOW_BYTES_MAX: u64 = 1 << 30;

/// Time for which a lender that asks windows back waits for one before it asks for others, too. A window
/// moves in some milliseconds.
pub const RECLAIM_PATIENCE: Nanos = Nanos::from_ms(2_000);

/// Size of each sample that is read far beyond the end of a log, in bytes; the samples tell the end from
/// damage wider than a window. Most records are smaller, and the dozen samples of a 64 GiB log take a tenth
/// of a second.
pub const PROOF_SAMPLE_BYTES: usize = 1024 * 1024;

/// The highest epoch that a view may name. Every opening takes one epoch and a restore skips up to 2 · 2^16.
/// The reserve above it keeps any claim of a view from wrapping around to the first epoch.
pub const EPOCH_MAX: u32 = u32::MAX - (1 << 18);
/// The highest version of a view. No journal changes its members so often.
pub const VIEW_VERSION_MAX: u64 = 1 << 62;

/// Size of one slot of a two-slot file, in bytes. The disk is assumed to tear writes at sectors, never to mix
/// slots.
pub const SLOT_BYTES: usize = 4096;

const _: () = assert!(MEMBERS_MAX <= u8::BITS as usize, "a set of members is one byte");
const _: () = assert!(MEMBERS_MAX <= LENDERS_MAX);
const _: () = assert!(EPOCH_HISTORY_MAX >= 3 && EPOCH_HISTORY_MAX <= u8::MAX as usize);
const _: () = assert!(
    FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX + 16 <= u16::MAX as usize,
    "a frame fits one Noise message"
);
const _: () = assert!(DATAGRAM_BYTES_MIN > DATAGRAM_OVERHEAD_BYTES);
const _: () = assert!(DATAGRAM_BYTES_MAX - DATAGRAM_OVERHEAD_BYTES <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(
    MULTICAST_LAG_BYTES_MAX + MULTICAST_FLIGHT_BYTES_MAX + FRAME_BODY_BYTES_MAX as u64
        <= REASSEMBLY_BYTES_MAX as u64,
    "a listener that has not fallen behind can buffer everything beyond a missing range"
);
const _: () = assert!(MULTICAST_LAG_BYTES_MAX >= 2 * MULTICAST_FLIGHT_BYTES_MAX);
const _: () = assert!(RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGN));
const _: () = assert!(LENDERS_MAX <= u16::BITS as usize, "a set of lenders is two bytes");
const _: () = assert!(LOG_BYTES_MIN.is_multiple_of(LOG_ALIGN));
const _: () = assert!(
    MEMBERS_MAX * (ADDRESS_BYTES_MAX + DOMAIN_BYTES_MAX + 32)
        + EPOCH_HISTORY_MAX * 20
        + EPOCH_SALT_BYTES
        + 256
        <= SLOT_BYTES,
    "a full view fits its slot"
);

/// The last position at which a log, a window or an append may begin. No log reaches it, so a higher number
/// from a peer or a file is rejected before it can overflow.
pub const LSN_LAST: Lsn = Lsn(1 << 62);
