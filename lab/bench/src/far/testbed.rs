//! Resources of the methods: lenders, swap, limits, a Python interpreter. They are looked for once, so that
//! missing ones are reported at the beginning.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use netram_far::run::{LIBRARY, LIBRARY_VARIABLE};
use netram_transport::WaitPolicy;
use rustix::process::Signal;

use super::cgroup::MemoryCgroup;
use super::job::{ArenaSpec, DONE_LINE, FILLED_LINE, FarJob, FarResult, JobMemory};
use super::programs::FarProgram;
use super::swap::{SwapArea, SwapTarget};
use super::{FarMethod, FarOutcome, FarSpec, LOCAL_BYTES_MIN, SLACK_BYTES, SLOW_DISK_US};
use crate::child::{ChildProcess, PART, role_argument};
use crate::device;
use crate::error::{BenchError, ErrorContext};
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::tool::finish;

/// The program that Python runs.
const PYTHON_JOB: &str = include_str!("job.py");
/// Bytes that a lender lends beyond the program's memory.
const SPARE_BYTES: u64 = 64 << 20;
/// Maximum bytes that it lends beyond that for pages of a run that has just ended.
const ENDED_BYTES_MAX: u64 = 1 << 30;

/// Resources that the runs need.
pub(super) struct FarTestbed<'s> {
    site: &'s Testbed,
    spec: &'s FarSpec,
    lenders: Vec<LenderProcess>,
    /// Methods that can be run here.
    methods: Vec<FarMethod>,
    /// A Python interpreter that has numpy.
    python: Option<PathBuf>,
}

