//! The handle of an arena: addresses of which a part has local memory, while the rest is at lenders.
//!
//! `netram_far_machine::arena` decides. The threads act: *handlers* bring pages that the program waits for,
//! one *evictor* frees frames in advance, one *prefetcher* brings pages ahead of need.
//!
//! | file | does |
//! |---|---|
//! | `moves.rs`, `fetch.rs` | moves of pages, fetches that threads wait for, and the kernel's messages |
//! | `handler.rs` | serves faults, several at a time; `fault_listener.rs`: which handler receives them |
//! | `evictor.rs` | deactivates and evicts pages; `compressor.rs`: which of them compressed |
//! | `prefetcher.rs` | brings pages ahead of need |
//! | `metrics.rs` | times of faults, for Prometheus |
//! | `words.rs`, `patches.rs` | read and write words of remote pages |
//!
//! Changes of pages are not tracked: sealing a page again under its old version shows whether it changed
//! (`RemotePages::put_changed`). Write protection would cost the program a fault for each written page. If
//! the kernel resolved those faults itself, a write between check and move would be missed, because the move
//! clears the mark.

mod compressor;
mod evictor;
mod fault_listener;
mod fetch;
mod handler;
pub(crate) mod metrics;
mod moves;
mod patches;
mod prefetcher;
#[cfg(test)]
mod tests;
mod words;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_far_machine::arena::{
    ArenaMachine as Machine, ArenaSettings, ArenaTally, FaultAction, Page, Replacement,
};
use netram_far_machine::limit::{ARENA_FRAMES_MIN, ARENA_PAGES_MAX, COUNTER_MAX, COUNTER_MIN, PAGE_BYTES};
use netram_telemetry::{MetricsRegistration, MetricsRegistry};
use netram_transport::{WaitPolicy, Waker};
use rustix::io::Errno;
use rustix::process::Pid;

use self::metrics::ArenaTimes;
use self::moves::{ArenaCore, ArenaMonitor, ZEROS, offset};
pub(crate) use self::patches::PageWrite;
pub use self::words::WordAccess;
pub(crate) use self::words::{BlockValues, NUMBERS};
use crate::config::RemotePagesConfig;
use crate::remote_pages::{PageGetError, RemotePages};
use crate::seal::SealForm;
use crate::sys::{AreaAllocator, ArenaArea, MappedMemory, Uffd, UffdError, UffdFeatures};
use crate::threads;

/// Maximum number of handlers of an arena.
const HANDLERS_MAX: usize = 64;
/// Divisor of the cap: default part for inactive pages.
const INACTIVE_SHARE: u32 = 8;
/// Divisor of the cap: default part for packed pages. If pages compress to a third, the cap then holds half
/// as much again.
const PACKED_SHARE: u32 = 4;
/// Divisor of the cap: default part for patches, as far as inactive and packed pages leave it.
const PATCHED_SHARE: u32 = 4;
/// Kernel features that every arena needs.
const NEEDED: UffdFeatures = UffdFeatures::REMOVE
    .and(UffdFeatures::UNMAP)
    .and(UffdFeatures::REMAP)
    .and(UffdFeatures::THREAD_ID);
/// Kernel features that are used if available.
const WELCOME: UffdFeatures = UffdFeatures::POISON
    .and(UffdFeatures::PROTECT)
    .and(UffdFeatures::EXACT_ADDRESS);

