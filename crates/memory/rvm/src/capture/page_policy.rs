//! The cheapest method for a page, judged by what its last transactions did to it.
//!
//! Three costs are weighed: recording an update, copying and comparing a page, and logging a byte. Measured
//! by `netram-lab bench paper --only osdi94`.

/// Nanoseconds that recording an update costs, including its part of the sort, minus the cost of noticing it
/// where the page is compared.
const UPDATE_NS: u32 = 14;
/// Nanoseconds that comparing a page costs: the copy and the comparison, out of the cache.
const COMPARE_NS: u32 = 1400;
/// Updates of a page in one transaction from which on comparing is cheaper.
const UPDATES_MANY: u32 = COMPARE_NS / UPDATE_NS;
/// Updates below which recording is cheaper again. Lower than `UPDATES_MANY`, so that a page does not
/// oscillate.
const UPDATES_FEW: u32 = UPDATES_MANY / 2;
/// Bytes of a page's changes in a record from which on the whole page is logged.
const BYTES_MANY: usize = 3 * super::PAGE / 4;
/// Approximate bytes of a range's header in a record.
const HEADER_BYTES: usize = 8;
/// Consecutive transactions that must agree before the method changes.
const VOTES: u8 = 2;
/// Transactions after which a page that is logged whole is compared again, because nothing else shows how
/// much of it changes.
const WHOLE_MAX: u8 = 16;

/// How the changes of a page are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiffMethod {
    /// Each update is recorded.
    #[default]
    Recorded,
    /// The page is compared with its twin.
    Compared,
    /// The page is logged whole.
    Whole,
}

/// A page's method, and the votes for another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PagePolicy {
    pub(crate) method: DiffMethod,
    /// The page has a twin that shows the bytes last logged.
    pub(crate) has_twin: bool,
    votes: u8,
    /// Updates by the open transaction; zero if it has not touched the page.
    pub(crate) updates: u32,
}

impl PagePolicy {
    /// A transaction that touched the page was logged. Where the page was compared, `runs` ranges of `bytes`
    /// bytes differed.
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

    fn ways(policy: &mut PagePolicy, rounds: usize, updates: u32, bytes: usize) -> Vec<DiffMethod> {
        let round = |_| {
            policy.updates = updates;
            policy.logged(bytes, 1);
            policy.method
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn a_page_is_compared_after_many_updates_and_recorded_after_few() {
        let mut policy = PagePolicy::default();
        assert_eq!(
            ways(&mut policy, 2, 500, 800),
            [DiffMethod::Recorded, DiffMethod::Compared]
        );
        assert_eq!(ways(&mut policy, 4, UPDATES_FEW, 800), [DiffMethod::Compared; 4]);
        assert_eq!(
            ways(&mut policy, 2, 3, 24),
            [DiffMethod::Compared, DiffMethod::Recorded]
        );
        assert_eq!(ways(&mut policy, 1, 500, 0), [DiffMethod::Recorded]);
        assert_eq!(
            ways(&mut policy, 1, 1, 0),
            [DiffMethod::Recorded],
            "one transaction changes nothing"
        );
        assert_eq!(ways(&mut policy, 1, 500, 0), [DiffMethod::Recorded]);
    }

    #[test]
    fn a_page_that_changes_as_a_whole_is_logged_whole_and_compared_at_times() {
        let mut policy = PagePolicy::default();
        ways(&mut policy, 2, 500, 0);
        assert_eq!(
            ways(&mut policy, 2, 500, 4000),
            [DiffMethod::Compared, DiffMethod::Whole]
        );
        let later = ways(&mut policy, WHOLE_MAX as usize + 2, 500, 4000);
        assert_eq!(
            later.iter().filter(|way| **way == DiffMethod::Compared).count(),
            2,
            "{later:?}"
        );
        assert_eq!(later.last(), Some(&DiffMethod::Whole));
        let last = ways(&mut policy, WHOLE_MAX as usize + 3, 500, 100);
        assert_eq!(last[WHOLE_MAX as usize..], [DiffMethod::Compared; 3]);
    }
}
