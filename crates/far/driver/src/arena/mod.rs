//! The handle of an arena: addresses of which a part has memory here, and the rest at lenders.
//!
//! What is decided is `netram_far_machine::arena`'s. Its threads do: *handlers* bring pages that somebody
//! waits for, one *evictor* makes frames free before they are needed, one thread brings pages *ahead*.
//!
//! | file | does |
//! |---|---|
//! | `moves.rs` | the moves, and what the kernel tells |
//! | `handler.rs` | faults; `ear.rs`: which handler hears of them |
//! | `evictor.rs` | hides pages and gives them to the depot; `compressor.rs`: which of them compressed |
//! | `ahead.rs` | what comes before it is wanted |
//! | `words.rs` | words of pages that stay away |
//! | `patches.rs` | words that are written to them |
//!
//! Whether a page has changed since it came is not watched: sealing it again under its version tells
//! (`RemotePages::keep`). Write protection would cost the program a fault a written page, and if the kernel
//! resolves that itself, a write between the look and the move would be missed, for the move takes the mark
//! off.

mod compressor;
mod evictor;
mod fault_listener;
mod handler;
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
use netram_transport::{WaitPolicy, Waker};
use rustix::io::Errno;
use rustix::process::Pid;

use self::moves::{ArenaCore, ArenaMonitor, ZEROS, offset};
pub(crate) use self::patches::PageWrite;
pub use self::words::WordAccess;
pub(crate) use self::words::{BlockValues, NUMBERS};
use crate::config::RemotePagesConfig;
use crate::remote_pages::{PageGetError, RemotePages};
use crate::seal::SealForm;
use crate::sys::{AreaAllocator, ArenaArea, MappedMemory, Uffd, UffdError, UffdFeatures};
use crate::threads;

/// Handlers that an arena may have.
const HANDLERS_MAX: usize = 64;
/// One frame in so many may be hidden, by default.
const INACTIVE_SHARE: u32 = 8;
/// One frame in so many may be taken by compressed pages, by default. With pages that take a third, as much
/// more fits into the cap as these take.
const PACKED_SHARE: u32 = 4;
/// One frame in so many may be taken by words that were written to pages that are away, by default, if what
/// is hidden and packed leaves so many.
const PATCHED_SHARE: u32 = 4;
/// What every arena needs of the kernel.
const NEEDED: UffdFeatures = UffdFeatures::REMOVE
    .and(UffdFeatures::UNMAP)
    .and(UffdFeatures::REMAP)
    .and(UffdFeatures::THREAD_ID);
/// What it uses where it is to be had.
const WELCOME: UffdFeatures = UffdFeatures::POISON
    .and(UffdFeatures::PROTECT)
    .and(UffdFeatures::EXACT_ADDRESS);

