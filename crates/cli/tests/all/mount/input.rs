//! Refusals, and their messages.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use crate::common::{LenderProcess, finish, netram, start};
use crate::mount::{MountFixture, cannot_mount};

#[test]
fn a_directory_in_use_is_not_mounted_and_one_that_is_mounted_not_twice() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("use", 1, "1MiB");
    let open = File::create(mounted.dir().join("open")).unwrap();
    let error = mounted.refused();
    assert!(error.contains("mounted already"), "{error}");
    let ran = mounted.unmount();
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains("is in use") && ran.err.contains("stop that process first"),
        "{}",
        ran.err
    );
    drop(open);
    assert_eq!(mounted.unmount().code, 0);
    let _open = File::open(mounted.dir().join("open")).unwrap();
    let error = mounted.refused();
    assert!(
        error.contains(&format!("process {}", std::process::id())),
        "{error}"
    );
    let ran = mounted.unmount();
    assert!(ran.err.contains("is not mounted by netram"), "{}", ran.err);
}

#[test]
fn a_directory_whose_newest_files_are_elsewhere_is_empty_until_it_is_recovered() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("guard", 1, "1MiB");
    fs::write(mounted.dir().join("log"), b"synced").unwrap();
    File::open(mounted.dir().join("log")).unwrap().sync_all().unwrap();
    mounted.kill();
    let ran = finish(netram().args(["mount", "detach"]).arg(mounted.dir()));
    assert!(
        ran.code == 1 && ran.err.contains("netram mount recover"),
        "{}",
        ran.err
    );
    // Nothing is there that a database could start with, and nothing can be made.
    assert!(!mounted.dir().join("log").exists());
    let made = fs::write(mounted.dir().join("log"), b"new");
    match made {
        Err(_) => (),
        // A file system without the flag: then it is found by the next mount.
        Ok(()) => {
            let error = mounted.refused();
            assert!(error.contains("log was added while"), "{error}");
            fs::remove_file(mounted.dir().join("log")).unwrap();
        }
    }
    let other = mounted.directory.path().join("other");
    let ran = finish(
        netram()
            .args(["mount", "attach"])
            .arg(mounted.dir())
            .arg("--on")
            .arg(&other),
    );
    assert!(ran.err.contains("belongs to the journal"), "{}", ran.err);
    let ran = mounted.recover();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("recovered, "), "{}", ran.out);
    assert_eq!(fs::read(mounted.dir().join("log")).unwrap(), b"synced");
    assert_eq!(
        fs::read_dir(mounted.dir()).unwrap().count(),
        1,
        "as it was before"
    );
    let ran = mounted.recover();
    assert!(ran.err.contains("is not a netram directory"), "{}", ran.err);
}

#[test]
fn without_the_lender_that_may_have_more_nothing_is_mounted_and_it_is_named() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("gone", 1, "1MiB");
    fs::write(mounted.dir().join("log"), b"synced").unwrap();
    File::open(mounted.dir().join("log")).unwrap().sync_all().unwrap();
    mounted.kill();
    let socket = mounted.lenders[0].address.clone();
    mounted.lenders.clear();
    let error = mounted.refused();
    assert!(error.contains(&socket), "{error}");
    // An empty one in its place does not say that there was nothing.
    fs::remove_file(socket.trim_start_matches("unix:")).ok();
    let empty = LenderProcess::start("gone-empty", &["--insecure", "--listen", &socket]);
    let error = mounted.refused();
    assert!(error.contains(&socket), "{error}");
    drop(empty);
    let ran = finish(
        netram()
            .args(["mount", "recover"])
            .arg(mounted.dir())
            .arg("--accept-loss"),
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("records may be lost"), "{}", ran.err);
    // The process alone was killed: what it had written is there for all that.
    assert_eq!(fs::read(mounted.dir().join("log")).unwrap(), b"synced");
}

