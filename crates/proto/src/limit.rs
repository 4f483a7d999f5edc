//! Every bound of the protocol, with its reason, and the relations that must hold between them.

use crate::id::Lsn;
use crate::time::Span;

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
/// The smallest datagram to be configured: what every IPv4 path carries whole (576), without the headers of IP and UDP.
pub const DATAGRAM_BYTES_MIN: usize = 548;
/// The largest: a whole frame, which a machine's loopback carries. What a network does not carry whole would travel in
/// fragments of IP, of which one lost is all lost.
pub const DATAGRAM_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX + DATAGRAM_OVERHEAD_BYTES;
/// Members that must listen for appends to be multicast. One alone is served better by its own link.
pub const CAST_MEMBERS_MIN: usize = 2;
/// Bytes on the way to the member that has received most, beyond which no further frame is multicast. With one frame more
/// it fits the kernel's usual receive buffer (208 KiB, in which a datagram of 1,400 bytes counts for 2,304).
pub const CAST_FLIGHT_BYTES_MAX: u64 = 64 * 1024;
/// A member that has not received this much of what was multicast goes on over its own link until it has caught up.
pub const CAST_LAG_BYTES_MAX: u64 = 4 * CAST_FLIGHT_BYTES_MAX;
/// The longest that a listener's answer is waited for before what it was sent counts as lost.
pub const CAST_PATIENCE_MAX: Span = Span::from_ms(250);
/// Bytes that a listening lender keeps of one journal while bytes before them are missing.
pub const GATHER_BYTES_MAX: usize = 512 * 1024;
/// Pieces that it keeps; each costs an allocation.
pub const GATHER_PIECES_MAX: usize = 1024;
/// Holes of one member that the writer remembers. Beyond that they are filled together with what lies between them.
pub const HOLES_MAX: usize = 8;
/// Datagrams of one channel, after which it is replaced by one with another key.
pub const CHANNEL_DATAGRAMS_MAX: u64 = 1 << 24;
/// Bytes sealed under one channel's key, after which it is replaced: 2^33 AES blocks, inside what AES-GCM bears.
pub const CHANNEL_BYTES_MAX: u64 = 1 << 37;

/// Bytes before a record's payload.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Bytes that sealing adds behind a payload (AES-GCM's tag).
pub const SEAL_TAG_BYTES: usize = 16;
/// Records start at multiples of this, so that a header never straddles a log's end.
pub const RECORD_ALIGN: usize = 8;
/// Bytes of one record with its header. Bounds what a reader allocates for a length it was told.
pub const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The first pause before a refused call is repeated: shorter than a person notices, longer than a burst of calls that
/// holds the last descriptors.
pub const RETRY_PAUSE_MIN: Span = Span::from_ms(10);
/// The longest such pause: a machine that lacks room costs one call a second, and goes on within one.
pub const RETRY_PAUSE_MAX: Span = Span::from_ms(1_000);

/// How long work is tried again whose failure nothing is expected to mend (EIO of a write): as long as a silent lender is
/// waited for.
pub const FAILURE_PATIENCE: Span = Span::from_ms(500);

/// Bytes of the key that seals a journal's records, as a data lender is given it.
pub const DATA_KEY_BYTES_MAX: usize = 64;
/// Bytes of one record of a volume that a data lender takes: what it keeps in memory of a record that has come in part.
pub const REPLICA_RECORD_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of the log on their way to a data lender, sent and not flushed there.
pub const REPLICA_FLIGHT_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Frames of a resync on their way to a data lender, and so the answers that it may owe.
pub const RESYNC_FRAMES_MAX: usize = 16;
/// While the data lender lacks more than this part of the log's room, blocks wait for the log: its beginning would pass what
/// the data lender has.
pub const RESYNC_LAG_PART: u64 = 8;
/// Ends of synced batches that a client remembers until its data lender has flushed them. Beyond that they are joined.
pub const REPLICA_ENDS_MAX: usize = 256;

/// Reigns that a view names: how often a volume may be opened while its data lender is away, and the latest still be told
/// apart. Beyond that some are joined.
pub const REIGNS_MAX: usize = 16;

