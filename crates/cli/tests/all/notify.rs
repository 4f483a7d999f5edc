//! Messages of services to systemd, at a real socket: that they are ready, what they do, that they live, that
//! they read settings again, and that they stop.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::mounted::wait_until;
use crate::common::shared::SharedFixture;
use crate::common::{netram, run, skipped, start};

/// Longer than any message takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Silence after which a thread counts as wedged here: an idle one answers every ten seconds.
const SILENCE: Duration = Duration::from_secs(15);
const PING: &str = "WATCHDOG=1";

/// A service, and the socket at which it takes this process for systemd.
struct Service {
    child: Child,
    socket: UnixDatagram,
    _directory: tempfile::TempDir,
}

impl Service {
    fn start(arguments: &[&str]) -> Service {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut command = netram();
        command
            .args(arguments)
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "2000000")
            .env("NETRAM_KEEP_FREE", "0")
            .env("NETRAM_PRESSURE", "0")
            .stdout(Stdio::null());
        Service {
            child: start(&mut command),
            socket,
            _directory: directory,
        }
    }

    /// The next message, if one comes soon.
    fn hear(&self) -> Option<String> {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..length].to_vec()).unwrap())
    }

    /// Waits for a message that begins like this.
    fn until(&mut self, begin: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.hear() {
                Some(message) if message.starts_with(begin) => return message,
                _ => (),
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                Instant::now() < deadline && ended.is_none(),
                "no {begin}; ended: {ended:?}"
            );
        }
    }

    /// Waits until there has been no ping for long.
    fn until_no_ping(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut last = Instant::now();
        while last.elapsed() < SILENCE {
            if self.hear().is_some_and(|message| message == PING) {
                last = Instant::now();
            }
            assert!(Instant::now() < deadline, "a wedged service still sends pings");
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn reloads(&mut self) {
        self.signal(Signal::HUP);
        let reloading = self.until("RELOADING=1");
        let at = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(at.trim_end().parse::<u64>().unwrap() > 0);
        self.until("READY=1");
    }

    fn stops(mut self) {
        self.signal(Signal::TERM);
        self.until("STOPPING=1");
        assert!(self.child.wait().unwrap().success());
        let left: Vec<String> = std::iter::from_fn(|| self.hear()).collect();
        for begin in ["EXTEND_TIMEOUT_USEC=", "STATUS="] {
            assert!(left.iter().any(|message| message.starts_with(begin)), "{left:?}");
        }
    }

    /// Has the kernel hold one thread of the service before each of its next waits, for as long as the result
    /// lives. The others go on.
    fn hold(&self, thread: &str) -> Held {
        let is_it = |task: &std::path::PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == thread)
        };
        let find = || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            tasks.map(|task| task.unwrap().path()).find(is_it)
        };
        // A thread that has not run yet has the name of the one that started it.
        wait_until(&format!("there is a thread {thread}"), || find().is_some());
        let task = find().unwrap();
        let mut command = Command::new("strace");
        command
            .args(["-q", "-o", "/dev/null", "-p"])
            .arg(task.file_name().unwrap());
        command.args(["-e", "inject=all:delay_enter=600s"]);
        Held(start(command.stdin(Stdio::null()).stderr(Stdio::null())))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program that holds a thread.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn can_hold() -> bool {
    let tried = Command::new("strace")
        .args([
            "-q",
            "-o",
            "/dev/null",
            "-e",
            "inject=getppid:delay_enter=1us",
            "true",
        ])
        .output();
    let works = tried.is_ok_and(|tried| tried.status.success());
    if !works {
        skipped("strace cannot hold a thread here: apt-get install strace");
    }
    works
}

/// Arguments of a lender with a store in this directory.
fn lender(directory: &Path) -> Vec<String> {
    let words = [
        "lender",
        "serve",
        "--with-parent",
        "--insecure",
        "--memory",
        "16MiB",
    ];
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    for (flag, name) in [("--store", "store"), ("--listen", "socket")] {
        let path = directory.join(name).display().to_string();
        let prefix = if flag == "--listen" { "unix:" } else { "" };
        words.extend([flag.to_owned(), format!("{prefix}{path}")]);
    }
    words
}

fn start_lender(directory: &Path) -> Service {
    let words = lender(directory);
    Service::start(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_lender_says_that_it_serves_lives_reloads_and_stops() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut lender = start_lender(directory.path());
    lender.until("READY=1");
    assert_eq!(
        lender.until("STATUS="),
        "STATUS=lending 16.0 MiB: nothing of clients is here"
    );
    lender.until(PING);
    lender.until(PING);
    lender.reloads();
    lender.stops();
}

#[test]
fn a_lender_with_one_thread_that_stands_still_sends_no_more_pings() {
    if !can_hold() {
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut lender = start_lender(directory.path());
    for thread in ["netram-shard-0", "netram-accept"] {
        lender.until(PING);
        let held = lender.hold(thread);
        lender.until_no_ping();
        drop(held);
        lender.until(PING);
    }
}

#[test]
fn a_regions_server_says_that_it_serves_lives_reloads_and_stops() {
    let place = SharedFixture::new();
    assert_eq!(place.made().code, 0);
    let region = place.path("plan").display().to_string();
    let words = [
        "shared",
        "serve",
        "--with-parent",
        "--insecure",
        "--listen",
        "tcp://127.0.0.1:0",
        &region,
    ];
    let mut server = Service::start(&words);
    server.until("READY=1");
    assert_eq!(server.until("STATUS="), "STATUS=serving 0 nodes");
    server.until(PING);
    if can_hold() {
        let held = server.hold("netram-region");
        server.until_no_ping();
        drop(held);
        server.until(PING);
    }
    server.reloads();
    server.stops();
}

#[test]
fn a_volumes_server_says_what_commits_wait_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (volume, socket) = (path("db"), format!("unix:{}", path("nbd")));
    let lender = format!("unix:{}", path("nobody"));
    let sizes = ["--size", "16MiB", "--journal-size", "4MiB"];
    let create = ["volume", "create", "--insecure", "--lender", &lender, &volume];
    let made = run([&create[..], &sizes].concat());
    assert_eq!(made.code, 0, "{}", made.err);
    let mut server = Service::start(&["volume", "serve", "--listen", &socket, &volume]);
    server.until("READY=1");
    let status = server.until("STATUS=");
    assert!(
        status.starts_with("STATUS=commits wait for the disk: only 0 of the "),
        "{status}"
    );
    server.until(PING);
    server.reloads();
    server.stops();
}
