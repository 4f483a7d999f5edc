//! One run of a program with many policies.
//!
//! A program references few pages at a time, again and again. References that move nothing under any policy
//! are counted in a *row* for each page, and reported to the policies when the row ends. They cost an
//! addition and a comparison each, however many policies there are. Only a page without a row asks every
//! policy, and only a miss costs more. Measured by `netram-lab bench figures --only far`.

use netram_far_machine::paging::{
    Page, PageAccess, PagingPolicy, PolicyConfig, PolicyTally, ReferenceOutcome,
};

use crate::numbering::Numbering;

/// Number of pages counted at a time: one bit each in [`Study::open`].
const ROWS: usize = u64::BITS as usize;
/// No page begins there.
const NOWHERE: u64 = u64::MAX;

/// References to one page that move nothing.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// The page's address in pages.
    start: u64,
    /// Number of references that may still be counted.
    left: u64,
    /// Number of unreported references, whether one of them writes, and the number of the last one.
    count: u64,
    writes: bool,
    last: u64,
    page: Page,
}

impl Row {
    const NONE: Row = Row {
        start: NOWHERE,
        left: 0,
        count: 0,
        writes: false,
        last: 0,
        page: Page(0),
    };
}

/// Effect of a program's references on every modelled memory.
#[derive(Debug)]
pub struct Study {
    page_shift: u32,
    numbering: Numbering,
    policies: Vec<PagingPolicy>,
    /// Indexed by the lowest bits of the page's address.
    rows: [Row; ROWS],
    /// Rows with unreported references, a bit each.
    open: u64,
    /// Number of references so far.
    now: u64,
    /// Number of references that are not modelled, to registers saved on the stack and the like, which are
    /// always local.
    others: u64,
}

impl Study {
    /// `page_bytes` is a power of two.
    pub fn new(page_bytes: u64, configs: &[PolicyConfig]) -> Study {
        assert!(page_bytes.is_power_of_two(), "a page's size is a power of two");
        Study {
            page_shift: page_bytes.trailing_zeros(),
            numbering: Numbering::new(),
            policies: configs.iter().copied().map(PagingPolicy::new).collect(),
            rows: [Row::NONE; ROWS],
            open: 0,
            now: 0,
            others: 0,
        }
    }

    /// Handles a reference to `bytes` bytes, which counts once for each page that contains some.
    #[inline]
    pub fn reference(&mut self, address: u64, bytes: u32, access: PageAccess) {
        let first = address >> self.page_shift;
        self.touch(first, access);
        let last = (address + u64::from(bytes).max(1) - 1) >> self.page_shift;
        if last != first {
            self.touch_all(first + 1, last, access);
        }
    }

    #[cold]
    fn touch_all(&mut self, first: u64, last: u64, access: PageAccess) {
        (first..=last).for_each(|page| self.touch(page, access));
    }

    /// Counts references to memory that is always local and not modelled.
    #[inline]
    pub fn others(&mut self, count: u64) {
        self.others += count;
    }

    #[inline]
    fn touch(&mut self, start: u64, access: PageAccess) {
        self.now += 1;
        let place = start as usize % ROWS;
        let row = &mut self.rows[place];
        if row.start == start && row.left > 0 {
            row.left -= 1;
            row.count += 1;
            row.writes |= access == PageAccess::Write;
            row.last = self.now;
            self.open |= 1 << place;
        } else {
            self.turn_to(start, access);
        }
    }

    /// Handles a page without a row, or one whose next reference may move something.
    #[inline(never)]
    fn turn_to(&mut self, start: u64, access: PageAccess) {
        let place = start as usize % ROWS;
        self.tell(place);
        let page = self.numbering.number(start);
        let quiet = self.policies.iter().map(|policy| policy.quiet(page)).min();
        let quiet = quiet.unwrap_or(u64::MAX);
        if quiet > 0 {
            self.rows[place] = Row {
                start,
                left: quiet - 1,
                count: 1,
                writes: access == PageAccess::Write,
                last: self.now,
                page,
            };
            self.open |= 1 << place;
            return;
        }
        self.tell_all();
        self.rows[place] = Row::NONE;
        let mut left = false;
        for policy in &mut self.policies {
            if let ReferenceOutcome::Moved(moves) | ReferenceOutcome::WordAndMoved(moves) =
                policy.reference_at(self.now, page, access)
            {
                left |= moves.iter().any(|one| one.leaves());
            }
        }
        if left {
            // It may be one of theirs.
            self.rows = [Row::NONE; ROWS];
        }
    }

    /// Reports a row to the policies. The row may continue.
    #[inline]
    fn tell(&mut self, place: usize) {
        if self.open & (1 << place) == 0 {
            return;
        }
        self.open &= !(1 << place);
        let row = &mut self.rows[place];
        let access = match row.writes {
            true => PageAccess::Write,
            false => PageAccess::Read,
        };
        for policy in &mut self.policies {
            policy.count(row.page, access, row.count, row.last);
        }
        row.count = 0;
        row.writes = false;
    }

    fn tell_all(&mut self) {
        while self.open != 0 {
            self.tell(self.open.trailing_zeros() as usize);
        }
    }

    /// Events of each policy, and the number of references that are not modelled.
    pub fn tallies(&mut self) -> (Vec<PolicyTally>, u64) {
        self.tell_all();
        let tallies = self.policies.iter().map(|policy| *policy.tally()).collect();
        (tallies, self.others)
    }

    /// Number of referenced pages.
    pub fn pages(&self) -> u32 {
        self.numbering.pages()
    }

    /// Page size in bytes.
    pub fn page_bytes(&self) -> u64 {
        1 << self.page_shift
    }
}
