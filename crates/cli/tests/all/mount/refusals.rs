//! Each call of a mount's server is refused in turn by a tracer: programs get errors, nothing ends, and what
//! was acknowledged is there afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{FallocateFlags, XattrFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{finish, skipped, start};
use crate::mount::{MountFixture, cannot_mount};

const ERRORS: [&str; 6] = ["EMFILE", "ENFILE", "ENOMEM", "EACCES", "EINTR", "ENOSPC"];
/// Calls of a mount on the disk under it. Syncs are only interrupted: any other failure of theirs is final.
const CALLS: [&str; 16] = [
    "openat2",
    "openat",
    "statx",
    "newfstatat",
    "fstat",
    "fchmod",
    "fchown",
    "ftruncate",
    "fallocate",
    "renameat2",
    "unlinkat",
    "mkdirat",
    "linkat",
    "symlinkat",
    "fsetxattr",
    "pread64",
];
const SYNCS: [&str; 2] = ["fsync", "fdatasync"];
/// How many calls of each kind are refused in turn.
const NTHS: u64 = 6;

pub(super) fn cannot_trace() -> bool {
    let mut command = Command::new("strace");
    command.args([
        "-f",
        "-o",
        "/dev/null",
        "-e",
        "inject=fsync:error=EINTR:when=1",
        "true",
    ]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let missing = !command.status().is_ok_and(|status| status.success());
    if missing {
        skipped("refusing a server's calls needs strace, and the right to trace");
    }
    missing
}

/// Refuses calls of the server from now on, until it is dropped.
pub(super) struct Tracer(Child);

impl Tracer {
    pub(super) fn attach(mounted: &MountFixture, call: &str, error: &str, when: &str) -> Tracer {
        let server = mounted.server_id().as_raw_nonzero();
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-o",
            "/dev/null",
            "-e",
            &format!("trace={call}"),
            "-e",
            "signal=none",
            "-e",
        ]);
        command.arg(format!("inject={call}:error={error}:when={when}"));
        command
            .args(["-p", &server.to_string()])
            .stderr(Stdio::piped())
            .stdout(Stdio::null());
        let mut tracer = start(&mut command);
        // The tracer prints a line for each thread; the first is enough, because all are stopped together.
        let mut said = String::new();
        BufReader::new(tracer.stderr.as_mut().unwrap())
            .read_line(&mut said)
            .unwrap();
        assert!(said.contains("attached"), "{said}");
        Tracer(tracer)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.0);
        let _ = kill_process(pid, Signal::INT);
        let _ = self.0.wait();
    }
}

/// File operations of a program that ignores errors. Returns the files, with their bytes, that were reported
/// as synced.
fn play(dir: &Path, round: u64) -> Vec<(String, Vec<u8>)> {
    let mut safe = Vec::new();
    let path = |name: &str| dir.join(format!("{name}-{round}"));
    let bytes = format!("what {round} is").into_bytes();
    let mut keep = |name: &str| -> std::io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .open(path(name))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        safe.push((format!("{name}-{round}"), bytes.clone()));
        Ok(())
    };
    let _ = keep("one");
    let _ = keep("two");
    let _ = fs::create_dir(path("directory"));
    let _ = symlink("one", path("link"));
    let _ = fs::hard_link(path("one"), path("second"));
    let _ = fs::write(path("cut"), b"cut off");
    if let Ok(file) = OpenOptions::new().write(true).open(path("cut")) {
        let _ = file.set_len(3);
        let _ = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8192);
        let _ = rustix::fs::fsetxattr(&file, "user.a", b"b", XattrFlags::empty());
        let _ = file.set_permissions(fs::Permissions::from_mode(0o640));
        let _ = file.sync_all();
    }
    let _ = fs::rename(path("cut"), path("renamed"));
    let _ = fs::remove_file(path("second"));
    let _ = fs::read_dir(dir).map(Iterator::count);
    let _ = fs::read(path("two"));
    safe
}

/// One call refused while programs work and a checkpoint runs.
fn refuse(mounted: &mut MountFixture, call: &str, error: &str, nth: u64, round: u64) {
    let tracer = Tracer::attach(mounted, call, error, &nth.to_string());
    let mut safe = play(&mounted.dir(), round);
    mounted.wait_for_checkpoint();
    drop(tracer);
    let what = format!("{call} {error} {nth}");
    // It still serves, and makes checkpoints.
    let name = format!("after-{round}");
    let after = mounted.dir().join(&name);
    fs::write(&after, b"served").unwrap_or_else(|error| panic!("{what}: {error}"));
    File::open(&after)
        .unwrap()
        .sync_all()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    safe.push((name, b"served".to_vec()));
    mounted.wait_for_checkpoint();
    // A new one has no record yet.
    let fresh = format!("fresh-{round}");
    fs::write(mounted.dir().join(&fresh), b"not synced").unwrap();
    safe.push((fresh, b"not synced".to_vec()));
    mounted.kill();
    mounted.mount();
    for (name, bytes) in safe {
        let found =
            fs::read(mounted.dir().join(&name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        assert_eq!(found, bytes, "{what}: {name}");
    }
    for entry in fs::read_dir(mounted.dir()).unwrap() {
        let path = entry.unwrap().path();
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
}

fn refuse_all(wanted: impl Fn(u64) -> bool) {
    if cannot_mount() || cannot_trace() {
        return;
    }
    let mut mounted = MountFixture::wrapped("refusals", &[], None, &["--checkpoint", "50ms"]);
    let calls = CALLS
        .iter()
        .flat_map(|call| ERRORS.iter().map(move |error| (*call, *error)));
    let syncs = SYNCS.iter().map(|call| (*call, "EINTR"));
    let all = calls
        .chain(syncs)
        .flat_map(|(call, error)| (1..=NTHS).map(move |nth| (call, error, nth)));
    for (round, (call, error, nth)) in (0_u64..).zip(all).filter(|(round, _)| wanted(*round)) {
        refuse(&mut mounted, call, error, nth, round);
    }
    let ran = finish(mounted.program().args(["mount", "detach"]).arg(mounted.dir()));
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn a_server_whose_calls_are_refused_goes_on_and_loses_nothing() {
    // Some of each call and of each error.
    refuse_all(|round| round % 295 == 1);
}

#[test]
#[ignore = "ten minutes: make soak"]
fn a_server_each_of_whose_calls_is_refused_in_turn_loses_nothing() {
    refuse_all(|_| true);
}
