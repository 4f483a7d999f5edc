//! Commits wait for the local disk while this machine is on a UPS's battery.
//!
//! Lenders may be lost with this machine then, all at once. A commit that members have acknowledged is on the
//! disk within a millisecond anyway; this closes the millisecond, at the price of the disk's latency.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use netram_proto::journal::Voter;
use netram_proto::port::Durability;

use crate::core::JournalState;

/// Makes a journal's commits wait for the disk. It keeps no journal open, and does nothing to a closed one.
#[derive(Clone)]
pub struct DiskDemand(Weak<JournalState>);

impl DiskDemand {
    pub(crate) fn new(journal: &Arc<JournalState>) -> DiskDemand {
        DiskDemand(Arc::downgrade(journal))
    }

    /// While `required`, a commit waits for the disk whatever its durability, unless that is `Lazy`, and
    /// records go there without delay. What is not there yet goes at once. Members are served as before.
    ///
    /// Does not wait. A commit that waits for members already may still end with their votes.
    pub fn set(&self, required: bool) {
        let Some(journal) = self.0.upgrade() else { return };
        if journal.disk_required.swap(required, Ordering::SeqCst) == required {
            return;
        }
        let said = match required {
            true => "this machine is on battery: commits wait for the disk",
            false => "this machine is on the mains again",
        };
        journal.events.note(said.to_owned());
        if required {
            journal.request_sync();
        }
    }
}

impl JournalState {
    /// How long a record may wait for the disk thread.
    pub(crate) fn disk_delay(&self) -> Duration {
        match self.disk_required.load(Ordering::SeqCst) {
            true => Duration::ZERO,
            false => self.config.disk_delay,
        }
    }

    /// The durability of a commit that asked for `wanted`. A region's node keeps what it asked for: its disk
    /// has no vote.
    pub(crate) fn demanded(&self, wanted: Durability) -> Durability {
        let raised = wanted == Durability::Remote && self.disk_required.load(Ordering::SeqCst);
        match raised && self.config.voter == Voter::Disk {
            true => Durability::Disk,
            false => wanted,
        }
    }
}
