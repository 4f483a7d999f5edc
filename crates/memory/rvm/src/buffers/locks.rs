//! The locks of a commit's regions, kept on the stack so that a commit allocates nothing.

use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::regions::TouchedRegions;
use crate::memory::RegionMemory;

/// Locks in one stack frame. More enlarge the frame of a small commit; fewer deepen the stack of a large one.
const FRAME_LOCKS: usize = 16;

/// The locks of a commit: a chain of stack frames.
pub(crate) struct CommitLocks<'h> {
    /// Position, in order of address, of the first region locked in this frame.
    first: usize,
    locks: [Option<RwLockReadGuard<'h, RegionMemory>>; FRAME_LOCKS],
    before: Option<&'h CommitLocks<'h>>,
}

/// The one region that a commit changes, locked exclusively.
pub(crate) struct ExclusiveRegion<'h> {
    /// Its position in order of address; `None` if no region is changed.
    pub(crate) position: Option<usize>,
    pub(crate) memory: Option<RwLockWriteGuard<'h, RegionMemory>>,
}

impl ExclusiveRegion<'_> {
    pub(crate) const NONE: ExclusiveRegion<'static> = ExclusiveRegion {
        position: None,
        memory: None,
    };
}

impl CommitLocks<'_> {
    pub(crate) fn find(&self, position: usize) -> &RegionMemory {
        let mut held = self;
        while position < held.first {
            held = held.before.expect("the chain of locks begins at position zero");
        }
        let lock = held.locks[position - held.first].as_ref();
        lock.expect("every region that has ranges is locked")
    }
}

/// Locks the regions from position `first` on, in order of address, then runs `then`. Locks are shared except
/// for the changed region. The stack it needs is given at [`crate::limit::TRANSACTION_REGIONS_MAX`].
pub(crate) fn with_locked<'r, R>(
    regions: &'r TouchedRegions,
    first: usize,
    before: Option<&CommitLocks<'_>>,
    changed: &mut ExclusiveRegion<'r>,
    then: &mut dyn FnMut(&CommitLocks<'_>, &mut ExclusiveRegion<'r>) -> R,
) -> R {
    let locks = std::array::from_fn(|at| {
        let position = first + at;
        let region = regions.at(position)?;
        if changed.position == Some(position) {
            changed.memory = Some(region.write());
            return None;
        }
        Some(region.read())
    });
    let held = CommitLocks { first, locks, before };
    match first + FRAME_LOCKS {
        next if next < regions.list.len() => with_locked(regions, next, Some(&held), changed, then),
        _ => then(&held, changed),
    }
}
