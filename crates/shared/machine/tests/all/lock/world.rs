//! One service, some caches, ordered links between them, transactions from a script, and what must hold at every step.
//!
//! What belongs to other machines is modelled as simply as can be: a commit's record is safe when it is made, its tail goes to the
//! server later, the server merges it when its versions follow on, and has some of what it merged on its disk.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use netram_proto::time::Time;
use netram_shared_machine::lock::{
    AcquireError, Acquired, Cache, Claim, Event, Service, ToCache, ToService, TxnId,
};
use netram_shared_machine::{Grant, Hold, LockId, NodeId, Number, Version};

use crate::lock::script::{Action, Mixer, Script, Step};

#[derive(Clone, Debug, Hash)]
pub(crate) enum Up {
    Claim(Claim),
    Tail(usize),
    Known,
    Lock(ToService),
}

/// A record's stamp.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Record {
    pub(crate) written: Vec<(LockId, Version)>,
    pub(crate) read: Vec<(LockId, Version)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Txn {
    pub(crate) id: Option<TxnId>,
    pub(crate) at: usize,
    pub(crate) waits: bool,
    pub(crate) over: bool,
    /// It did not get its locks.
    pub(crate) failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Standing {
    Alive,
    Crashed,
    Fenced,
    Gone,
}

#[derive(Clone, Hash)]
pub(crate) struct Node {
    pub(crate) standing: Standing,
    pub(crate) linked: bool,
    pub(crate) now: Time,
    pub(crate) cache: Cache,
    pub(crate) txns: Vec<Txn>,
    pub(crate) journal: Vec<Record>,
    /// Records sent over the present link, or merged before it.
    pub(crate) sent: usize,
    /// Records that the server has merged, and that its disk has.
    pub(crate) merged: usize,
    /// Records that have come over the present link, merged or not.
    pub(crate) came: usize,
    /// The node has made its claims; it is known when this many of its records are merged.
    pub(crate) known: Option<usize>,
    pub(crate) kept: usize,
    pub(crate) up: VecDeque<Up>,
    pub(crate) down: VecDeque<ToCache>,
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) script: std::rc::Rc<Script>,
    pub(crate) service: Service,
    pub(crate) ceiling: Grant,
    pub(crate) nodes: Vec<Node>,
    /// The versions that safe records have made.
    pub(crate) truth: Vec<Version>,
    /// What the disk says of them.
    pub(crate) kept: Vec<Version>,
    /// The highest grant number that was told of each lock.
    pub(crate) told: Vec<Grant>,
    pub(crate) left: Script,
}

const LEASE: u64 = 1;
const NEVER: Time = Time(u64::MAX);

pub(crate) fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

pub(crate) fn at(lock: LockId) -> usize {
    lock.0 as usize
}

pub(crate) type Checked = Result<(), String>;

impl World {
    pub(crate) fn new(script: Script) -> World {
        let versions = vec![Version(0); script.locks as usize];
        let mut service = Service::new(Grant(0), (0..script.locks).map(|lock| (LockId(lock), Version(0))));
        let ceiling = service.ceiling_wanted().expect("nothing is reserved yet");
        service.ceiling_stored(ceiling);
        let node = |txns: &Vec<Vec<Step>>| {
            let mut cache = Cache::new();
            cache.linked(Time(0), Number(0));
            cache.renewed(Time(0), Time(LEASE));
            Node {
                standing: Standing::Alive,
                linked: true,
                now: Time(0),
                cache,
                txns: vec![Txn::default(); txns.len()],
                journal: Vec::new(),
                sent: 0,
                merged: 0,
                came: 0,
                known: None,
                kept: 0,
                up: VecDeque::new(),
                down: VecDeque::new(),
            }
        };
        World {
            service,
            ceiling,
            nodes: script.nodes.iter().map(node).collect(),
            truth: versions.clone(),
            kept: versions,
            told: vec![Grant(0); script.locks as usize],
            left: Script {
                nodes: Vec::new(),
                ..script.clone()
            },
            script: std::rc::Rc::new(script),
        }
    }

