//! A program runs in a process of its own, and its references are studied there: it was compiled for that, or it runs in an emulator that is. Either way a library
//! (crates/tracer) is loaded beside it. Settings go to it, and the outcome comes from it, as the text of [`crate::settings`].

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::settings::{Outcome, Settings, SettingsError};

/// The variable of the environment that has the settings, as text.
pub const SETTINGS: &str = "NETRAM_PAGESIM_SETTINGS";
/// The one that names the file for the outcome.
pub const OUTCOME: &str = "NETRAM_PAGESIM_OUTCOME";
/// The library's file.
pub const LIBRARY: &str = "libnetram_tracer.so";
/// The one that names the library.
const VARIABLE: &str = "NETRAM_TRACER";
/// Where it is looked for, seen from the folder of the running program: where it is built, and where it is installed.
const PLACES: [&str; 3] = ["", "../lib/netram", "../lib"];

/// Why a program could not be studied.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The library is not there: build it, install it, or name it.
    #[error(
        "{file} is neither beside {} nor in ../lib/netram: install it (`make install`), build it (`make build`), or name it in {variable}",
        program.display()
    )]
    Library {
        /// Its name.
        file: &'static str,
        /// The running program.
        program: PathBuf,
        /// The variable that may name it.
        variable: &'static str,
    },
    /// There is no emulator: install it, or compile the program for the study.
    #[error(
        "{} was not compiled by `netram pagesim cc`, and there is no {emulator} to run it in: install qemu-user", program.display()
    )]
    Emulator {
        /// The program that would run in it.
        program: PathBuf,
        /// Its name.
        emulator: String,
    },
    /// There is no such program.
    #[error("{} is in no folder of PATH", _0.display())]
    Missing(PathBuf),
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
        program.display(), Ended(*status)
    )]
    Told {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
    },
    /// What it has told cannot be read.
    #[error("the outcome: {0}")]
    Outcome(#[from] SettingsError),
}

/// How a process ended, for people.
#[derive(Clone, Copy, Debug)]
pub struct Ended(pub ExitStatus);

impl fmt::Display for Ended {
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

/// The path of a library that is loaded beside programs, absolute: the one that the variable names, or where it is built and installed.
pub fn library(file: &'static str, variable: &'static str) -> Result<PathBuf, ProcessError> {
    if let Some(path) = env::var_os(variable) {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(system(path.display()));
    }
    let program = env::current_exe().map_err(system("asking for the program's own file"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let mut found = PLACES.iter().map(|place| folder.join(place).join(file));
    match found.find(|path| path.is_file()) {
        Some(path) => path.canonicalize().map_err(system(path.display())),
        None => Err(ProcessError::Library {
            file,
            program: program.clone(),
            variable,
        }),
    }
}

/// The path of [`LIBRARY`].
pub fn tracer() -> Result<PathBuf, ProcessError> {
    library(LIBRARY, VARIABLE)
}

/// The file of a program, as a shell would find it.
pub fn find(name: &Path) -> Result<PathBuf, ProcessError> {
    if name.components().count() > 1 {
        return name.canonicalize().map_err(system(name.display()));
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    found.ok_or_else(|| ProcessError::Missing(name.to_owned()))
}

/// The command that runs a program so that it is studied; its words are to be added. The outcome comes to the file `outcome`, which is not there yet.
pub fn command(program: &Path, settings: &Settings, outcome: &Path) -> Result<Command, ProcessError> {
    let mut command = start(&find(program)?)?;
    command.env(SETTINGS, settings.to_string()).env(OUTCOME, outcome);
    Ok(command)
}

/// Runs such a command to its end.
pub fn run(
    command: &mut Command,
    name: &Path,
    outcome: &Path,
) -> Result<(ExitStatus, Outcome), ProcessError> {
    let status = command.status();
    let status = status.map_err(system(format_args!(
        "running {}",
        command.get_program().display()
    )))?;
    match fs::read_to_string(outcome) {
        Ok(text) if !text.is_empty() => Ok((status, text.parse()?)),
        _ => Err(ProcessError::Told {
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
