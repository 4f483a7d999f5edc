//! State that must hold once no more faults happen.

use std::collections::BTreeSet;

use netram_proto::time::{Nanos, Time};

use super::{LEASE, World};
use crate::check;

/// Longest time until quiescence. By then every link is up and every page has its copies: a disk that began
/// to stall at the last moment is given up within 7 s and opened again after 2.5 s.
const QUIESCE_MAX: Nanos = Nanos::from_ms(10_000);

impl World {
    pub(super) fn quiesce(&mut self) {
        self.faults_over = true;
        // Operators cancel the withdrawals.
        let leaving = (0..self.machines.len()).filter(|lender| self.machines[*lender].leaving);
        { leaving }
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|lender| self.break_conns_to(lender));
        for (machine, room) in self.machines.iter_mut().zip(&self.profile.room) {
            machine.up = true;
            machine.room = *room;
            machine.paused_until = Time(0);
            machine.leaving = false;
            machine.limit = None;
        }
        self.heal_disks();
        for row in &mut self.blocked {
            row.fill(Time(0));
        }
        self.run_for(QUIESCE_MAX);
        (0..self.arenas.len()).for_each(|arena| self.check_owner(arena));
        self.press_one(QUIESCE_MAX);
        for arena in 0..self.arenas.len() {
            self.check_owner(arena);
            self.fetch_all(arena);
        }
        self.run_for(QUIESCE_MAX);
        for arena in self.arenas.iter().flatten() {
            if !arena.waiting.is_empty() {
                check::fail(0, format!("pages never came: {:?}", arena.waiting));
            }
            if !arena.gathers.is_empty() {
                check::fail(0, format!("blocks never came: {:?}", arena.gathers));
            }
        }
        self.end();
        self.coverage.hit("far: worlds at rest");
    }

    /// Checks that every slot is free or has a page of this owner, and that every page has its copies if
    /// there is room.
    fn check_owner(&self, arena: usize) {
        let Some(owner) = &self.arenas[arena] else {
            return;
        };
        let status = owner.directory().status();
        let file = owner.disk.as_ref().map(|disk| disk.spill.server().slots());
        for (index, lender) in { status.lenders.iter() }.chain(&status.spill).enumerate() {
            if !lender.linked {
                check::fail(0, format!("owner {arena} never reconnected to lender {index}"));
            }
            let mut slots: Vec<u32> = owner.directory().free_slots(index).collect();
            for page in owner.pages() {
                let places = owner.directory().places(page);
                slots.extend(
                    places
                        .filter(|(lender, ..)| *lender == index)
                        .map(|(_, slot, _)| slot),
                );
            }
            let different: BTreeSet<u32> = slots.iter().copied().collect();
            let all = different.len() == lender.slots as usize
                && different.last().is_none_or(|last| *last < lender.slots);
            if different.len() != slots.len() || !all {
                self.fail(format!(
                    "owner {arena}: slots of lender {index} leaked or used twice"
                ));
            }
            let held = match self.machines.get(index) {
                Some(machine) => machine.deposit(owner.id).map(|holder| holder.slots()),
                None => file,
            };
            if held != Some(lender.slots) {
                self.fail(format!(
                    "lender {index} has {held:?} slots, owner {arena} knows of {}",
                    lender.slots
                ));
            }
        }
        let lenders = match self.profile.slots_max > self.profile.pages {
            true => self.profile.lenders,
            false => 0,
        };
        let file = self.profile.spill > self.profile.pages;
        let roomy = lenders + usize::from(file) >= self.profile.copies;
        let spilled = status.spill.as_ref().map_or(0, |file| file.used);
        if lenders >= self.profile.copies && self.profile.hostile.is_none() && spilled > 0 {
            check::fail(
                0,
                format!("owner {arena}: {spilled} pages stay in the spill file, and lenders have room"),
            );
        }
        if roomy && self.profile.hostile.is_none() && (status.short > 0 || owner.pending_pages() > 0) {
            check::fail(
                0,
                format!(
                    "owner {arena}: {} pages short, {} aside, and there is room",
                    status.short,
                    owner.pending_pages()
                ),
            );
        }
    }

    fn fetch_all(&mut self, arena: usize) {
        let pages = self.arenas[arena].as_ref().map(|owner| owner.pages());
        for page in pages.unwrap_or_default() {
            let here =
                |owner: &super::DepositOwner| owner.is_resident(page) || owner.waiting.contains_key(&page);
            if !self.arenas[arena].as_ref().is_some_and(here) {
                self.fault(arena, page);
                self.settle(arena);
            }
        }
    }

    /// Ends all owners. After the lease no slot of theirs is left.
    fn end(&mut self) {
        for arena in 0..self.arenas.len() {
            for conn in self.arenas[arena]
                .take()
                .into_iter()
                .flat_map(|owner| owner.conns)
                .flatten()
            {
                self.on_closed(conn);
            }
        }
        self.run_for(LEASE);
        self.run_for(Nanos::from_ms(2000));
        if let Some(lender) = self.machines.iter().position(|machine| machine.slots_used() > 0) {
            self.fail(format!("lender {lender} still has slots of owners that are gone"));
        }
    }
}
