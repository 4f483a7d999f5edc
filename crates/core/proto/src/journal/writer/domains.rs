//! What feeds the members.
//!
//! Whoever loses this machine's feed loses its ring. So the members that may acknowledge by themselves must
//! not all be on that feed: with `all` one elsewhere suffices, for it is always asked; with k of n fewer than
//! k may be here, or k of them would acknowledge what one failure takes. Members elsewhere are not compared
//! with each other: the status says how many feeds there are.

use super::{CommitRule, JournalWriter, LenderIndexSet};

impl JournalWriter {
    /// Whether lender `index` is fed as this machine is.
    pub(super) fn is_here(&self, index: usize) -> bool {
        self.lenders[index].domain == self.config.domain
    }

    /// Whether no members of `set` that suffice to acknowledge are all fed as this machine is.
    pub(super) fn domains_differ(&self, set: LenderIndexSet) -> bool {
        let here = set.iter().filter(|&index| self.is_here(index)).count();
        self.config.one_domain || here < self.config.rule.copies(set.len())
    }

    /// Whether a view of `set` may take lender `index` and still count for it.
    pub(super) fn fits(&self, set: LenderIndexSet, index: usize) -> bool {
        match self.config.rule {
            // One that is fed elsewhere comes, or takes its place.
            CommitRule::All => true,
            CommitRule::Any | CommitRule::AtLeast(_) => {
                !self.is_here(index) || self.domains_differ(set.with(index))
            }
        }
    }

    /// Failure domains of the members.
    pub(super) fn domains(&self) -> usize {
        let view = self.view;
        let first = |index: &usize| {
            let domain = &self.lenders[*index].domain;
            !view
                .iter()
                .take_while(|other| other != index)
                .any(|other| self.lenders[other].domain == *domain)
        };
        view.iter().filter(first).count()
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::super::tests::Bench;
    use crate::journal::{CommitRule, DiskWaitReason};
    use crate::time::Nanos;
    use crate::wire::FrameKind;

    /// Lenders in these domains, of which as many as can join have; this machine's is "here".
    fn joined(domains: &[&str], rule: CommitRule) -> Bench {
        let mut bench = Bench::empty(domains.len(), domains.len(), rule);
        bench.writer.config.one_domain = false;
        for (index, domain) in domains.iter().enumerate() {
            bench.connect_from(index, index as u64 + 1, domain.as_bytes());
        }
        for index in 0..domains.len() {
            if bench
                .next(index)
                .is_some_and(|frame| frame.kind == FrameKind::Join)
            {
                bench.ack(index, 0, 0);
            }
        }
        bench.wait(Nanos::from_ms(10));
        if bench.writer.view_pending() {
            bench.store_view();
        }
        bench
    }

    /// With `any`, or k of n, those that acknowledge could all be on this machine's feed: ring and copies
    /// were one.
    #[test]
    fn fewer_members_than_acknowledge_are_fed_as_this_machine_is() {
        let members = |domains: &[&str], rule| {
            joined(domains, rule)
                .writer
                .view()
                .iter()
                .collect::<alloc::vec::Vec<_>>()
        };
        assert_eq!(members(&["here", "there"], CommitRule::Any), [1]);
        assert_eq!(
            members(&["here", "here", "there"], CommitRule::AtLeast(2)),
            [0, 2]
        );
        assert_eq!(
            members(&["here", "there", "there"], CommitRule::AtLeast(2)),
            [0, 1, 2]
        );
        assert_eq!(members(&["here", "there"], CommitRule::All), [0, 1]);
        let bench = joined(&["here"], CommitRule::Any);
        assert_eq!(bench.writer.blocked(), Some(DiskWaitReason::OneDomain));
    }

    #[test]
    fn the_status_says_how_many_copies_and_feeds_there_are() {
        let copies = |domains: &[&str]| {
            joined(domains, CommitRule::All)
                .writer
                .status()
                .copies
                .to_string()
        };
        assert_eq!(copies(&["there", "there"]), "2 copies, 1 domain");
        assert_eq!(copies(&["there", "elsewhere"]), "2 copies, 2 domains");
        let mut bench = joined(&["there", "elsewhere"], CommitRule::All);
        bench.writer.on_lost(1, bench.now);
        bench.wait(Nanos::from_ms(501));
        bench.store_view();
        assert_eq!(
            bench.writer.status().copies.to_string(),
            "1 of 2 copies, 1 domain"
        );
    }
}
