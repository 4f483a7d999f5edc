//! The handle: pages go in and come out; whoever waits for one has the links (`lead.rs`).
//!
//! Under the lock is the [`RemotePageClient`]. Whoever holds it seals or copies a page, and waits for
//! nothing.

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
use netram_transport::{NetAddress, Waker};
use ring::rand::{SecureRandom, SystemRandom};

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

/// Why there is no depot.
#[derive(Debug, thiserror::Error)]
pub enum RemotePagesOpenError {
    /// The settings contradict a limit. Change them.
    #[error("{what}; it must be {must}")]
    BadConfig {
        /// Which setting.
        what: &'static str,
        /// What is allowed.
        must: &'static str,
    },
    /// One lender would be two. Name another, or take the name away.
    #[error("{address} is named twice; two copies at one lender are one copy")]
    NamedTwice {
        /// Which lender.
        address: NetAddress,
    },
    /// There can be no spill file. Name another directory.
    #[error("no spill file can be made in {}", dir.display())]
    Spill {
        /// Where.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system refused something that every program needs.
    #[error("the depot cannot {step}")]
    System {
        /// What was to be done.
        step: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Why a page does not come back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageGetError {
    /// Everybody who had it has lost it. It stays lost until it is put or forgotten.
    #[error("page {} is lost: {} had it, and have it no more", page.0, names(lenders, *spilled))]
    Lost {
        /// The page.
        page: Page,
        /// Who had it.
        lenders: Vec<NetAddress>,
        /// The spill file had it, too.
        spilled: bool,
    },
    /// Who had the links has ended by a defect.
    #[error("the depot has failed")]
    Failed,
}

/// What a page was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent {
    /// It was never put, or has been forgotten: zeros.
    Zeros,
    /// What was put last.
    Page,
}

/// Pages at lenders.
pub struct RemotePages {
    shared: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

type ClientGuard<'a> = MutexGuard<'a, RemotePageClient<PageSealer>>;

/// What the handle and who has the links share.
struct Inner {
    config: RemotePagesConfig,
    id: DepositId,
    client: Mutex<RemotePageClient<PageSealer>>,
    /// Opens blocks without the lock.
    blocks: Arc<BlockCipher>,
    /// Seals pages without the lock.
    cipher: Arc<PageCipher>,
    /// Something has come, or been stashed, or all is over.
    changed: Condvar,
    leadership: LinkLeadership,
    stopping: AtomicBool,
    /// What a byte that is put takes of a link that has more to carry, in ps. 0: no link had.
    byte_ps: AtomicU64,
    failed: AtomicBool,
    /// Why each lender could not be reached when that was last tried.
    away: Mutex<Vec<Option<String>>>,
    /// Called when bytes have gone from aside.
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl RemotePages {
    /// A depot without a page. Returns at once; lenders are connected meanwhile.
    pub fn open(config: RemotePagesConfig) -> Result<RemotePages, RemotePagesOpenError> {
        RemotePages::open_in_form(config, SealForm::AsGiven)
    }

    pub(crate) fn open_in_form(
        config: RemotePagesConfig,
        form: SealForm,
    ) -> Result<RemotePages, RemotePagesOpenError> {
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
            return bad("the most pages at a lender", "1 at least");
        }
        let spill_max = config.spill_bytes / PAGE_BYTES as u64;
        if spill_max == 0 {
            return bad("the most bytes of a spill file", "a page at least");
        }
        let random = || RemotePagesOpenError::System {
            step: "draw random bytes",
            source: std::io::ErrorKind::Other.into(),
        };
        let mut id = [0; 16];
        SystemRandom::new().fill(&mut id).map_err(|_| random())?;
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
            id: DepositId(u128::from_le_bytes(id)),
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

    /// Why lenders cannot be reached, each with its address; empty: all can.
    pub(crate) fn why_away(&self) -> String {
        let away = self.shared.away();
        let lenders = away.iter().zip(&self.shared.config.lenders);
        let lenders = lenders.filter_map(|(why, address)| Some(format!("; {address}: {}", why.as_ref()?)));
        lenders.collect()
    }

    /// What it is called at lenders.
    pub fn id(&self) -> DepositId {
        self.shared.id
    }

    /// The page leaves, as it is. Returns at once: its bytes are aside until its places have them.
    pub fn put(&self, page: Page, bytes: &PageBytes) {
        let clear = PlainPage::pack(bytes).unwrap_or_else(|| PlainPage::whole(bytes));
        self.put_clear(page, &clear);
    }

    fn put_clear(&self, page: Page, clear: &PlainPage) {
        self.shared.lock().put(page, clear);
        // Who waits for what was there before takes this.
        self.shared.tell();
        self.shared.leadership.nudge();
    }

    /// Brings the page back. Waits for a lender, as long as one that has it may come back: up to its lease.
    pub fn get(&self, page: Page, into: &mut PageBytes) -> Result<PageContent, PageGetError> {
        self.get_while(page, into, &mut ())
    }

    /// The same, for a thread that can do something meanwhile.
    pub(crate) fn get_while(
        &self,
        page: Page,
        into: &mut PageBytes,
        meanwhile: &mut dyn IdleWork,
    ) -> Result<PageContent, PageGetError> {
        let mut shelf = self.shared.lock();
        match shelf.get(page) {
            PageLookup::Zeros => {
                into.fill(0);
                return Ok(PageContent::Zeros);
            }
            PageLookup::Pending(bytes) => {
                bytes.ok_or(PageGetError::Failed)?.unpack(into);
                return Ok(PageContent::Page);
            }
            PageLookup::Lost(lenders) => return Err(self.lost(page, lenders)),
            PageLookup::Waits => (),
        }
        let has_come = |shelf: &mut ClientGuard<'_>| shelf.has_arrived(page);
        shelf = self.shared.wait_until(shelf, has_come, None, meanwhile);
        let came = shelf.take(page);
        drop(shelf);
        match came {
            Some(Ok(bytes)) => {
                bytes.unpack(into);
                Ok(PageContent::Page)
            }
            Some(Err(lenders)) => Err(self.lost(page, lenders)),
            None => Err(PageGetError::Failed),
        }
    }

    /// The same for the first of some pages, and those behind it that have come as well by then. How many
    /// these are.
    pub(crate) fn get_run(
        &self,
        pages: &[Page],
        into: &mut [PageBytes],
        meanwhile: &mut dyn IdleWork,
    ) -> Result<usize, PageGetError> {
        let ([first, others @ ..], [into_first, rest @ ..]) = (pages, into) else {
            return Ok(0);
        };
        self.get_while(*first, into_first, meanwhile)?;
        let mut came = Vec::with_capacity(others.len());
        let mut shelf = self.shared.lock();
        for page in others.iter().take(rest.len()) {
            if !shelf.has_arrived(*page) || !matches!(shelf.get(*page), PageLookup::Waits) {
                break;
            }
            // One that is lost says so again when it is looked for by itself.
            let Some(Ok(clear)) = shelf.take(*page) else { break };
            came.push(clear);
        }
        drop(shelf);
        for (clear, into) in came.iter().zip(rest) {
            clear.unpack(into);
        }
        Ok(1 + came.len())
    }

    /// Asks for pages that will be wanted soon. They wait here for their [`get`](Self::get), up to 256 in
    /// all; beyond that none are asked for.
    pub fn prefetch(&self, pages: impl IntoIterator<Item = Page>) {
        self.shared.lock().prefetch(pages);
        self.shared.send();
    }

    /// The page is wanted no more: from now on it is zeros.
    pub fn forget(&self, page: Page) {
        self.shared.lock().forget(page);
        self.shared.tell();
        // Its slots may be what other pages wait for.
        self.shared.leadership.nudge();
    }

    /// Waits until no bytes are aside any more. `false`: that took longer than `patience`.
    pub fn flush(&self, patience: std::time::Duration) -> bool {
        let is_flushed = |shelf: &mut ClientGuard<'_>| shelf.pending() == 0;
        let shelf = self.shared.lock();
        let shelf = self.shared.wait_until(shelf, is_flushed, Some(patience), &mut ());
        shelf.pending() == 0
    }

    /// How the pages stand. Walks over all of them.
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
            // A panic has been printed where it happened.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn away(&self) -> MutexGuard<'_, Vec<Option<String>>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> ClientGuard<'_> {
        // A panic under the lock has set `failed`, or will: nobody believes the shelf after that.
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who the owner is to lenders.
    fn owner(&self) -> u64 {
        self.id.owner()
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Nobody gets anything any more; whoever waits learns that.
    fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        // Whoever has looked at `failed` and is about to wait has the lock.
        drop(self.lock());
        self.changed.notify_all();
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
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
