//! The measuring machine: its cores and load, the placement of processes, and processor time.

use std::fs;
use std::time::Duration;

use rustix::thread::CpuSet;
use serde::Serialize;

use crate::error::{BenchError, ErrorContext};

/// Properties of the machine that a reader needs to judge a figure.
#[derive(Clone, Debug, Serialize)]
pub struct MachineInfo {
    /// Name of the processor.
    pub processor: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Average number of runnable processes in the minute before the measurement. If it is much above the
    /// cores in use, distrust the figures.
    pub load: f64,
}

impl MachineInfo {
    /// Reads the current values.
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

/// Average number of runnable processes in the last minute.
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
///
/// # Errors
///
/// Fails if the system refuses the cores.
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

/// Restores the thread's allowed cores when dropped.
pub struct CorePin(Vec<usize>);

impl CorePin {
    /// Keeps this thread on one core for as long as the value lives.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses the core.
    pub fn to(core: usize) -> Result<CorePin, BenchError> {
        let before = cores();
        pin(&[core])?;
        Ok(CorePin(before))
    }
}

impl Drop for CorePin {
    fn drop(&mut self) {
        // The earlier cores are still allowed. If not, the thread stays where it is, which does no harm.
        let _ = pin(&self.0);
    }
}

/// Processor time so far of this process and of `children`, which need not have ended.
pub fn cpu_time(children: &[u32]) -> Duration {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = Duration::new(own.tv_sec as u64, own.tv_nsec as u32);
    own + children.iter().map(|&pid| cpu_time_of(pid)).sum::<Duration>()
}

/// Sums the threads' times, because the kernel's figure for a process counts only hundredths of seconds.
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
