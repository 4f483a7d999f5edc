//! Internal to netram: programs use the crate `netram`.
//!
//! Processes: finding program files, ending a child with its parent, and the rights with which files are
//! opened.
//!
//! | item | does |
//! |---|---|
//! | [`find`] | finds a program as a shell does |
//! | [`library`] | finds a shared library that netram loads into other programs |
//! | [`this_program`] | returns the path of the running program's file |
//! | [`die_with_parent`] | makes the kernel kill this process when its parent ends |
//! | [`hide_memory`] | keeps this process out of core dumps and debuggers |
//! | [`abort_guard`] | ends the process when a thread that others wait for panics |
//! | [`files`] | opens files in directories that another user may be able to write |
//! | [`lines`] | reads lines that another process sends over a socket |
//! | [`rights`] | says with whose rights root works on a path, and takes them |
//! | [`secret`] | checks mode and owner of a file that holds a secret |
#![forbid(unsafe_code)]

pub mod abort_guard;
pub mod files;
pub mod lines;
pub mod rights;
pub mod secret;

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior};

/// Directories that are searched for libraries, relative to the running program's: those of a build and of an
/// installation.
const LIBRARY_DIRECTORIES: [&str; 3] = ["", "../lib/netram", "../lib"];

/// Why a program or a library was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No directory holds the library. Build it, install it, or name it.
    #[error(
        "{file} is neither beside {} nor in ../lib/netram: install it (`make install`), build it (`make build`), or name it in {variable}",
        program.display()
    )]
    Library {
        /// The library's file name.
        file: &'static str,
        /// The running program.
        program: PathBuf,
        /// The environment variable that may name the library.
        variable: &'static str,
    },
    /// No directory of PATH holds a program of this name.
    #[error("{} is in no directory of PATH", _0.display())]
    Missing(PathBuf),
    /// A system call failed.
    #[error("{what}: {why}")]
    System {
        /// The path or the request.
        what: String,
        /// The system's error.
        why: io::Error,
    },
}

fn system(what: impl fmt::Display) -> impl FnOnce(io::Error) -> FindError {
    move |why| FindError::System {
        what: what.to_string(),
        why,
    }
}

/// The absolute path of a library that netram loads into other programs: the file that the environment
/// variable names, or the one built or installed with this program.
///
/// # Errors
///
/// [`FindError::Library`] if no directory holds it; [`FindError::System`] if the named file does not exist.
pub fn library(file: &'static str, variable: &'static str) -> Result<PathBuf, FindError> {
    if let Some(path) = env::var_os(variable) {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(system(path.display()));
    }
    let program = env::current_exe().map_err(system("the running program's own file"))?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    let mut candidates = LIBRARY_DIRECTORIES
        .iter()
        .map(|place| directory.join(place).join(file));
    match candidates.find(|path| path.is_file()) {
        Some(path) => path.canonicalize().map_err(system(path.display())),
        None => Err(FindError::Library {
            file,
            program: program.clone(),
            variable,
        }),
    }
}

/// The file of the program `name`, found as a shell finds it.
///
/// # Errors
///
/// [`FindError::Missing`] if no directory of PATH holds it; [`FindError::System`] if a given path does not
/// exist.
pub fn find(name: &Path) -> Result<PathBuf, FindError> {
    if name.components().count() > 1 {
        return name.canonicalize().map_err(system(name.display()));
    }
    let directories = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&directories)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file());
    found.ok_or_else(|| FindError::Missing(name.to_owned()))
}

/// The path of the running program's file, to start the program again.
///
/// # Errors
///
/// The file was removed or replaced since this process started, or /proc is not mounted.
pub fn this_program() -> io::Result<PathBuf> {
    // Not `current_exe`: a rebuilt program has another file at that path, and this link names the running
    // one.
    let link = Path::new("/proc/self/exe");
    File::open(link)?;
    fs::read_link(link)
}

/// Keeps this process out of core dumps, and away from debuggers of its user's other processes: it holds keys
/// for as long as it runs. An ordinary user's process can no longer change its files in /proc.
///
/// # Errors
///
/// The kernel refused the request.
pub fn hide_memory() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes the kernel kill this process when the thread that started it ends, so that no child process is left
/// behind.
///
/// # Errors
///
/// The kernel refused the request.
pub fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(
        Signal::KILL,
    ))?)
}
