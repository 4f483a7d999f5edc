//! Runs a program in its own process, in which its references are studied. The program is compiled for that,
//! or runs in an emulator that loads a plugin; both use the library lab/tracer. Settings and outcome are
//! passed as the text of [`crate::settings`].

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

/// Environment variable with the settings as text.
pub const SETTINGS: &str = "NETRAM_PAGESIM_SETTINGS";
/// Environment variable with the path of the outcome file.
pub const OUTCOME: &str = "NETRAM_PAGESIM_OUTCOME";
/// File name of the library.
pub const LIBRARY: &str = "libnetram_tracer.so";
/// Environment variable with the path of the library.
const VARIABLE: &str = "NETRAM_TRACER";

/// A program could not be studied.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The library or the program was not found.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The program was not compiled for the study, and there is no emulator. Install one, or compile the
    /// program with `netram-lab pagesim cc`.
    #[error(
        "{} was not compiled by `netram-lab pagesim cc`, and there is no {emulator} to run it in: install qemu-user", program.display()
    )]
    Emulator {
        /// The program that would run in it.
        program: PathBuf,
        /// Name of the emulator.
        emulator: String,
    },
    /// The file is a script, not a program for a processor.
    #[error("{} is not a machine program; for a script, name its interpreter: `-- python3 job.py`", _0.display())]
    Script(PathBuf),
    /// The system refused a call.
    #[error("{what}: {why}")]
    System {
        /// The operation that failed.
        what: String,
        /// Error of the system.
        why: io::Error,
    },
    /// The program ran without writing its references.
    #[error(
        "{} {} without writing its references: it must end by returning from main or by exit(), not by a signal, \
         _exit() or exec()",
        program.display(), ExitDescription(*status)
    )]
    NoOutcome {
        /// The program.
        program: PathBuf,
        /// Exit status of the program.
        status: ExitStatus,
    },
    /// The outcome cannot be read.
    #[error("cannot read the outcome of the study: {0}")]
    Outcome(#[from] StudySettingsError),
}

/// Description of a process's end, for people.
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
///
/// # Errors
///
/// Fails if the library is not found.
pub fn tracer() -> Result<PathBuf, ProcessError> {
    Ok(library(LIBRARY, VARIABLE)?)
}

/// The command that runs a program under study, to which its arguments are to be added. It writes the outcome
/// to the file `outcome`, which must not exist yet.
///
/// # Errors
///
/// Fails if the library or the emulator is missing, or the program is a script.
pub fn command(program: &Path, settings: &StudySettings, outcome: &Path) -> Result<Command, ProcessError> {
    let mut command = start(&find(program)?)?;
    command.env(SETTINGS, settings.to_string()).env(OUTCOME, outcome);
    Ok(command)
}

/// Runs such a command to its end.
///
/// # Errors
///
/// Fails if it cannot be started, or writes no valid outcome.
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

/// The program itself if it is compiled for the study, or an emulator.
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
