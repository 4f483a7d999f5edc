//! Which way is cheapest for a page, judged by what its last transactions did to it.
//!
//! The choice is between costs of three kinds: an update that is recorded, a page that is copied and
//! compared, a byte that is logged. Measured by `netram-lab bench paper --only osdi94`.

/// Nanoseconds that recording an update costs, its part of the sort included, less what noticing it costs
/// where the page is compared.
const UPDATE_NS: u32 = 14;
/// Nanoseconds that a page costs where it is compared: its copy and the comparison, out of the cache.
const COMPARE_NS: u32 = 1400;
/// Updates of a page in one transaction from which on it is cheaper to compare.
const UPDATES_MANY: u32 = COMPARE_NS / UPDATE_NS;
/// And below which it is cheaper to record. Lower, so that a page does not go to and fro.
const UPDATES_FEW: u32 = UPDATES_MANY / 2;
/// Bytes that a page's changes would take in a record from which on the whole page is logged.
const BYTES_MANY: usize = 3 * super::PAGE / 4;
/// About what a range's header takes in a record.
const HEADER_BYTES: usize = 8;
/// Transactions in a row that must agree before the way is changed.
const VOTES: u8 = 2;
/// A page that is logged whole is compared again after so many transactions: nothing else says how much
/// changes.
const WHOLE_MAX: u8 = 16;

/// How the changes of a page are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiffMethod {
    /// Each update is recorded.
    #[default]
    Recorded,
    /// The page is compared with its twin.
    Compared,
    /// It is logged whole.
    Whole,
}

/// A page's way, and what speaks for another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PagePolicy {
    pub(crate) method: DiffMethod,
    /// The twin shows what was logged last.
    pub(crate) has_twin: bool,
    votes: u8,
    /// Updates by the transaction that is open; zero: it has not touched the page.
    pub(crate) updates: u32,
}

impl PagePolicy {
    /// A transaction that touched the page was logged, with `runs` ranges of `bytes` bytes where it was
    /// compared.
    pub(crate) fn logged(&mut self, bytes: usize, runs: usize) {
        let updates = std::mem::take(&mut self.updates);
        let (next, votes) = match self.method {
            DiffMethod::Recorded if updates >= UPDATES_MANY => (DiffMethod::Compared, VOTES),
            DiffMethod::Compared | DiffMethod::Whole if updates < UPDATES_FEW => {
                (DiffMethod::Recorded, VOTES)
            }
            DiffMethod::Compared if bytes + runs * HEADER_BYTES >= BYTES_MANY => (DiffMethod::Whole, VOTES),
            DiffMethod::Whole => (DiffMethod::Compared, WHOLE_MAX),
            way => (way, VOTES),
        };
        if next == self.method {
            self.votes = 0;
            return;
        }
        self.votes += 1;
        if self.votes >= votes {
            *self = PagePolicy {
                method: next,
                ..PagePolicy::default()
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(habit: &mut PagePolicy, rounds: usize, updates: u32, bytes: usize) -> Vec<DiffMethod> {
        let round = |_| {
            habit.updates = updates;
            habit.logged(bytes, 1);
            habit.method
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn a_page_is_compared_when_its_updates_are_many_and_recorded_when_they_are_few_again() {
        let mut habit = PagePolicy::default();
        assert_eq!(
            ways(&mut habit, 2, 500, 800),
            [DiffMethod::Recorded, DiffMethod::Compared]
        );
        assert_eq!(ways(&mut habit, 4, UPDATES_FEW, 800), [DiffMethod::Compared; 4]);
        assert_eq!(
            ways(&mut habit, 2, 3, 24),
            [DiffMethod::Compared, DiffMethod::Recorded]
        );
        assert_eq!(ways(&mut habit, 1, 500, 0), [DiffMethod::Recorded]);
        assert_eq!(
            ways(&mut habit, 1, 1, 0),
            [DiffMethod::Recorded],
            "one alone changes nothing"
        );
        assert_eq!(ways(&mut habit, 1, 500, 0), [DiffMethod::Recorded]);
    }

    #[test]
    fn a_page_that_changes_as_a_whole_is_logged_whole_and_looked_at_now_and_then() {
        let mut habit = PagePolicy::default();
        ways(&mut habit, 2, 500, 0);
        assert_eq!(
            ways(&mut habit, 2, 500, 4000),
            [DiffMethod::Compared, DiffMethod::Whole]
        );
        let later = ways(&mut habit, WHOLE_MAX as usize + 2, 500, 4000);
        assert_eq!(
            later.iter().filter(|way| **way == DiffMethod::Compared).count(),
            2,
            "{later:?}"
        );
        assert_eq!(later.last(), Some(&DiffMethod::Whole));
        let last = ways(&mut habit, WHOLE_MAX as usize + 3, 500, 100);
        assert_eq!(last[WHOLE_MAX as usize..], [DiffMethod::Compared; 3]);
    }
}