/// Locks of one transaction on shared memory.
pub const STAMP_LOCKS_MAX: usize = 1024;
/// Bytes of a message before its payload: a kind, a flag, a place in a journal and at most three numbers, as varints.
pub const SHARED_HEAD_BYTES_MAX: usize = 64;
/// Bytes of one message between a node and its server: any record, or bytes of the region, with what is before it. Who receives takes no memory
/// for bytes that have not come, so what is longer is refused for what it is and not for what it costs.
pub const SHARED_MESSAGE_BYTES_MAX: usize = RECORD_BYTES_MAX + SHARED_HEAD_BYTES_MAX;
/// Bytes of the name that a node gives itself.
pub const NODE_NAME_BYTES_MAX: usize = 256;
/// Locks of one region. All of their spans and versions fit one message.
pub const REGION_LOCKS_MAX: usize = 1 << 20;
/// Node ids of one region that anything is known of. Those that are gone longest are forgotten.
pub const REGION_NODES_MAX: usize = 1 << 16;
/// Bytes of the settings that a region hands to its nodes.
pub const SETTINGS_BYTES_MAX: usize = 64 * 1024;
/// A node whose machine has closed its link is taken for dead after so long, or a quarter of the lease: if something between the machines has
/// broken the link, the node has come back over another by then.
pub const HUNG_UP_GRACE: Span = Span::from_ms(100);
/// A node that has left tells its lenders itself that they may give its windows back. The server tells them too, for its process may end before
/// it has, but not before it had this long.
pub const LEFT_GRACE: Span = Span::from_ms(1_000);
/// Lenders that cannot be told so are tried again ever more seldom; the pause doubles at most so often.
pub const TELL_DOUBLINGS_MAX: u32 = 6;
/// Records of one node that wait until what they depend on has come. A node sends no more than it may have in its journal, but this
/// bounds what a server keeps for one that says nonsense.
pub const MERGE_RECORDS_MAX: usize = 1 << 20;
/// Bytes of them, and of the records of a journal that is offered: whatever a node has that its server does not keep fits its window, of which it uses no
/// more. Whoever sends more errs, or lies.
pub const WAITING_BYTES_MAX: usize = 2 * RECORD_BYTES_MAX;
/// Bytes of what a server has to say to a node beside records and pages, and has not said. Whoever takes so little begins anew.
pub const OUTBOX_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Views of one journal on their way to the server's disk. A node waits for each before it sends the next.
pub const VIEWS_MAX: usize = 16;
/// Numbers of other nodes that a hint may need. One that needs more is not sent: the server's stream brings the record.
pub const HINT_NEEDS_MAX: usize = 64;
/// Bytes of a record that goes straight to peers. A longer one's way through the server is hardly longer.
pub const HINT_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the name of a multicast group, with an interface.
pub const GROUP_BYTES_MAX: usize = 64;
/// Grant numbers that a server makes durable at once: a sync for every half of that many hand-overs.
pub const GRANTS_RESERVED: u64 = 1 << 20;

/// Bytes of a page of an arena, and of a slot of a deposit.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a block: what can be had of a page that stays where it is. One unit of the cipher that such pages are sealed with.
pub const BLOCK_BYTES: usize = 16;
/// Blocks of a page: a block's number is one byte.
pub const PAGE_BLOCKS: usize = PAGE_BYTES / BLOCK_BYTES;
/// Bytes before each page of a frame: its slot, its length, its version.
pub const PAGE_HEADER_BYTES: usize = 16;
/// Pages of one frame: as many as fit.
pub const FRAME_PAGES_MAX: usize = FRAME_BODY_BYTES_MAX / (PAGE_HEADER_BYTES + PAGE_BYTES);
/// Slots of one deposit: 1 TiB. Each costs the lender 16 bytes beside its page.
pub const DEPOSIT_SLOTS_MAX: u32 = 1 << 28;
/// Places that a page may have at once. Each costs the owner eight bytes a page.
pub const COPIES_MAX: usize = 2;
/// Frames that an owner has on their way to one lender: what lies there is in front of the next fault's request.
pub const DEPOSIT_FRAMES_MAX: usize = 4;
/// Slots that an owner asks for at once by default: 16 MiB. With a quarter of that free it asks for more, so that pages need not wait.
pub const DEPOSIT_GROW_SLOTS: u32 = 4096;
/// Pages that an owner fetches at once in order to give them a second place. They need memory of which it has little.
pub const MENDS_MAX: usize = FRAME_PAGES_MAX;
/// Pages that wait to be put at a lender before they take turns with those that are wanted from there: less is sent when nothing is wanted.
pub const PUTS_PILED: usize = 8 * FRAME_PAGES_MAX;
/// Pages that wait to be sent beyond which an owner fetches none to be moved: what lenders take is slower, and the bytes would gather here.
pub const MOVES_QUEUED_MAX: usize = DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX;
/// Short pages that an owner looks at in one step, for some that can be mended: tens of µs.
pub const MEND_LOOK_MAX: usize = 4096;
/// Pages that an owner has asked for before they were wanted, and has not used yet: a megabyte.
pub const SHELF_AHEAD_MAX: usize = 256;
/// Blocks that were given and are not proven yet, of which an owner remembers marks: 7 Mbytes, and 32 if each is another page's. Beyond that pages are fetched whole.
pub const UNPROVEN_BLOCKS_MAX: usize = 1 << 20;
/// A lender that is away for so long is counted as gone when it comes to how many places a page has. What is only there is waited for.
pub const DEPOSIT_DETECT: Span = Span::from_ms(2_000);
/// A lender keeps a deposit for so long after its session has ended.
pub const DEPOSIT_LEASE: Span = Span::from_ms(30_000);
/// A lender that owes an answer for so long is gone, whatever its link says.
pub const DEPOSIT_SILENCE: Span = Span::from_ms(5_000);
/// An answer that takes no longer is never late: lenders on busy machines stand still for as long, and asking
/// twice costs a frame.
pub const HEDGE_MIN: Span = Span::from_ms(50);
/// One that takes longer is always late: a fifth of what a lender may be silent.
pub const HEDGE_MAX: Span = Span::from_ms(1_000);
/// Pages that are asked for a second time at each look at the time: as many as may be on their way to one
/// lender.
pub const HEDGES_AT_ONCE: usize = DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX;
/// Slots that a lender asks of a deposit at once, when it wants some back: 16 MiB. What cannot move keeps no more than that from being given back.
pub const ASK_SLOTS_MAX: u32 = 4096;
/// The time over which the kernel means its shortest measure of waits for memory: what was done shows no sooner.
pub const PRESSURE_AVERAGE: Span = Span::from_ms(10_000);
/// Of what deposits may have, the part that is asked back at a time when nothing is known but that programs wait.
pub const PRESSURE_STEPS: u64 = 16;
/// Waits for memory count while less than so many times what is to stay free is available.
pub const PRESSURE_NEAR: u64 = 2;
/// Memory is lent again when more than is to stay free is available, and this part of it: else lending it would make it scarce again.
pub const PRESSURE_MARGIN_PART: u64 = 4;
/// It is lent again when that has lasted for so long.
pub const PRESSURE_CALM: Span = Span::from_ms(10_000);
/// A lender that had no room is asked again after so long.
pub const DEPOSIT_RETRY: Span = Span::from_ms(2_000);