/// Settings of an arena. Start from the default, and set lenders and sizes.
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// Size of the address range in bytes, up to 1 TiB; rounded up to whole pages. Addresses cost nothing
    /// until they are used.
    pub bytes: u64,
    /// The cap: bytes of local memory, at least 256 KiB. Records of pages are not counted: 80 bytes for each
    /// page ever used.
    pub local_bytes: u64,
    /// Bytes of the cap for inactive pages, which are about to be evicted and come back without a lender when
    /// referenced. At most half of the cap. `None`: an eighth.
    pub inactive_bytes: Option<u64>,
    /// Bytes of the cap for pages kept compressed, which come back without a lender; with inactive pages at
    /// most three quarters of the cap. Pages that do not compress use none. `None`: a quarter, while that
    /// saves more than it costs.
    pub packed_bytes: Option<u64>,
    /// Bytes of the cap for values written to remote pages, if [`words`](Self::words) allows that: about 120
    /// bytes for the first value of a page. With inactive and compressed pages at most three quarters of the
    /// cap. When most of it is used, the pages written first are fetched. `None`: a quarter, or what the
    /// others leave of three quarters.
    pub patched_bytes: Option<u64>,
    /// Prefetches pages along a thread's faults.
    pub look_ahead: bool,
    /// Replacement policy.
    pub replacement: Replacement,
    /// Number of threads that serve faults, 2 to 64. Each fetches the pages of several faults at a time.
    pub handlers: usize,
    /// Does not serve references by system calls: a call given a slice with remote pages fails with `EFAULT`.
    /// Needs no privilege.
    pub user_faults_only: bool,
    /// Whether values of remote pages may be read and written without their pages, by
    /// [`FarVec::get`](crate::FarVec::get), [`set`](crate::FarVec::set), [`gather`](crate::FarVec::gather)
    /// and [`scatter`](crate::FarVec::scatter). A slice always brings its pages. If allowed, pages are sent
    /// to lenders uncompressed.
    pub words: WordAccess,
    /// Behaviour of idle handlers: spin or sleep.
    pub wait: WaitPolicy,
    /// Time for which an access that can fail waits for a frame while no lender has room.
    pub patience: Duration,
    /// Lenders and their use.
    pub remote_pages: RemotePagesConfig,
}

impl Default for ArenaConfig {
    fn default() -> ArenaConfig {
        ArenaConfig {
            bytes: 1 << 30,
            local_bytes: 64 << 20,
            inactive_bytes: None,
            packed_bytes: None,
            patched_bytes: None,
            look_ahead: true,
            replacement: Replacement::Dueling,
            handlers: 4,
            user_faults_only: false,
            words: WordAccess::Never,
            wait: WaitPolicy::default(),
            patience: Duration::from_secs(30),
            remote_pages: RemotePagesConfig::default(),
        }
    }
}

/// Why an arena cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// A setting is outside its bounds. Change it.
    #[error("{what}; it must be {must}")]
    BadConfig {
        /// Name of the setting.
        what: &'static str,
        /// Allowed values.
        must: &'static str,
    },
    /// The kernel lacks a feature. Use a later one.
    #[error("this kernel has no {what}: an arena needs Linux 5.7 or later, with CONFIG_USERFAULTFD")]
    Kernel {
        /// The missing feature.
        what: &'static str,
    },
    /// This process may not use `userfaultfd`. Grant access, or do not serve faults of system calls.
    #[error(
        "this process may not use userfaultfd ({source}): make /dev/userfaultfd readable and writable for it, or set the sysctl \
         vm.unprivileged_userfaultfd to 1, or take `user_faults_only`; in a container the seccomp profile must allow it"
    )]
    Refused {
        /// Error that the system returned.
        source: std::io::Error,
    },
    /// The remote pages cannot be opened.
    #[error(transparent)]
    RemotePages(#[from] crate::remote_pages::RemotePagesOpenError),
    /// A system call failed that works in every usual process.
    #[error("the arena cannot {step}")]
    System {
        /// Step that failed.
        step: &'static str,
        /// Error that the system returned.
        source: std::io::Error,
    },
}

/// Why a value cannot be read or stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FarAccessError {
    /// The value's page is lost, and stays lost until it is discarded.
    #[error(transparent)]
    Lost(PageGetError),
    /// No lender has had room for some time, and the cap is full of pages waiting to be evicted. Add a lender
    /// and try again.
    #[error("no lender has room, and {aside} pages of far memory wait to be evicted; add a lender")]
    NoRoom {
        /// Number of waiting pages.
        aside: usize,
    },
}

/// Figures of an arena, for monitoring.
#[derive(Clone, Debug)]
pub struct ArenaStatus {
    /// Counters so far.
    pub tally: ArenaTally,
    /// Frames with a page or for an arriving one.
    pub used: u32,
    /// Frames that packed pages take.
    pub packed: u32,
    /// Frames that patches take.
    pub patched: u32,
    /// The cap in pages.
    pub frames: u32,
    /// Number of pending pages: their bytes are kept until all copies have them.
    pub pending: usize,
}

/// A handle of an arena: addresses of which a part has local memory. Clones share the arena, which ends with
/// the last.
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

struct Inner {
    /// First: with the core still there and nobody to hear of it, the kernel would not give the memory back.
    _metrics: MetricsRegistration<ArenaCore>,
    core: Arc<ArenaCore>,
    areas: Arc<AreaAllocator>,
    handlers: Vec<JoinHandle<()>>,
    movers: Vec<JoinHandle<()>>,
    frames: u32,
    patience: Duration,
    words: WordAccess,
    process: Pid,
}

