//! Power domains of the members.
//!
//! A power failure of this machine's domain loses its ring. So the members that may acknowledge on their own
//! must not all be in that domain. With `all`, one member elsewhere suffices, since it is always asked. With
//! k of n, fewer than k may be here, or k of them could acknowledge records that one failure destroys.
//! Members elsewhere are not compared with each other; the status shows the number of domains.

use super::{CommitRule, JournalWriter, LenderIndexSet};

impl JournalWriter {
    /// Whether lender `index` is in this machine's power domain.
    pub(super) fn is_here(&self, index: usize) -> bool {
        self.lenders[index].domain == self.config.domain
    }

    /// Whether the members of `set` in this machine's domain are too few to acknowledge on their own under
    /// `rule`.
    pub(super) fn domains_differ(&self, set: LenderIndexSet, rule: CommitRule) -> bool {
        let here = set.iter().filter(|&index| self.is_here(index)).count();
        self.config.one_domain || here < rule.copies(set.len())
    }

    /// Whether a view of `set` may include lender `index` and still count under the configured rule.
    pub(super) fn fits(&self, set: LenderIndexSet, index: usize) -> bool {
        match self.config.rule {
            // A member in another domain joins, or replaces it.
            CommitRule::All => true,
            CommitRule::Any | CommitRule::AtLeast(_) => {
                !self.is_here(index) || self.domains_differ(set.with(index), self.config.rule)
            }
        }
    }

    /// Number of power domains that the members are in.
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

    /// A writer with lenders in these domains, as many of them joined as can. This machine's domain is
    /// "here".
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

    /// With `any`, or k of n, all members that acknowledge could share this machine's power domain: one
    /// failure then took the ring and the copies.
    #[test]
    fn members_in_this_machines_domain_never_suffice_to_acknowledge() {
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
    fn the_status_shows_the_number_of_copies_and_domains() {
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
