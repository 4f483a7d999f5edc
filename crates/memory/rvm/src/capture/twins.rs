//! The twins of a region's pages, and the finder of stores. They are shared by the transaction that stores to
//! the region and the code that applies records of other logs there.
//!
//! Bytes of a foreign record go to the page and to its twin, so that they never differ and are never taken
//! for stores of the program. They make the page count as stored to, so that no page is left unprotected in
//! which a store could go unseen. Such pages are remembered, because a page that is logged whole is otherwise
//! not compared.
//!
//! Foreign bytes are stored under the region's exclusive lock; everything else here runs under the shared
//! one. So a transaction sees foreign bytes in both page and twin, or in neither.

use std::sync::{Mutex, MutexGuard};

use netram_proto::port::IoError;

use super::{DetectMethod, compare, copy_page};
use crate::error::CaptureError;
use crate::limit::CAPTURE_BYTES_MAX;
use crate::memory::{DirtyPages, PAGE, PageTrap, PageWatch, RegionMemory, TrapError};
use crate::sync::lock;

#[derive(Debug)]
pub(crate) struct Twins {
    // Declared before the memory, because the signal handler must be gone before the memory is.
    pub(super) finder: StoreFinder,
    memory: Mutex<RegionMemory>,
    /// In adaptive mode, pages that have had a twin. Some may no longer have one.
    had: DirtyPages,
    /// Pages that foreign bytes were stored to and that no commit has compared since.
    foreign: DirtyPages,
}

/// The mechanism that finds stores.
#[derive(Debug)]
pub(super) enum StoreFinder {
    Trap(PageTrap),
    Watch(PageWatch),
    /// The program declares its stores.
    Declared,
}

impl Twins {
    /// Starts finding stores to `memory`.
    pub(super) fn new(memory: &RegionMemory, find: Option<DetectMethod>) -> Result<Twins, CaptureError> {
        if find.is_some() && (!memory.is_mapped() || rustix::param::page_size() != PAGE) {
            return Err(CaptureError::NotPages);
        }
        if memory.len() > CAPTURE_BYTES_MAX {
            let (length, max) = (memory.len(), CAPTURE_BYTES_MAX);
            return Err(CaptureError::TooLarge { length, max });
        }
        let system = |cause| CaptureError::System { cause };
        let mut twin = RegionMemory::reserve(memory.len().next_multiple_of(PAGE)).map_err(system)?;
        let pages = memory.len().div_ceil(PAGE);
        let finder = match find {
            None => StoreFinder::Declared,
            Some(DetectMethod::Trap) => {
                StoreFinder::Trap(PageTrap::new(memory, &twin).map_err(|error| match error {
                    TrapError::TooMany => CaptureError::TooManyTraps {
                        max: crate::limit::TRAPS_MAX,
                    },
                    TrapError::System(cause) => system(cause),
                })?)
            }
            Some(DetectMethod::Watch) => {
                let watch = PageWatch::new(memory).map_err(|cause| CaptureError::NoWatch { cause })?;
                (0..pages).for_each(|page| copy_page(memory, &mut twin, page));
                StoreFinder::Watch(watch)
            }
        };
        Ok(Twins {
            finder,
            memory: Mutex::new(twin),
            had: DirtyPages::new(pages),
            foreign: DirtyPages::new(pages),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RegionMemory> {
        lock(&self.memory)
    }

    /// Copies a page to its twin: the program has declared a store there and the page is to be compared.
    pub(super) fn make(&self, memory: &RegionMemory, page: usize) {
        self.had.set(page);
        copy_page(memory, &mut self.lock(), page);
    }

    /// Whether a page that the finder found has a twin. In adaptive mode the page policies know.
    pub(super) fn has(&self, page: usize) -> bool {
        match &self.finder {
            StoreFinder::Trap(trap) => trap.has_twin(page),
            StoreFinder::Watch(_) | StoreFinder::Declared => true,
        }
    }

    /// Passes the runs in which a page differs from its twin to `each`.
    pub(super) fn compare(&self, memory: &RegionMemory, page: usize, each: impl FnMut(usize, usize)) {
        compare(memory, &self.lock(), page, each);
    }

    /// Takes the pages that were stored to; the next store to each is found again.
    pub(super) fn take(&self, pages: &mut Vec<usize>) -> Result<(), IoError> {
        match &self.finder {
            StoreFinder::Trap(trap) => trap.take(pages),
            StoreFinder::Watch(watch) => watch.take(pages),
            StoreFinder::Declared => Ok(()),
        }
    }

    /// Lists the pages that were stored to, and keeps them.
    pub(super) fn look(&self, pages: &mut Vec<usize>) -> Result<(), IoError> {
        match &self.finder {
            StoreFinder::Trap(trap) => trap.look(pages),
            StoreFinder::Watch(watch) => watch.look(pages)?,
            StoreFinder::Declared => {}
        }
        Ok(())
    }

    /// Takes the pages that count as stored to although only foreign bytes were.
    pub(super) fn take_foreign(&self, pages: &mut Vec<usize>) {
        self.foreign.take(|page| pages.push(page));
    }

    /// Makes a page count as stored to although it equals its twin.
    pub(super) fn note_foreign(&self, page: usize) {
        self.foreign.set(page);
    }

    /// Stores foreign bytes to page and twin. The caller holds the region exclusively and passes its
    /// `memory`.
    pub(crate) fn store(&self, memory: &mut RegionMemory, offset: usize, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let page = at / PAGE;
            let (here, beyond) = rest.split_at(rest.len().min((page + 1) * PAGE - at));
            let shows = match &self.finder {
                StoreFinder::Trap(trap) => {
                    trap.open(page);
                    trap.has_twin(page)
                }
                StoreFinder::Watch(_) => true,
                StoreFinder::Declared => self.had.has(page),
            };
            memory.copy_in(at, here);
            if shows {
                self.lock().copy_in(at, here);
            }
            if !matches!(self.finder, StoreFinder::Declared) {
                self.foreign.set(page);
            }
            (at, rest) = (at + here.len(), beyond);
        }
    }
}
