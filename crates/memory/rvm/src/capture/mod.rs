//! How the stores of a transaction in a region are found: declared, or by page.
//!
//! By page, a transaction need not declare its changes. A [`StoreFinder`] finds the first store to a page
//! since the last commit. The commit compares the page with its *twin*, a copy of the page as last logged,
//! and logs exactly the bytes that differ; an abort copies them back from the twin. Alternatively the page is
//! logged whole.
//!
//! A page does not record which transaction stored to it. So a region that is captured by page lends its
//! [`PageCapture`] to one transaction at a time, until that ends; other transactions are refused. A store
//! outside of any transaction belongs to the next one.

mod allowed;
mod compare;
mod page_policy;
mod twins;
mod verify;

use std::sync::Arc;

use netram_proto::port::IoError;

pub(crate) use allowed::AllowedRanges;
pub use compare::differences;
pub(crate) use twins::Twins;
pub(crate) use verify::Verifier;
pub use verify::VerifyMode;

use crate::declared::DeclaredRange;
use crate::error::CaptureError;
use crate::memory::{PAGE, RegionMemory};
use crate::range::RangeList;
use page_policy::{DiffMethod, PagePolicy};
use twins::StoreFinder;

/// How a region's stores are found. Set by [`crate::Region::set_capture`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// The program declares its stores (`set_range`, `write`, `edit`). Allows any number of transactions at
    /// once.
    #[default]
    Declared,
    /// Stored pages are compared with their twins and the differing bytes are logged. Twins take as much
    /// memory as the pages that were ever stored to (with [`DetectMethod::Watch`], as the region). Allows one
    /// transaction at a time.
    Twins(DetectMethod),
    /// Every page that was stored to is logged whole. Allows one transaction at a time.
    Pages(DetectMethod),
    /// Stores are declared, and each page uses its cheapest method, judged by its last transactions: updates
    /// recorded, page compared with a twin, or page logged whole. Allows one transaction at a time.
    Adaptive,
    /// Stores are declared, and each commit compares memory with the declarations to find undeclared ones.
    /// For tests: it takes memory twice the region's size and 1 to 3 us per stored page. Allows any number of
    /// transactions at once.
    Verified(VerifyMode),
}

/// How a store to a page is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectMethod {
    /// Pages are protected, and the first store to each raises SIGSEGV, which this library's handler takes.
    /// Other faults go to the previous handler. A system call that stores to a protected page fails with
    /// EFAULT.
    Trap,
    /// The kernel records stores in its page tables (Linux 6.7). Refused where it cannot.
    Watch,
}

/// How a declared part of a page is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageDecision {
    Record,
    /// The commit finds the store by comparing the page, or logs the page whole.
    Detected,
}

/// A run of bytes in a region: start and length.
pub(crate) type ByteRun = (usize, usize);

/// Capture state of a region, beside its [`Twins`], lent to one transaction at a time.
#[derive(Debug)]
pub(crate) struct PageCapture {
    twins: Arc<Twins>,
    whole: bool,
    /// In adaptive mode, the policy of each page; and below, the pages that the open transaction touched.
    policies: Vec<PagePolicy>,
    touched: Vec<usize>,
    /// An abort of the borrowing transaction restores memory.
    restores: bool,
    /// The only bytes that may change; `None` allows all.
    allowed: Option<AllowedRanges>,
    /// Pages that were taken from the finder and whose changes are not logged yet.
    pending: Vec<usize>,
    /// Pending pages that may be dirty only because of foreign bytes.
    foreign: Vec<usize>,
    /// Runs that the commit in progress will log.
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
        let policies = match find {
            None => vec![PagePolicy::default(); memory.len().div_ceil(PAGE)],
            Some(_) => Vec::new(),
        };
        Ok(PageCapture {
            twins,
            whole,
            policies,
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

    /// Whether the program declares its stores.
    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.twins.finder, StoreFinder::Declared)
    }

