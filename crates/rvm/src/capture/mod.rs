//! How the stores of a transaction are found in a region: declared, or by page.
//!
//! By page, a transaction need not declare what it changes. The first store to a page since the last commit is
//! found by a [`Finder`]; the commit compares the page with its *twin*, which shows what was last logged, and
//! logs exactly the bytes that differ; an abort copies them back from there. Or the page is logged whole.
//!
//! A page does not say who stored to it. So a region that is captured by page lends its [`Captured`] to one
//! transaction at a time, which has it until it ends; others are refused. A store outside of any transaction
//! counts as the next one's.

mod compare;
mod dirty;
mod habit;
mod verify;

use netram_proto::port::IoError;

pub use compare::differences;
pub(crate) use dirty::Dirty;
pub(crate) use verify::Verifier;
pub use verify::{Undeclared, Verify};

use crate::error::CaptureError;
use crate::limit::CAPTURE_BYTES_MAX;
use crate::memory::{Memory, Trap, TrapError, Watch};
use crate::range::{Range, Ranges};
use habit::{Habit, Way};

/// Bytes of a page: the system's, where stores are found by page.
pub(crate) const PAGE: usize = crate::limit::PAGE_BYTES as usize;

/// How a region's stores are found. Chosen by [`crate::Region::set_capture`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capture {
    /// The program declares them (`set_range`, `write`, `edit`). Any number of transactions at once.
    #[default]
    Declared,
    /// By comparing stored pages with their twins, which take as much memory as the pages that were ever stored
    /// to (with [`Find::Watch`], as the region). The bytes that differ are logged. One transaction at a time.
    Twins(Find),
    /// As whole pages: every page that was stored to is logged. One transaction at a time.
    Pages(Find),
    /// Declared, and by the page what is cheapest for it: each update recorded, the page compared with a twin, or
    /// logged whole, as its last transactions would have had it. One transaction at a time.
    Adaptive,
    /// Declared, and at each commit compared with what was declared: undeclared stores are found and said. For
    /// tests: memory twice the region's, and 1 to 3 us a stored page. Any number of transactions at once.
    Verified(Verify),
}

/// How a store to a page is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// Pages are protected, and the first store to each makes a signal (SIGSEGV), which a handler of this library
    /// takes; other faults go to the handler that was there before. Where system calls store to the region for
    /// the program they fail with EFAULT.
    Trap,
    /// The kernel notes stores in its page tables (Linux 6.7). Refused where it does not.
    Watch,
}

#[derive(Debug)]
enum Finder {
    Trap(Trap),
    Watch(Watch),
    /// The program declares them. A habit a page, and the pages that the open transaction touched.
    Declared {
        habits: Vec<Habit>,
        touched: Vec<usize>,
    },
}

/// What is to be done about a declared part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Record,
    /// The page's commit finds it.
    Known,
}

/// What finds a region's stores, and the twins: lent to the transaction that stores there.
#[derive(Debug)]
pub(crate) struct Captured {
    // Before the twin: the handler must be gone when that is.
    finder: Finder,
    twin: Memory,
    whole: bool,
    /// An abort of the transaction that has it restores memory.
    restores: bool,
    /// Pages that were taken from the finder, and whose changes are not logged.
    pending: Vec<usize>,
    /// What the commit that is on its way will log.
    found: Vec<(usize, usize)>,
}

