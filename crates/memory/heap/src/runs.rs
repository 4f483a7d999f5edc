//! The runs of a heap and their free slots. Volatile: the states of a run's slots are read when its class
//! first needs them.

use std::collections::BTreeSet;

use crate::class::{CLASSES, RUNS};
use crate::layout::SLOT_FREE;
use crate::limit::{EMPTY_RUNS_KEPT, RUN_SLOTS_MAX};
use crate::page_map::PageMap;

/// One bit per slot.
const WORDS: usize = RUN_SLOTS_MAX / 64;
/// The owner of each slot: the number of an open transaction that uses it, or none.
type Owners = Box<[u16; RUN_SLOTS_MAX]>;

/// State of one run.
#[derive(Debug)]
struct Run {
    page: u32,
    class: u8,
    /// The states have been read; until then `free` and `bits` are meaningless.
    read: bool,
    /// Number of slots that can be allocated.
    free: u16,
    /// Number of slots with an owner.
    owned: u16,
    /// One bit for each slot, set if it can be allocated.
    bits: [u64; WORDS],
    /// Owners of the slots; present only while a slot has one.
    owners: Option<Owners>,
}

impl Run {
    fn slots(&self) -> u16 {
        RUNS[usize::from(self.class)].slots as u16
    }

    fn is_empty(&self) -> bool {
        self.read && self.owned == 0 && self.free == self.slots()
    }
}

/// Counts of the runs of one class.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunCount {
    pub(crate) runs: u64,
    /// Slots that can be allocated, in runs whose states were read.
    pub(crate) free_slots: u64,
}

/// All runs, identified by their first page.
#[derive(Debug)]
pub(crate) struct RunTable {
    /// Runs by number; the number of a removed run is reused.
    all: Vec<Run>,
    free_numbers: Vec<u32>,
    numbers: PageMap,
    /// Runs with free slots, by class. The lowest is used first, so that high ones can become empty.
    partial: [BTreeSet<u32>; CLASSES],
    /// Runs whose states were not read, by class. The lowest is read first.
    unread: [BTreeSet<u32>; CLASSES],
    empty: BTreeSet<u32>,
    /// Number of slots that can be allocated, by class.
    available: [u64; CLASSES],
    /// Zeroed owner arrays for the next runs that need one.
    spare: Vec<Owners>,
}

impl RunTable {
    pub(crate) fn new(pages: u32) -> RunTable {
        RunTable {
            all: Vec::new(),
            free_numbers: Vec::new(),
            numbers: PageMap::new(pages),
            partial: std::array::from_fn(|_| BTreeSet::new()),
            unread: std::array::from_fn(|_| BTreeSet::new()),
            empty: BTreeSet::new(),
            available: [0; CLASSES],
            spare: Vec::new(),
        }
    }

    /// Enters a run that a scan of the table found. Its states are unknown.
    pub(crate) fn add_scanned(&mut self, page: u32, class: u8) {
        self.enter(page, class);
        self.unread[usize::from(class)].insert(page);
    }

    /// Enters a run that was just carved. All its slots are free.
    pub(crate) fn add_carved(&mut self, page: u32, class: u8) {
        self.enter(page, class);
        let states = [SLOT_FREE; RUN_SLOTS_MAX];
        let slots = RUNS[usize::from(class)].slots as usize;
        self.read(page, &states[..slots]);
    }

    fn enter(&mut self, page: u32, class: u8) {
        let run = Run {
            page,
            class,
            read: false,
            free: 0,
            owned: 0,
            bits: [0; WORDS],
            owners: None,
        };
        let number = match self.free_numbers.pop() {
            Some(number) => {
                self.all[number as usize] = run;
                number
            }
            None => {
                self.all.push(run);
                self.all.len() as u32 - 1
            }
        };
        self.numbers.set(page, number);
    }

    /// A run of the class whose states are unknown.
    pub(crate) fn next_unread(&self, class: u8) -> Option<u32> {
        self.unread[usize::from(class)].first().copied()
    }

    /// The class of the run that begins at a page.
    pub(crate) fn class_of(&self, page: u32) -> Option<u8> {
        let number = self.numbers.get(page)?;
        Some(self.all[number as usize].class)
    }

    /// Marks the states of a run as unknown, if one begins there. No open transaction may use the run.
    pub(crate) fn unread(&mut self, page: u32) {
        let Some(number) = self.numbers.get(page) else {
            return;
        };
        let run = &mut self.all[number as usize];
        assert_eq!(run.owned, 0, "a run whose states changed has no owners");
        let class = usize::from(run.class);
        self.available[class] -= u64::from(run.free);
        (run.read, run.free, run.bits) = (false, 0, [0; WORDS]);
        self.partial[class].remove(&page);
        self.empty.remove(&page);
        self.unread[class].insert(page);
    }

    /// Removes a run that another node has removed.
    pub(crate) fn forget(&mut self, page: u32) {
        self.unread(page);
        let number = self.number(page);
        self.unread[usize::from(self.all[number].class)].remove(&page);
        self.numbers.clear(page);
        self.free_numbers.push(number as u32);
    }

    /// Whether the states of a run are known; `None` if no run of the class begins there.
    pub(crate) fn is_read(&self, page: u32, class: u8) -> Option<bool> {
        let run = &self.all[self.numbers.get(page)? as usize];
        (run.class == class).then_some(run.read)
    }

    /// Reads a run's states from its bytes.
    pub(crate) fn read(&mut self, page: u32, states: &[u8]) {
        let run = self.run_mut(page);
        assert!(!run.read);
        assert_eq!(states.len(), usize::from(run.slots()));
        run.read = true;
        for (slot, state) in states.iter().enumerate() {
            if *state == SLOT_FREE {
                run.bits[slot / 64] |= 1 << (slot % 64);
                run.free += 1;
            }
        }
        let (class, free) = (usize::from(run.class), u64::from(run.free));
        self.available[class] += free;
        self.unread[class].remove(&page);
        self.file(page);
    }

