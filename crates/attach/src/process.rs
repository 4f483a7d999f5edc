//! A process, known by more than its number: another has that number some time after the first is gone.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Of the fields of `/proc/ID/stat` behind the program's name, which may have spaces and brackets in it: proc(5)'s 22nd.
const START_FIELD: usize = 19;

/// One process, and no other that has its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// When it started, in the kernel's ticks since boot.
    pub start: u64,
}

impl Process {
    /// The process that has the number `id` now.
    pub fn of(id: u32) -> io::Result<Process> {
        let path = format!("/proc/{id}/stat");
        let text = fs::read_to_string(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        let start = start_in(&text).ok_or_else(|| io::Error::other(format!("{path} has no start time")))?;
        Ok(Process { id, start })
    }

    /// Whether it is still there, be it as a zombie.
    pub fn is_alive(&self) -> bool {
        Process::of(self.id).is_ok_and(|now| now == *self)
    }

    /// Signals this process; `false` if it is gone, whoever has its number by now.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = i32::try_from(self.id).ok().and_then(Pid::from_raw) else {
            return Ok(false);
        };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(Errno::SRCH) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        // It had its number when the handle was made if it has it still: then the handle is this process.
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

fn start_in(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(") ")?;
    behind_name.split(' ').nth(START_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=24).map(|field| field.to_string()).collect();
        let stat = format!("7 (a) b (c) {}", fields.join(" "));
        assert_eq!(start_in(&stat), Some(22));
        assert_eq!(start_in("7 (a) R 1"), None);
        assert_eq!(start_in(""), None);
    }
}
