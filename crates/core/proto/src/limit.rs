//! Every bound of the protocol, with its reason, and the relations that must hold between them.

use crate::id::Lsn;
use crate::time::Nanos;

/// Lenders one journal may be configured with. Each costs a connection and a heartbeat.
pub const LENDERS_MAX: usize = 16;
/// Members of one view. Bounded so that a view fits its slot and a set of members fits a byte.
pub const MEMBERS_MAX: usize = 8;
/// Bytes of a lender's address (`tcp://host:port`, `unix:/path`).
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Bytes of a power domain's label.
pub const DOMAIN_BYTES_MAX: usize = 64;

/// Bytes of the words that say who claimed a journal. Bounded so that a view with them fits its slot.
pub const NOTE_BYTES_MAX: usize = 96;

/// Bytes before a frame's body.
pub const FRAME_HEADER_BYTES: usize = 40;
/// Bytes of one frame's body. A Noise message carries at most 65,535 bytes with its tag; a larger record
/// travels in several frames.
pub const FRAME_BODY_BYTES_MAX: usize = 60 * 1024;

/// Bytes of a datagram in the clear: its channel and its number.
pub const DATAGRAM_HEADER_BYTES: usize = 16;
/// Bytes that a datagram adds to the bytes of the log in it: in the clear, a frame's header, AES-GCM's tag.
pub const DATAGRAM_OVERHEAD_BYTES: usize = DATAGRAM_HEADER_BYTES + FRAME_HEADER_BYTES + SEAL_TAG_BYTES;
/// The smallest datagram to be configured: what every IPv4 path carries whole (576), without the headers of
/// IP and UDP.
pub const DATAGRAM_BYTES_MIN: usize = 548;
/// The largest: a whole frame, which a machine's loopback carries. What a network does not carry whole would
/// travel in fragments of IP, of which one lost is all lost.
pub const DATAGRAM_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX + DATAGRAM_OVERHEAD_BYTES;
/// Members that must listen for appends to be multicast. One alone is served better by its own link.
pub const MULTICAST_MEMBERS_MIN: usize = 2;
/// Bytes on the way to the member that has received most, beyond which no further frame is multicast. With
/// one frame more it fits the kernel's usual receive buffer (208 KiB, in which a datagram of 1,400 bytes
/// counts for 2,304).
pub const MULTICAST_FLIGHT_BYTES_MAX: u64 = 64 * 1024;
/// A member that has not received this much of what was multicast goes on over its own link until it has
/// caught up.
pub const MULTICAST_LAG_BYTES_MAX: u64 = 4 * MULTICAST_FLIGHT_BYTES_MAX;
/// The longest that a listener's answer is waited for before what it was sent counts as lost.
pub const MULTICAST_TIMEOUT_MAX: Nanos = Nanos::from_ms(250);
/// Bytes that a listening lender keeps of one journal while bytes before them are missing.
pub const REASSEMBLY_BYTES_MAX: usize = 512 * 1024;
/// Pieces that it keeps; each costs an allocation.
pub const REASSEMBLY_FRAGMENTS_MAX: usize = 1024;
/// Holes of one member that the writer remembers. Beyond that they are filled together with what lies between
/// them.
pub const MISSING_RANGES_MAX: usize = 8;
/// Datagrams of one channel, after which it is replaced by one with another key.
pub const CHANNEL_DATAGRAMS_MAX: u64 = 1 << 24;
/// Bytes sealed under one channel's key, after which it is replaced: 2^33 AES blocks, inside what AES-GCM
/// bears.
pub const CHANNEL_BYTES_MAX: u64 = 1 << 37;

/// Bytes before a record's payload.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Bytes that sealing adds behind a payload (AES-GCM's tag).
pub const SEAL_TAG_BYTES: usize = 16;
/// Records start at multiples of this, so that a header never straddles a log's end.
pub const RECORD_ALIGN: usize = 8;
/// Bytes of one record with its header. Bounds what a reader allocates for a length it was told.
pub const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The first pause before a refused call is repeated: shorter than a person notices, longer than a burst of
/// calls that holds the last descriptors.
pub const RETRY_PAUSE_MIN: Nanos = Nanos::from_ms(10);
/// The longest such pause: a machine that lacks room costs one call a second, and goes on within one.
pub const RETRY_PAUSE_MAX: Nanos = Nanos::from_ms(1_000);

/// How long work is tried again whose failure nothing is expected to mend (EIO of a write): as long as a
/// silent lender is waited for.
pub const FAILURE_PATIENCE: Nanos = Nanos::from_ms(500);

/// Bytes of the key that seals a journal's records, as a data lender is given it.
pub const DATA_KEY_BYTES_MAX: usize = 64;

/// Reigns that a view names: how often a volume may be opened while its data lender is away, and the latest
/// still be told apart. Beyond that some are joined.
pub const EPOCH_HISTORY_MAX: usize = 16;

/// The smallest local log (its data area), in bytes.
pub const LOG_BYTES_MIN: u64 = 16 * 1024;
/// The largest local log, in bytes.
pub const LOG_BYTES_MAX: u64 = 1 << 40;
/// Log sizes are multiples of this: the page size, so that the data area can be mapped and rewritten by page.
pub const LOG_ALIGN: u64 = 4096;
/// The smallest window (ring), in bytes.
pub const WINDOW_BYTES_MIN: u64 = 16 * 1024;
/// The largest window (ring), in bytes: what a lender may be asked to hold for one journal.
pub const WINDOW_BYTES_MAX: u64 = 1 << 30;

/// Bytes of each sample that is read far behind the end of a log, to tell the end from damage wider than a
/// window: more than most records have, and a dozen samples of a log of 64 GiB are read in a tenth of a
/// second.
pub const PROOF_SAMPLE_BYTES: usize = 1024 * 1024;

/// The highest epoch that a view may name. Every opening takes one, and a restore leaves out two times 2^16;
/// so many are left above that no claim of a view reaches the last number, after which the first would come
/// again.
pub const EPOCH_MAX: u32 = u32::MAX - (1 << 18);
/// The highest number of a view. No journal changes its members so often.
pub const VIEW_VERSION_MAX: u64 = 1 << 62;

/// Bytes of one slot of a two-slot file. The disk is assumed to tear at sectors, never to mix slots.
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
    "whoever has not fallen behind can keep all that is ahead of a hole"
);
const _: () = assert!(MULTICAST_LAG_BYTES_MAX >= 2 * MULTICAST_FLIGHT_BYTES_MAX);
const _: () = assert!(RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGN));
const _: () = assert!(LENDERS_MAX <= u16::BITS as usize, "a set of lenders is two bytes");
const _: () = assert!(LOG_BYTES_MIN.is_multiple_of(LOG_ALIGN));
const _: () = assert!(
    MEMBERS_MAX * (ADDRESS_BYTES_MAX + DOMAIN_BYTES_MAX + 32) + EPOCH_HISTORY_MAX * 20 + 256 <= SLOT_BYTES,
    "a full view fits its slot"
);

/// The last position that a log, a window or an append may begin at. No log gets there: a peer or a file that
/// claims to is refused before its number overflows another.
pub const LSN_LAST: Lsn = Lsn(1 << 62);