/// Settings of an arena. Take the default, and name lenders and sizes.
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// Bytes of addresses, up to 1 TiB; rounded up to whole pages. They cost nothing until they are used.
    pub bytes: u64,
    /// The cap: bytes of local memory, 256 KiB at least. What is known of pages is not counted: 80 bytes for
    /// each that was ever used.
    pub local_bytes: u64,
    /// Bytes of the cap for pages that are on their way out, and come back without a lender if they are
    /// referenced; at most half of it. `None`: an eighth.
    pub inactive_bytes: Option<u64>,
    /// Bytes of the cap for pages that stay here compressed, and come back without a lender; with the hidden
    /// ones at most three quarters of it. Pages that do not compress take none of it. `None`: a quarter,
    /// while that spares more than it costs.
    pub packed_bytes: Option<u64>,
    /// Bytes of the cap for words that were written to pages that are away, where [`words`](Self::words) are
    /// allowed: about 120 for the first of a page. With what is hidden and compressed at most three quarters
    /// of the cap. When most of it is taken, the pages that were written first come home. `None`: a quarter,
    /// or what the others leave of three quarters.
    pub patched_bytes: Option<u64>,
    /// Whether pages come before anybody waits for them, where a thread's faults tell which.
    pub look_ahead: bool,
    /// Which page leaves.
    pub replacement: Replacement,
    /// Threads that serve faults, 2 to 64: so many may wait for lenders at once.
    pub handlers: usize,
    /// Serve no references by system calls: those that are given a slice whose pages are away fail with
    /// `EFAULT`. Needs no right.
    pub user_faults_only: bool,
    /// Whether values that are away may come, and be written, without their pages:
    /// [`FarVec::get`](crate::FarVec::get), [`set`](crate::FarVec::set), [`gather`](crate::FarVec::gather)
    /// and [`scatter`](crate::FarVec::scatter). A slice's pages always come. Where they may, pages leave for
    /// lenders uncompressed.
    pub words: WordAccess,
    /// What handlers do while nobody waits for a page.
    pub wait: WaitPolicy,
    /// How long an access that can fail waits for a frame while no lender has room.
    pub patience: Duration,
    /// The lenders.
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

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The settings contradict a limit. Change them.
    #[error("{what}; it must be {must}")]
    BadConfig {
        /// Which setting.
        what: &'static str,
        /// What is allowed.
        must: &'static str,
    },
    /// The kernel cannot do it. Take a later one.
    #[error("this kernel has no {what}: an arena needs Linux 5.7 or later, with CONFIG_USERFAULTFD")]
    Kernel {
        /// What it lacks.
        what: &'static str,
    },
    /// This process has no right to `userfaultfd`. Give it one, or serve no faults of system calls.
    #[error(
        "this process may not use userfaultfd ({source}): make /dev/userfaultfd readable and writable for it, or set the sysctl \
         vm.unprivileged_userfaultfd to 1, or take `user_faults_only`; in a container the seccomp profile must allow it"
    )]
    Refused {
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no depot.
    #[error(transparent)]
    RemotePages(#[from] crate::remote_pages::RemotePagesOpenError),
    /// The system refused something that every program needs.
    #[error("the arena cannot {step}")]
    System {
        /// What was to be done.
        step: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Why a value cannot be had, or stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FarAccessError {
    /// Its page is lost, and stays so until it is thrown away.
    #[error(transparent)]
    Lost(PageGetError),
    /// No lender has had room for so long that the cap is full of pages that have to leave. Add a lender, and
    /// try again.
    #[error("no lender has room: {aside} pages of an arena wait to leave")]
    NoRoom {
        /// Pages that wait.
        aside: usize,
    },
}

/// How an arena stands.
#[derive(Clone, Debug)]
pub struct ArenaStatus {
    /// What has happened so far.
    pub tally: ArenaTally,
    /// Frames with a page, or one on its way.
    pub used: u32,
    /// Frames that compressed pages take.
    pub packed: u32,
    /// Frames that words take which were written to pages that are away.
    pub patched: u32,
    /// The cap, in pages.
    pub frames: u32,
    /// Pages whose bytes are here because not all of their places have them.
    pub pending: usize,
}

/// Addresses of which a part has memory here. Handles are cheap: all are one arena, which ends with the last.
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

struct Inner {
    core: Arc<ArenaCore>,
    areas: Arc<AreaAllocator>,
    handlers: Vec<JoinHandle<()>>,
    /// Those who evict and bring ahead.
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
    /// An arena of zeros. Returns at once; lenders are connected meanwhile, and until then what does not fit
    /// waits.
    pub fn open(config: ArenaConfig) -> Result<Arena, ArenaError> {
        Arena::open_without(config, UffdFeatures::NONE)
    }

    /// Whether these settings hold, and whether this process may have such an arena. Lenders are not asked.
    pub fn check(config: &ArenaConfig) -> Result<(), ArenaError> {
        check(config)?;
        offered(config.user_faults_only, UffdFeatures::NONE).map(drop)
    }

    /// The same, as if the kernel lacked something.
    pub(crate) fn open_without(config: ArenaConfig, lacking: UffdFeatures) -> Result<Arena, ArenaError> {
        let (pages, settings) = check(&config)?;
        let system = |step| move |source| ArenaError::System { step, source };
        let user_only = config.user_faults_only;
        let offered = offered(user_only, lacking)?;
        let moves = offered.has(UffdFeatures::MOVE);
        let memory = Arc::new(MappedMemory::map(pages as usize).map_err(system("map its addresses"))?);
        let backstage = MappedMemory::map(Machine::staging_frames(&settings) as usize)
            .map_err(system("map its berths"))?;
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
        });
        let mut inner = Inner {
            areas: AreaAllocator::new(memory),
            handlers: Vec::new(),
            movers: Vec::new(),
            frames: settings.frames,
            patience: config.patience,
            words: config.words,
            process: rustix::process::getpid(),
            core,
        };
        inner
            .start(config.handlers, config.wait)
            .map_err(system("start its threads"))?;
        Ok(Arena(Arc::new(inner)))
    }

    /// How it stands.
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

    /// Its depot: how lenders stand.
    pub fn remote_pages(&self) -> &RemotePages {
        &self.0.core.remote_pages
    }

    /// How many pages it has.
    pub(crate) fn pages(&self) -> usize {
        self.0.core.pages() as usize
    }

    /// Whether a page is zeros, and nowhere.
    pub(crate) fn is_blank(&self, page: usize) -> bool {
        self.0.core.monitor.lock().machine.is_blank(Page(page as u32))
    }

    /// A part of it. `None`: so many pages in a row are not free.
    pub(crate) fn take(&self, pages: usize) -> Option<ArenaArea> {
        self.0.areas.take(pages)
    }

    /// Waits until more can be kept: not while so many pages wait for room at lenders that nothing more may
    /// leave.
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

    /// Brings a page, and keeps it in sight until [`Arena::unpin`]: 50 ns for one that is here.
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
                    // Nobody is told by a signal: a page that is lost was met above.
                    core.serve(page, serve, 0, &mut ());
                    state = core.monitor.lock();
                }
            }
            serve = state.machine.want(page);
        }
    }

    /// Pages that are about to be pinned are asked for together, so that their round trips overlap.
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

    /// Throws pages away: they are zeros from now on, and nowhere.
    pub(crate) fn empty(&self, pages: std::ops::Range<usize>) {
        // A child has none of it.
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
                // The kernel lets go when a handler has read the word of it, which has this lock until it is
                // known: who came between found a page that was lost lost still.
                Ok(()) => return drop(shape.read().unwrap_or_else(PoisonError::into_inner)),
                // The program has unmapped some of it; the rest is empty.
                Err(error) if error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => return,
                // The program has locked all its memory. What is locked cannot leave.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    if let Err(error) = memory.unlock() {
                        panic!("an arena's memory could not be unlocked: {error}");
                    }
                }
                Err(error) => panic!("pages of an arena could not be emptied: {error}"),
            }
        }
    }

    fn loss(&self, page: Page) -> PageGetError {
        let mut bytes = ZEROS;
        match self.0.core.remote_pages.get(page, &mut bytes) {
            Err(error) => error,
            // The program has thrown it away meanwhile.
            Ok(_) => PageGetError::Failed,
        }
    }
}

