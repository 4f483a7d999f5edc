//! A user who wants to keep root's lender from starting.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{netram, skipped, start};

use super::{TwoHomes, USER, as_user, cannot_be_two};

/// A process that is killed in the end.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process and waits for its first line.
fn started(command: &mut Command) -> (Killed, String) {
    let mut child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut said = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut said).unwrap();
    (Killed(child), said)
}

/// Files in `/dev/shm` of lenders of this test.
fn stores(name: &str) -> Vec<PathBuf> {
    let all = fs::read_dir("/dev/shm")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let ours = |path: &PathBuf| {
        let name_of = path.to_string_lossy();
        name_of.contains(name) && name_of.ends_with(".mem")
    };
    all.filter(ours).collect()
}

struct NoStores(String);

impl Drop for NoStores {
    fn drop(&mut self) {
        for path in stores(&self.0) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The lender refused to start, or waited for ever for the lock of the directory.
#[test]
fn a_stranger_with_its_names_and_locks_keeps_no_lender_from_starting() {
    if cannot_be_two() {
        return;
    }
    if !Path::new("/usr/bin/flock").exists() {
        skipped("holding a lock needs flock(1)");
        return;
    }
    let homes = TwoHomes::new();
    // As /run is: anybody may open it.
    let run = homes.user.parent().unwrap().to_owned();
    let name = format!("test-{}-squatted", std::process::id());
    let _no_stores = NoStores(name.clone());
    let taken = format!("/dev/shm/netram-0-{name}.mem");
    let script = format!("echo theirs >{taken}; exec flock --no-fork . sh -c 'echo held; exec sleep 600'");
    let (_holder, held) = started(as_user(&script, &run).stdin(Stdio::null()));
    assert_eq!(held, "held\n");
    let socket = format!("unix:{}/lender", run.display());
    let serve = || {
        let mut command = netram();
        command
            .args([
                "lender",
                "serve",
                "--with-parent",
                "--insecure",
                "--memory",
                "1MiB",
            ])
            .args(["--name", &name, "--listen", &socket])
            .env("NETRAM_KEEP_FREE", "0")
            .env("NETRAM_PRESSURE", "0");
        started(&mut command)
    };
    let (lender, said) = serve();
    assert!(said.starts_with("listening "), "{said}");
    let own = || {
        let own = stores(&name)
            .into_iter()
            .find(|path| fs::metadata(path).unwrap().uid() == 0);
        let own = own.expect("the lender has a store");
        (fs::metadata(&own).unwrap().ino(), own)
    };
    let first = own();
    drop(lender);
    let (_lender, said) = serve();
    assert!(said.starts_with("listening "), "{said}");
    assert_eq!(own(), first, "the next lender finds its windows");
    assert_eq!(fs::read(&taken).unwrap(), b"theirs\n");
    assert_eq!(fs::metadata(&taken).unwrap().uid(), USER);
}
