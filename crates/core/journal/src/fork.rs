//! Detecting `fork`. A child has a copy of every value and none of the threads, and its operations on a
//! descriptor affect the parent. They could release the parent's lock, or tell a member that the journal is
//! over.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::random::random;
use crate::sys;

/// Identifies the process in which a value was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkMark(u64);

impl ForkMark {
    /// The mark of this process.
    pub fn here() -> ForkMark {
        ForkMark(sys::word_wiped_by_fork().map_or_else(|| u64::from(std::process::id()), name))
    }

    /// A mark that belongs to another process.
    #[cfg(test)]
    pub(crate) fn of_another() -> ForkMark {
        ForkMark(!ForkMark::here().0)
    }

    /// Whether this process is a child of the marked one. Costs one load if the kernel can wipe pages on
    /// fork.
    #[inline]
    pub fn is_child(self) -> bool {
        ForkMark::here() != self
    }
}

/// A random number that no ancestor has. A process id could be that of an ancestor that is gone.
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
    // Another thread may be setting it at the same time.
    match word.compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => name,
        Err(other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_not_its_own_child_and_a_wiped_mark_is_renewed() {
        let mark = ForkMark::here();
        assert!(!mark.is_child() && mark == ForkMark::here());
        let word = AtomicU64::new(0);
        let first = name(&word);
        assert_eq!(name(&word), first);
        // The kernel leaves a zero in a child.
        word.store(0, Ordering::Relaxed);
        assert_ne!(name(&word), first);
    }
}
