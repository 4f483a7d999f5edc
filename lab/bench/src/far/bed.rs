//! What the ways stand on: lenders, swap, limits, an interpreter. Looked for once, so that what is missing is said at the beginning.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use netram_far::run::{LIBRARY, LIBRARY_VARIABLE};
use netram_transport::WaitPolicy;
use rustix::process::Signal;

use super::group::Group;
use super::job::{DONE, Done, FILLED, Far, Job, Memory};
use super::programs::Program;
use super::swap::{Swap, To};
use super::{LOCAL_BYTES_MIN, Outcome, SLACK_BYTES, SLOW_DISK_US, Spec, Way};
use crate::child::{Child, PLAY, Role};
use crate::error::{BenchError, Context};
use crate::lnd::device;
use crate::site::{Lender, LenderSpec, Site, Wire};
use crate::tool::finish;

/// The program that Python runs.
const PYTHON_JOB: &str = include_str!("job.py");
/// What a lender lends beside what the program has.
const SPARE_BYTES: u64 = 64 << 20;

/// Everything that runs need.
pub(super) struct Bed<'s> {
    site: &'s Site,
    spec: &'s Spec,
    lenders: Vec<Lender>,
    /// Those that can be run here.
    ways: Vec<Way>,
    /// An interpreter that has numpy.
    python: Option<PathBuf>,
}

