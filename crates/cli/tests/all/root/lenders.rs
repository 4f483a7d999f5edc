//! A user who wants to keep root's lender from starting, or to be told root's orders.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use netram_lender::remove_store;

use crate::common::{finish, netram, skipped, start};

use super::{TwoHomes, USER, as_user, cannot_be_two, root_runs};

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
            // Its lender was killed, and left the operator's socket too.
            let _ = remove_store(&path);
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

/// Sockets that a user has put among the stores. They are removed at the end.
struct Placed(PathBuf);

impl Drop for Placed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Root told every socket with the right name what to forget, and believed what came back.
#[test]
fn root_tells_no_process_of_a_user_what_to_forget_unless_asked_to() {
    if cannot_be_two() {
        return;
    }
    if !Path::new("/usr/bin/perl").exists() {
        skipped("listening as a user needs perl");
        return;
    }
    let homes = TwoHomes::new();
    let path = format!("/dev/shm/netram-0-test-{}.mem.operator", std::process::id());
    let placed = Placed(PathBuf::from(&path));
    let listen = format!(
        "exec perl -MIO::Socket::UNIX -e '$|=1; $s=IO::Socket::UNIX->new(Local=>\"{path}\", Listen=>5); \
         chmod 0666, \"{path}\"; print \"held\\n\"; while ($c=$s->accept) {{ $c->sysread($d, 1); print \"heard\\n\" }}'"
    );
    let mut listener = as_user(&listen, &homes.user);
    let mut listener = Killed(start(listener.stdin(Stdio::null()).stdout(Stdio::piped())));
    let mut said = BufReader::new(listener.0.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let id = "1f".repeat(16);
    let forget = |more: &[&str]| {
        let words = ["lender", "forget", &id, "--force", "--timeout", "500ms"];
        root_runs(&[&words[..], more].concat(), &homes.root)
    };
    let ran = forget(&[]);
    assert!(!ran.out.contains(&path), "{} {}", ran.out, ran.err);
    // Named, it is told; so the check above had something to find.
    let user = USER.to_string();
    let ran = forget(&["--user", &user]);
    assert!(
        ran.code == 1 && ran.out.contains(&path),
        "{} {}",
        ran.out,
        ran.err
    );
    line.clear();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "heard\n", "the first to hear is the one that was asked for");
    // A socket of the user's that another's process answers.
    fs::remove_file(&path).unwrap();
    let root = UnixListener::bind(&path).unwrap();
    chown(&path, Some(USER), Some(USER)).unwrap();
    let ran = forget(&["--user", &user]);
    assert!(
        ran.code == 1 && ran.out.contains("a process of user 0 answers at it"),
        "{} {}",
        ran.out,
        ran.err
    );
    drop((root, placed));
    let ran = finish(&mut as_user(
        &format!("\"$NETRAM\" lender forget {id} --user 0"),
        &homes.user,
    ));
    assert!(ran.code != 0 && ran.err.contains("only root"), "{}", ran.err);
}
