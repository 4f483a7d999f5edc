//! Services whose standard error is full go on, and end when they are asked to (cases 27, 28 and 29).

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, PipeReader, Write, pipe};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{finish, netram, start};

/// Bytes that fit into a pipe before its writer has to wait.
const PIPE_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// State of the other end of standard error.
#[derive(Clone, Copy, Debug)]
enum Error {
    /// The reader is gone.
    Gone,
    /// The disk is full.
    Full,
    /// The pipe is full and is never read.
    Unread,
}

impl Error {
    /// The stream, and what must live as long as the process that has it.
    fn stream(self) -> (Stdio, Option<PipeReader>) {
        match self {
            Error::Full => {
                let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
                (full.into(), None)
            }
            Error::Gone => (pipe().unwrap().1.into(), None),
            Error::Unread => {
                let (reader, mut writer) = pipe().unwrap();
                writer.write_all(&vec![b'x'; PIPE_BYTES]).unwrap();
                (writer.into(), Some(reader))
            }
        }
    }
}

/// A service that is ready.
struct Service {
    child: Child,
    address: String,
    _reader: Option<PipeReader>,
    what: String,
}

impl Service {
    fn start(command: &mut Command, error: Error) -> Service {
        let what = format!("{command:?}, standard error {error:?}");
        let (stream, reader) = error.stream();
        let mut child = start(command.arg("-v").stdout(Stdio::piped()).stderr(stream));
        let mut address = String::new();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.map(|line| line.unwrap_or_else(|error| panic!("{what}: {error}"))) {
            if let Some(listens) = line.strip_prefix("listening ") {
                address = listens.to_owned();
            }
            if line == "ready" {
                break;
            }
        }
        assert!(!address.is_empty(), "{what}: it ended before it was ready");
        Service {
            child,
            address,
            _reader: reader,
            what,
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// A terminal closes, and others send what they like.
    fn hear_what_means_nothing(&mut self) {
        for signal in [Signal::HUP, Signal::USR1, Signal::USR2, Signal::ALARM] {
            self.signal(signal);
        }
        std::thread::sleep(Duration::from_millis(50));
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "{}: {ended:?}", self.what);
    }

    fn stop(mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "{} has ended: {ended:?}", self.what);
        self.signal(Signal::TERM);
        let until = Instant::now() + PATIENCE;
        let ended = loop {
            match self.child.try_wait().unwrap() {
                Some(ended) => break ended,
                None => assert!(Instant::now() < until, "{} does not stop", self.what),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(ended.success(), "{}: {ended}", self.what);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lend(directory: &Path, name: &str, error: Error) -> Service {
    Service::start(&mut lender(directory, name), error)
}

fn lender(directory: &Path, name: &str) -> Command {
    let mut command = netram();
    command.args([
        "lender",
        "serve",
        "--insecure",
        "--memory",
        "8MiB",
        "--grace",
        "0s",
        "--store",
    ]);
    command.arg(directory.join(name).with_extension("mem"));
    command.arg("--listen");
    command.arg(format!("unix:{}", directory.join(name).display()));
    command
}

/// Connects a client often enough to fill a queue of log lines; each must be answered.
fn come_and_go(address: &str, times: usize) {
    for _ in 0..times {
        let ran = finish(netram().args(["lender", "status", "--insecure", "--timeout", "20s", address]));
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
}

#[test]
fn a_lender_serves_on_whatever_becomes_of_its_log() {
    for error in [Error::Gone, Error::Full, Error::Unread] {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut lender = lend(directory.path(), "a", error);
        come_and_go(&lender.address, 5);
        lender.hear_what_means_nothing();
        come_and_go(&lender.address, 1);
        lender.stop();
    }
}

/// The lender's standard output is a pipe that was full before it began, as where a supervisor that hangs
/// starts it anew.
#[test]
fn a_lender_serves_although_its_output_is_not_read() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let address = format!("unix:{}", directory.path().join("a").display());
    let (out, _reader) = Error::Unread.stream();
    let mut command = lender(directory.path(), "a");
    let child = start(command.stdout(out).stderr(Stdio::null()));
    let lender = Service {
        child,
        address,
        _reader: None,
        what: "a lender, standard output unread".to_owned(),
    };
    let until = Instant::now() + PATIENCE;
    while !directory.path().join("a").exists() {
        assert!(Instant::now() < until, "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    come_and_go(&lender.address, 1);
    lender.stop();
}

#[test]
fn a_volume_is_served_after_its_lender_is_lost_although_the_log_is_not_read() {
    for error in [Error::Gone, Error::Full, Error::Unread] {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let lender = lend(directory.path(), "a", Error::Full);
        let volume = directory.path().join("db");
        let mut create = netram();
        create.args(["volume", "create", "--size", "1MiB", "--journal-size", "4MiB"]);
        create.args(["--insecure", "--one-domain", "--lender", &lender.address]);
        let made = finish(create.arg(&volume));
        assert_eq!(made.code, 0, "{}", made.err);
        let mut serve = netram();
        serve.args(["volume", "serve", "--insecure"]).arg(&volume);
        serve
            .arg("--listen")
            .arg(format!("unix:{}", directory.path().join("nbd").display()));
        let mut served = Service::start(&mut serve, error);
        drop(lender);
        served.hear_what_means_nothing();
        // Longer than it takes to notice that the lender is gone, and to try it again.
        std::thread::sleep(Duration::from_millis(700));
        served.stop();
    }
}

#[test]
fn a_region_is_served_on_whatever_becomes_of_its_log() {
    for error in [Error::Gone, Error::Full, Error::Unread] {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let region = directory.path().join("plan");
        let made = finish(netram().args(["shared", "create", "--size", "1MiB"]).arg(&region));
        assert_eq!(made.code, 0, "{}", made.err);
        let mut serve = netram();
        serve.args(["shared", "serve", "--insecure"]).arg(&region);
        serve
            .arg("--listen")
            .arg(format!("unix:{}", directory.path().join("door").display()));
        let mut served = Service::start(&mut serve, error);
        served.hear_what_means_nothing();
        served.stop();
    }
}
