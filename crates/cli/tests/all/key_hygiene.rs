//! Copies of a long-lived key in the memory of a running program.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::mounted::{MountFixture, cannot_mount};
use crate::common::{LenderProcess, clean, program, run, skipped, start};

/// Most copies of its cluster key that an idle lender may have: the locked one. Whatever handshakes built is
/// erased behind them.
const COPIES_MAX: usize = 1;

/// How often `secret` stands in the readable memory of a process.
fn copies(process: u32, secret: &[u8]) -> std::io::Result<usize> {
    let memory = File::open(format!("/proc/{process}/mem"))?;
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let mut found = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let (Some((start, end)), Some(access)) = (range, words.next()) else {
            continue;
        };
        // The store has a lender's windows, sealed, and its name is no secret's place.
        if !access.starts_with('r') || line.ends_with(".mem") || line.contains("[v") {
            continue;
        }
        let number = |text| u64::from_str_radix(text, 16).expect("an address of the kernel's");
        let (mut at, end) = (number(start), number(end));
        let mut bytes = vec![0; 1 << 20];
        while at < end {
            let most = bytes.len().min((end - at) as usize);
            let Ok(read) = memory.read_at(&mut bytes[..most], at) else {
                break;
            };
            if read == 0 {
                break;
            }
            found += bytes[..read]
                .windows(secret.len())
                .filter(|part| *part == secret)
                .count();
            // A copy over the edge of two readings is seen in the second.
            at += if read == most && at + (read as u64) < end {
                read - secret.len() + 1
            } else {
                read
            } as u64;
        }
    }
    Ok(found)
}

/// An idle lender had thirteen: on stacks and in freed memory, from where they went into core dumps and swap.
#[test]
fn an_idle_lender_has_one_copy_of_its_cluster_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let key = file.to_str().unwrap();
    assert_eq!(run(["key", "create", key]).code, 0);
    let text = std::fs::read_to_string(&file).unwrap();
    let digits = text.trim_end().strip_prefix("netram-key-1:").unwrap();
    let secret: Vec<u8> = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let lender = LenderProcess::start("hygiene", &["--listen", "tcp://127.0.0.1:0", "--key-file", key]);
    for _ in 0..5 {
        let asked = run(["lender", "status", &lender.address, "--key-file", key]);
        assert_eq!(asked.code, 0, "{}", asked.err);
    }
    let count = match copies(lender.id(), &secret) {
        Ok(count) => count,
        Err(error) => {
            eprintln!("SKIPPED: the memory of another process cannot be read here: {error}");
            return;
        }
    };
    assert!(count >= 1, "it answered with the key");
    assert!(count <= COPIES_MAX, "{count} copies of the key");
    assert_eq!(
        copies(lender.id(), digits.as_bytes()).unwrap(),
        0,
        "copies of its text"
    );
}

/// A program that may dump as large a core as it has, in `directory`.
fn dumping(directory: &Path, words: &[&str]) -> Command {
    let mut command = clean(Command::new("sh"));
    command
        .args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh"])
        .args(words)
        .current_dir(directory);
    command
}

/// Aborts a server once it is ready.
fn aborted(directory: &Path, words: &[&str]) -> ExitStatus {
    let all = [&[program()], words, &["--with-parent", "--insecure"]].concat();
    let mut child = start(dumping(directory, &all).stdout(Stdio::piped()));
    let output = BufReader::new(child.stdout.take().expect("the output is piped"));
    let is_ready = output.lines().map_while(Result::ok).any(|line| line == "ready");
    assert!(is_ready, "{words:?} ended before it was ready");
    kill_process(Pid::from_child(&child), Signal::ABORT).unwrap();
    child.wait().unwrap()
}

/// A core dump would show sessions' keys, and a region's contents, to whoever reads it later.
#[test]
fn a_server_with_keys_dumps_no_core() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let control = dumping(directory.path(), &["sh", "-c", "kill -ABRT $$"]).status();
    if !control.unwrap().core_dumped() {
        eprintln!("\nSKIPPED: this user or this machine dumps no core");
        return;
    }
    let region = path("region");
    let made = run([
        "shared",
        "create",
        &region,
        "--size",
        "64KiB",
        "--log-size",
        "1MiB",
    ]);
    assert_eq!(made.code, 0, "{}", made.err);
    let (store, listen) = (path("store"), format!("unix:{}", path("socket")));
    let lender = [
        "lender", "serve", "--memory", "1MiB", "--store", &store, "--listen", &listen,
    ];
    let server = ["shared", "serve", &region, "--listen", &listen];
    for words in [&lender[..], &server[..]] {
        let ended = aborted(directory.path(), words);
        assert_eq!(ended.signal(), Some(6), "{words:?}: {ended}");
        assert!(!ended.core_dumped(), "{words:?} dumped a core");
    }
}

/// A command runs behind these words without the right to look into every process, as an ordinary user's
/// does.
pub(crate) const WITHOUT_PTRACE: [&str; 5] = [
    "setpriv",
    "--bounding-set",
    "-sys_ptrace",
    "--inh-caps",
    "-sys_ptrace",
];

fn without_ptrace(words: &[&str]) -> Command {
    let mut command = Command::new(WITHOUT_PTRACE[0]);
    command.args(&WITHOUT_PTRACE[1..]).args(words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Whether another process of the same user and rights can read memory of `process`, which runs
/// [`WITHOUT_PTRACE`].
pub(crate) fn is_readable(process: u32) -> bool {
    let open = format!("exec 3</proc/{process}/mem");
    let mut reader = start(&mut without_ptrace(&["sh", "-c", &open]));
    reader.wait().unwrap().success()
}

/// Whether no process can be read here at all. If so, prints why the test is skipped.
pub(crate) fn cannot_read_memory() -> bool {
    let readable = Command::new(WITHOUT_PTRACE[0]).arg("--version").output().is_ok() && {
        let mut other = start(&mut without_ptrace(&["sleep", "60"]));
        // It is this program for a moment.
        let name = format!("/proc/{}/comm", other.id());
        let is_other = || std::fs::read_to_string(&name).is_ok_and(|name| name != "sleep\n");
        while is_other() && other.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let readable = is_readable(other.id());
        other.kill().unwrap();
        other.wait().unwrap();
        readable
    };
    if !readable {
        skipped("no process of the same user can be read here, by setpriv");
    }
    !readable
}

/// The server of a mounted directory has the journal's key, and bytes of files.
#[test]
fn a_mounts_server_dumps_no_core_and_its_user_reads_none_of_its_memory() {
    if cannot_mount() || cannot_read_memory() {
        return;
    }
    let mut wrap = vec!["sh", "-c", "ulimit -c unlimited && exec \"$@\"", "sh"];
    wrap.extend(WITHOUT_PTRACE);
    let mut mounted = MountFixture::wrapped("hidden", &wrap, None, &[]);
    let served = mounted.server_id().as_raw_nonzero().get().cast_unsigned();
    assert!(!is_readable(served), "its memory can be read");
    mounted.kill();
    mounted.mount_with(&["--restarts".to_owned(), "0".to_owned()]);
    let server = mounted.server.as_mut().unwrap();
    assert!(!is_readable(server.id()), "its memory can be read");
    kill_process(Pid::from_child(server), Signal::ABORT).unwrap();
    let ended = server.wait().unwrap();
    assert_eq!(ended.signal(), Some(6), "{ended}");
    assert!(!ended.core_dumped(), "it dumped a core");
}
