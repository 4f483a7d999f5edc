//! How long a page may be waited for: not until a lender that is silent is given up, if another one has it
//! and answers.

use netram_far_machine::deposit::Page;
use netram_far_machine::limit::HEDGE_MAX;
use netram_proto::time::{Nanos, Time};

use super::World;
use crate::check;

/// What is left then is a round trip, behind what is in front of it.
const WAIT_MAX: Nanos = Nanos(HEDGE_MAX.0 + 500_000_000);

impl World {
    /// A page comes in time from whoever has it and could have answered for so long.
    pub(super) fn check_waits(&mut self, arena: usize) {
        // What was held up when all became well is held up for a while.
        let Some(owner) = self.arenas[arena].as_ref().filter(|_| !self.faults_over) else {
            return;
        };
        let mut twice = 0;
        for (page, since) in &owner.waiting {
            twice += u64::from(owner.directory().asked(*page).iter().count() > 1);
            let mut places = owner.directory().places(*page).filter(|(.., held)| *held);
            let had = places.find(|(lender, ..)| {
                let able = self.answerable_since(arena, *lender);
                able.is_some_and(|able| self.now.since(able.max(*since)) > WAIT_MAX)
            });
            if let Some((lender, ..)) = had {
                self.fail_long_wait(arena, *page, *since, lender);
            }
        }
        self.coverage.add("far: pages asked for twice", twice);
    }

    /// Since when a lender could have answered all that it was asked. `None`: it cannot.
    fn answerable_since(&self, arena: usize, lender: usize) -> Option<Time> {
        let conns = &self.arenas[arena].as_ref()?.conns;
        let conn = &self.conns[(*conns.get(lender)?)?];
        let machine = &self.machines[lender];
        let stands = conn.open && !conn.broken && machine.up && machine.boot == conn.boot;
        let able = { conn.since }
            .max(machine.paused_until)
            .max(self.blocked[arena][lender]);
        (stands && !machine.is_hostile()).then_some(able)
    }

    fn fail_long_wait(&self, arena: usize, page: Page, since: Time, lender: usize) -> ! {
        let ms = self.now.since(since).0 / 1_000_000;
        check::fail(
            0,
            format!("owner {arena} has waited {ms} ms for {page:?}, and lender {lender} has it"),
        );
    }
}
