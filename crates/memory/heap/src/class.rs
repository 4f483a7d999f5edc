//! Size classes: which block a requested size gets, and the layout of a run of such blocks.
//!
//! There is a class every 16 bytes up to 128 bytes, and eight classes per doubling beyond, so that at most an
//! eighth of a block is wasted. A size that fills whole pages equally well becomes an extent instead.

use crate::limit::{ALIGNMENT, PAGE_BYTES, RUN_PAGES_MAX, RUN_SLOTS_MAX};

/// Number of classes: 8 up to 128 bytes, 8 for each doubling up to 16 KiB, 5 beyond.
pub(crate) const CLASSES: usize = 8 + 7 * 8 + 5;
/// Bytes of a run's header before the state bytes.
pub(crate) const RUN_HEADER_BYTES: usize = 16;
/// Largest part of its pages that a run wastes: one in twelve.
const WASTE_PART: usize = 12;
/// Slots that a run should have at least, so that runs are carved rarely.
const fn slots_wanted(bytes: usize) -> usize {
    // Larger blocks are rarer, and their runs would take much of a small heap.
    if bytes < 1024 { 8 } else { 3 }
}

/// The kind of block for a requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeChoice {
    /// A slot of a run of this class.
    Slot(u8),
    /// An extent of this many pages; `None` if the size exceeds every heap.
    Extent(Option<u32>),
}

/// Layout of the runs of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunLayout {
    /// Bytes of a slot.
    pub(crate) bytes: u32,
    /// Pages of a run.
    pub(crate) pages: u32,
    /// Slots of a run.
    pub(crate) slots: u32,
    /// Offset in the run of the first slot.
    pub(crate) start: u32,
}

impl RunLayout {
    /// Offset in the run of a slot.
    pub(crate) fn slot_at(self, slot: u32) -> u64 {
        assert!(slot < self.slots);
        u64::from(self.start) + u64::from(slot) * u64::from(self.bytes)
    }

    /// The slot that begins at `offset` in the run, if one does.
    pub(crate) fn slot_of(self, offset: u64) -> Option<u32> {
        let into = offset.checked_sub(u64::from(self.start))?;
        let slot = into / u64::from(self.bytes);
        let begins = into.is_multiple_of(u64::from(self.bytes));
        (begins && slot < u64::from(self.slots)).then_some(slot as u32)
    }
}

/// Layout of the runs of each class. Part of the disk format: a heap is read with the table it was written
/// with.
pub(crate) static RUNS: [RunLayout; CLASSES] = runs();

pub(crate) fn choose(bytes: usize) -> SizeChoice {
    let bytes = bytes.max(1);
    let pages = bytes.div_ceil(PAGE_BYTES);
    // Sizes near the end of the address space fail the conversion before anything overflows.
    let Ok(count) = u32::try_from(pages) else {
        return SizeChoice::Extent(None);
    };
    if (pages * PAGE_BYTES - bytes) * 8 <= pages * PAGE_BYTES {
        return SizeChoice::Extent(Some(count));
    }
    SizeChoice::Slot(class_of(bytes) as u8)
}

/// The smallest class whose slots hold `bytes`.
const fn class_of(bytes: usize) -> usize {
    if bytes <= 128 {
        return bytes.div_ceil(ALIGNMENT) - 1;
    }
    let top = bytes - 1;
    let doubling = top.ilog2() as usize - 7;
    8 + doubling * 8 + ((top >> (doubling + 4)) & 7)
}

const fn class_bytes(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * ALIGNMENT;
    }
    let (doubling, step) = ((class - 8) / 8, (class - 8) % 8);
    (128 << doubling) + (step + 1) * (16 << doubling)
}

const fn runs() -> [RunLayout; CLASSES] {
    let mut all = [shortest(ALIGNMENT); CLASSES];
    let mut class = 0;
    while class < CLASSES {
        all[class] = shortest(class_bytes(class));
        class += 1;
    }
    all
}

