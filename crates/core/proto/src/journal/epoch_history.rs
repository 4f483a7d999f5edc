//! The reigns that a journal has had, and where each began: what tells a data lender's copy of this history
//! from one of another. A log can end lower than it did (loss was accepted, an old copy was opened) and then
//! grow past where it ended: its LSNs say nothing of that, and the log itself only as long as it reaches
//! back.

use alloc::vec::Vec;

use crate::id::{Epoch, Lsn, WriterId};
use crate::limit::EPOCH_HISTORY_MAX;
use crate::wire::{ByteReader, ShortInputError};

/// Reigns that a restore leaves out. A client that the data lender heard nothing of may have taken some of
/// them: whoever restores must come after all of these, and a member that was sealed by one of these shows
/// that there were any.
const EPOCHS_SKIPPED: u32 = 1 << 16;
/// The base of a reign that never served.
pub(super) const NEVER_SERVED: Lsn = Lsn(u64::MAX);

/// One reign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EpochRecord {
    epoch: Epoch,
    writer: WriterId,
    /// Where the log ended when it began, or lower, where it stands for earlier reigns too.
    base: Lsn,
}

/// Reigns in their order: the one whose view the data lender is known to have kept, or the oldest; then the
/// latest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochHistory(Vec<EpochRecord>);

impl EpochHistory {
    /// A reign begins, where the log ends at `base`.
    ///
    /// At the bound the second and the third become one, which began where the lower of them did: a copy of
    /// the first is still judged exactly, and one of the second is not known any more.
    pub fn begin(&mut self, epoch: Epoch, writer: WriterId, base: Lsn) {
        self.0.retain(|reign| reign.epoch < epoch);
        if self.0.len() == EPOCH_HISTORY_MAX {
            let joined = self.0.remove(1);
            self.0[1].base = self.0[1].base.min(joined.base);
        }
        self.0.push(EpochRecord { epoch, writer, base });
    }

    /// The data lender keeps a view of the reign `epoch`, and has its history: none before matters any more.
    pub fn forget_before(&mut self, epoch: Epoch) {
        self.0.retain(|reign| reign.epoch >= epoch);
    }

    /// Whether none is known: the journal has never been opened, or never by a version that wrote them down.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where a log of the reign `epoch` of `writer` that ends at `end` leaves this history; `None`: it does
    /// not.
    pub fn fork(&self, epoch: Epoch, writer: WriterId, end: Lsn) -> Option<Lsn> {
        let named = |reign: &EpochRecord| (reign.epoch, reign.writer) == (epoch, writer);
        let Some(at) = self.0.iter().position(named) else {
            return Some(Lsn(0));
        };
        let lowest = self.0[at + 1..].iter().map(|reign| reign.base).min()?;
        (lowest < end).then_some(lowest)
    }

    /// The last reign that served.
    pub(super) fn last_served_epoch(&self) -> Option<Epoch> {
        let served = |reign: &&EpochRecord| reign.base != NEVER_SERVED;
        self.0.iter().rev().find(served).map(|reign| reign.epoch)
    }

    /// The last reign that served, and its writer.
    pub(super) fn last_served(&self) -> Option<(Epoch, WriterId)> {
        let last = self.last_served_epoch()?;
        let named = |reign: &&EpochRecord| reign.epoch == last;
        self.0.iter().find(named).map(|reign| (reign.epoch, reign.writer))
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        assert!(self.0.len() <= EPOCH_HISTORY_MAX);
        bytes.push(self.0.len() as u8);
        for reign in &self.0 {
            bytes.extend_from_slice(&reign.epoch.0.to_le_bytes());
            bytes.extend_from_slice(&reign.writer.0.to_le_bytes());
            bytes.extend_from_slice(&reign.base.0.to_le_bytes());
        }
    }

    /// `Ok(None)`: out of bounds.
    pub(super) fn decode(cursor: &mut ByteReader<'_>) -> Result<Option<EpochHistory>, ShortInputError> {
        let count = usize::from(cursor.u8()?);
        let mut reigns = Vec::new();
        for _ in 0..count {
            reigns.push(EpochRecord {
                epoch: Epoch(cursor.u32()?),
                writer: WriterId(cursor.u64()?),
                base: Lsn(cursor.u64()?),
            });
        }
        let ascending = reigns.is_sorted_by(|a, b| a.epoch < b.epoch);
        Ok((count <= EPOCH_HISTORY_MAX && ascending).then_some(EpochHistory(reigns)))
    }
}

/// The lowest epoch in which a replica may be claimed whose client was last heard in the reign `heard`.
pub(super) fn epoch_after_any(heard: Epoch) -> Epoch {
    Epoch(
        (heard.0 / EPOCHS_SKIPPED)
            .saturating_add(2)
            .saturating_mul(EPOCHS_SKIPPED),
    )
}

/// Whether a journal of this epoch has been claimed from a copy: another directory of it may be served by
/// somebody who was not told.
pub(super) fn was_claimed_from_copy(epoch: Epoch) -> bool {
    epoch.0 >= EPOCHS_SKIPPED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(epoch: u32) -> WriterId {
        WriterId(u64::from(epoch) + 100)
    }

    /// Reigns 1, 2 and so on that began at these places.
    fn reigns(bases: &[u64]) -> EpochHistory {
        let mut reigns = EpochHistory::default();
        for (epoch, base) in (1..).zip(bases) {
            reigns.begin(Epoch(epoch), writer(epoch), Lsn(*base));
        }
        reigns
    }

    fn fork(reigns: &EpochHistory, epoch: u32, end: u64) -> Option<u64> {
        reigns
            .fork(Epoch(epoch), writer(epoch), Lsn(end))
            .map(|lsn| lsn.0)
    }

    #[test]
    fn a_log_leaves_the_history_where_the_next_reign_began_below_its_end() {
        let reigns = reigns(&[0, 500, 300, 900]);
        assert_eq!(fork(&reigns, 1, 300), None);
        assert_eq!(fork(&reigns, 1, 400), Some(300), "the third began below it");
        assert_eq!(fork(&reigns, 3, 900), None);
        assert_eq!(fork(&reigns, 3, 908), Some(900));
        assert_eq!(fork(&reigns, 4, u64::MAX), None, "the present one");
        assert_eq!(fork(&reigns, 5, 0), Some(0), "a reign that was never ours");
        assert_eq!(
            reigns.fork(Epoch(3), writer(4), Lsn(0)),
            Some(Lsn(0)),
            "another's of the same epoch"
        );
    }

    #[test]
    fn many_reigns_later_the_first_is_still_judged_exactly_and_nothing_lost_is_taken_for_ours() {
        let mut bases: Vec<u64> = (0..100).map(|reign| 1000 + reign * 10).collect();
        bases[40] = 700;
        let reigns = reigns(&bases);
        assert_eq!(fork(&reigns, 1, 700), None);
        assert_eq!(fork(&reigns, 1, 701), Some(700));
        assert_eq!(fork(&reigns, 50, 701), Some(0), "it is not known any more");
        assert_eq!(fork(&reigns, 99, 1990), None, "the latest are");
        assert_eq!(fork(&reigns, 99, 1991), Some(1990));
    }

    #[test]
    fn what_was_before_the_reign_that_the_copy_keeps_does_not_matter() {
        let mut reigns = reigns(&[0, 500, 300]);
        reigns.forget_before(Epoch(3));
        reigns.begin(Epoch(4), writer(4), Lsn(800));
        assert_eq!(fork(&reigns, 3, 800), None);
        assert_eq!(fork(&reigns, 1, 0), Some(0));
    }
}
