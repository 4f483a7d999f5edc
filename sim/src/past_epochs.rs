//! True state at the end of each epoch, to judge a restore from a replica that has not heard of a later
//! epoch.
//!
//! An opening gives up records in doubt that no member of *its* view holds. A replica that never heard of
//! that opening may have a view with other members, one that was proposed and sent there but never durable at
//! the client. If none of those members heard of the opening either, a restore may find such records and take
//! them: it cannot tell. For it the later epochs never existed. Records that they acknowledged by the
//! client's own disk alone are lost silently, as `docs/design/failure-model.md` says. The restore's own check
//! makes sure that no member of the replica's view was fenced by one of them.

use netram_proto::id::Epoch;

use crate::history::JournalHistory;
use crate::volume_history::VolumeHistory;

/// An epoch that has ended.
#[derive(Clone, Debug)]
pub(crate) struct PastEpoch {
    pub(crate) host: usize,
    pub(crate) epoch: Epoch,
    pub(crate) history: JournalHistory,
    pub(crate) volume: VolumeHistory,
}

/// Epochs that ended, oldest first.
#[derive(Debug, Default)]
pub(crate) struct PastEpochs(Vec<PastEpoch>);

impl PastEpochs {
    pub(crate) fn push(&mut self, past: PastEpoch) {
        self.0.push(past);
    }

    /// Newest end of `epoch` on `host`. `None`: no epoch has followed it.
    pub(crate) fn newest(&self, host: usize, epoch: Epoch) -> Option<&PastEpoch> {
        let named = |past: &&PastEpoch| (past.host, past.epoch) == (host, epoch);
        self.0.iter().rev().find(named)
    }
}
