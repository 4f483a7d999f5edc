//! Which pages a thread will want: where its faults go, and how far ahead that has proved true.
//!
//! A thread may follow several *courses* at once: what it reads, what it writes. A fault belongs to the
//! course whose last one it is next to. A course has a step: the one that most of its last faults had, or
//! most of the thread's. Faults are told by the byte, where the kernel does, so that the column of a matrix
//! is followed exactly: its rows need not be whole pages.
//!
//! Pages that are brought ahead make no faults, so that their use is not seen. Therefore the first page of
//! each run is the *marker*: it is brought, too, but kept out of sight. Its fault proves the course and asks
//! for the next run, which comes while the program is at this one. A run whose marker was never wanted halves
//! the next.
//!
//! After Maruf and Chowdhury, *Effectively Prefetching Remote Memory with Leap* (ATC'20): the majority of the
//! last few steps, and of more if these have none.

use alloc::vec::Vec;

use super::Page;
use crate::limit::{FAULT_STREAMS_MAX, PAGE_BYTES, PREFETCH_PAGES_MAX};

/// Steps that vote, first the fewer.
const VOTERS: [usize; 2] = [4, 8];
/// A fault that is farther from all courses begins one.
const NEAR_BYTES: u64 = 1 << 20;
const PAGE: i64 = PAGE_BYTES as i64;

/// One thread's faults.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultTrend {
    streams: Vec<FaultStream>,
    votes: Votes,
    /// The last fault, and how far it was from the one before.
    last: Option<(u64, i64)>,
    faults: u64,
}

/// Faults next to each other.
#[derive(Clone, Debug)]
struct FaultStream {
    last: u64,
    votes: Votes,
    /// Pages that the next run has.
    window: u32,
    run: Option<PrefetchRun>,
    /// The thread's fault that was its last.
    used: u64,
}

/// Pages that were asked for and have not been proved wanted.
#[derive(Clone, Copy, Debug)]
struct PrefetchRun {
    marker: Page,
    /// Up to here.
    last: u64,
    step: i64,
}

/// What is to come ahead: every `step` bytes from the one behind `from` on, so many pages of those that are
/// away. Then [`FaultTrend::issued`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefetchPlan {
    stream: usize,
    from: u64,
    step: i64,
    pub(super) count: u32,
    /// A run before it was proved.
    pub(super) proved: bool,
}

impl PrefetchPlan {
    /// The places on the way, without end.
    pub(super) fn places(self) -> impl Iterator<Item = u64> {
        (1..).map_while(move |index| self.from.checked_add_signed(self.step.checked_mul(index)?))
    }
}

impl FaultTrend {
    /// The thread has made a fault at this byte. What is to come ahead, of `spare` pages at most.
    pub(super) fn on_fault(&mut self, at: u64, spare: u32) -> Option<PrefetchPlan> {
        self.faults += 1;
        let page = page_of(at);
        let jump = self
            .last
            .map_or(0, |(last, _)| at.wrapping_sub(last).cast_signed());
        let before = self.last.replace((at, jump));
        if let Some(index) = self.proved(page) {
            let course = &mut self.streams[index];
            (course.last, course.used) = (at, self.faults);
            let run = course.run.take()?;
            course.window = (2 * course.window).clamp(1, PREFETCH_PAGES_MAX);
            return Some(ahead(index, course, (run.last, run.step), spare, true));
        }
        // A step longer than any course is near: three faults in a row are one.
        let long = before.is_some_and(|(_, step)| step == jump && jump.unsigned_abs() > NEAR_BYTES);
        let index = self.course(at, if long { at.wrapping_add_signed(-jump) } else { at });
        let course = &mut self.streams[index];
        let step = at.wrapping_sub(course.last).cast_signed();
        let pages = i64::from(page.0) - i64::from(page_of(course.last).0);
        (course.last, course.used) = (at, self.faults);
        self.votes.add(step, pages);
        if pages == 0 {
            return None;
        }
        course.votes.add(step, pages);
        let agreed = if long {
            Some(jump)
        } else {
            course
                .votes
                .agree(VOTERS[0], step, pages)
                .or_else(|| { VOTERS.iter() }.find_map(|voters| self.votes.agree(*voters, step, pages)))
        };
        let step = agreed?;
        course.window = match course.run {
            Some(_) => course.window / 2,
            None => course.window.max(1),
        };
        Some(ahead(index, course, (at, step), spare, false))
    }

