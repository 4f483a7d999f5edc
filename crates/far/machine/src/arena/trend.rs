//! Prediction of a thread's next pages from its faults, and how far ahead the prediction has held.
//!
//! A thread may follow several *streams* at once, for example what it reads and what it writes. A fault
//! belongs to the stream whose last fault is nearest. A stream's step is the one that most of its last faults
//! had, or most of the thread's. Faults are recorded by byte where the kernel reports it. A matrix column is
//! thus followed even if its rows are not whole pages.
//!
//! Prefetched pages cause no faults, so their use is not seen. The first page of each run is therefore the
//! *marker*: it is fetched but not mapped. Its fault proves the stream and requests the next run, which
//! arrives while the program works on this one. If a marker is never referenced, the next run has half the
//! length.
//!
//! After Maruf and Chowdhury, *Effectively Prefetching Remote Memory with Leap* (ATC'20): the majority of the
//! last few steps, and of more if these have none.

use alloc::vec::Vec;

use super::Page;
use crate::limit::{FAULT_STREAMS_MAX, PAGE_BYTES, PREFETCH_PAGES_MAX};

/// Numbers of last steps that vote; the smaller set first.
const VOTERS: [usize; 2] = [4, 8];
/// A fault farther than this from all streams begins a new one.
const NEAR_BYTES: u64 = 1 << 20;
const PAGE: i64 = PAGE_BYTES as i64;

/// Faults of one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultTrend {
    streams: Vec<FaultStream>,
    votes: Votes,
    /// The last fault, and its distance from the one before.
    last: Option<(u64, i64)>,
    faults: u64,
}

/// A sequence of faults near each other.
#[derive(Clone, Debug)]
struct FaultStream {
    last: u64,
    votes: Votes,
    /// Number of pages of the next run.
    window: u32,
    run: Option<PrefetchRun>,
    /// Number of the thread's fault that was the stream's last.
    used: u64,
}

/// A requested run that has not been proved.
#[derive(Clone, Copy, Debug)]
struct PrefetchRun {
    marker: Page,
    /// Last byte that the run covers.
    last: u64,
    step: i64,
}

/// A run to request: positions at `step` bytes from `from` on, up to `count` remote pages. Followed by
/// [`FaultTrend::issued`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefetchPlan {
    stream: usize,
    from: u64,
    step: i64,
    pub(super) count: u32,
    /// The stream's previous run was proved.
    pub(super) proved: bool,
}

impl PrefetchPlan {
    /// Positions along the stream, without end.
    pub(super) fn places(self) -> impl Iterator<Item = u64> {
        (1..).map_while(move |index| self.from.checked_add_signed(self.step.checked_mul(index)?))
    }
}

impl FaultTrend {
    /// Records a fault at this byte. Returns a run to prefetch, of at most `spare` pages.
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
        // A step too long for any stream: three equal steps in a row begin one.
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

    /// Records that a run was requested: its first page, and the last position that was examined. Without a
    /// page the stream ends.
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

    /// Index of the stream of a fault, by distance to `near`. A new stream replaces the one unused for
    /// longest.
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

/// The last steps, newest first; 0: none yet, or a stream began.
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

    /// The step that more than half of the last ones were, if the newest is among them: in bytes if they
    /// agree exactly, else in pages.
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

    /// Pages requested by a fault at this byte if all are remote.
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
    fn each_referenced_marker_doubles_the_run_of_a_scan() {
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
    fn a_stride_is_followed_despite_stray_faults() {
        let mut trend = FaultTrend::default();
        for page in [100, 90, 80, 5000] {
            ask(&mut trend, page);
        }
        assert_eq!(ask(&mut trend, 4990), [4980]);
    }

    #[test]
    fn reads_and_writes_are_separate_streams() {
        let mut trend = FaultTrend::default();
        let both =
            |trend: &mut FaultTrend, index: u32| [ask(trend, 100 + index), ask(trend, 9000 + 2 * index)];
        assert!((0..3).all(|index| both(&mut trend, index).concat().is_empty()));
        assert_eq!(both(&mut trend, 3), [vec![104], vec![9008]]);
        assert_eq!(both(&mut trend, 4), [vec![105, 106], vec![9010, 9012]]);
    }

    #[test]
    fn a_matrix_column_is_followed_by_byte() {
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
    fn records_across_page_bounds_are_a_scan() {
        let mut trend = FaultTrend::default();
        let asked: Vec<_> = (0..6_u64)
            .map(|page| ask_at(&mut trend, (page * 4096).next_multiple_of(100)))
            .collect();
        assert_eq!(asked[3..5], [vec![4], vec![5, 6]]);
    }

    #[test]
    fn each_unreferenced_marker_halves_the_run() {
        let mut trend = FaultTrend::default();
        (0..4).for_each(|page| drop(ask(&mut trend, page)));
        let mut marker = 4;
        while trend.streams[0].window < 32 {
            marker = ask(&mut trend, marker)[0];
        }
        let mut asked = Vec::new();
        for start in 1..8 {
            // A few faults in a row each time, but never the predicted page.
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
    fn faults_without_a_trend_request_nothing() {
        let mut trend = FaultTrend::default();
        let mut page = 1;
        for _ in 0..1000 {
            page = page * 48_271 % 10_007;
            assert_eq!(ask(&mut trend, page % 10_000), []);
        }
    }

    #[test]
    fn without_spare_frames_a_trend_is_followed_but_nothing_requested() {
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
