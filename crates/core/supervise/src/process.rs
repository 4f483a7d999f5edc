//! A process identified by its id and start time, because ids are reused.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Indices in `/proc/ID/stat` behind the program's name, which may contain spaces and brackets: the third,
/// 20th and 22nd field of proc(5).
const STATE_FIELD: usize = 0;
const THREADS_FIELD: usize = 17;
const START_FIELD: usize = 19;

/// One process, distinct from later ones with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub id: u32,
    /// Start time, in the kernel's ticks since boot.
    pub start: u64,
}

impl ProcessIdentity {
    /// The process that has the id `id` now.
    ///
    /// # Errors
    ///
    /// The process does not exist, or its start time cannot be read.
    pub fn of(id: u32) -> io::Result<ProcessIdentity> {
        let text = stat_of(id)?;
        let start =
            start_in(&text).ok_or_else(|| io::Error::other(format!("/proc/{id}/stat has no start time")))?;
        Ok(ProcessIdentity { id, start })
    }

    /// Whether the process still runs. A zombie does not count: the kernel has closed its files already, and
    /// a parent in a container may never ask for its status.
    pub fn is_alive(&self) -> bool {
        stat_of(self.id).is_ok_and(|stat| start_in(&stat) == Some(self.start) && !has_ended(&stat))
    }

    /// Signals this process; `false` if it is gone, even if another process has its id.
    ///
    /// # Errors
    ///
    /// The signal is not permitted, or the kernel has no pidfd.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = i32::try_from(self.id).ok().and_then(Pid::from_raw) else {
            return Ok(false);
        };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(Errno::SRCH) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        // If the process still lives now, the handle is for it and not for a later one with its id.
        if !self.is_alive() {
            return Ok(false);
        }
        match pidfd_send_signal(&handle, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn stat_of(id: u32) -> io::Result<String> {
    let path = format!("/proc/{id}/stat");
    fs::read_to_string(&path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
}

fn field(stat: &str, number: usize) -> Option<&str> {
    let (_, behind_name) = stat.rsplit_once(") ")?;
    behind_name.split(' ').nth(number)
}

fn start_in(stat: &str) -> Option<u64> {
    field(stat, START_FIELD)?.parse().ok()
}

/// Whether the process is a zombie. One whose first thread alone has ended looks like a zombie, but has other
/// threads.
fn has_ended(stat: &str) -> bool {
    let threads = || field(stat, THREADS_FIELD)?.parse().ok();
    matches!(field(stat, STATE_FIELD), Some("Z" | "X")) && threads().is_none_or(|count: u32| count <= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=24).map(|field| field.to_string()).collect();
        let stat = format!("7 (a) b (c) {}", fields.join(" "));
        assert_eq!(start_in(&stat), Some(22));
        assert_eq!(start_in("7 (a) R 1"), None);
        assert_eq!(start_in(""), None);
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = ProcessIdentity::of(child.id()).unwrap();
        assert!(process.is_alive());
        child.kill().unwrap();
        let ended = || stat_of(child.id()).is_ok_and(|stat| field(&stat, STATE_FIELD) == Some("Z"));
        while !ended() {
            std::thread::yield_now();
        }
        assert!(!process.is_alive());
        assert!(!process.signal(Signal::TERM).unwrap());
        child.wait().unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn a_process_whose_first_thread_alone_has_ended_is_alive() {
        let stat = |state: &str, threads: u32| {
            let between = "1 ".repeat(THREADS_FIELD - 1);
            format!("7 (a) {state} {between}{threads} 0 22")
        };
        assert!(!has_ended(&stat("S", 1)) && !has_ended(&stat("Z", 3)));
        assert!(has_ended(&stat("Z", 1)));
        assert_eq!(start_in(&stat("Z", 3)), Some(22));
    }
}
