//! Lenders' machines: each lends windows to any number of journals.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use netram_proto::id::{Epoch, Incarnation, JournalId};
use netram_proto::journal::{View, ViewMember};
use netram_proto::planted::FaultSwitch;
use netram_proto::time::Time;

use super::kernel::RegionKernel;
use crate::lender::{PacketOutcome, SimLender};
use crate::lenders::lender_at;
use crate::rng::Rng;

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
    fn new(index: usize, incarnation: Incarnation, roomy: bool) -> RegionLender {
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

    /// Kills its process.
    fn kill(&mut self) {
        self.up = false;
        self.boot += 1;
        self.windows.values_mut().for_each(SimLender::kill);
    }

    /// Kills its machine; its next memory is `next`.
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

/// All lenders of a region, by number.
pub(super) struct RegionLenders {
    lenders: Vec<RegionLender>,
    /// The newest incarnation that any memory has.
    newest: u64,
}

impl RegionLenders {
    /// Lenders with empty memory.
    pub(super) fn new(rng: &mut Rng, count: usize) -> RegionLenders {
        let roomy = rng.pick(&[0, 0, 300, 1000]);
        let lenders = (0..count)
            .map(|index| RegionLender::new(index, Incarnation(index as u64 + 1), rng.chance(roomy)));
        RegionLenders {
            lenders: lenders.collect(),
            newest: count as u64,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lenders.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RegionLender> {
        self.lenders.iter()
    }

    /// The lenders' addresses, as the settings have them.
    pub(super) fn addresses(&self) -> Vec<String> {
        (0..self.lenders.len()).map(|index| format!("l{index}")).collect()
    }

    /// Kills a lender's process; with `memory`, its machine.
    pub(super) fn kill(&mut self, lender: usize, memory: bool) {
        let next = self.next_incarnation();
        match memory {
            true => self.lenders[lender].lose(next),
            false => self.lenders[lender].kill(),
        }
    }

    /// Starts a lender's process, unless it runs.
    pub(super) fn start(&mut self, kernel: &mut RegionKernel, lender: usize) {
        if self.lenders[lender].up {
            return;
        }
        self.lenders[lender].up = true;
        let journals: Vec<JournalId> = self.lenders[lender].windows.keys().copied().collect();
        for journal in journals {
            let next = self.next_incarnation();
            let window = self.lenders[lender].window(journal);
            window.start(journal, next, kernel.planted());
        }
        kernel.tell(|| format!("lender {lender} is up"));
    }

    /// Ends all pauses.
    pub(super) fn heal(&mut self) {
        for lender in &mut self.lenders {
            lender.paused_until = Time(0);
        }
    }

    /// Number of members of `view` that still have the memory they held for it.
    pub(super) fn intact(&self, view: &View) -> usize {
        view.members
            .iter()
            .filter(|member| self.has_kept(view, member))
            .count()
    }

    /// The same without one lender.
    pub(super) fn intact_without(&self, view: &View, lender: usize) -> usize {
        let its = |member: &&ViewMember| lender_at(&member.address) == lender && self.has_kept(view, member);
        self.intact(view) - view.members.iter().filter(its).count()
    }

    fn has_kept(&self, view: &View, member: &ViewMember) -> bool {
        self.lenders[lender_at(&member.address)].is_intact(member, view.journal)
    }

    fn next_incarnation(&mut self) -> Incarnation {
        self.newest += 1;
        Incarnation(self.newest)
    }
}

impl Index<usize> for RegionLenders {
    type Output = RegionLender;

    fn index(&self, lender: usize) -> &RegionLender {
        &self.lenders[lender]
    }
}

impl IndexMut<usize> for RegionLenders {
    fn index_mut(&mut self, lender: usize) -> &mut RegionLender {
        &mut self.lenders[lender]
    }
}
