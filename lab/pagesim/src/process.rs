//! A program runs in a process of its own, and its references are studied there: it was compiled for that, or
//! it runs in an emulator that is. Either way a library (lab/tracer) is loaded beside it. Settings go to it,
//! and the outcome comes from it, as the text of [`crate::settings`].

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use netram_process::{FindError, find, library};

use crate::settings::{StudyOutcome, StudySettings, StudySettingsError};

/// The variable of the environment that has the settings, as text.
pub const SETTINGS: &str = "NETRAM_PAGESIM_SETTINGS";
/// The one that names the file for the outcome.
pub const OUTCOME: &str = "NETRAM_PAGESIM_OUTCOME";
/// The library's file.
pub const LIBRARY: &str = "libnetram_tracer.so";
/// The one that names the library.
const VARIABLE: &str = "NETRAM_TRACER";

/// Why a program could not be studied.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The library or the program is not there.
    #[error(transparent)]
    Find(#[from] FindError),
    /// There is no emulator: install it, or compile the program for the study.
    #[error(
        "{} was not compiled by `netram-lab pagesim cc`, and there is no {emulator} to run it in: install qemu-user", program.display()
    )]
    Emulator {
        /// The program that would run in it.
        program: PathBuf,
        /// Its name.
        emulator: String,
    },
    /// It is no program that a processor runs.
    #[error("{} is no program of the machine; of a script name the interpreter: `-- python3 job.py`", _0.display())]
    Script(PathBuf),
    /// The system refused.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        why: io::Error,
    },
    /// It ran, and has not told what it referenced.
    #[error(
        "{} {}, and has told nothing: a program tells what it has referenced when it ends by returning from main or by exit(), \
         not by a signal, _exit() or exec()",
        program.display(), ExitDescription(*status)
    )]
    NoOutcome {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
    },
    /// What it has told cannot be read.
    #[error("the outcome: {0}")]
    Outcome(#[from] StudySettingsError),
}

/// How a process ended, for people.
#[derive(Clone, Copy, Debug)]
pub struct ExitDescription(pub ExitStatus);

impl fmt::Display for ExitDescription {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => write!(out, "ended with code {code}"),
            (None, Some(signal)) => write!(out, "was ended by signal {signal}"),
            (None, None) => write!(out, "ended"),
        }
    }
}

fn system(what: impl fmt::Display) -> impl FnOnce(io::Error) -> ProcessError {
    move |why| ProcessError::System {
        what: what.to_string(),
        why,
    }
}

/// The path of [`LIBRARY`].
pub fn tracer() -> Result<PathBuf, ProcessError> {
    Ok(library(LIBRARY, VARIABLE)?)
}

/// The command that runs a program so that it is studied; its words are to be added. The outcome comes to the
/// file `outcome`, which is not there yet.
pub fn command(program: &Path, settings: &StudySettings, outcome: &Path) -> Result<Command, ProcessError> {
    let mut command = start(&find(program)?)?;
    command.env(SETTINGS, settings.to_string()).env(OUTCOME, outcome);
    Ok(command)
}

/// Runs such a command to its end.
pub fn run(
    command: &mut Command,
    name: &Path,
    outcome: &Path,
) -> Result<(ExitStatus, StudyOutcome), ProcessError> {
    let status = command.status();
    let status = status.map_err(system(format_args!(
        "running {}",
        command.get_program().display()
    )))?;
    match fs::read_to_string(outcome) {
        Ok(text) if !text.is_empty() => Ok((status, text.parse()?)),
        _ => Err(ProcessError::NoOutcome {
            program: name.to_owned(),
            status,
        }),
    }
}

/// The program itself if it tells its references, or an emulator.
fn start(program: &Path) -> Result<Command, ProcessError> {
    let bytes = fs::read(program).map_err(system(program.display()))?;
    if !bytes.starts_with(b"\x7fELF") {
        return Err(ProcessError::Script(program.to_owned()));
    }
    let name = LIBRARY.as_bytes();
    if bytes.windows(name.len()).any(|window| window == name) {
        return Ok(Command::new(program));
    }
    let emulator = format!("qemu-{}", env::consts::ARCH);
    let Ok(found) = find(&PathBuf::from(&emulator)) else {
        return Err(ProcessError::Emulator {
            program: program.to_owned(),
            emulator,
        });
    };
    let mut command = Command::new(found);
    command.arg("-plugin").arg(tracer()?).arg(OsString::from(program));
    Ok(command)
}
