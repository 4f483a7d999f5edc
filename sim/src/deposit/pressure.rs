//! Lenders that reclaim lent slots, and the rules that hold when they do.

use netram_far_machine::deposit::{DepositServer, Page};
use netram_proto::time::Nanos;
use netram_proto::wire::Frame;

use super::net::DepositConnection;
use super::{Event, World};
use crate::check;
use crate::event::FrameDirection;

impl World {
    /// Makes a lender reclaim a part of its lent slots for a while.
    pub(super) fn press(&mut self, lender: usize, span: Nanos) {
        let machine = &mut self.machines[lender];
        if !machine.up {
            return;
        }
        let limit = self.rng.between(0, machine.slots_used().into()) as u32;
        machine.limit = Some(limit);
        machine.limit_changes += 1;
        let turn = machine.limit_changes;
        self.tell(|| format!("lender {lender} wants to lend {limit} slots only"));
        self.coverage.hit("far: lenders under pressure");
        let machine = lender;
        self.at(span, Event::PressureEnd { machine, turn });
    }

    pub(super) fn on_pressure_end(&mut self, lender: usize, turn: u64) {
        if self.machines[lender].limit_changes == turn {
            self.machines[lender].limit = None;
        }
    }

    /// Sends the lenders' reclaims, and their ends.
    pub(super) fn send_reclaims(&mut self) {
        for conn in 0..self.conns.len() {
            let DepositConnection {
                lender,
                life,
                epoch,
                open,
                ..
            } = self.conns[conn];
            let machine = &mut self.machines[lender];
            if !open || !machine.up || machine.paused_until > self.now {
                continue;
            }
            let id = super::owner::deposit_of(life);
            if let Some(wish) = machine.poll_reclaim(id, epoch) {
                self.coverage.hit("far: wishes for slots told");
                self.send(conn, FrameDirection::Down, wish.encode(0).to_vec());
            }
        }
    }

    /// Checks slots before they are released: their owner counts on none of the pages in them, and each page
    /// has another copy.
    pub(super) fn check_released_slots(&mut self, conn: usize, frame: &Frame<'_>) {
        let DepositConnection {
            arena, lender, life, ..
        } = self.conns[conn];
        let (id, keep) = (super::owner::deposit_of(life), frame.header.lsn.0);
        let Some(owner) = self.arenas[arena].as_ref().filter(|owner| owner.life == life) else {
            return;
        };
        let Some(holder) = self.machines[lender].deposit(id) else {
            return;
        };
        if frame.header.epoch != holder.epoch() || keep >= u64::from(holder.slots()) {
            return;
        }
        let keep = keep as u32;
        let is_gone = |page: Page| {
            let mut places = owner.directory().places(page);
            places.any(|(at, slot, _)| at == lender && slot >= keep)
        };
        let has = |holder: &DepositServer, below: u32, version| {
            (0..holder.slots().min(below)).any(|slot| holder.version(slot) == Some(version))
        };
        let is_nowhere = |page: Page, version| {
            let machines = self.machines.iter().enumerate();
            let mut holders = machines.filter_map(|(at, machine)| Some((at, machine.deposit(id)?)));
            let lent =
                holders.any(|(at, other)| has(other, if at == lender { keep } else { u32::MAX }, version));
            let file = owner.disk.as_ref().map(|disk| disk.spill.server());
            !lent
                && !file.is_some_and(|file| has(file, u32::MAX, version))
                && !owner.directory().is_pending(page)
        };
        let versions: Vec<u64> = (keep..holder.slots())
            .filter_map(|slot| holder.version(slot))
            .collect();
        for page in owner.pages() {
            let Some(version) = owner.directory().version(page) else {
                continue;
            };
            if is_gone(page) {
                self.fail(format!(
                    "owner {arena} gives up slots from {keep} on of lender {lender}, with {page:?}"
                ));
            }
            if self.profile.within_budget && versions.contains(&version) && is_nowhere(page, version) {
                self.fail(format!(
                    "owner {arena} gives up the last copy of {page:?}, at lender {lender}"
                ));
            }
        }
        self.coverage.hit("far: slots given up");
        if self.machines[lender].limit.is_some() && keep > 0 {
            self.coverage.hit("far: slots given up that were wanted back");
        }
    }

    /// Makes one lender reclaim half of its slots, with all else well. It gets them if the pages fit
    /// elsewhere, and its owners get more when it lends them again.
    pub(super) fn press_one(&mut self, patience: Nanos) {
        let Some(lender) = (0..self.machines.len()).max_by_key(|lender| self.machines[*lender].slots_used())
        else {
            return;
        };
        let limit = self.machines[lender].slots_used() / 2;
        self.machines[lender].limit = Some(limit);
        self.tell(|| format!("lender {lender} wants half of its slots back"));
        self.run_for(patience);
        let ample = self.profile.slots_max > self.profile.pages;
        let others = if ample { self.machines.len() - 1 } else { 0 };
        let file = usize::from(self.profile.spill > self.profile.pages);
        let lent = self.machines[lender].slots_used();
        if others + file >= self.profile.copies && self.profile.hostile.is_none() && lent > limit {
            check::fail(
                0,
                format!("lender {lender} has not got back what it wants: {lent} slots, not {limit}"),
            );
        }
        self.machines[lender].limit = None;
        self.run_for(patience);
    }
}
