//! Which pages a thread will want: the step that most of its last faults had, and how far ahead that has proved true.
//!
//! Pages that are brought ahead make no faults, so that their use is not seen. Therefore the first page of each run is the *marker*: it is
//! brought, too, but kept out of sight. Its fault proves the trend and asks for the next run, which comes while the program is at
//! this one. A run whose marker was never wanted halves the next.
//!
//! After Maruf and Chowdhury, *Effectively Prefetching Remote Memory with Leap* (ATC'20): the majority of the last few steps, and of more if
//! these have none.

use core::ops::Range;

use super::Page;
use crate::limit::AHEAD_PAGES_MAX;

/// Steps that vote, first the fewer.
const VOTERS: [usize; 2] = [4, 8];

/// One thread's faults.
#[derive(Clone, Debug, Default)]
pub(super) struct Trend {
    last: Option<u32>,
    /// The last steps, the newest first; 0: none yet.
    steps: [i64; VOTERS[1]],
    /// Pages that the next run has.
    window: u32,
    run: Option<Run>,
}

/// Pages that were asked for and have not been proved wanted.
#[derive(Clone, Copy, Debug)]
struct Run {
    marker: u32,
    last: u32,
    step: i64,
}

/// Pages to be brought, in their order; the first one is the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    first: u32,
    step: i64,
    count: u32,
}

impl Ahead {
    pub(super) fn pages(self) -> impl Iterator<Item = Page> {
        let at = move |index: u32| i64::from(self.first) + i64::from(index) * self.step;
        (0..self.count).map(move |index| Page(at(index) as u32))
    }
}

impl Trend {
    /// The thread has made a fault in this area. What is to come ahead, of `spare` pages at most, and whether the fault proved the last run.
    pub(super) fn on_fault(&mut self, page: Page, area: &Range<u32>, spare: u32) -> (Option<Ahead>, bool) {
        let before = self.last.replace(page.0);
        if let Some(run) = self.run.filter(|run| run.marker == page.0) {
            self.window = (2 * self.window).clamp(1, AHEAD_PAGES_MAX);
            return (self.ask(i64::from(run.last), run.step, area, spare), true);
        }
        let step = before.map_or(0, |before| i64::from(page.0) - i64::from(before));
        if step == 0 {
            return (None, false);
        }
        self.steps.rotate_right(1);
        self.steps[0] = step;
        if self.majority() != Some(step) {
            return (None, false);
        }
        self.window = match self.run {
            Some(_) => self.window / 2,
            None => self.window.max(1),
        };
        (self.ask(i64::from(page.0), step, area, spare), false)
    }

    fn ask(&mut self, from: i64, step: i64, area: &Range<u32>, spare: u32) -> Option<Ahead> {
        let inside = |at: i64| u32::try_from(at).ok().filter(|at| area.contains(at));
        self.run = None;
        let first = inside(from + step)?;
        let room = match step > 0 {
            true => i64::from(area.end - 1 - first) / step,
            false => i64::from(first - area.start) / -step,
        };
        let count = self.window.min(spare).min(room as u32 + 1);
        // Without a frame to spare the marker still tells whether the trend goes on.
        let last = i64::from(first) + i64::from(count.max(1) - 1) * step;
        self.run = Some(Run {
            marker: first,
            last: last as u32,
            step,
        });
        (count > 0).then_some(Ahead { first, step, count })
    }

    /// The step of more than half of the last ones.
    fn majority(&self) -> Option<i64> {
        VOTERS.iter().find_map(|voters| {
            let votes = &self.steps[..*voters];
            let many = |step: &&i64| 2 * votes.iter().filter(|vote| vote == step).count() > *voters;
            votes.iter().filter(|step| **step != 0).find(many).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const AREA: Range<u32> = 0..10_000;

    fn ask(trend: &mut Trend, page: u32) -> Vec<u32> {
        let (ahead, _) = trend.on_fault(Page(page), &AREA, u32::MAX);
        ahead.map_or_else(Vec::new, |ahead| ahead.pages().map(|page| page.0).collect())
    }

    #[test]
    fn a_scan_brings_more_with_each_marker_that_is_wanted() {
        let mut trend = Trend::default();
        assert!((10..13).all(|page| ask(&mut trend, page).is_empty()));
        assert_eq!(ask(&mut trend, 13), [14]);
        assert_eq!(ask(&mut trend, 14), [15, 16]);
        assert_eq!(ask(&mut trend, 15), [17, 18, 19, 20]);
        let mut marker = 17;
        for _ in 0..8 {
            let next = ask(&mut trend, marker);
            assert!(next.len() <= AHEAD_PAGES_MAX as usize);
            marker = next[0];
        }
        assert_eq!(ask(&mut trend, marker).len(), AHEAD_PAGES_MAX as usize);
    }

    #[test]
    fn a_stride_with_strays_in_between_is_still_a_trend() {
        let mut trend = Trend::default();
        for page in [100, 90, 80, 5000] {
            ask(&mut trend, page);
        }
        assert_eq!(ask(&mut trend, 4990), [4980]);
    }

    #[test]
    fn what_was_not_wanted_halves_what_comes_until_nothing_does() {
        let mut trend = Trend::default();
        (0..4).for_each(|page| drop(ask(&mut trend, page)));
        let mut marker = 4;
        while trend.window < 32 {
            marker = ask(&mut trend, marker)[0];
        }
        let mut asked = Vec::new();
        for start in 1..8 {
            // Each time a few in a row, and never what would have come next.
            let pages = (0..4).map(|index| start * 1000 + 7 * start * index);
            asked.push(pages.map(|page| ask(&mut trend, page).len()).max().unwrap());
        }
        assert_eq!(asked, [16, 8, 4, 2, 1, 0, 0]);
    }

    #[test]
    fn faults_without_a_trend_bring_nothing() {
        let mut trend = Trend::default();
        let mut page = 1;
        for _ in 0..1000 {
            page = page * 48_271 % 10_007;
            assert_eq!(ask(&mut trend, page % 10_000), []);
        }
    }

    #[test]
    fn nothing_beyond_the_area_is_asked_for() {
        let mut trend = Trend::default();
        for page in [9_996, 9_997, 9_998] {
            assert_eq!(ask(&mut trend, page), []);
        }
        trend.window = 32;
        assert_eq!(ask(&mut trend, 9_999), []);
        for page in [3, 2, 1] {
            ask(&mut trend, page);
        }
        assert_eq!(ask(&mut trend, 0), []);
    }

    #[test]
    fn without_a_frame_to_spare_the_trend_is_followed_and_nothing_brought() {
        let mut trend = Trend::default();
        (0..3).for_each(|page| drop(ask(&mut trend, page)));
        assert_eq!(trend.on_fault(Page(3), &AREA, 0), (None, false));
        assert_eq!(trend.on_fault(Page(4), &AREA, 0), (None, true));
        let (ahead, proved) = trend.on_fault(Page(5), &AREA, 2);
        assert!(proved && ahead.is_some_and(|ahead| ahead.count == 2));
    }
}
