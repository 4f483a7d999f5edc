//! A process is told from its children. A child of `fork` has a copy of every value, and none of the threads,
//! and what it does to a descriptor it does to the parent's: a lock is given up, a member is told that the
//! journal is over.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::paths::random;
use crate::sys;

/// The process in which a value was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkMark(u64);

impl ForkMark {
    /// Marks this process.
    pub fn here() -> ForkMark {
        ForkMark(sys::word_wiped_by_fork().map_or_else(|| u64::from(std::process::id()), name))
    }

    /// The mark of some other process.
    #[cfg(test)]
    pub(crate) fn of_another() -> ForkMark {
        ForkMark(!ForkMark::here().0)
    }

    /// Whether this is a child of the process that was marked. A load, where the kernel wipes pages in
    /// children.
    #[inline]
    pub fn is_child(self) -> bool {
        ForkMark::here() != self
    }
}

/// A number that no ancestor has. A process's own number may be one of an ancestor that is gone.
#[inline]
fn name(word: &AtomicU64) -> u64 {
    match word.load(Ordering::Relaxed) {
        0 => begin(word),
        name => name,
    }
}

#[cold]
fn begin(word: &AtomicU64) -> u64 {
    let name = u64::from_le_bytes(random()) | 1;
    // Another thread may be doing the same.
    match word.compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => name,
        Err(other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_no_child_of_itself_and_what_was_wiped_is_named_anew() {
        let mark = ForkMark::here();
        assert!(!mark.is_child() && mark == ForkMark::here());
        let word = AtomicU64::new(0);
        let first = name(&word);
        assert_eq!(name(&word), first);
        // As the kernel leaves it in a child.
        word.store(0, Ordering::Relaxed);
        assert_ne!(name(&word), first);
    }
}
