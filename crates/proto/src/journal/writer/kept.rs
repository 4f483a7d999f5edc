//! A data lender in service: members keep what it lacks, and a view counts only when it has it.
//!
//! A record leaves the members' memories when it is on *both* disks, so that one disk may be lost. The data lender is never
//! waited for beyond that: a member that would have no room for the next bytes is told to drop what is stable, and a data
//! lender of which nothing is heard is out of service.

use crate::id::{Epoch, Lsn};
use crate::planted::Fault;
use crate::time::{Span, Time};

use super::{Set, Writer};

/// What a data lender in service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Everything below is durable there. A record ends here.
    pub lsn: Lsn,
    /// The newest view that is durable there, by its number in this reign.
    pub version: u64,
}

impl Writer {
    /// What the data lender in service has; `None`: there is none in service. To be said again within `detect` (as
    /// [`crate::replica::Source::kept`] has it), or it counts as out of service.
    pub fn on_kept(&mut self, kept: Option<Kept>, now: Time) {
        let before = self.kept.map(|(kept, _)| kept);
        self.kept = kept.map(|kept| (kept, now));
        if before != kept {
            self.settle(now);
        }
    }

    /// The data lender obeys the newer reign `seen`: the volume was restored or taken over elsewhere.
    pub fn on_replica_fenced(&mut self, seen: Epoch) {
        self.fenced = self.fenced.max(Some(seen));
    }

    /// Whether a data lender is in service.
    pub fn kept(&self) -> Option<Kept> {
        self.kept.map(|(kept, _)| kept)
    }

    /// Nothing has been heard of the data lender for too long.
    pub(super) fn expire_kept(&mut self, now: Time) {
        let patience = Span(self.config.timing.detect.0 * 2);
        if self.kept.is_some_and(|(_, at)| now.since(at) > patience) {
            self.kept = None;
        }
    }

    /// What a member may drop that is being sent bytes up to `end`: what is on both disks; or what is stable, where it had
    /// no room for them otherwise.
    pub(super) fn droppable(&self, end: Lsn) -> Lsn {
        let stable = self.stable.lsn;
        match self.kept {
            Some((kept, _)) if kept.lsn < stable && !self.planted.is(Fault::KeptIgnored) => {
                let fits = end.since(kept.lsn) <= self.config.window_bytes;
                if fits { kept.lsn } else { stable }
            }
            _ => stable,
        }
    }

    /// Whether a view of `set` could be recovered from with the data lender alone: it has what the members' windows lack.
    pub(super) fn is_backed(&self, set: Set) -> bool {
        let Some((kept, _)) = self.kept else {
            return true;
        };
        set.iter().all(|index| self.lenders[index].began <= kept.lsn)
    }

    /// Whether the data lender has the view after the present one, or is not in service.
    pub(super) fn next_view_is_kept(&self) -> bool {
        self.planted.is(Fault::ViewNotKept) || self.kept.is_none_or(|(kept, _)| kept.version > self.version)
    }
}
