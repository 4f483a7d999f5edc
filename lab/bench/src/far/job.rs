//! One run of a program in its own process: its memory, its limits, and the result it prints.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_far::{Arena, ArenaConfig, FarVec, RemotePagesConfig, WordAccess};
use netram_transport::{ClusterKey, Security};
use serde::{Deserialize, Serialize};

use super::programs::{FarProgram, checksum};
use crate::child::ChildJob;
use crate::cleanup::PROCESSES_FILE;
use crate::error::{BenchError, ErrorContext};
use crate::sys::MappedFile;

/// Line that a process prints when its memory is filled.
pub(super) const FILLED_LINE: &str = "filled";
/// Prefix of the line with the result.
pub(super) const DONE_LINE: &str = "done ";

const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);
/// Indexes of the fault counters in a process's `stat` line, counted from its state.
const MINOR_FAULTS: usize = 7;
const MAJOR_FAULTS: usize = 9;

/// One run of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FarJob {
    pub(super) program: FarProgram,
    pub(super) bytes: u64,
    pub(super) memory: JobMemory,
    /// Groups that it joins before it allocates memory.
    pub(super) groups: Vec<PathBuf>,
}

/// Kind of memory of the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum JobMemory {
    /// Ordinary memory.
    Plain,
    /// A mapped file.
    File(PathBuf),
    /// A far-memory arena of its own.
    Arena(ArenaSpec),
}

/// Parameters of an arena.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ArenaSpec {
    pub(super) local_bytes: u64,
    /// As `tcp://host:port`.
    pub(super) lenders: Vec<String>,
    pub(super) key_file: PathBuf,
    /// Whether the word-wise form of the program runs.
    pub(super) words: bool,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FarResult {
    /// Seconds of the program itself, after its memory was filled.
    pub seconds: f64,
    /// Major faults in that time: the kernel waited for a disk, or for memory used as a swap device.
    pub major_faults: u64,
    /// Minor faults in that time, including those that an arena serves.
    pub minor_faults: u64,
    /// Maximum resident bytes of the process.
    pub resident_bytes: u64,
    /// Value that the program computed, with a checksum of its memory; the same in every run.
    pub found: String,
}

impl FarJob {
    fn in_memory(&self, memory: &mut [u64]) -> Result<(), BenchError> {
        self.program.fill(memory);
        let clock = ProgramClock::start()?;
        let found = self.program.run(memory);
        clock.stop(found, || checksum(memory))
    }

    fn in_arena(&self, far: &ArenaSpec, words: usize) -> Result<(), BenchError> {
        let arena = Arena::open(far.config(self.bytes)?).context("open an arena")?;
        let mut memory = FarVec::zeros(&arena, words).context("take all of an arena")?;
        if !far.words {
            return self.in_memory(memory.as_mut_slice());
        }
        self.program.fill(memory.as_mut_slice());
        if !arena.remote_pages().flush(FLUSH_TIMEOUT) {
            return Err(BenchError::InvalidRequest(
                "the lenders did not take all pages in time".to_owned(),
            ));
        }
        let clock = ProgramClock::start()?;
        let found = self.program.run_by_words(&mut memory).context("run by words")?;
        clock.stop(found, || checksum(memory.as_slice()))
    }
}

impl ChildJob for FarJob {
    const ROLE: &'static str = "Far";

    fn run(&self) -> Result<(), BenchError> {
        for group in &self.groups {
            fs::write(group.join(PROCESSES_FILE), "0").context(format_args!("join {}", group.display()))?;
        }
        let words = (self.bytes / 8) as usize;
        match &self.memory {
            JobMemory::Plain => self.in_memory(&mut vec![0; words]),
            JobMemory::File(path) => self.in_memory(map(path, words)?.words_mut()),
            JobMemory::Arena(far) => self.in_arena(far, words),
        }
    }
}

impl ArenaSpec {
    fn config(&self, bytes: u64) -> Result<ArenaConfig, BenchError> {
        let lenders: Result<Vec<_>, _> = self.lenders.iter().map(|text| text.parse()).collect();
        let key = ClusterKey::load(&self.key_file).context("load the cluster key")?;
        let lenders = lenders.context("read where lenders are")?;
        Ok(ArenaConfig {
            bytes,
            local_bytes: self.local_bytes,
            words: if self.words {
                WordAccess::Measured
            } else {
                WordAccess::Never
            },
            remote_pages: RemotePagesConfig {
                copies: lenders.len(),
                lenders,
                security: Security::Key(key),
                ..RemotePagesConfig::default()
            },
            ..ArenaConfig::default()
        })
    }
}

fn map(path: &Path, words: usize) -> Result<MappedFile, BenchError> {
    let what = format_args!("map {}", path.display());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .context(what)?;
    file.set_len(words as u64 * 8).context(what)?;
    MappedFile::new(&file, words).context(what)
}

/// Clock and fault counters of the program.
struct ProgramClock {
    minor: u64,
    major: u64,
    began: Instant,
}

impl ProgramClock {
    fn start() -> Result<ProgramClock, BenchError> {
        crate::say(FILLED_LINE)?;
        Ok(ProgramClock {
            minor: faults(MINOR_FAULTS)?,
            major: faults(MAJOR_FAULTS)?,
            began: Instant::now(),
        })
    }

    /// `left` computes the memory's checksum at the end, which is not measured.
    fn stop(self, found: u64, left: impl FnOnce() -> u64) -> Result<(), BenchError> {
        let seconds = self.began.elapsed().as_secs_f64();
        let (minor, major) = (faults(MINOR_FAULTS)?, faults(MAJOR_FAULTS)?);
        let done = FarResult {
            seconds,
            major_faults: major - self.major,
            minor_faults: minor - self.minor,
            found: format!("{found:x} {:x}", left()),
            resident_bytes: resident_bytes()?,
        };
        let text = serde_json::to_string(&done).context("write down what a run took")?;
        crate::say(&format!("{DONE_LINE}{text}"))
    }
}

fn faults(field: usize) -> Result<u64, BenchError> {
    let text = fs::read_to_string("/proc/self/stat").context("read this process's faults")?;
    // The program's name, in brackets, may contain spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let faults = fields.split_whitespace().nth(field);
    faults.and_then(|faults| faults.parse().ok()).ok_or_else(|| {
        BenchError::InvalidRequest("the kernel does not report the number of faults".to_owned())
    })
}

fn resident_bytes() -> Result<u64, BenchError> {
    let text = fs::read_to_string("/proc/self/status").context("read this process's memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes << 10).ok_or_else(|| {
        BenchError::InvalidRequest("the kernel does not report the resident memory".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reports_a_runs_faults_and_memory() {
        let before = faults(MINOR_FAULTS).unwrap();
        std::hint::black_box(vec![1_u8; 8 << 20]);
        assert!(faults(MINOR_FAULTS).unwrap() > before);
        faults(MAJOR_FAULTS).unwrap();
        assert!(resident_bytes().unwrap() > 1 << 20);
    }

    #[test]
    fn a_mapped_file_serves_as_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memory");
        let mut mapped = map(&path, 4096).unwrap();
        FarProgram::Scan.fill(mapped.words_mut());
        let mut plain = vec![0; 4096];
        FarProgram::Scan.fill(&mut plain);
        assert_eq!(mapped.words_mut(), plain);
        drop(mapped);
        let bytes: Vec<u8> = plain.iter().flat_map(|value| value.to_ne_bytes()).collect();
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert!(map(&path, 4096).is_err(), "another's file is not taken");
    }
}
