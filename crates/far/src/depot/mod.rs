//! The handle: pages go in and come out; one thread has the links.
//!
//! Under the lock are the machine, the bytes aside, and what has come. Whoever holds it seals or copies a page, and waits for nothing.

mod driver;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use netram_proto::deposit::{Depot as Machine, Found, LenderSet, Page, Settings, Status};
use netram_proto::id::DepositId;
use netram_proto::limit::{COPIES_MAX, LENDERS_MAX, PAGE_BYTES};
use netram_transport::{Address, Waker};
use ring::rand::{SecureRandom, SystemRandom};

use crate::config::Config;
use crate::seal::{Bytes, Sealer, Tag};
use driver::Driver;

/// Pages that have come unasked, by [`Depot::prefetch`], and wait to be taken. Beyond that nothing is fetched ahead.
const AHEAD_PAGES_MAX: usize = 256;

/// Why there is no depot.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
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
        address: Address,
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
pub enum GetError {
    /// Every lender that had it has lost it. It stays lost until it is put or forgotten.
    #[error("page {} is lost: {} had it, and have it no more", page.0, names(lenders))]
    Lost {
        /// The page.
        page: Page,
        /// Who had it.
        lenders: Vec<Address>,
    },
    /// The depot's thread has ended by a defect.
    #[error("the depot has failed")]
    Failed,
}

/// What a page was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// It was never put, or has been forgotten: zeros.
    Zeros,
    /// What was put last.
    Page,
}

/// Pages at lenders.
pub struct Depot {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the handle and the thread share.
struct Shared {
    config: Config,
    id: DepositId,
    sealer: Sealer,
    state: Mutex<State>,
    /// Something has come, or been stashed, or all is over.
    changed: Condvar,
    waker: Waker,
    stopping: AtomicBool,
    failed: AtomicBool,
}

struct State {
    machine: Machine,
    /// Sealed pages that must not go yet.
    aside: BTreeMap<Page, (u64, Box<Bytes>)>,
    /// By page.
    tags: Vec<Tag>,
    /// How many wait for each page.
    waiters: BTreeMap<Page, usize>,
    /// Pages that are to come unasked.
    ahead: BTreeSet<Page>,
    /// What has come, opened, until whoever waits has taken it.
    came: BTreeMap<Page, Result<Box<Bytes>, LenderSet>>,
}

impl Depot {
    /// A depot without a page. Returns at once; lenders are connected meanwhile.
    pub fn open(config: Config) -> Result<Depot, OpenError> {
        let bad = |what, must| Err(OpenError::BadConfig { what, must });
        if !(1..=LENDERS_MAX).contains(&config.lenders.len()) {
            return bad("the number of lenders", "from 1 to 16");
        }
        if !(1..=COPIES_MAX).contains(&config.copies) {
            return bad("the number of copies", "1 or 2");
        }
        if let Some(twice) = named_twice(&config.lenders) {
            return Err(OpenError::NamedTwice {
                address: twice.clone(),
            });
        }
        if config.pages_max == 0 {
            return bad("the most pages at a lender", "1 at least");
        }
        let random = || OpenError::System {
            step: "draw random bytes",
            source: std::io::ErrorKind::Other.into(),
        };
        let mut id = [0; 16];
        SystemRandom::new().fill(&mut id).map_err(|_| random())?;
        let waker = Waker::new().map_err(system("make a waker"))?;
        let settings = Settings {
            copies: config.copies,
            slots_max: vec![config.pages_max; config.lenders.len()],
            grow: config.grow,
        };
        let shared = Arc::new(Shared {
            id: DepositId(u128::from_le_bytes(id)),
            sealer: Sealer::generate().map_err(|_| random())?,
            state: Mutex::new(State {
                machine: Machine::new(&settings),
                aside: BTreeMap::new(),
                tags: Vec::new(),
                waiters: BTreeMap::new(),
                ahead: BTreeSet::new(),
                came: BTreeMap::new(),
            }),
            changed: Condvar::new(),
            waker,
            stopping: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            config,
        });
        let driver = Driver::new(Arc::clone(&shared)).map_err(system("wait for lenders"))?;
        let thread = std::thread::Builder::new()
            .name("netram-far".to_owned())
            .spawn(move || driver.run())
            .map_err(system("start a thread"))?;
        Ok(Depot {
            shared,
            thread: Some(thread),
        })
    }

    /// The page leaves, as it is. Returns at once: its bytes are aside until its places have them.
    pub fn put(&self, page: Page, bytes: &Bytes) {
        let mut sealed = Box::new(*bytes);
        let mut state = self.shared.lock();
        let version = state.machine.put(page);
        let tag = self.shared.sealer.seal(page, version, &mut sealed);
        let index = page.0 as usize;
        if index >= state.tags.len() {
            state.tags.resize(index + 1, Tag::default());
        }
        state.tags[index] = tag;
        state.aside.insert(page, (version, sealed));
        state.override_with(page, bytes);
        drop(state);
        // Who waits for what was there before takes this.
        self.shared.changed.notify_all();
        self.shared.wake();
    }

