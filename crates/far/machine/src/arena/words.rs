//! Words of pages that are away: the counters of COUNTERS.
//!
//! A page's counter begins anew whenever it leaves sight; whether it is packed or away then makes no
//! difference to it. Each word that is fetched of it, or written to it, takes one off; the reference that
//! would spend the last fetches the page instead, and finds its word in it. So the very pages come home that
//! [`crate::paging`]'s policy brings, each with one word less fetched for nothing.

use super::Page;
use super::pages::{ArenaMachine, PageRecord, PageState};
use crate::limit::{COUNTER_MAX, COUNTER_MIN};

/// How words of a page are to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordSource {
    /// They are zeros: the page is nowhere.
    Zeros,
    /// In the pack: the page stays there.
    Packed,
    /// From the depot, one by one: the page stays away.
    Words,
    /// In the page: it is here, or on its way, or has earned to be.
    Page,
}

impl ArenaMachine {
    /// So many words of a page are wanted. `initial`: what its counter begins with; 1 brings it at once.
    pub fn word_source(&mut self, page: Page, words: u32, initial: u32) -> WordSource {
        let reach = match self.records.state(page) {
            PageState::Blank => return WordSource::Zeros,
            PageState::Remote => WordSource::Words,
            PageState::Packed => WordSource::Packed,
            _ => return WordSource::Page,
        };
        match spend(self.records.of(page), words, initial) {
            true => reach,
            false => WordSource::Page,
        }
    }

    /// So many words have come without their pages.
    pub fn words_came(&mut self, words: u32) {
        self.tally.words += u64::from(words);
    }
}

/// Takes words off a page's counter. `false`: the last would be spent, and the counter stays as it is.
pub(super) fn spend(record: &mut PageRecord, words: u32, initial: u32) -> bool {
    let spent = u32::from(record.spent).saturating_add(words);
    let lasts = spent < initial.clamp(COUNTER_MIN, COUNTER_MAX);
    if lasts {
        // Less than `COUNTER_MAX`.
        record.spent = spent as u8;
    }
    lasts
}
