//! A world of one service, some caches, ordered links between them, and scripted transactions, with
//! invariants checked at every step.
//!
//! Other machines are modelled simply. A commit's record is safe when it is made, and reaches the server
//! later. The server merges it when its versions follow, and its disk has part of the merged records.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use netram_proto::time::Time;
use netram_shared_machine::lock::{
    Acquired, CacheEvent, LockService, ToCache, ToService, TokenCache, TokenClaim, TokenError, TxnId,
};
use netram_shared_machine::{GrantNumber, LockId, LockMode, LockVersion, NodeId, RecordNumber};

use crate::lock::script::{MixHasher, Script, ScriptAction, ScriptStep};

#[derive(Clone, Debug, Hash)]
pub(crate) enum UpMessage {
    Claim(TokenClaim),
    Tail(usize),
    Known,
    Lock(ToService),
}

/// The stamp of a record.
#[derive(Clone, Debug, Hash)]
pub(crate) struct StampRecord {
    pub(crate) written: Vec<(LockId, LockVersion)>,
    pub(crate) read: Vec<(LockId, LockVersion)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ScriptTxn {
    pub(crate) id: Option<TxnId>,
    pub(crate) at: usize,
    pub(crate) waits: bool,
    pub(crate) over: bool,
    /// Whether the transaction did not get its locks.
    pub(crate) failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NodeCondition {
    Alive,
    Crashed,
    Fenced,
    Gone,
}

#[derive(Clone, Hash)]
pub(crate) struct ScriptNode {
    pub(crate) condition: NodeCondition,
    pub(crate) linked: bool,
    pub(crate) now: Time,
    pub(crate) cache: TokenCache,
    pub(crate) txns: Vec<ScriptTxn>,
    pub(crate) journal: Vec<StampRecord>,
    /// Number of records sent over the present link, or merged before it.
    pub(crate) sent: usize,
    /// Number of records that the server has merged, and that its disk has.
    pub(crate) merged: usize,
    /// Number of records received over the present link, merged or not.
    pub(crate) arrived: usize,
    /// Set once the node has made its claims: it is known when this many of its records are merged.
    pub(crate) known: Option<usize>,
    pub(crate) durable: usize,
    pub(crate) up: VecDeque<UpMessage>,
    pub(crate) down: VecDeque<ToCache>,
}

#[derive(Clone)]
pub(crate) struct LockWorld {
    pub(crate) script: std::rc::Rc<Script>,
    pub(crate) service: LockService,
    pub(crate) ceiling: GrantNumber,
    pub(crate) nodes: Vec<ScriptNode>,
    /// Versions that safe records have made.
    pub(crate) safe_versions: Vec<LockVersion>,
    /// Versions of the locks on the disk.
    pub(crate) durable_versions: Vec<LockVersion>,
    /// Highest grant number that was used for each lock.
    pub(crate) told_grants: Vec<GrantNumber>,
    pub(crate) remaining: Script,
}

const LEASE: u64 = 1;
const NEVER: Time = Time(u64::MAX);

pub(crate) fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

pub(crate) fn at(lock: LockId) -> usize {
    lock.0 as usize
}

pub(crate) type CheckResult = Result<(), String>;

impl LockWorld {
    pub(crate) fn new(script: Script) -> LockWorld {
        let versions = vec![LockVersion(0); script.locks as usize];
        let mut service = LockService::new(
            GrantNumber(0),
            (0..script.locks).map(|lock| (LockId(lock), LockVersion(0))),
        );
        let ceiling = service.ceiling_wanted().expect("nothing is reserved yet");
        service.ceiling_stored(ceiling);
        let node = |txns: &Vec<Vec<ScriptStep>>| {
            let mut cache = TokenCache::new();
            cache.on_linked(Time(0), RecordNumber(0));
            cache.on_renewed(Time(0), Time(LEASE));
            ScriptNode {
                condition: NodeCondition::Alive,
                linked: true,
                now: Time(0),
                cache,
                txns: vec![ScriptTxn::default(); txns.len()],
                journal: Vec::new(),
                sent: 0,
                merged: 0,
                arrived: 0,
                known: None,
                durable: 0,
                up: VecDeque::new(),
                down: VecDeque::new(),
            }
        };
        LockWorld {
            service,
            ceiling,
            nodes: script.nodes.iter().map(node).collect(),
            safe_versions: versions.clone(),
            durable_versions: versions,
            told_grants: vec![GrantNumber(0); script.locks as usize],
            remaining: Script {
                nodes: Vec::new(),
                ..script.clone()
            },
            script: std::rc::Rc::new(script),
        }
    }

    /// A number that two different worlds hardly share.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut mixer = MixHasher(0);
        let left = &self.remaining;
        let left = (left.crashes, left.restarts, left.cuts, left.cancels, left.lapses);
        (
            &self.service,
            self.ceiling,
            &self.nodes,
            &self.durable_versions,
            left,
        )
            .hash(&mut mixer);
        mixer.finish()
    }

    /// Number of transactions that did not get their locks.
    pub(crate) fn failed(&self) -> usize {
        let txns = self.nodes.iter().flat_map(|node| &node.txns);
        txns.filter(|txn| txn.failed).count()
    }

    /// All actions that may happen next.
    pub(crate) fn actions(&self) -> Vec<ScriptAction> {
        let mut actions = Vec::new();
        for (node, state) in self.nodes.iter().enumerate() {
            match state.condition {
                NodeCondition::Alive => self.actions_of(node, &mut actions),
                NodeCondition::Crashed => actions.push(ScriptAction::Fence(node)),
                NodeCondition::Fenced => match state.journal.get(state.merged) {
                    Some(record) if self.follows(record) => actions.push(ScriptAction::Read(node)),
                    Some(_) => {}
                    None => actions.push(ScriptAction::Reclaim(node)),
                },
                NodeCondition::Gone => {}
            }
        }
        if self.remaining.restarts > 0 {
            actions.push(ScriptAction::Restart { lost: false });
            actions.push(ScriptAction::Restart { lost: true });
        }
        actions
    }

    fn actions_of(&self, node: usize, actions: &mut Vec<ScriptAction>) {
        let state = &self.nodes[node];
        for (txn, it) in state.txns.iter().enumerate() {
            if !it.over && !it.waits {
                actions.push(ScriptAction::Step { node, txn });
            }
            if it.waits && self.remaining.cancels > 0 {
                actions.push(ScriptAction::Cancel { node, txn });
            }
        }
        if state.linked {
            if state.sent < state.journal.len() {
                actions.push(ScriptAction::SendTail(node));
            }
            if !state.up.is_empty() {
                actions.push(ScriptAction::ToServer(node));
            }
            if !state.down.is_empty() {
                actions.push(ScriptAction::ToNode(node));
            }
            if self.remaining.cuts > 0 {
                actions.push(ScriptAction::Cut(node));
            }
        } else {
            actions.push(ScriptAction::Link(node));
        }
        if !state.cache.leased(state.now) {
            actions.push(ScriptAction::Renew(node));
        } else if self.remaining.lapses > 0 {
            actions.push(ScriptAction::Lapse(node));
        }
        if self.remaining.crashes > 0 {
            actions.push(ScriptAction::Crash(node));
        }
    }

    pub(crate) fn version(&self, lock: LockId) -> LockVersion {
        self.service.version(lock).expect("it is one of the region's")
    }

    fn follows(&self, record: &StampRecord) -> bool {
        let mut written = record.written.iter();
        let mut read = record.read.iter();
        written.all(|(lock, version)| *version == self.version(*lock).next())
            && read.all(|(lock, version)| *version <= self.version(*lock))
    }

    fn merge(&mut self, record: &StampRecord) -> CheckResult {
        // After a restart of the server links may have any speed, so a reader's record may come after a later
        // writer's.
        let late = |(lock, version): &(LockId, LockVersion)| *version < self.version(*lock);
        if self.remaining.restarts == self.script.restarts && record.read.iter().any(late) {
            return Err("a token was handed on before the record of one that had read under it".into());
        }
        for (lock, version) in &record.written {
            let wrote = self.service.on_written(*lock, *version);
            wrote.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Carries out one action, and checks the invariants.
    pub(crate) fn act(&mut self, action: ScriptAction) -> CheckResult {
        match action {
            ScriptAction::Step { node, txn } => self.step(node, txn)?,
            ScriptAction::SendTail(node) => {
                let state = &mut self.nodes[node];
                state.up.push_back(UpMessage::Tail(state.sent));
                state.sent += 1;
                state.cache.on_sent(state.now, RecordNumber(state.sent as u64));
            }
            ScriptAction::ToServer(node) => self.deliver(node)?,
            ScriptAction::ToNode(node) => {
                let state = &mut self.nodes[node];
                if let Some(message) = state.down.pop_front() {
                    let handled = state.cache.handle(state.now, message);
                    handled.map_err(|error| error.to_string())?;
                }
            }
            ScriptAction::Cut(node) => {
                self.remaining.cuts -= 1;
                self.cut(node);
            }
            ScriptAction::Link(node) => self.link(node),
            ScriptAction::Crash(node) => {
                self.remaining.crashes -= 1;
                self.cut(node);
                self.nodes[node].condition = NodeCondition::Crashed;
            }
            ScriptAction::Fence(node) => {
                self.service.fence(id(node));
                self.nodes[node].condition = NodeCondition::Fenced;
            }
            ScriptAction::Read(node) => self.read(node)?,
            ScriptAction::Reclaim(node) => self.reclaim(node),
            ScriptAction::Restart { lost } => self.restart(lost),
            ScriptAction::Cancel { node, txn } => {
                self.remaining.cancels -= 1;
                let state = &mut self.nodes[node];
                if let Some(txn) = state.txns[txn].id {
                    state.cache.cancel(state.now, txn);
                }
                self.fail(node, txn);
            }
            ScriptAction::Lapse(node) => {
                self.remaining.lapses -= 1;
                self.nodes[node].now.0 += LEASE;
            }
            ScriptAction::Renew(node) => {
                let state = &mut self.nodes[node];
                state.cache.on_renewed(state.now, Time(state.now.0 + LEASE));
            }
        }
        self.settle()?;
        self.check()
    }

    fn step(&mut self, node: usize, txn: usize) -> CheckResult {
        let steps = self.script.nodes[node][txn].clone();
        let state = &mut self.nodes[node];
        let now = state.now;
        let undoable = !self.script.no_restore;
        let id = *state.txns[txn]
            .id
            .get_or_insert_with(|| state.cache.begin(undoable));
        let Some(step) = steps.get(state.txns[txn].at) else {
            return self.commit(node, txn, id);
        };
        let acquired = match step {
            ScriptStep::Lock(lock, hold) => state.cache.acquire(now, id, LockId(*lock), *hold, NEVER),
            ScriptStep::All(locks) => {
                let mut locks: Vec<_> = locks.iter().map(|(lock, hold)| (LockId(*lock), *hold)).collect();
                state.cache.acquire_all(now, id, &mut locks, NEVER)
            }
        };
        match acquired {
            Ok(Acquired::Granted) => state.txns[txn].at += 1,
            Ok(Acquired::Waits) => state.txns[txn].waits = true,
            Err(TokenError::Died(_) | TokenError::OutOfOrder(_)) => self.fail(node, txn),
            Err(error) => return Err(format!("node {node}, transaction {txn}: {error}")),
        }
        Ok(())
    }

    /// Writes under all exclusive locks. The record is safe at once, and sent some time later.
    fn commit(&mut self, node: usize, txn: usize, id: TxnId) -> CheckResult {
        let state = &mut self.nodes[node];
        let held: Vec<_> = state.cache.held_locks(id).collect();
        let mut record = StampRecord {
            written: Vec::new(),
            read: Vec::new(),
        };
        for held in held {
            match held.hold {
                LockMode::Shared => record.read.push((held.lock, held.version)),
                LockMode::Exclusive => {
                    let version = state
                        .cache
                        .on_written(id, held.lock)
                        .ok_or("it has the lock alone")?;
                    record.written.push((held.lock, version));
                    if version != self.safe_versions[at(held.lock)].next() {
                        return Err(format!(
                            "node {node} makes version {version} of lock {}",
                            held.lock
                        ));
                    }
                    self.safe_versions[at(held.lock)] = version;
                }
            }
        }
        let number = (!record.written.is_empty()).then(|| {
            state.journal.push(record);
            RecordNumber(state.journal.len() as u64)
        });
        state.cache.end(state.now, id, number);
        state.txns[txn] = ScriptTxn {
            over: true,
            ..ScriptTxn::default()
        };
        Ok(())
    }

    fn fail(&mut self, node: usize, txn: usize) {
        let state = &mut self.nodes[node];
        if let Some(id) = state.txns[txn].id {
            state.cache.end(state.now, id, None);
        }
        state.txns[txn] = ScriptTxn {
            over: true,
            failed: true,
            ..ScriptTxn::default()
        };
    }

    fn deliver(&mut self, node: usize) -> CheckResult {
        let state = &mut self.nodes[node];
        match state.up.pop_front() {
            Some(UpMessage::Claim(claim)) => {
                let claimed = self.service.claim(id(node), claim);
                match claimed {
                    Ok(void) if void.is_empty() => Ok(()),
                    Ok(void) => Err(format!("{claim:?} excludes the claims of {void:?}")),
                    Err(error) => Err(error.to_string()),
                }
            }
            Some(UpMessage::Tail(number)) => {
                state.arrived = number + 1;
                Ok(())
            }
            Some(UpMessage::Known) => {
                state.known = Some(state.arrived);
                Ok(())
            }
            Some(UpMessage::Lock(message)) => {
                let handled = self.service.handle(id(node), message);
                handled.map_err(|error| format!("{message:?}: {error}"))
            }
            None => Ok(()),
        }
    }

    fn cut(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        state.linked = false;
        state.arrived = state.merged;
        state.known = None;
        state.up.clear();
        state.down.clear();
        state.cache.on_unlinked();
    }

    /// Opens a new link. The server drops the node's old requests; the node sends unmerged records, claims,
    /// and their end.
    fn link(&mut self, node: usize) {
        self.service.resume(id(node));
        let state = &mut self.nodes[node];
        state.linked = true;
        let again = state.merged..state.journal.len();
        state.up.extend(again.map(UpMessage::Tail));
        state.up.extend(state.cache.claims().map(UpMessage::Claim));
        state.up.push_back(UpMessage::Known);
        state.sent = state.journal.len();
        state.cache.on_linked(state.now, RecordNumber(state.sent as u64));
    }

    fn read(&mut self, node: usize) -> CheckResult {
        let state = &mut self.nodes[node];
        let record = state.journal[state.merged].clone();
        state.merged += 1;
        self.merge(&record)
    }

    fn reclaim(&mut self, node: usize) {
        self.nodes[node].condition = NodeCondition::Gone;
        self.service.reclaim(id(node));
        self.keep();
    }

    fn keep(&mut self) {
        for lock in 0..self.script.locks {
            self.durable_versions[lock as usize] = self.version(LockId(lock));
        }
        for node in &mut self.nodes {
            node.durable = node.merged;
        }
    }

    fn restart(&mut self, lost: bool) {
        self.remaining.restarts -= 1;
        if !lost {
            self.keep();
        }
        let kept = self.durable_versions.iter().enumerate();
        self.service = LockService::new(
            self.ceiling,
            kept.map(|(lock, version)| (LockId(lock as u32), *version)),
        );
        for node in 0..self.nodes.len() {
            self.nodes[node].merged = self.nodes[node].durable;
            self.nodes[node].arrived = self.nodes[node].durable;
            match self.nodes[node].condition {
                NodeCondition::Alive => {
                    self.cut(node);
                    self.service.expect(id(node));
                }
                NodeCondition::Crashed => self.service.expect(id(node)),
                NodeCondition::Fenced => {
                    self.service.expect(id(node));
                    self.service.fence(id(node));
                }
                NodeCondition::Gone => {}
            }
        }
    }

    /// Merges received records until none can be merged.
    fn merge_all(&mut self) -> CheckResult {
        let mut again = true;
        while again {
            again = false;
            for node in 0..self.nodes.len() {
                let state = &self.nodes[node];
                if state.merged < state.arrived && self.follows(&state.journal[state.merged]) {
                    self.read(node)?;
                    again = true;
                }
                let state = &mut self.nodes[node];
                if state.known.is_some_and(|known| known <= state.merged) {
                    state.known = None;
                    self.service.on_claims_done(id(node));
                }
            }
        }
        Ok(())
    }

    /// Carries out the machines' requests.
    fn settle(&mut self) -> CheckResult {
        self.merge_all()?;
        if let Some(ceiling) = self.service.ceiling_wanted() {
            self.ceiling = ceiling;
            self.service.ceiling_stored(ceiling);
        }
        for node in 0..self.nodes.len() {
            while let Some(event) = self.nodes[node].cache.poll() {
                self.event(node, event)?;
            }
        }
        while let Some((to, message)) = self.service.poll() {
            if let ToCache::Grant {
                lock, grant, version, ..
            } = message
            {
                if grant <= self.told_grants[at(lock)] {
                    return Err(format!("grant {grant} of lock {lock} is told again"));
                }
                if version != self.safe_versions[at(lock)] {
                    return Err(format!("lock {lock} is handed on at version {version}"));
                }
                self.told_grants[at(lock)] = grant;
            }
            let node = &mut self.nodes[to.0 as usize - 1];
            if node.linked {
                node.down.push_back(message);
            }
        }
        Ok(())
    }

    fn event(&mut self, node: usize, event: CacheEvent) -> CheckResult {
        let state = &mut self.nodes[node];
        let of = |id: TxnId| {
            let mut txns = state.txns.iter();
            let found = txns.position(|txn| txn.id == Some(id) && txn.waits);
            found.ok_or(format!("{event:?} for one that does not wait"))
        };
        match event {
            CacheEvent::Send(message) => {
                if !state.linked || state.condition != NodeCondition::Alive {
                    return Err(format!("{message:?} is sent without a link"));
                }
                state.up.push_back(UpMessage::Lock(message));
            }
            CacheEvent::Acquired(id) => {
                let txn = of(id)?;
                state.txns[txn].waits = false;
                state.txns[txn].at += 1;
            }
            CacheEvent::Died(id, _) | CacheEvent::TimedOut(id, _) => {
                let txn = of(id)?;
                if self.script.no_restore {
                    return Err(format!("{event:?}, and it cannot be undone"));
                }
                self.fail(node, txn);
                while let Some(event) = self.nodes[node].cache.poll() {
                    self.event(node, event)?;
                }
            }
            CacheEvent::Lost(_) => return Err(format!("{event:?} without a reason")),
        }
        Ok(())
    }
}
