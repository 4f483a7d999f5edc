//! Root works on what an ordinary user has prepared: with real users, real namespaces and real links, each
//! attack as it was carried out.
//!
//! Where this process is not root, or the user may not run the program, these tests say so and leave.

mod lenders;
mod mounted;
mod paths;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};

use crate::common::{CommandOutput, finish, netram, program, skipped};

/// The user, whom the system does not know.
pub(crate) const USER: u32 = 12_345;

/// Whether root cannot become the user here. If so, prints why the test is skipped.
pub(crate) fn cannot_be_two() -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can be root and a user");
        return true;
    }
    let ran = finish(as_user("\"$NETRAM\" --version", Path::new("/")).env("NETRAM", program()));
    if ran.code != 0 {
        skipped(format_args!(
            "a user needs setpriv, and the right to run {}: {}",
            program(),
            ran.err
        ));
    }
    ran.code != 0
}

/// A shell of the user's.
pub(crate) fn as_user(script: &str, directory: &Path) -> Command {
    let user = USER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["sh", "-euc", script]).current_dir(directory);
    command.env("NETRAM", program()).env("HOME", directory);
    command
}

fn user_does(script: &str, directory: &Path) -> CommandOutput {
    let ran = finish(&mut as_user(script, directory));
    assert_eq!(ran.code, 0, "{script}: {}", ran.err);
    ran
}

/// Root runs the program.
fn root_runs(words: &[&str], directory: &Path) -> CommandOutput {
    finish(netram().args(words).current_dir(directory))
}

/// A directory of the user's, and one of root's that the user cannot read.
pub(crate) struct TwoHomes {
    _directory: tempfile::TempDir,
    pub(crate) user: PathBuf,
    root: PathBuf,
}

impl TwoHomes {
    pub(crate) fn new() -> TwoHomes {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let [user, root] = ["user", "root"].map(|name| directory.path().join(name));
        for path in [&user, &root] {
            fs::create_dir(path).unwrap();
        }
        chown(&user, Some(USER), Some(USER)).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o700)).unwrap();
        TwoHomes {
            _directory: directory,
            user,
            root,
        }
    }
}

impl Drop for TwoHomes {
    fn drop(&mut self) {
        let dir = self.user.join("dir");
        let _ = unmount(&dir, UnmountFlags::DETACH);
        // A taken directory is immutable, and would remain.
        let _ = finish(Command::new("chattr").arg("-i").arg(&dir));
        for ending in ["json", "log"] {
            let _ = fs::remove_file(mounted::record_of(&dir).with_extension(ending));
        }
    }
}

/// State of a file or directory, to be compared with what it is later.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Canary {
    path: PathBuf,
    inode: u64,
    owner: (u32, u32),
    mode: u32,
    changed: (i64, i64),
    contents: Vec<u8>,
}

impl Canary {
    /// A secret of root's, on whose path the user's links lead.
    fn new(path: &Path) -> Canary {
        fs::write(path, "as it was").unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        Canary::of(path)
    }

    fn of(path: &Path) -> Canary {
        let found = fs::symlink_metadata(path).unwrap();
        let contents = match found.is_dir() {
            false => fs::read(path).unwrap(),
            true => {
                let names = fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name());
                let mut names: Vec<_> = names.collect();
                names.sort();
                format!("{names:?}").into_bytes()
            }
        };
        Canary {
            path: path.to_owned(),
            inode: found.ino(),
            owner: (found.uid(), found.gid()),
            mode: found.mode(),
            changed: (found.ctime(), found.ctime_nsec()),
            contents,
        }
    }

    fn lives(&self, what: &str) {
        let now = Canary::of(&self.path);
        // The contents would not be readable in a message.
        assert!(
            now == *self,
            "{what}: {} changed: owner {:?}, mode {:o}, {} bytes; it was {:?}, {:o}, {} bytes",
            self.path.display(),
            now.owner,
            now.mode,
            now.contents.len(),
            self.owner,
            self.mode,
            self.contents.len()
        );
    }
}
