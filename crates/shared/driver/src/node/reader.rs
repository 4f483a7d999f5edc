//! Reading without locks: the node's copy as it is, which stays so while others commit.

use netram_rvm::ReadGuard;
use netram_shared_machine::node::ReaderLag;

use super::error::{NodeGone, ReaderExpired};
use super::inner::NodeInner;
use super::node_ref::NodeRef;

/// A pinned reader. While there is one, what other nodes commit waits, in bounded memory; what it sees is
/// between two commits, with all that those before it had read.
///
/// It moves on when it [accepts](Reader::accept), and whenever a transaction of this node acquires a lock:
/// whoever has a lock sees all that was committed under it. What this node's own transactions write it sees
/// at once; so a program that reads and writes in several threads takes a shared lock to read.
pub struct RegionReader<'n> {
    shared: NodeRef<'n>,
    /// How often readers had expired when this one was pinned.
    pinned: u64,
}

impl<'n> RegionReader<'n> {
    pub(super) fn begin(shared: NodeRef<'n>) -> Result<RegionReader<'n>, NodeGone> {
        let pinned = pin(&shared)?;
        shared.catch_up()?;
        Ok(RegionReader { shared, pinned })
    }

    /// The region's bytes, kept from changing until the guard is dropped.
    pub fn read(&self) -> Result<ReadGuard<'_>, ReaderExpired> {
        // What is past is applied only after it was said to be past, and not while there is a guard.
        let guard = self.shared.region.read();
        match self.is_expired() {
            true => Err(ReaderExpired),
            false => Ok(guard),
        }
    }

    /// Moves on to everything that has come. No guard of the region may be held.
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

    /// How far what is read is behind what the server is known to have.
    pub fn age(&self) -> ReaderLag {
        let now = self.shared.now();
        self.shared.core().machine.age(now)
    }

    /// Whether too much was held back: what was seen is past.
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