#[test]
fn a_directory_that_cannot_be_mounted_keeps_its_files() {
    if cannot_mount() {
        return;
    }
    let mounted = MountFixture::new("socket", 0, "1MiB");
    fs::write(mounted.dir().join("kept"), b"kept").unwrap();
    drop(std::os::unix::net::UnixListener::bind(mounted.dir().join("socket")).unwrap());
    let error = mounted.refused();
    assert!(
        error.contains("socket is not a regular file, directory or symbolic link"),
        "{error}"
    );
    assert_eq!(fs::read(mounted.dir().join("kept")).unwrap(), b"kept");
    assert_eq!(
        fs::read_dir(mounted.dir()).unwrap().count(),
        2,
        "nothing else is there"
    );
}

#[test]
fn reserved_names_are_refused() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("names", 1, "1MiB");
    let dir = mounted.dir();
    fs::write(dir.join("a"), b"").unwrap();
    for name in [".netram", "NETRAM-READ-ME", "lost+found"] {
        let name = dir.join(name);
        for refused in [
            fs::write(&name, b""),
            fs::create_dir(&name),
            fs::rename(dir.join("a"), &name),
            fs::hard_link(dir.join("a"), &name),
            std::os::unix::fs::symlink("a", &name),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::PermissionDenied,
                "{}",
                name.display()
            );
        }
    }
    fs::create_dir(dir.join("d")).unwrap();
    fs::create_dir(dir.join("d/.netram")).unwrap();
    assert_eq!(mounted.unmount().code, 0);
    assert!(dir.join("d/.netram").is_dir());
}

#[test]
fn a_full_disk_is_an_error_for_writers_and_synced_files_stay() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("full", 0, "1MiB");
    // A small file system under the mount.
    let small = mounted.dir();
    let made = finish(
        std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "none"])
            .arg(&small),
    );
    assert_eq!(made.code, 0, "{}", made.err);
    mounted.mount_with(&[]);
    let file = File::create(small.join("log")).unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    let filled = (0..1000).find_map(|page| file.write_all_at(&[1; 4096], 4096 * page).err());
    assert_eq!(filled.and_then(|error| error.raw_os_error()), Some(28), "ENOSPC");
    file.set_len(6).unwrap();
    file.write_all_at(b"again!", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mounted.kill();
    mounted.mount();
    assert_eq!(fs::read(small.join("log")).unwrap(), b"again!");
    assert_eq!(mounted.unmount().code, 0);
    assert_eq!(fs::read(small.join("log")).unwrap(), b"again!");
    let _ = finish(std::process::Command::new("umount").arg(&small));
}

#[test]
fn a_wrong_argument_is_refused_before_anything_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, journal) = (directory.path().join("dir"), directory.path().join("dir/journal"));
    let mount = |words: &[&str]| finish(netram().args(["mount", "attach"]).arg(&dir).args(words));
    let on = journal.to_str().unwrap();
    let ran = mount(&["--on", on]);
    assert!(ran.code != 0 && !journal.exists(), "{}", ran.err);
    fs::create_dir(&dir).unwrap();
    let ran = mount(&["--on", on]);
    assert!(ran.err.contains("must not be inside each other"), "{}", ran.err);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    let beside = directory.path().join("journal");
    let ran = mount(&["--on", beside.to_str().unwrap(), "--lender", "unix:/nowhere"]);
    assert!(ran.err.contains("no cluster key"), "{}", ran.err);
    assert!(!beside.exists());
    let ran = mount(&["--on", beside.to_str().unwrap(), "--threads", "0"]);
    assert_eq!(ran.code, 2);
}

#[test]
fn lenders_that_do_not_count_are_reported() {
    if cannot_mount() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, journal) = (directory.path().join("dir"), directory.path().join("journal"));
    fs::create_dir(&dir).unwrap();
    let lender = LenderProcess::start("feed", &["--insecure", "--listen", "tcp://127.0.0.1:0"]);
    let mut command = netram();
    command
        .args(["mount", "attach"])
        .arg(&dir)
        .arg("--on")
        .arg(&journal);
    command.args(["--insecure", "--lender", &lender.address]);
    let mut server = start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut said = String::new();
    let mut lines = BufReader::new(server.stderr.take().unwrap());
    while !said.contains("syncs wait for the disk") {
        said.clear();
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it ended");
    }
    assert!(
        said.contains("power domain") && said.contains("--domain"),
        "{said}"
    );
    let ran = finish(netram().args(["mount", "detach"]).arg(&dir));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(server.wait().unwrap().success());
}
