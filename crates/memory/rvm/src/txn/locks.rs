//! The locks of a commit's regions, kept on the stack, so that a commit allocates nothing.

use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::regions::TouchedRegions;
use crate::memory::RegionMemory;

/// Locks kept in one stack frame. More make a small commit's frame larger, fewer make a large commit's stack
/// deeper.
const FRAME_LOCKS: usize = 16;

/// Where a commit's locks are kept: a chain on the stack.
pub(super) struct CommitLocks<'h> {
    /// The position, by address, of the first region locked here.
    first: usize,
    locks: [Option<RwLockReadGuard<'h, RegionMemory>>; FRAME_LOCKS],
    before: Option<&'h CommitLocks<'h>>,
}

/// The one region that a commit changes, locked exclusively.
pub(super) struct ExclusiveRegion<'h> {
    /// Its position by address. `None`: there is none such.
    pub(super) position: Option<usize>,
    pub(super) memory: Option<RwLockWriteGuard<'h, RegionMemory>>,
}

impl ExclusiveRegion<'_> {
    pub(super) const NONE: ExclusiveRegion<'static> = ExclusiveRegion {
        position: None,
        memory: None,
    };
}

impl CommitLocks<'_> {
    pub(super) fn find(&self, position: usize) -> &RegionMemory {
        let mut held = self;
        while position < held.first {
            held = held.before.expect("the chain begins at position zero");
        }
        let lock = held.locks[position - held.first].as_ref();
        lock.expect("every region that has ranges is locked")
    }
}

/// Locks the regions from position `first` on by address, shared but for the one that is changed, then runs
/// `then`. The stack it takes is stated at [`crate::limit::TRANSACTION_REGIONS_MAX`].
pub(super) fn with_locked<'r, R>(
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
