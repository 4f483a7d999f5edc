//! The server's side of locking: holders, queues, grants and recalls.
//!
//! Every method leaves the state consistent; take the messages with [`LockService::poll`] before the next
//! call. Hand in each node's messages in the order in which it sent them, among its records
//! ([`LockService::on_written`]).
//!
//! **Nodes.** A node that is not in `liveness` is known and alive. After a start of the server, every node
//! that may hold something is [expected](LockService::expect). A node that comes back, after a start or over
//! a new link, [resumes](LockService::resume), sends its unmerged records again and makes its
//! [claims](LockService::claim). When all of that has been merged it is [known](LockService::on_claims_done),
//! and the tokens that it has not claimed are free. A node that is being [fenced](LockService::fence) keeps
//! its tokens until its journal has been read to the end; then they are [reclaimed](LockService::reclaim).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::table::LockTable;
use super::{LockOrder, LockRequester, ToCache, ToService, TokenClaim, conflict};
use crate::limit::GRANTS_RESERVED;
use crate::{GrantNumber, LockId, LockMode, LockVersion, NodeId};

mod misuse;
mod state;

pub use misuse::LockMisuse;
use state::{LockRequest, LockState, SentRecall, TokenHolder};

/// State of a node that is not simply alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NodeLiveness {
    /// The server has started, and this node may hold anything.
    Absent,
    /// The node is back and makes its claims. `absent`: its tokens were not known before.
    Resuming { absent: bool },
    /// The node will not speak any more; its tokens are still taken.
    Fenced { absent: bool },
}

impl NodeLiveness {
    /// Whether the node may hold tokens that the service does not know of.
    fn may_hold_anything(self) -> bool {
        match self {
            NodeLiveness::Absent => true,
            NodeLiveness::Resuming { absent } | NodeLiveness::Fenced { absent } => absent,
        }
    }
}

/// Lock service of a region; see the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockService {
    locks: LockTable<LockState>,
    next: GrantNumber,
    ceiling: GrantNumber,
    liveness: BTreeMap<NodeId, NodeLiveness>,
    /// Number of nodes in `liveness` that may hold anything.
    absent: usize,
    out: VecDeque<(NodeId, ToCache)>,
}

impl LockService {
    /// Creates the service of a region with these locks at these versions. `ceiling` is what an earlier start
    /// stored last (at the very first: `GrantNumber(0)`). The service grants nothing before a higher one has
    /// been [stored](LockService::ceiling_stored).
    pub fn new(ceiling: GrantNumber, locks: impl IntoIterator<Item = (LockId, LockVersion)>) -> LockService {
        let mut service = LockService {
            locks: LockTable::new(),
            next: ceiling.next(),
            ceiling,
            liveness: BTreeMap::new(),
            absent: 0,
            out: VecDeque::new(),
        };
        for (lock, version) in locks {
            service.add(lock, version);
        }
        service
    }

    /// Adds a lock to the region.
    pub fn add(&mut self, lock: LockId, version: LockVersion) {
        self.locks.find_or(lock, || LockState {
            version,
            expected: Vec::new(),
            settled: false,
            holders: Vec::new(),
            queue: VecDeque::new(),
        });
    }

    /// Grant number to store durably and then hand to [`LockService::ceiling_stored`]; `None`: not needed
    /// yet. No grant is above the stored number, so that none is used twice however often the server starts.
    pub fn ceiling_wanted(&self) -> Option<GrantNumber> {
        let left = self.ceiling.0 + 1 - self.next.0;
        (left <= GRANTS_RESERVED / 2).then(|| GrantNumber(self.next.0 + GRANTS_RESERVED))
    }

    /// Notes that `ceiling` is durable.
    pub fn ceiling_stored(&mut self, ceiling: GrantNumber) {
        let waited = self.next > self.ceiling;
        self.ceiling = self.ceiling.max(ceiling);
        if waited {
            self.pump_all();
        }
    }

    /// Next message for a node.
    pub fn poll(&mut self) -> Option<(NodeId, ToCache)> {
        self.out.pop_front()
    }

