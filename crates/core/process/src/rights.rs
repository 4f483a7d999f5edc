//! Rights with which root works on a path: root's own, or those of the user whose path it is.
//!
//! A user who can replace a component of a path decides where it leads. Whoever works there as root does what
//! that user wants, with rights that the user lacks. So root keeps its rights only on paths that nobody else
//! can change. On a path of a user's it becomes that user, and then the kernel refuses what the user may not
//! do ([`become_user`]).

use std::collections::VecDeque;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Number that the kernel shows for owners without a number in this user namespace.
const OVERFLOW: u32 = 65_534;
/// Maximum number of symbolic links on a path, as for the kernel.
const LINKS_MAX: usize = 40;
/// Directories that the user's programs look for under other names than root's do.
const OWN_DIRECTORIES: [&str; 5] = [
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
];

/// The user whose path it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathOwner {
    /// Number of the user.
    pub user: u32,
    /// Number of the file's group.
    pub group: u32,
    /// The file or directory that belongs to the user.
    pub path: PathBuf,
}

/// Why root does not work on a path.
#[derive(Debug, thiserror::Error)]
pub enum RightsError {
    /// A file of root's lies where another user can replace it.
    #[error(
        "{} belongs to root, but {} {}: root would do there what that user wants. Move it to a directory that only root can write, or give it to \
         the user who works with it (chown -R)", .path.display(), .exposed.display(), .how
    )]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Directory or link on the way to it.
        exposed: PathBuf,
        /// The user that can change it.
        how: String,
    },
    /// The paths belong to two users.
    #[error(
        "{} belongs to user {} and {} to user {}: root works with the rights of the owner, and that must be one",
        .first.path.display(), .first.user, .second.path.display(), .second.user
    )]
    TwoOwners {
        /// One of the paths.
        first: PathOwner,
        /// Another one.
        second: PathOwner,
    },
    /// The path cannot be looked at.
    #[error("{}: {source}", .path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Whether files of this user are as good as root's own: root's, or those of an owner outside of this user
/// namespace, whom root here cannot become and need not fear.
pub fn is_roots(user: u32) -> bool {
    static UNMAPPED: OnceLock<bool> = OnceLock::new();
    let is_unmapped = || {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        !map.is_empty() && !is_mapped(&map, OVERFLOW)
    };
    user == 0 || user == OVERFLOW && *UNMAPPED.get_or_init(is_unmapped)
}

fn is_mapped(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        match (numbers.next(), numbers.nth(1)) {
            (Some(Ok(first)), Some(Ok(count))) => (first..first + count).contains(&user.into()),
            _ => false,
        }
    })
}

/// The user with whose rights root must work on these paths, which need not exist. `None`: this process keeps
/// its rights, because it is not root or because nobody else can change the paths.
///
/// # Errors
///
/// [`RightsError`] if the paths are not of one user, or root's in the reach of another.
pub fn owner_of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Option<PathOwner>, RightsError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let mut found: Option<PathOwner> = None;
    for path in paths {
        match (owner_of_path(path)?, &found) {
            (Some(second), Some(first)) if first.user != second.user => {
                let first = first.clone();
                return Err(RightsError::TwoOwners { first, second });
            }
            (Some(owner), None) => found = Some(owner),
            _ => (),
        }
    }
    Ok(found)
}

/// Component of a path that somebody other than root can replace.
struct ExposedAt {
    path: PathBuf,
    how: String,
}

/// Walks the path as the kernel does, and remembers who can change where it leads.
fn owner_of_path(path: &Path) -> Result<Option<PathOwner>, RightsError> {
    let system = |source| RightsError::System {
        path: path.to_path_buf(),
        source,
    };
    let whole = std::path::absolute(path).map_err(system)?;
    let mut left: VecDeque<OsString> = components(&whole);
    let (mut at, mut exposed, mut links) = (PathBuf::from("/"), None, 0);
    let mut last = fs::symlink_metadata(&at).map_err(system)?;
    while let Some(name) = left.pop_front() {
        if exposed.is_none() {
            exposed = exposure_of(&at, &last);
        }
        if name == ".." {
            at.pop();
            last = fs::symlink_metadata(&at).map_err(system)?;
            continue;
        }
        let next = at.join(&name);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            // It is to be created: it will belong to whoever has the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            // A mount whose server is gone cannot be looked at; its path is the kernel's.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => break,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => break,
            Err(error) => return Err(system(error)),
        };
        if !found.is_symlink() {
            (at, last) = (next, found);
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(system(rustix::io::Errno::LOOP.into()));
        }
        if !is_roots(found.uid()) {
            exposed.get_or_insert(ExposedAt {
                how: format!("is a link of user {}", found.uid()),
                path: next.clone(),
            });
        }
        let target = fs::read_link(&next).map_err(system)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
            last = fs::symlink_metadata(&at).map_err(system)?;
        }
        for name in components(&target).into_iter().rev() {
            left.push_front(name);
        }
    }
    match (is_roots(last.uid()), exposed) {
        (false, _) => Ok(Some(PathOwner {
            user: last.uid(),
            group: last.gid(),
            path: at,
        })),
        (true, None) => Ok(None),
        (true, Some(ExposedAt { path: exposed, how })) => Err(RightsError::Exposed {
            path: path.to_path_buf(),
            exposed,
            how,
        }),
    }
}