/// The shortest run with enough slots and little waste. Compilation fails for a class without one.
const fn shortest(bytes: usize) -> RunLayout {
    let mut pages = 1;
    loop {
        let run = layout(bytes, pages);
        let enough = run.slots as usize >= slots_wanted(bytes);
        if enough && waste(run) * WASTE_PART <= pages * PAGE_BYTES {
            return run;
        }
        assert!(pages < RUN_PAGES_MAX);
        pages += 1;
    }
}

/// The layout with as many slots as fit into `pages` pages behind the header and one state byte per slot.
const fn layout(bytes: usize, pages: usize) -> RunLayout {
    let room = pages * PAGE_BYTES;
    let mut slots = room / bytes;
    if slots > RUN_SLOTS_MAX {
        slots = RUN_SLOTS_MAX;
    }
    while slots > 0 && start(slots) + slots * bytes > room {
        slots -= 1;
    }
    RunLayout {
        bytes: bytes as u32,
        pages: pages as u32,
        slots: slots as u32,
        start: start(slots) as u32,
    }
}

const fn start(slots: usize) -> usize {
    (RUN_HEADER_BYTES + slots).next_multiple_of(ALIGNMENT)
}

/// Bytes of a run that belong to no slot.
const fn waste(run: RunLayout) -> usize {
    run.pages as usize * PAGE_BYTES - run.slots as usize * run.bytes as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_its_block_and_wastes_at_most_an_eighth() {
        for bytes in 1..200_000 {
            let block = match choose(bytes) {
                SizeChoice::Slot(class) => RUNS[usize::from(class)].bytes as usize,
                SizeChoice::Extent(pages) => pages.unwrap() as usize * PAGE_BYTES,
            };
            assert!(block >= bytes, "{bytes}");
            let waste = block - bytes;
            assert!(waste * 8 <= block || waste < ALIGNMENT, "{bytes} in {block}");
        }
        assert_eq!(choose(0), SizeChoice::Slot(0));
        assert_eq!(choose(usize::MAX), SizeChoice::Extent(None));
    }

    #[test]
    fn a_whole_page_is_an_extent_and_every_smaller_size_has_a_class() {
        assert_eq!(choose(PAGE_BYTES), SizeChoice::Extent(Some(1)));
        assert_eq!(
            choose(PAGE_BYTES + 1),
            SizeChoice::Slot(class_of(PAGE_BYTES + 1) as u8)
        );
        let largest = RUNS[CLASSES - 1].bytes as usize;
        assert!(matches!(choose(largest + 1), SizeChoice::Extent(Some(_))));
        assert!((1..=largest).all(|bytes| class_of(bytes) < CLASSES));
    }

    #[test]
    fn runs_are_short_and_their_slots_do_not_overlap() {
        for (class, run) in RUNS.iter().enumerate() {
            assert_eq!(class_of(run.bytes as usize), class);
            assert!(run.slots >= 2, "{run:?}");
            assert!(run.pages as usize <= RUN_PAGES_MAX);
            assert!(run.slots as usize <= RUN_SLOTS_MAX);
            assert!((run.start as usize).is_multiple_of(ALIGNMENT));
            assert!((run.bytes as usize).is_multiple_of(ALIGNMENT));
            let end = run.slot_at(run.slots - 1) as usize + run.bytes as usize;
            assert!(end <= run.pages as usize * PAGE_BYTES, "{run:?}");
            assert!(
                waste(*run) * WASTE_PART <= run.pages as usize * PAGE_BYTES,
                "{run:?}"
            );
            for slot in 0..run.slots {
                assert_eq!(run.slot_of(run.slot_at(slot)), Some(slot));
            }
            assert_eq!(run.slot_of(run.slot_at(0) + 1), None);
            assert_eq!(run.slot_of(0), None);
            assert_eq!(run.slot_of(end as u64), None);
        }
    }

    /// The layout is on disk: changing a number here requires another version of the format.
    #[test]
    fn the_layout_is_the_one_of_version_1() {
        let digest = RUNS.iter().fold(0u32, |digest, run| {
            let fields = [run.bytes, run.pages, run.slots, run.start];
            fields
                .iter()
                .fold(digest, |digest, field| digest.rotate_left(5) ^ field)
        });
        assert_eq!(digest, 3_050_330_626, "{RUNS:?}");
    }
}
