//! What a region's world is about. Each story has one thing happen again and again, beside whatever else visits the world.

use netram_proto::time::Span;
use netram_shared_machine::{Hold, LockId};

use super::nature::{Action, LEASE, Nature};
use super::process::Phase;
use super::{Event, World};
use crate::rng::Rng;

/// A lock of a dead node is somebody else's after so long: its lease, a reading, and queues.
const FAILOVER_MAX: Span = Span::from_ms(4000);

/// A sleeper that wakes up has no server for so long, and a commit of its own to end.
const AWAKE_ALONE: Span = Span::from_ms(200);

/// The stories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Story {
    /// Whatever comes.
    Any,
    /// Server and nodes die at once, when the disk has little: several journals are merged anew.
    Logs,
    /// Logs and windows are small and worn many times over.
    Trimming,
    /// Nodes leave and join while others write.
    Joining,
    /// Who dies has tokens.
    Holder,
    /// The server dies.
    Server,
    /// Members die, and lose what they held.
    Member,
    /// Nodes sleep longer than their lease, with a transaction open, and wake: perhaps while their journal is read.
    Sleeper,
}

impl Story {
    pub(super) fn draw(rng: &mut Rng) -> Story {
        match rng.below(12) {
            0 => Story::Logs,
            1 => Story::Trimming,
            2 => Story::Joining,
            3 => Story::Holder,
            4 => Story::Server,
            5 => Story::Member,
            6 => Story::Sleeper,
            _ => Story::Any,
        }
    }

    /// Makes a world one of this story.
    pub(super) fn suit(self, nature: &mut Nature) {
        match self {
            Story::Any => return,
            Story::Trimming => {
                nature.window = 8 * 1024;
                nature.capacity = 16 * 1024;
                nature.latency_us = (20, 60);
                nature.lasts = Span::from_ms(2500);
                nature.actions.clear();
            }
            Story::Holder => nature.actions.clear(),
            Story::Logs => nature.disk_us = (5000, 20_000),
            Story::Member => nature.with_spare_member(),
            Story::Sleeper => {
                nature.thinks_permille = 980;
                nature.last_words_permille = 1000;
            }
            Story::Joining | Story::Server => (),
        }
        nature.beyond = false;
        let often = |action: &Action| !matches!(action, Action::LoseLender | Action::PowerCut);
        nature.actions.retain(often);
        nature.lasts = nature.lasts.max(Span::from_ms(800));
    }

    fn every(self) -> u64 {
        match self {
            Story::Any | Story::Trimming => 10_000,
            Story::Logs | Story::Holder | Story::Sleeper => 400,
            Story::Member => 250,
            Story::Joining | Story::Server => 120,
        }
    }
}

impl World {
    pub(super) fn plan_story(&mut self) {
        let every = self.nature.story.every();
        let ms = self.rng.between(every / 2, every);
        self.after_ms(ms, Event::Story);
    }

    pub(super) fn on_story(&mut self) {
        if self.calm_since.is_some() {
            return;
        }
        let slot = self.rng.index(self.slots.len());
        match self.nature.story {
            Story::Any | Story::Trimming => (),
            Story::Logs => self.everything_dies(),
            Story::Joining => {
                let now = self.local(slot);
                if let Some(process) = &mut self.slots[slot].process
                    && process.is_whole()
                {
                    process.node.leave();
                    process.node.on_tick(now);
                    self.settle(slot);
                }
            }
            Story::Holder => self.holder_dies(),
            Story::Server => self.kill_server(),
            Story::Member => self.member_dies(),
            Story::Sleeper => self.somebody_sleeps(),
        }
        self.plan_story();
    }

    fn everything_dies(&mut self) {
        self.coverage.hit("region: deaths of everything but the lenders");
        self.kill_server();
        for slot in 0..self.slots.len() {
            let power_cut = self.rng.chance(500);
            self.kill_process(slot, power_cut);
        }
    }

    /// A lock that a slot's transaction has for itself.
    fn alone(&self, slot: usize) -> Option<LockId> {
        let process = self.slots[slot].process.as_ref()?;
        let open = |phase| matches!(phase, Phase::Ready | Phase::Committing(_));
        let txns = process.txns.iter().filter(|txn| open(txn.phase));
        let mut held = txns.flat_map(|txn| process.node.tokens().held(txn.id));
        let held = held.find(|held| held.hold == Hold::Exclusive);
        held.map(|held| held.lock)
    }

    /// A node dies that has a token, and another one wants it.
    fn holder_dies(&mut self) {
        let holders: Vec<(usize, LockId)> = (0..self.slots.len())
            .filter_map(|slot| Some((slot, self.alone(slot)?)))
            .collect();
        if holders.is_empty() {
            return;
        }
        let (slot, lock) = holders[self.rng.index(holders.len())];
        let other = (slot + 1) % self.slots.len();
        let whole = self.slots[other].process.as_ref();
        if !whole.is_some_and(|process| process.is_whole()) {
            return;
        }
        self.coverage.hit("region: nodes that died with a token");
        let power_cut = self.rng.chance(300);
        self.kill_process(slot, power_cut);
        self.begin_to_write(other, lock, FAILOVER_MAX);
        self.settle(other);
    }

    fn member_dies(&mut self) {
        let machine = self.rng.index(self.machines.len());
        let memory = self.rng.chance(700);
        if !memory || self.can_spare(machine) {
            self.kill_machine(machine, memory);
        }
    }

    fn somebody_sleeps(&mut self) {
        let open = |slot: &usize| self.alone(*slot).is_some();
        let sleepers: Vec<usize> = (0..self.slots.len()).filter(open).collect();
        if !sleepers.is_empty() {
            let slot = sleepers[self.rng.index(sleepers.len())];
            let extra = Span::from_ms(self.rng.pick(&[10, 100, 300, 1500]));
            self.sleep(slot, Span(LEASE.0 + extra.0));
            self.coverage.hit("region: nodes that slept with a token");
            // Its lenders notice, and when it wakes up it comes to them anew before it hears of its server: perhaps to some that have
            // forgotten it.
            if self.rng.chance(500) {
                self.slots[slot].cut_off_until = self.now + Span(LEASE.0 + extra.0) + AWAKE_ALONE;
                let conns: Vec<usize> = (0..self.nature.lenders)
                    .filter_map(|index| self.slots[slot].conn(index))
                    .collect();
                conns.into_iter().for_each(|conn| self.break_conn(conn));
            }
        }
    }
}