impl Inner {
    fn start(&mut self, handlers: usize, wait: WaitPolicy) -> std::io::Result<()> {
        let hub = Arc::clone(&self.core.monitor);
        self.core.remote_pages.on_less_pending(move || {
            // Under the lock, so that who is about to wait hears it.
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
            .push(threads::begin("netram-ahead", move || prefetcher::run(&core))?);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if rustix::process::getpid() != self.process {
            // A child has neither the threads nor the memory.
            return;
        }
        handler::stop(&self.core);
        self.core.remote_pages.close();
        // A thread that failed has ended the process.
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
        return bad("the memory for hidden pages", "at most half of the cap");
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
            "the memory for hidden and for compressed pages",
            "at most three quarters of the cap",
        );
    }
    let left = local / 4 * 3 - hidden - pack;
    let patched = { config.patched_bytes }.map_or((local / PATCHED_SHARE).min(left), frames);
    if patched > left {
        return bad(
            "the memory for hidden and for compressed pages and for words written",
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

/// What the kernel has for an arena.
fn offered(user_only: bool, lacking: UffdFeatures) -> Result<UffdFeatures, ArenaError> {
    let offered = Uffd::offered(user_only).map_err(refused)?.without(lacking);
    if !offered.has(NEEDED) {
        return Err(ArenaError::Kernel {
            what: "word of memory that is thrown away (UFFD_FEATURE_EVENT_REMOVE and its like)",
        });
    }
    if !offered.has(UffdFeatures::MOVE) && !offered.has(UffdFeatures::PROTECT) {
        return Err(ArenaError::Kernel {
            what: "UFFDIO_MOVE and no write protection by userfaultfd",
        });
    }
    Ok(offered)
}

/// What moves pages into berths. It tells nothing: what is missed there is a defect, and a bus error.
fn open_move_uffd(
    user_only: bool,
    offered: UffdFeatures,
    backstage: &MappedMemory,
) -> Result<Uffd, ArenaError> {
    let uffd = Uffd::open(user_only, UffdFeatures::SIGBUS.common(offered)).map_err(refused)?;
    let watched = uffd.register(backstage, false);
    watched.map_err(|source| ArenaError::System {
        step: "watch its berths",
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
