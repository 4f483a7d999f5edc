//! Every path that a command opens as root: each file of each kind of data in turn is a link to a file of
//! root's elsewhere, which has what the command would want there. Whatever the command says, that file stays.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::mounted::cannot_mount;
use crate::common::{CommandOutput, finish, netram, program};

use super::mounted::kill_server_of;
use super::{Canary, TwoHomes, USER, cannot_be_two, root_runs, user_does};

/// A kind of data, how its user makes it, and the commands by which root works on it.
struct DataKind {
    name: &'static str,
    make: &'static [&'static str],
    commands: &'static [&'static [&'static str]],
}

const KINDS: [DataKind; 5] = [
    DataKind {
        name: "journal",
        make: &["journal", "create", "data", "--size", "64KiB"],
        commands: &[
            &["journal", "recover", "data"],
            &["journal", "check", "data"],
            &["journal", "status", "data"],
            &["journal", "delete", "data"],
        ],
    },
    DataKind {
        name: "store",
        make: &[
            "rvm",
            "create",
            "data",
            "--segment",
            "bank.data",
            "--size",
            "64KiB",
            "--log-size",
            "64KiB",
        ],
        commands: &[
            &["rvm", "status", "data"],
            &["rvm", "check", "data"],
            &["rvm", "apply", "data"],
            &["rvm", "grow", "data", "--size", "128KiB"],
            &["journal", "recover", "data"],
        ],
    },
    DataKind {
        name: "database",
        make: &[
            "sqlite",
            "create",
            "app.db",
            "--seats",
            "1",
            "--journal-size",
            "64KiB",
        ],
        commands: &[
            &["sqlite", "status", "app.db"],
            &["sqlite", "recover", "app.db"],
            &["sqlite", "detach", "app.db"],
        ],
    },
    DataKind {
        name: "volume",
        make: &[
            "volume",
            "create",
            "data",
            "--size",
            "64KiB",
            "--journal-size",
            "64KiB",
        ],
        commands: &[
            &["volume", "recover", "data"],
            &["volume", "check", "data"],
            &["volume", "status", "data"],
            &["volume", "grow", "data", "--size", "128KiB"],
            &["volume", "serve", "data", "--listen", SOCKET],
            &["volume", "delete", "data"],
        ],
    },
    DataKind {
        name: "region",
        make: &[
            "shared",
            "create",
            "data",
            "--size",
            "64KiB",
            "--log-size",
            "1MiB",
        ],
        commands: &[
            &["shared", "check", "data"],
            &["shared", "status", "data"],
            &["shared", "accept-loss", "data", "1"],
            &["shared", "serve", "data", "--listen", SOCKET, "--insecure"],
        ],
    },
];

