//! Every bound of a lender, with its reason, and the relations that must hold between them.

use std::time::Duration;

use netram_proto::limit::FRAME_BODY_BYTES_MAX;

/// Bytes of one chunk by default. A window is a list of chunks, so memory never fragments; a chunk is large
/// beside a frame, so that most appends lie in one piece.
pub const CHUNK_BYTES_DEFAULT: u64 = 1 << 20;
/// The smallest chunk: one page.
pub const CHUNK_BYTES_MIN: u64 = 4096;
/// The largest chunk: as large as the largest window.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// Bytes lent by default.
pub const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;
/// The most chunks in one store: their numbers are 32 bits wide, and free ones are listed in memory.
pub const CHUNKS_MAX: u64 = 1 << 22;
/// Journals that one lender remembers, by default. A seal is remembered for the life of the memory, unless
/// its journal was closed or is over.
pub const JOURNALS_MAX_DEFAULT: u32 = 1024;
/// The most journals that may be asked for; each costs a page or two.
pub const JOURNALS_MAX: u32 = 1 << 16;

/// Deposits of one lender at once.
pub const DEPOSITS_MAX: usize = 1024;
/// Of the memory, what deposits may take in all by default: this part. The rest stays for windows, which hold
/// what is promised to be safe.
pub const DEPOSITS_PART: u64 = 2;

/// Bytes that are given back to the machine, or taken again, before deposits are served on: some
/// milliseconds.
pub const UNBACKED_BYTES_PER_TURN: u64 = 32 << 20;
/// How often the machine's memory is looked at. Two small files are read: 50 µs.
pub const PRESSURE_LOOK: Duration = Duration::from_millis(500);
/// Of the machine's memory, the part that `netram lend` leaves available by default.
pub const KEEP_FREE_PART: u64 = 20;
/// The part of the time, in hundredths of a percent, that programs may wait for memory by default.
pub const WAITS_DEFAULT: u32 = 1000;

/// Datagrams that a shard takes before it looks at its connections again.
pub const DATAGRAMS_PER_TURN: usize = 64;
/// Shards of one lender.
pub const SHARDS_MAX: usize = 64;
/// Connections by default; each costs about half a megabyte of buffers.
pub const CONNECTIONS_MAX_DEFAULT: usize = 1024;
/// Connections that are shaking hands or have not bound yet, by default. Over the bound: refused as busy.
pub const PENDING_MAX_DEFAULT: usize = 128;
/// When there is no room for another stranger, one who has been silent for longer than this makes room.
pub const PENDING_GRACE: Duration = Duration::from_millis(250);
/// How long a connection may take to its first frame, and between two status requests.
pub const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// A bound session that says nothing for this long is dropped; clients send heartbeats far more often.
pub const IDLE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// A session whose peer takes no answers for this long is dropped.
pub const SLOW_READER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// How often timers are looked at. Nothing depends on its exactness.
pub const HOUSEKEEPING: Duration = Duration::from_millis(250);
/// Connections that a spinning shard asks directly. For more, one `epoll_wait` is cheaper than asking each.
pub const DIRECT_CONNECTIONS_MAX: usize = 4;
/// Rounds of direct asking between two looks at arrivals and timers.
pub const DIRECT_ROUNDS: u32 = 64;
/// Failed handshakes are reported at most this often, with their number.
pub const FLOOD_LINE_EVERY: Duration = Duration::from_secs(1);
/// Bytes of a lender's name.
pub const NAME_BYTES_MAX: usize = 64;
/// Slices that one `Data` frame is gathered from: pieces cut at chunks and at the window's end, and the
/// header.
pub const PARTS_MAX: usize = FRAME_BODY_BYTES_MAX / CHUNK_BYTES_MIN as usize + 4;
/// Bytes of a report beside its journals: names, addresses, counters.
pub const REPORT_MARGIN_BYTES: usize = 8 * 1024;
/// Journals that an error names of those whose windows have bytes. More would hide its remedy.
pub const WINDOWS_NAMED: usize = 8;

const _: () = assert!(CHUNK_BYTES_MIN.is_power_of_two());
const _: () = assert!(REPORT_MARGIN_BYTES < FRAME_BODY_BYTES_MAX);
const _: () = assert!(CHUNKS_MAX <= u32::MAX as u64);
