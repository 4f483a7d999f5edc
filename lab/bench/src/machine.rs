//! The machine that measures: its cores, its load, who runs where, and how much processor time went.

use std::fs;
use std::time::Duration;

use rustix::thread::CpuSet;
use serde::Serialize;

use crate::error::{BenchError, ErrorContext};

/// What must be known beside a number to believe it.
#[derive(Clone, Debug, Serialize)]
pub struct MachineInfo {
    /// The processor's name.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Runnable processes in the last minute, when the measurement began. Much above the cores in use: do not
    /// believe.
    pub load: f64,
}

impl MachineInfo {
    /// Looks now.
    pub fn probe() -> MachineInfo {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        MachineInfo {
            processor,
            cores: cores().len(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            load: load(),
        }
    }
}

/// Runnable processes in the last minute.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|first| first.parse().ok())
        .unwrap_or(0.0)
}

/// The cores that this thread may run on.
pub fn cores() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Keeps this thread, and those it starts from now on, on `cores`.
pub fn pin(cores: &[usize]) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    for &core in cores {
        if core >= CpuSet::MAX_CPU {
            return Err(BenchError::InvalidRequest(format!(
                "there is no core {core}; choose one of {:?}",
                self::cores()
            )));
        }
        set.set(core);
    }
    rustix::thread::sched_setaffinity(None, &set).context(format_args!("run on cores {cores:?}"))
}

/// Restores where the thread may run when dropped.
pub struct CorePin(Vec<usize>);

impl CorePin {
    /// Keeps this thread on one core for as long as the value lives.
    pub fn to(core: usize) -> Result<CorePin, BenchError> {
        let before = cores();
        pin(&[core])?;
        Ok(CorePin(before))
    }
}

impl Drop for CorePin {
    fn drop(&mut self) {
        // What was allowed before is allowed still; if not, the thread stays where it is, which harms nobody.
        let _ = pin(&self.0);
    }
}

/// Processor time so far of this process and of `children`, which need not have ended.
pub fn cpu_time(children: &[u32]) -> Duration {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = Duration::new(own.tv_sec as u64, own.tv_nsec as u32);
    own + children.iter().map(|&pid| cpu_time_of(pid)).sum::<Duration>()
}

/// Adds up the threads, because the kernel's per-process figure counts in hundredths of seconds only.
fn cpu_time_of(pid: u32) -> Duration {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Duration::ZERO;
    };
    let nanoseconds = |thread: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    Duration::from_nanos(threads.flatten().filter_map(nanoseconds).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_ends_with_its_guard() {
        let before = cores();
        let guard = CorePin::to(before[0]).unwrap();
        assert_eq!(cores(), [before[0]]);
        drop(guard);
        assert_eq!(cores(), before);
        assert!(pin(&[usize::MAX]).is_err());
    }

    #[test]
    fn work_shows_in_processor_time() {
        let own = std::process::id();
        let (before, listed) = (cpu_time(&[]), cpu_time_of(own));
        let mut sum = 0_u64;
        while cpu_time(&[]) < before + Duration::from_millis(20) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(cpu_time_of(own) > listed);
        assert_eq!(cpu_time_of(u32::MAX), Duration::ZERO);
    }
}