impl<'s> Bed<'s> {
    /// `skipped` gets what is missing.
    pub(super) fn make(
        site: &'s Site,
        spec: &'s Spec,
        skipped: &mut Vec<String>,
    ) -> Result<Bed<'s>, BenchError> {
        let mut bed = Bed {
            site,
            spec,
            lenders: Vec::new(),
            ways: Vec::new(),
            python: None,
        };
        for &way in spec.ways.iter().filter(|way| **way != Way::Local) {
            match bed.missing(way) {
                None => bed.ways.push(way),
                Some(why) => skipped.push(format!("{}: {why}", way.name())),
            }
        }
        if bed
            .ways
            .iter()
            .any(|way| matches!(way, Way::Run | Way::Vec | Way::Words))
        {
            bed.lend()?;
        }
        if spec.programs.contains(&Program::Numpy) {
            bed.python = python();
            if bed.python.is_none() {
                skipped.push("numpy: no `python3` here has it (package python3-numpy)".to_owned());
            }
        }
        Ok(bed)
    }

    fn lend(&mut self) -> Result<(), BenchError> {
        let spec = LenderSpec {
            wire: Wire::Tcp,
            secure: true,
            wait: WaitPolicy::default(),
            core: None,
        };
        let memory = (self.spec.bytes * 2 + SPARE_BYTES).to_string();
        for _ in 0..self.spec.copies {
            self.lenders.push(self.site.lender_of_pages(spec, &memory)?);
        }
        Ok(())
    }

    /// Why a way cannot be gone here.
    fn missing(&self, way: Way) -> Option<String> {
        let limited = || Group::limited_to(self.limit(50), self.site.number()).err();
        let swap =
            |to| limited().or_else(|| Some(Swap::on(self.site, to, self.swap_bytes()).err()?.to_string()));
        match way {
            Way::Swap => swap(To::File),
            Way::SlowSwap => device::possible().err().or_else(|| swap(SLOW_DISK)),
            Way::Zram => swap(To::Compressed),
            Way::File => limited(),
            Way::Run => {
                let library = netram_process::library(LIBRARY, LIBRARY_VARIABLE).err();
                library
                    .map(|error| error.to_string())
                    .or_else(userfaultfd_missing)
            }
            Way::Vec | Way::Words => userfaultfd_missing(),
            Way::Local => None,
        }
    }

    pub(super) fn can(&self, way: Way) -> bool {
        self.ways.contains(&way)
    }

    pub(super) fn has(&self, program: Program) -> bool {
        program != Program::Numpy || self.python.is_some()
    }

    /// A process once, from its start to its end.
    pub(super) fn run(&self, program: Program, local: u8, way: Way) -> Result<Outcome, BenchError> {
        let swap = match way {
            Way::Swap => Some(To::File),
            Way::SlowSwap => Some(SLOW_DISK),
            Way::Zram => Some(To::Compressed),
            _ => None,
        };
        // Taken away after the process that uses it.
        let _swap = match swap {
            Some(to) => Some(Swap::on(self.site, to, self.swap_bytes())?),
            None => None,
        };
        let group = match way {
            Way::Swap | Way::SlowSwap | Way::Zram | Way::File => {
                let made = Group::limited_to(self.limit(local), self.site.number());
                Some(made.map_err(BenchError::Asked)?)
            }
            _ => None,
        };
        let folder = self.site.folder().join(format!("far-{}", self.site.number()));
        std::fs::create_dir(&folder).context("make a folder for a run")?;
        let words = self.words(program, local, way, group.as_ref(), &folder)?;
        let words = words.iter().map(String::as_str);
        let outcome = match self.interpreter(program, way) {
            Some(python) => Child::start(python, words, "far", &folder),
            None => Child::start(self.site.program(), words, "far", &folder),
        };
        let outcome = self.watch(outcome?);
        std::fs::remove_dir_all(&folder).context("remove a run's folder")?;
        outcome
    }

    /// The program that is started for a program of Python's; under `netram run` that is named later.
    fn interpreter(&self, program: Program, way: Way) -> Option<&Path> {
        (program == Program::Numpy && way != Way::Run)
            .then_some(self.python.as_deref())
            .flatten()
    }

    /// All words behind the name of the program that is started.
    fn words(
        &self,
        program: Program,
        local: u8,
        way: Way,
        group: Option<&Group>,
        folder: &Path,
    ) -> Result<Vec<String>, BenchError> {
        let groups: Vec<PathBuf> = group.iter().map(|group| group.folder().to_owned()).collect();
        let mut words = match way {
            Way::Run => self.under_run(program, local),
            _ => Vec::new(),
        };
        if program == Program::Numpy {
            let file = folder.join("memory").display().to_string();
            let file = if way == Way::File { file } else { String::new() };
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
            Way::File => Memory::File(folder.join("memory")),
            Way::Vec | Way::Words => Memory::Arena(self.arena(local, way == Way::Words)),
            _ => Memory::Plain,
        };
        let job = Job {
            program,
            bytes: self.spec.bytes,
            memory,
            groups,
        };
        let role = serde_json::to_string(&Role::Far(job)).context("describe a role")?;
        words.extend([PLAY.to_owned(), role]);
        Ok(words)
    }

    /// `run` and its options, up to the program's name.
    fn under_run(&self, program: Program, local: u8) -> Vec<String> {
        let far = self.arena(local, false);
        let python = self.python.as_deref().filter(|_| program == Program::Numpy);
        [
            "run",
            "--local",
            &far.local_bytes.to_string(),
            "--copies",
            &self.spec.copies.to_string(),
            "--lenders",
            &far.lenders.join(","),
            "--key-file",
            &far.key_file.to_string_lossy(),
            "--",
            &python.unwrap_or(self.site.program()).to_string_lossy(),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn arena(&self, local: u8, words: bool) -> Far {
        Far {
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

    /// Waits until the process has said what it took.
    fn watch(&self, mut child: Child) -> Result<Outcome, BenchError> {
        let patience = self.spec.patience;
        let heard = child
            .ready_within(FILLED, patience)
            .and_then(|_| child.ready_within(DONE, patience));
        let error = match heard {
            Ok(lines) => {
                let line = lines.iter().find_map(|line| line.strip_prefix(DONE));
                let done: Done =
                    serde_json::from_str(line.unwrap_or_default()).context("read what a run took")?;
                return Ok(Outcome::Done(done));
            }
            Err(error) => error,
        };
        match child.ended()? {
            None => Ok(Outcome::Late),
            Some(status) if status.signal() == Some(Signal::KILL.as_raw()) => Ok(Outcome::Killed),
            Some(status) => Ok(Outcome::Died(format!("{error} ({status})"))),
        }
    }
}

const SLOW_DISK: To = To::SlowDisk(SLOW_DISK_US);

/// Why no arena can be opened.
fn userfaultfd_missing() -> Option<String> {
    let config = netram_far::ArenaConfig::default();
    netram_far::Arena::check(&config)
        .err()
        .map(|error| error.to_string())
}

/// An interpreter, as no script, that has numpy.
fn python() -> Option<PathBuf> {
    let ask = "import sys, numpy; print(sys.executable)";
    ["python3", "/usr/bin/python3"].iter().find_map(|name| {
        finish(Command::new(name).args(["-c", ask]))
            .ok()
            .map(PathBuf::from)
    })
}
