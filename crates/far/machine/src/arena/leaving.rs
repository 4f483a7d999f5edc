//! What eviction does: pages in sight are hidden, the longest hidden leave, or are packed; the longest packed go on.
//!
//! One mover takes the work, and is told the next when it has done it: so pages leave one batch after the other.

use alloc::vec::Vec;

use super::pages::{Arena, State};
use super::{Berth, Next, Page, Work};
use crate::limit::EVICT_PAGES;

/// Pages that have to stay are passed over so often in one step.
const PASSED_MAX: usize = 4 * EVICT_PAGES;

impl Arena {
    /// What eviction is to do next. `None`: enough frames are free, or no page may leave.
    pub fn work(&mut self) -> Option<Work> {
        if !self.marks.wants(self.free()) || self.is_crowded() {
            return None;
        }
        if self.pack.is_over(self.saving.packs()) {
            return Some(Work::Pass(self.choose_packed()));
        }
        let over = self.hidden_count.saturating_sub(self.settings.hidden);
        if over > 0 {
            return Some(Work::Send(self.choose_hidden(over)));
        }
        let chosen = self.choose_seen();
        if !chosen.is_empty() {
            return Some(Work::Hide(chosen));
        }
        if self.hidden_count > 0 {
            return Some(Work::Send(self.choose_hidden(self.hidden_count)));
        }
        (!self.pack.is_empty()).then(|| Work::Pass(self.choose_packed()))
    }

    /// Of the packed pages the oldest.
    fn choose_packed(&mut self) -> Vec<Page> {
        let chosen = self.pack.oldest(EVICT_PAGES);
        for page in &chosen {
            self.records.of(*page).state = State::Passing;
        }
        chosen
    }

    /// Pages in sight that are to be hidden, in their order, as their berths are.
    fn choose_seen(&mut self) -> Vec<(Page, Berth)> {
        let most = Self::together(&self.settings);
        let (mut pages, mut berths) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let mut passed = 0;
        while pages.len() < most && passed < PASSED_MAX {
            let Some(berth) = self.berths.take() else {
                break;
            };
            let Some(page) = self.frames.take(&mut self.records) else {
                self.berths.untake(berth);
                break;
            };
            let record = self.records.of(page);
            if record.pins > 0 {
                passed += 1;
                let touched = record.touched;
                self.frames.add_again(page, touched);
                self.berths.untake(berth);
                continue;
            }
            record.state = State::Hiding(berth);
            self.here -= 1;
            pages.push(page);
            berths.push(berth);
        }
        pages.sort_unstable();
        for (page, berth) in pages.iter().zip(&berths) {
            self.records.of(*page).state = State::Hiding(*berth);
        }
        pages.into_iter().zip(berths).collect()
    }

    /// Of the hidden pages the longest hidden ones.
    fn choose_hidden(&mut self, pages: u32) -> Vec<(Page, Berth)> {
        let most = Self::together(&self.settings).min(pages as usize);
        let mut chosen = Vec::with_capacity(most);
        while chosen.len() < most
            && let Some((page, since)) = self.hidden.pop_front()
        {
            let record = self.records.of(page);
            if let State::Hidden(berth) = record.state
                && record.touched == since
            {
                record.state = State::Leaving(berth);
                self.hidden_count -= 1;
                chosen.push((page, berth));
            }
        }
        chosen
    }

    /// The page is out of sight, in its berth; or it could not be moved, and `moved` is not set.
    pub fn hid(&mut self, page: Page, moved: bool) -> Next {
        let now = self.tick();
        let record = self.records.of(page);
        let State::Hiding(berth) = record.state else {
            unreachable!("it is being hidden")
        };
        if !moved {
            self.berths.give_back(berth);
            if record.discarded {
                return self.come_to_nothing(page);
            }
            let wanted = core::mem::take(&mut record.wanted);
            self.be_here(page, now, true);
            return if wanted { Next::Wake } else { Next::Done };
        }
        if record.wanted {
            // What was thrown away shows in `arrive`.
            record.state = State::Showing(berth);
            self.tally.shown += 1;
            return Next::Show(berth);
        }
        if core::mem::take(&mut record.discarded) {
            record.state = State::Nowhere;
            return Next::Drop(berth);
        }
        (record.state, record.touched) = (State::Hidden(berth), now);
        self.hidden_count += 1;
        self.hidden.push_back((page, now));
        if self.hidden.len() > 2 * self.hidden_count as usize + EVICT_PAGES {
            self.tidy_hidden();
        }
        Next::Done
    }

    /// The depot has what is in the page's berth. `kept` is not set: that was zeros, and the depot has nothing of the page.
    pub fn sent(&mut self, page: Page, kept: bool) -> Next {
        let record = self.records.of(page);
        let State::Leaving(berth) = record.state else {
            unreachable!("it is being sent")
        };
        self.tally.sent += 1;
        record.kept = kept;
        let state = if kept { State::Away } else { State::Nowhere };
        self.leave(page, berth, state).1
    }

    /// What is in the page's berth is at hand compressed, in so many bytes. It is in the pack if [`Arena::is_packed`] says so then; what the depot has of the page is
    /// not of it.
    pub fn packed(&mut self, page: Page, bytes: u32) -> Next {
        let State::Leaving(berth) = self.records.of(page).state else {
            unreachable!("it is being sent")
        };
        let (left, next) = self.leave(page, berth, State::Packed);
        if left {
            self.tally.packed += 1;
            self.pack.add(page, bytes);
        }
        next
    }

    /// Whether a page is now where it was to go, and what becomes of its berth.
    fn leave(&mut self, page: Page, berth: Berth, state: State) -> (bool, Next) {
        let record = self.records.of(page);
        if record.wanted {
            record.state = State::Showing(berth);
            self.tally.shown += 1;
            return (false, Next::Show(berth));
        }
        if core::mem::take(&mut record.discarded) {
            record.state = State::Nowhere;
            let kept = core::mem::take(&mut record.kept);
            let next = if kept {
                Next::Forget(berth)
            } else {
                Next::Drop(berth)
            };
            return (false, next);
        }
        (record.state, record.spent) = (state, 0);
        self.saving.left();
        (true, Next::Drop(berth))
    }

    /// The depot has what the pack had of the page.
    pub fn passed(&mut self, page: Page) -> Next {
        let record = self.records.of(page);
        assert!(record.state == State::Passing, "it is being passed on");
        self.tally.sent += 1;
        self.pack.remove(page);
        (record.state, record.kept) = (State::Away, true);
        let discarded = core::mem::take(&mut record.discarded);
        if discarded {
            (record.state, record.kept) = (State::Nowhere, false);
        }
        if core::mem::take(&mut record.wanted) {
            // Its bytes are aside there: it comes at once, when a frame is free.
            self.queue(page);
        }
        if discarded { Next::Abandon } else { Next::Done }
    }

    /// Pages that were shown and hidden again are in the queue once for each time.
    fn tidy_hidden(&mut self) {
        let records = &mut self.records;
        self.hidden.retain(|(page, since)| {
            let record = records.of(*page);
            matches!(record.state, State::Hidden(_)) && record.touched == *since
        });
    }
}