    /// A number that two different worlds hardly share.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut mixer = Mixer(0);
        let left = &self.left;
        let left = (left.crashes, left.restarts, left.cuts, left.cancels, left.lapses);
        (&self.service, self.ceiling, &self.nodes, &self.kept, left).hash(&mut mixer);
        mixer.finish()
    }

    /// How many transactions did not get their locks.
    pub(crate) fn failed(&self) -> usize {
        let txns = self.nodes.iter().flat_map(|node| &node.txns);
        txns.filter(|txn| txn.failed).count()
    }

    /// What may happen next.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (node, state) in self.nodes.iter().enumerate() {
            match state.standing {
                Standing::Alive => self.actions_of(node, &mut actions),
                Standing::Crashed => actions.push(Action::Fence(node)),
                Standing::Fenced => match state.journal.get(state.merged) {
                    Some(record) if self.follows(record) => actions.push(Action::Read(node)),
                    Some(_) => {}
                    None => actions.push(Action::Reclaim(node)),
                },
                Standing::Gone => {}
            }
        }
        if self.left.restarts > 0 {
            actions.push(Action::Restart { lost: false });
            actions.push(Action::Restart { lost: true });
        }
        actions
    }

    fn actions_of(&self, node: usize, actions: &mut Vec<Action>) {
        let state = &self.nodes[node];
        for (txn, it) in state.txns.iter().enumerate() {
            if !it.over && !it.waits {
                actions.push(Action::Step { node, txn });
            }
            if it.waits && self.left.cancels > 0 {
                actions.push(Action::Cancel { node, txn });
            }
        }
        if state.linked {
            if state.sent < state.journal.len() {
                actions.push(Action::SendTail(node));
            }
            if !state.up.is_empty() {
                actions.push(Action::ToServer(node));
            }
            if !state.down.is_empty() {
                actions.push(Action::ToNode(node));
            }
            if self.left.cuts > 0 {
                actions.push(Action::Cut(node));
            }
        } else {
            actions.push(Action::Link(node));
        }
        if !state.cache.leased(state.now) {
            actions.push(Action::Renew(node));
        } else if self.left.lapses > 0 {
            actions.push(Action::Lapse(node));
        }
        if self.left.crashes > 0 {
            actions.push(Action::Crash(node));
        }
    }

    pub(crate) fn version(&self, lock: LockId) -> Version {
        self.service.version(lock).expect("it is one of the region's")
    }

    fn follows(&self, record: &Record) -> bool {
        let mut written = record.written.iter();
        let mut read = record.read.iter();
        written.all(|(lock, version)| *version == self.version(*lock).next())
            && read.all(|(lock, version)| *version <= self.version(*lock))
    }

    fn merge(&mut self, record: &Record) -> Checked {
        // Links are as fast as they like after a start of the server, and a reader's record may come after a later writer's.
        let late = |(lock, version): &(LockId, Version)| *version < self.version(*lock);
        if self.left.restarts == self.script.restarts && record.read.iter().any(late) {
            return Err("a token was handed on before the record of one that had read under it".into());
        }
        for (lock, version) in &record.written {
            let wrote = self.service.wrote(*lock, *version);
            wrote.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Does one thing, and checks all that must hold at any time.
    pub(crate) fn act(&mut self, action: Action) -> Checked {
        match action {
            Action::Step { node, txn } => self.step(node, txn)?,
            Action::SendTail(node) => {
                let state = &mut self.nodes[node];
                state.up.push_back(Up::Tail(state.sent));
                state.sent += 1;
                state.cache.sent(state.now, Number(state.sent as u64));
            }
            Action::ToServer(node) => self.deliver(node)?,
            Action::ToNode(node) => {
                let state = &mut self.nodes[node];
                if let Some(message) = state.down.pop_front() {
                    let handled = state.cache.handle(state.now, message);
                    handled.map_err(|error| error.to_string())?;
                }
            }
            Action::Cut(node) => {
                self.left.cuts -= 1;
                self.cut(node);
            }
            Action::Link(node) => self.link(node),
            Action::Crash(node) => {
                self.left.crashes -= 1;
                self.cut(node);
                self.nodes[node].standing = Standing::Crashed;
            }
            Action::Fence(node) => {
                self.service.fence(id(node));
                self.nodes[node].standing = Standing::Fenced;
            }
            Action::Read(node) => self.read(node)?,
            Action::Reclaim(node) => self.reclaim(node),
            Action::Restart { lost } => self.restart(lost),
            Action::Cancel { node, txn } => {
                self.left.cancels -= 1;
                let state = &mut self.nodes[node];
                if let Some(txn) = state.txns[txn].id {
                    state.cache.cancel(state.now, txn);
                }
                self.fail(node, txn);
            }
            Action::Lapse(node) => {
                self.left.lapses -= 1;
                self.nodes[node].now.0 += LEASE;
            }
            Action::Renew(node) => {
                let state = &mut self.nodes[node];
                state.cache.renewed(state.now, Time(state.now.0 + LEASE));
            }
        }
        self.settle()?;
        self.check()
    }

    fn step(&mut self, node: usize, txn: usize) -> Checked {
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
            Step::Lock(lock, hold) => state.cache.acquire(now, id, LockId(*lock), *hold, NEVER),
            Step::All(locks) => {
                let mut locks: Vec<_> = locks.iter().map(|(lock, hold)| (LockId(*lock), *hold)).collect();
                state.cache.acquire_all(now, id, &mut locks, NEVER)
            }
        };
        match acquired {
            Ok(Acquired::Held) => state.txns[txn].at += 1,
            Ok(Acquired::Waits) => state.txns[txn].waits = true,
            Err(AcquireError::Died(_) | AcquireError::OutOfOrder(_)) => self.fail(node, txn),
            Err(error) => return Err(format!("node {node}, transaction {txn}: {error}")),
        }
        Ok(())
    }

    /// Writes under all that it has alone; its record is safe at once, and sent some time later.
    fn commit(&mut self, node: usize, txn: usize, id: TxnId) -> Checked {
        let state = &mut self.nodes[node];
        let held: Vec<_> = state.cache.held(id).collect();
        let mut record = Record {
            written: Vec::new(),
            read: Vec::new(),
        };
        for held in held {
            match held.hold {
                Hold::Shared => record.read.push((held.lock, held.version)),
                Hold::Exclusive => {
                    let version = state.cache.wrote(id, held.lock).ok_or("it has the lock alone")?;
                    record.written.push((held.lock, version));
                    if version != self.truth[at(held.lock)].next() {
                        return Err(format!(
                            "node {node} makes version {version} of lock {}",
                            held.lock
                        ));
                    }
                    self.truth[at(held.lock)] = version;
                }
            }
        }
        let number = (!record.written.is_empty()).then(|| {
            state.journal.push(record);
            Number(state.journal.len() as u64)
        });
        state.cache.end(state.now, id, number);
        state.txns[txn] = Txn {
            over: true,
            ..Txn::default()
        };
        Ok(())
    }

    fn fail(&mut self, node: usize, txn: usize) {
        let state = &mut self.nodes[node];
        if let Some(id) = state.txns[txn].id {
            state.cache.end(state.now, id, None);
        }
        state.txns[txn] = Txn {
            over: true,
            failed: true,
            ..Txn::default()
        };
    }

    fn deliver(&mut self, node: usize) -> Checked {
        let state = &mut self.nodes[node];
        match state.up.pop_front() {
            Some(Up::Claim(claim)) => {
                let claimed = self.service.claim(id(node), claim);
                match claimed {
                    Ok(void) if void.is_empty() => Ok(()),
                    Ok(void) => Err(format!("{claim:?} excludes the claims of {void:?}")),
                    Err(error) => Err(error.to_string()),
                }
            }
            Some(Up::Tail(number)) => {
                state.came = number + 1;
                Ok(())
            }
            Some(Up::Known) => {
                state.known = Some(state.came);
                Ok(())
            }
            Some(Up::Lock(message)) => {
                let handled = self.service.handle(id(node), message);
                handled.map_err(|error| format!("{message:?}: {error}"))
            }
            None => Ok(()),
        }
    }

    fn cut(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        state.linked = false;
        state.came = state.merged;
        state.known = None;
        state.up.clear();
        state.down.clear();
        state.cache.unlinked();
    }

    /// A new link: the server drops what it was asked over the old one; the records that it has not, claims, and their end.
    fn link(&mut self, node: usize) {
        self.service.resume(id(node));
        let state = &mut self.nodes[node];
        state.linked = true;
        let again = state.merged..state.journal.len();
        state.up.extend(again.map(Up::Tail));
        state.up.extend(state.cache.claims().map(Up::Claim));
        state.up.push_back(Up::Known);
        state.sent = state.journal.len();
        state.cache.linked(state.now, Number(state.sent as u64));
    }

    fn read(&mut self, node: usize) -> Checked {
        let state = &mut self.nodes[node];
        let record = state.journal[state.merged].clone();
        state.merged += 1;
        self.merge(&record)
    }

    fn reclaim(&mut self, node: usize) {
        self.nodes[node].standing = Standing::Gone;
        self.service.reclaim(id(node));
        self.keep();
    }

    fn keep(&mut self) {
        for lock in 0..self.script.locks {
            self.kept[lock as usize] = self.version(LockId(lock));
        }
        for node in &mut self.nodes {
            node.kept = node.merged;
        }
    }

    fn restart(&mut self, lost: bool) {
        self.left.restarts -= 1;
        if !lost {
            self.keep();
        }
        let kept = self.kept.iter().enumerate();
        self.service = Service::new(
            self.ceiling,
            kept.map(|(lock, version)| (LockId(lock as u32), *version)),
        );
        for node in 0..self.nodes.len() {
            self.nodes[node].merged = self.nodes[node].kept;
            self.nodes[node].came = self.nodes[node].kept;
            match self.nodes[node].standing {
                Standing::Alive => {
                    self.cut(node);
                    self.service.expect(id(node));
                }
                Standing::Crashed => self.service.expect(id(node)),
                Standing::Fenced => {
                    self.service.expect(id(node));
                    self.service.fence(id(node));
                }
                Standing::Gone => {}
            }
        }
    }

    /// Merges what has come and may go, until nothing may.
    fn merge_all(&mut self) -> Checked {
        let mut again = true;
        while again {
            again = false;
            for node in 0..self.nodes.len() {
                let state = &self.nodes[node];
                if state.merged < state.came && self.follows(&state.journal[state.merged]) {
                    self.read(node)?;
                    again = true;
                }
                let state = &mut self.nodes[node];
                if state.known.is_some_and(|known| known <= state.merged) {
                    state.known = None;
                    self.service.known(id(node));
                }
            }
        }
        Ok(())
    }

    /// Carries out what the machines want.
    fn settle(&mut self) -> Checked {
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
                if grant <= self.told[at(lock)] {
                    return Err(format!("grant {grant} of lock {lock} is told again"));
                }
                if version != self.truth[at(lock)] {
                    return Err(format!("lock {lock} is handed on at version {version}"));
                }
                self.told[at(lock)] = grant;
            }
            let node = &mut self.nodes[to.0 as usize - 1];
            if node.linked {
                node.down.push_back(message);
            }
        }
        Ok(())
    }

    fn event(&mut self, node: usize, event: Event) -> Checked {
        let state = &mut self.nodes[node];
        let of = |id: TxnId| {
            let mut txns = state.txns.iter();
            let found = txns.position(|txn| txn.id == Some(id) && txn.waits);
            found.ok_or(format!("{event:?} for one that does not wait"))
        };
        match event {
            Event::Send(message) => {
                if !state.linked || state.standing != Standing::Alive {
                    return Err(format!("{message:?} is sent without a link"));
                }
                state.up.push_back(Up::Lock(message));
            }
            Event::Held(id) => {
                let txn = of(id)?;
                state.txns[txn].waits = false;
                state.txns[txn].at += 1;
            }
            Event::Died(id, _) | Event::TimedOut(id, _) => {
                let txn = of(id)?;
                if self.script.no_restore {
                    return Err(format!("{event:?}, and it cannot be undone"));
                }
                self.fail(node, txn);
                while let Some(event) = self.nodes[node].cache.poll() {
                    self.event(node, event)?;
                }
            }
            Event::Lost(_) => return Err(format!("{event:?} without a reason")),
        }
        Ok(())
    }
}