/// Says how somebody besides root can replace a name in this directory; `None` if nobody can.
fn exposure_of(directory: &Path, found: &Metadata) -> Option<ExposedAt> {
    let mode = found.mode();
    // The sticky bit leaves root's names to root, as in /tmp.
    let is_sticky = mode & 0o1000 != 0;
    let is_others = mode & 0o002 != 0 || mode & 0o020 != 0 && found.gid() != 0;
    let how = match () {
        () if !is_roots(found.uid()) => format!("belongs to user {}", found.uid()),
        () if is_others && !is_sticky => format!("can be written by others (mode {:04o})", mode & 0o7777),
        () => return None,
    };
    let path = directory.to_path_buf();
    Some(ExposedAt { path, how })
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

/// Number of the user with this name or number, and of that user's group; `None` if the system knows no such
/// user.
///
/// # Errors
///
/// The system cannot be asked.
pub fn user_named(name: &str) -> io::Result<Option<(u32, u32)>> {
    let asked = Command::new("getent")
        .args(["passwd", "--", name])
        .stdin(Stdio::null())
        .output()?;
    let entry = String::from_utf8_lossy(&asked.stdout);
    let mut numbers = entry.trim_end().split(':').skip(2).map(str::parse);
    match (asked.status.success(), numbers.next(), numbers.next()) {
        (true, Some(Ok(user)), Some(Ok(group))) => Ok(Some((user, group))),
        _ => Ok(None),
    }
}

/// Facts of the system about a user.
struct UserAccount {
    name: Option<OsString>,
    home: Option<OsString>,
    group: u32,
    groups: Vec<u32>,
}

/// Asks the system, through its own programs: the user may be known to a directory service only.
fn account_of(owner: &PathOwner) -> UserAccount {
    let said = |program: &str, words: &[&str]| {
        let ran = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        ran.ok().filter(|ran| ran.status.success()).map(|ran| ran.stdout)
    };
    let (user, group) = (owner.user.to_string(), owner.group.to_string());
    let Some(entry) = said("getent", &["passwd", &user]) else {
        // Nobody knows the user. A group that nobody knows either gives no rights to other files. Root's
        // group is always known; if it is not, there is nobody to ask.
        let can_ask = || said("getent", &["group", "0"]).is_some();
        let is_unknown = said("getent", &["group", &group]).is_none() && can_ask();
        let group = if is_unknown { owner.group } else { OVERFLOW };
        return UserAccount {
            name: None,
            home: None,
            group,
            groups: Vec::new(),
        };
    };
    let entry = entry.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let fields: Vec<&[u8]> = entry.split(|byte| *byte == b':').collect();
    let field = |index: usize| fields.get(index).map(|field| OsStr::from_bytes(field).to_owned());
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<u32>().ok();
    let groups = said("id", &["-G", "--", &user]).unwrap_or_default();
    UserAccount {
        name: field(0),
        home: field(5).filter(|home| !home.is_empty()),
        group: fields.get(3).and_then(|text| number(text)).unwrap_or(OVERFLOW),
        groups: groups.split(u8::is_ascii_whitespace).filter_map(number).collect(),
    }
}

/// Gives up root for the rights of the user, for good, and starts this program again with the same arguments.
/// Returns only an error, after which this process has no rights that it may use.
///
/// The thread that calls this should be the only one: the others end when the program starts again.
pub fn become_user(owner: &PathOwner) -> io::Error {
    let account = account_of(owner);
    let give_up = || -> io::Result<()> {
        let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(account.group));
        let groups: Vec<Gid> = account.groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups)?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
        Ok(())
    };
    if let Err(error) = give_up() {
        return error;
    }
    let mut again = Command::new("/proc/self/exe");
    let mut arguments = env::args_os();
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    again.args(arguments);
    for name in OWN_DIRECTORIES {
        again.env_remove(name);
    }
    for (name, value) in [
        ("HOME", &account.home),
        ("USER", &account.name),
        ("LOGNAME", &account.name),
    ] {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    again.exec()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const USER: u32 = 12_345;
    const ANOTHER: u32 = 12_346;

    fn is_root() -> bool {
        let root = geteuid().is_root();
        if !root {
            eprintln!("\nSKIPPED: giving files away needs root");
        }
        root
    }

    fn directory(path: &Path, user: u32, mode: u32) {
        fs::create_dir(path).unwrap();
        chown(path, Some(user), Some(user)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn user_of(path: &Path) -> Option<u32> {
        owner_of([path]).unwrap().map(|owner| owner.user)
    }

    #[test]
    fn root_keeps_its_rights_where_nobody_else_can_write() {
        if !is_root() {
            return;
        }
        let there = tempfile::tempdir().unwrap();
        assert_eq!(user_of(&there.path().join("new")), None);
        // As in /tmp, where the sticky bit protects what is root's.
        directory(&there.path().join("sticky"), 0, 0o1777);
        directory(&there.path().join("sticky/ours"), 0, 0o755);
        assert_eq!(user_of(&there.path().join("sticky/ours/new")), None);
        symlink("sticky/ours", there.path().join("link")).unwrap();
        assert_eq!(user_of(&there.path().join("link/../ours")), None);
    }

    #[test]
    fn root_becomes_the_owner_of_a_path_that_exists_or_will() {
        if !is_root() {
            return;
        }
        let there = tempfile::tempdir().unwrap();
        let home = there.path().join("home");
        directory(&home, USER, 0o755);
        assert_eq!(user_of(&home.join("new")), Some(USER));
        directory(&home.join("journal"), USER, 0o755);
        assert_eq!(user_of(&home.join("journal")), Some(USER));
        let owner = owner_of([&home.join("journal") as &Path]).unwrap().unwrap();
        assert_eq!((owner.user, owner.group), (USER, USER));
        // Nobody but the owner could have made it.
        directory(&there.path().join("given"), USER, 0o755);
        assert_eq!(user_of(&there.path().join("given")), Some(USER));
    }

    #[test]
    fn a_path_of_roots_in_the_reach_of_a_user_is_refused_by_name() {
        if !is_root() {
            return;
        }
        let there = tempfile::tempdir().unwrap();
        let home = there.path().join("home");
        directory(&home, USER, 0o755);
        directory(&home.join("roots"), 0, 0o755);
        let open = there.path().join("open");
        directory(&open, 0, 0o777);
        directory(&open.join("roots"), 0, 0o755);
        let precious = there.path().join("precious");
        directory(&precious, 0, 0o700);
        symlink(&precious, home.join("link")).unwrap();
        symlink(&precious, there.path().join("theirs")).unwrap();
        let link = there.path().join("theirs");
        rustix::fs::chownat(
            rustix::fs::CWD,
            &link,
            Some(Uid::from_raw(USER)),
            None,
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
        for path in [
            home.join("roots"),
            open.join("roots"),
            open.join("new"),
            home.join("link"),
            home.join("link/log"),
            link,
            home.join("../home/link"),
        ] {
            let refused = owner_of([&path as &Path]).unwrap_err();
            assert!(matches!(refused, RightsError::Exposed { .. }), "{path:?}");
            assert!(refused.to_string().contains(&path.display().to_string()));
        }
    }

    #[test]
    fn two_owners_are_refused_and_roots_own_paths_do_not_count() {
        if !is_root() {
            return;
        }
        let there = tempfile::tempdir().unwrap();
        let [one, two, ours] = ["one", "two", "ours"].map(|name| there.path().join(name));
        directory(&one, USER, 0o755);
        directory(&two, ANOTHER, 0o755);
        directory(&ours, 0, 0o755);
        let found = owner_of([&ours as &Path, &one]).unwrap();
        assert_eq!(found.map(|owner| owner.user), Some(USER));
        assert!(matches!(
            owner_of([&one as &Path, &two]),
            Err(RightsError::TwoOwners { .. })
        ));
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        assert_eq!(user_named("root").unwrap(), Some((0, 0)));
        assert_eq!(user_named("0").unwrap(), Some((0, 0)));
        assert_eq!(user_named("no-such-user").unwrap(), None);
        assert_eq!(user_named("--help").unwrap(), None);
    }

    #[test]
    fn an_owner_outside_of_the_namespace_is_as_good_as_root() {
        let own = "         0       1000          1\n";
        assert!(is_mapped(own, 0) && !is_mapped(own, OVERFLOW));
        assert!(is_mapped("0 0 4294967295\n", OVERFLOW));
        assert!(!is_mapped("", 0));
    }
}