impl fmt::Debug for Arena {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Arena")
            .field("frames", &self.0.frames)
            .finish_non_exhaustive()
    }
}

impl Arena {
    /// Opens an arena of zeros and returns at once. Lenders connect in the background; until then, pages
    /// beyond the cap wait.
    ///
    /// # Errors
    ///
    /// See [`ArenaError`].
    pub fn open(config: ArenaConfig) -> Result<Arena, ArenaError> {
        Arena::open_without(config, UffdFeatures::NONE)
    }

    /// Checks settings and this process's privileges without asking lenders.
    ///
    /// # Errors
    ///
    /// See [`ArenaError`].
    pub fn check(config: &ArenaConfig) -> Result<(), ArenaError> {
        check(config)?;
        offered(config.user_faults_only, UffdFeatures::NONE).map(drop)
    }

    /// As [`Arena::open`], as if the kernel lacked some features.
    pub(crate) fn open_without(config: ArenaConfig, lacking: UffdFeatures) -> Result<Arena, ArenaError> {
        let (pages, settings) = check(&config)?;
        let system = |step| move |source| ArenaError::System { step, source };
        let user_only = config.user_faults_only;
        let offered = offered(user_only, lacking)?;
        let moves = offered.has(UffdFeatures::MOVE);
        let memory = Arc::new(MappedMemory::map(pages as usize).map_err(system("map its addresses"))?);
        let backstage = MappedMemory::map(Machine::staging_frames(&settings) as usize)
            .map_err(system("map its staging frames"))?;
        let features = NEEDED.and(WELCOME.common(offered));
        let sight = Uffd::open(user_only, features).map_err(refused)?;
        sight
            .register(&memory, !moves)
            .map_err(system("watch its addresses"))?;
        let exchange = match moves {
            true => Some(open_move_uffd(user_only, offered, &backstage)?),
            false => None,
        };
        let form = match config.words {
            WordAccess::Never => SealForm::AsGiven,
            _ => SealForm::Whole,
        };
        let bell = Waker::new().map_err(system("make a waker"))?;
        let core = Arc::new(ArenaCore {
            monitor: Arc::new(ArenaMonitor::new(Machine::new(settings), bell)),
            remote_pages: RemotePages::open_in_form(config.remote_pages, form)?,
            memory: Arc::clone(&memory),
            staging: backstage,
            uffd: sight,
            move_uffd: exchange,
            measures: config.words == WordAccess::Measured,
            packs: settings.pack > 0,
            compresses: settings.pack > 0 || form == SealForm::AsGiven,
            pack: Default::default(),
            poisons: offered.has(UffdFeatures::POISON),
            layout_lock: Default::default(),
            frames: settings.frames,
            times: ArenaTimes::new(),
        });
        let mut inner = Inner {
            areas: AreaAllocator::new(memory),
            handlers: Vec::new(),
            movers: Vec::new(),
            frames: settings.frames,
            patience: config.patience,
            words: config.words,
            process: rustix::process::getpid(),
            _metrics: MetricsRegistry::of_process().add(&core),
            core,
        };
        inner
            .start(config.handlers, config.wait)
            .map_err(system("start its threads"))?;
        Ok(Arena(Arc::new(inner)))
    }

    /// Figures of the arena. Cheap.
    pub fn status(&self) -> ArenaStatus {
        let state = self.0.core.monitor.lock();
        ArenaStatus {
            tally: state.machine.tally(),
            used: state.machine.used(),
            packed: state.machine.pack_frames(),
            patched: state.machine.patch_frames(),
            frames: self.0.frames,
            pending: self.0.core.remote_pages.pending(),
        }
    }

    /// The remote pages, for figures of lenders.
    pub fn remote_pages(&self) -> &RemotePages {
        &self.0.core.remote_pages
    }

