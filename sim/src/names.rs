//! Addresses: which lender each leads to, and how that changes. A machine knows addresses; what a lender is, its memory says.

use netram_proto::journal::ViewMember;

use crate::process::lender_at;
use crate::world::World;

impl World {
    /// The lenders' addresses, as the settings have them.
    pub(crate) fn addresses(&self) -> Vec<String> {
        (0..self.lives.len()).map(|index| format!("l{index}")).collect()
    }

    /// The lender whose memory a view means; a liar may have given any, and is known by its address.
    pub(crate) fn lender_of(&self, member: &ViewMember) -> usize {
        let life = member.incarnation;
        let is = |lender: &crate::lender::Lender| {
            lender.incarnation == life || lender.lives.iter().any(|(past, _)| *past == life)
        };
        let named = || self.lives.get(lender_at(&member.address)).copied().flatten();
        self.lenders
            .iter()
            .position(is)
            .or_else(named)
            .unwrap_or_default()
    }

    /// A lender is reached by another address from now on: one that led nowhere, or another lender's.
    pub(crate) fn move_lender(&mut self) {
        let (one, other) = (self.rng.index(self.lives.len()), self.rng.index(self.lives.len()));
        if self.lives[one] == self.lives[other] {
            return;
        }
        self.coverage.hit("nemesis: lenders moved");
        self.tell(|| format!("what was at l{one} is at l{other} now, and the other way round"));
        for lender in [self.lives[one], self.lives[other]].into_iter().flatten() {
            for conn in self.conns_to(lender) {
                self.break_conn(conn);
            }
        }
        self.lives.swap(one, other);
    }
}