    /// Merged version of `lock`; `None`: the region does not have it.
    pub fn version(&self, lock: LockId) -> Option<LockVersion> {
        Some(self.locks.at(self.locks.find(lock)?).version)
    }

    /// How `node` holds `lock`.
    pub fn holds(&self, node: NodeId, lock: LockId) -> Option<LockMode> {
        let lock = self.locks.at(self.locks.find(lock)?);
        lock.holder(node).map(|holder| holder.hold)
    }

    /// Nodes that hold `lock`, and how.
    pub fn holders(&self, lock: LockId) -> impl Iterator<Item = (NodeId, LockMode)> {
        let lock = self.locks.find(lock).map(|at| self.locks.at(at));
        lock.into_iter()
            .flat_map(|lock| lock.holders.iter().map(|holder| (holder.node, holder.hold)))
    }

    /// Locks that nodes wait for, with the number of these nodes.
    pub fn waited_for(&self) -> impl Iterator<Item = (LockId, usize)> {
        let waits = |(lock, state): (LockId, &LockState)| (lock, state.queue.len());
        self.locks.iter().map(waits).filter(|(_, count)| *count > 0)
    }

    /// Handles a message of a node that is not fenced.
    ///
    /// # Errors
    ///
    /// [`LockMisuse`] if a correct node would not send the message; nothing has changed then.
    pub fn handle(&mut self, node: NodeId, message: ToService) -> Result<(), LockMisuse> {
        match message {
            ToService::Acquire {
                lock,
                hold,
                order,
                ask,
            } => {
                let asker = LockRequester { node, ask };
                self.on_acquire(lock, LockRequest { asker, hold, order })
            }
            ToService::Release {
                lock,
                grant,
                version,
                keep,
            } => self.on_release(node, lock, grant, version, keep),
            ToService::Die { lock, asker } => self.on_die(lock, asker),
        }
    }

    /// Notes that a record was merged that wrote under `lock` and made this version.
    ///
    /// # Errors
    ///
    /// [`LockMisuse`] if the region does not have the lock, or the version does not follow the merged one.
    pub fn on_written(&mut self, lock: LockId, version: LockVersion) -> Result<(), LockMisuse> {
        let at = self.find(lock)?;
        let state = self.locks.at_mut(at);
        if version != state.version.next() {
            let stands = state.version;
            return Err(LockMisuse::Version {
                lock,
                stands,
                given: version,
            });
        }
        state.version = version;
        if state.settle() {
            self.pump(at);
        }
        Ok(())
    }

    /// Notes that the server has started and `node` may hold anything. Call this for all such nodes before
    /// anything else.
    pub fn expect(&mut self, node: NodeId) {
        self.set_liveness(node, Some(NodeLiveness::Absent));
    }

    /// Notes that `node` is back over a new link. Its requests are dropped, since it will make them again.
    /// Its tokens are still taken.
    pub fn resume(&mut self, node: NodeId) {
        let absent = self.may_hold_anything(node);
        self.set_liveness(node, Some(NodeLiveness::Resuming { absent }));
        self.clear_request(node);
        for at in 0..self.locks.len() {
            if let Some(holder) = self.locks.at_mut(at).holder_mut(node) {
                holder.claimed = false;
                holder.recall = None;
            }
        }
        // Other requests may have waited behind the dropped ones.
        self.pump_all();
    }

    /// Takes a token claim of a node that resumes. Returns the nodes whose claims this newer grant excludes:
    /// they are at fault, whichever came first.
    ///
    /// # Errors
    ///
    /// [`LockMisuse`] if the token cannot be the node's; a claim with a newer grant may exclude it.
    pub fn claim(&mut self, node: NodeId, claim: TokenClaim) -> Result<Vec<NodeId>, LockMisuse> {
        let TokenClaim {
            lock,
            grant,
            hold,
            version,
        } = claim;
        let at = self.find(lock)?;
        let absent = self.may_hold_anything(node);
        if grant >= self.next {
            return Err(LockMisuse::GrantAhead { lock, grant });
        }
        let state = self.locks.at_mut(at);
        let mut void = Vec::new();
        if let Some(holder) = state.holder_mut(node) {
            // The node claims less than is known here: a grant that never arrived is void, and so is a
            // release.
            if grant > holder.grant || hold > holder.hold {
                return Err(LockMisuse::NotHeld(lock));
            }
            holder.grant = grant;
            holder.hold = hold;
            holder.claimed = true;
        } else if !absent {
            return Err(LockMisuse::NotHeld(lock));
        } else {
            let rivals = state.holders.iter().filter(|other| conflict(other.hold, hold));
            if rivals.clone().any(|rival| rival.grant > grant) {
                return Err(LockMisuse::Claims { lock, node });
            }
            void.extend(rivals.map(|rival| rival.node));
            state.holders.retain(|other| !conflict(other.hold, hold));
            state.holders.push(TokenHolder::new(node, grant, hold));
        }
        state.settled |= hold == LockMode::Exclusive;
        state.expect_version(node, version);
        self.pump(at);
        Ok(void)
    }

