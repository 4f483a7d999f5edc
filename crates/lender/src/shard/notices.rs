//! What a shard's clients are told: that the lender drains or stops, or that the machine wants a window back.

use super::Shard;
use crate::drain::WithdrawNotice;
use crate::outbox::SessionEnd;

impl Shard {
    /// Obeys the operator's last order, and asks for the windows that the machine wants back. Clients that
    /// were asked to move away, and may stay, have their sessions ended: they reconnect, and ask the lender
    /// for windows again.
    pub(super) fn obey(&mut self) {
        let (order, reclaims) = (self.shared.drain.last(), self.shared.reclaims());
        if (order, reclaims) == (self.order, self.reclaims) {
            return;
        }
        (self.order, self.reclaims) = (order, reclaims);
        for index in 0..self.connections.len() {
            let told = self.connections[index].as_ref().and_then(|one| one.told);
            let due = self.notice_due(index);
            match told > due {
                true => self.end(index, SessionEnd::Undrained),
                false => self.give_notice(index),
            }
        }
        self.shared.drain.obey(self.index, order);
    }

    /// The notice that a client is due: the lender's to all, or that its journal's window is wanted back.
    fn notice_due(&mut self, index: usize) -> Option<WithdrawNotice> {
        let place = self.connections[index].as_ref()?.index;
        let asked = self.journals.at(place).is_asked_back();
        let reclaims = asked.then_some(WithdrawNotice::Reclaims);
        self.shared.leave_notice(self.now).max(reclaims)
    }

    /// Tells a client, once, that it should move away, if it should.
    pub(super) fn give_notice(&mut self, index: usize) {
        let due = self.notice_due(index);
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        // A blocked session is told later.
        if connection.told >= due || connection.outbox.is_blocked() {
            return;
        }
        connection.told = due;
        let header = due.map(|notice| notice.frame(self.shared.incarnation().0));
        if let Some(header) = header
            && let Err(ending) = connection.say(header, &[], self.now)
        {
            self.end(index, ending);
        }
    }
}