    /// Number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.0.core.pages() as usize
    }

    /// Whether a page is blank: zeros, stored nowhere.
    pub(crate) fn is_blank(&self, page: usize) -> bool {
        self.0.core.monitor.lock().machine.is_blank(Page(page as u32))
    }

    /// Takes an area of contiguous pages. `None`: there is none of that size.
    pub(crate) fn take(&self, pages: usize) -> Option<ArenaArea> {
        self.0.areas.take(pages)
    }

    /// Waits while so many pages wait for room at lenders that none can be evicted.
    pub(crate) fn room(&self) -> Result<(), FarAccessError> {
        let core = &self.0.core;
        let start = Instant::now();
        let mut state = core.monitor.lock();
        loop {
            let aside = core.remote_pages.pending();
            state.machine.stashing(aside as u32);
            if !state.machine.is_crowded() {
                return Ok(());
            }
            if start.elapsed() > self.0.patience {
                return Err(FarAccessError::NoRoom { aside });
            }
            state = core.monitor.wait_a_while(state);
        }
    }

    /// Brings a page and keeps it resident until [`Arena::unpin`]. Costs 50 ns if the page is resident.
    pub(crate) fn pin(&self, page: Page) -> Result<(), FarAccessError> {
        let core = &self.0.core;
        let mut state = core.monitor.lock();
        let mut serve = state.machine.want(page);
        if serve != FaultAction::Resident {
            let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            state
                .machine
                .note(thread, offset(page) as u64, serve, &(0..core.pages()));
            core.monitor.notify_waiting(&state);
        }
        let mut since = None;
        loop {
            match serve {
                FaultAction::Resident => {
                    state.machine.pin(page);
                    return Ok(());
                }
                FaultAction::Lost => {
                    drop(state);
                    return Err(FarAccessError::Lost(self.loss(page)));
                }
                FaultAction::Wait | FaultAction::Starved => {
                    let start = *since.get_or_insert_with(Instant::now);
                    if state.machine.is_crowded() && start.elapsed() > self.0.patience {
                        let aside = core.remote_pages.pending();
                        return Err(FarAccessError::NoRoom { aside });
                    }
                    state = core.monitor.wait_a_while(state);
                }
                serve => {
                    drop(state);
                    // No signal is raised here: a lost page was detected above.
                    core.serve(page, serve, 0);
                    state = core.monitor.lock();
                }
            }
            serve = state.machine.want(page);
        }
    }

    /// Prefetches pages that are about to be pinned, so that their round trips overlap.
    pub(crate) fn will_need(&self, pages: impl IntoIterator<Item = Page>) {
        let mut state = self.0.core.monitor.lock();
        state.machine.will_need(pages);
        self.0.core.monitor.notify_waiting(&state);
    }

    pub(crate) fn unpin(&self, page: Page) {
        let hub = &self.0.core.monitor;
        let mut state = hub.lock();
        state.machine.unpin(page);
        hub.may_leave(&state);
    }

    /// Discards pages: they are zeros from now on, stored nowhere.
    pub(crate) fn empty(&self, pages: std::ops::Range<usize>) {
        // A child process has no part of the arena.
        if pages.is_empty() || rustix::process::getpid() != self.0.process {
            return;
        }
        let ArenaCore {
            memory,
            layout_lock: shape,
            ..
        } = &*self.0.core;
        loop {
            match memory.empty(pages.start, pages.len()) {
                // The kernel continues when a handler has read its message. The handler holds this lock until
                // the discard is recorded; otherwise a thread could still find a lost page lost.
                Ok(()) => return drop(shape.read().unwrap_or_else(PoisonError::into_inner)),
                // The program has unmapped some of the pages; the others are discarded.
                Err(error) if error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => return,
                // The program has locked all its memory. Locked pages cannot be discarded.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    if let Err(error) = memory.unlock() {
                        panic!("far memory could not be unlocked: {error}");
                    }
                }
                Err(error) => panic!("pages of far memory could not be discarded: {error}"),
            }
        }
    }

    fn loss(&self, page: Page) -> PageGetError {
        let mut bytes = ZEROS;
        match self.0.core.remote_pages.get(page, &mut bytes) {
            Err(error) => error,
            // The program has discarded the page meanwhile.
            Ok(_) => PageGetError::Failed,
        }
    }
}