impl Captured {
    /// Finds stores to `memory` from now on.
    pub(crate) fn new(memory: &Memory, find: Option<Find>, whole: bool) -> Result<Captured, CaptureError> {
        if find.is_some() && (!memory.is_mapped() || rustix::param::page_size() != PAGE) {
            return Err(CaptureError::NotPages);
        }
        if memory.len() > CAPTURE_BYTES_MAX {
            let (length, max) = (memory.len(), CAPTURE_BYTES_MAX);
            return Err(CaptureError::TooLarge { length, max });
        }
        let system = |cause| CaptureError::System { cause };
        let mut twin = Memory::reserve(memory.len().next_multiple_of(PAGE)).map_err(system)?;
        let finder = match find {
            None => Finder::Declared {
                habits: vec![Habit::default(); memory.len().div_ceil(PAGE)],
                touched: Vec::new(),
            },
            Some(Find::Trap) => Finder::Trap(Trap::new(memory, &twin).map_err(|error| match error {
                TrapError::TooMany => CaptureError::TooManyTraps {
                    max: crate::limit::TRAPS_MAX,
                },
                TrapError::System(cause) => system(cause),
            })?),
            Some(Find::Watch) => {
                let watch = Watch::new(memory).map_err(|cause| CaptureError::NoWatch { cause })?;
                (0..memory.len().div_ceil(PAGE)).for_each(|page| copy_page(memory, &mut twin, page));
                Finder::Watch(watch)
            }
        };
        Ok(Captured {
            finder,
            twin,
            whole,
            restores: true,
            pending: Vec::new(),
            found: Vec::new(),
        })
    }

