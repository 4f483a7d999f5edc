//! What the thread that serves says of itself.

use netram_shared_machine::server::Standing;
use netram_shared_machine::{Hold, LockId, Missing};

use super::driver::Driver;
use super::report::{HolderReport, LockReport, NodeReport, RegionReport, Report};
use crate::limit::LOCKS_TOLD_MAX;
use crate::server::table::Node;

/// What is wanting is told so often, and no oftener.
const MISSING_TOLD_MAX: usize = 16;

impl Driver {
    pub(super) fn report(&self) -> Report {
        let mut waited_for_count = 0;
        let mut waited_for = Vec::new();
        for (lock, waiting) in self.server.locks().waited_for() {
            waited_for_count += 1;
            if waited_for.len() < LOCKS_TOLD_MAX {
                waited_for.push(self.lock_report(lock, waiting));
            }
        }
        let missing = self.server.missing();
        Report {
            region: Some(RegionReport::of(self.store.table())),
            addresses: self.addresses.clone(),
            uptime_s: self.now.duration_since(self.began).as_secs(),
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            position: self.server.newest().0,
            kept: self.server.durable().0,
            strangers: self
                .lines
                .keys()
                .filter(|session| self.server.node(**session).is_none())
                .count(),
            nodes: self
                .store
                .table()
                .nodes
                .iter()
                .map(|node| self.node_report(node))
                .collect(),
            waited_for,
            waited_for_count,
            missing: missing.iter().take(MISSING_TOLD_MAX).map(sentence).collect(),
            shortened: false,
        }
    }

    fn node_report(&self, node: &Node) -> NodeReport {
        let line = self
            .lines
            .iter()
            .find(|(session, _)| self.server.node(**session) == Some(node.id));
        NodeReport {
            node: node.id.0,
            name: node.name.clone(),
            standing: self.server.standing(node.id).map_or("gone", name).to_owned(),
            peer: line.map(|(_, line)| line.channel.peer().to_owned()),
            merged: node.merged.0,
            kept: node.marked.0,
            journal: node.view.journal.to_string(),
            lsn: node.end.lsn.0,
            lenders: node.lenders().map(str::to_owned).collect(),
            behind: self.server.behind(node.id),
            why: self.fenced.get(&node.id).cloned(),
            stuck: self.stuck(node.id),
        }
    }

    fn lock_report(&self, lock: LockId, waiting: usize) -> LockReport {
        let holders = self
            .server
            .locks()
            .holders(lock)
            .map(|(node, hold)| HolderReport {
                node: node.0,
                exclusive: hold == Hold::Exclusive,
            });
        LockReport {
            lock: lock.0,
            waiting,
            holders: holders.collect(),
        }
    }
}

pub(super) fn name(standing: Standing) -> &'static str {
    match standing {
        Standing::Entering => "entering",
        Standing::Live => "live",
        Standing::Absent => "absent",
        Standing::Behind => "behind",
        Standing::Leaving => "leaving",
        Standing::Fencing => "fencing",
        Standing::Reading => "reading",
        Standing::Stuck => "stuck",
        Standing::Read => "read",
        Standing::Going => "going",
        Standing::Gone => "gone",
    }
}

fn sentence(missing: &Missing) -> String {
    let Missing {
        node,
        number,
        lock,
        needs,
        stands,
    } = missing;
    format!("record {number} of node {node} needs version {needs} of lock {lock}, which stands at {stands}")
}