/// Regular files below a directory.
fn files_in(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap().is_dir() {
            true => files_in(&path, found),
            false => found.push(path),
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let ran = finish(
        Command::new("cp")
            .args(["-a", "--sparse=always"])
            .args([from, to]),
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Stands for the address of a socket in the directory in which a command runs.
const SOCKET: &str = "unix:SOCKET";

/// Root runs a command, which may serve if it does not need the file: then it is told to stop.
fn for_a_moment(words: &[&str], directory: &Path) -> CommandOutput {
    let serves = words.contains(&"serve");
    let mut command = match serves {
        true => Command::new("timeout"),
        false => netram(),
    };
    if serves {
        command
            .args(["--signal=TERM", "--preserve-status", "0.5"])
            .arg(program());
    }
    let socket = format!("unix:{}/socket", directory.display());
    let words = words
        .iter()
        .map(|word| if *word == SOCKET { &*socket } else { word });
    finish(command.args(words).current_dir(directory))
}

/// Replaces each file by a link, and has root run each command.
fn walk(kind: &DataKind, owner: u32) {
    let homes = TwoHomes::new();
    let home = if owner == 0 { &homes.root } else { &homes.user };
    let model = home.join("model");
    fs::create_dir(&model).unwrap();
    chown(&model, Some(owner), Some(owner)).unwrap();
    let made = match owner {
        0 => root_runs(kind.make, &model),
        _ => user_does(&format!("\"$NETRAM\" {}", kind.make.join(" ")), &model),
    };
    assert_eq!(made.code, 0, "{}: {}", kind.name, made.err);
    let mut files = Vec::new();
    files_in(&model, &mut files);
    assert!(files.len() >= 4, "{}: {files:?}", kind.name);
    for (number, file) in files.iter().enumerate() {
        let inside = file.strip_prefix(&model).unwrap();
        assert_eq!(file.metadata().unwrap().uid(), owner, "{}", file.display());
        for (turn, words) in kind.commands.iter().enumerate() {
            let place = home.join(format!("{number}-{turn}"));
            copy(&model, &place);
            let (link, target) = (
                place.join(inside),
                homes.root.join(format!("canary-{number}-{turn}")),
            );
            fs::rename(&link, &target).unwrap();
            chown(&target, Some(0), Some(0)).unwrap();
            symlink(&target, &link).unwrap();
            std::os::unix::fs::lchown(&link, Some(owner), Some(owner)).unwrap();
            let canary = Canary::of(&target);
            let ran = for_a_moment(words, &place);
            let what = format!(
                "{words:?} with a link for {} of user {owner}: {}",
                inside.display(),
                ran.err
            );
            canary.lives(&what);
            // A server on a busy machine may be told to stop before it can take the signal.
            let is_told = words.contains(&"serve") && ran.code == 128 + 15;
            assert!(ran.code != 101 && (ran.code < 128 || is_told), "{what}");
            fs::remove_dir_all(&place).unwrap();
        }
    }
}

fn walk_of(name: &str) {
    if cannot_be_two() {
        return;
    }
    let kind = KINDS.iter().find(|kind| kind.name == name);
    for owner in [USER, 0] {
        walk(kind.expect("it is a kind"), owner);
    }
}

#[test]
fn no_command_of_roots_follows_a_link_in_the_place_of_a_journals_file() {
    walk_of("journal");
}

#[test]
fn no_command_of_roots_follows_a_link_in_the_place_of_a_stores_file() {
    walk_of("store");
}

#[test]
fn no_command_of_roots_follows_a_link_in_the_place_of_a_databases_file() {
    walk_of("database");
}

#[test]
fn no_command_of_roots_follows_a_link_in_the_place_of_a_volumes_file() {
    walk_of("volume");
}

#[test]
fn no_command_of_roots_follows_a_link_in_the_place_of_a_regions_file() {
    walk_of("region");
}

/// A lender's own files: the store, the lock of its copies, and the lock of its socket.
#[test]
fn no_lender_of_roots_follows_a_link_in_the_place_of_its_files() {
    if cannot_be_two() {
        return;
    }
    let own = format!("test-{}-walked", std::process::id());
    let spills = [".spill", ".spill.next"].map(|end| format!("data/{own}{end}"));
    let names = [
        "store.mem",
        "data/.lock",
        "socket.lock",
        "socket",
        &spills[0],
        &spills[1],
    ];
    for name in names {
        let homes = TwoHomes::new();
        fs::create_dir(homes.root.join("data")).unwrap();
        let canary = Canary::new(&homes.root.join("canary"));
        symlink(&canary.path, homes.root.join(name)).unwrap();
        let mut words = vec![
            "lender",
            "serve",
            "--insecure",
            "--memory",
            "1MiB",
            "--listen",
            SOCKET,
        ];
        words.extend(["--name", &own, "--data", "data", "--spill", "data"]);
        if name == "store.mem" {
            words.extend(["--store", name]);
        }
        let ran = for_a_moment(&words, &homes.root);
        let _ = fs::remove_file(format!("/dev/shm/netram-0-{own}.mem"));
        canary.lives(&format!("a link for {name}: {}", ran.err));
        assert_ne!(ran.code, 0, "{name}: {}", ran.out);
        assert!(
            ran.err.contains(name) || ran.err.contains("data"),
            "{name}: {}",
            ran.err
        );
    }
}

/// Files that netram makes can be read by its owner only, whatever the umask allows.
#[test]
fn nothing_that_netram_makes_is_for_everybody() {
    if cannot_be_two() {
        return;
    }
    for kind in &KINDS {
        let homes = TwoHomes::new();
        user_does(
            &format!("umask 000; \"$NETRAM\" {}", kind.make.join(" ")),
            &homes.user,
        );
        let mut files = Vec::new();
        files_in(&homes.user, &mut files);
        for file in files {
            let private = file.ancestors().skip(1).take_while(|path| *path != homes.user);
            let is_inside = { private }.any(|path| path.metadata().unwrap().mode() & 0o077 == 0);
            let mode = file.metadata().unwrap().mode() & 0o777;
            // The note at a managed database's path is there to be read.
            let is_note = file.ends_with("app.db") && mode == 0o444;
            assert!(
                mode & 0o077 == 0 || is_inside || is_note,
                "{}: {mode:o}",
                file.display()
            );
        }
    }
}

/// A user's directory that root had mounted on a journal of its own, when the server was killed. Returns the
/// files that a recovery opens.
fn killed_mount(homes: &TwoHomes) -> Vec<PathBuf> {
    user_does("mkdir dir; echo own >dir/file", &homes.user);
    let (dir, journal) = (homes.user.join("dir"), homes.root.join("journal"));
    let attach = [
        "mount",
        "attach",
        "dir",
        "--insecure",
        "--journal-size",
        "4MiB",
        "--background",
        "--restarts",
        "0",
        "--on",
    ];
    let attached = finish(netram().args(attach).arg(&journal).current_dir(&homes.user));
    assert_eq!(attached.code, 0, "{}", attached.err);
    fs::write(dir.join("log"), "synced").unwrap();
    fs::File::open(dir.join("log")).unwrap().sync_all().unwrap();
    kill_server_of(&dir);
    let detached = root_runs(&["mount", "detach", "dir"], &homes.user);
    assert!(detached.err.contains("is gone"), "{}", detached.err);
    // Not every file system keeps the flag.
    finish(Command::new("chattr").arg("-i").arg(&dir));
    let private = dir.join(".netram");
    let mut files = vec![dir.join("NETRAM-READ-ME")];
    for directory in [&private, &journal] {
        files_in(directory, &mut files);
    }
    files.retain(|path| !path.starts_with(private.join("files")));
    files.sort();
    files
}

/// The private directory is root's. Whatever stands in the place of its files, or of the journal's, root
/// writes through no link.
#[test]
fn no_recovery_of_roots_follows_a_link_in_the_place_of_a_file_of_a_mount() {
    if cannot_mount() || cannot_be_two() {
        return;
    }
    let mut recovered = 0;
    for number in 0.. {
        let homes = TwoHomes::new();
        let files = killed_mount(&homes);
        assert!(files.len() >= 9, "{files:?}");
        let Some(file) = files.get(number) else {
            assert!((1..number).contains(&recovered), "{recovered} of {number}");
            return;
        };
        let target = homes.root.join("canary");
        fs::rename(file, &target).unwrap();
        symlink(&target, file).unwrap();
        let canary = Canary::of(&target);
        let ran = root_runs(&["mount", "recover", "dir"], &homes.user);
        let what = format!("a link for {}: {}", file.display(), ran.err);
        canary.lives(&what);
        if ran.code == 0 {
            // The link itself was replaced.
            assert_eq!(fs::read(homes.user.join("dir/log")).unwrap(), b"synced", "{what}");
            recovered += 1;
        }
        finish(Command::new("chattr").arg("-i").arg(homes.user.join("dir")));
    }
}
