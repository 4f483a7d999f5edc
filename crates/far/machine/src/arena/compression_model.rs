//! Whether pages that leave are packed: what the pack spares, beside what it costs.
//!
//! Without the pack the program sees as many pages more as the pack may take frames. So what the pack spares
//! are faults on pages that left longer ago than those would have, and less long ago than what the pack would
//! have passed on. How long ago a page left is known of every page that comes back, whether any are packed or
//! not; so nothing has to be tried to learn what packing would spare. It costs the compressing of every page
//! that leaves, and the faults on those that would have been in sight. A page that comes ahead of need costs
//! a part of what one costs that somebody waits for; out of the pack none comes ahead.

use crate::limit::PAGE_BYTES;

/// What a page costs to bring, to bring ahead, and to compress, before that was measured, in ns.
const PAGE_NS: u64 = 25_000;
const AHEAD_NS: u64 = 8_000;
const PACKING_NS: u64 = 6_000;
/// Of a mean, the part that one measurement is.
const SHARE: u64 = 16;
/// Pages that leave between two decisions, at least.
const WINDOW_MIN: u32 = 128;
/// It has to spare so many times what it costs before it begins. When it spares less than that, it ends.
const BEGINS_AT: u64 = 2;

/// How a page came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalSource {
    /// From elsewhere; somebody waited.
    Remote,
    /// From elsewhere, before anybody did.
    Ahead,
    Pack,
}

/// See the module. Distances are in pages that left since.
#[derive(Clone, Debug)]
pub(super) struct CompressionModel {
    /// Frames that the pack may take, and pages that are hidden before they are packed.
    frames: u32,
    inactive: u32,
    /// Whatever it spares.
    always: bool,
    packs: bool,
    window: u32,
    /// Of late, each window counting half of the next: pages that left,
    evicted: u64,
    /// what only the pack spared, or would have, in ns,
    spared_ns: u64,
    /// and faults that there would not have been without it.
    caused: u64,
    since: u32,
    page_ns: u64,
    ahead_ns: u64,
    /// What a page has cost that came from elsewhere, in whichever way.
    mean_ns: u64,
    packing_ns: u64,
    /// What a page takes in the pack.
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

    /// Whether pages that leave are packed.
    pub(super) fn packs(&self) -> bool {
        self.frames > 0 && (self.always || self.packs)
    }

    /// A page that somebody waited for was fetched in so many ns.
    pub(super) fn fetch_took(&mut self, ns: u64) {
        mean(&mut self.page_ns, ns);
    }

    /// Pages that nobody waited for yet came one so many ns after the other, while more were to come.
    pub(super) fn ahead_took(&mut self, ns: u64) {
        mean(&mut self.ahead_ns, ns);
    }

    /// Compressing a page took so many ns, and it takes so many bytes then.
    pub(super) fn packing_took(&mut self, ns: u64, bytes: u32) {
        mean(&mut self.packing_ns, ns);
        mean(&mut self.bytes, bytes.into());
    }

    /// A page has left.
    pub(super) fn left(&mut self) {
        self.evicted += 1;
        self.since += 1;
        if self.since >= self.window {
            self.decide();
        }
    }

    /// A page came back after which so many had left.
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
            // Uncompressing it, and the fault, are about as much as compressing it was.
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
    // One that was disturbed is not to outweigh the others.
    let value = value.min(8 * *mean + 1);
    *mean = *mean - *mean / SHARE + value / SHARE;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pack of 256 frames behind 128 hidden pages; pages take a third.
    fn saving() -> CompressionModel {
        let mut saving = CompressionModel::new(256, 128, false);
        (0..200).for_each(|_| saving.packing_took(6_000, 1365));
        saving
    }

    /// All pages that leave come back at this distance. Whether they are packed then.
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
    fn what_comes_back_while_it_would_be_in_the_pack_is_packed() {
        let mut saving = saving();
        assert!(packs(&mut saving, 128 + 256 + 100));
        assert!(
            !packs(&mut saving, 128 + 3 * 256 + 100),
            "the pack would have passed it on"
        );
        assert!(packs(&mut saving, 128 + 2 * 256));
        assert!(!packs(&mut saving, 128 + 100), "it would have been in sight");
    }

    #[test]
    fn what_does_not_compress_or_comes_fast_is_not_packed() {
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
    fn what_comes_ahead_over_a_fast_link_is_not_packed_and_over_a_slow_one_is() {
        let mut saving = saving();
        assert!(!packs_from(&mut saving, 128 + 256 + 100, ArrivalSource::Ahead));
        (0..200).for_each(|_| saving.ahead_took(40_000));
        assert!(packs_from(&mut saving, 128 + 256 + 100, ArrivalSource::Ahead));
    }

    #[test]
    fn a_pack_that_was_asked_for_is_there_whatever_it_spares() {
        assert!(CompressionModel::new(1, 128, true).packs());
        assert!(
            !CompressionModel::new(0, 128, true).packs(),
            "it was asked not to be"
        );
    }
}
