//! How the stores of a transaction are found in a region: declared, or by page.
//!
//! By page, a transaction need not declare what it changes. The first store to a page since the last commit
//! is found by a [`StoreFinder`]; the commit compares the page with its *twin*, which shows what was last
//! logged, and logs exactly the bytes that differ; an abort copies them back from there. Or the page is
//! logged whole.
//!
//! A page does not say who stored to it. So a region that is captured by page lends its [`PageCapture`] to
//! one transaction at a time, which has it until it ends; others are refused. A store outside of any
//! transaction counts as the next one's.

mod allowed;
mod compare;
mod dirty;
mod page_policy;
mod twins;
mod verify;

use std::sync::Arc;

use netram_proto::port::IoError;

pub(crate) use allowed::AllowedRanges;
pub use compare::differences;
pub(crate) use dirty::DirtyPages;
pub(crate) use twins::Twins;
pub(crate) use verify::Verifier;
pub use verify::{UndeclaredStore, VerifyMode};

use crate::error::CaptureError;
use crate::memory::RegionMemory;
use crate::range::{DeclaredRange, RangeList};
use page_policy::{DiffMethod, PagePolicy};
use twins::StoreFinder;

/// Bytes of a page: the system's, where stores are found by page.
pub(crate) const PAGE: usize = crate::limit::PAGE_BYTES as usize;

/// How a region's stores are found. Chosen by [`crate::Region::set_capture`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// The program declares them (`set_range`, `write`, `edit`). Any number of transactions at once.
    #[default]
    Declared,
    /// By comparing stored pages with their twins, which take as much memory as the pages that were ever
    /// stored to (with [`DetectMethod::Watch`], as the region). The bytes that differ are logged. One
    /// transaction at a time.
    Twins(DetectMethod),
    /// As whole pages: every page that was stored to is logged. One transaction at a time.
    Pages(DetectMethod),
    /// Declared, and by the page what is cheapest for it: each update recorded, the page compared with a
    /// twin, or logged whole, as its last transactions would have had it. One transaction at a time.
    Adaptive,
    /// Declared, and at each commit compared with what was declared: undeclared stores are found and said.
    /// For tests: memory twice the region's, and 1 to 3 us a stored page. Any number of transactions at once.
    Verified(VerifyMode),
}

/// How a store to a page is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectMethod {
    /// Pages are protected, and the first store to each makes a signal (SIGSEGV), which a handler of this
    /// library takes; other faults go to the handler that was there before. Where system calls store to the
    /// region for the program they fail with EFAULT.
    Trap,
    /// The kernel notes stores in its page tables (Linux 6.7). Refused where it does not.
    Watch,
}

/// What is to be done about a declared part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageDecision {
    Record,
    /// The page's commit finds it.
    Detected,
}

/// Bytes of a region: where they begin, and how many.
pub(crate) type ByteRun = (usize, usize);

/// What the transaction that stores to a region has of it, beside the [`Twins`]: lent to one at a time.
#[derive(Debug)]
pub(crate) struct PageCapture {
    twins: Arc<Twins>,
    whole: bool,
    /// Where the program declares its stores: a habit a page, and the pages that the open transaction
    /// touched.
    policies: Vec<PagePolicy>,
    touched: Vec<usize>,
    /// An abort of the transaction that has it restores memory.
    restores: bool,
    /// Nothing else may change. `None`: everything may.
    allowed: Option<AllowedRanges>,
    /// Pages that were taken from the finder, and whose changes are not logged.
    pending: Vec<usize>,
    /// Those of them that may be there for foreign bytes alone.
    foreign: Vec<usize>,
    /// What the commit that is on its way will log.
    changed: Vec<ByteRun>,
}

impl PageCapture {
    /// Finds stores to `memory` from now on.
    pub(crate) fn new(
        memory: &RegionMemory,
        find: Option<DetectMethod>,
        whole: bool,
    ) -> Result<PageCapture, CaptureError> {
        let twins = Arc::new(Twins::new(memory, find)?);
        let habits = match find {
            None => vec![PagePolicy::default(); memory.len().div_ceil(PAGE)],
            Some(_) => Vec::new(),
        };
        Ok(PageCapture {
            twins,
            whole,
            policies: habits,
            touched: Vec::new(),
            restores: true,
            allowed: None,
            pending: Vec::new(),
            foreign: Vec::new(),
            changed: Vec::new(),
        })
    }

    pub(crate) fn twins(&self) -> &Arc<Twins> {
        &self.twins
    }

