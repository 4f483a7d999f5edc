//! A user's mounted directory, recovered or mounted by root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::mounted::{cannot_mount, wait_until};
use crate::common::{finish, program, skipped};

use super::{Canary, TwoHomes, USER, cannot_be_two, root_runs, user_does};

/// Mounts `dir` in the background; the path of its journal follows.
const ATTACH_ON: [&str; 8] = [
    "mount",
    "attach",
    "dir",
    "--insecure",
    "--journal-size",
    "4MiB",
    "--background",
    "--on",
];

/// Root runs it, in a mount namespace of its own: `/dev/fuse` is everybody's there, as udev makes it.
const GIVE_FUSE: &str = "
    mknod \"$NODE\" c 10 229
    chmod 666 \"$NODE\"
    mount --bind \"$NODE\" /dev/fuse
    exec setpriv --reuid \"$USER_ID\" --regid \"$USER_ID\" --clear-groups \
        unshare --user --map-root-user --mount sh -euc \"$ATTACK\"
";

/// The user runs it, root in a user namespace of their own: a shell that is root's and setuid there, synced,
/// and then the server's death.
const ATTACK: &str = "
    mkdir dir
    \"$NETRAM\" mount attach dir --on journal --journal-size 4MiB --insecure --restarts 0 >said 2>errors &
    server=$!
    until grep -q ^mounted said; do kill -0 $server || { cat errors >&2; exit 1; }; sleep 0.02; done
    cp /bin/sh dir/sh
    chmod 4755 dir/sh
    mkdir dir/group
    cp /bin/sh dir/group/sh
    chmod 2755 dir/group/sh
    sync dir/sh dir/group/sh dir
    kill -9 $server
    wait $server || true
";