/// The smallest cap of an arena, in pages: what eviction keeps free, two batches on their way, and a few for the program.
pub const ARENA_FRAMES_MIN: u32 = 64;
/// Pages of an arena: 1 TiB. Each that was ever referenced costs 24 bytes here, and 48 in the depot.
pub const ARENA_PAGES_MAX: u32 = 1 << 28;
/// Bytes that a compressed page costs beside its own: what is known of it, and what an allocator adds.
pub const PACK_PAGE_BYTES: u32 = 96;
/// Bytes that a page costs that was written while it is away, beside 20 a block: what is known of it, and what an allocator adds.
pub const PATCH_PAGE_BYTES: u32 = 96;
/// After so many pages in a row that did not compress, one in 64 is tried.
pub const UNPACKED_RUN_MAX: u32 = 7;
/// Pages that leave an arena together: what one frame holds.
pub const EVICT_PAGES: usize = FRAME_PAGES_MAX;
/// Pages of an arena that are on their way to lenders, at which no more leave as long as those arrive: one frame of the cap in so many, at least what keeps a link busy,
/// and at most what 2 ms bring. What is on its way still takes frames: with more of it the program would see less, and nothing would be free any sooner.
pub const FLOW_SHARE: u32 = 32;
/// See [`FLOW_SHARE`].
pub const FLOW_MIN: u32 = 2 * (DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX) as u32;
/// See [`FLOW_SHARE`].
pub const FLOW_MAX: u32 = 512;
/// Pages that an arena hides, and empties, together, at most: most of what that takes is to tell the other cores, once a run.
pub const TOGETHER_MAX: usize = 64;
/// Such a batch is one frame of the cap in so many; what one frame of a link holds at least.
pub const TOGETHER_SHARE: usize = 64;
/// Pages that are asked for ahead of one thread's faults, at most: each run costs some wake-ups, 3 us a page with runs of 32.
pub const AHEAD_PAGES_MAX: u32 = 128;
/// Places on a thread's way that are looked at for pages that are away: those that are here are passed over.
pub const AHEAD_PLACES_MAX: usize = 4 * AHEAD_PAGES_MAX as usize;
/// Courses of one thread's faults that are followed at once.
pub const COURSES_MAX: usize = 8;
/// What a page's counter of words begins with, at least: then the first word brings the page.
pub const COUNTER_MIN: u32 = 1;
/// And at most: a page has no more blocks, and a byte counts them.
pub const COUNTER_MAX: u32 = PAGE_BLOCKS as u32;
/// Threads whose faults' trends are known apart.
pub const TRENDS_MAX: usize = 64;

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