    /// Whether declared ranges are asked for.
    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.twins.finder, StoreFinder::Declared)
    }

    /// The program is about to store to `page`, and has declared it.
    #[inline]
    pub(crate) fn touch(&mut self, memory: &RegionMemory, page: usize) -> PageDecision {
        let Some(habit) = self.policies.get_mut(page) else {
            return PageDecision::Detected;
        };
        if habit.updates == 0 {
            self.touched.push(page);
            if habit.method != DiffMethod::Recorded {
                self.pending.push(page);
                // A page that is logged whole needs its twin for an abort only.
                if !habit.has_twin && (self.restores || habit.method == DiffMethod::Compared) {
                    habit.has_twin = true;
                    self.twins.make(memory, page);
                }
            }
        }
        habit.updates = habit.updates.saturating_add(1);
        match habit.method {
            DiffMethod::Recorded => PageDecision::Record,
            DiffMethod::Compared | DiffMethod::Whole => PageDecision::Detected,
        }
    }

    /// A transaction has it from now on, which is to be restored by an abort, or not.
    pub(crate) fn lend(&mut self, restores: bool) {
        self.restores = restores;
        self.allowed = None;
        if let (StoreFinder::Trap(trap), true) = (&self.twins.finder, self.whole) {
            trap.set_copies(restores);
        }
    }

    /// The transaction may change nothing else.
    pub(crate) fn confine(&mut self, within: AllowedRanges) {
        self.allowed = Some(within);
    }

    /// Adds what was stored since the last commit to `ranges`. It stays so until [`PageCapture::logged`].
    /// Returns the first store to bytes that may not change, and how many there are: then nothing is to be
    /// logged.
    pub(crate) fn find(
        &mut self,
        memory: &RegionMemory,
        region: u32,
        ranges: &mut RangeList,
    ) -> Result<Option<(ByteRun, usize)>, IoError> {
        if let StoreFinder::Trap(trap) = &self.twins.finder {
            // What other threads store from now on is the next transaction's, which may be restored.
            trap.set_copies(true);
        }
        self.take()?;
        self.changed.clear();
        let (mut found, mut strays) = (std::mem::take(&mut self.changed), Strays::default());
        for page in &self.pending {
            self.find_in(memory, *page, &mut found, &mut strays);
        }
        self.changed = found;
        for (offset, length) in self.changed.iter() {
            // No longer than a page.
            ranges.add_captured(DeclaredRange {
                offset: *offset as u64,
                length: *length as u32,
                region,
            });
        }
        Ok(strays.first.map(|first| (first, strays.count)))
    }

    /// What of one page is to be logged, and what was stored where nothing may change.
    fn find_in(&self, memory: &RegionMemory, page: usize, found: &mut Vec<ByteRun>, strays: &mut Strays) {
        let all = extent(memory, page);
        let may = |run: ByteRun| self.allowed.as_ref().is_none_or(|within| within.has(run));
        let whole = match self.policies.get(page) {
            Some(habit) => habit.method == DiffMethod::Whole,
            None => self.whole,
        };
        let has_twin = self.has_twin(page);
        let only_foreign = has_twin && self.foreign.binary_search(&page).is_ok();
        if whole && may(all) && !only_foreign {
            return found.push(all);
        }
        let before = found.len();
        let adaptive = self.is_adaptive();
        let mut put = |run| match &self.allowed {
            None => found.push(run),
            Some(within) => within.cut(
                run,
                |run| found.push(run),
                // Without a twin nobody knows what of it was stored; where stores are declared they are not
                // outside.
                |run| {
                    if has_twin || !adaptive {
                        strays.add(run)
                    }
                },
            ),
        };
        match has_twin {
            true => self
                .twins
                .compare(memory, page, |at, count| put((all.0 + at, count))),
            false => put(all),
        }
        let changed = found.len();
        if !whole || changed == before {
            return;
        }
        // As much of the page as may change, piece by piece, unless a piece has not.
        match &self.allowed {
            None => found.push(all),
            Some(within) => within.cut(
                all,
                |(start, length)| {
                    let has = |(at, _): &ByteRun| (start..start + length).contains(at);
                    if found[before..changed].iter().any(has) {
                        found.push((start, length));
                    }
                },
                |_| {},
            ),
        }
        found.drain(before..changed);
    }

    /// What was found is in the log: the twins show it from now on.
    pub(crate) fn logged(&mut self, memory: &RegionMemory) {
        self.learn();
        match self.whole {
            true => self.renew(memory),
            false => {
                let mut bytes = [0; PAGE];
                let mut twin = self.twins.lock();
                for (offset, length) in self.changed.drain(..) {
                    memory.copy_out(offset, &mut bytes[..length]);
                    twin.copy_in(offset, &bytes[..length]);
                }
            }
        }
        self.pending.clear();
        self.foreign.clear();
    }

    /// The habits of the touched pages hear what came of them.
    fn learn(&mut self) {
        // Both by place: `pending` is sorted.
        self.touched.sort_unstable();
        let mut found = self.changed.iter().peekable();
        for page in self.touched.drain(..) {
            let (mut bytes, mut runs) = (0, 0);
            while let Some((_, length)) = found.next_if(|(offset, _)| *offset < (page + 1) * PAGE) {
                (bytes, runs) = (bytes + length, runs + 1);
            }
            self.policies[page].logged(bytes, runs);
        }
    }

    /// Puts back what was logged last, wherever it was stored to. Such pages count as stored to once more.
    pub(crate) fn restore(&mut self, memory: &mut RegionMemory) -> Result<(), IoError> {
        self.twins.look(&mut self.pending)?;
        self.settle();
        let (mut runs, mut bytes) = (Vec::new(), [0; PAGE]);
        for page in std::mem::take(&mut self.pending) {
            if !self.has_twin(page) {
                continue;
            }
            let (start, _) = extent(memory, page);
            self.twins
                .compare(memory, page, |at, count| runs.push((start + at, count)));
            for (offset, length) in runs.drain(..) {
                self.twins.lock().copy_out(offset, &mut bytes[..length]);
                memory.copy_in(offset, &bytes[..length]);
            }
            self.twins.note_foreign(page);
        }
        self.foreign.clear();
        self.untouch();
        Ok(())
    }

    /// The transaction that touched pages has left no trace.
    fn untouch(&mut self) {
        for page in self.touched.drain(..) {
            self.policies[page].updates = 0;
        }
    }

    /// Leaves memory as it is: what was stored until now will not be logged.
    pub(crate) fn forget(&mut self, memory: &RegionMemory) -> Result<(), IoError> {
        self.take()?;
        self.renew(memory);
        self.pending.clear();
        self.foreign.clear();
        self.untouch();
        Ok(())
    }

    /// Has the twins of taken pages show the pages as they are; or drops them, where the next store makes new
    /// ones.
    fn renew(&mut self, memory: &RegionMemory) {
        for page in &self.pending {
            match &self.twins.finder {
                // One that foreign bytes have opened since it was taken needs its twin.
                StoreFinder::Trap(trap) if self.whole && !trap.is_open(*page) => trap.drop_twin(*page),
                _ if !self.has_twin(*page) => {}
                _ => copy_page(memory, &mut self.twins.lock(), *page),
            }
        }
    }

    fn take(&mut self) -> Result<(), IoError> {
        let taken = self.twins.take(&mut self.pending);
        self.twins.take_foreign(&mut self.foreign);
        self.settle();
        taken
    }

    fn settle(&mut self) {
        for pages in [&mut self.pending, &mut self.foreign] {
            pages.sort_unstable();
            pages.dedup();
        }
    }

    fn has_twin(&self, page: usize) -> bool {
        match self.policies.get(page) {
            Some(habit) => habit.has_twin,
            None => self.twins.has(page),
        }
    }
}

