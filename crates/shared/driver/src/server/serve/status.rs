//! Makes the server's status.

use netram_shared_machine::server::NodeState;
use netram_shared_machine::{LockId, LockMode, MissingVersion};

use super::driver::ServeDriver;
use super::report::{HolderReport, LockReport, NodeReport, RegionReport, ServerReport};
use crate::limit::LOCKS_REPORTED_MAX;
use crate::server::table::NodeEntry;

/// Maximum number of missing versions in a status.
const MISSING_REPORTED_MAX: usize = 16;

impl ServeDriver {
    pub(super) fn report(&self) -> ServerReport {
        let mut waited_for_count = 0;
        let mut waited_for = Vec::new();
        for (lock, waiting) in self.server.locks().waited_for() {
            waited_for_count += 1;
            if waited_for.len() < LOCKS_REPORTED_MAX {
                waited_for.push(self.lock_report(lock, waiting));
            }
        }
        let missing = self.server.missing();
        ServerReport {
            region: Some(RegionReport::of(self.store.table())),
            addresses: self.addresses.clone(),
            uptime_s: self.now.duration_since(self.began).as_secs(),
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            position: self.server.newest().0,
            kept: self.server.durable().0,
            strangers: self
                .links
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
            missing: missing.iter().take(MISSING_REPORTED_MAX).map(sentence).collect(),
            shortened: false,
        }
    }

    fn node_report(&self, node: &NodeEntry) -> NodeReport {
        let line = self
            .links
            .iter()
            .find(|(session, _)| self.server.node(**session) == Some(node.id));
        NodeReport {
            node: node.id.0,
            name: node.name.clone(),
            standing: self.server.node_state(node.id).map_or("gone", name).to_owned(),
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
                exclusive: hold == LockMode::Exclusive,
            });
        LockReport {
            lock: lock.0,
            waiting,
            holders: holders.collect(),
        }
    }
}

pub(super) fn name(standing: NodeState) -> &'static str {
    match standing {
        NodeState::Entering => "entering",
        NodeState::Live => "live",
        NodeState::Absent => "absent",
        NodeState::Behind => "behind",
        NodeState::Leaving => "leaving",
        NodeState::Fencing => "fencing",
        NodeState::Reading => "reading",
        NodeState::Stuck => "stuck",
        NodeState::Read => "read",
        NodeState::Going => "going",
        NodeState::Gone => "gone",
    }
}

fn sentence(missing: &MissingVersion) -> String {
    let MissingVersion {
        node,
        number,
        lock,
        needs,
        stands,
    } = missing;
    format!("record {number} of node {node} needs version {needs} of lock {lock}, which stands at {stands}")
}