/// Root replayed the user's records with root's rights: `-rwsr-xr-x 0 0 sh`.
#[test]
fn a_record_of_a_users_namespace_gives_no_setuid_shell() {
    if cannot_mount() || cannot_be_two() {
        return;
    }
    let homes = TwoHomes::new();
    let attacked = finish(
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-euc", GIVE_FUSE])
            .env("NODE", homes.root.join("fuse"))
            .env("USER_ID", USER.to_string())
            .env("ATTACK", ATTACK)
            .env("NETRAM", program())
            .current_dir(&homes.user),
    );
    if attacked.code != 0 {
        skipped(format_args!(
            "a user cannot mount in a namespace here: {}",
            attacked.err
        ));
        return;
    }
    let dir = homes.user.join("dir");
    assert!(!dir.join("sh").exists(), "the files are in the private directory");
    let recovered = root_runs(&["mount", "recover", "dir"], &homes.user);
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    assert!(
        recovered.err.contains(&format!("user {USER}")),
        "{}",
        recovered.err
    );
    for name in ["sh", "group/sh"] {
        let found = fs::metadata(dir.join(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (USER, USER), "{name}");
        assert_eq!(
            fs::read(dir.join(name)).unwrap(),
            fs::read("/bin/sh").unwrap(),
            "{name}"
        );
    }
    let nobodys = Command::new("find")
        .args(["dir", "-perm", "/6000", "!", "-user", &USER.to_string()])
        .current_dir(&homes.user)
        .output();
    assert_eq!(String::from_utf8_lossy(&nobodys.unwrap().stdout), "");
    assert!(!homes.user.join("dir/.netram").exists());
}

/// Files of root may return with its bits: then root has put them there. A user's directory has no use for a
/// setuid file of root's, however it came there.
#[test]
fn roots_own_recovery_gives_set_id_bits_to_the_directorys_owner_only() {
    if cannot_mount() || cannot_be_two() {
        return;
    }
    let homes = TwoHomes::new();
    user_does("mkdir dir", &homes.user);
    let journal = homes.root.join("journal");
    let attach = |more: &[&str]| {
        let mut words = vec![
            "mount",
            "attach",
            "dir",
            "--on",
            journal.to_str().unwrap(),
            "--background",
            "--restarts",
            "0",
        ];
        words.extend(more);
        let ran = root_runs(&words, &homes.user);
        assert_eq!(ran.code, 0, "{}", ran.err);
    };
    attach(&["--insecure", "--journal-size", "4MiB", "--checkpoint", "1h"]);
    let dir = homes.user.join("dir");
    for (name, owner) in [("roots", 0), ("theirs", USER)] {
        let path = dir.join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
    }
    kill_server_of(&dir);
    let recovered = root_runs(&["mount", "recover", "dir"], &homes.user);
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    let found = |name: &str| {
        let found = fs::metadata(dir.join(name)).unwrap();
        (found.uid(), found.mode() & 0o7777)
    };
    assert_eq!(found("theirs"), (USER, 0o4755));
    assert_eq!(found("roots"), (0, 0o755));
}

/// Record of a directory that root has mounted in the background.
pub(super) fn record_of(dir: &Path) -> PathBuf {
    let name = dir.to_str().unwrap().trim_matches('/').replace('%', "%%");
    let name = name.replace('-', "%-").replace('/', "-");
    Path::new("/run/netram-mount").join(format!("{name}.json"))
}

/// Kills the process that serves a directory in the background, which has no supervisor (`--restarts 0`).
pub(super) fn kill_server_of(dir: &Path) {
    let record = record_of(dir);
    let contents: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let pid = i32::try_from(contents["pid"].as_u64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    // Its mount is dead when the kernel has closed its files.
    wait_until("the server is gone", || fs::read_dir(dir).is_err());
}

/// Root moved the user's files into the directory that a link named, and gave it to the user.
#[test]
fn a_link_in_the_place_of_the_files_leads_root_nowhere() {
    if cannot_mount() || cannot_be_two() {
        return;
    }
    let homes = TwoHomes::new();
    let elsewhere = homes.root.join("etc");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("passwd"), "root").unwrap();
    let (canary, file) = (Canary::of(&elsewhere), Canary::of(&elsewhere.join("passwd")));
    let plant = format!(
        "mkdir -p dir/.netram; chmod 700 dir/.netram; ln -s {} dir/.netram/files; echo own >dir/ld.so.preload",
        elsewhere.display()
    );
    user_does(&plant, &homes.user);
    let journal = homes.root.join("journal");
    let journal = journal.to_str().unwrap();
    let attach = [&ATTACH_ON[..], &[journal]].concat();
    let refused = root_runs(&attach, &homes.user);
    assert_ne!(refused.code, 0, "{}", refused.out);
    assert!(
        refused.err.contains("dir/.netram belongs to user 12345"),
        "{}",
        refused.err
    );
    // It names a journal of root's, as if root had mounted the directory.
    user_does(&format!("printf %s {journal} >dir/.netram/home"), &homes.user);
    for words in [&attach[..], &["mount", "recover", "dir"]] {
        let refused = root_runs(words, &homes.user);
        assert_ne!(refused.code, 0, "{}", refused.out);
    }
    // The private directory itself is a link to one of root's.
    let private = homes.root.join("private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    user_does(
        &format!("rm -r dir/.netram; ln -s {} dir/.netram", private.display()),
        &homes.user,
    );
    let refused = root_runs(&attach, &homes.user);
    assert!(refused.err.contains("is not a directory"), "{}", refused.err);
    assert_eq!(fs::read_dir(&private).unwrap().count(), 0);
    canary.lives("the directory");
    file.lives("the file in it");
    assert!(homes.user.join("dir/ld.so.preload").exists());
}

/// Root wrote its note over the file that the link named.
#[test]
fn a_link_of_the_notes_name_is_not_written_through() {
    if cannot_mount() || cannot_be_two() {
        return;
    }
    let homes = TwoHomes::new();
    let canary = Canary::new(&homes.root.join("secret"));
    let plant = format!("mkdir dir; ln -s {} dir/NETRAM-READ-ME", canary.path.display());
    user_does(&plant, &homes.user);
    let journal = homes.root.join("journal");
    let journal = journal.to_str().unwrap();
    let attach = [&ATTACH_ON[..], &[journal]].concat();
    let attached = root_runs(&attach, &homes.user);
    assert_eq!(attached.code, 0, "{}", attached.err);
    canary.lives("mounted");
    let detached = root_runs(&["mount", "detach", "dir"], &homes.user);
    assert_eq!(detached.code, 0, "{}", detached.err);
    canary.lives("given back");
}

/// Root's journal is opened with root's rights, and where a user can replace it that is refused by name.
#[test]
fn a_journal_in_the_reach_of_a_user_is_refused_by_name() {
    if cannot_mount() || cannot_be_two() {
        return;
    }
    let homes = TwoHomes::new();
    user_does("mkdir dir", &homes.user);
    let created = root_runs(&["journal", "create", "journal", "--size", "1MiB"], &homes.root);
    assert_eq!(created.code, 0, "{}", created.err);
    let canary = Canary::of(&homes.root.join("journal/view"));
    user_does(
        &format!("ln -s {}/journal link", homes.root.display()),
        &homes.user,
    );
    for words in [
        &["journal", "recover", "link"][..],
        &["journal", "delete", "link", "--yes"],
        &["mount", "attach", "dir", "--on", "link", "--insecure"],
    ] {
        let refused = root_runs(words, &homes.user);
        assert_ne!(refused.code, 0, "{words:?}: {}", refused.out);
        let names_path = refused.err.contains("link") && refused.err.contains(&format!("user {USER}"));
        assert!(names_path || words[1] == "delete", "{words:?}: {}", refused.err);
    }
    canary.lives("root's own journal");
}
