//! The terminal in which `netram mount attach` runs is closed: the mount goes on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::{MountFixture, cannot_mount, wait_until};
use crate::common::{LenderProcess, finish, netram, skipped, start};
use rustix::process::{Pid, Signal, kill_process};

/// A process whose parent is gone. A failed test does not leave it behind.
struct Orphan(u32);

impl Orphan {
    /// The numbers of `/proc/…/stat` behind the name, which may have spaces; `None`: it has ended.
    fn stat(&self) -> Option<Vec<String>> {
        let line = fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        let (_, numbers) = line.rsplit_once(") ")?;
        let numbers: Vec<String> = numbers.split(' ').map(str::to_owned).collect();
        (numbers[0] != "Z").then_some(numbers)
    }

    /// Whether it has a terminal that could be closed.
    fn has_terminal(&self) -> bool {
        self.stat().is_some_and(|numbers| numbers[4] != "0")
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if self.stat().is_some()
            && let Some(pid) = Pid::from_raw(self.0.cast_signed())
        {
            // It may have ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A terminal, and what is typed there.
fn terminal(line: &str) -> Child {
    let mut command = Command::new("script");
    for (name, _) in netram().get_envs() {
        command.env_remove(name);
    }
    command.args(["-qfec", line, "/dev/null"]).env("SHELL", "/bin/sh");
    start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
}

fn child_of(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[test]
fn closing_its_terminal_ends_no_mount() {
    if cannot_mount() {
        return;
    }
    if Command::new("script").arg("--version").output().is_err() {
        return skipped("a terminal needs `script` (util-linux)");
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let mounted = MountFixture::with(directory, None, "terminal", 0, "4MiB");
    let socket = format!("unix:{}/lender", mounted.directory.path().display());
    let _lender = LenderProcess::start("terminal", &["--insecure", "--listen", &socket]);
    let (dir, journal) = (mounted.dir(), mounted.journal());
    let line = format!(
        "exec {} mount attach {} --on {} --journal-size 4MiB --insecure --one-domain --members 1 --lender {socket}",
        netram().get_program().display(),
        dir.display(),
        journal.display(),
    );
    let mut terminal = terminal(&line);
    let said = BufReader::new(terminal.stdout.take().unwrap()).lines();
    let said: Vec<String> = said
        .map_while(Result::ok)
        .take_while(|line| !line.starts_with("mounted "))
        .collect();
    let server = Orphan(child_of(terminal.id()).unwrap_or_else(|| panic!("it was not mounted: {said:?}")));
    assert!(server.has_terminal(), "nothing could be closed");
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    // By then the kernel has sent SIGHUP.
    wait_until("the terminal is gone", || !server.has_terminal());
    for number in 0..3 {
        let path = dir.join(format!("file-{number}"));
        fs::write(&path, [number; 5000]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        assert_eq!(fs::read(&path).unwrap(), [number; 5000]);
    }
    assert!(server.stat().is_some(), "its server has ended");
    let ran = finish(netram().args(["mount", "detach"]).arg(&dir));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    wait_until("the server ends", || server.stat().is_none());
}