/// Stores to bytes that may not change.
#[derive(Default)]
struct Strays {
    first: Option<ByteRun>,
    count: usize,
}

impl Strays {
    fn add(&mut self, run: ByteRun) {
        self.first.get_or_insert(run);
        self.count += 1;
    }
}

/// Where a page of the region begins, and its bytes that belong to the region.
fn extent(memory: &RegionMemory, page: usize) -> (usize, usize) {
    let start = page * PAGE;
    (start, PAGE.min(memory.len() - start))
}

fn copy_page(memory: &RegionMemory, twin: &mut RegionMemory, page: usize) {
    let (start, length) = extent(memory, page);
    let mut bytes = [0; PAGE];
    memory.copy_out(start, &mut bytes[..length]);
    twin.copy_in(start, &bytes[..length]);
}

/// Hands the runs in which a page differs from its twin to `each`. Both are copied first: other threads may
/// be storing to the page.
fn compare(memory: &RegionMemory, twin: &RegionMemory, page: usize, each: impl FnMut(usize, usize)) {
    let (start, length) = extent(memory, page);
    let (mut old, mut new) = ([0; PAGE], [0; PAGE]);
    twin.copy_out(start, &mut old[..length]);
    memory.copy_out(start, &mut new[..length]);
    differences(&old[..length], &new[..length], each);
}
