//! Reading without locks: the node's copy as it is, which stays unchanged while other nodes commit.

use netram_rvm::ReadGuard;
use netram_shared_machine::node::ReaderLag;

use super::error::{NodeGone, ReaderExpired};
use super::inner::NodeInner;
use super::node_ref::NodeRef;

/// A pinned reader. While there is one, other nodes' commits wait, in bounded memory. The reader sees a state
/// between two commits, together with everything that earlier commits had read.
///
/// It moves on when it [accepts](RegionReader::accept), and whenever a transaction of this node acquires a
/// lock: the holder of a lock sees everything that was committed under it. Writes of this node's own
/// transactions are visible at once. So a program that reads and writes in several threads takes a shared
/// lock to read.
pub struct RegionReader<'n> {
    shared: NodeRef<'n>,
    /// Number of expiries of pinned readers when this one was pinned.
    pinned: u64,
}

impl<'n> RegionReader<'n> {
    pub(super) fn begin(shared: NodeRef<'n>) -> Result<RegionReader<'n>, NodeGone> {
        let pinned = pin(&shared)?;
        shared.catch_up()?;
        Ok(RegionReader { shared, pinned })
    }

    /// The region's bytes, which do not change until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`ReaderExpired`] if too many records were held back for this reader.
    pub fn read(&self) -> Result<ReadGuard<'_>, ReaderExpired> {
        // Records are applied only after the expiry is reported, and not while there is a guard.
        let guard = self.shared.region.read();
        match self.is_expired() {
            true => Err(ReaderExpired),
            false => Ok(guard),
        }
    }

    /// Moves on to the newest state. The caller must hold no guard of the region.
    ///
    /// # Errors
    ///
    /// [`NodeGone`] if the node has ended.
    pub fn accept(&mut self) -> Result<(), NodeGone> {
        match self.is_expired() {
            true => self.pinned = pin(&self.shared)?,
            false => self.shared.with(|core, _| {
                core.alive()?;
                core.machine.accept();
                Ok::<(), NodeGone>(())
            })?,
        }
        self.shared.catch_up()
    }

    /// How far the reader is behind the newest record that the server is known to have.
    pub fn age(&self) -> ReaderLag {
        let now = self.shared.now();
        self.shared.core().machine.age(now)
    }

    /// Whether too many records were held back, so that this reader no longer sees its state.
    pub fn is_expired(&self) -> bool {
        self.shared.core().expired != self.pinned
    }
}

fn pin(shared: &NodeInner) -> Result<u64, NodeGone> {
    shared.with(|core, _| {
        core.alive()?;
        core.machine.begin_read();
        Ok(core.expired)
    })
}

impl std::fmt::Debug for RegionReader<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Reader")
            .field("pinned", &self.pinned)
            .finish_non_exhaustive()
    }
}

impl Drop for RegionReader<'_> {
    fn drop(&mut self) {
        let pinned = self.pinned;
        self.shared.with(|core, _| {
            if core.expired == pinned {
                core.machine.end_read();
            }
        });
    }
}
