//! Invariants of a lock world: at every step, and at rest.

use netram_shared_machine::lock::ToCache;
use netram_shared_machine::{LockId, LockMode};

use crate::lock::world::{CheckResult, LockWorld, NodeCondition, ScriptNode, UpMessage, at, id};

fn exclude(one: LockMode, other: LockMode) -> bool {
    one == LockMode::Exclusive || other == LockMode::Exclusive
}

impl LockWorld {
    /// A node's mode of a lock, including grants on their way to it.
    fn token(&self, node: usize, lock: LockId) -> Option<LockMode> {
        let state = &self.nodes[node];
        let here = state.cache.claims().find(|claim| claim.lock == lock);
        let coming = state.down.iter().filter_map(|message| match message {
            ToCache::Grant {
                lock: granted, hold, ..
            } if *granted == lock => Some(*hold),
            _ => None,
        });
        coming.chain(here.map(|claim| claim.hold)).max()
    }

    fn alive(&self) -> impl Iterator<Item = (usize, &ScriptNode)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(_, node)| node.condition == NodeCondition::Alive)
    }

    /// Invariants that hold at every step.
    pub(crate) fn check(&self) -> CheckResult {
        for lock in (0..self.script.locks).map(LockId) {
            let tokens: Vec<_> = self
                .alive()
                .filter_map(|(node, _)| Some((node, self.token(node, lock)?)))
                .collect();
            for (index, (node, hold)) in tokens.iter().enumerate() {
                for (other, held) in &tokens[index + 1..] {
                    if exclude(*hold, *held) {
                        return Err(format!("nodes {node} and {other} both have lock {lock}"));
                    }
                }
                let expected = self.nodes[*node].linked
                    && self.nodes[*node].known.is_none()
                    && !self.nodes[*node]
                        .up
                        .iter()
                        .any(|up| matches!(up, UpMessage::Known));
                if expected && self.service.holds(id(*node), lock) < Some(*hold) {
                    return Err(format!(
                        "the service has forgotten that node {node} has lock {lock}"
                    ));
                }
            }
            let mut uses = Vec::new();
            for (_, node) in self.alive() {
                for txn in node.txns.iter().filter_map(|txn| txn.id) {
                    uses.extend(node.cache.held_locks(txn).filter(|held| held.lock == lock));
                }
            }
            for (index, held) in uses.iter().enumerate() {
                if held.version != self.safe_versions[at(lock)] {
                    return Err(format!("lock {lock} is used at version {}", held.version));
                }
                if uses[index + 1..]
                    .iter()
                    .any(|other| exclude(held.hold, other.hold))
                {
                    return Err(format!("two transactions use lock {lock}"));
                }
            }
        }
        Ok(())
    }

    /// Invariants that hold when no progress is possible any more.
    pub(crate) fn check_at_rest(&self) -> CheckResult {
        for (index, node) in self.alive() {
            if let Some(txn) = node.txns.iter().position(|txn| !txn.over) {
                return Err(format!("node {index}, transaction {txn} waits for ever"));
            }
            if !node.cache.idle() || node.cache.deadline().is_some() {
                return Err(format!("node {index} still counts a transaction"));
            }
            if node.merged < node.journal.len() {
                return Err(format!(
                    "node {index}: record {} can never be merged",
                    node.merged + 1
                ));
            }
        }
        for lock in (0..self.script.locks).map(LockId) {
            if self.version(lock) != self.safe_versions[at(lock)] {
                return Err(format!("versions of lock {lock} are missing"));
            }
            let mut held: Vec<_> = self.service.holders(lock).collect();
            held.sort();
            let tokens = self
                .alive()
                .filter_map(|(node, _)| Some((id(node), self.token(node, lock)?)));
            if !held.iter().copied().eq(tokens) {
                return Err(format!("lock {lock} is lost: the service says {held:?}"));
            }
        }
        match self.service.waited_for().next() {
            Some((lock, _)) => Err(format!("the service still queues for lock {lock}")),
            None => Ok(()),
        }
    }
}
