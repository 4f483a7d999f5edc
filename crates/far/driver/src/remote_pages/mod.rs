//! Storage of pages at lenders. A thread that waits for a page drives the links itself (`leader.rs`).
//!
//! The lock covers the [`RemotePageClient`]. Under it a thread seals or copies a page, and never blocks.

mod arena;
mod dialer;
mod driver;
mod gather;
mod leader;
mod link_rate;
mod spill_link;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use netram_far_machine::deposit::{
    DirectorySettings, LenderSet, Page, PageDirectory as Machine, PageDirectoryStatus, PageLookup,
    RemotePageClient,
};
use netram_far_machine::limit::{COPIES_MAX, DEPOSIT_SLOTS_MAX, PAGE_BYTES};
use netram_proto::id::{DepositId, Incarnation};
use netram_proto::limit::LENDERS_MAX;
use netram_transport::owner::SECRET_BYTES;
use netram_transport::{NetAddress, OwnerKey, Waker};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::block_cipher::BlockCipher;
use crate::compression::PlainPage;
use crate::config::RemotePagesConfig;
use crate::seal::{PageBytes, PageCipher, PageSealer, SealForm};
use crate::spill::SpillFile;
use crate::threads;
use driver::LinkDriver;
pub(crate) use gather::GatheredWords;
pub(crate) use leader::IdleWork;
use leader::LinkLeadership;
use spill_link::SpillLink;

/// Why remote pages cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RemotePagesOpenError {
    /// A setting is outside its bounds. Change it.
    #[error("{what}; it must be {must}")]
    BadConfig {
        /// Name of the setting.
        what: &'static str,
        /// Allowed values.
        must: &'static str,
    },
    /// A lender is listed twice. Replace or remove one.
    #[error("{address} is listed twice; two copies at one lender would be one copy")]
    NamedTwice {
        /// Address of the lender.
        address: NetAddress,
    },
    /// The spill file cannot be created. Choose another directory.
    #[error("the spill file cannot be created in {}", dir.display())]
    Spill {
        /// Directory of the file.
        dir: PathBuf,
        /// Error that the system returned.
        source: std::io::Error,
    },
    /// A system call failed that works in every usual process.
    #[error("far memory cannot {step}")]
    System {
        /// Step that failed.
        step: &'static str,
        /// Error that the system returned.
        source: std::io::Error,
    },
}

/// Why a page cannot be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageGetError {
    /// All lenders with a copy have lost it. The page stays lost until it is put or forgotten.
    #[error("page {} is lost: {} had a copy and lost it", page.0, names(lenders, *spilled))]
    Lost {
        /// The page.
        page: Page,
        /// Lenders that had a copy.
        lenders: Vec<NetAddress>,
        /// Whether the spill file had a copy too.
        spilled: bool,
    },
    /// A thread with the links has panicked, which is a defect.
    #[error("the links to lenders have failed")]
    Failed,
}

/// Content of a fetched page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent {
    /// The page was never put, or was forgotten: zeros.
    Zeros,
    /// The content that was put last.
    Page,
}

/// The first step of a fetch.
#[derive(Debug)]
pub(crate) enum FetchStart {
    /// The page was never put, or was forgotten: zeros.
    Zeros,
    /// The fetch has ended.
    Came(FetchedPage),
    /// The page is requested.
    Waits,
}

/// Outcome of a fetch.
pub(crate) type FetchedPage = Result<Box<PlainPage>, PageGetError>;

