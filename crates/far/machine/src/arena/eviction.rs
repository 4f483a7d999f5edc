//! Eviction: resident pages are deactivated, the longest inactive are sent or packed, the longest packed are
//! sent on.
//!
//! A single mover takes the work and asks for more when it is done, so pages leave one batch after the other.

use alloc::vec::Vec;

use super::pages::{ArenaMachine, PageState};
use super::{EvictionWork, MoveFollowUp, Page, StagingFrame};
use crate::limit::EVICT_PAGES;

/// Maximum number of pinned pages that one step passes over.
const PASSED_MAX: usize = 4 * EVICT_PAGES;

impl ArenaMachine {
    /// The next eviction work. `None`: enough frames are free, or no page can be evicted.
    pub fn work(&mut self) -> Option<EvictionWork> {
        if !self.watermarks.wants(self.free()) || self.is_crowded() {
            return None;
        }
        if self.pack.is_over(self.compression.packs()) {
            return Some(EvictionWork::Pass(self.choose_packed()));
        }
        let over = self.inactive_count.saturating_sub(self.settings.inactive);
        if over > 0 {
            return Some(EvictionWork::Send(self.choose_inactive(over)));
        }
        let chosen = self.choose_active();
        if !chosen.is_empty() {
            return Some(EvictionWork::Deactivate(chosen));
        }
        if self.inactive_count > 0 {
            return Some(EvictionWork::Send(self.choose_inactive(self.inactive_count)));
        }
        (!self.pack.is_empty()).then(|| EvictionWork::Pass(self.choose_packed()))
    }

    /// Chooses the oldest packed pages.
    fn choose_packed(&mut self) -> Vec<Page> {
        let chosen = self.pack.oldest(EVICT_PAGES);
        for page in &chosen {
            self.records.of(*page).state = PageState::Passing;
        }
        chosen
    }

    /// Chooses resident pages to deactivate, with staging frames in the same order.
    fn choose_active(&mut self) -> Vec<(Page, StagingFrame)> {
        let most = Self::together(&self.settings);
        let (mut pages, mut berths) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let mut passed = 0;
        while pages.len() < most && passed < PASSED_MAX {
            let Some(berth) = self.staging.take() else {
                break;
            };
            let Some(page) = self.frames.take(&mut self.records) else {
                self.staging.undo_take(berth);
                break;
            };
            let record = self.records.of(page);
            if record.pins > 0 {
                passed += 1;
                let touched = record.touched;
                self.frames.add_again(page, touched);
                self.staging.undo_take(berth);
                continue;
            }
            record.state = PageState::Deactivating(berth);
            self.resident -= 1;
            pages.push(page);
            berths.push(berth);
        }
        pages.sort_unstable();
        for (page, berth) in pages.iter().zip(&berths) {
            self.records.of(*page).state = PageState::Deactivating(*berth);
        }
        pages.into_iter().zip(berths).collect()
    }

    /// Chooses the longest inactive pages.
    fn choose_inactive(&mut self, pages: u32) -> Vec<(Page, StagingFrame)> {
        let most = Self::together(&self.settings).min(pages as usize);
        let mut chosen = Vec::with_capacity(most);
        while chosen.len() < most
            && let Some((page, since)) = self.inactive.pop_front()
        {
            let record = self.records.of(page);
            if let PageState::Inactive(berth) = record.state
                && record.touched == since
            {
                record.state = PageState::Evicting(berth);
                self.inactive_count -= 1;
                chosen.push((page, berth));
            }
        }
        chosen
    }