/// Bytes of each sample that is read far behind the end of a log, to tell the end from damage wider than a window: more than most records have,
/// and a dozen samples of a log of 64 GiB are read in a tenth of a second.
pub const PROOF_SAMPLE_BYTES: usize = 1024 * 1024;

/// The highest epoch that a view may name. Every opening takes one, and a restore leaves out two times 2^16; so many are left above that no
/// claim of a view reaches the last number, after which the first would come again.
pub const EPOCH_MAX: u32 = u32::MAX - (1 << 18);
/// The highest number of a view. No journal changes its members so often.
pub const VIEW_VERSION_MAX: u64 = 1 << 62;

/// Bytes of one slot of a two-slot file. The disk is assumed to tear at sectors, never to mix slots.
pub const SLOT_BYTES: usize = 4096;

const _: () = assert!(MEMBERS_MAX <= u8::BITS as usize, "a set of members is one byte");
const _: () = assert!(MEMBERS_MAX <= LENDERS_MAX);
const _: () = assert!(REIGNS_MAX >= 3 && REIGNS_MAX <= u8::MAX as usize);
const _: () = assert!(
    FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX + 16 <= u16::MAX as usize,
    "a frame fits one Noise message"
);
const _: () = assert!(
    REGION_LOCKS_MAX * (5 + 10 + 10)
        + REGION_LOCKS_MAX * (5 + 10)
        + REGION_NODES_MAX * 20
        + SETTINGS_BYTES_MAX
        + 256
        <= SHARED_MESSAGE_BYTES_MAX,
    "the largest `Joined` is one message"
);
const _: () = assert!(SHARED_HEAD_BYTES_MAX >= 1 + 1 + (10 + 4) + 3 * 10);
const _: () = assert!(
    SHARED_MESSAGE_BYTES_MAX <= u32::MAX as usize,
    "a message's length is four bytes"
);
const _: () = assert!(HINT_BYTES_MAX + 32 + HINT_NEEDS_MAX * 20 <= SHARED_MESSAGE_BYTES_MAX);
const _: () = assert!(DATAGRAM_BYTES_MIN > DATAGRAM_OVERHEAD_BYTES);
const _: () = assert!(DATAGRAM_BYTES_MAX - DATAGRAM_OVERHEAD_BYTES <= FRAME_BODY_BYTES_MAX);
const _: () = assert!(
    CAST_LAG_BYTES_MAX + CAST_FLIGHT_BYTES_MAX + FRAME_BODY_BYTES_MAX as u64 <= GATHER_BYTES_MAX as u64,
    "whoever has not fallen behind can keep all that is ahead of a hole"
);
const _: () = assert!(CAST_LAG_BYTES_MAX >= 2 * CAST_FLIGHT_BYTES_MAX);
const _: () = assert!(RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGN));
const _: () = assert!(
    PAGE_BLOCKS - 1 == u8::MAX as usize,
    "a block's number is one byte"
);
const _: () = assert!(
    COUNTER_MAX <= u8::MAX as u32 + 1,
    "what is spent is less than a counter, and a byte"
);
const _: () = assert!(FRAME_PAGES_MAX >= 8 && FRAME_PAGES_MAX <= u8::MAX as usize);
const _: () = assert!(
    DEPOSIT_GROW_SLOTS as usize / 4 > DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX,
    "what is on its way fits while more slots are asked for"
);
const _: () = assert!(
    HEDGE_MIN.0 < HEDGE_MAX.0 && HEDGE_MAX.0 < DEPOSIT_SILENCE.0,
    "who is late is helped before it is given up"
);
const _: () = assert!(
    DEPOSIT_DETECT.0 < DEPOSIT_LEASE.0,
    "pages are copied while the other place may come back"
);
const _: () = assert!(
    ARENA_FRAMES_MIN as usize >= 4 * EVICT_PAGES,
    "while batches are on their way there are frames for faults"
);
const _: () = assert!(
    DEPOSIT_SILENCE.0 < DEPOSIT_LEASE.0,
    "who takes up an old session finds the deposit"
);
const _: () = assert!(LENDERS_MAX <= u16::BITS as usize, "a set of lenders is two bytes");
const _: () = assert!(LOG_BYTES_MIN.is_multiple_of(LOG_ALIGN));
const _: () = assert!(
    MEMBERS_MAX * (ADDRESS_BYTES_MAX + DOMAIN_BYTES_MAX + 32) + REIGNS_MAX * 20 + 256 <= SLOT_BYTES,
    "a full view fits its slot"
);

/// The last position that a log, a window or an append may begin at. No log gets there: a peer or a file that claims to is refused before its
/// number overflows another.
pub const LSN_LAST: Lsn = Lsn(1 << 62);