    /// What was said of what is to come ahead has been done: the first of these pages, and the last place
    /// that was looked at. None of them: the course ends.
    pub(super) fn issued(&mut self, ahead: PrefetchPlan, marker: Option<Page>, last: u64) {
        self.streams[ahead.stream].run = marker.map(|marker| PrefetchRun {
            marker,
            last,
            step: ahead.step,
        });
    }

    fn proved(&self, page: Page) -> Option<usize> {
        let is_marker = |course: &FaultStream| course.run.is_some_and(|run| run.marker == page);
        self.streams.iter().position(is_marker)
    }

    /// The course that has a fault, one of which the last was `near`, or a new one in place of the one that
    /// has rested longest.
    fn course(&mut self, at: u64, near: u64) -> usize {
        let far = |course: &FaultStream| course.last.abs_diff(near);
        let nearest = (0..self.streams.len()).min_by_key(|index| far(&self.streams[*index]));
        if let Some(index) = nearest.filter(|index| far(&self.streams[*index]) <= NEAR_BYTES) {
            return index;
        }
        let new = FaultStream {
            last: at,
            votes: Votes::default(),
            window: 0,
            run: None,
            used: self.faults,
        };
        if self.streams.len() < FAULT_STREAMS_MAX {
            self.streams.push(new);
            return self.streams.len() - 1;
        }
        let oldest = (0..self.streams.len()).min_by_key(|index| self.streams[*index].used);
        let index = oldest.unwrap_or_default();
        self.streams[index] = new;
        index
    }
}

fn page_of(at: u64) -> Page {
    Page((at / PAGE_BYTES as u64) as u32)
}

fn ahead(
    index: usize,
    course: &FaultStream,
    (from, step): (u64, i64),
    spare: u32,
    proved: bool,
) -> PrefetchPlan {
    PrefetchPlan {
        stream: index,
        from,
        step,
        count: course.window.min(spare),
        proved,
    }
}

/// The last steps, the newest first; 0: none yet, or a course began.
#[derive(Clone, Copy, Debug, Default)]
struct Votes {
    bytes: [i64; VOTERS[1]],
    pages: [i64; VOTERS[1]],
}

impl Votes {
    fn add(&mut self, bytes: i64, pages: i64) {
        self.bytes.rotate_right(1);
        self.pages.rotate_right(1);
        (self.bytes[0], self.pages[0]) = (bytes, pages);
    }

