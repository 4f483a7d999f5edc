//! Owners and permissions that a replayed record may give.
//!
//! A record says what the mount did once, with the rights it had then and there. A mount in a user namespace
//! says that a file is root's, which is that user's outside. Recovery has its own rights, and gives nothing
//! that they do not reach: a file then keeps the owner who made it. Set-id bits return only under the owner
//! of the mounted directory, and file capabilities likewise. Otherwise a record would give rights that the
//! directory's owner lacks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FileType, RawMode, Stat};
use rustix::io::Errno;

const SET_IDS: RawMode = 0o6000;
/// Prefixes of names of extended attributes that give rights, and that only privileged programs set.
const PRIVILEGED_XATTRS: [&[u8]; 2] = [b"security.", b"trusted."];

/// Rights that a replay may give, and those that it withheld.
#[derive(Debug)]
pub(crate) struct ReplayRights {
    /// Owner and group of the mounted directory.
    user: u32,
    group: u32,
    is_privileged: bool,
    is_replaying: AtomicBool,
    /// Inodes that got less than the journal says, and whether they kept their owner.
    withheld: Mutex<HashMap<u64, bool>>,
}

impl ReplayRights {
    /// Rights for a directory with these attributes.
    pub(crate) fn of(directory: &Stat) -> ReplayRights {
        ReplayRights {
            user: directory.st_uid,
            group: directory.st_gid,
            is_privileged: rustix::process::geteuid().is_root(),
            is_replaying: AtomicBool::new(true),
            withheld: Mutex::default(),
        }
    }

    /// Ends the replay. Returns the number of files that got less than the journal says.
    pub(crate) fn end(&self) -> usize {
        self.is_replaying.store(false, Ordering::Release);
        std::mem::take(&mut *self.withheld()).len()
    }

    fn withheld(&self) -> MutexGuard<'_, HashMap<u64, bool>> {
        self.withheld.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replays(&self) -> bool {
        self.is_replaying.load(Ordering::Acquire)
    }

    /// Result of giving the file `there` away. During a replay a file that may not be given keeps its owner.
    pub(crate) fn unless_withheld(&self, there: &Stat, given: Result<(), Errno>) -> Result<(), Errno> {
        match given {
            // The kernel says INVAL of an owner who has no number in this user namespace.
            Err(Errno::PERM | Errno::INVAL) if self.replays() => {
                self.withheld().insert(there.st_ino, true);
                Ok(())
            }
            given => given,
        }
    }

    /// Permissions that the file gets instead of `asked`.
    pub(crate) fn mode(&self, there: &Stat, asked: RawMode) -> RawMode {
        if !self.replays() {
            return asked;
        }
        let mut mode = asked;
        if self.withheld().get(&there.st_ino) == Some(&true) {
            // Its group is another one, which may do no more than everybody.
            let others = mode & 0o007;
            mode &= !(SET_IDS | 0o070) | (others << 3);
        }
        let is_owners = there.st_uid == self.user && (mode & 0o2000 == 0 || there.st_gid == self.group);
        if FileType::from_raw_mode(there.st_mode) != FileType::Directory && !is_owners {
            mode &= !SET_IDS;
        }
        if mode != asked {
            self.withheld().entry(there.st_ino).or_default();
        }
        mode
    }

    /// Whether a file does not get an extended attribute of this name. `look` gives the file's attributes.
    pub(crate) fn withholds_xattr(
        &self,
        name: &[u8],
        look: impl FnOnce() -> Result<Stat, Errno>,
    ) -> Result<bool, Errno> {
        let gives_rights = PRIVILEGED_XATTRS.iter().any(|prefix| name.starts_with(prefix));
        if !gives_rights || !self.replays() {
            return Ok(false);
        }
        let there = look()?;
        let withholds = !(self.is_privileged && there.st_uid == self.user);
        if withholds {
            self.withheld().entry(there.st_ino).or_default();
        }
        Ok(withholds)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::Path;

    use rustix::fs::fstat;
    use rustix::process::geteuid;

    use super::*;

    fn stat(path: &Path) -> Stat {
        fstat(File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn what_programs_do_is_carried_out_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let rights = ReplayRights::of(&stat(place.path()));
        assert_eq!(rights.end(), 0);
        let there = stat(place.path());
        assert_eq!(rights.mode(&there, 0o6777), 0o6777);
        assert_eq!(rights.unless_withheld(&there, Err(Errno::PERM)), Err(Errno::PERM));
        let kept = |name: &[u8]| rights.withholds_xattr(name, || Ok(there));
        assert_eq!(kept(b"security.capability"), Ok(false));
    }

    /// A record of a mount in a user namespace said that the file is root's.
    #[test]
    fn a_file_that_keeps_its_owner_gets_no_set_id_bits_and_gives_its_group_no_more() {
        let place = tempfile::tempdir().unwrap();
        let (path, other) = (place.path().join("sh"), place.path().join("other"));
        for path in [&path, &other] {
            std::fs::write(path, "").unwrap();
        }
        let (there, other) = (stat(&path), stat(&other));
        let rights = ReplayRights::of(&stat(place.path()));
        rights.unless_withheld(&there, Err(Errno::PERM)).unwrap();
        for (asked, given) in [(0o4755, 0o755), (0o6770, 0o700), (0o664, 0o644), (0o640, 0o600)] {
            assert_eq!(rights.mode(&there, asked), given, "{asked:o}");
        }
        assert_eq!(rights.mode(&other, 0o4775), 0o4775);
        assert_eq!(
            rights.unless_withheld(&other, Err(Errno::IO)),
            Err(Errno::IO),
            "a disk that fails is no missing right"
        );
        assert_eq!(rights.end(), 1);
    }

    #[test]
    fn set_id_bits_return_only_under_the_directorys_owner() {
        if !geteuid().is_root() {
            eprintln!("\nSKIPPED: giving files away needs root");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let (path, below) = (place.path().join("sh"), place.path().join("below"));
        std::fs::write(&path, "").unwrap();
        std::fs::create_dir(&below).unwrap();
        chown(place.path(), Some(12_345), Some(12_345)).unwrap();
        let rights = ReplayRights::of(&stat(place.path()));
        let cases = [(0, 0o755), (12_346, 0o755), (12_345, 0o6755)];
        for (owner, given) in cases {
            chown(&path, Some(owner), Some(owner)).unwrap();
            assert_eq!(rights.mode(&stat(&path), 0o6755), given, "{owner}");
        }
        chown(&path, Some(12_345), Some(0)).unwrap();
        assert_eq!(rights.mode(&stat(&path), 0o2755), 0o755);
        let withholds = |name: &[u8]| rights.withholds_xattr(name, || Ok(stat(&path)));
        assert_eq!(withholds(b"security.capability"), Ok(false));
        chown(&path, Some(0), Some(0)).unwrap();
        assert_eq!(withholds(b"security.capability"), Ok(true));
        assert_eq!(withholds(b"user.anything"), Ok(false));
        // New files in it get its group: no rights of anybody's.
        assert_eq!(rights.mode(&stat(&below), 0o2775), 0o2775);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7000, 0);
    }
}
