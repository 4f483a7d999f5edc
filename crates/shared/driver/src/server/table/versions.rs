//! Versions of all locks.

use netram_shared_machine::LockVersion;

/// Version of each lock, in the spans' order, and the number of locks that were ever written under. A region
/// may have a million locks, which should not be counted for every status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionList {
    all: Vec<LockVersion>,
    written: usize,
}

impl VersionList {
    pub(super) fn new(all: Vec<LockVersion>) -> VersionList {
        let written = all.iter().filter(|version| version.0 > 0).count();
        VersionList { all, written }
    }

    /// Version of the lock whose span has this index.
    pub(super) fn at(&self, place: usize) -> LockVersion {
        self.all[place]
    }

    pub(crate) fn set(&mut self, place: usize, version: LockVersion) {
        let old = std::mem::replace(&mut self.all[place], version);
        self.written += usize::from(version.0 > 0);
        self.written -= usize::from(old.0 > 0);
    }

    /// Number of locks that were ever written under.
    pub(super) fn written(&self) -> usize {
        self.written
    }

    /// All versions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = LockVersion> {
        self.all.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_that_were_written_under_are_counted_as_they_are_written() {
        let mut versions = VersionList::new(vec![LockVersion(0), LockVersion(3), LockVersion(0)]);
        assert_eq!(versions.written(), 1);
        versions.set(1, LockVersion(4));
        assert_eq!(versions.written(), 1, "it was before");
        versions.set(2, LockVersion(1));
        assert_eq!(versions.written(), 2);
        assert_eq!(versions, VersionList::new(versions.iter().collect()));
    }
}
