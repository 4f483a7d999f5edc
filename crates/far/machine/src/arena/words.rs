//! Words of remote pages: the counters of the policy COUNTERS.
//!
//! A page's counter starts anew when the page stops being resident; whether it is packed or remote makes no
//! difference. Each word read from or written to the page costs one. The reference that would spend the last
//! fetches the page instead. The same pages are thus fetched as by [`crate::paging`]'s policy, with one word
//! less fetched for nothing.

use super::Page;
use super::pages::{ArenaMachine, PageRecord, PageState};
use crate::limit::{COUNTER_MAX, COUNTER_MIN};

/// Source of a page's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordSource {
    /// Zeros: the page is blank.
    Zeros,
    /// The pack: the page stays there.
    Packed,
    /// Single words from a lender: the page stays remote.
    Words,
    /// The page itself: it is resident or arriving, or its counter is spent.
    Page,
}

impl ArenaMachine {
    /// Decides where `words` words of a page come from. `initial`: initial value of its counter; 1 fetches
    /// the page at once.
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

    /// Counts words that came without their pages.
    pub fn words_came(&mut self, words: u32) {
        self.tally.words += u64::from(words);
    }
}

/// Charges words to a page's counter. `false`: that would spend the last, and the counter is unchanged.
pub(super) fn spend(record: &mut PageRecord, words: u32, initial: u32) -> bool {
    let spent = u32::from(record.spent).saturating_add(words);
    let lasts = spent < initial.clamp(COUNTER_MIN, COUNTER_MAX);
    if lasts {
        // Below `COUNTER_MAX`, so it fits a byte.
        record.spent = spent as u8;
    }
    lasts
}
