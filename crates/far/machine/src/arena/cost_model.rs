//! Initial value of a page's word counter: how many single words cost as much as fetching the page.
//!
//! A single word costs a round trip, nearly as much as a page; a thousand words in one round trip cost little
//! each. The cost of a word is therefore measured separately for gathers of 1, 2-3, 4-7, … blocks.

use crate::limit::{COUNTER_MAX, COUNTER_MIN};

/// Number of gather sizes that are measured separately, by powers of two.
const SIZES: usize = 16;
/// Estimate of a page fetch before the first measurement: a fault over TCP with sleeping threads, in ns.
const PAGE_NS: u64 = 120_000;
/// Estimate of a single word before the first measurement, in ns.
const WORD_NS: u64 = 40_000;
/// Powers of two by which an unmeasured gather size may be estimated cheaper per word than a measured smaller
/// one.
const CHEAPER_MAX: usize = 6;
/// Reciprocal of a new measurement's weight in a mean.
const SHARE: u64 = 8;

/// Recent costs of pages and words, in ns.
#[derive(Clone, Debug, Default)]
pub struct CostModel {
    page: DecayingMean,
    words: [DecayingMean; SIZES],
}

/// An exponentially decaying mean. `None`: nothing measured yet.
#[derive(Clone, Copy, Debug, Default)]
struct DecayingMean(Option<u64>);

impl DecayingMean {
    fn add(&mut self, ns: u64) {
        self.0 = Some(self.0.map_or(ns, |mean| mean - mean / SHARE + ns / SHARE));
    }
}

impl CostModel {
    /// Records the time of a page fetch, in ns.
    pub fn page_took(&mut self, ns: u64) {
        self.page.add(ns);
    }

    /// Records the time of a gather of `blocks` blocks, in ns.
    pub fn words_took(&mut self, blocks: usize, ns: u64) {
        if let Some(size) = size(blocks) {
            self.words[size].add(ns / blocks as u64);
        }
    }

    /// Initial value of a page's counter when its words come in a gather of `blocks` blocks.
    pub fn initial(&self, blocks: usize) -> u32 {
        let page = self.page.0.unwrap_or(PAGE_NS);
        let word = self.word(size(blocks).unwrap_or(0)).max(1);
        let worth = page.div_ceil(word).min(COUNTER_MAX.into());
        (worth as u32).max(COUNTER_MIN)
    }

    /// Cost of a word. An unmeasured size is estimated from the largest measured smaller one.
    fn word(&self, size: usize) -> u64 {
        let known = (0..=size).rev().find_map(|at| Some((at, self.words[at].0?)));
        let (at, ns) = known.unwrap_or((0, WORD_NS));
        ns >> (size - at).min(CHEAPER_MAX)
    }
}

fn size(blocks: usize) -> Option<usize> {
    Some((blocks.checked_ilog2()? as usize).min(SIZES - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_the_page_cost_divided_by_the_word_cost_of_the_gather() {
        let mut worth = CostModel::default();
        assert_eq!(worth.initial(1), 3);
        assert!(worth.initial(1024) > 100);
        for _ in 0..100 {
            worth.page_took(30_000);
            worth.words_took(1, 10_000);
            worth.words_took(1000, 500_000);
        }
        assert_eq!(worth.initial(1), 3);
        assert_eq!(worth.initial(900), 60);
        worth.page_took(1 << 40);
        assert_eq!(worth.initial(900), COUNTER_MAX);
        for _ in 0..400 {
            worth.page_took(1);
        }
        assert_eq!(worth.initial(1), COUNTER_MIN);
        worth.words_took(0, 7);
    }
}
