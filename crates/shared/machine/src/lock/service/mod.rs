//! The server's side: who holds which lock, who waits for it, and what each is told.
//!
//! Every method leaves the state clean; what is to be said is taken with [`Service::poll`] before the next. Messages of one node are
//! handed in in the order in which it sent them, among its records ([`Service::wrote`]).
//!
//! **Nodes.** One that is not mentioned is known and alive. After a start of the server, all that may hold something are
//! [expected](Service::expect). A node that comes, after a start or over a new link, [resumes](Service::resume), makes its
//! [claims](Service::claim), and sends its records that are not merged; when all of that has been taken it is
//! [known](Service::known), and what it has not claimed is free. One that is being fenced is [left](Service::fence) its tokens
//! until its journal has been read to the end, then they are [reclaimed](Service::reclaim).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::table::Table;
use super::{Asker, Claim, Order, ToCache, ToService, conflict};
use crate::limit::GRANTS_RESERVED;
use crate::{Grant, Hold, LockId, NodeId, Version};

mod misuse;
mod state;

pub use misuse::Misuse;
use state::{Holder, Lock, Recalled, Request};

/// What is known of a node that is not simply alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Standing {
    /// The server has started, and this one may hold anything.
    Absent,
    /// It is back and makes its claims. `absent`: nothing was known of its tokens.
    Resuming { absent: bool },
    /// It will not speak any more; what it holds is still taken.
    Fenced { absent: bool },
}

impl Standing {
    /// Whether it may hold what the service does not know of.
    fn may_hold_anything(self) -> bool {
        match self {
            Standing::Absent => true,
            Standing::Resuming { absent } | Standing::Fenced { absent } => absent,
        }
    }
}

/// The lock service: see the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    locks: Table<Lock>,
    next: Grant,
    ceiling: Grant,
    standings: BTreeMap<NodeId, Standing>,
    /// How many of `standings` may hold anything.
    absent: usize,
    out: VecDeque<(NodeId, ToCache)>,
}

impl Service {
    /// The service of a region with these locks at these versions. `ceiling` is what an earlier start has stored last (at the very
    /// first: `Grant(0)`); nothing is granted before a higher one has been [stored](Service::ceiling_stored).
    pub fn new(ceiling: Grant, locks: impl IntoIterator<Item = (LockId, Version)>) -> Service {
        let mut service = Service {
            locks: Table::new(),
            next: ceiling.next(),
            ceiling,
            standings: BTreeMap::new(),
            absent: 0,
            out: VecDeque::new(),
        };
        for (lock, version) in locks {
            service.add(lock, version);
        }
        service
    }

    /// The region has one lock more.
    pub fn add(&mut self, lock: LockId, version: Version) {
        self.locks.find_or(lock, || Lock {
            version,
            owed: Vec::new(),
            settled: false,
            holders: Vec::new(),
            queue: VecDeque::new(),
        });
    }

    /// The number that is to be stored durably, and then handed to [`Service::ceiling_stored`]: no grant is above what is
    /// stored, so that none is told twice however often the server starts. `None`: not yet.
    pub fn ceiling_wanted(&self) -> Option<Grant> {
        let left = self.ceiling.0 + 1 - self.next.0;
        (left <= GRANTS_RESERVED / 2).then(|| Grant(self.next.0 + GRANTS_RESERVED))
    }

    /// `ceiling` is durable.
    pub fn ceiling_stored(&mut self, ceiling: Grant) {
        let waited = self.next > self.ceiling;
        self.ceiling = self.ceiling.max(ceiling);
        if waited {
            self.pump_all();
        }
    }

    /// What a node is to be told next.
    pub fn poll(&mut self) -> Option<(NodeId, ToCache)> {
        self.out.pop_front()
    }

    /// The version of `lock` that has been merged.
    pub fn version(&self, lock: LockId) -> Option<Version> {
        Some(self.locks.at(self.locks.find(lock)?).version)
    }

    /// How `node` holds `lock`.
    pub fn holds(&self, node: NodeId, lock: LockId) -> Option<Hold> {
        let lock = self.locks.at(self.locks.find(lock)?);
        lock.holder(node).map(|holder| holder.hold)
    }

    /// Who holds `lock`, and how.
    pub fn holders(&self, lock: LockId) -> impl Iterator<Item = (NodeId, Hold)> {
        let lock = self.locks.find(lock).map(|at| self.locks.at(at));
        lock.into_iter()
            .flat_map(|lock| lock.holders.iter().map(|holder| (holder.node, holder.hold)))
    }