    /// The program has declared a store to `page` and is about to make it.
    #[inline]
    pub(crate) fn touch(&mut self, memory: &RegionMemory, page: usize) -> PageDecision {
        let Some(policy) = self.policies.get_mut(page) else {
            return PageDecision::Detected;
        };
        if policy.updates == 0 {
            self.touched.push(page);
            if policy.method != DiffMethod::Recorded {
                self.pending.push(page);
                // A page that is logged whole needs its twin only for an abort.
                if !policy.has_twin && (self.restores || policy.method == DiffMethod::Compared) {
                    policy.has_twin = true;
                    self.twins.make(memory, page);
                }
            }
        }
        policy.updates = policy.updates.saturating_add(1);
        match policy.method {
            DiffMethod::Recorded => PageDecision::Record,
            DiffMethod::Compared | DiffMethod::Whole => PageDecision::Detected,
        }
    }

    /// Lends the state to a transaction, which an abort restores or not.
    pub(crate) fn lend(&mut self, restores: bool) {
        self.restores = restores;
        self.allowed = None;
        if let (StoreFinder::Trap(trap), true) = (&self.twins.finder, self.whole) {
            trap.set_copies(restores);
        }
    }

    /// Limits the bytes that the transaction may change.
    pub(crate) fn confine(&mut self, within: AllowedRanges) {
        self.allowed = Some(within);
    }

    /// Adds the stores since the last commit to `ranges`; they stay pending until [`PageCapture::logged`].
    /// Returns the first store to bytes that may not change, and the number of such stores. If there is one,
    /// nothing may be logged.
    pub(crate) fn find(
        &mut self,
        memory: &RegionMemory,
        region: u32,
        ranges: &mut RangeList,
    ) -> Result<Option<(ByteRun, usize)>, IoError> {
        if let StoreFinder::Trap(trap) = &self.twins.finder {
            // Later stores of other threads belong to the next transaction, which may be restored.
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
            // A run is no longer than a page.
            ranges.add_captured(DeclaredRange {
                offset: *offset as u64,
                length: *length as u32,
                region,
            });
        }
        Ok(strays.first.map(|first| (first, strays.count)))
    }

    /// Adds the runs of one page that are to be logged to `found`, and the stores outside the allowed bytes
    /// to `strays`.
    fn find_in(&self, memory: &RegionMemory, page: usize, found: &mut Vec<ByteRun>, strays: &mut Strays) {
        let all = extent(memory, page);
        let may = |run: ByteRun| self.allowed.as_ref().is_none_or(|within| within.has(run));
        let whole = match self.policies.get(page) {
            Some(policy) => policy.method == DiffMethod::Whole,
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
                // Without a twin the stored bytes of the page are unknown. In adaptive mode stores are
                // declared, and so are inside the allowed bytes.
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
        // Logs each allowed piece of the page that has a change.
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

    /// The found runs are in the log: from now on the twins show them.
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

    /// Updates the policies of the touched pages with the outcome.
    fn learn(&mut self) {
        // Both are sorted by page number.
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

    /// Restores stored pages to the bytes last logged. These pages count as stored to once more.
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

    /// Clears the update counts of the touched pages.
    fn untouch(&mut self) {
        for page in self.touched.drain(..) {
            self.policies[page].updates = 0;
        }
    }

    /// Leaves memory as it is; stores made until now will not be logged.
    pub(crate) fn forget(&mut self, memory: &RegionMemory) -> Result<(), IoError> {
        self.take()?;
        self.renew(memory);
        self.pending.clear();
        self.foreign.clear();
        self.untouch();
        Ok(())
    }

    /// Copies taken pages to their twins, or drops the twins where the next store makes new ones.
    fn renew(&mut self, memory: &RegionMemory) {
        for page in &self.pending {
            match &self.twins.finder {
                // A page that foreign bytes have opened since it was taken needs its twin.
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
            Some(policy) => policy.has_twin,
            None => self.twins.has(page),
        }
    }
}

/// Stores outside the allowed bytes.
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

/// Start of a page in the region, and its bytes that belong to the region.
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

/// Passes the runs in which a page differs from its twin to `each`. Both are copied first, because other
/// threads may be storing to the page.
fn compare(memory: &RegionMemory, twin: &RegionMemory, page: usize, each: impl FnMut(usize, usize)) {
    let (start, length) = extent(memory, page);
    let (mut old, mut new) = ([0; PAGE], [0; PAGE]);
    twin.copy_out(start, &mut old[..length]);
    memory.copy_out(start, &mut new[..length]);
    differences(&old[..length], &new[..length], each);
}
