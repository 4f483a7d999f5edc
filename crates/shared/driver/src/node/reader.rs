//! Reading without locks: the node's copy as it is, which stays so while others commit.

use netram_rvm::ReadGuard;
use netram_shared_machine::node::Age;

use super::error::{Expired, Gone};
use super::grip::Grip;
use super::shared::Shared;

/// A pinned reader. While there is one, what other nodes commit waits, in bounded memory; what it sees is between two commits, with all
/// that those before it had read.
///
/// It moves on when it [accepts](Reader::accept), and whenever a transaction of this node acquires a lock: whoever has a lock sees all that
/// was committed under it. What this node's own transactions write it sees at once; so a program that reads and writes in
/// several threads takes a shared lock to read.
pub struct Reader<'n> {
    shared: Grip<'n>,
    /// How often readers had expired when this one was pinned.
    pinned: u64,
}

impl<'n> Reader<'n> {
    pub(super) fn begin(shared: Grip<'n>) -> Result<Reader<'n>, Gone> {
        let pinned = pin(&shared)?;
        shared.catch_up()?;
        Ok(Reader { shared, pinned })
    }

    /// The region's bytes, kept from changing until the guard is dropped.
    pub fn read(&self) -> Result<ReadGuard<'_>, Expired> {
        // What is past is applied only after it was said to be past, and not while there is a guard.
        let guard = self.shared.region.read();
        match self.is_expired() {
            true => Err(Expired),
            false => Ok(guard),
        }
    }

    /// Moves on to everything that has come. No guard of the region may be held.
    pub fn accept(&mut self) -> Result<(), Gone> {
        match self.is_expired() {
            true => self.pinned = pin(&self.shared)?,
            false => self.shared.with(|core, _| {
                core.alive()?;
                core.machine.accept();
                Ok::<(), Gone>(())
            })?,
        }
        self.shared.catch_up()
    }

    /// How far what is read is behind what the server is known to have.
    pub fn age(&self) -> Age {
        let now = self.shared.now();
        self.shared.core().machine.age(now)
    }

    /// Whether too much was held back: what was seen is past.
    pub fn is_expired(&self) -> bool {
        self.shared.core().expired != self.pinned
    }
}

fn pin(shared: &Shared) -> Result<u64, Gone> {
    shared.with(|core, _| {
        core.alive()?;
        core.machine.begin_read();
        Ok(core.expired)
    })
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Reader")
            .field("pinned", &self.pinned)
            .finish_non_exhaustive()
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let pinned = self.pinned;
        self.shared.with(|core, _| {
            if core.expired == pinned {
                core.machine.end_read();
            }
        });
    }
}
