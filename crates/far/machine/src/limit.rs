//! Every bound of far memory, with its reason, and the relations that must hold between them.

use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::Nanos;

/// Bytes of a page of an arena, and of a slot of a deposit.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a block: what can be had of a page that stays where it is. One unit of the cipher that such pages
/// are sealed with.
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
/// Frames that an owner has on their way to one lender: what lies there is in front of the next fault's
/// request.
pub const DEPOSIT_FRAMES_MAX: usize = 4;
/// Slots that an owner asks for at once by default: 16 MiB. With a quarter of that free it asks for more, so
/// that pages need not wait.
pub const DEPOSIT_GROW_SLOTS: u32 = 4096;
/// Pages that an owner fetches at once in order to give them a second place. They need memory of which it has
/// little.
pub const REPAIR_PAGES_MAX: usize = FRAME_PAGES_MAX;
/// Pages that wait to be put at a lender before they take turns with those that are wanted from there: less
/// is sent when nothing is wanted.
pub const PUT_BACKLOG_PAGES: usize = 8 * FRAME_PAGES_MAX;
/// Pages that wait to be sent beyond which an owner fetches none to be moved: what lenders take is slower,
/// and the bytes would gather here.
pub const MOVES_QUEUED_MAX: usize = DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX;
/// Short pages that an owner looks at in one step, for some that can be mended: tens of µs.
pub const REPAIR_SCAN_MAX: usize = 4096;
/// Pages that an owner has asked for before they were wanted, and has not used yet: a megabyte.
pub const PREFETCHED_PAGES_MAX: usize = 256;
/// Blocks that were given and are not proven yet, of which an owner remembers marks: 7 Mbytes, and 32 if each
/// is another page's. Beyond that pages are fetched whole.
pub const UNPROVEN_BLOCKS_MAX: usize = 1 << 20;
/// A lender that is away for so long is counted as gone when it comes to how many places a page has. What is
/// only there is waited for.
pub const DEPOSIT_DETECT: Nanos = Nanos::from_ms(2_000);
/// A lender keeps a deposit for so long after its session has ended.
pub const DEPOSIT_LEASE: Nanos = Nanos::from_ms(30_000);
/// A lender that owes an answer for so long is gone, whatever its link says.
pub const DEPOSIT_TIMEOUT: Nanos = Nanos::from_ms(5_000);
/// An answer that takes no longer is never late: lenders on busy machines stand still for as long, and asking
/// twice costs a frame.
pub const HEDGE_MIN: Nanos = Nanos::from_ms(50);
/// One that takes longer is always late: a fifth of what a lender may be silent.
pub const HEDGE_MAX: Nanos = Nanos::from_ms(1_000);
/// Pages that are asked for a second time at each look at the time: as many as may be on their way to one
/// lender.
pub const HEDGES_MAX: usize = DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX;
/// Slots that a lender asks of a deposit at once, when it wants some back: 16 MiB. What cannot move keeps no
/// more than that from being given back.
pub const RECLAIM_SLOTS_MAX: u32 = 4096;
/// The time over which the kernel means its shortest measure of waits for memory: what was done shows no
/// sooner.
pub const PRESSURE_AVERAGE: Nanos = Nanos::from_ms(10_000);
/// Of what deposits may have, the part that is asked back at a time when nothing is known but that programs
/// wait.
pub const PRESSURE_STEPS: u64 = 16;
/// Waits for memory count while less than so many times what is to stay free is available.
pub const PRESSURE_NEAR: u64 = 2;
/// Memory is lent again when more than is to stay free is available, and this part of it: else lending it
/// would make it scarce again.
pub const PRESSURE_MARGIN_PART: u64 = 4;
/// It is lent again when that has lasted for so long.
pub const PRESSURE_CALM: Nanos = Nanos::from_ms(10_000);
/// A lender that had no room is asked again after so long.
pub const DEPOSIT_RETRY: Nanos = Nanos::from_ms(2_000);
/// The smallest cap of an arena, in pages: what eviction keeps free, two batches on their way, and a few for
/// the program.
pub const ARENA_FRAMES_MIN: u32 = 64;
/// Pages of an arena: 1 TiB. Each that was ever referenced costs 24 bytes here, and 48 in the depot.
pub const ARENA_PAGES_MAX: u32 = 1 << 28;
/// Bytes that a compressed page costs beside its own: what is known of it, and what an allocator adds.
pub const PACK_PAGE_BYTES: u32 = 96;
/// Bytes that a page costs that was written while it is away, beside 20 a block: what is known of it, and
/// what an allocator adds.
pub const PATCH_PAGE_BYTES: u32 = 96;
/// After so many pages in a row that did not compress, one in 64 is tried.
pub const UNPACKED_RUN_MAX: u32 = 7;
/// Pages that leave an arena together: what one frame holds.
pub const EVICT_PAGES: usize = FRAME_PAGES_MAX;
/// Pages of an arena that are on their way to lenders, at which no more leave as long as those arrive: one
/// frame of the cap in so many, at least what keeps a link busy, and at most what 2 ms bring. What is on its
/// way still takes frames: with more of it the program would see less, and nothing would be free any sooner.
pub const WRITEBACK_SHARE: u32 = 32;
/// See [`FLOW_SHARE`].
pub const WRITEBACK_PAGES_MIN: u32 = 2 * (DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX) as u32;
/// See [`FLOW_SHARE`].
pub const WRITEBACK_PAGES_MAX: u32 = 512;
/// Pages that an arena hides, and empties, together, at most: most of what that takes is to tell the other
/// cores, once a run.
pub const EVICT_BATCH_MAX: usize = 64;
/// Such a batch is one frame of the cap in so many; what one frame of a link holds at least.
pub const EVICT_BATCH_SHARE: usize = 64;
/// Pages that are asked for ahead of one thread's faults, at most: each run costs some wake-ups, 3 us a page
/// with runs of 32.
pub const PREFETCH_PAGES_MAX: u32 = 128;
/// Places on a thread's way that are looked at for pages that are away: those that are here are passed over.
pub const PREFETCH_SCAN_MAX: usize = 4 * PREFETCH_PAGES_MAX as usize;
/// Courses of one thread's faults that are followed at once.
pub const FAULT_STREAMS_MAX: usize = 8;
/// What a page's counter of words begins with, at least: then the first word brings the page.
pub const COUNTER_MIN: u32 = 1;
/// And at most: a page has no more blocks, and a byte counts them.
pub const COUNTER_MAX: u32 = PAGE_BLOCKS as u32;
/// Threads whose faults' trends are known apart.
pub const TRENDS_MAX: usize = 64;

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
    HEDGE_MIN.0 < HEDGE_MAX.0 && HEDGE_MAX.0 < DEPOSIT_TIMEOUT.0,
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
    DEPOSIT_TIMEOUT.0 < DEPOSIT_LEASE.0,
    "who takes up an old session finds the deposit"
);
