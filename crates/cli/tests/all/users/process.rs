//! Tools run to their end, and processes that are killed with all their children.

use std::collections::HashMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};

use crate::common::start;

/// How long anything may take that is not itself under test: the machine may be slow and busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Runs a tool to its end, which is near: what it printed, or why it failed.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<String, String> {
    end(Command::new(program).args(arguments), PATIENCE)
}

/// Runs a command to its end: what it printed, or how it failed. It is killed when it takes longer than
/// `at_most`.
pub(crate) fn end(command: &mut Command, at_most: Duration) -> Result<String, String> {
    let mut limited = Command::new("timeout");
    limited
        .args(["--signal=KILL", &at_most.as_secs().to_string()])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    limited
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = start(&mut limited)
        .wait_with_output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(out),
        false => Err(format!(
            "{command:?}: {}: {out}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Whether there is such a program.
pub(crate) fn has(program: &str) -> Result<(), String> {
    tool("sh", &["-c", &format!("command -v {program}")])
        .map(drop)
        .map_err(|_| format!("there is no {program}"))
}

/// From here on this process adopts the orphans of what it starts, and [`reap`] ends them. Not every
/// machine's first process does that at once, and until then a killed process is still in the process table,
/// where it looks like one that may yet write. Not for programs that have orphans of their own and wait until
/// these are gone.
pub(crate) fn adopt_orphans() {
    set_child_subreaper(Some(rustix::process::getpid())).expect("the kernel has it since 3.4");
}

/// Waits until a killed process is gone, if it was a child or its parent is gone.
pub(crate) fn reap(pid: Pid) {
    until("a killed process ends", || {
        !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
    });
}

/// A process, killed with all that it started when this is dropped.
pub(crate) struct UserProcess {
    child: Child,
}

impl UserProcess {
    pub(crate) fn start(command: &mut Command) -> UserProcess {
        UserProcess {
            child: start(command.stdin(Stdio::null())),
        }
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Kills the process and its descendants, and waits until none of them is left.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// Asks the process to stop, and waits until it has.
    pub(crate) fn stop(self, signal: Signal) -> Result<(), String> {
        self.stop_with(signal, &[0])
    }

    /// The same with one that ends so with one of `codes` when all is well.
    pub(crate) fn stop_with(mut self, signal: Signal, codes: &[i32]) -> Result<(), String> {
        kill_process(Pid::from_child(&self.child), signal).map_err(|errno| errno.to_string())?;
        let mut status = None;
        until("the process stops", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        match status.and_then(|status| status.code()) {
            Some(code) if codes.contains(&code) => Ok(()),
            _ => Err(format!("it stopped with {status:?}")),
        }
    }

    fn end(&mut self) {
        let mut family = descendants(self.child.id() as i32);
        let _ = self.child.kill();
        let _ = self.child.wait();
        family.iter().for_each(|member| member.kill());
        until("the killed processes are gone", || {
            family.retain(Member::is_there);
            family.is_empty()
        });
    }
}

impl Drop for UserProcess {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// A process that is not a child. Its start time tells it from a later one with the same number.
struct Member {
    pid: i32,
    start: u64,
}

impl Member {
    fn is_there(&self) -> bool {
        let found = stat(self.pid).filter(|(_, start, _)| *start == self.start);
        let Some((_, _, ended)) = found else {
            return false;
        };
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| ended) {
            reap(pid);
        }
        !ended
    }

    fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_there()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Parent and start of a process, and whether it has ended and only waits to be seen.
fn stat(pid: i32) -> Option<(i32, u64, bool)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some((
        fields.get(1)?.parse().ok()?,
        fields.get(19)?.parse().ok()?,
        fields.first() == Some(&"Z"),
    ))
}

/// All that `root` has started, and what those have.
fn descendants(root: i32) -> Vec<Member> {
    let numbers = fs::read_dir("/proc").expect("there is /proc");
    let known: HashMap<i32, (i32, u64)> = numbers
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| stat(pid).map(|(parent, start, _)| (pid, (parent, start))))
        .collect();
    let is_below = |mut pid: i32| {
        // Bounded: the numbers were not read at one moment.
        for _ in 0..64 {
            match known.get(&pid) {
                Some((parent, _)) if *parent == root => return true,
                Some((parent, _)) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    known
        .iter()
        .filter(|(pid, _)| is_below(**pid))
        .map(|(pid, (_, start))| Member {
            pid: *pid,
            start: *start,
        })
        .collect()
}

/// Waits until `condition` holds; panics when it never does.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