impl<'s> FarTestbed<'s> {
    /// `skipped` gets what is missing.
    pub(super) fn make(
        site: &'s Testbed,
        spec: &'s FarSpec,
        skipped: &mut Vec<String>,
    ) -> Result<FarTestbed<'s>, BenchError> {
        let mut bed = FarTestbed {
            site,
            spec,
            lenders: Vec::new(),
            methods: Vec::new(),
            python: None,
        };
        for &way in spec.ways.iter().filter(|way| **way != FarMethod::Local) {
            match bed.missing(way) {
                None => bed.methods.push(way),
                Some(why) => skipped.push(format!("{}: {why}", way.name())),
            }
        }
        if bed
            .methods
            .iter()
            .any(|way| matches!(way, FarMethod::Run | FarMethod::Vec | FarMethod::Words))
        {
            bed.lend()?;
        }
        if spec.programs.contains(&FarProgram::Numpy) {
            bed.python = python();
            if bed.python.is_none() {
                skipped.push("numpy: no `python3` here has it (package python3-numpy)".to_owned());
            }
        }
        Ok(bed)
    }

    fn lend(&mut self) -> Result<(), BenchError> {
        let spec = LenderSpec {
            wire: SocketKind::Tcp,
            secure: true,
            wait: WaitPolicy::default(),
            core: None,
        };
        let bytes = self.spec.bytes;
        let memory = (bytes + bytes.min(ENDED_BYTES_MAX) + SPARE_BYTES).to_string();
        for _ in 0..self.spec.copies {
            self.lenders.push(self.site.page_lender(spec, &memory)?);
        }
        Ok(())
    }

    /// Reason why a method cannot be run here.
    fn missing(&self, way: FarMethod) -> Option<String> {
        let limited = || MemoryCgroup::limited_to(self.limit(50), self.site.number()).err();
        let swap = |to| {
            limited().or_else(|| Some(SwapArea::on(self.site, to, self.swap_bytes()).err()?.to_string()))
        };
        match way {
            FarMethod::Swap => swap(SwapTarget::File),
            FarMethod::SlowSwap => device::possible().err().or_else(|| swap(SLOW_DISK)),
            FarMethod::Zram => swap(SwapTarget::Compressed),
            FarMethod::File => limited(),
            FarMethod::Run => {
                let library = netram_process::library(LIBRARY, LIBRARY_VARIABLE).err();
                library
                    .map(|error| error.to_string())
                    .or_else(userfaultfd_missing)
            }
            FarMethod::Vec | FarMethod::Words => userfaultfd_missing(),
            FarMethod::Local => None,
        }
    }

    pub(super) fn can(&self, way: FarMethod) -> bool {
        self.methods.contains(&way)
    }

    pub(super) fn has(&self, program: FarProgram) -> bool {
        program != FarProgram::Numpy || self.python.is_some()
    }

    /// Runs a process once, from its start to its end.
    pub(super) fn run(
        &self,
        program: FarProgram,
        local: u8,
        way: FarMethod,
    ) -> Result<FarOutcome, BenchError> {
        let swap = match way {
            FarMethod::Swap => Some(SwapTarget::File),
            FarMethod::SlowSwap => Some(SLOW_DISK),
            FarMethod::Zram => Some(SwapTarget::Compressed),
            _ => None,
        };
        // Removed after the process that uses it.
        let _swap = match swap {
            Some(to) => Some(SwapArea::on(self.site, to, self.swap_bytes())?),
            None => None,
        };
        let group = match way {
            FarMethod::Swap | FarMethod::SlowSwap | FarMethod::Zram | FarMethod::File => {
                let made = MemoryCgroup::limited_to(self.limit(local), self.site.number());
                Some(made.map_err(BenchError::InvalidRequest)?)
            }
            _ => None,
        };
        let directory = self.site.directory().join(format!("far-{}", self.site.number()));
        std::fs::create_dir(&directory).context("make a directory for a run")?;
        let words = self.words(program, local, way, group.as_ref(), &directory)?;
        let words = words.iter().map(String::as_str);
        let outcome = match self.interpreter(program, way) {
            Some(python) => ChildProcess::start(python, words, "far", &directory),
            None => ChildProcess::start(self.site.program(), words, "far", &directory),
        };
        let outcome = self.watch(outcome?);
        std::fs::remove_dir_all(&directory).context("remove a run's directory")?;
        outcome
    }

    /// The interpreter of a Python program. Under `netram run` it is named later on the command line.
    fn interpreter(&self, program: FarProgram, way: FarMethod) -> Option<&Path> {
        (program == FarProgram::Numpy && way != FarMethod::Run)
            .then_some(self.python.as_deref())
            .flatten()
    }

    /// Arguments after the name of the started program.
    fn words(
        &self,
        program: FarProgram,
        local: u8,
        way: FarMethod,
        group: Option<&MemoryCgroup>,
        directory: &Path,
    ) -> Result<Vec<String>, BenchError> {
        let groups: Vec<PathBuf> = group.iter().map(|group| group.directory().to_owned()).collect();
        let mut words = match way {
            FarMethod::Run => self.under_run(program, local),
            _ => Vec::new(),
        };
        if program == FarProgram::Numpy {
            let file = directory.join("memory").display().to_string();
            let file = if way == FarMethod::File {
                file
            } else {
                String::new()
            };
            words.extend([
                "-c".to_owned(),
                PYTHON_JOB.to_owned(),
                self.spec.bytes.to_string(),
                file,
            ]);
            words.extend(groups.iter().map(|group| group.display().to_string()));
            return Ok(words);
        }
        let memory = match way {
            FarMethod::File => JobMemory::File(directory.join("memory")),
            FarMethod::Vec | FarMethod::Words => JobMemory::Arena(self.arena(local, way == FarMethod::Words)),
            _ => JobMemory::Plain,
        };
        let job = FarJob {
            program,
            bytes: self.spec.bytes,
            memory,
            groups,
        };
        let role = role_argument(&job)?;
        words.extend([PART.to_owned(), role]);
        Ok(words)
    }

    /// `run` and its options, up to the program's name.
    fn under_run(&self, program: FarProgram, local: u8) -> Vec<String> {
        let far = self.arena(local, false);
        let python = self.python.as_deref().filter(|_| program == FarProgram::Numpy);
        [
            "run",
            "--local",
            &far.local_bytes.to_string(),
            "--copies",
            &self.spec.copies.to_string(),
            "--lender",
            &far.lenders.join(","),
            "--key-file",
            &far.key_file.to_string_lossy(),
            "--",
            &python.unwrap_or(self.site.program()).to_string_lossy(),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn arena(&self, local: u8, words: bool) -> ArenaSpec {
        ArenaSpec {
            local_bytes: self.local_bytes(local),
            lenders: self
                .lenders
                .iter()
                .map(|lender| lender.address().to_string())
                .collect(),
            key_file: self.site.key_file().to_owned(),
            words,
        }
    }

    fn local_bytes(&self, local: u8) -> u64 {
        (self.spec.bytes * u64::from(local) / 100).max(LOCAL_BYTES_MIN)
    }

    fn limit(&self, local: u8) -> u64 {
        self.local_bytes(local) + SLACK_BYTES
    }

    fn swap_bytes(&self) -> u64 {
        self.spec.bytes * 2 + SPARE_BYTES
    }

    /// Waits until the process has printed its result.
    fn watch(&self, mut child: ChildProcess) -> Result<FarOutcome, BenchError> {
        let patience = self.spec.patience;
        let heard = child
            .ready_within(FILLED_LINE, patience)
            .and_then(|_| child.ready_within(DONE_LINE, patience));
        let error = match heard {
            Ok(lines) => {
                let line = lines.iter().find_map(|line| line.strip_prefix(DONE_LINE));
                let done: FarResult =
                    serde_json::from_str(line.unwrap_or_default()).context("read what a run took")?;
                return Ok(FarOutcome::Done(done));
            }
            Err(error) => error,
        };
        match child.exit_status()? {
            None => Ok(FarOutcome::Late),
            Some(status) if status.signal() == Some(Signal::KILL.as_raw()) => Ok(FarOutcome::Killed),
            Some(status) => Ok(FarOutcome::Died(format!("{error} ({status})"))),
        }
    }
}

const SLOW_DISK: SwapTarget = SwapTarget::SlowDisk(SLOW_DISK_US);

/// Reason why no arena can be opened.
fn userfaultfd_missing() -> Option<String> {
    let config = netram_far::ArenaConfig::default();
    netram_far::Arena::check(&config)
        .err()
        .map(|error| error.to_string())
}

/// A Python interpreter, not a script, that has numpy.
fn python() -> Option<PathBuf> {
    let ask = "import sys, numpy; print(sys.executable)";
    ["python3", "/usr/bin/python3"].iter().find_map(|name| {
        finish(Command::new(name).args(["-c", ask]))
            .ok()
            .map(PathBuf::from)
    })
}
