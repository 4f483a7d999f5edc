//! The storage of a database: files that keep what was synced, whichever process dies.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::common::mounted::{MountFixture, can_survive, cannot_mount, cannot_survive};
use crate::users::file_system::FileSystem;
use crate::users::process::adopt_orphans;
use crate::users::testbed::UsersTestbed;

/// On a mount three lenders have to hold a write, on a volume two. The journal of a mount is so small that it
/// is emptied on the way.
const MOUNT_LENDERS: usize = 3;
const MOUNT_JOURNAL: &str = "4MiB";

enum Kind {
    Mount(MountFixture),
    Volume(UsersTestbed),
}

/// Arguments of a mount whose servers may be killed in any number.
fn supervised() -> [String; 3] {
    ["--restarts", "255", "--restart-at-once"].map(str::to_owned)
}

pub(crate) struct DatabaseTestbed {
    kind: Kind,
    /// In memory: what is beside needs no disk, and a server that starts after a crash syncs all its files
    /// one by one.
    beside: TempDir,
    /// Whether it was killed, and not brought back yet.
    is_down: bool,
}

impl DatabaseTestbed {
    /// Mounts a directory. `None`: the machine lacks something, and the test printed that it is skipped.
    pub(crate) fn mount(name: &str) -> Option<DatabaseTestbed> {
        if cannot_mount() {
            return None;
        }
        let mut mounted = MountFixture::new(name, MOUNT_LENDERS, MOUNT_JOURNAL);
        assert_eq!(mounted.unmount().code, 0);
        mounted.mount_with(&supervised());
        mounted.wait_for_members();
        Some(DatabaseTestbed::new(Kind::Mount(mounted)))
    }

    /// A directory on ext4 on an attached volume.
    pub(crate) fn volume(name: &str) -> Option<DatabaseTestbed> {
        adopt_orphans();
        UsersTestbed::new(name, FileSystem::Ext4, &[]).map(|site| DatabaseTestbed::new(Kind::Volume(site)))
    }

    fn new(kind: Kind) -> DatabaseTestbed {
        let ground = DatabaseTestbed {
            kind,
            beside: tempfile::tempdir_in("/dev/shm").unwrap(),
            is_down: false,
        };
        // Databases run as users of their own, and must get through to what is theirs.
        if let Kind::Mount(mounted) = &ground.kind {
            fs::set_permissions(mounted.directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
        }
        fs::create_dir_all(ground.kept()).unwrap();
        ground
    }

    pub(crate) fn is_mount(&self) -> bool {
        matches!(self.kind, Kind::Mount(_))
    }

    /// Where what is synced is kept.
    pub(crate) fn kept(&self) -> PathBuf {
        match &self.kind {
            Kind::Mount(mounted) => mounted.dir(),
            Kind::Volume(site) => site.mounted().join("base"),
        }
    }

    /// A directory of this machine's, which nothing happens to.
    pub(crate) fn beside(&self) -> PathBuf {
        self.beside.path().to_owned()
    }

    /// Gives both directories to a user.
    pub(crate) fn give_to(&self, user: &str) {
        let give = |directory: &Path| crate::users::testbed::give_to(user, directory);
        give(&self.beside());
        give(&self.kept());
    }

    /// Whether another server takes the place of one that dies by itself.
    pub(crate) fn replaces_servers(&self) -> bool {
        !self.is_mount() || can_survive()
    }

    /// The same; if not, prints why the test is skipped.
    pub(crate) fn can_replace_servers(&self) -> bool {
        !self.is_mount() || !cannot_survive()
    }

    /// Kills the server alone; returns when another has taken its place.
    pub(crate) fn kill_server(&self) {
        match &self.kind {
            Kind::Mount(mounted) => mounted.kill_server(),
            Kind::Volume(site) => site.kill_server(),
        }
    }

    /// Kills the process that serves the storage. Returns the last acknowledged number of that moment, as
    /// `told` reads it.
    ///
    /// On a mount it is read afterwards. On a volume it is read just before: while ext4's journal fails under
    /// several callers, Linux reports a sync as done to one whose commit failed for another.
    pub(crate) fn kill(&mut self, told: impl Fn() -> u64) -> u64 {
        assert!(!self.is_down, "it is killed once");
        self.is_down = true;
        match &mut self.kind {
            Kind::Mount(mounted) => {
                mounted.kill();
                told()
            }
            Kind::Volume(site) => site.crash_after(told),
        }
    }

    /// Brings it back if it was killed. `checked`: a volume's file system is held to its own checker.
    pub(crate) fn recover(&mut self, checked: bool) {
        if !std::mem::take(&mut self.is_down) {
            return;
        }
        match &mut self.kind {
            Kind::Mount(mounted) => drop(mounted.mount_with(&supervised())),
            Kind::Volume(site) if checked => site.recover(),
            Kind::Volume(site) => site.recover_unchecked(),
        }
    }

    /// A lender dies, with its memory.
    pub(crate) fn lose_lender(&mut self, which: u64) {
        match &mut self.kind {
            Kind::Mount(mounted) => mounted.lose_lender(which),
            Kind::Volume(site) => site.lose_lender(which),
        }
    }

    /// Starts another lender in the lost one's place, with an empty memory.
    pub(crate) fn replace_lender(&mut self) {
        match &mut self.kind {
            Kind::Mount(mounted) => mounted.replace_lender(),
            Kind::Volume(site) => site.replace_lender(),
        }
    }

    /// Waits until all lenders hold what is written: then another may be lost.
    pub(crate) fn wait_for_members(&self) {
        match &self.kind {
            Kind::Mount(mounted) => mounted.wait_for_members(),
            Kind::Volume(site) => site.wait_for_members(),
        }
    }

    /// Closed as its user would. What is kept, is on this machine's disk afterwards.
    pub(crate) fn close(self) {
        match self.kind {
            Kind::Mount(mut mounted) => {
                let ran = mounted.unmount();
                assert_eq!(ran.code, 0, "{}", ran.err);
            }
            Kind::Volume(site) => site.close(),
        }
    }
}