    /// Locks that somebody waits for, with the number of nodes that do.
    pub fn waited_for(&self) -> impl Iterator<Item = (LockId, usize)> {
        let waits = |(lock, state): (LockId, &Lock)| (lock, state.queue.len());
        self.locks.iter().map(waits).filter(|(_, count)| *count > 0)
    }

    /// A node's message. Those of a node that is fenced are not to be handed in.
    pub fn handle(&mut self, node: NodeId, message: ToService) -> Result<(), Misuse> {
        match message {
            ToService::Acquire {
                lock,
                hold,
                order,
                ask,
            } => {
                let asker = Asker { node, ask };
                self.on_acquire(lock, Request { asker, hold, order })
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

    /// A record was merged that had written under `lock`, and made this version.
    pub fn wrote(&mut self, lock: LockId, version: Version) -> Result<(), Misuse> {
        let at = self.find(lock)?;
        let state = self.locks.at_mut(at);
        if version != state.version.next() {
            let stands = state.version;
            return Err(Misuse::Version {
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

    /// The server has started, and `node` may hold anything. To be said of all such nodes before anything else.
    pub fn expect(&mut self, node: NodeId) {
        self.stand(node, Some(Standing::Absent));
    }

    /// `node` is back, over a new link: what it had asked is forgotten, it will ask again. What it holds is still taken.
    pub fn resume(&mut self, node: NodeId) {
        let absent = self.may_hold_anything(node);
        self.stand(node, Some(Standing::Resuming { absent }));
        self.silence(node);
        for at in 0..self.locks.len() {
            if let Some(holder) = self.locks.at_mut(at).holder_mut(node) {
                holder.claimed = false;
                holder.recalled = None;
            }
        }
        // Others may have waited behind what it had asked.
        self.pump_all();
    }

    /// A node that resumes says that it has a token. Returned are those whose claims are void by that, for this grant is newer than theirs and
    /// excludes them: they are at fault, whoever came first.
    pub fn claim(&mut self, node: NodeId, claim: Claim) -> Result<Vec<NodeId>, Misuse> {
        let Claim {
            lock,
            grant,
            hold,
            version,
        } = claim;
        let at = self.find(lock)?;
        let absent = self.may_hold_anything(node);
        if grant >= self.next {
            return Err(Misuse::GrantAhead { lock, grant });
        }
        let state = self.locks.at_mut(at);
        let mut void = Vec::new();
        if let Some(holder) = state.holder_mut(node) {
            // A hand-over that never arrived is void, and so is a release: what the node says is less than what is known here.
            if grant > holder.grant || hold > holder.hold {
                return Err(Misuse::NotHeld(lock));
            }
            holder.grant = grant;
            holder.hold = hold;
            holder.claimed = true;
        } else if !absent {
            return Err(Misuse::NotHeld(lock));
        } else {
            let rivals = state.holders.iter().filter(|other| conflict(other.hold, hold));
            if rivals.clone().any(|rival| rival.grant > grant) {
                return Err(Misuse::Claims { lock, node });
            }
            void.extend(rivals.map(|rival| rival.node));
            state.holders.retain(|other| !conflict(other.hold, hold));
            state.holders.push(Holder::new(node, grant, hold));
        }
        state.settled |= hold == Hold::Exclusive;
        state.owe(node, version);
        self.pump(at);
        Ok(void)
    }

    /// `node` has made its claims, and all its records that it sent before saying so are merged: what it did not claim is free.
    pub fn known(&mut self, node: NodeId) {
        self.stand(node, None);
        for at in 0..self.locks.len() {
            self.locks
                .at_mut(at)
                .holders
                .retain(|holder| holder.node != node || holder.claimed);
        }
        self.pump_all();
    }

    /// `node` is not listened to any more: what it asked for is forgotten. What it holds is still taken.
    pub fn fence(&mut self, node: NodeId) {
        let absent = self.may_hold_anything(node);
        self.stand(node, Some(Standing::Fenced { absent }));
        self.silence(node);
        self.pump_all();
    }

    /// Nothing of `node` can come any more, and all that it had made is merged: what it held is free.
    pub fn reclaim(&mut self, node: NodeId) {
        self.stand(node, None);
        self.silence(node);
        for at in 0..self.locks.len() {
            let state = self.locks.at_mut(at);
            state.holders.retain(|holder| holder.node != node);
            state.forgive(node);
        }
        self.pump_all();
    }

    fn on_acquire(&mut self, lock: LockId, request: Request) -> Result<(), Misuse> {
        let at = self.find(lock)?;
        let node = request.asker.node;
        let state = self.locks.at_mut(at);
        let held = state.holder(node).filter(|holder| holder.claimed);
        let held = held.map(|holder| holder.hold);
        // A grant is on its way that this request has crossed.
        if held >= Some(request.hold) {
            return Ok(());
        }
        if request.order == Order::Upgrade && held.is_none() {
            return Err(Misuse::NotHeld(lock));
        }
        state.queue.retain(|other| other.asker.node != node);
        let front = state.queue.front().map(|front| front.order);
        match (request.order, front) {
            (Order::Up, _) | (Order::Out, None) => state.queue.push_back(request),
            (Order::Out, Some(_)) | (Order::Upgrade, Some(Order::Upgrade)) => self.died(lock, request.asker),
            (Order::Upgrade, Some(Order::Out)) => {
                // It would have to wait for the one that reads, and now waits for the others.
                let out = state.queue.pop_front();
                state.queue.push_front(request);
                if let Some(out) = out {
                    self.died(lock, out.asker);
                }
            }
            (Order::Upgrade, Some(Order::Up) | None) => state.queue.push_front(request),
        }
        self.pump(at);
        Ok(())
    }

    fn on_release(
        &mut self,
        node: NodeId,
        lock: LockId,
        grant: Grant,
        version: Version,
        keep: Option<Hold>,
    ) -> Result<(), Misuse> {
        let at = self.find(lock)?;
        let state = self.locks.at_mut(at);
        let stands = state.version;
        let holder = state.holder_mut(node).ok_or(Misuse::NotHeld(lock))?;
        if grant > holder.grant {
            return Err(Misuse::GrantAhead { lock, grant });
        }
        // An upgrade has been granted since, and is on its way: the release was of what it took the place of.
        if grant < holder.grant {
            return Ok(());
        }
        if keep >= Some(holder.hold) {
            return Err(Misuse::NotHeld(lock));
        }
        if version < stands {
            return Err(Misuse::Version {
                lock,
                stands,
                given: version,
            });
        }
        match keep {
            Some(hold) => {
                holder.hold = hold;
                holder.recalled = None;
            }
            None => state.holders.retain(|holder| holder.node != node),
        }
        state.owe(node, version);
        self.pump(at);
        Ok(())
    }

    fn on_die(&mut self, lock: LockId, asker: Asker) -> Result<(), Misuse> {
        let at = self.find(lock)?;
        let state = self.locks.at_mut(at);
        // Several that use it may say so; and the request may be gone.
        let front = state.queue.front();
        if front.is_some_and(|front| front.asker == asker && front.order == Order::Out) {
            state.queue.pop_front();
            self.died(lock, asker);
            self.pump(at);
        }
        Ok(())
    }

    /// Grants what can be granted of one lock, in the queue's order, and recalls what stands in the way of the first that cannot.
    fn pump(&mut self, at: usize) {
        let lock = self.locks.lock(at);
        let state = self.locks.at_mut(at);
        while let Some(front) = state.queue.front().copied() {
            let known = self.absent == 0 || state.settled;
            let merged = state.owed.is_empty();
            let asks = self.standings.contains_key(&front.asker.node);
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
            state.holders.push(Holder::new(node, grant, hold));
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
        let keep = (front.hold == Hold::Shared).then_some(Hold::Shared);
        let waits = front.order != Order::Out;
        let recall = Recalled {
            keep,
            asker: front.asker,
            waits,
        };
        for holder in state
            .holders
            .iter_mut()
            .filter(|holder| front.is_hindered_by(holder))
        {
            let told = holder.recalled.is_some_and(|before| before.covers(recall));
            if told || !holder.claimed || self.standings.contains_key(&holder.node) {
                continue;
            }
            holder.recalled = Some(recall);
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

    fn died(&mut self, lock: LockId, asker: Asker) {
        self.out
            .push_back((asker.node, ToCache::Died { lock, ask: asker.ask }));
    }

    /// Forgets what `node` has asked for. Whoever calls this pumps.
    fn silence(&mut self, node: NodeId) {
        for at in 0..self.locks.len() {
            self.locks
                .at_mut(at)
                .queue
                .retain(|request| request.asker.node != node);
        }
    }

    fn find(&self, lock: LockId) -> Result<usize, Misuse> {
        self.locks.find(lock).ok_or(Misuse::NoSuchLock(lock))
    }

    /// Whether `node` may hold what is not known here: the server has started since it was granted something.
    pub fn may_hold_anything(&self, node: NodeId) -> bool {
        self.standings
            .get(&node)
            .is_some_and(|standing| standing.may_hold_anything())
    }

    fn stand(&mut self, node: NodeId, standing: Option<Standing>) {
        self.absent -= usize::from(self.may_hold_anything(node));
        match standing {
            Some(standing) => self.standings.insert(node, standing),
            None => self.standings.remove(&node),
        };
        self.absent += usize::from(self.may_hold_anything(node));
    }
}
