//! The lenders' addresses, which lender each leads to, and how that changes. A machine inside knows addresses
//! only; the lender's memory identifies itself.

use netram_proto::journal::ViewMember;

use crate::process::lender_at;
use crate::world::World;

impl World {
    /// The lenders' addresses, as the settings have them.
    pub(crate) fn addresses(&self) -> Vec<String> {
        (0..self.address_lenders.len())
            .map(|index| format!("l{index}"))
            .collect()
    }

    /// The lender whose memory a view names. A lying lender may have given any incarnation, so it is known by
    /// its address.
    pub(crate) fn lender_of(&self, member: &ViewMember) -> usize {
        let life = member.incarnation;
        let is = |lender: &crate::lender::SimLender| {
            lender.incarnation == life || lender.lost_memories.iter().any(|(past, _)| *past == life)
        };
        let named = || {
            self.address_lenders
                .get(lender_at(&member.address))
                .copied()
                .flatten()
        };
        self.lenders
            .iter()
            .position(is)
            .or_else(named)
            .unwrap_or_default()
    }

    /// Makes another address lead to a lender: an unused one, or one that led to another lender.
    pub(crate) fn move_lender(&mut self) {
        let (one, other) = (
            self.kernel.rng.index(self.address_lenders.len()),
            self.kernel.rng.index(self.address_lenders.len()),
        );
        if self.address_lenders[one] == self.address_lenders[other] {
            return;
        }
        self.kernel.hit("nemesis: lenders moved");
        self.kernel
            .tell(|| format!("what was at l{one} is at l{other} now, and the other way round"));
        for lender in [self.address_lenders[one], self.address_lenders[other]]
            .into_iter()
            .flatten()
        {
            for conn in self.conns_to(lender) {
                self.break_conn(conn);
            }
        }
        self.address_lenders.swap(one, other);
    }
}