    /// How the course goes on if the newest step is what more than half of the last ones were: by bytes where
    /// they agree in that, else by pages.
    fn agree(&self, voters: usize, bytes: i64, pages: i64) -> Option<i64> {
        let many =
            |votes: &[i64], step| 2 * votes[..voters].iter().filter(|vote| **vote == step).count() > voters;
        if bytes.abs() >= PAGE && many(&self.bytes, bytes) {
            return Some(bytes);
        }
        many(&self.pages, pages).then_some(pages * PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Pages that are asked for by a fault at this byte, where all are away.
    fn ask_at(trend: &mut FaultTrend, at: u64) -> Vec<u32> {
        let Some(ahead) = trend.on_fault(at, u32::MAX) else {
            return Vec::new();
        };
        let places: Vec<u64> = ahead.places().take(ahead.count.max(1) as usize).collect();
        trend.issued(
            ahead,
            places.first().map(|place| page_of(*place)),
            places[places.len() - 1],
        );
        let asked = &places[..ahead.count as usize];
        asked.iter().map(|place| page_of(*place).0).collect()
    }

    fn ask(trend: &mut FaultTrend, page: u32) -> Vec<u32> {
        ask_at(trend, u64::from(page) * PAGE_BYTES as u64)
    }

    #[test]
    fn a_scan_brings_more_with_each_marker_that_is_wanted() {
        let mut trend = FaultTrend::default();
        assert!((10..13).all(|page| ask(&mut trend, page).is_empty()));
        assert_eq!(ask(&mut trend, 13), [14]);
        assert_eq!(ask(&mut trend, 14), [15, 16]);
        assert_eq!(ask(&mut trend, 15), [17, 18, 19, 20]);
        let mut marker = 17;
        for _ in 0..8 {
            let next = ask(&mut trend, marker);
            assert!(next.len() <= PREFETCH_PAGES_MAX as usize);
            marker = next[0];
        }
        assert_eq!(ask(&mut trend, marker).len(), PREFETCH_PAGES_MAX as usize);
    }

    #[test]
    fn a_stride_with_strays_in_between_is_still_a_trend() {
        let mut trend = FaultTrend::default();
        for page in [100, 90, 80, 5000] {
            ask(&mut trend, page);
        }
        assert_eq!(ask(&mut trend, 4990), [4980]);
    }

    #[test]
    fn what_is_read_and_what_is_written_are_followed_each_by_itself() {
        let mut trend = FaultTrend::default();
        let both =
            |trend: &mut FaultTrend, index: u32| [ask(trend, 100 + index), ask(trend, 9000 + 2 * index)];
        assert!((0..3).all(|index| both(&mut trend, index).concat().is_empty()));
        assert_eq!(both(&mut trend, 3), [vec![104], vec![9008]]);
        assert_eq!(both(&mut trend, 4), [vec![105, 106], vec![9010, 9012]]);
    }

    #[test]
    fn a_column_is_followed_by_the_byte() {
        for row in [8680, 48_000, 3 << 20, -8680] {
            let mut trend = FaultTrend::default();
            let place = |index: i64| (1_u64 << 40).wrapping_add_signed(row * index);
            let (mut row_number, mut asked) = (0, Vec::new());
            while asked.len() < 40 {
                let next = ask_at(&mut trend, place(row_number));
                row_number = match next.first() {
                    // The thread's next fault is on the marker.
                    Some(marker) => (0..).find(|row| page_of(place(*row)).0 == *marker).unwrap(),
                    None => row_number + 1,
                };
                assert!(row_number <= 4 || !next.is_empty(), "the column is followed");
                asked.extend(next);
            }
            let first = (0..).find(|row| page_of(place(*row)).0 == asked[0]).unwrap();
            let rows: Vec<u32> = (first..)
                .take(asked.len())
                .map(|row| page_of(place(row)).0)
                .collect();
            assert_eq!(asked, rows, "{row}");
        }
    }

    #[test]
    fn records_that_lie_across_pages_are_a_scan() {
        let mut trend = FaultTrend::default();
        let asked: Vec<_> = (0..6_u64)
            .map(|page| ask_at(&mut trend, (page * 4096).next_multiple_of(100)))
            .collect();
        assert_eq!(asked[3..5], [vec![4], vec![5, 6]]);
    }

    #[test]
    fn what_was_not_wanted_halves_what_comes_until_nothing_does() {
        let mut trend = FaultTrend::default();
        (0..4).for_each(|page| drop(ask(&mut trend, page)));
        let mut marker = 4;
        while trend.streams[0].window < 32 {
            marker = ask(&mut trend, marker)[0];
        }
        let mut asked = Vec::new();
        for start in 1..8 {
            // Each time a few in a row, and never what would have come next.
            let pages = (0..4).map(|index| start * 20 + 7 * start * index);
            asked.push(pages.map(|page| ask(&mut trend, page).len()).max().unwrap());
        }
        assert!(
            asked[0] <= 16 && asked.is_sorted_by(|one, next| one >= next),
            "{asked:?}"
        );
        assert_eq!(asked[5..], [0, 0]);
    }

    #[test]
    fn faults_without_a_trend_bring_nothing() {
        let mut trend = FaultTrend::default();
        let mut page = 1;
        for _ in 0..1000 {
            page = page * 48_271 % 10_007;
            assert_eq!(ask(&mut trend, page % 10_000), []);
        }
    }

    #[test]
    fn without_a_frame_to_spare_the_trend_is_followed_and_nothing_brought() {
        let mut trend = FaultTrend::default();
        (0..3).for_each(|page| drop(ask(&mut trend, page)));
        let mut fault = |page: u64, spare| {
            let ahead = trend.on_fault(page * PAGE_BYTES as u64, spare).unwrap();
            let place = ahead.places().next().unwrap();
            trend.issued(ahead, Some(page_of(place)), place);
            (ahead.count, ahead.proved)
        };
        assert_eq!(fault(3, 0), (0, false));
        assert_eq!(fault(4, 0), (0, true));
        assert_eq!(fault(5, 2), (2, true));
    }
}
