//! The locks' versions.

use netram_shared_machine::LockVersion;

/// Each lock's version, in the spans' order, and how many were ever written under: a region has millions of
/// locks, and whoever asks for its status is not to have them counted.
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

    /// The version of the lock whose span is at this place.
    pub(super) fn at(&self, place: usize) -> LockVersion {
        self.all[place]
    }

    pub(crate) fn set(&mut self, place: usize, version: LockVersion) {
        let old = std::mem::replace(&mut self.all[place], version);
        self.written += usize::from(version.0 > 0);
        self.written -= usize::from(old.0 > 0);
    }

    /// How many locks were written under.
    pub(super) fn written(&self) -> usize {
        self.written
    }

    /// All of them.
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
