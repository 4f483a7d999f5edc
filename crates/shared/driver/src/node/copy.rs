//! Saving the node's copy, for a region whose server is lost for good.

use std::path::Path;
use std::sync::atomic::Ordering;

use netram_shared_machine::node::NodePhase;
use netram_shared_machine::{LockVersion, NodeId, RecordNumber};

use super::Node;
use super::error::NodeGone;
use super::inner::NodeInner;
use crate::saved_copy::{CopyDescription, CopyError, save};

/// Why no copy was saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// There is no node any more: its copy may have what does not count.
    #[error("{0}")]
    Gone(#[from] NodeGone),
    /// The node has a lease. A region that is served needs no rescue; of one whose server has just died the
    /// lease ends soon.
    #[error("the node's lease runs: its server lives, or has just died; try again when the lease is over")]
    Served,
    /// A transaction may store. Have it end.
    #[error("a transaction has locks exclusively: have it end, and try again")]
    Busy,
    /// A commit waits for the members.
    #[error("a commit of this node is not acknowledged: wait for its members, and try again")]
    Unacknowledged,
    /// Something was written meanwhile: the server is back.
    #[error("the copy has changed while it was saved: the server is there")]
    Changed,
    /// It could not be written.
    #[error("{0}")]
    Copy(#[from] CopyError),
}

/// What a copy is of.
#[derive(PartialEq, Eq)]
struct Moment {
    entered: u64,
    versions: Vec<LockVersion>,
    numbers: Vec<(NodeId, RecordNumber)>,
}

impl Node {
    /// Saves this node's copy of the region to a new directory, for `netram shared rescue`, when the server
    /// is lost for good. Only without a lease, and while no transaction may store. Pinned readers see
    /// everything new from here on.
    ///
    /// The copy has every commit that this node had acknowledged, and those of others that reached it.
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
    /// How the copy stands, if nothing of it can change but by the server.
    fn moment(&self) -> Result<Moment, SaveError> {
        // Before the writers are looked for: one that comes later is seen in the next moment.
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
            // What waits for readers counts in the versions.
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
