//! A program that dies because a page is lost says so before, and dies even if the message is not read.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::lenders::Waiting;
use super::{LenderProcess, RunTestbed, compiled};

const SIGBUS: i32 = 7;
const PATIENCE: Duration = Duration::from_secs(30);

/// A program that waits for a word to look at pages whose only lender has lost them. `None`: it cannot be run
/// here.
fn bereft(name: &str) -> Option<(RunTestbed, tempfile::TempDir, Waiting)> {
    let mut site = RunTestbed::new(name, 1, "64MiB")?;
    let (directory, heap) = compiled("heap", &[]);
    let mut waiting = Waiting::start(&site, &["--copies", "1"], &heap);
    let address = site.lenders[0].address.clone();
    site.lenders[0].stop(Signal::KILL);
    // A lender that was started again has nothing: there is no need to wait for the lease.
    let listen = ["--listen", &address, "--insecure"];
    site.lenders[0] = LenderProcess::with_memory("64MiB", &format!("{name}-again"), &listen);
    // Nothing more is printed before it reads its pages.
    let heard = line(waiting.child.stderr.as_mut().unwrap());
    assert!(heard.contains("a lender's session has ended"), "{heard}");
    Some((site, directory, waiting))
}

/// A line, and no byte of what follows.
fn line(pipe: &mut impl Read) -> String {
    let mut text = Vec::new();
    while text.last() != Some(&b'\n') {
        let mut byte = [0];
        pipe.read_exact(&mut byte).unwrap();
        text.extend(byte);
    }
    String::from_utf8(text).unwrap()
}

fn is_bus_error(status: ExitStatus) -> bool {
    // `timeout` ends as its child does.
    status.signal() == Some(SIGBUS) || status.code() == Some(128 + SIGBUS)
}

#[test]
fn a_page_whose_last_copy_is_lost_is_a_bus_error_and_a_sentence_that_names_its_lender() {
    let Some((site, _directory, waiting)) = bereft("lost") else {
        return;
    };
    let address = &site.lenders[0].address;
    let (status, found, said) = waiting.look();
    assert!(is_bus_error(status), "{status}: {said}");
    assert_eq!(found, "", "never zeros");
    assert!(said.contains("is lost") && said.contains(address), "{said}");
}

/// Standard error is read only once the program waits to write to it.
#[test]
fn the_reason_is_written_before_the_program_dies() {
    let Some((_site, _directory, mut waiting)) = bereft("last-words") else {
        return;
    };
    fill(&waiting);
    let log = log_thread(&waiting);
    let resting = call(&log);
    assert!(resting.is_some(), "the log has nothing to write yet");
    waiting.tell();
    let until = Instant::now() + PATIENCE;
    // In another call it stays only to write.
    while call(&log) == resting && log.exists() {
        assert!(Instant::now() < until, "nothing is said");
    }
    let mut said = String::new();
    let mut pipe = waiting.child.stderr.take().unwrap();
    pipe.read_to_string(&mut said).unwrap();
    let (status, ..) = waiting.end();
    assert!(is_bus_error(status), "{status}");
    assert!(said.contains("is lost"), "{}", said.replace('.', ""));
}

#[test]
fn a_program_dies_of_a_lost_page_even_if_the_message_is_not_read() {
    let Some((_site, _directory, mut waiting)) = bereft("unread") else {
        return;
    };
    fill(&waiting);
    waiting.tell();
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = waiting.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "it hangs");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(is_bus_error(status), "{status}");
}

/// Fills the pipe that is the program's standard error.
fn fill(waiting: &Waiting) {
    let mut options = OpenOptions::new();
    let options = options
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let mut pipe = options
        .open(format!("/proc/{}/fd/2", waiting.child.id()))
        .unwrap();
    let full = loop {
        if let Err(error) = pipe.write(b".") {
            break error.kind();
        }
    };
    assert_eq!(full, ErrorKind::WouldBlock);
}

/// The directory of the thread that writes the log of the program under `timeout`.
fn log_thread(waiting: &Waiting) -> PathBuf {
    let above = waiting.child.id();
    let children = fs::read_to_string(format!("/proc/{above}/task/{above}/children")).unwrap();
    let program = children.split_whitespace().next().unwrap();
    let threads = fs::read_dir(format!("/proc/{program}/task")).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let is_log =
        |thread: &PathBuf| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "netram-log\n");
    threads.find(is_log).unwrap()
}

/// The number of the system call in which a thread sleeps. `None`: it does not.
fn call(thread: &Path) -> Option<String> {
    let text = fs::read_to_string(thread.join("syscall")).ok()?;
    let number = text.split_whitespace().next()?;
    number.parse::<u64>().is_ok().then(|| number.to_owned())
}