impl Inner {
    fn start(&mut self, handlers: usize, wait: WaitPolicy) -> std::io::Result<()> {
        let hub = Arc::clone(&self.core.monitor);
        self.core.remote_pages.on_less_pending(move || {
            // Under the lock, so that a thread about to wait is not missed.
            let waiting = hub.lock().waiting;
            hub.evict.notify_one();
            if waiting > 0 {
                hub.changed.notify_all();
            }
        });
        for index in 0..handlers {
            let (core, epoll) = (Arc::clone(&self.core), handler::epoll(&self.core)?);
            let body = move || handler::run(&core, epoll, wait);
            self.handlers
                .push(threads::begin(&format!("netram-fault-{index}"), body)?);
        }
        let core = Arc::clone(&self.core);
        self.movers
            .push(threads::begin("netram-evict", move || evictor::run(&core))?);
        let core = Arc::clone(&self.core);
        self.movers
            .push(threads::begin("netram-prefetch", move || prefetcher::run(&core))?);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if rustix::process::getpid() != self.process {
            // A child process has neither the threads nor the memory.
            return;
        }
        handler::stop(&self.core);
        self.core.remote_pages.close();
        // A failed thread has ended the process already.
        self.movers.drain(..).for_each(|thread| drop(thread.join()));
        handler::end(&self.core);
        self.handlers.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn check(config: &ArenaConfig) -> Result<(u32, ArenaSettings), ArenaError> {
    let bad = |what, must| Err(ArenaError::BadConfig { what, must });
    let pages = config.bytes.div_ceil(PAGE_BYTES as u64);
    if pages == 0 || pages > u64::from(ARENA_PAGES_MAX) {
        return bad("the arena's size", "up to 1 TiB, and not 0");
    }
    let frames = |bytes: u64| {
        u32::try_from(bytes / PAGE_BYTES as u64)
            .unwrap_or(ARENA_PAGES_MAX)
            .min(ARENA_PAGES_MAX)
    };
    let local = frames(config.local_bytes);
    if local < ARENA_FRAMES_MIN {
        return bad("the cap of local memory", "256 KiB at least");
    }
    let hidden = config.inactive_bytes.map_or(local / INACTIVE_SHARE, frames);
    if hidden > local / 2 {
        return bad("the memory for inactive pages", "at most half of the cap");
    }
    if matches!(config.words, WordAccess::Counted(count) if !(COUNTER_MIN..=COUNTER_MAX).contains(&count)) {
        return bad("the count of words that bring a page", "from 1 to 256");
    }
    if !(2..=HANDLERS_MAX).contains(&config.handlers) {
        return bad("the number of handlers", "from 2 to 64");
    }
    let pack = config.packed_bytes.map_or(local / PACKED_SHARE, frames);
    if hidden + pack > local / 4 * 3 {
        return bad(
            "the memory for inactive and compressed pages",
            "at most three quarters of the cap",
        );
    }
    let left = local / 4 * 3 - hidden - pack;
    let patched = { config.patched_bytes }.map_or((local / PATCHED_SHARE).min(left), frames);
    if patched > left {
        return bad(
            "the memory for inactive pages, compressed pages and written words",
            "at most three quarters of the cap",
        );
    }
    let settings = ArenaSettings {
        frames: local,
        inactive: hidden,
        pack,
        packs_always: config.packed_bytes.is_some(),
        looks_ahead: config.look_ahead,
        patched: match config.words {
            WordAccess::Never => 0,
            _ => patched,
        },
        replacement: config.replacement,
        seed: 1,
    };
    Ok((pages as u32, settings))
}

/// Features that the kernel offers for an arena.
fn offered(user_only: bool, lacking: UffdFeatures) -> Result<UffdFeatures, ArenaError> {
    let offered = Uffd::offered(user_only).map_err(refused)?.without(lacking);
    if !offered.has(NEEDED) {
        return Err(ArenaError::Kernel {
            what: "userfaultfd events for discarded memory (UFFD_FEATURE_EVENT_REMOVE and others)",
        });
    }
    if !offered.has(UffdFeatures::MOVE) && !offered.has(UffdFeatures::PROTECT) {
        return Err(ArenaError::Kernel {
            what: "UFFDIO_MOVE, and no write protection by userfaultfd either",
        });
    }
    Ok(offered)
}

/// The `userfaultfd` that moves pages to staging frames. It reports nothing: a missing page there is a
/// defect, and a bus error.
fn open_move_uffd(
    user_only: bool,
    offered: UffdFeatures,
    backstage: &MappedMemory,
) -> Result<Uffd, ArenaError> {
    let uffd = Uffd::open(user_only, UffdFeatures::SIGBUS.common(offered)).map_err(refused)?;
    let watched = uffd.register(backstage, false);
    watched.map_err(|source| ArenaError::System {
        step: "watch its staging frames",
        source,
    })?;
    Ok(uffd)
}

fn refused(error: UffdError) -> ArenaError {
    match error {
        UffdError::Absent => ArenaError::Kernel { what: "userfaultfd" },
        UffdError::Refused(source) => ArenaError::Refused { source },
        UffdError::Other(source) => ArenaError::System {
            step: "open a userfaultfd",
            source,
        },
    }
}
