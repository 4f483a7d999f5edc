//! Saves the node's copy, for a region whose server is lost for good.

use std::path::Path;
use std::sync::atomic::Ordering;

use netram_shared_machine::node::NodePhase;
use netram_shared_machine::{LockVersion, NodeId, RecordNumber};

use super::Node;
use super::error::NodeGone;
use super::inner::NodeInner;
use crate::saved_copy::{CopyDescription, CopyError, save};

/// Failure to save a copy.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The node has ended: its copy may contain a record that is not in the region.
    #[error("{0}")]
    Gone(#[from] NodeGone),
    /// The node's lease runs. A region that is served needs no rescue; if its server has just died, the lease
    /// ends soon.
    #[error("the node's lease runs: its server is alive, or has just died; try again when the lease is over")]
    Served,
    /// An open transaction may store to the region. End it first.
    #[error("an open transaction holds locks exclusively; end it and try again")]
    Busy,
    /// A commit waits for the members.
    #[error("a commit of this node is not acknowledged yet; wait for its journal's members and try again")]
    Unacknowledged,
    /// The copy changed while it was being saved, so the server is back.
    #[error(
        "the copy changed while it was being saved: the region's server is back, and no rescue is needed"
    )]
    Changed,
    /// The copy could not be written.
    #[error("{0}")]
    Copy(#[from] CopyError),
}

/// State of the copy at one moment.
#[derive(PartialEq, Eq)]
struct Moment {
    entered: u64,
    versions: Vec<LockVersion>,
    numbers: Vec<(NodeId, RecordNumber)>,
}

impl Node {
    /// Saves this node's copy of the region to a new directory, for `netram shared rescue`, when the server
    /// is lost for good. Pinned readers see the newest data from here on.
    ///
    /// The copy has every acknowledged commit of this node, and the commits of other nodes that reached it.
    ///
    /// # Errors
    ///
    /// [`SaveError`] if the node has ended or has a lease, if a transaction may store or is not acknowledged,
    /// if the copy changes while it is saved, or if it cannot be written.
    pub fn save_copy(&self, path: &Path) -> Result<(), SaveError> {
        let shared = &*self.shared;
        let moment = shared.moment()?;
        shared.catch_up()?;
        let (region, name) = (shared.join_info.region, shared.join_info.name.clone());
        let mut description = CopyDescription::new(region, shared.id.0, name);
        description.bytes = shared.region.len() as u64;
        description.address = shared.join_info.address;
        description.settings.clone_from(&shared.join_info.settings);
        for (span, version) in shared.spans.iter().zip(&moment.versions) {
            let lock = (span.lock.0, span.offset, span.length, version.0);
            description.locks.push(lock);
        }
        for (node, number) in &moment.numbers {
            description.numbers.push((node.0, number.0));
        }
        let read = |offset, piece: &mut [u8]| {
            let read = shared.region.read_into(offset, piece);
            read.expect("pieces lie in the region");
        };
        let still = || shared.moment().is_ok_and(|now| now == moment);
        match save(path, description, read, still)? {
            true => Ok(()),
            false => Err(SaveError::Changed),
        }
    }
}

impl NodeInner {
    /// State of the copy, if only the server could change it.
    fn moment(&self) -> Result<Moment, SaveError> {
        // Read before the writers are counted: a later writer shows in the next moment.
        let entered = self.entered.load(Ordering::SeqCst);
        if self.writers.load(Ordering::SeqCst) > 0 {
            return Err(SaveError::Busy);
        }
        self.with(|core, now| {
            core.alive()?;
            if core.machine.state() != NodePhase::Whole {
                return Err(NodeGone::Behind.into());
            }
            if core.machine.tokens().leased(now) {
                return Err(SaveError::Served);
            }
            if !core.is_settled() {
                return Err(SaveError::Unacknowledged);
            }
            // Records that wait for readers count in the versions.
            core.machine.accept();
            Ok(Moment {
                entered,
                versions: self
                    .spans
                    .iter()
                    .map(|span| core.machine.version(span.lock))
                    .collect(),
                numbers: core.machine.applied_of_all(),
            })
        })
    }
}
