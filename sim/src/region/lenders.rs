//! Lenders' machines: each lends windows to any number of journals.

use std::collections::BTreeMap;

use netram_proto::id::{Epoch, Incarnation, JournalId};
use netram_proto::journal::{View, ViewMember};
use netram_proto::planted::FaultSwitch;
use netram_proto::time::Time;

use super::{Event, World};
use crate::lender::{PacketOutcome, SimLender};
use crate::lenders::lender_at;

pub(super) struct RegionLender {
    incarnation: Incarnation,
    domain: String,
    /// Whether it has so many slots that it never reuses one of a journal that is over.
    has_spare_slots: bool,
    windows: BTreeMap<JournalId, SimLender>,
    pub(super) up: bool,
    /// Number of its current process.
    pub(super) boot: u32,
    pub(super) paused_until: Time,
}

impl RegionLender {
    pub(super) fn new(index: usize, incarnation: Incarnation, roomy: bool) -> RegionLender {
        RegionLender {
            incarnation,
            domain: format!("d{index}"),
            has_spare_slots: roomy,
            windows: BTreeMap::new(),
            up: true,
            boot: 0,
            paused_until: Time(0),
        }
    }

    fn window(&mut self, journal: JournalId) -> &mut SimLender {
        let (domain, incarnation, roomy) = (&self.domain, self.incarnation, self.has_spare_slots);
        let window = self.windows.entry(journal);
        window.or_insert_with(|| {
            let mut lender = SimLender::new(domain.clone(), incarnation);
            lender.remembers = roomy;
            lender
        })
    }

    pub(super) fn on_packet(
        &mut self,
        conn: usize,
        packet: &[u8],
        journal: JournalId,
        planted: FaultSwitch,
    ) -> PacketOutcome {
        self.window(journal).on_packet(conn, packet, journal, planted)
    }

    pub(super) fn forget(&mut self, conn: usize, journal: JournalId) {
        self.window(journal).forget(conn);
    }

    fn kill(&mut self) {
        self.up = false;
        self.boot += 1;
        self.windows.values_mut().for_each(SimLender::kill);
    }

    fn lose(&mut self, next: Incarnation) {
        self.kill();
        self.incarnation = next;
        self.windows.values_mut().for_each(|window| window.lose(next));
    }

    /// Journals whose windows it has. Left out are those whose end it had forgotten when their old writers
    /// asked for a window; such a window stays until the memory's end.
    pub(super) fn windows(&self) -> impl Iterator<Item = JournalId> {
        let joined = |window: &SimLender| window.state().joined && !window.has_forgotten;
        let joined = self.windows.iter().filter(move |(_, window)| joined(window));
        joined.map(|(journal, _)| *journal)
    }

    /// Number of journals whose end it has forgotten, and of those whose old writers came later and got a
    /// window.
    pub(super) fn forgotten(&self) -> (usize, usize) {
        let forgotten = self.windows.values().filter(|window| window.has_forgotten);
        let haunted = forgotten.clone().filter(|window| window.state().epoch > Epoch(0));
        (forgotten.count(), haunted.count())
    }

    /// Whether its memory is still the one that a view names.
    fn is_intact(&self, member: &ViewMember, journal: JournalId) -> bool {
        let window = self.windows.get(&journal);
        window.is_some_and(|window| window.incarnation == member.incarnation && window.state().joined)
    }
}

impl World {
    /// Kills a lender's process; with `memory`, its machine.
    pub(super) fn kill_machine(&mut self, machine: usize, memory: bool) {
        if !self.machines[machine].up {
            return;
        }
        let next = self.next_incarnation();
        match memory {
            true => self.machines[machine].lose(next),
            false => self.machines[machine].kill(),
        }
        self.coverage.hit(match memory {
            true => "region: lenders whose memory was lost",
            false => "region: lenders whose process died",
        });
        self.tell(|| format!("lender {machine} dies, its memory too: {memory}"));
        self.break_conns_to(machine);
        let ms = self.rng.pick(&[5, 30, 300]);
        self.after_ms(ms, Event::MachineUp { machine });
    }

    pub(super) fn start_machine(&mut self, machine: usize) {
        if self.machines[machine].up {
            return;
        }
        let planted = self.planted;
        self.machines[machine].up = true;
        let journals: Vec<JournalId> = self.machines[machine].windows.keys().copied().collect();
        for journal in journals {
            let next = self.next_incarnation();
            self.machines[machine]
                .window(journal)
                .start(journal, next, planted);
        }
        self.tell(|| format!("lender {machine} is up"));
    }

    fn next_incarnation(&mut self) -> Incarnation {
        self.incarnations += 1;
        Incarnation(self.incarnations)
    }

    /// Number of members of `view` that still have the memory they held for it.
    pub(super) fn intact(&self, view: &View) -> usize {
        let is =
            |member: &&ViewMember| self.machines[lender_at(&member.address)].is_intact(member, view.journal);
        view.members.iter().filter(is).count()
    }

    /// Whether every journal that may still be read can be read without this lender.
    pub(super) fn can_spare(&self, machine: usize) -> bool {
        self.views().all(|view| {
            let its = |member: &&ViewMember| {
                let at = lender_at(&member.address);
                at == machine && self.machines[at].is_intact(member, view.journal)
            };
            let left = self.intact(view) - view.members.iter().filter(its).count();
            left >= view.answers()
        })
    }
}
