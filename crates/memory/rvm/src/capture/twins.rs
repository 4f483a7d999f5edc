//! The twins of a region's pages, and what says which pages were stored to: shared by the transaction that
//! has the region and by whoever stores the records of others there.
//!
//! A foreign record's bytes go to the page and to its twin, so that they never differ, and are never taken
//! for the program's. They make the page count as stored to: nothing is unprotected that a store of the
//! program could slip through unseen. Such pages are remembered, since a page that is logged whole is not
//! compared otherwise.
//!
//! Foreign bytes are stored under the region's exclusive lock, and everything else here happens under the
//! shared one. So between two looks of a transaction, foreign bytes are in both or in neither.

use std::sync::{Mutex, MutexGuard};

use netram_proto::port::IoError;

use super::{DetectMethod, DirtyPages, PAGE, compare, copy_page};
use crate::error::CaptureError;
use crate::limit::CAPTURE_BYTES_MAX;
use crate::memory::{PageTrap, PageWatch, RegionMemory, TrapError};
use crate::sync::lock;

#[derive(Debug)]
pub(crate) struct Twins {
    // Before the memory: the handler must be gone when that is.
    pub(super) finder: StoreFinder,
    memory: Mutex<RegionMemory>,
    /// Pages that have had a twin, where the program declares its stores. Some may have none any more.
    had: DirtyPages,
    /// Pages that foreign bytes were stored to, and that no commit has looked at since.
    foreign: DirtyPages,
}

/// What finds the stores.
#[derive(Debug)]
pub(super) enum StoreFinder {
    Trap(PageTrap),
    Watch(PageWatch),
    /// The program declares them.
    Declared,
}

impl Twins {
    /// Finds stores to `memory` from now on.
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

    /// The program declares its stores, and this page is to be compared: its twin is the page as it is.
    pub(super) fn make(&self, memory: &RegionMemory, page: usize) {
        self.had.set(page);
        copy_page(memory, &mut self.lock(), page);
    }

    /// Whether a page that the finder found has a twin. Where stores are declared, the habits say so.
    pub(super) fn has(&self, page: usize) -> bool {
        match &self.finder {
            StoreFinder::Trap(trap) => trap.has_twin(page),
            StoreFinder::Watch(_) | StoreFinder::Declared => true,
        }
    }

    /// Hands the runs in which a page differs from its twin to `each`.
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

    /// The pages that were stored to. They stay so.
    pub(super) fn look(&self, pages: &mut Vec<usize>) -> Result<(), IoError> {
        match &self.finder {
            StoreFinder::Trap(trap) => trap.look(pages),
            StoreFinder::Watch(watch) => watch.look(pages)?,
            StoreFinder::Declared => {}
        }
        Ok(())
    }

    /// Takes the pages that count as stored to though nothing of it is the program's.
    pub(super) fn take_foreign(&self, pages: &mut Vec<usize>) {
        self.foreign.take(|page| pages.push(page));
    }

    /// This page counts as stored to, and shows what its twin does.
    pub(super) fn note_foreign(&self, page: usize) {
        self.foreign.set(page);
    }

    /// Stores bytes that are not the program's. Who calls it holds the region exclusively; that is `memory`.
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
