//! How many words of a page are worth fetching the page: the counters' initial value, out of what both have
//! cost of late.
//!
//! One word by itself costs a round trip, nearly as much as a page. Of a thousand in one round trip each
//! costs little. So what a word costs is known apart for gathers of one block, of two or three, of four to
//! seven, and so on.

use crate::limit::{COUNTER_MAX, COUNTER_MIN};

/// Sizes of gathers that are told apart, by powers of two.
const SIZES: usize = 16;
/// What a page costs before one has been fetched: a fault over TCP with sleeping threads, in ns.
const PAGE_NS: u64 = 120_000;
/// What a word by itself costs before one has been.
const WORD_NS: u64 = 40_000;
/// A gather that has not been measured is taken to be so much cheaper a word than a single one, at most.
const CHEAPER_MAX: usize = 6;
/// Of a mean, the part that one measurement is.
const SHARE: u64 = 8;

/// What pages and words have cost of late, in ns.
#[derive(Clone, Debug, Default)]
pub struct CostModel {
    page: DecayingMean,
    words: [DecayingMean; SIZES],
}

/// A mean that forgets. `None`: nothing was measured.
#[derive(Clone, Copy, Debug, Default)]
struct DecayingMean(Option<u64>);

impl DecayingMean {
    fn add(&mut self, ns: u64) {
        self.0 = Some(self.0.map_or(ns, |mean| mean - mean / SHARE + ns / SHARE));
    }
}

impl CostModel {
    /// A page was fetched in so many ns.
    pub fn page_took(&mut self, ns: u64) {
        self.page.add(ns);
    }

    /// So many blocks were gathered in so many ns, together.
    pub fn words_took(&mut self, blocks: usize, ns: u64) {
        if let Some(size) = size(blocks) {
            self.words[size].add(ns / blocks as u64);
        }
    }

    /// The value that a page's counter begins with, if its words are wanted in a gather of so many blocks.
    pub fn initial(&self, blocks: usize) -> u32 {
        let page = self.page.0.unwrap_or(PAGE_NS);
        let word = self.word(size(blocks).unwrap_or(0)).max(1);
        let worth = page.div_ceil(word).min(COUNTER_MAX.into());
        (worth as u32).max(COUNTER_MIN)
    }

    /// What was not measured is as if shared among more words than the largest smaller gather.
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
    fn a_counter_is_what_a_page_costs_over_what_a_word_costs_in_such_a_gather() {
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
