//! Decides whether evicted pages are packed, by comparing what the pack saves with what it costs.
//!
//! Without the pack the program would have as many more resident pages as the pack takes frames. The pack
//! therefore saves only certain faults: on pages evicted longer ago than those extra frames would cover, and
//! more recently than the pack reaches. The distance since eviction is known for every returning page, packed
//! or not, so nothing must be tried out.
//!
//! Costs are the compression of every evicted page, and faults on pages that would have been resident. A
//! prefetched page costs less than one that a thread waits for; packed pages are never prefetched.

use crate::limit::PAGE_BYTES;

/// Initial estimates in ns: fetching a page, prefetching one, compressing one.
const PAGE_NS: u64 = 25_000;
const AHEAD_NS: u64 = 8_000;
const PACKING_NS: u64 = 6_000;
/// Reciprocal of a new measurement's weight in a mean.
const SHARE: u64 = 16;
/// Minimum number of evicted pages between two decisions.
const WINDOW_MIN: u32 = 128;
/// Packing begins when it saves this many times its cost, and ends when it saves less than its cost.
const BEGINS_AT: u64 = 2;

/// Source of a returning page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalSource {
    /// From a lender or the spill file, while a thread waited.
    Remote,
    /// From a lender or the spill file, prefetched.
    Ahead,
    Pack,
}

/// State of the comparison. Distances are counted in evicted pages.
#[derive(Clone, Debug)]
pub(super) struct CompressionModel {
    /// Frames that the pack may take; `inactive` pages stay before they are packed.
    frames: u32,
    inactive: u32,
    /// Whether packing is forced on.
    always: bool,
    packs: bool,
    window: u32,
    /// Decaying sums, halved after each window. Number of evicted pages.
    evicted: u64,
    /// Time that only the pack saved or would have saved, in ns.
    spared_ns: u64,
    /// Number of faults that the pack's frames caused.
    caused: u64,
    since: u32,
    page_ns: u64,
    ahead_ns: u64,
    /// Mean cost of a page from a lender, prefetched or not, in ns.
    mean_ns: u64,
    packing_ns: u64,
    /// Mean bytes of a packed page.
    bytes: u64,
}

impl CompressionModel {
    pub(super) fn new(frames: u32, hidden: u32, always: bool) -> CompressionModel {
        CompressionModel {
            frames,
            inactive: hidden,
            always,
            packs: false,
            window: frames.max(WINDOW_MIN),
            evicted: 0,
            spared_ns: 0,
            caused: 0,
            since: 0,
            page_ns: PAGE_NS,
            ahead_ns: AHEAD_NS,
            mean_ns: PAGE_NS,
            packing_ns: PACKING_NS,
            bytes: PAGE_BYTES as u64,
        }
    }

    /// Whether evicted pages are packed.
    pub(super) fn packs(&self) -> bool {
        self.frames > 0 && (self.always || self.packs)
    }

    /// Records the time of a fetch that a thread waited for, in ns.
    pub(super) fn fetch_took(&mut self, ns: u64) {
        mean(&mut self.page_ns, ns);
    }

    /// Records the time between two prefetched pages while more were coming, in ns.
    pub(super) fn ahead_took(&mut self, ns: u64) {
        mean(&mut self.ahead_ns, ns);
    }

    /// Records the time of a compression in ns, and the compressed size in bytes.
    pub(super) fn packing_took(&mut self, ns: u64, bytes: u32) {
        mean(&mut self.packing_ns, ns);
        mean(&mut self.bytes, bytes.into());
    }

    /// Records an eviction.
    pub(super) fn left(&mut self) {
        self.evicted += 1;
        self.since += 1;
        if self.since >= self.window {
            self.decide();
        }
    }

    /// Records a page that returned after `distance` further evictions.
    pub(super) fn came_back(&mut self, distance: u64, from: ArrivalSource) {
        let costs = match from {
            ArrivalSource::Remote => self.page_ns,
            ArrivalSource::Ahead => self.ahead_ns,
            ArrivalSource::Pack => self.mean_ns,
        };
        mean(&mut self.mean_ns, costs);
        let without = u64::from(self.inactive) + u64::from(self.frames);
        let packed = u64::from(self.frames) * PAGE_BYTES as u64 / self.bytes.max(1);
        let with = u64::from(self.inactive) + packed;
        if (without..with).contains(&distance) {
            // Decompressing it, with the fault, costs about as much as compressing it did.
            self.spared_ns += costs.saturating_sub(self.packing_ns);
        } else if from == ArrivalSource::Pack && distance < without {
            self.caused += 1;
        }
    }

    fn decide(&mut self) {
        let costs = (self.evicted + self.caused) * self.packing_ns;
        self.packs = match self.packs {
            true => self.spared_ns >= costs,
            false => self.spared_ns > BEGINS_AT * costs,
        };
        self.since = 0;
        for count in [&mut self.evicted, &mut self.spared_ns, &mut self.caused] {
            *count /= 2;
        }
    }
}

fn mean(mean: &mut u64, value: u64) {
    // Limit outliers, so that a disturbed measurement does not outweigh the others.
    let value = value.min(8 * *mean + 1);
    *mean = *mean - *mean / SHARE + value / SHARE;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pack of 256 frames behind 128 inactive pages; pages compress to a third.
    fn saving() -> CompressionModel {
        let mut saving = CompressionModel::new(256, 128, false);
        (0..200).for_each(|_| saving.packing_took(6_000, 1365));
        saving
    }

    /// Whether packing is on after all evicted pages return at this distance.
    fn packs(saving: &mut CompressionModel, distance: u64) -> bool {
        packs_from(saving, distance, ArrivalSource::Remote)
    }

    fn packs_from(saving: &mut CompressionModel, distance: u64, from: ArrivalSource) -> bool {
        for _ in 0..2000 {
            let packs = saving.packs();
            saving.came_back(distance, if packs { ArrivalSource::Pack } else { from });
            saving.left();
        }
        saving.packs()
    }

    #[test]
    fn packing_begins_when_pages_return_within_its_reach() {
        let mut saving = saving();
        assert!(packs(&mut saving, 128 + 256 + 100));
        assert!(
            !packs(&mut saving, 128 + 3 * 256 + 100),
            "the pack would have sent it on"
        );
        assert!(packs(&mut saving, 128 + 2 * 256));
        assert!(!packs(&mut saving, 128 + 100), "it would have been resident");
    }

    #[test]
    fn incompressible_or_quickly_fetched_pages_are_not_packed() {
        let mut saving = saving();
        (0..200).for_each(|_| saving.packing_took(6_000, 4096));
        assert!(!packs(&mut saving, 128 + 256 + 100));
        let mut saving = self::saving();
        (0..200).for_each(|_| saving.fetch_took(4_000));
        assert!(!packs(&mut saving, 128 + 256 + 100));
        (0..200).for_each(|_| saving.fetch_took(1_000_000));
        assert!(packs(&mut saving, 128 + 256 + 100));
    }

    #[test]
    fn prefetched_pages_are_packed_only_over_a_slow_link() {
        let mut saving = saving();
        assert!(!packs_from(&mut saving, 128 + 256 + 100, ArrivalSource::Ahead));
        (0..200).for_each(|_| saving.ahead_took(40_000));
        assert!(packs_from(&mut saving, 128 + 256 + 100, ArrivalSource::Ahead));
    }

    #[test]
    fn a_forced_pack_is_on_whatever_it_saves() {
        assert!(CompressionModel::new(1, 128, true).packs());
        assert!(
            !CompressionModel::new(0, 128, true).packs(),
            "packing is switched off"
        );
    }
}