/// Pages stored at lenders.
pub struct RemotePages {
    shared: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

type ClientGuard<'a> = MutexGuard<'a, RemotePageClient<PageSealer>>;

/// State shared by the handle and the threads.
struct Inner {
    config: RemotePagesConfig,
    owner_key: OwnerKey,
    client: Mutex<RemotePageClient<PageSealer>>,
    /// Decrypts blocks without the lock.
    blocks: Arc<BlockCipher>,
    /// Seals pages without the lock.
    cipher: Arc<PageCipher>,
    /// Signalled when something arrived or was stored, and at the end.
    changed: Condvar,
    leadership: LinkLeadership,
    stopping: AtomicBool,
    /// Time that a put byte takes on a link under load, in ps; 0: not measured yet.
    byte_ps: AtomicU64,
    failed: AtomicBool,
    /// Last connection error of each lender.
    away: Mutex<Vec<Option<String>>>,
    /// Called when fewer pages are pending.
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl RemotePages {
    /// Opens storage without pages and returns at once. Lenders connect in the background.
    ///
    /// # Errors
    ///
    /// See [`RemotePagesOpenError`].
    pub fn open(config: RemotePagesConfig) -> Result<RemotePages, RemotePagesOpenError> {
        RemotePages::open_in_form(config, SealForm::AsGiven)
    }

    pub(crate) fn open_in_form(
        config: RemotePagesConfig,
        form: SealForm,
    ) -> Result<RemotePages, RemotePagesOpenError> {
        check(&config)?;
        let spill_max = config.spill_bytes / PAGE_BYTES as u64;
        let random = || RemotePagesOpenError::System {
            step: "draw random bytes",
            source: std::io::ErrorKind::Other.into(),
        };
        let mut seed = Zeroizing::new([0; SECRET_BYTES]);
        SystemRandom::new().fill(&mut seed[..]).map_err(|_| random())?;
        let sealer = PageSealer::generate(form).map_err(|_| random())?;
        let mut life = [0; 8];
        SystemRandom::new().fill(&mut life).map_err(|_| random())?;
        let file = { config.spill.as_ref() }
            .map(|dir| make_file(dir.as_path()))
            .transpose()?;
        let waker = Waker::new().map_err(system("make a waker"))?;
        let settings = DirectorySettings {
            copies: config.copies,
            slots_max: vec![config.pages_max; config.lenders.len()],
            grow: config.grow,
            spill_max: match file {
                Some(_) => spill_max.min(DEPOSIT_SLOTS_MAX.into()) as u32,
                None => 0,
            },
        };
        let shared = Arc::new(Inner {
            owner_key: OwnerKey::from_seed(&seed),
            blocks: sealer.blocks(),
            cipher: sealer.cipher(),
            client: Mutex::new(RemotePageClient::new(Machine::new(&settings), sealer)),
            changed: Condvar::new(),
            leadership: LinkLeadership::new(waker),
            stopping: AtomicBool::new(false),
            byte_ps: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            away: Mutex::new(vec![None; config.lenders.len()]),
            listener: OnceLock::new(),
            config,
        });
        let life = Incarnation(u64::from_le_bytes(life));
        let disk = { file }
            .map(|file| SpillLink::start(&shared, file, life))
            .transpose()
            .map_err(system("start a thread for the spill file"))?;
        let driver = LinkDriver::new(Arc::clone(&shared), disk).map_err(system("wait for lenders"))?;
        let keeper = Arc::clone(&shared);
        let thread = threads::begin("netram-far", move || leader::keep(&keeper, driver))
            .map_err(system("start a thread"))?;
        Ok(RemotePages {
            shared,
            thread: Some(thread),
        })
    }

    /// Connection errors of lenders, each with the address; empty: all are reachable.
    pub(crate) fn why_away(&self) -> String {
        let away = self.shared.away();
        let lenders = away.iter().zip(&self.shared.config.lenders);
        let lenders = lenders.filter_map(|(why, address)| Some(format!("; {address}: {}", why.as_ref()?)));
        lenders.collect()
    }

    /// The key that owns the deposits at lenders.
    pub fn owner(&self) -> &OwnerKey {
        &self.shared.owner_key
    }

    /// Puts a page and returns at once. The page is pending until its copies are stored.
    pub fn put(&self, page: Page, bytes: &PageBytes) {
        let clear = PlainPage::pack(bytes).unwrap_or_else(|| PlainPage::whole(bytes));
        self.put_clear(page, &clear);
    }

    fn put_clear(&self, page: Page, clear: &PlainPage) {
        self.shared.lock().put(page, clear);
        // Waiters for the old content get this one.
        self.shared.tell();
        self.shared.leadership.nudge();
    }

    /// Fetches a page. Waits as long as a lender that has it may come back: up to its lease.
    ///
    /// # Errors
    ///
    /// [`PageGetError::Lost`] if every copy is gone, [`PageGetError::Failed`] after a defect.
    pub fn get(&self, page: Page, into: &mut PageBytes) -> Result<PageContent, PageGetError> {
        let came = match self.begin_get(page) {
            FetchStart::Zeros => {
                into.fill(0);
                return Ok(PageContent::Zeros);
            }
            FetchStart::Came(came) => came,
            FetchStart::Waits => {
                let came = self.take_any(&[page], &mut ());
                let only = came.into_iter().next().map(|(_, came)| came);
                only.unwrap_or(Err(PageGetError::Failed))
            }
        };
        came?.unpack(into);
        Ok(PageContent::Page)
    }

    /// Begins to fetch a page. [`FetchStart::Waits`] is followed by [`take_any`](Self::take_any) until that
    /// has returned the page.
    pub(crate) fn begin_get(&self, page: Page) -> FetchStart {
        match self.shared.lock().get(page) {
            PageLookup::Zeros => FetchStart::Zeros,
            PageLookup::Pending(bytes) => FetchStart::Came(bytes.ok_or(PageGetError::Failed)),
            PageLookup::Lost(lenders) => FetchStart::Came(Err(self.lost(page, lenders))),
            PageLookup::Waits => FetchStart::Waits,
        }
    }

    /// Waits until some of the pages whose fetch has begun have come, and returns these; none if `meanwhile`
    /// has other work.
    pub(crate) fn take_any(&self, pages: &[Page], meanwhile: &mut dyn IdleWork) -> Vec<(Page, FetchedPage)> {
        let any_came = |shelf: &mut ClientGuard<'_>| pages.iter().any(|page| shelf.has_arrived(*page));
        let shelf = self.shared.lock();
        let mut shelf = self.shared.wait_until(shelf, any_came, None, meanwhile);
        let failed = self.shared.has_failed();
        let mut taken = Vec::new();
        for page in pages {
            if !failed && !shelf.has_arrived(*page) {
                continue;
            }
            let came = match shelf.take(*page) {
                Some(Ok(clear)) => Ok(clear),
                Some(Err(lenders)) => Err(self.lost(*page, lenders)),
                None => Err(PageGetError::Failed),
            };
            taken.push((*page, came));
        }
        taken
    }

    /// As [`RemotePages::get`] for the first of several pages, and those after it that have arrived by then.
    /// Returns their number.
    pub(crate) fn get_run(&self, pages: &[Page], into: &mut [PageBytes]) -> Result<usize, PageGetError> {
        let ([first, others @ ..], [into_first, rest @ ..]) = (pages, into) else {
            return Ok(0);
        };
        self.get(*first, into_first)?;
        let mut came = Vec::with_capacity(others.len());
        let mut shelf = self.shared.lock();
        for page in others.iter().take(rest.len()) {
            if !shelf.has_arrived(*page) || !matches!(shelf.get(*page), PageLookup::Waits) {
                break;
            }
            // A lost page is reported when it is fetched by itself.
            let Some(Ok(clear)) = shelf.take(*page) else { break };
            came.push(clear);
        }
        drop(shelf);
        for (clear, into) in came.iter().zip(rest) {
            clear.unpack(into);
        }
        Ok(1 + came.len())
    }

    /// Requests pages that will be wanted soon. They are kept for a later [`get`](Self::get), at most 256 in
    /// all; further ones are not requested.
    pub fn prefetch(&self, pages: impl IntoIterator<Item = Page>) {
        self.shared.lock().prefetch(pages);
        self.shared.send();
    }

    /// Forgets a page: it is zeros from now on.
    pub fn forget(&self, page: Page) {
        self.shared.lock().forget(page);
        self.shared.tell();
        // Other pages may wait for its slots.
        self.shared.leadership.nudge();
    }

    /// Waits until no page is pending. `false`: that took longer than `patience`.
    pub fn flush(&self, patience: std::time::Duration) -> bool {
        let is_flushed = |shelf: &mut ClientGuard<'_>| shelf.pending() == 0;
        let shelf = self.shared.lock();
        let shelf = self.shared.wait_until(shelf, is_flushed, Some(patience), &mut ());
        shelf.pending() == 0
    }

    /// Figures of pages and lenders. Walks over all pages.
    pub fn status(&self) -> PageDirectoryStatus {
        self.shared.lock().directory().status()
    }

    fn lost(&self, page: Page, lenders: LenderSet) -> PageGetError {
        let named = lenders
            .iter()
            .filter_map(|index| self.shared.config.lenders.get(index).cloned());
        PageGetError::Lost {
            page,
            lenders: named.collect(),
            spilled: lenders.contains(self.shared.config.lenders.len()),
        }
    }
}

impl Drop for RemotePages {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.leadership.summon();
        if let Some(thread) = self.thread.take() {
            // The panic message was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn away(&self) -> MutexGuard<'_, Vec<Option<String>>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> ClientGuard<'_> {
        // A panic under the lock sets `failed`, after which the client is not used.
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Id of the deposits at lenders.
    fn id(&self) -> DepositId {
        DepositId(self.owner_key.owned())
    }

    /// Owner number for lenders.
    fn owner(&self) -> u64 {
        self.id().owner()
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Ends all waiting with an error.
    fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        // Synchronise with a thread that has checked `failed` and is about to wait under this lock.
        drop(self.lock());
        self.changed.notify_all();
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

/// Checks settings against their bounds.
fn check(config: &RemotePagesConfig) -> Result<(), RemotePagesOpenError> {
    let bad = |what, must| Err(RemotePagesOpenError::BadConfig { what, must });
    let needed = usize::from(config.spill.is_none());
    if !(needed..=LENDERS_MAX).contains(&config.lenders.len()) {
        return bad("the number of lenders", "from 1 to 16, or 0 with a spill file");
    }
    if !(1..=COPIES_MAX).contains(&config.copies) {
        return bad("the number of copies", "1 or 2");
    }
    if let Some(twice) = named_twice(&config.lenders) {
        return Err(RemotePagesOpenError::NamedTwice {
            address: twice.clone(),
        });
    }
    if config.pages_max == 0 {
        return bad("the maximum number of pages at a lender", "at least 1");
    }
    if config.spill_bytes < PAGE_BYTES as u64 {
        return bad("the maximum size of the spill file", "at least a page");
    }
    Ok(())
}

fn named_twice(lenders: &[NetAddress]) -> Option<&NetAddress> {
    let mut rest = lenders.iter();
    std::iter::from_fn(|| rest.next().map(|address| (address, rest.clone())))
        .find_map(|(address, mut rest)| rest.any(|other| other == address).then_some(address))
}

fn names(lenders: &[NetAddress], spilled: bool) -> String {
    let file = spilled.then(|| "the spill file".to_owned());
    let names: Vec<String> = lenders.iter().map(NetAddress::to_string).chain(file).collect();
    names.join(", ")
}

fn make_file(dir: &Path) -> Result<SpillFile, RemotePagesOpenError> {
    SpillFile::create(dir).map_err(|source| RemotePagesOpenError::Spill {
        dir: dir.to_owned(),
        source,
    })
}

fn system(step: &'static str) -> impl FnOnce(std::io::Error) -> RemotePagesOpenError {
    move |source| RemotePagesOpenError::System { step, source }
}