    /// Notes that `node` has made its claims, and that all its records sent before them are merged. The
    /// tokens that it did not claim are free.
    pub fn on_claims_done(&mut self, node: NodeId) {
        self.set_liveness(node, None);
        for at in 0..self.locks.len() {
            self.locks
                .at_mut(at)
                .holders
                .retain(|holder| holder.node != node || holder.claimed);
        }
        self.pump_all();
    }

    /// Stops listening to `node`: its requests are dropped. Its tokens are still taken.
    pub fn fence(&mut self, node: NodeId) {
        let absent = self.may_hold_anything(node);
        self.set_liveness(node, Some(NodeLiveness::Fenced { absent }));
        self.clear_request(node);
        self.pump_all();
    }

    /// Frees the tokens of `node`: no more of its records can come, and all of them are merged.
    pub fn reclaim(&mut self, node: NodeId) {
        self.set_liveness(node, None);
        self.clear_request(node);
        for at in 0..self.locks.len() {
            let state = self.locks.at_mut(at);
            state.holders.retain(|holder| holder.node != node);
            state.drop_expected(node);
        }
        self.pump_all();
    }

    fn on_acquire(&mut self, lock: LockId, request: LockRequest) -> Result<(), LockMisuse> {
        let at = self.find(lock)?;
        let node = request.asker.node;
        let state = self.locks.at_mut(at);
        let held = state.holder(node).filter(|holder| holder.claimed);
        let held = held.map(|holder| holder.hold);
        // A grant is on its way that this request has crossed.
        if held >= Some(request.hold) {
            return Ok(());
        }
        if request.order == LockOrder::Upgrade && held.is_none() {
            return Err(LockMisuse::NotHeld(lock));
        }
        state.queue.retain(|other| other.asker.node != node);
        let front = state.queue.front().map(|front| front.order);
        match (request.order, front) {
            (LockOrder::Up, _) | (LockOrder::Out, None) => state.queue.push_back(request),
            (LockOrder::Out, Some(_)) | (LockOrder::Upgrade, Some(LockOrder::Upgrade)) => {
                self.send_died(lock, request.asker)
            }
            (LockOrder::Upgrade, Some(LockOrder::Out)) => {
                // The request out of order would have to wait for the reader, which now waits for the others.
                let out = state.queue.pop_front();
                state.queue.push_front(request);
                if let Some(out) = out {
                    self.send_died(lock, out.asker);
                }
            }
            (LockOrder::Upgrade, Some(LockOrder::Up) | None) => state.queue.push_front(request),
        }
        self.pump(at);
        Ok(())
    }

    fn on_release(
        &mut self,
        node: NodeId,
        lock: LockId,
        grant: GrantNumber,
        version: LockVersion,
        keep: Option<LockMode>,
    ) -> Result<(), LockMisuse> {
        let at = self.find(lock)?;
        let state = self.locks.at_mut(at);
        let stands = state.version;
        let holder = state.holder_mut(node).ok_or(LockMisuse::NotHeld(lock))?;
        if grant > holder.grant {
            return Err(LockMisuse::GrantAhead { lock, grant });
        }
        // An upgrade was granted since, and is on its way. The release was of the mode before it.
        if grant < holder.grant {
            return Ok(());
        }
        if keep >= Some(holder.hold) {
            return Err(LockMisuse::NotHeld(lock));
        }
        if version < stands {
            return Err(LockMisuse::Version {
                lock,
                stands,
                given: version,
            });
        }
        match keep {
            Some(hold) => {
                holder.hold = hold;
                holder.recall = None;
            }
            None => state.holders.retain(|holder| holder.node != node),
        }
        state.expect_version(node, version);
        self.pump(at);
        Ok(())
    }