    /// Takes a slot of a known run of the class for the owner.
    pub(crate) fn take(&mut self, class: u8, owner: u16) -> Option<(u32, u32)> {
        let page = *self.partial[usize::from(class)].first()?;
        let run = self.run_mut(page);
        let word = run.bits.iter().position(|word| *word != 0);
        let word = word.expect("a partial run has a free slot");
        let slot = word as u32 * 64 + run.bits[word].trailing_zeros();
        run.bits[word] &= run.bits[word] - 1;
        run.free -= 1;
        self.available[usize::from(class)] -= 1;
        self.own(page, slot, owner);
        self.file(page);
        Some((page, slot))
    }

    /// Makes a slot available again.
    pub(crate) fn give(&mut self, page: u32, slot: u32) {
        let run = self.run_mut(page);
        let (word, bit) = ((slot / 64) as usize, 1 << (slot % 64));
        assert_eq!(run.bits[word] & bit, 0, "a slot is given back once");
        run.bits[word] |= bit;
        run.free += 1;
        let class = usize::from(run.class);
        self.available[class] += 1;
        self.file(page);
    }

    /// Whether a slot of a run whose states were read can be allocated.
    pub(crate) fn is_available(&self, page: u32, slot: u32) -> bool {
        self.run(page).bits[(slot / 64) as usize] & (1 << (slot % 64)) != 0
    }

    /// The owner of a slot: the number of the open transaction that uses it.
    pub(crate) fn owner(&self, page: u32, slot: u32) -> Option<u16> {
        let owners = self.run(page).owners.as_ref()?;
        Some(owners[slot as usize]).filter(|owner| *owner != 0)
    }

    /// Records the owner of a slot.
    pub(crate) fn own(&mut self, page: u32, slot: u32, owner: u16) {
        assert_ne!(owner, 0);
        let number = self.number(page);
        let run = &mut self.all[number];
        let owners = run
            .owners
            .get_or_insert_with(|| self.spare.pop().unwrap_or_else(|| Box::new([0; RUN_SLOTS_MAX])));
        if std::mem::replace(&mut owners[slot as usize], owner) == 0 {
            run.owned += 1;
        }
    }

    /// Clears the owner of a slot, if it has one.
    pub(crate) fn disown(&mut self, page: u32, slot: u32) {
        let number = self.number(page);
        let run = &mut self.all[number];
        let Some(owners) = &mut run.owners else { return };
        if std::mem::take(&mut owners[slot as usize]) == 0 {
            return;
        }
        run.owned -= 1;
        if run.owned == 0 {
            // The array is all zeros again, as a spare must be.
            self.spare.extend(run.owners.take());
        }
        self.file(page);
    }

    /// Empty runs beyond those to keep, the highest first.
    pub(crate) fn surplus(&self, keep: usize) -> impl Iterator<Item = (u32, u8)> {
        let count = self.empty.len().saturating_sub(keep);
        let highest = self.empty.iter().rev().take(count);
        highest.map(|page| (*page, self.run(*page).class))
    }

    /// Number of slots of a class that can be allocated.
    pub(crate) fn available(&self, class: u8) -> u64 {
        self.available[usize::from(class)]
    }

    pub(crate) fn has_surplus(&self) -> bool {
        self.empty.len() > EMPTY_RUNS_KEPT
    }

    /// Removes an empty run whose pages are reused.
    pub(crate) fn leave(&mut self, page: u32) {
        let number = self.number(page);
        let run = &self.all[number];
        assert!(run.is_empty());
        let class = usize::from(run.class);
        self.available[class] -= u64::from(run.free);
        self.empty.remove(&page);
        self.partial[class].remove(&page);
        self.numbers.clear(page);
        self.free_numbers.push(number as u32);
    }

    /// Size of the largest slot that can be allocated, in bytes.
    pub(crate) fn largest(&self) -> u64 {
        let class = self.partial.iter().rposition(|pages| !pages.is_empty());
        class.map_or(0, |class| RUNS[class].bytes.into())
    }

    /// Counts of the runs of every class.
    pub(crate) fn count(&self) -> [RunCount; CLASSES] {
        let mut counts = [RunCount::default(); CLASSES];
        // The number of a removed run still has its old page, where another run may begin now.
        let live = |(number, run): &(usize, &Run)| self.numbers.get(run.page) == Some(*number as u32);
        for (_, run) in self.all.iter().enumerate().filter(live) {
            let count = &mut counts[usize::from(run.class)];
            count.runs += 1;
            count.free_slots += u64::from(run.free);
        }
        counts
    }

    /// Updates the lists that contain a run.
    fn file(&mut self, page: u32) {
        let number = self.number(page);
        let run = &self.all[number];
        let (class, some, none_taken) = (usize::from(run.class), run.free > 0, run.is_empty());
        // Most changes move nothing, so the trees are checked before they are changed.
        if some != self.partial[class].contains(&page) {
            match some {
                true => self.partial[class].insert(page),
                false => self.partial[class].remove(&page),
            };
        }
        match none_taken {
            true => self.empty.insert(page),
            false => !self.empty.is_empty() && self.empty.remove(&page),
        };
    }

    fn number(&self, page: u32) -> usize {
        self.numbers.get(page).expect("a run begins at this page") as usize
    }

    fn run(&self, page: u32) -> &Run {
        &self.all[self.number(page)]
    }

    fn run_mut(&mut self, page: u32) -> &mut Run {
        let number = self.number(page);
        &mut self.all[number]
    }
}