    /// Brings the page back. Waits for a lender, as long as one that has it may come back: up to its lease.
    pub fn get(&self, page: Page, into: &mut Bytes) -> Result<Got, GetError> {
        let mut state = self.shared.lock();
        state.ahead.remove(&page);
        if !state.came.contains_key(&page) {
            match state.machine.get(page) {
                Found::Never => {
                    into.fill(0);
                    return Ok(Got::Zeros);
                }
                Found::Aside => return self.open_aside(&state, page, into),
                Found::Lost(lenders) => return Err(self.lost(page, lenders)),
                Found::Asked => self.shared.wake(),
            }
        }
        *state.waiters.entry(page).or_default() += 1;
        let waiting = |state: &mut State| !state.came.contains_key(&page) && !self.shared.has_failed();
        state = self
            .shared
            .changed
            .wait_while(state, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        let came = state.take(page);
        drop(state);
        match came {
            Some(Ok(bytes)) => {
                into.copy_from_slice(&bytes[..]);
                Ok(Got::Page)
            }
            Some(Err(lenders)) => Err(self.lost(page, lenders)),
            None => Err(GetError::Failed),
        }
    }

    /// Asks for pages that will be wanted soon. They wait here for their [`get`](Self::get), up to 256 in all; beyond that none are
    /// asked for.
    pub fn prefetch(&self, pages: impl IntoIterator<Item = Page>) {
        let mut state = self.shared.lock();
        for page in pages {
            let known = state.came.contains_key(&page) || state.waiters.contains_key(&page);
            if state.ahead.len() >= AHEAD_PAGES_MAX {
                break;
            }
            if !known && state.machine.get(page) == Found::Asked {
                state.ahead.insert(page);
            }
        }
        drop(state);
        self.shared.wake();
    }

    /// The page is wanted no more: from now on it is zeros.
    pub fn forget(&self, page: Page) {
        let mut state = self.shared.lock();
        state.machine.forget(page);
        state.aside.remove(&page);
        state.override_with(page, &[0; PAGE_BYTES]);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until no bytes are aside any more. `false`: that took longer than `patience`.
    pub fn flush(&self, patience: std::time::Duration) -> bool {
        let waiting = |state: &mut State| !state.aside.is_empty() && !self.shared.has_failed();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), patience, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.aside.is_empty()
    }

    /// How the pages stand. Walks over all of them.
    pub fn status(&self) -> Status {
        self.shared.lock().machine.status()
    }

    fn open_aside(&self, state: &State, page: Page, into: &mut Bytes) -> Result<Got, GetError> {
        let (version, sealed) = state.aside.get(&page).ok_or(GetError::Failed)?;
        let tag = &state.tags[page.0 as usize];
        let bytes = self
            .shared
            .sealer
            .open(page, *version, tag, &sealed[..])
            .ok_or(GetError::Failed)?;
        into.copy_from_slice(&bytes[..]);
        Ok(Got::Page)
    }

    fn lost(&self, page: Page, lenders: LenderSet) -> GetError {
        let named = lenders
            .iter()
            .filter_map(|index| self.shared.config.lenders.get(index).cloned());
        GetError::Lost {
            page,
            lenders: named.collect(),
        }
    }
}

impl Drop for Depot {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been printed where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock has set `failed`, or will: nobody believes the state after that.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the depot's thread could not be woken; it looks a little later");
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

impl State {
    /// Whoever waits for the page, or will, gets these bytes.
    fn override_with(&mut self, page: Page, bytes: &Bytes) {
        self.ahead.remove(&page);
        if self.waiters.contains_key(&page) {
            self.came.insert(page, Ok(Box::new(*bytes)));
        } else {
            self.came.remove(&page);
        }
    }

    /// One who has waited takes what came. The last one takes it away.
    fn take(&mut self, page: Page) -> Option<Result<Box<Bytes>, LenderSet>> {
        let left = match self.waiters.get_mut(&page) {
            Some(count) if *count > 1 => {
                *count -= 1;
                true
            }
            _ => {
                self.waiters.remove(&page);
                false
            }
        };
        if left {
            self.came.get(&page).cloned()
        } else {
            self.came.remove(&page)
        }
    }
}

fn named_twice(lenders: &[Address]) -> Option<&Address> {
    let mut rest = lenders.iter();
    std::iter::from_fn(|| rest.next().map(|address| (address, rest.clone())))
        .find_map(|(address, mut rest)| rest.any(|other| other == address).then_some(address))
}

fn names(lenders: &[Address]) -> String {
    lenders
        .iter()
        .map(Address::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

fn system(step: &'static str) -> impl FnOnce(std::io::Error) -> OpenError {
    move |source| OpenError::System { step, source }
}
