//! All limits of a lender with their reasons, and the relations that must hold between them.

use std::time::Duration;

use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::Nanos;
use netram_transport::link::{RECEIVE_BUFFER_BYTES, SEND_BUFFER_BYTES};

/// Default bytes of a chunk. A window is a list of chunks, so memory never fragments. A chunk is much larger
/// than a frame, so most appends are contiguous.
pub const CHUNK_BYTES_DEFAULT: u64 = 1 << 20;
/// Minimum bytes of a chunk: one page.
pub const CHUNK_BYTES_MIN: u64 = 4096;
/// Maximum bytes of a chunk: those of the largest window.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// Default bytes lent.
pub const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;
/// Maximum chunks in one store: their numbers have 32 bits, and free ones are listed in memory.
pub const CHUNKS_MAX: u64 = 1 << 22;
/// Default number of journals that one lender remembers. A fence is remembered for the life of the memory,
/// unless its journal was closed, is over, or never had a window here.
pub const JOURNALS_MAX_DEFAULT: u32 = 1024;
/// Maximum number of journals that can be configured; each costs a page or two.
pub const JOURNALS_MAX: u32 = 1 << 16;

/// Maximum number of deposits of one lender.
pub const DEPOSITS_MAX: usize = 1024;
/// By default deposits may take one part in this many of the memory. The rest stays for windows, which hold
/// data that must be safe.
pub const DEPOSITS_PART: u64 = 2;

/// By default one journal may take one part in this many of the memory, so that no client has all of it.
pub const QUOTA_PART: u64 = 2;
/// But a journal gets at least the window that clients ask for by default, as far as there is room.
pub const QUOTA_BYTES_MIN: u64 = 8 << 20;

/// One part in this many of the lent memory, and [`BESIDE_BYTES`], are what an administrator is told to leave
/// for the process beside that memory (docs/guide/operations/upgrade.md). Sessions' buffers must fit.
pub const BESIDE_PART: u64 = 4;
/// See [`BESIDE_PART`].
pub const BESIDE_BYTES: u64 = 64 << 20;
/// Bytes of the process itself beside the sessions' buffers: code, threads, tables.
pub const PROCESS_BYTES: u64 = 24 << 20;
/// Maximum bytes of a connection: its link's buffers, which hold unread answers, and its own state.
pub const LINK_BYTES: u64 = (SEND_BUFFER_BYTES + RECEIVE_BUFFER_BYTES + 8 * 1024) as u64;

/// Bytes released to the machine or reserved again in one turn of the deposit thread: some milliseconds.
pub const UNBACKED_BYTES_PER_TURN: u64 = 32 << 20;
/// Interval at which a lender that began with a spill looks whether its file is still needed.
pub const SPILL_LOOK: Duration = Duration::from_secs(1);
/// Interval at which a shard looks for windows of silent clients.
pub const SILENT_LOOK: Duration = Duration::from_secs(1);
/// Pause after a window could not be written to the disk.
pub const SILENT_RETRY: Duration = Duration::from_secs(30);
/// By default `netram lender serve` leaves one part in this many of the machine's memory available.
pub const KEEP_FREE_PART: u64 = 20;
/// Default maximum share of time for which programs may wait for memory, in hundredths of a percent.
pub const WAITS_DEFAULT: u32 = 1000;

/// Maximum frames of one session that a thread handles before the other sessions have their turn.
pub const FRAMES_PER_TURN: usize = 256;
/// Time after which a session's turn ends even so. Only frames that are no appends are timed: one read of the
/// socket bounds the bytes of those. Half of a commit's round trip, so that a client without rest delays the
/// commits of others by little.
pub const TURN_TIME: Duration = Duration::from_micros(20);
/// Time for which the appends of a journal make noisy ones rest
/// ([`SideWork`](netram_proto::session::side_work::SideWork)). A client that commits one record after the
/// other, each through a slow network, sends the next one sooner.
pub const CONTENDED_FOR: Nanos = Nanos::from_ms(10);
/// Minimum time between two reports. Building one visits all journals and, on a data lender, reads files.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum connections accepted in a row. The others wait in the kernel, while pending clients are greeted.
pub const ACCEPTS_PER_TURN: usize = 32;
/// Maximum datagrams that a shard handles before it polls its connections again.
pub const DATAGRAMS_PER_TURN: usize = 64;
/// Maximum number of shards of one lender.
pub const SHARDS_MAX: usize = 64;
/// Default maximum number of connections. A lender of less than 1.3 GiB has room for fewer: each costs
/// [`LINK_BYTES`].
pub const CONNECTIONS_MAX_DEFAULT: usize = 1024;
/// Maximum number of connections that have not proven the key. Each costs a socket and some hundred bytes. A
/// client of the same network proves it within milliseconds; three thousand strangers a second take all
/// places in 170 ms.
pub const STRANGERS_MAX: usize = 512;
/// Default maximum number of connections that have proven the key and have not bound yet. A further one is
/// refused as busy.
pub const PENDING_MAX_DEFAULT: usize = 128;
/// Silence after which a pending connection may be evicted for a new one when there is no room.
pub const PENDING_GRACE: Duration = Duration::from_millis(250);
/// Maximum time to a connection's first frame, and between two status requests.
pub const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Default maximum silence of a bound session; clients send heartbeats far more often.
pub const IDLE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Default maximum time for which a peer may leave its answers unread.
pub const SLOW_READER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Interval at which timers are checked. Nothing depends on its precision.
pub const HOUSEKEEPING: Duration = Duration::from_millis(250);
/// The same for a thread without connections, which is woken for what comes.
pub const IDLE_HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Longest time that a thread that serves needs to go round its loop. What watches it must allow several.
pub const PULSE_MAX: Duration = IDLE_HOUSEKEEPING;
/// Maximum number of connections that a spinning shard polls directly. For more, one `epoll_wait` is cheaper.
pub const DIRECT_CONNECTIONS_MAX: usize = 4;
/// Rounds of direct polling between two checks of arrivals and timers.
pub const DIRECT_ROUNDS: u32 = 64;
/// Minimum time between log lines about failed handshakes; each line states their number.
pub const FLOOD_LINE_EVERY: Duration = Duration::from_secs(1);
/// Maximum bytes of a lender's name.
pub const NAME_BYTES_MAX: usize = 64;
/// Maximum slices of one `Data` frame: pieces split at chunks and at the window's end, and the header.
pub const PARTS_MAX: usize = FRAME_BODY_BYTES_MAX / CHUNK_BYTES_MIN as usize + 4;
/// Bytes of a report that are reserved for everything but lists: names, addresses, counters.
pub const REPORT_MARGIN_BYTES: usize = 8 * 1024;
/// Maximum number of journals that an error names because their windows hold bytes. More would hide the
/// remedy.
pub const WINDOWS_NAMED: usize = 8;

const _: () = assert!(BESIDE_BYTES > PROCESS_BYTES);
const _: () = assert!(CHUNK_BYTES_MIN.is_power_of_two());
const _: () = assert!(REPORT_MARGIN_BYTES < FRAME_BODY_BYTES_MAX);
const _: () = assert!(CHUNKS_MAX <= u32::MAX as u64);
