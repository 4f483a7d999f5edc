//! The epochs that a journal has had, and the LSN at which each began. They tell a data lender's copy of this
//! history from a copy of another one.
//!
//! A log can end lower than before (a loss was accepted, or an old copy was opened) and then grow past its
//! former end. Its LSNs do not show that, and its records show it only as far back as the log reaches.

use alloc::vec::Vec;

use crate::id::{Epoch, Lsn, WriterId};
use crate::limit::EPOCH_HISTORY_MAX;
use crate::wire::{ByteReader, ShortInputError};

/// Number of epochs that a restore skips. A client that the data lender did not hear from may have used some
/// of them. A restore must come after all of these, and a member fenced by one of them proves that they
/// exist.
const EPOCHS_SKIPPED: u32 = 1 << 16;
/// The base of an epoch that never served.
pub(super) const NEVER_SERVED: Lsn = Lsn(u64::MAX);

/// One epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EpochRecord {
    epoch: Epoch,
    writer: WriterId,
    /// End of the log when the epoch began; or lower, if the entry stands for earlier epochs too.
    base: Lsn,
}

/// The epochs in ascending order: first the one whose view the data lender is known to have, or the oldest;
/// then the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochHistory(Vec<EpochRecord>);

impl EpochHistory {
    /// Adds an epoch that begins while the log ends at `base`.
    ///
    /// When the history is full, the second and third entries are merged into one with the lower base. A copy
    /// of the first epoch is still judged exactly; a copy of the second is no longer known.
    pub fn begin(&mut self, epoch: Epoch, writer: WriterId, base: Lsn) {
        self.0.retain(|record| record.epoch < epoch);
        if self.0.len() == EPOCH_HISTORY_MAX {
            let joined = self.0.remove(1);
            self.0[1].base = self.0[1].base.min(joined.base);
        }
        self.0.push(EpochRecord { epoch, writer, base });
    }

    /// Drops the epochs before `epoch`: the data lender has a view of `epoch`, and so its history.
    pub fn forget_before(&mut self, epoch: Epoch) {
        self.0.retain(|record| record.epoch >= epoch);
    }

    /// Whether no epoch is known: the journal was never opened, or only by versions that did not record
    /// epochs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The LSN at which a log of `epoch` and `writer` that ends at `end` leaves this history; `None` if it
    /// does not.
    pub fn fork(&self, epoch: Epoch, writer: WriterId, end: Lsn) -> Option<Lsn> {
        let named = |record: &EpochRecord| (record.epoch, record.writer) == (epoch, writer);
        let Some(at) = self.0.iter().position(named) else {
            return Some(Lsn(0));
        };
        let lowest = self.0[at + 1..].iter().map(|record| record.base).min()?;
        (lowest < end).then_some(lowest)
    }

    /// The last epoch that served.
    pub(super) fn last_served_epoch(&self) -> Option<Epoch> {
        let served = |record: &&EpochRecord| record.base != NEVER_SERVED;
        self.0.iter().rev().find(served).map(|record| record.epoch)
    }

    /// The last epoch that served, and its writer.
    pub(super) fn last_served(&self) -> Option<(Epoch, WriterId)> {
        let last = self.last_served_epoch()?;
        let named = |record: &&EpochRecord| record.epoch == last;
        self.0
            .iter()
            .find(named)
            .map(|record| (record.epoch, record.writer))
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        assert!(self.0.len() <= EPOCH_HISTORY_MAX);
        bytes.push(self.0.len() as u8);
        for record in &self.0 {
            bytes.extend_from_slice(&record.epoch.0.to_le_bytes());
            bytes.extend_from_slice(&record.writer.0.to_le_bytes());
            bytes.extend_from_slice(&record.base.0.to_le_bytes());
        }
    }

    /// Reads a history; `Ok(None)` if it is too long or not in ascending order.
    pub(super) fn decode(cursor: &mut ByteReader<'_>) -> Result<Option<EpochHistory>, ShortInputError> {
        let count = usize::from(cursor.u8()?);
        let mut history = Vec::new();
        for _ in 0..count {
            history.push(EpochRecord {
                epoch: Epoch(cursor.u32()?),
                writer: WriterId(cursor.u64()?),
                base: Lsn(cursor.u64()?),
            });
        }
        let ascending = history.is_sorted_by(|a, b| a.epoch < b.epoch);
        Ok((count <= EPOCH_HISTORY_MAX && ascending).then_some(EpochHistory(history)))
    }
}

/// The lowest epoch in which a replica may be claimed whose client was last heard from in epoch `heard`.
pub(super) fn epoch_after_any(heard: Epoch) -> Epoch {
    Epoch(
        (heard.0 / EPOCHS_SKIPPED)
            .saturating_add(2)
            .saturating_mul(EPOCHS_SKIPPED),
    )
}

/// Whether a journal of this epoch has been claimed from a copy. A writer in another directory of the journal
/// may then still be running.
pub(super) fn was_claimed_from_copy(epoch: Epoch) -> bool {
    epoch.0 >= EPOCHS_SKIPPED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(epoch: u32) -> WriterId {
        WriterId(u64::from(epoch) + 100)
    }

    /// A history of epochs 1, 2, … that began at these LSNs.
    fn history(bases: &[u64]) -> EpochHistory {
        let mut history = EpochHistory::default();
        for (epoch, base) in (1..).zip(bases) {
            history.begin(Epoch(epoch), writer(epoch), Lsn(*base));
        }
        history
    }

    fn fork(history: &EpochHistory, epoch: u32, end: u64) -> Option<u64> {
        history
            .fork(Epoch(epoch), writer(epoch), Lsn(end))
            .map(|lsn| lsn.0)
    }

    #[test]
    fn a_log_forks_where_a_later_epoch_began_below_its_end() {
        let history = history(&[0, 500, 300, 900]);
        assert_eq!(fork(&history, 1, 300), None);
        assert_eq!(fork(&history, 1, 400), Some(300), "the third began below it");
        assert_eq!(fork(&history, 3, 900), None);
        assert_eq!(fork(&history, 3, 908), Some(900));
        assert_eq!(fork(&history, 4, u64::MAX), None, "the present one");
        assert_eq!(
            fork(&history, 5, 0),
            Some(0),
            "an epoch that is not in the history"
        );
        assert_eq!(
            history.fork(Epoch(3), writer(4), Lsn(0)),
            Some(Lsn(0)),
            "another writer of the same epoch"
        );
    }

    #[test]
    fn a_full_history_judges_its_first_epoch_exactly_and_accepts_no_fork() {
        let mut bases: Vec<u64> = (0..100).map(|index| 1000 + index * 10).collect();
        bases[40] = 700;
        let history = history(&bases);
        assert_eq!(fork(&history, 1, 700), None);
        assert_eq!(fork(&history, 1, 701), Some(700));
        assert_eq!(fork(&history, 50, 701), Some(0), "it was merged away");
        assert_eq!(fork(&history, 99, 1990), None, "the latest are");
        assert_eq!(fork(&history, 99, 1991), Some(1990));
    }

    #[test]
    fn epochs_before_the_one_that_the_data_lender_has_are_dropped() {
        let mut history = history(&[0, 500, 300]);
        history.forget_before(Epoch(3));
        history.begin(Epoch(4), writer(4), Lsn(800));
        assert_eq!(fork(&history, 3, 800), None);
        assert_eq!(fork(&history, 1, 0), Some(0));
    }
}