    /// Whether declared ranges are asked for.
    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.finder, Finder::Declared { .. })
    }

    /// The program is about to store to `page`, and has declared it.
    #[inline]
    pub(crate) fn touch(&mut self, memory: &Memory, page: usize) -> Part {
        let Finder::Declared { habits, touched } = &mut self.finder else {
            return Part::Known;
        };
        let habit = &mut habits[page];
        if habit.updates == 0 {
            touched.push(page);
            if habit.way != Way::Recorded {
                self.pending.push(page);
                // A page that is logged whole needs its twin for an abort only.
                if !habit.has_twin && (self.restores || habit.way == Way::Compared) {
                    habit.has_twin = true;
                    copy_page(memory, &mut self.twin, page);
                }
            }
        }
        habit.updates = habit.updates.saturating_add(1);
        match habit.way {
            Way::Recorded => Part::Record,
            Way::Compared | Way::Whole => Part::Known,
        }
    }

    /// A transaction has it from now on, which is to be restored by an abort, or not.
    pub(crate) fn lend(&mut self, restores: bool) {
        self.restores = restores;
        if let (Finder::Trap(trap), true) = (&self.finder, self.whole) {
            trap.set_copies(restores);
        }
    }

    /// Adds what was stored since the last commit to `ranges`. It stays so until [`Captured::logged`].
    pub(crate) fn find(&mut self, memory: &Memory, region: u32, ranges: &mut Ranges) -> Result<(), IoError> {
        if let Finder::Trap(trap) = &self.finder {
            // What other threads store from now on is the next transaction's, which may be restored.
            trap.set_copies(true);
        }
        self.take()?;
        self.found.clear();
        let Captured {
            twin,
            pending,
            found,
            whole,
            finder,
            ..
        } = self;
        for page in pending.iter() {
            let (start, length) = extent(memory, *page);
            let whole = match finder {
                Finder::Declared { habits, .. } => habits[*page].way == Way::Whole,
                _ => *whole,
            };
            match whole {
                true => found.push((start, length)),
                false => compare(memory, twin, *page, |at, count| found.push((start + at, count))),
            }
        }
        for (offset, length) in found.iter() {
            // No longer than a page.
            ranges.find(Range {
                offset: *offset as u64,
                length: *length as u32,
                region,
            });
        }
        Ok(())
    }

    /// What was found is in the log: the twins show it from now on.
    pub(crate) fn logged(&mut self, memory: &Memory) {
        self.learn();
        match self.whole {
            true => self.renew(memory),
            false => {
                let mut bytes = [0; PAGE];
                for (offset, length) in self.found.drain(..) {
                    memory.copy_out(offset, &mut bytes[..length]);
                    self.twin.copy_in(offset, &bytes[..length]);
                }
            }
        }
        self.pending.clear();
    }

    /// The habits of the touched pages hear what came of them.
    fn learn(&mut self) {
        let Finder::Declared { habits, touched } = &mut self.finder else {
            return;
        };
        // Both by place: `pending` is sorted.
        touched.sort_unstable();
        let mut found = self.found.iter().peekable();
        for page in touched.drain(..) {
            let (mut bytes, mut runs) = (0, 0);
            while let Some((_, length)) = found.next_if(|(offset, _)| *offset < (page + 1) * PAGE) {
                (bytes, runs) = (bytes + length, runs + 1);
            }
            habits[page].logged(bytes, runs);
        }
    }

    /// Puts back what was logged last, wherever it was stored to. Such pages count as stored to once more.
    pub(crate) fn restore(&mut self, memory: &mut Memory) -> Result<(), IoError> {
        match &self.finder {
            Finder::Trap(trap) => trap.look(&mut self.pending),
            Finder::Watch(watch) => watch.look(&mut self.pending)?,
            Finder::Declared { .. } => {}
        }
        self.settle();
        let (mut runs, mut bytes) = (Vec::new(), [0; PAGE]);
        for page in std::mem::take(&mut self.pending) {
            if !self.has_twin(page) {
                continue;
            }
            let (start, _) = extent(memory, page);
            compare(memory, &self.twin, page, |at, count| {
                runs.push((start + at, count))
            });
            for (offset, length) in runs.drain(..) {
                self.twin.copy_out(offset, &mut bytes[..length]);
                memory.copy_in(offset, &bytes[..length]);
            }
        }
        self.untouch();
        Ok(())
    }

    /// The transaction that touched pages has left no trace.
    fn untouch(&mut self) {
        if let Finder::Declared { habits, touched } = &mut self.finder {
            touched.drain(..).for_each(|page| habits[page].updates = 0);
        }
    }

    /// Leaves memory as it is: what was stored until now will not be logged.
    pub(crate) fn forget(&mut self, memory: &Memory) -> Result<(), IoError> {
        self.take()?;
        self.renew(memory);
        self.pending.clear();
        self.untouch();
        Ok(())
    }

    /// Has the twins of taken pages show the pages as they are; or drops them, where the next store makes new ones.
    fn renew(&mut self, memory: &Memory) {
        for page in &self.pending {
            match &self.finder {
                Finder::Trap(trap) if self.whole => trap.drop_twin(*page),
                Finder::Trap(trap) if !trap.has_twin(*page) => {}
                Finder::Declared { habits, .. } if !habits[*page].has_twin => {}
                _ => copy_page(memory, &mut self.twin, *page),
            }
        }
    }

    fn take(&mut self) -> Result<(), IoError> {
        let taken = match &self.finder {
            Finder::Trap(trap) => trap.take(&mut self.pending),
            Finder::Watch(watch) => watch.take(&mut self.pending),
            Finder::Declared { .. } => Ok(()),
        };
        self.settle();
        taken
    }

    fn settle(&mut self) {
        self.pending.sort_unstable();
        self.pending.dedup();
    }

    fn has_twin(&self, page: usize) -> bool {
        match &self.finder {
            Finder::Trap(trap) => trap.has_twin(page),
            Finder::Watch(_) => true,
            Finder::Declared { habits, .. } => habits[page].has_twin,
        }
    }
}

/// Where a page of the region begins, and its bytes that belong to the region.
fn extent(memory: &Memory, page: usize) -> (usize, usize) {
    let start = page * PAGE;
    (start, PAGE.min(memory.len() - start))
}

fn copy_page(memory: &Memory, twin: &mut Memory, page: usize) {
    let (start, length) = extent(memory, page);
    let mut bytes = [0; PAGE];
    memory.copy_out(start, &mut bytes[..length]);
    twin.copy_in(start, &bytes[..length]);
}

/// Hands the runs in which a page differs from its twin to `each`. Both are copied first: other threads may be
/// storing to the page.
fn compare(memory: &Memory, twin: &Memory, page: usize, each: impl FnMut(usize, usize)) {
    let (start, length) = extent(memory, page);
    let (mut old, mut new) = ([0; PAGE], [0; PAGE]);
    twin.copy_out(start, &mut old[..length]);
    memory.copy_out(start, &mut new[..length]);
    differences(&old[..length], &new[..length], each);
}