    /// Reports that a page was moved to its staging frame, or could not be moved (`moved` false).
    pub fn deactivated(&mut self, page: Page, moved: bool) -> MoveFollowUp {
        let now = self.tick();
        let record = self.records.of(page);
        let PageState::Deactivating(berth) = record.state else {
            unreachable!("the page is being deactivated")
        };
        if !moved {
            self.staging.give_back(berth);
            if record.discarded {
                return self.discard_arrival(page);
            }
            let wanted = core::mem::take(&mut record.wanted);
            self.become_resident(page, now, true);
            return if wanted {
                MoveFollowUp::Wake
            } else {
                MoveFollowUp::Done
            };
        }
        if record.wanted {
            // `arrive` handles a discard that came meanwhile.
            record.state = PageState::Activating(berth);
            self.tally.activated += 1;
            return MoveFollowUp::Activate(berth);
        }
        if core::mem::take(&mut record.discarded) {
            record.state = PageState::Blank;
            return MoveFollowUp::Drop(berth);
        }
        (record.state, record.touched) = (PageState::Inactive(berth), now);
        self.inactive_count += 1;
        self.inactive.push_back((page, now));
        if self.inactive.len() > 2 * self.inactive_count as usize + EVICT_PAGES {
            self.tidy_inactive();
        }
        MoveFollowUp::Done
    }

    /// Reports that the page in its staging frame was handed to the page client. `kept` false: it was zeros,
    /// and nothing is stored of it.
    pub fn sent(&mut self, page: Page, kept: bool) -> MoveFollowUp {
        let record = self.records.of(page);
        let PageState::Evicting(berth) = record.state else {
            unreachable!("the page is being evicted")
        };
        self.tally.sent += 1;
        record.stored = kept;
        let state = if kept { PageState::Remote } else { PageState::Blank };
        self.leave(page, berth, state).1
    }

    /// Reports that the page in its staging frame compressed to `bytes`. It is in the pack only if
    /// [`ArenaMachine::is_packed`] says so afterwards. A version at lenders is not the current one.
    pub fn packed(&mut self, page: Page, bytes: u32) -> MoveFollowUp {
        let PageState::Evicting(berth) = self.records.of(page).state else {
            unreachable!("the page is being evicted")
        };
        let (left, next) = self.leave(page, berth, PageState::Packed);
        if left {
            self.tally.packed += 1;
            self.pack.add(page, bytes);
        }
        next
    }

    /// Ends an eviction. Returns whether the page is where it was sent, and the follow-up for its staging
    /// frame.
    fn leave(&mut self, page: Page, berth: StagingFrame, state: PageState) -> (bool, MoveFollowUp) {
        let record = self.records.of(page);
        if record.wanted {
            record.state = PageState::Activating(berth);
            self.tally.activated += 1;
            return (false, MoveFollowUp::Activate(berth));
        }
        if core::mem::take(&mut record.discarded) {
            record.state = PageState::Blank;
            let kept = core::mem::take(&mut record.stored);
            let next = if kept {
                MoveFollowUp::Forget(berth)
            } else {
                MoveFollowUp::Drop(berth)
            };
            return (false, next);
        }
        (record.state, record.spent) = (state, 0);
        self.compression.left();
        (true, MoveFollowUp::Drop(berth))
    }

    /// Reports that a packed page was handed to the page client.
    pub fn passed(&mut self, page: Page) -> MoveFollowUp {
        let record = self.records.of(page);
        assert!(record.state == PageState::Passing, "the page is being sent on");
        self.tally.sent += 1;
        self.pack.remove(page);
        (record.state, record.stored) = (PageState::Remote, true);
        let discarded = core::mem::take(&mut record.discarded);
        if discarded {
            (record.state, record.stored) = (PageState::Blank, false);
        }
        if core::mem::take(&mut record.wanted) {
            // Its bytes are pending locally, so it comes at once when a frame is free.
            self.queue(page);
        }
        if discarded {
            MoveFollowUp::Abandon
        } else {
            MoveFollowUp::Done
        }
    }

    /// Drops stale queue entries: a page activated and deactivated again has one entry for each time.
    fn tidy_inactive(&mut self) {
        let records = &mut self.records;
        self.inactive.retain(|(page, since)| {
            let record = records.of(*page);
            matches!(record.state, PageState::Inactive(_)) && record.touched == *since
        });
    }
}
