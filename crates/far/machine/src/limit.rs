//! Bounds of far memory, each with its reason, and the relations that must hold between them.

use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::Nanos;

/// Bytes of a page of an arena, and of a slot of a deposit.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a block, the smallest part of a page that can be read remotely. One block of the cipher that
/// seals such pages.
pub const BLOCK_BYTES: usize = 16;
/// Blocks of a page; a block's number fits one byte.
pub const PAGE_BLOCKS: usize = PAGE_BYTES / BLOCK_BYTES;
/// Bytes before each page in a frame: slot, length and version.
pub const PAGE_HEADER_BYTES: usize = 16;
/// Maximum number of pages in a frame: as many as fit.
pub const FRAME_PAGES_MAX: usize = FRAME_BODY_BYTES_MAX / (PAGE_HEADER_BYTES + PAGE_BYTES);
/// Maximum number of slots of a deposit: 1 TiB. Each costs the lender 16 bytes beside its page.
pub const DEPOSIT_SLOTS_MAX: u32 = 1 << 28;
/// Maximum number of copies of a page. Each costs the owner eight bytes per page.
pub const COPIES_MAX: usize = 2;
/// Maximum number of frames that an owner has in flight to one lender. They delay the next fault's request.
pub const DEPOSIT_FRAMES_MAX: usize = 4;
/// Default number of slots requested at a time: 16 MiB. More are requested when a quarter of that is left
/// free, so that pages need not wait.
pub const DEPOSIT_GROW_SLOTS: u32 = 4096;
/// Maximum number of pages that an owner fetches at a time to make further copies. They take scarce local
/// memory.
pub const REPAIR_PAGES_MAX: usize = FRAME_PAGES_MAX;
/// Number of queued puts for one lender above which they alternate with requests. Below it, requests go
/// first.
pub const PUT_BACKLOG_PAGES: usize = 8 * FRAME_PAGES_MAX;
/// Number of queued puts above which an owner fetches no pages to move: lenders take them more slowly than
/// they would come.
pub const MOVES_QUEUED_MAX: usize = DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX;
/// Number of short pages examined in one step of the search for repairable ones: tens of µs.
pub const REPAIR_SCAN_MAX: usize = 4096;
/// Maximum number of prefetched pages that wait to be used: a megabyte.
pub const PREFETCHED_PAGES_MAX: usize = 256;
/// Maximum number of unverified blocks whose MACs an owner keeps: 7 MB, or 32 MB if each is of another page.
/// Beyond that pages are fetched whole.
pub const UNPROVEN_BLOCKS_MAX: usize = 1 << 20;
/// Time after which the copies of an absent lender no longer count. Pages that only it has are waited for.
pub const DEPOSIT_DETECT: Nanos = Nanos::from_ms(2_000);
/// Time for which a lender keeps a deposit after its session has ended.
pub const DEPOSIT_LEASE: Nanos = Nanos::from_ms(30_000);
/// Time after which a lender that owes an answer is considered gone, whatever its link says.
pub const DEPOSIT_TIMEOUT: Nanos = Nanos::from_ms(5_000);
/// Answers within this time are never late: lenders on busy machines stall for as long, and asking twice
/// costs a frame.
pub const HEDGE_MIN: Nanos = Nanos::from_ms(50);
/// Answers after this time are always late: a fifth of [`DEPOSIT_TIMEOUT`].
pub const HEDGE_MAX: Nanos = Nanos::from_ms(1_000);
/// Maximum number of pages requested a second time at each check: as many as may be in flight to one lender.
pub const HEDGES_MAX: usize = DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX;
/// Number of slots that a lender asks back from a deposit at a time: 16 MiB. Pages that cannot move hold up
/// only this many.
pub const RECLAIM_SLOTS_MAX: u32 = 4096;
/// Averaging time of the kernel's shortest measure of waits for memory: effects show no sooner.
pub const PRESSURE_AVERAGE: Nanos = Nanos::from_ms(10_000);
/// Time over which the kernel counts waits before it reports them: the shortest that it grants to everybody.
pub const PRESSURE_WINDOW: Nanos = Nanos::from_ms(2_000);
/// Divisor of the lent memory: the part asked back at a time when it is known only that programs wait.
pub const PRESSURE_STEPS: u64 = 16;
/// Bytes a second that programs take at most: a core fills 2 to 4 GB/s. Memory is looked at before they could
/// have taken what is spare.
pub const PRESSURE_RATE: u64 = 8 << 30;
/// Shortest time between two looks at the machine's memory, which cost 50 µs. The lender's users wait this
/// long, and then for its clients to move, for memory that they took from it.
pub const PRESSURE_LOOK_NEAR: Nanos = Nanos::from_ms(100);
/// Longest time between two looks.
pub const PRESSURE_LOOK_FAR: Nanos = Nanos::from_ms(10_000);
/// Longest time between two looks while waits for memory count and the kernel does not report them.
pub const PRESSURE_LOOK_STALLS: Nanos = Nanos::from_ms(500);
/// Waits for memory count while less than this multiple of the memory to keep free is available.
pub const PRESSURE_NEAR: u64 = 2;
/// Divisor of the memory to keep free: memory is lent again when at least this part more than that is
/// available, so that lending does not cause a new shortage.
pub const PRESSURE_MARGIN_PART: u64 = 4;
/// Time for which memory must have been sufficient before it is lent again.
pub const PRESSURE_CALM: Nanos = Nanos::from_ms(10_000);
/// Time after which a lender that had no room is asked again.
pub const DEPOSIT_RETRY: Nanos = Nanos::from_ms(2_000);
/// Minimum cap of an arena in pages: the frames that eviction keeps free, two batches in motion, and some for
/// the program.
pub const ARENA_FRAMES_MIN: u32 = 64;
/// Maximum number of pages of an arena: 1 TiB. Each page ever referenced costs 24 bytes here and 48 in the
/// page directory.
pub const ARENA_PAGES_MAX: u32 = 1 << 28;
/// Bytes that a packed page costs beside its compressed bytes: its record and the allocator's overhead.
pub const PACK_PAGE_BYTES: u32 = 96;
/// Bytes that a patched page costs beside 20 bytes per block: its record and the allocator's overhead.
pub const PATCH_PAGE_BYTES: u32 = 96;
/// After this many pages in a row that did not compress, one in 64 is tried.
pub const UNPACKED_RUN_MAX: u32 = 7;
/// Number of pages evicted together: what one frame holds.
pub const EVICT_PAGES: usize = FRAME_PAGES_MAX;
/// Divisor of the cap: when this part of it is in flight to lenders, no more pages are evicted while they
/// arrive. Bounded below by what keeps a link busy, and above by what 2 ms transfer. Pages in flight still
/// take frames: more of them would only shrink the resident part.
pub const WRITEBACK_SHARE: u32 = 32;
/// Lower bound of the part given by [`WRITEBACK_SHARE`].
pub const WRITEBACK_PAGES_MIN: u32 = 2 * (DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX) as u32;
/// Upper bound of the part given by [`WRITEBACK_SHARE`].
pub const WRITEBACK_PAGES_MAX: u32 = 512;
/// Maximum number of pages that are deactivated, or emptied, together. Most of the cost is one interrupt to
/// the other cores per contiguous run.
pub const EVICT_BATCH_MAX: usize = 64;
/// Divisor of the cap: size of such a batch; at least what one frame holds.
pub const EVICT_BATCH_SHARE: usize = 64;
/// Maximum number of pages that a handler of faults fetches at a time. Its work for a page, and the lender's,
/// are about 5 µs each, so one handler keeps a lender busy. Further faults go to other handlers.
pub const HANDLER_FETCHES_MAX: usize = 16;
/// Maximum number of pages prefetched for one thread's faults. Each run costs some wake-ups: 3 µs per page
/// with runs of 32.
pub const PREFETCH_PAGES_MAX: u32 = 128;
/// Maximum number of positions along a stream that are examined for remote pages. Local ones are skipped.
pub const PREFETCH_SCAN_MAX: usize = 4 * PREFETCH_PAGES_MAX as usize;
/// Maximum number of streams of one thread's faults.
pub const FAULT_STREAMS_MAX: usize = 8;
/// Minimum initial value of a page's word counter: the first word fetches the page.
pub const COUNTER_MIN: u32 = 1;
/// Maximum initial value of a page's word counter: the number of blocks, which fits a byte.
pub const COUNTER_MAX: u32 = PAGE_BLOCKS as u32;
/// Maximum number of threads whose faults are followed.
pub const TRENDS_MAX: usize = 64;

const _: () = assert!(
    PAGE_BLOCKS - 1 == u8::MAX as usize,
    "a block's number fits one byte"
);
const _: () = assert!(
    COUNTER_MAX <= u8::MAX as u32 + 1,
    "a spent count is below its counter and fits a byte"
);
const _: () = assert!(FRAME_PAGES_MAX >= 8 && FRAME_PAGES_MAX <= u8::MAX as usize);
const _: () = assert!(
    DEPOSIT_GROW_SLOTS as usize / 4 > DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX,
    "frames in flight fit the free slots while more are requested"
);
const _: () = assert!(
    HEDGE_MIN.0 < HEDGE_MAX.0 && HEDGE_MAX.0 < DEPOSIT_TIMEOUT.0,
    "a late lender is hedged before it is given up"
);
const _: () = assert!(
    DEPOSIT_DETECT.0 < DEPOSIT_LEASE.0,
    "pages are copied while the absent lender may come back"
);
const _: () = assert!(
    ARENA_FRAMES_MIN as usize >= 4 * EVICT_PAGES,
    "two batches in motion leave frames for faults"
);
const _: () = assert!(
    DEPOSIT_TIMEOUT.0 < DEPOSIT_LEASE.0,
    "an owner that reconnects in time finds its deposit"
);