    fn on_die(&mut self, lock: LockId, asker: LockRequester) -> Result<(), LockMisuse> {
        let at = self.find(lock)?;
        let state = self.locks.at_mut(at);
        // Several users of the token may answer so, and the request may be gone.
        let front = state.queue.front();
        if front.is_some_and(|front| front.asker == asker && front.order == LockOrder::Out) {
            state.queue.pop_front();
            self.send_died(lock, asker);
            self.pump(at);
        }
        Ok(())
    }

    /// Grants what can be granted of one lock, in the queue's order, and recalls the tokens that block the
    /// first request that cannot be granted.
    fn pump(&mut self, at: usize) {
        let lock = self.locks.lock(at);
        let state = self.locks.at_mut(at);
        while let Some(front) = state.queue.front().copied() {
            let known = self.absent == 0 || state.settled;
            let merged = state.expected.is_empty();
            let asks = self.liveness.contains_key(&front.asker.node);
            if !known || !merged || asks || self.next > self.ceiling {
                return;
            }
            if state.hinders(front).next().is_some() {
                break;
            }
            let node = front.asker.node;
            let (grant, hold, version) = (self.next, front.hold, state.version);
            self.next = grant.next();
            state.queue.pop_front();
            state.holders.retain(|holder| holder.node != node);
            state.holders.push(TokenHolder::new(node, grant, hold));
            self.out.push_back((
                node,
                ToCache::Grant {
                    lock,
                    grant,
                    hold,
                    version,
                },
            ));
        }
        let Some(front) = state.queue.front().copied() else {
            return;
        };
        let keep = (front.hold == LockMode::Shared).then_some(LockMode::Shared);
        let waits = front.order != LockOrder::Out;
        let recall = SentRecall {
            keep,
            asker: front.asker,
            waits,
        };
        for holder in state
            .holders
            .iter_mut()
            .filter(|holder| front.is_hindered_by(holder))
        {
            let told = holder.recall.is_some_and(|before| before.covers(recall));
            if told || !holder.claimed || self.liveness.contains_key(&holder.node) {
                continue;
            }
            holder.recall = Some(recall);
            let (grant, asker) = (holder.grant, front.asker);
            self.out.push_back((
                holder.node,
                ToCache::Recall {
                    lock,
                    grant,
                    keep,
                    asker,
                    waits,
                },
            ));
        }
    }

    fn pump_all(&mut self) {
        for at in 0..self.locks.len() {
            self.pump(at);
        }
    }

    fn send_died(&mut self, lock: LockId, asker: LockRequester) {
        self.out
            .push_back((asker.node, ToCache::Died { lock, ask: asker.ask }));
    }

    /// Drops the requests of `node`. The caller must pump.
    fn clear_request(&mut self, node: NodeId) {
        for at in 0..self.locks.len() {
            self.locks
                .at_mut(at)
                .queue
                .retain(|request| request.asker.node != node);
        }
    }

    fn find(&self, lock: LockId) -> Result<usize, LockMisuse> {
        self.locks.find(lock).ok_or(LockMisuse::NoSuchLock(lock))
    }

    /// Whether `node` may hold tokens that are not known here, because the server has started since they were
    /// granted.
    pub fn may_hold_anything(&self, node: NodeId) -> bool {
        self.liveness
            .get(&node)
            .is_some_and(|standing| standing.may_hold_anything())
    }

    fn set_liveness(&mut self, node: NodeId, standing: Option<NodeLiveness>) {
        self.absent -= usize::from(self.may_hold_anything(node));
        match standing {
            Some(standing) => self.liveness.insert(node, standing),
            None => self.liveness.remove(&node),
        };
        self.absent += usize::from(self.may_hold_anything(node));
    }
}
