//! How long a page may be waited for: not until a lender that is silent is given up, if another one has it
//! and answers.

use netram_far_machine::deposit::Page;
use netram_far_machine::limit::HEDGE_MAX;
use netram_proto::time::{Span, Time};

use super::World;
use crate::check;

/// What is left then is a round trip, behind what is in front of it.
const PATIENCE: Span = Span(HEDGE_MAX.0 + 500_000_000);

impl World {
    /// A page comes in time from whoever has it and could have answered for so long.
    pub(super) fn looks_at_who_waits(&mut self, arena: usize) {
        // What was held up when all became well is held up for a while.
        let Some(owner) = self.arenas[arena].as_ref().filter(|_| !self.calm) else {
            return;
        };
        let mut twice = 0;
        for (page, since) in &owner.waiting {
            twice += u64::from(owner.depot().asked(*page).iter().count() > 1);
            let mut places = owner.depot().places(*page).filter(|(.., held)| *held);
            let had = places.find(|(lender, ..)| {
                let able = self.able_since(arena, *lender);
                able.is_some_and(|able| self.now.since(able.max(*since)) > PATIENCE)
            });
            if let Some((lender, ..)) = had {
                self.waits_too_long(arena, *page, *since, lender);
            }
        }
        self.coverage.add("far: pages asked for twice", twice);
    }

    /// Since when a lender could have answered all that it was asked. `None`: it cannot.
    fn able_since(&self, arena: usize, lender: usize) -> Option<Time> {
        let conns = &self.arenas[arena].as_ref()?.conns;
        let conn = &self.conns[(*conns.get(lender)?)?];
        let machine = &self.machines[lender];
        let stands = conn.open && !conn.broken && machine.up && machine.boot == conn.boot;
        let able = { conn.since }
            .max(machine.paused_until)
            .max(self.blocked[arena][lender]);
        (stands && !machine.is_hostile()).then_some(able)
    }

    fn waits_too_long(&self, arena: usize, page: Page, since: Time, lender: usize) -> ! {
        let ms = self.now.since(since).0 / 1_000_000;
        check::fail(
            0,
            format!("owner {arena} has waited {ms} ms for {page:?}, and lender {lender} has it"),
        );
    }
}
